"""`--cluster-attach`: a run that another controller began, and whether today's suite is still its
own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ..config.phase import Phase
from ..config.profile import Profile
from ..evidence.locks import TAKEOVER_SILENCE_S
from ..evidence.run_directory import RunDir, is_of_phases, read_json
from ..evidence.run_journal import is_closed, require_journal
from ..evidence.run_ownership import find_run, list_runs
from ..evidence.run_request import describe_command
from ..evidence.telemetry import parse_finite, parse_text, parse_texts, to_json_value
from ..jobs.backend import make_spec
from ..text import Problem, UsageProblems, plural, shorten
from .avoided_nodes import AvoidedNodes
from .dead_runs import find_blind_spot, find_controller
from .items import PhaseClass, phase_class
from .job_session import JobSession

OPTION, TAKEOVER, DETACH = "--cluster-attach", "--cluster-takeover", "--cluster-detach"
LATEST = "latest"
# What may differ between two controllers of one run.
NOT_COMPARED = {"run_id", "token", "phase_dir"}
NOT_OF_RESULTS = {"limits"}
# What only some phases have in their job's spec.
SOMETIMES = dict.fromkeys(("fault", "trace", "resume"))
MOST_CHANGES = 8  # named in a message


@dataclass(frozen=True)
class Attachment:
    """The run to attach: its directory and run.json."""

    run: RunDir
    about: Mapping[str, Any]

    @property
    def chosen(self) -> list[str]:
        """The phases that the run chose."""
        return parse_texts(self.about.get("phases_chosen"))

    @property
    def avoided(self) -> AvoidedNodes:
        """The nodes that no job of the run gets, whatever the ledger says of them today."""
        names = parse_texts(self.about.get("avoided"))
        return AvoidedNodes(dict.fromkeys(names, "since the run began"))

    def keep_chosen(
        self, config: pytest.Config, items: list[pytest.Item], names: Mapping[PhaseClass, str]
    ) -> None:
        """Deselect the phases that the run did not choose. Those whose markers have mistakes have
        no name, and are refused later."""
        phases = {item: phase_class(item) for item in items}
        chosen = {None, *(cls for cls, name in names.items() if name in self.chosen)}
        gone = [item for item, cls in phases.items() if cls in names and cls not in chosen]
        config.hook.pytest_deselected(items=gone)
        items[:] = [item for item in items if item not in gone]

    def find_changes(self, profile: Profile, phases: Iterable[Phase]) -> Iterator[Problem]:
        """What differs today from what the run began with, so that its jobs are not those that
        today's criteria would judge."""
        run_id = self.run.run_id
        todo = f"restore it, or end that run's jobs (--cluster-reap {run_id}) and begin anew"
        began = _mapping(self.about.get("resolved"))
        if changed := _differences(_mapping(began.get("profile")), _digest_profile(profile)):
            listed = shorten(changed, MOST_CHANGES)
            what = f"the profile has changed since run {run_id} began: {listed}"
            yield Problem(what, str(profile.file), "the same profile", todo)
        by_name = {phase.name: phase for phase in phases}
        for name in self.chosen:
            if name not in by_name:
                what = f"run {run_id} chose phase {name}, which is not selected today"
                yield Problem(what, OPTION, "the options and files of that run", todo)
        for phase in by_name.values():
            if changed := self._find_changed(phase, profile, _mapping(began.get("phases"))):
                listed = shorten(changed, MOST_CHANGES)
                what = f"phase {phase.name} has changed since run {run_id} began: {listed}"
                yield Problem(what, phase.where, "the same phase", todo)

    @staticmethod
    def _find_changed(phase: Phase, profile: Profile, sources: Mapping[str, Any]) -> list[str]:
        today = _digest_sources(phase) | _digest_spec(phase, profile)
        return _differences(_mapping(sources.get(phase.name)), today)


def read_options(config: pytest.Config, profile: Profile) -> Attachment | None:
    """The run that --cluster-attach names. Raises UsageProblems, also about --cluster-detach."""
    word, detaches = config.getoption(OPTION), config.getoption(DETACH)
    if not (word or detaches):
        return None
    own = OPTION if word else DETACH
    others = ["--cluster-dry-run", "--cluster-prove", "--cluster-here"]
    others += [DETACH] if word else ["--cluster-exclusive"]  # nobody would hold its lock
    if clash := [option for option in others if config.getoption(option)]:
        raise _refuse(f"{own} and {clash[0]} exclude each other", "one of them")
    if getattr(config.option, "tx", None):
        raise _refuse(f"{own} does not work with pytest-xdist", "a run in one process", "omit -n")
    if word:
        return find_attachment(profile, word, config.getoption(TAKEOVER))
    if profile.backend != "slurm":
        what = f"{DETACH} leaves jobs to Slurm, and {profile.name} has none"
        problem = Problem(what, profile.where("backend"), "a profile with `backend: slurm`")
        raise UsageProblems([problem])
    return None


def find_attachment(profile: Profile, word: str, takes_over: bool) -> Attachment:
    """The run that `word` names: its id, or `latest`. Raises UsageProblems."""
    run, why = _find_latest(profile) if word == LATEST else find_run(profile.shared_dir, word)
    about = read_json(run.run) if run is not None else None
    if run is None or about is None or about.get("run_id") != run.run_id:
        what = why or f"there is no run {word} below {profile.shared_dir}"
        raise _refuse(what, f"the id of a run of {profile.name}, or `{LATEST}`")
    if about.get("cluster") != profile.name:
        what = f"run {run.run_id} is one of cluster {about.get('cluster')}, not of {profile.name}"
        raise _refuse(what, f"a run of {profile.name}")
    if "proof" in about:
        what = f"run {run.run_id} is one of --cluster-prove, which proved nothing unless it ended"
        raise _refuse(what, "a run of phases", "prove the gates again")
    if "screen" in about:
        what = f"run {run.run_id} is one of --cluster-screen, whose nodes must be asked again"
        raise _refuse(what, "a run of phases", "screen the nodes again")
    if blind := find_blind_spot(about, profile):
        what = f"run {run.run_id} {blind}"
        todo = "this command on that machine" if profile.backend == "local" else ""
        raise _refuse(what, "a run of Slurm jobs, or of this machine", todo)
    if "report" not in about:  # noted before anything is submitted
        what = f"run {run.run_id} has not come as far as to submit anything"
        raise _refuse(what, "a run with jobs", f"begin anew, without {OPTION}")
    try:
        holder = find_controller(run, require_journal(run), TAKEOVER_SILENCE_S)
    except OSError as error:
        raise _refuse(f"{error}", "a journal that can be read", "try again later") from None
    if holder and not takes_over:
        what = f"run {run.run_id} is controlled by {holder}"
        todo = (
            f"wait until that ends (from another host, {TAKEOVER_SILENCE_S:.0f} s after its last "
            f"sign of life), or add {TAKEOVER}"
        )
        raise _refuse(what, "a run whose controller has ended", todo)
    return Attachment(run, about)


def detach(session: JobSession) -> str:
    """Leave the jobs of a session to the scheduler; return a line that says so."""
    try:
        return f"detached: {plural(session.detach(), 'job')}, nothing judged"
    except OSError as error:  # a full disk, or a process that has taken the run over
        return f"nothing judged, and the journal does not say that the jobs are left ({error})"


def describe_start(
    profile: Profile, phases: Iterable[Phase], arguments: Iterable[object]
) -> dict[str, Any]:
    """What a run began with, for run.json."""
    sources = {
        phase.name: _digest_sources(phase) | _digest_spec(phase, profile) for phase in phases
    }
    resolved = {"profile": _digest_profile(profile), "phases": sources}
    return {"resolved": resolved, "command": describe_command(arguments)}


def _find_latest(profile: Profile) -> tuple[RunDir | None, str]:
    """The newest run of the cluster with jobs that has not ended with a report, and why there is
    none."""
    found = [(read_json(run.run) or {}, run) for run in list_runs(profile.shared_dir)]
    # Their ids are local times, which repeat for an hour when clocks go back.
    found.sort(key=lambda known: parse_finite(known[0].get("begun")) or 0.0)
    for about, run in reversed(found):
        if about.get("cluster") != profile.name or not is_of_phases(about):
            continue
        report = parse_text(about.get("report"))  # noted before anything is submitted
        if report and not (is_closed(run) and read_json(Path(report, "report.json"))):
            return run, ""
    return None, f"there is no run of {profile.name} without a report below {profile.shared_dir}"


def _mapping(value: object) -> Mapping[str, Any]:
    """The mapping in a field of run.json; empty for anything else."""
    return value if isinstance(value, dict) else {}


def _refuse(what: str, expected: str, todo: str = "") -> UsageProblems:
    return UsageProblems([Problem(what, OPTION, expected, todo)])


def _differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The keys whose values differ; none if nothing is known of before."""
    return sorted(key for key in before if before[key] != now.get(key))


def _digest_profile(profile: Profile) -> dict[str, str]:
    values = profile.model_dump(mode="json", exclude=NOT_OF_RESULTS)
    return _digest_values({**values, "limits.retried": profile.limits.retried})


def _digest_spec(phase: Phase, profile: Profile) -> dict[str, str]:
    """Of what the phase's job gets, by its key."""
    anywhere = RunDir(Path()).phase(phase.name)
    spec = SOMETIMES | to_json_value(make_spec(phase, profile, anywhere))
    return _digest_values({key: spec[key] for key in spec.keys() - NOT_COMPARED})


def _digest_values(values: Mapping[str, Any]) -> dict[str, str]:
    return {
        key: _digest(json.dumps(value, sort_keys=True).encode()) for key, value in values.items()
    }


def _digest_sources(phase: Phase) -> dict[str, str]:
    """Of the program, and of the file with the criteria."""
    files = {"its script": phase.script, "its test": Path(phase.where.rpartition(":")[0])}
    return {name: _digest(path.read_bytes()) for name, path in files.items() if path.is_file()}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
