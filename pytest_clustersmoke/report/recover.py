"""Runs whose controller was killed: the next command that meets one writes the report of what is
known of it.

What was judged before stands in the journal; what the jobs left lies in the run's directory. Their
jobs may still run: the scheduler was never told to end them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..cluster import load
from ..errors import UsageProblems
from ..locks import seized
from ..result import OUTCOMES
from ..rundir import RUN_ID, RunDir, read_json, write_whole
from ..telemetry import EventWriter, read_events
from ..verdict import Tally
from .publish import publish
from .record import Run, make_record

if TYPE_CHECKING:
    from ..cluster import Profile
    from .model import CriterionRecord, RunRecord

GIVEN_UP = "report_failed.txt"
RESULTS = ("passed", "failed", "skipped", "known")


def recover(report_dir: Path, environ: Mapping[str, str]) -> list[str]:
    """Report every run that was announced in this directory and never reported to the end, if its
    controller is dead; returns a line on each."""
    told = []
    for target, run, about in _unreported(report_dir):
        with seized(run) as dead:
            if dead:
                try:
                    told += _report(target, run, about, environ)
                except OSError as error:
                    told.append(f"run {target.name} cannot be reported now: {error}")
                except Exception as error:  # once: else it would be met by every later command
                    words = f"{type(error).__name__}: {error}"
                    given_up(target, words)
                    told.append(f"run {target.name} was never reported, and cannot be: {words}")
    return told


def given_up(target: Path, words: str) -> None:
    """Mark a run whose report cannot be made, so that nobody tries again."""
    with contextlib.suppress(OSError):
        write_whole(target / GIVEN_UP, words + "\n", 0o644)


def _report(
    target: Path, run: RunDir, about: Mapping[str, Any], environ: Mapping[str, str]
) -> list[str]:
    written = read_json(target / "report.json")
    if written is not None and written.get("run_id") == target.name:
        return _complete(target, run, cast("RunRecord", written))
    tally, partial = _tally(run, about)
    record = make_record(Run(run, about, tally, _profile(about, environ), partial=partial))
    _close(run)
    # Of the environment nothing: a summary of today's step in CI is not that run's.
    remarks = publish(record, run, target.parent, {}, latest="")
    return [f"run {target.name}: {partial}; its report was written now: {target}", *remarks]


def _complete(target: Path, run: RunDir, record: RunRecord) -> list[str]:
    """Do what was still to be done when the controller was killed behind report.json."""
    _close(run)
    remarks = publish(record, run, target.parent, {}, latest="")
    if not _is_whole(target):  # its journal is too large, say: once is enough
        given_up(target, "the evidence cannot be copied")
    return [f"run {target.name}: killed before its report was whole; it is now: {target}", *remarks]


def _is_whole(target: Path) -> bool:
    """Whether a run was published to the end: the journal is copied last."""
    return (target / "report.json").exists() and (target / "journal.jsonl").exists()


def _profile(about: Mapping[str, Any], environ: Mapping[str, str]) -> Profile | None:
    """The cluster's profile as it is now, for references; None where it is no more."""
    try:
        return load(Path(about["config"]), environ).profile(about["cluster"])
    except (KeyError, OSError, UsageProblems):
        return None


def _unreported(report_dir: Path) -> Iterator[tuple[Path, RunDir, dict[str, Any]]]:
    """Where a report is not whole, the run's directory and its run.json. A proof that was killed
    proved nothing: it is to be run again."""
    try:
        names = sorted(path.name for path in report_dir.iterdir() if RUN_ID.fullmatch(path.name))
    except OSError:
        return
    for name in names:
        target = report_dir / name
        if _is_whole(target) or (target / GIVEN_UP).exists():
            continue
        stub = read_json(target / "run.json") or {}
        run = RunDir(Path(str(stub.get("evidence", ""))))
        about = read_json(run.run)
        is_same = about is not None and about.get("run_id") == name == run.root.name
        if about is not None and is_same and "proof" not in about:
            yield target, run, about


def _tally(run: RunDir, about: Mapping[str, Any]) -> tuple[Tally, str]:
    """What the journal says was judged, and how the run ended, in words."""
    tally = Tally(about.get("require", ()), interrupted=True)
    tally.chosen = [str(name) for name in about.get("phases_chosen", ())]
    tally.all_phases = [str(name) for name in about.get("phases_of_cluster", ())]
    tally.selection = str(about.get("selection", ""))
    journal = read_events(run.journal)
    for one in journal.named("judged"):
        result, phase = one.get("result"), str(one.get("phase"))
        if result in RESULTS and phase in tally.chosen:
            criteria = tally.criteria.setdefault(phase, {})
            judged: CriterionRecord = {"result": result, "text": str(one.get("text"))}
            if isinstance(one.get("known"), dict):
                judged["known"] = one["known"]
            criteria[str(one.get("criterion"))] = judged
    for name in tally.chosen:
        outcome = (read_json(run.phase(name).result) or {}).get("outcome")
        if outcome in OUTCOMES:
            tally.outcomes[name] = outcome
    tally.other_failures = sum(1 for _ in journal.named("failed"))
    closed = journal.last("closed")
    if closed is not None and not closed.get("recovered"):
        return tally, "its report could not be written when it ended"
    left = [
        str(one["job_id"])
        for one in journal.named("submitted")
        if one.get("job_id") and one.get("phase") not in tally.outcomes
    ]
    jobs = f"; nobody ended its job{'s' * (len(left) > 1)} {', '.join(left)}" if left else ""
    return tally, f"its controller was killed{jobs}"


def _close(run: RunDir) -> None:
    """So that its directories may be pruned like those of other runs."""
    writer = EventWriter(run.journal)
    writer.write("closed", recovered=True)
    writer.close()
