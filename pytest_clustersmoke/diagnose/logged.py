"""Lines of logs that carry a time stamp, as moments beside the events around a finding.

They show what was said around it and decide nothing: causes are ordered by events alone. A stamp
has no zone, mostly, and often no year, and the log may hold anything. So it counts only at the
beginning of a line, in the zone (the stamp's own, else this machine's or UTC) in which the file's
last stamp comes closest before the file was last written, and not where the file goes back in time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from .. import clean
from ..findings import Evidence, job_logs, tail_lines
from ..signatures.log_lines import MONTHS
from .timeline import MAX_WHAT, Moment, Timeline, node_of

if TYPE_CHECKING:
    from ..evidence import RankResult
    from ..result import PhaseResult

# Around a cause so many lines are told, of those so many seconds from it.
MAX_LINES, AROUND_S = 4, 60.0
MAX_FILES = 8
# A stamp behind these characters is one that the line talks of.
PREFIX_CHARS = 64
# A file is written a little behind its stamp's clock, and threads write a little out of order.
AHEAD_S, BACK_S = 5.0, 1.0
ISO = re.compile(
    r"\b(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)[T _](?P<hour>\d\d):(?P<minute>\d\d):"
    r"(?P<second>\d\d(?:[.,]\d{1,9})?) ?(?P<zone>Z|[-+]\d\d:?\d\d)?"
)
GLOG = re.compile(
    r"\b[IWEF](?P<month>\d\d?)(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):"
    r"(?P<second>\d\d(?:\.\d{1,9})?)"
)
SYSLOG = re.compile(
    r"\b(?P<month>" + "|".join(MONTHS) + r") (?P<day>[ \d]\d) (?P<hour>\d\d):(?P<minute>\d\d):"
    r"(?P<second>\d\d)"
)
# What is rather told than another line.
SEVERE = re.compile(r"\b(?:[EF]\d{3,4} |WARN|ERROR|CRITICAL|FATAL|error|[Ff]ailed|NVRM)|Error\b")


def logged(result: PhaseResult, rank: RankResult, time: float, timeline: Timeline) -> list[Moment]:
    """What the rank, its node's torchrun and the job's own logs said around a time (Unix seconds by
    the first node's clock)."""
    node = node_of(rank)
    moved = timeline.moved.get(node, 0.0) if node is not None else 0.0
    found = [
        Moment(when + moved, node, rank.rank, f"{who}: {text}"[:MAX_WHAT], evidence)
        for path, who in list(_files(result, rank, node))[:MAX_FILES]
        for when, text, evidence in _stamped(path, time - moved)
    ]
    near = sorted(found, key=lambda one: (not SEVERE.search(one.what), abs(one.time - time)))
    return near[:MAX_LINES]


def _files(result: PhaseResult, rank: RankResult, node: int | None) -> Iterator[tuple[Path, str]]:
    if node is not None:
        own = result.directory.rank_logs(node).glob(f"**/{rank.local_rank}/std*.log")
        yield from ((path, f"{rank} logs") for path in sorted(own))
        yield result.directory.torchrun_log(node), f"{rank.node}: torchrun logs"
    yield from ((path, "the job logs") for path in job_logs(result.directory))


def _stamped(path: Path, time: float) -> Iterator[tuple[float, str, Evidence]]:
    """The lines of a log that were written around a time, by its own clock."""
    lines = [
        (number, text, stamp)
        for number, text in tail_lines(path)
        if (stamp := _stamp(text)) is not None
    ]
    reading = _reading(path, lines[-1][2], time) if lines else None
    if reading is None:
        return
    last = float("-inf")
    for number, text, stamp in lines:
        when = reading(stamp)
        if when is None or when < last - BACK_S:
            continue
        last = max(last, when)
        if abs(when - time) <= AROUND_S:
            yield when, clean.line(text).strip(), Evidence(str(path), number, text)


def _stamp(text: str) -> re.Match[str] | None:
    """The stamp with which a line begins."""
    found = [match for one in (ISO, GLOG, SYSLOG) if (match := one.search(text, 0, PREFIX_CHARS))]
    return min(found, key=lambda match: match.start(), default=None)


Reading = Callable[[re.Match[str]], float | None]


def _reading(path: Path, last: re.Match[str], time: float) -> Reading | None:
    """How the stamps of a file are read; None where its last one cannot be true in any zone."""
    try:
        written = path.stat().st_mtime
    except OSError:
        return None
    readings: Iterable[Reading] = [
        lambda stamp, zone=zone: _unix(stamp, zone, time)  # type: ignore[misc]
        for zone in (None, timezone.utc)
    ]
    fitting = [
        (when, reading)
        for reading in readings
        if (when := reading(last)) is not None and when <= written + AHEAD_S
    ]
    return max(fitting, key=lambda pair: pair[0])[1] if fitting else None


def _unix(stamp: re.Match[str], zone: timezone | None, time: float) -> float | None:
    """A stamp in Unix seconds, in its own zone or this one (None is this machine's); without a year
    the one that is nearest to a time. None where the calendar has no such moment."""
    said = stamp.groupdict()
    own = said.get("zone")
    try:
        zone = _zone(own) if own else zone
        now = datetime.fromtimestamp(time, timezone.utc).year
    except (ValueError, OverflowError, OSError):  # an event's time, which a job wrote
        return None
    years = [int(said["year"])] if said.get("year") else [now - 1, now, now + 1]
    month = said["month"]
    number = MONTHS.index(month) + 1 if month in MONTHS else int(month)
    seconds = float(said["second"].replace(",", "."))
    found = []
    for year in years:
        try:
            minute = datetime(
                year, number, int(said["day"]), int(said["hour"]), int(said["minute"]), tzinfo=zone
            )
            found.append(minute.timestamp() + seconds)
        except (ValueError, OverflowError, OSError):
            continue
    return min(found, key=lambda when: abs(when - time), default=None)


def _zone(text: str) -> timezone:
    """The zone of a stamp; raises ValueError where there is none such."""
    if text == "Z":
        return timezone.utc
    digits = text[1:].replace(":", "")
    ahead = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(ahead if text[0] == "+" else -ahead)
