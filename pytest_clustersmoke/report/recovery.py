"""Runs whose controller was killed: the next command that finds one writes its report, once its
jobs have ended.

The journal has the results so far; the run directory has the evidence of the jobs. What renders a
report is loaded only where there is one to write: the commands on the history look here each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..config.cluster_file import load_cluster_file
from ..config.profile import Profile
from ..evidence.locks import seize_run
from ..evidence.phase_attempts import read_attempts
from ..evidence.phase_result import OUTCOMES
from ..evidence.run_counts import CriterionRecord, KnownRecord, RunTally
from ..evidence.run_directory import RunDir, read_json
from ..evidence.telemetry import Events, EventWriter, parse_texts, read_events
from ..jobs.outcome import Judgement, judge_attempts
from ..text import UsageProblems
from .unreported_runs import find_unreported, is_whole, mark_unreportable

Settle = Callable[[RunDir, Mapping[str, Any]], bool]
RESULTS = ("passed", "failed", "skipped", "known")


def recover(report_dir: Path, environ: Mapping[str, str], settle: Settle) -> list[str]:
    """Report every run of this directory whose report is missing or incomplete and whose controller
    is dead; returns a line on each. `settle(run, about)` sees to its jobs, and returns whether none
    of them may run any more."""
    lines = []
    for target, run, about in find_unreported(report_dir):
        with seize_run(run) as dead:
            if dead:
                try:
                    if settle(run, about):
                        lines += _report(target, run, about, environ)
                except OSError as error:
                    lines.append(f"run {target.name}: its report cannot be written now: {error}")
                except Exception as error:
                    # Otherwise every later command would fail on it again.
                    words = f"{type(error).__name__}: {error}"
                    mark_unreportable(target, words)
                    lines.append(f"run {target.name}: its report cannot be created: {words}")
    return lines


def _report(
    target: Path, run: RunDir, about: Mapping[str, Any], environ: Mapping[str, str]
) -> list[str]:
    from .publication import publish
    from .record_builder import FinishedRun, make_record
    from .redaction import choose_redactor

    written = read_json(target / "report.json")
    if written is not None and written.get("run_id") == target.name:
        return _complete(target, run, written, about)
    tally, profile = _count_journal(run, about), _profile(about, environ)
    finished = FinishedRun(run, target, about, tally, profile)
    record = make_record(finished)
    _close(run)
    # No environment: the summary of the current CI step must not get this run.
    redactor = choose_redactor(about)
    remarks = publish(record, run, target.parent, {}, unread=finished.unread, redactor=redactor)
    return [f"run {target.name}: {record.partial}; its report is written now: {target}", *remarks]


def _complete(
    target: Path, run: RunDir, written: Mapping[str, Any], about: Mapping[str, Any]
) -> list[str]:
    """Finish a report whose controller was killed after it had written report.json."""
    from ..criteria.past_annotation import annotate
    from ..evidence.run_record import RunRecord
    from .publication import publish
    from .record_builder import try_history
    from .redaction import choose_redactor

    record = RunRecord.model_validate(written)
    _close(run)
    unread = try_history(lambda: annotate(record, target.parent))
    redactor = choose_redactor(about)
    remarks = publish(record, run, target.parent, {}, unread=unread, redactor=redactor)
    if not is_whole(target):  # for example, its journal is too large: do not try again
        mark_unreportable(target, "the evidence cannot be copied")
    line = f"run {target.name}: killed before its report was complete; it is complete now: {target}"
    return [line, *remarks]


def _profile(about: Mapping[str, Any], environ: Mapping[str, str]) -> Profile | None:
    """The current profile of the cluster, for references; None if it is gone."""
    try:
        return load_cluster_file(Path(about["config"]), environ).profile(about["cluster"])
    except (KeyError, OSError, UsageProblems):
        return None


def _count_journal(run: RunDir, about: Mapping[str, Any]) -> RunTally:
    """The tally of a run from its journal."""
    tally = RunTally(interrupted=True)
    tally.phases_of_cluster = [str(name) for name in about.get("phases_of_cluster", ())]
    tally.counts.require = sorted(map(str, about.get("require", ())))
    tally.counts.selection = str(about.get("selection", ""))
    tally.counts.avoided = parse_texts(about.get("avoided"))
    for name in about.get("phases_chosen", ()):
        directory = run.phase(str(name))
        outcome = (read_json(directory.result) or {}).get("outcome")
        phase = tally.phase(str(name))
        if outcome in OUTCOMES:
            phase.end(outcome)
        elif before := read_attempts(directory):  # a node that failed stays one
            phase.outcome = judge_attempts(before, Judgement("lost", ""), [])[0].outcome
    journal = read_events(run.journal)
    for event in journal.named("judged"):
        judged = tally.phases.get(str(event.get("phase")))
        if judged is not None and event.get("result") in RESULTS:
            judged.criteria[str(event.get("criterion"))] = _criterion(event)
    failed = [str(event.get("test")) for event in journal.named("failed")]
    tally.counts.other_failures, tally.counts.failed_tests = len(failed), [*dict.fromkeys(failed)]
    tally.counts.cut_off = _describe_end(journal, tally)
    return tally


def _describe_end(journal: Events, tally: RunTally) -> str:
    """How the run ended, in words."""
    closed = journal.last("closed")
    if closed is not None and closed.get("reaped"):
        return "its controller was killed, and --cluster-reap ended its jobs"
    if closed is not None and not closed.get("recovered"):
        return "its report could not be written at its end"
    over = (*journal.named("ended"), *journal.named("retry"))  # also of reruns
    ended = {event.get("job_id") for event in over}
    left = [
        str(event["job_id"])
        for event in journal.named("submitted")
        if event.get("job_id") not in (None, "", *ended) and not _is_over(tally, event.get("phase"))
    ]
    jobs = ""
    if left:
        several = len(left) > 1
        jobs = (
            f"; job{'s' * several} {', '.join(left)} {'were' if several else 'was'} not cancelled"
        )
    return f"its controller was killed{jobs}"


def _criterion(event: Mapping[str, Any]) -> CriterionRecord:
    known, judged, owner = event.get("known"), event.get("judged"), None
    if isinstance(known, dict) and {*known} == {"what", "reason", "until", "where"}:
        owner = KnownRecord(**{key: str(value) for key, value in known.items()})
    kinds = ",".join(map(str, judged)) if isinstance(judged, list) else ""
    return CriterionRecord.of(event["result"], str(event.get("text")), owner, kinds)


def _is_over(tally: RunTally, phase: object) -> bool:
    return phase in tally.phases and tally.phases[str(phase)].counts.has_ended


def _close(run: RunDir) -> None:
    """Close the journal, so that the directories of the run can be pruned."""
    writer = EventWriter(run.journal)
    writer.write("closed", recovered=True)
    writer.close()
