"""The files of a run's report that are rendered from its record, each whole or not at all.

report.json     the record; the report is nothing without it
metrics.prom    the same figures for Prometheus; a whole run's also lie beside the runs, as
                metrics-<cluster>.prom, for a node exporter's textfile collector
index.html      the page for people
GITHUB_STEP_SUMMARY, where GitHub Actions names one: the summary is appended to it
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from .. import clean
from ..rundir import write_json, write_whole
from ..telemetry import plain

if TYPE_CHECKING:
    from .model import RunRecord

MODE = 0o644  # a node exporter and the readers of a report are other users
MAX_ERROR = 500


def write_all(
    record: RunRecord,
    target: Path,
    report_dir: Path,
    environ: Mapping[str, str],
    coming: Container[str] = (),
) -> list[str]:
    """Write the report of a run into `target`; returns in words what could not be written.
    `coming` is what will be copied there next, by its name in it.

    Raises OSError where report.json cannot be written. Nothing else that goes wrong here may cost
    the run its verdict, so each of the other files is a remark at the worst.
    """
    write_json(target / "report.json", plain(record), mode=MODE)
    collected = collected_at(record, report_dir)
    parts: list[tuple[str, Callable[[], None]]] = [
        ("metrics.prom", lambda: _metrics(record, target / "metrics.prom")),
        ("index.html", lambda: _page(record, target / "index.html", coming)),
        ("GitHub's step summary", lambda: _step_summary(record, environ)),
    ]
    if collected is not None:
        parts.insert(1, (collected.name, lambda: _metrics(record, collected)))
    remarks = []
    for name, write in parts:
        try:
            write()
        except Exception as error:
            words = clean.line(f"{type(error).__name__}: {error}"[:MAX_ERROR])
            remarks.append(f"{name} was not written: {words}")
    return remarks


def collected_at(record: RunRecord, report_dir: Path) -> Path | None:
    """Where a textfile collector finds the metrics of this run; None for a run that is not whole.

    One file a cluster, so that several may share a report directory, and a run of some phases, one
    that was cut short, or a proof never stands for the whole.
    """
    cut = record["selection"] or record["interrupted"] or record["partial"]
    if cut or "proof" in record:
        return None
    return report_dir / f"metrics-{quote(record['cluster'], safe='')}.prom"


def _metrics(record: RunRecord, path: Path) -> None:
    from .openmetrics import exposition

    write_whole(path, exposition(record), mode=MODE)


def _page(record: RunRecord, path: Path, coming: Container[str]) -> None:
    from .page import page

    def there(name: str) -> bool:
        return name in coming or (path.parent / name).exists()

    write_whole(path, page(record, there), mode=MODE)


def _step_summary(record: RunRecord, environ: Mapping[str, str]) -> None:
    from .github import add_step_summary

    add_step_summary(record, environ)
