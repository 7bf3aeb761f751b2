"""How far a run is, as its files say: for a process that did not start it, and that touches nothing
of it. The files are hostile text."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.field_types import NAME
from ..evidence.history.usual_times import LAST_S, UsualTimes, read_usual_times
from ..evidence.job_results import StartClaim, read_claim
from ..evidence.locks import HEARTBEAT_S, MAX_SILENCE_S
from ..evidence.phase_result import OUTCOMES
from ..evidence.run_directory import RERUN, RUN_ID, PhaseDir, RunDir, read_json
from ..evidence.run_journal import JournalledJob, RunJournal, is_closed, read_journal
from ..evidence.run_ownership import find_stranger, is_of_another_user
from ..evidence.telemetry import parse_finite, parse_int, parse_text, parse_texts
from ..node.process_tree import alive
from ..text import sanitize_line
from .dead_runs import find_controller
from .live.board import DONE, ENDING, PENDING, RUNNING, WAITING, PhaseState
from .live.event_tail import EventTails, Mark

MAX_WORD = 80
FRESH_S = 3 * HEARTBEAT_S  # a controller that was seen so lately is not looked for


@dataclass(frozen=True)
class RunStatus:
    """A run that is not closed. `controller` is the process that watches it, empty if none does;
    `marks` have the progress of running phases."""

    run_id: str
    cluster: str
    selection: str
    controller: str
    detached: bool
    states: list[PhaseState]
    marks: Mapping[str, Mark]
    usual: UsualTimes
    screen: str = ""  # the partition, if the run is a screen, and how many nodes have answered
    answered: int = 0

    @property
    def is_over(self) -> bool:
        """Whether every phase has its result; not before phases are known, nor of a screen."""
        return bool(self.states) and all(state.state == DONE for state in self.states)


def list_open_runs(shared_dir: Path) -> Iterator[tuple[RunDir, str]]:
    """This user's runs below a shared directory that are not closed, the oldest first, each with
    why it cannot be read, which is empty if it can. Raises OSError if the directory cannot be
    listed."""
    for name in sorted(path.name for path in shared_dir.iterdir() if RUN_ID.fullmatch(path.name)):
        run = RunDir(shared_dir / name)
        if is_of_another_user(run.root):
            continue
        if stranger := find_stranger(run.root):
            yield run, stranger
        elif not is_closed(run):
            about = read_json(run.run)
            known = about is not None and about.get("run_id") == name
            yield run, "" if known else "its run.json is missing or torn"


def read_status(run: RunDir) -> RunStatus:
    """The status of a run whose run.json can be read."""
    about, journal = read_json(run.run) or {}, read_journal(run)
    named = dict.fromkeys([*parse_texts(about.get("phases_chosen")), *journal.jobs])
    states = [_find_state(run, name, journal.jobs.get(name)) for name in named if _is_phase(name)]
    return RunStatus(
        run_id=run.run_id,
        cluster=_word(about, "cluster"),
        selection=_word(about, "selection"),
        controller=_find_controller(run, about, journal),
        detached=journal.detached,
        states=states,
        marks=_read_marks(run, states),
        usual=read_usual_times(run),
        screen=_word(about, "screen"),
        answered=_count_answers(journal),
    )


def _count_answers(journal: RunJournal) -> int:
    """How many nodes of a screen have answered."""
    screened = journal.events.named("screened")
    nodes = {parse_text(event.get("node")) for event in screened if event.get("end") == "answered"}
    return len(nodes)


def _word(about: Mapping[str, Any], name: str) -> str:
    return sanitize_line(parse_text(about.get(name)) or "")[:MAX_WORD]


def _is_phase(name: str) -> bool:
    """Whether this can be the name of a phase, or of a rerun: it becomes part of a path."""
    rerun = RERUN.fullmatch(name)
    return re.fullmatch(NAME, rerun[1] if rerun else name) is not None


def _find_controller(run: RunDir, about: Mapping[str, Any], journal: RunJournal) -> str:
    try:
        silent_s = time.time() - run.run.stat().st_mtime
    except OSError:
        silent_s = FRESH_S
    if journal.detached or silent_s >= FRESH_S or _has_ended_here(about):
        return find_controller(run, journal, MAX_SILENCE_S)
    return f"pid {parse_int(about.get('pid'))} on {_word(about, 'host')}"


def _has_ended_here(about: Mapping[str, Any]) -> bool:
    """Whether the controller was a process of this host that is gone. One that has just begun has
    no lock yet, but runs."""
    pid = parse_int(about.get("pid"))
    return pid is not None and about.get("host") == socket.gethostname() and not alive(pid)


def _find_state(run: RunDir, name: str, job: JournalledJob | None) -> PhaseState:
    """The state of a phase by its result, the journal, and what its nodes wrote."""
    directory = run.phase(name)
    result = read_json(directory.result) or {}
    job_id = sanitize_line(job.job_id)[:MAX_WORD] if job is not None else ""
    if (outcome := result.get("outcome")) in OUTCOMES:
        run_s = parse_finite(result.get("run_s"))
        return PhaseState(name, DONE, job_id=job_id, outcome=outcome, run_s=run_s)
    if job is None or not job_id:
        return PhaseState(name, WAITING, "" if job is None else "being submitted")
    newest = directory.newest
    claim = read_claim(newest)
    if claim is None:
        return PhaseState(name, PENDING, job_id=job_id, submitted=job.intended)
    state = ENDING if job.has_ended or newest.node_result(0).exists() else RUNNING
    started = claim.time if claim.time is not None and 0 < claim.time < LAST_S else None
    return PhaseState(name, state, _name_nodes(newest, claim), job_id, job.intended, started)


def _name_nodes(directory: PhaseDir, claim: StartClaim) -> str:
    """The node that claimed the start, and how many more the phase has."""
    spec = read_json(directory.spec) or {}
    others = (parse_int(spec.get("nodes")) or 1) - 1
    more = f" and {others} more" if others > 0 else ""
    return f"{sanitize_line(claim.node)[:MAX_WORD]}{more}"


def _read_marks(run: RunDir, states: list[PhaseState]) -> Mapping[str, Mark]:
    tails, marks = EventTails(run), dict[str, Mark]()
    for _ in filter(lambda state: state.state == RUNNING, states):  # one file at each call
        marks = tails.read_next(states)
    return marks
