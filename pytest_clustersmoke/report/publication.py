"""Publishes a finished run: its record and views in reports/<run_id>/, and the last lines.

report.json     the record; without it there is no report
metrics.prom    its figures for Prometheus; those of a complete run are also written to
                reports/metrics-<cluster>.prom, for a node exporter's textfile collector
index.html      the page for people
screen/         of a screen: lists of its nodes, one a line, and a table of all
../index.html   the page over all runs, from the history
GITHUB_STEP_SUMMARY, if GitHub Actions sets it: the summary is appended to that file

Each file is written whole or not at all. Whatever fails here, the run keeps its verdict.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import ValidationError

from ..evidence.history.history_database import HistoryUnusable, close_to_others
from ..evidence.history.history_store import is_stored, store_run
from ..evidence.node_observation import DeviceFigure, NodeObservation
from ..evidence.run_directory import (
    RunDir,
    delete_output,
    read_json,
    write_atomically,
    write_json,
)
from ..evidence.run_record import SCHEMA, RunRecord
from ..evidence.telemetry import to_json_value
from ..evidence.whole_files import (
    MAX_JSON_BYTES,
    explain_unreadable,
    make_shared_directory,
    shared_mode,
)
from ..text import sanitize_line
from .node_evidence import list_figures, observe_nodes
from .node_standing import NodeStanding, read_standings
from .openmetrics import render_metrics
from .page import page
from .record_builder import MAX_REMARK, FinishedRun, try_history
from .redaction import Redactor, choose_redactor
from .run_archive import (
    EvidenceCopier,
    list_protected,
    list_reported_elsewhere,
    point_link,
    prune_runs,
)
from .runs_page import has_run, write_runs_page
from .screen_lists import render_lists
from .summary import add_step_summary
from .terminal import write_summary
from .unreported_runs import mark_unreportable

OPEN_HISTORY = (
    "history.db is another user's, who alone can close it to others: this run is stored as it is "
    "published, so its GPUs are not compared with the past, nor is a phase whose arguments hide "
    "something"
)
METRICS = "metrics.prom"
RUNS = "the page over all runs, index.html of the report directory,"


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
        missing = (unwritten_words(RUNS), unwritten_words("index.html"))
        written = not any(line.startswith(missing) for line in unwritten)
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
    make_shared_directory(target)
    shown = record if redactor is None else redactor.hide_record(record)
    write_json(target / "report.json", to_json_value(shown.as_json()), mode=shared_mode(target))
    copier = EvidenceCopier(run, target, redactor)
    copier.share(target / "junit.xml")  # pytest wrote it
    copier.copy_phases(record.phases)
    views = list_views(shown, target, copier.will_copy_journal(), in_history=not unread)
    views["GitHub's step summary"] = lambda: add_step_summary(shown, environ)
    remarks = [*unread, *write_views(views)]
    seen = [*observe_nodes(record), *observations]
    reached = [*list_figures(record), *figures]
    remarks += try_history(
        lambda: remarks.extend(_store(record, report_dir, not unread, seen, reached, redactor))
    )
    remarks += write_metrics(shown, [target / METRICS, *metrics_path(shown, report_dir)], redactor)
    for phase in record.phases:
        if phase.outcome == "passed":
            delete_output(run.phase(phase.phase))
    copier.copy_journal()  # last: a report with a journal is complete
    if latest:
        try:
            point_link(report_dir / latest, target.name)
        except OSError as error:
            remarks.append(f"cannot point `{latest}` to this run: {error}")
    if keep_runs is not None:
        remarks += try_history(lambda: _prune(record, report_dir, run.root.parent, keep_runs))
    remarks += write_views({RUNS: partial(write_runs_page, report_dir)})
    return [*dict.fromkeys(remarks), *copier.remarks()]


def _store(
    record: RunRecord,
    report_dir: Path,
    judged: bool,
    observations: Sequence[NodeObservation],
    figures: Sequence[DeviceFigure],
    redactor: Redactor | None,
) -> Iterator[str]:
    """Store the run in the history, with all that was seen if everything may be published, or if
    only the user can read it from now on; otherwise as it is published, with a remark. Raises
    HistoryUnusable."""
    private = redactor is not None and close_to_others(report_dir)
    if redactor is not None and not private:
        record = redactor.hide_record(record)
        observations = [redactor.hide_observation(seen) for seen in observations]
        figures = [figure for figure in figures if not figure.device]
    store_run(
        record, report_dir, judged, observations=observations, figures=figures, private=private
    )
    if redactor is not None and not private:
        yield OPEN_HISTORY


def _prune(record: RunRecord, report_dir: Path, run_dir: Path, keep_runs: int) -> None:
    """Delete the oldest reports of this run's cluster and their runs, but not this one, which may
    have begun long ago. Raises HistoryUnusable: without the history nothing is deleted, since it
    says which runs must stay."""
    protected = {record.run_id, *list_protected(report_dir)}
    prune_runs(report_dir, keep_runs, protected, record.cluster)
    elsewhere = list_reported_elsewhere(run_dir, report_dir)
    prune_runs(run_dir, keep_runs, protected | elsewhere, record.cluster)


def render_again(target: Path) -> list[str]:
    """Render a kept report from its record, and the page over all runs; remarks on what could not
    be written. Raises ValueError if the record cannot be read."""
    record = _read_record(target / "report.json")
    has_journal = RunDir(target).journal.exists()
    views = list_views(record, target, has_journal, has_run(target.parent, record.run_id))
    remarks = write_views({**views, RUNS: partial(write_runs_page, target.parent)})
    return [*remarks, *write_metrics(record, [target / METRICS])]


def _read_record(path: Path) -> RunRecord:
    value = read_json(path)
    if value is None:
        raise ValueError(f"{path} {explain_unreadable(path, MAX_JSON_BYTES) or 'cannot be read'}")
    try:
        return RunRecord.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(
            f"{path} is not a record of this version: {place}: {first['msg']}; expected a record "
            f"of schema {SCHEMA}"
        ) from error


def list_views(
    record: RunRecord, target: Path, has_journal: bool, in_history: bool
) -> dict[str, Callable[[], None]]:
    """The files of a report that are rendered from the record alone, and what writes each. The
    metrics are not: they also say where the nodes stand after the run."""

    lists = render_lists(record.screen) if record.screen is not None else {}

    def is_there(name: str) -> bool:
        follows = name in {METRICS, *lists} or (name == "journal.jsonl" and has_journal)
        return follows or (target / name).exists()

    def write_page() -> None:
        text = page(record, is_there, in_history and is_stored(record))
        write_atomically(target / "index.html", text, mode=shared_mode(target))

    mode = shared_mode(target)
    return {
        "index.html": write_page,
        **{
            name: partial(write_atomically, target / name, text, mode)
            for name, text in lists.items()
        },
    }


def write_views(views: Mapping[str, Callable[[], None]]) -> list[str]:
    """Write each file; remarks on those that could not be written."""
    remarks = []
    for name, write in views.items():
        try:
            write()
        except HistoryUnusable as error:
            remarks.append(str(error))
        except Exception as error:
            words = sanitize_line(f"{type(error).__name__}: {error}"[:MAX_REMARK])
            remarks.append(unwritten_words(name) + words)
    return remarks


def unwritten_words(name: str) -> str:
    """How a remark on a file that could not be written begins."""
    return f"{name} was not written: "


def write_metrics(
    record: RunRecord, paths: Sequence[Path], redactor: Redactor | None = None
) -> list[str]:
    """Write the metrics of a run to these files, of which the first is in its report; remarks on
    what could not be read or written. Without a readable history the gauges of nodes are absent, as
    they are of a run that the history does not have."""
    standings: list[NodeStanding] = []
    report_dir = paths[0].parent.parent
    remarks = []
    if is_stored(record):
        remarks += try_history(
            lambda: standings.extend(read_standings(record, report_dir, redactor))
        )

    def write(path: Path) -> None:
        text = render_metrics(record, standings)
        write_atomically(path, text, mode=shared_mode(path.parent))

    return remarks + write_views({path.name: partial(write, path) for path in paths})


def metrics_path(record: RunRecord, report_dir: Path) -> list[Path]:
    """Where a textfile collector finds the metrics of this run; nowhere for a partial run.

    There is one file per cluster, so that clusters may share a report directory. A run of some
    phases, an interrupted run, a proof and a screen leave it alone.
    """
    is_other = record.proof is not None or record.screen is not None
    if record.selection or record.interrupted or record.partial or is_other:
        return []
    return [report_dir / f"metrics-{quote(record.cluster, safe='')}.prom"]
