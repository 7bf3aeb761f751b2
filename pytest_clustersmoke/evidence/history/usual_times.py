"""How long a run and its phases usually take, from the runs before: when they should end.

What reads the history is imported when it is read: collection must be fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..run_directory import RunDir, read_json
from ..telemetry import parse_finite, parse_text, parse_texts

NEWEST = 20  # runs that the medians are of
LAST_S = 2**33  # Unix seconds; a later time was not written by a clock


@dataclass(frozen=True)
class UsualTimes:
    """Medians of the newest past runs: by phase of its good runs, and of whole runs of the same
    selection, of which there were `runs`. `begun` is when the run began, in Unix seconds."""

    begun: float | None = None
    run_s: float | None = None
    runs: int = 0
    phases: Mapping[str, float] = field(default_factory=dict)

    @property
    def end(self) -> float | None:
        """When the run should end; None if that is not known."""
        return _find_end(self.begun, self.run_s)

    def phase_end(self, phase: str, started: float | None) -> float | None:
        """When a phase that started then should end; None if that is not known."""
        return _find_end(started, self.phases.get(phase))


def _find_end(begun: float | None, usual_s: float | None) -> float | None:
    if begun is None or usual_s is None or not begun <= begun + usual_s < LAST_S:
        return None
    return begun + usual_s


def read_usual_times(run: RunDir) -> UsualTimes:
    """The times of the runs before this one; empty if there are none, or the history cannot be
    read."""
    from .history_database import HistoryUnusable

    about = read_json(run.run) or {}
    report, cluster = parse_text(about.get("report")), parse_text(about.get("cluster"))
    begun = parse_finite(about.get("begun"))
    if not report or not cluster or begun is None or not 0 < begun < LAST_S:
        return UsualTimes()
    selection = parse_text(about.get("selection")) or ""
    try:
        return _read(Path(report).parent, cluster, selection, begun, _list_phases(about))
    except (HistoryUnusable, OSError):
        return UsualTimes(begun)


def _list_phases(about: Mapping[str, object]) -> list[str]:
    return parse_texts(about.get("phases_chosen"))


def _read(
    report_dir: Path, cluster: str, selection: str, begun: float, phases: Iterable[str]
) -> UsualTimes:
    import statistics

    from .history_database import open_for_reading
    from .history_query import read_phase_runs, read_run_times
    from .history_schema import shorten_line

    with open_for_reading(report_dir) as connection:
        if connection is None:
            return UsualTimes(begun)
        key = (connection, cluster)
        whole = read_run_times(*key, shorten_line(selection), before=begun, limit=NEWEST)
        medians = {}
        for name in phases:
            past = read_phase_runs(*key, name, before=begun, good=True, limit=NEWEST)
            times = [each.run_s for each in past if each.run_s is not None]
            if times:
                medians[name] = statistics.median(times)
    return UsualTimes(begun, statistics.median(whole) if whole else None, len(whole), medians)
