"""Publishes a finished run: its record and views in reports/<run_id>/, and the last lines.

report.json     the record; without it there is no report
metrics.prom    its figures for Prometheus; those of a complete run are also written to
                reports/metrics-<cluster>.prom, for a node exporter's textfile collector
index.html      the page for people
screen/         of a screen: lists of its nodes, one a line, and a table of all
GITHUB_STEP_SUMMARY, if GitHub Actions sets it: the summary is appended to that file

Each file is written whole or not at all. Whatever fails here, the run keeps its verdict.
"""

from __future__ import annotations

import os
import shutil
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..evidence.history.history_store import store_run
from ..evidence.node_observation import DeviceFigure, NodeObservation
from ..evidence.run_directory import RunDir, write_atomically, write_json
from ..evidence.run_record import RunRecord
from ..evidence.telemetry import to_json_value
from ..text import sanitize_line
from .node_evidence import list_figures, observe_nodes
from .openmetrics import render_metrics
from .page import page
from .record_builder import MAX_REMARK, FinishedRun, try_history
from .redaction import Redactor, choose_redactor
from .run_archive import EvidenceCopier, point_link, prune_runs
from .screen_lists import render_lists
from .summary import add_step_summary
from .terminal import write_summary
from .unreported_runs import MODE, mark_unreportable


def finish(
    run: FinishedRun, reporter: Any, *, latest: str = "latest", remarks: Iterable[str] = ()
) -> bool:
    """Report a run whose jobs have ended; False if the report or its page could not be written.

    `latest` is the name of the link that will point to the report. `reporter` is pytest's terminal
    reporter, if any.
    """
    try:
        record = run.record
    except Exception as error:  # a bug of ours: the verdict is printed all the same
        traceback.print_exc()
        mark_unreportable(run.target, f"{type(error).__name__}: {error}")
        if reporter is not None:
            reporter.write_line(f"no report could be created: {run.verdict.sentence}", red=True)
        return False
    keep_runs = run.profile.limits.keep_runs if run.profile else None
    lines, written = list(remarks), True
    try:
        unwritten = publish(
            record,
            run.directory,
            run.target.parent,
            os.environ,
            unread=run.unread,
            latest=latest,
            keep_runs=keep_runs,
            observations=run.observations,
            figures=run.figures,
            redactor=choose_redactor(run.about),
        )
        written = (run.target / "index.html").exists()
        lines += [*unwritten, f"report: {run.target}"]
    except OSError as error:  # a full disk, say
        written = False
        lines.append(f"the report cannot be written to {run.target}: {error}")
    except Exception as error:  # a bug of ours
        traceback.print_exc()
        written = False
        lines.append(f"the report is incomplete: {type(error).__name__}: {error}")
    if reporter is not None:
        write_summary(reporter, record, lines)
    return written


def publish(
    record: RunRecord,
    run: RunDir,
    report_dir: Path,
    environ: Mapping[str, str],
    *,
    unread: Sequence[str] = (),
    latest: str = "",
    keep_runs: int | None = None,
    observations: Sequence[NodeObservation] = (),
    figures: Sequence[DeviceFigure] = (),
    redactor: Redactor | None = None,
) -> list[str]:
    """Write the report of the run, and store it in the history, with what its phases say of nodes,
    these `observations` of nodes and `figures` of devices. A `redactor` hides from the report what
    then only the history has, and leaves the evidence in the run directory.

    `unread` says why the record was not compared with its past, if so. Returns remarks on what
    could not be read or written. Raises OSError if report.json cannot be written.
    """
    target = report_dir / record.run_id
    target.mkdir(parents=True, exist_ok=True)
    shown = record if redactor is None else redactor.hide_record(record)
    write_json(target / "report.json", to_json_value(shown.as_json()), mode=MODE)
    copier = EvidenceCopier(run, target, redactor)
    for phase in record.phases:
        copier.copy_phase(phase)
    for phase in record.phases:
        copier.copy_traces(phase)
    remarks = [*unread, *_write_views(shown, target, environ, copier.will_copy_journal())]
    remarks += try_history(
        lambda: store_run(
            record,
            report_dir,
            not unread,
            observations=[*observe_nodes(record), *observations],
            figures=[*list_figures(record), *figures],
            private=redactor is not None,
        )
    )
    for phase in record.phases:
        if phase.outcome == "passed":
            directory = run.phase(phase.phase)
            for job in (directory, *directory.jobs()):
                shutil.rmtree(job.output, ignore_errors=True)
    copier.copy_journal()  # last: a report with a journal is complete
    if latest:
        try:
            point_link(report_dir / latest, target.name)
        except OSError as error:
            remarks.append(f"cannot point `{latest}` to this run: {error}")
    if keep_runs is not None:
        prune_runs(report_dir, keep_runs)
        prune_runs(run.root.parent, keep_runs)
    return [*dict.fromkeys(remarks), *copier.remarks()]


def _write_views(
    record: RunRecord, target: Path, environ: Mapping[str, str], has_journal: bool
) -> list[str]:
    """Write what is rendered from the record; remarks on what could not be written."""

    def is_there(name: str) -> bool:
        return (target / name).exists() or (name == "journal.jsonl" and has_journal)

    views: dict[str, Callable[[], None]] = {
        path.name: partial(_write_metrics, record, path)
        for path in [target / "metrics.prom", *metrics_path(record, target.parent)]
    }
    views["index.html"] = lambda: write_atomically(
        target / "index.html", page(record, is_there), mode=MODE
    )
    lists = render_lists(record.screen) if record.screen is not None else {}
    for name, text in lists.items():
        views[name] = partial(write_atomically, target / name, text, MODE)
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
    write_atomically(path, render_metrics(record), mode=MODE)


def metrics_path(record: RunRecord, report_dir: Path) -> list[Path]:
    """Where a textfile collector finds the metrics of this run; nowhere for a partial run.

    There is one file per cluster, so that clusters may share a report directory. A run of some
    phases, an interrupted run, a proof and a screen leave it alone.
    """
    is_other = record.proof is not None or record.screen is not None
    if record.selection or record.interrupted or record.partial or is_other:
        return []
    return [report_dir / f"metrics-{quote(record.cluster, safe='')}.prom"]
