"""reports/index.html: the runs of every cluster on one page, from history.db.

A strip of the last nights by phase, the past of each phase's rate, a matrix of nodes by phases, and
a row for each run, whose id is the run's id: the pages of runs link there, so that later runs and
pruning break no link. The page shows the newest NIGHTS runs of a cluster that ran phases, as many
of any kind, and older ones whose reports are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from sqlite3 import Connection
from urllib.parse import quote

from ..evidence.history.history_database import (
    NAME,
    HistoryUnusable,
    is_private,
    open_for_reading,
)
from ..evidence.history.history_query import read_runs
from ..evidence.history.history_schema import Setup
from ..evidence.history.newest_runs import (
    ClusterRuns,
    ListedPhase,
    ListedRun,
    read_newest_runs,
)
from ..evidence.history.node_history import count_node_states
from ..evidence.run_directory import RUN_ID, write_atomically
from ..evidence.run_request import user_name
from ..evidence.whole_files import is_visible, shared_mode
from ..text import format_local, format_time, sanitize_line, shorten
from .node_matrix import NodeMatrix, build_matrix
from .page import render
from .page_view import anchors, tone
from .phase_table import judge_stored
from .redaction import Redactor

RUNS_PAGE = "index.html"
NIGHTS = 60
MAX_PHASES = 100
MAX_PRINTED = 8  # rows of the list of runs, on paper
MAX_WORDS = 300
MOST_CHANGES = 4  # named in a line
# What a cell of the strip shows beside its colour.
MARKS = {"good": "✓", "bad": "✗", "warn": "!", "none": "?"}
RETRIED = "↻"  # it passed, but not at once
_ATTEMPTS = 3


@dataclass(frozen=True)
class StripCell:
    """One phase in one run: its mark, and the link to what is wrong, if its report is kept."""

    tone: str  # good, bad, warn, none; empty if it did not run
    words: str
    link: str
    is_retried: bool = False

    @property
    def mark(self) -> str:
        return RETRIED if self.is_retried else MARKS.get(self.tone, "")


@dataclass(frozen=True)
class RunRow:
    """A run of a cluster. `link` is empty if its report was pruned."""

    run: ListedRun
    link: str
    changes: str  # what changed since the run before

    @property
    def words(self) -> str:
        """The verdict, and what it is of if not of the whole cluster."""
        run = self.run
        if run.is_whole:
            return run.verdict
        ended = not (run.interrupted or run.partial)
        part = "of a part" if run.phases else "of a screen" if ended else "without phases"
        return f"{run.verdict} {part}"

    @property
    def tone(self) -> str:
        """How it is shown: only a run of all phases can be good."""
        judged = tone(self.run.verdict)
        return judged if self.run.is_whole or judged != "good" else "none"

    @property
    def mark(self) -> str:
        return {"good": "✓", "bad": "✗", "none": "◐"}.get(self.tone, "?")

    @property
    def began(self) -> str:
        """In the local time of where it began, and in UTC."""
        return format_time(self.run.begun, self.run.utc_offset_s, "%H:%M")

    @property
    def month(self) -> str:
        return format_local(self.run.begun, self.run.utc_offset_s, "%b %Y")

    @property
    def day(self) -> str:
        return format_local(self.run.begun, self.run.utc_offset_s, "%d")


@dataclass(frozen=True)
class PhaseRow:
    """A phase in each run of the strip, the oldest first."""

    phase: str
    cells: list[StripCell]


@dataclass(frozen=True)
class TrendPoint:
    """The headline metric of a phase in a run; `note` is what changed since the run before."""

    value: float | None
    note: str
    is_good: bool
    is_same: bool


@dataclass(frozen=True)
class PhaseTrend:
    """A phase's headline metric in each run of the strip, the oldest first."""

    phase: str
    metric: str
    unit: str
    reference: float | None
    low: float | None
    high: float | None
    points: list[TrendPoint]

    @property
    def is_missed(self) -> bool:
        """Whether the newest value lies outside the bounds of its reference."""
        value = self.points[-1].value
        if value is None:
            return False
        below = self.low is not None and value < self.low
        return below or (self.high is not None and value > self.high)


@dataclass(frozen=True)
class ClusterSection:
    """Everything that the page shows of a cluster."""

    cluster: str
    anchor: str
    total: int
    runs: list[RunRow]  # the newest first, and older ones whose reports are kept
    strip: list[RunRow]  # those that ran phases, the oldest first
    months: list[tuple[str, int]]  # above the strip, with the number of runs
    phases: list[PhaseRow]
    hidden_phases: int
    trends: list[PhaseTrend]
    counts: list[tuple[str, str, int]]  # verdict, its tone, and how many runs of the strip
    matrix: NodeMatrix | None

    @property
    def head(self) -> RunRow:
        """The run whose verdict is that of the cluster: the newest of all phases, if there is
        one."""
        return next((row for row in self.runs if row.run.is_whole), self.runs[0])

    @property
    def later(self) -> RunRow | None:
        """Of the parts and screens after it the newest that is bad, or else the newest."""
        after = self.runs[: self.runs.index(self.head)]
        return next((row for row in after if row.tone == "bad"), after[0] if after else None)

    @property
    def tone(self) -> str:
        """How the verdict is shown: it is not good if a later run of a part is bad."""
        later = self.later
        if self.head.tone == "good" and (later is None or later.tone != "bad"):
            return "good"
        return "bad" if self.head.tone == "bad" else "warn"

    @property
    def clock(self) -> str:
        """What the days and the axes of the charts show."""
        return "local time" if any(row.run.utc_offset_s for row in self.strip) else "UTC"

    @property
    def is_strip_of_all(self) -> bool:
        """Whether the strip has every run since its first one: it leaves out screens."""
        since = self.strip[0].run.begun
        return sum(row.run.begun >= since for row in self.runs) == len(self.strip)

    @property
    def printed(self) -> set[str]:
        """The ids of the newest runs that are not good, which paper lists; the strip has the
        rest."""
        poor = [row.run.run_id for row in self.runs if row.tone != "good"]
        return {*poor[:MAX_PRINTED]}

    def list_trend_rows(self) -> Iterator[tuple[RunRow, list[TrendPoint]]]:
        """Each run of the strip with its point of every trend."""
        for at, row in enumerate(self.strip):
            yield row, [trend.points[at] for trend in self.trends]


def write_runs_page(report_dir: Path) -> None:
    """Write the page over the runs of a report directory, if there is a history. Raises
    HistoryUnusable, and OSError if the page cannot be written."""
    for _ in range(_ATTEMPTS):
        before = _read_stamp(report_dir)
        if before is None:
            return
        text = render_runs_page(report_dir)
        write_atomically(report_dir / RUNS_PAGE, text, mode=shared_mode(report_dir))
        if _read_stamp(report_dir) == before:  # otherwise a run that ended meanwhile is missing
            return


def has_run(report_dir: Path, run_id: str) -> bool:
    """Whether the page over runs has a row of this run; not if the history cannot be read."""
    try:
        with open_for_reading(report_dir) as connection:
            return connection is not None and bool(read_runs(connection, prefix=run_id, limit=1))
    except HistoryUnusable:
        return False


def _read_stamp(report_dir: Path) -> int | None:
    try:
        return (report_dir / NAME).stat().st_mtime_ns
    except OSError:
        return None


def render_runs_page(report_dir: Path) -> str:
    """The page over the runs of a report directory. Raises HistoryUnusable."""
    kept = _list_reports(report_dir)
    with open_for_reading(report_dir) as connection:
        runs = [] if connection is None else read_newest_runs(connection, NIGHTS, kept)
        is_closed = bool(runs) and is_private(report_dir / NAME)
        runs = [_hide(cluster, is_closed) for cluster in runs]
        sections = [] if connection is None else _build_sections(connection, runs, kept)
    tones = {section.tone for section in sections}
    whole = next((word for word in ("bad", "warn", "good") if word in tones), "warn")
    return render("runs.html.j2", clusters=sections, tone_of_all=whole, nights=NIGHTS)


def _list_reports(report_dir: Path) -> set[str]:
    """The ids of runs that have a page, as far as this user can see."""
    names = (path for path in report_dir.iterdir() if RUN_ID.fullmatch(path.name))
    return {path.name for path in names if is_visible(path / "index.html")}


def _hide(runs: ClusterRuns, is_closed: bool) -> ClusterRuns:
    """The runs, without what must not be published of those whose profile said so, and of old ones
    of which only a history that is closed to others says so."""
    hide = cache(Redactor(user_name()).hide)

    def hide_phase(phase: ListedPhase) -> ListedPhase:
        setup = Setup(*map(hide, phase.setup))
        versions = {name: hide(value) for name, value in phase.versions.items()}
        return replace(phase, reason=hide(phase.reason), setup=setup, versions=versions)

    def hide_run(run: ListedRun) -> ListedRun:
        if run.publish == "all" or not (run.publish or is_closed):
            return run
        return replace(
            run,
            sentence=hide(run.sentence),
            selection=hide(run.selection),
            partial=hide(run.partial),
            phases={name: hide_phase(phase) for name, phase in run.phases.items()},
        )

    newest, others = ([hide_run(run) for run in some] for some in (runs.newest, runs.others))
    return replace(runs, newest=newest, others=others)


def _build_sections(
    connection: Connection, clusters: Sequence[ClusterRuns], kept: set[str]
) -> list[ClusterSection]:
    names = anchors([cluster.cluster for cluster in clusters], "cluster")
    return [
        _build_section(connection, cluster, names[cluster.cluster], kept) for cluster in clusters
    ]


def _build_section(
    connection: Connection, runs: ClusterRuns, anchor: str, kept: set[str]
) -> ClusterSection:
    strip = runs.newest[::-1]
    names = list(dict.fromkeys(name for run in runs.newest for name in run.phases))
    shown = names[:MAX_PHASES]
    changes = {run.run_id: _describe_changes(strip[:at], run) for at, run in enumerate(strip)}
    every = sorted((*runs.newest, *runs.others), key=lambda run: (run.begun, run.id), reverse=True)
    rows = {run.run_id: _make_row(run, kept, changes.get(run.run_id, {})) for run in every}
    counted = count_node_states(connection, runs.cluster, strip[0].begun)
    verdicts = Counter((rows[run.run_id].words, rows[run.run_id].tone) for run in strip)
    return ClusterSection(
        cluster=sanitize_line(runs.cluster),
        anchor=anchor,
        total=runs.total,
        runs=list(rows.values()),
        strip=[rows[run.run_id] for run in strip],
        months=[
            (month, len(list(some)))
            for month, some in groupby(rows[run.run_id].month for run in strip)
        ],
        phases=[
            PhaseRow(sanitize_line(name), [_make_cell(rows[run.run_id], name) for run in strip])
            for name in shown
        ],
        hidden_phases=len(names) - len(shown),
        trends=[
            trend for name in shown if (trend := _make_trend(name, strip, changes)) is not None
        ],
        counts=sorted((words, shown, count) for (words, shown), count in verdicts.items()),
        matrix=build_matrix(counted, shown),
    )


def _describe_changes(before: Sequence[ListedRun], run: ListedRun) -> dict[str, list[str]]:
    """Phase -> what changed since the run of it before this one."""
    changes = {}
    for name, phase in run.phases.items():
        last = next((old.phases[name] for old in reversed(before) if name in old.phases), None)
        if last is not None and (made := phase.describe_changes(last)):
            changes[name] = [sanitize_line(change)[:MAX_WORDS] for change in made]
    return changes


def _make_row(run: ListedRun, kept: set[str], changes: dict[str, list[str]]) -> RunRow:
    words = list(dict.fromkeys(word for some in changes.values() for word in some))
    return RunRow(
        run=run,
        link=f"{quote(run.run_id)}/index.html" if run.run_id in kept else "",
        changes=shorten(words, MOST_CHANGES, "; ") if words else "",
    )


def judge_listed(phase: ListedPhase) -> tuple[str, str]:
    """The verdict on a stored phase, in words, and its tone: none if it was not measured."""
    counts = phase.failed, phase.known, phase.attempts
    verdict = judge_stored(phase.outcome, *counts, phase.unmeasured)
    if verdict.words.startswith("not measured"):
        return verdict.words, "none"
    if phase.outcome == "passed" and not (phase.good or phase.failed or phase.known):
        return f"{verdict.words}, not counted as good", "none"
    return verdict.words, verdict.tone


def _make_cell(row: RunRow, name: str) -> StripCell:
    run = row.run
    phase = run.phases.get(name)
    when = row.began
    if phase is None:
        return StripCell("", f"{when}: did not run", "")
    words, judged = judge_listed(phase)
    cause = phase.finding or (phase.reason if phase.outcome != "passed" else "")
    if phase.outcome == "passed" and judged == "none" and not phase.unmeasured:
        cause = "of what is required, something was not measured, or it warned"
    nodes = f", on {shorten(phase.nodes, MOST_CHANGES)}" if phase.nodes else ""
    text = f"{when}: {words}{nodes}" + (f" ({cause})" if cause else "")
    anchor = anchors(run.phases)[name] if judged != "good" else ""
    link = f"{row.link}#{anchor}" if row.link and anchor else ""
    is_retried = phase.outcome == "passed" and judged == "warn" and phase.attempts > 1
    return StripCell(judged, sanitize_line(text[:MAX_WORDS]), link, is_retried)


def _make_trend(
    name: str, strip: Sequence[ListedRun], changes: dict[str, dict[str, list[str]]]
) -> PhaseTrend | None:
    """The trend of a phase's headline metric, in the newest unit; None if it has none."""
    runs = [(run, run.phases.get(name)) for run in strip]
    held = [phase for _, phase in runs if phase is not None and phase.headline is not None]
    newest = held[-1] if held else None
    if newest is None or newest.headline is None:
        return None
    head = newest.headline
    points = []
    for run, phase in runs:
        own = phase.headline if phase is not None else None
        comparable = own is not None and (own.name, own.unit) == (head.name, head.unit)
        points.append(
            TrendPoint(
                value=own.value if own is not None and comparable else None,
                note="; ".join(changes[run.run_id].get(name, ())),
                is_good=phase is not None and phase.good,
                is_same=phase is not None and phase.setup == newest.setup,
            )
        )
    return PhaseTrend(
        phase=sanitize_line(name),
        metric=sanitize_line(head.name),
        unit=sanitize_line(head.unit),
        reference=head.reference,
        low=head.low,
        high=head.high,
        points=points,
    )
