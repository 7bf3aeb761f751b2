"""The end of a run: its record becomes the files of reports/<run_id>/, and the last lines said.

report.json     the record; the report is nothing without it
metrics.prom    the same figures for Prometheus; a whole run's also lie beside the runs, as
                metrics-<cluster>.prom, for a node exporter's textfile collector
index.html      the page for people
GITHUB_STEP_SUMMARY, where GitHub Actions names one: the summary is appended to it

Each file is written whole or not at all. Nothing that goes wrong here may cost a run its verdict.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..criteria.past_annotation import annotate
from ..evidence.history.history_database import HistoryUnusable
from ..evidence.history.history_store import store_run
from ..evidence.run_directory import RunDir, write_atomically, write_json
from ..evidence.telemetry import to_json_value
from ..text import sanitize_line
from .openmetrics import exposition
from .page import page
from .record_builder import FinishedRun, make_record
from .run_archive import EvidenceCopier, point_link, prune_runs
from .run_record import RunRecord
from .summary import add_step_summary
from .terminal import write_summary

MODE = 0o644  # a node exporter and the readers of a report are other users
MAX_REMARK = 500
GIVEN_UP = "report_failed.txt"


def finish(
    run: FinishedRun, reporter: Any, *, latest: str = "latest", remarks: Iterable[str] = ()
) -> bool:
    """Report a run whose jobs are over; False where the report could not be written.

    `latest` is the link that shall point to it. `reporter` is pytest's for the terminal, if any.
    """
    try:
        record = make_record(run)
    except Exception as error:  # of ours; what was found of the cluster is told all the same
        traceback.print_exc()
        give_up(run.target, f"{type(error).__name__}: {error}")
        if reporter is not None:
            reporter.write_line(f"no report could be made: {run.verdict.sentence}", red=True)
        return False
    keep_runs = run.profile.limits.keep_runs if run.profile else None
    lines, written = list(remarks), True
    try:
        record, said = publish(
            record, run.directory, run.target.parent, os.environ, latest=latest, keep_runs=keep_runs
        )
        lines += [*said, f"report: {run.target}"]
    except OSError as error:  # a full disk, say
        written = False
        lines.append(f"the report cannot be written to {run.target}: {error}")
    except Exception as error:  # of ours
        traceback.print_exc()
        written = False
        lines.append(f"the report is not whole: {type(error).__name__}: {error}")
    if reporter is not None:
        write_summary(reporter, record, lines)
    return written


def give_up(target: Path, words: str) -> None:
    """Mark a run whose report cannot be made, so that nobody tries again."""
    with contextlib.suppress(OSError):
        write_atomically(target / GIVEN_UP, words + "\n", MODE)


def publish(
    record: RunRecord,
    run: RunDir,
    report_dir: Path,
    environ: Mapping[str, str],
    *,
    latest: str = "",
    keep_runs: int | None = None,
) -> tuple[RunRecord, list[str]]:
    """Write the run's report, and store it in the history; the record is completed from there.

    Returns the record, and what could not be written beside report.json, in words. Raises OSError
    where report.json cannot be written.
    """
    target = report_dir / record.run_id
    target.mkdir(parents=True, exist_ok=True)
    record, unread = _beside_past(record, report_dir)
    held = record.as_json()
    write_json(target / "report.json", to_json_value(held), mode=MODE)
    copier = EvidenceCopier(run, target)
    for phase in record.phases:
        copier.copy_phase(phase.phase)
    remarks = unread + _write_views(record, target, environ, copier.will_copy_journal())
    if record.proof is None:
        remarks += _store(held, report_dir, judged=not unread)
    for phase in record.phases:
        if phase.outcome == "passed":
            shutil.rmtree(run.phase(phase.phase).output, ignore_errors=True)
    copier.copy_journal()  # last: by it a report is known to be whole
    if latest:
        try:
            point_link(report_dir / latest, target.name)
        except OSError as error:
            remarks.append(f"{latest} does not point to this run: {error}")
    if keep_runs is not None:
        prune_runs(report_dir, keep_runs)
        prune_runs(run.root.parent, keep_runs)
    return record, [*dict.fromkeys(remarks), *copier.remarks()]


def _beside_past(record: RunRecord, report_dir: Path) -> tuple[RunRecord, list[str]]:
    """The record with what the history knows of the past; and why that could not be read."""
    if record.proof is not None:  # what was staged is no part of the history
        return record, []
    try:
        held = record.as_json()
        annotate(held, report_dir)
        return RunRecord.model_validate(held), []
    except Exception as error:
        return record, [_history_remark(error)]


def _store(held: dict[str, Any], report_dir: Path, judged: bool) -> list[str]:
    """Put the run among those of the past; why it could not be."""
    try:
        store_run(held, report_dir, judged)
    except Exception as error:
        return [_history_remark(error)]
    return []


def _history_remark(error: Exception) -> str:
    if isinstance(error, HistoryUnusable):
        return str(error)
    # Of damage nobody foresaw: the report comes first.
    return sanitize_line(f"history: {type(error).__name__}: {error}")[:MAX_REMARK]


def _write_views(
    record: RunRecord, target: Path, environ: Mapping[str, str], has_journal: bool
) -> list[str]:
    """Write what is rendered from the record; which of it could not be written, and why."""

    def is_there(name: str) -> bool:
        return (target / name).exists() or (name == "journal.jsonl" and has_journal)

    views: dict[str, Callable[[], None]] = {
        path.name: partial(_write_metrics, record, path)
        for path in [target / "metrics.prom", *metrics_path(record, target.parent)]
    }
    views["index.html"] = lambda: write_atomically(
        target / "index.html", page(record, is_there), mode=MODE
    )
    views["GitHub's step summary"] = lambda: add_step_summary(record, environ)
    remarks = []
    for name, write in views.items():
        try:
            write()
        except Exception as error:
            words = sanitize_line(f"{type(error).__name__}: {error}"[:MAX_REMARK])
            remarks.append(f"{name} was not written: {words}")
    return remarks


def _write_metrics(record: RunRecord, path: Path) -> None:
    write_atomically(path, exposition(record), mode=MODE)


def metrics_path(record: RunRecord, report_dir: Path) -> list[Path]:
    """Where a textfile collector finds the metrics of this run; nowhere of a run that is not whole.

    One file a cluster, so that several may share a report directory, and a run of some phases, one
    that was cut short, or a proof never stands for the whole.
    """
    if record.selection or record.interrupted or record.partial or record.proof is not None:
        return []
    return [report_dir / f"metrics-{quote(record.cluster, safe='')}.prom"]
