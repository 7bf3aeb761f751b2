"""What happened on all nodes and ranks, in chronological order.

Within a node, its own clock gives the order. Between nodes the order is only as good as the clocks,
so these are corrected: by the offset from node 0's clock that each node measured at the rendezvous;
without a measurement, by what must have come first. Every node reads the facts of all nodes before
the rendezvous, and the abort flag before it records that the phase ends. A clock that contradicts
neither is left alone; any other is moved to the middle of what they allow.

Log lines with a time stamp are shown beside the events, but decide nothing: only events order the
causes. Most stamps have no time zone, many no year, and a log may contain anything. So a stamp
counts only at the beginning of a line, in the zone (its own, else this machine's or UTC) in which
the file's last stamp is closest before the time the file was last written. Lines that go back in
time are left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timezone
from pathlib import Path

from ..evidence.finding import Evidence, list_job_logs, read_tail
from ..evidence.job_results import AbortFlag, RankResult
from ..evidence.phase_result import PhaseResult
from ..evidence.run_directory import read_json
from ..evidence.telemetry import Events, parse_finite, parse_text
from ..text import sanitize_line
from .log_lines import TimeStamp, find_stamps

# The number of moments shown before and after a cause.
BEFORE, AFTER = 2, 4
MAX_MOMENT_CHARS = 160
# The number of log lines shown around a cause, and how many seconds from it they may be.
MAX_LINES, AROUND_S = 4, 60.0
MAX_FILES = 8
# A stamp further into the line is part of its text.
PREFIX_CHARS = 64
# A file may be written slightly before its stamps say, and threads write slightly out of order.
AHEAD_S, BACK_S = 5.0, 1.0
# Lines to prefer over others.
SEVERE = re.compile(r"\b(?:[EF]\d{3,4} |WARN|ERROR|CRITICAL|FATAL|error|[Ff]ailed|NVRM)|Error\b")


@dataclass(frozen=True)
class TimelineMoment:
    """One event: when (Unix s, by the first node's clock), where, and what happened (`text`)."""

    time: float
    node: int | None
    rank: int | None
    text: str
    evidence: Evidence


@dataclass(frozen=True)
class Timeline:
    """All moments in order; `ends_seen` is when a node knew that the phase would end."""

    moments: tuple[TimelineMoment, ...]
    moved: dict[int, float] = field(default_factory=dict)  # node -> seconds added to its clock
    ends_seen: dict[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, result: PhaseResult, events: Mapping[int, Events], flag: AbortFlag) -> Timeline:
        """From the events that each node wrote, and the flag that ended the phase."""
        moved = _clock_corrections(result, events, flag)
        uncorrected = [
            *_node_moments(result, events),
            *(moment for rank in result.ranks for moment in _rank_moments(rank)),
            *_flag_moments(result, flag),
        ]
        moments = [
            replace(moment, time=moment.time + moved.get(moment.node, 0.0))
            if moment.node is not None
            else moment
            for moment in uncorrected
        ]
        ends_seen = {
            node: record["time"] + moved.get(node, 0.0)
            for node, of_node in events.items()
            if (record := next(of_node.named("trouble"), None)) is not None
        }
        return cls(tuple(sorted(moments, key=lambda moment: moment.time)), moved, ends_seen)

    def at(self, node: int | None, time: float) -> float:
        """A time by the clock of a node, by the first node's clock."""
        return time + (self.moved.get(node, 0.0) if node is not None else 0.0)

    def around(self, time: float, logged: Iterable[TimelineMoment] = ()) -> list[str]:
        """A few events around a time, and these log lines, each with its seconds from that time."""
        before = [moment for moment in self.moments if moment.time < time][-BEFORE:]
        after = [moment for moment in self.moments if moment.time >= time][: AFTER + 1]
        shown = sorted([*before, *after, *logged], key=lambda moment: moment.time)
        return [f"{moment.time - time:+8.3f} s  {moment.text}" for moment in shown]


def _node_moments(result: PhaseResult, events: Mapping[int, Events]) -> Iterator[TimelineMoment]:
    for node in result.nodes:
        of_node = events[node.node_rank]
        for record, line in zip(of_node.records, of_node.lines, strict=True):
            action = ""
            if record["event"] == "launcher_start":
                action = f"{parse_text(record.get('launcher')) or 'the launcher'} starts"
            if record["event"] == "trouble" and record.get("reason") == "aborted":
                action = "sees that the phase ends"
            elif record["event"] == "trouble":
                action = f"sees: {record.get('why')}"
            if action:
                evidence = Evidence(str(of_node.path), line, record["event"])
                yield TimelineMoment(
                    float(record["time"]), node.node_rank, None, f"{node.name}: {action}", evidence
                )


def _rank_moments(rank: RankResult) -> Iterator[TimelineMoment]:
    """Where its stages begin, its last step, its exception and its end."""
    events = rank.events
    last_step = events.last("step")
    for record, line in zip(events.records, events.lines, strict=True):
        event, action = record["event"], ""
        if event == "stage" and record.get("state") == "begin":
            action = f"begins stage {record.get('name')}"
        elif record is last_step:
            action = f"completes step {record.get('step')}, its last mark"
        elif event == "error":
            action = f"raises {record.get('type')}: {record.get('message')}"
        elif event == "done":
            action = "is done"
        if action:
            evidence = Evidence(str(events.path), line, event)
            action = f"{rank} {action}"[:MAX_MOMENT_CHARS]
            yield TimelineMoment(float(record["time"]), rank.node_rank, rank.rank, action, evidence)


def _flag_moments(result: PhaseResult, flag: AbortFlag) -> Iterator[TimelineMoment]:
    if flag.time is not None:
        evidence = Evidence(str(result.directory.abort), 1, flag.reason)
        action = f"{flag.node}: ends the phase on all nodes"
        yield TimelineMoment(flag.time, flag.node_rank, None, action, evidence)


def _clock_corrections(
    result: PhaseResult, events: Mapping[int, Events], flag: AbortFlag
) -> dict[int, float]:
    """Node -> seconds to add to its clock, so that it agrees with the first node's."""
    facts = {node.node_rank: node.facts_time for node in result.nodes}
    met = {node: _time_of(of_node, "rendezvous") for node, of_node in events.items()}
    seen = {node: _abort_seen_at(of_node) for node, of_node in events.items()}
    raised, raiser = flag.time, flag.node_rank
    moved = {0: 0.0}
    # The node that raised the flag comes first: the bounds of the others depend on its clock.
    for node in sorted((node for node in events if node), key=lambda node: node != raiser):
        least = _behind(facts.get(0), met[node])
        most = [-bound for bound in _behind(facts.get(node), met.get(0))]
        if raiser == node:
            most += [-bound for bound in _behind(raised, seen.get(0))]
        elif raiser is not None and raiser in moved:
            least += [moved[raiser] + bound for bound in _behind(raised, seen[node])]
        measured = _measured_offset(result, node)
        if measured is not None:
            moved[node] = -measured
            continue
        moved[node] = _least_correction(max(least, default=-math.inf), min(most, default=math.inf))
    return moved


def _measured_offset(result: PhaseResult, node: int) -> float | None:
    """By how many seconds the node found its clock ahead of node 0's (reachability.py); None if the
    error may be as large."""
    clock = (read_json(result.directory.node_meeting(node)) or {}).get("clock")
    measured = clock if isinstance(clock, dict) else {}
    offset, error = parse_finite(measured.get("offset_s")), parse_finite(measured.get("error_s"))
    known = offset is not None and error is not None and abs(offset) > abs(error)
    return offset if known else None


def _least_correction(least: float, most: float) -> float:
    if least <= 0 <= most:
        return 0.0
    if math.isinf(least) or math.isinf(most):
        return most if math.isinf(least) else least
    return (least + most) / 2


def _behind(earlier: float | None, later: float | None) -> list[float]:
    """The least by which the clock of the later time is behind the clock of the earlier one."""
    return [] if earlier is None or later is None else [earlier - later]


def _abort_seen_at(events: Events) -> float | None:
    """When a node saw the abort flag that another node had raised."""
    for record in events.named("trouble"):
        if record.get("reason") == "aborted":
            return float(record["time"])
    return None


def _time_of(events: Events, event: str) -> float | None:
    record = events.last(event)
    return None if record is None else float(record["time"])


def read_log_moments(
    result: PhaseResult, rank: RankResult, time: float, timeline: Timeline
) -> list[TimelineMoment]:
    """Lines of the rank's, its node's launcher and the job's own logs around a time (Unix seconds
    by the first node's clock)."""
    node = rank.node_rank
    moved = timeline.moved.get(node, 0.0) if node is not None else 0.0
    moments = [
        TimelineMoment(when + moved, node, rank.rank, f"{who}: {text}"[:MAX_MOMENT_CHARS], evidence)
        for path, who in list(_files(result, rank, node))[:MAX_FILES]
        for when, text, evidence in _read_stamped_lines(path, time - moved)
    ]
    near = sorted(
        moments, key=lambda moment: (not SEVERE.search(moment.text), abs(moment.time - time))
    )
    return near[:MAX_LINES]


def _files(result: PhaseResult, rank: RankResult, node: int | None) -> Iterator[tuple[Path, str]]:
    if node is not None:
        own = result.directory.find_rank_logs(node, rank.local_rank, stream="*")
        yield from ((path, f"{rank} logs") for path in own)
        yield result.directory.launcher_log(node), f"{rank.node}: launcher logs"
    yield from ((path, "the job logs") for path in list_job_logs(result.directory, result.job_id))


def _read_stamped_lines(path: Path, time: float) -> Iterator[tuple[float, str, Evidence]]:
    """The lines of a log that were written around a time, by its own clock."""
    lines = [
        (line, text, stamps[0])
        for line, text in read_tail(path)
        if (stamps := find_stamps(text[:PREFIX_CHARS]))
    ]
    reading = _choose_reading(path, lines[-1][2], time) if lines else None
    if reading is None:
        return
    last = float("-inf")
    for line, text, stamp in lines:
        when = reading(stamp)
        if when is None or when < last - BACK_S:
            continue
        last = max(last, when)
        if abs(when - time) <= AROUND_S:
            yield when, sanitize_line(text).strip(), Evidence(str(path), line, text)


Reading = Callable[[TimeStamp], float | None]


def _choose_reading(path: Path, last: TimeStamp, time: float) -> Reading | None:
    """How to read the stamps of a file; None if its last one is impossible in every zone."""
    try:
        written = path.stat().st_mtime
    except OSError:
        return None
    readings: Iterable[Reading] = [
        lambda stamp, zone=zone: stamp.unix_time(zone, time)  # type: ignore[misc]
        for zone in (None, timezone.utc)
    ]
    fitting = [
        (when, reading)
        for reading in readings
        if (when := reading(last)) is not None and when <= written + AHEAD_S
    ]
    return max(fitting, key=lambda pair: pair[0])[1] if fitting else None
