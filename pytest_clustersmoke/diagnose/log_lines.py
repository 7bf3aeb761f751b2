"""Lines of a log: who wrote them and when, and which of them say that the run survived a failure.

Writer and time are recorded only if the line states them for certain. torch's `[rank3]:` names a
rank; torchrun's `[default0]:` counts within a node, and srun's labels count tasks. NCCL's header,
syslog and torchrun's summary name a host. Time stamps come as ISO 8601 in its many spellings, as
glog's (torch, NCCL), and as syslog's; most have no time zone, and many no year.

What a log that ends well reports above its end was survived, and is not a failure. A log ends well
if its last lines say that the run succeeded, or if they show progress after an error that the
program caught: it says so, or it printed the traceback itself. It does not if anything fails after
that, a launcher included: then all of the log counts. One rank's success is not another's: an error
that names its rank was survived only if that rank went on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from .signature_file import Pattern, Signature

# -- Time stamps -----------------------------------------------------------------------------------

MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d(?:[.,]\d{1,9})?)"
FORMS = (
    re.compile(
        r"\b(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)[T _]"
        rf"{_CLOCK} ?(?P<zone>Z|[-+]\d\d:?\d\d)?"
    ),
    # torch's `[E1121 20:32:39.123`; some builds omit the month's leading zero.
    re.compile(rf"\b[IWEF](?P<month>\d\d?)(?P<day>\d\d) {_CLOCK}"),
    re.compile(rf"\b(?P<month>{'|'.join(MONTHS)}) (?P<day>[ \d]\d) {_CLOCK}"),
)
# Month, day, hour, minute, second: what all stamps have.
Time = tuple[int, int, int, int, float]


class TimeStamp(NamedTuple):
    """A stamp as written; `zone` is `Z`, an offset such as `+09:00`, or empty."""

    time: Time
    year: int | None
    zone: str

    def unix_time(self, zone: timezone | None, near: float) -> float | None:
        """The moment in Unix seconds, in the stamp's own zone, or in `zone` (None is this
        machine's); without a year, in the one closest to `near`. None if there is no such moment.
        """
        month, day, hour, minute, second = self.time
        try:
            zone = _parse_zone(self.zone) if self.zone else zone
            now = datetime.fromtimestamp(near, timezone.utc).year
        except (ValueError, OverflowError, OSError):  # an event's time, which a job wrote
            return None
        moments = []
        for year in (now - 1, now, now + 1) if self.year is None else (self.year,):
            try:
                begin = datetime(year, month, day, hour, minute, tzinfo=zone).timestamp()
            except (ValueError, OverflowError, OSError):
                continue
            moments.append(begin + second)
        return min(moments, key=lambda moment: abs(moment - near), default=None)


def find_stamps(text: str) -> list[TimeStamp]:
    """The stamps in a text, in order."""
    matches = [match for form in FORMS for match in form.finditer(text)]
    stamps = map(_parse_stamp, sorted(matches, key=lambda match: match.start()))
    return [stamp for stamp in stamps if stamp is not None]


def last_time_in(text: str) -> Time | None:
    stamps = find_stamps(text)
    return stamps[-1].time if stamps else None


def _parse_stamp(match: re.Match[str]) -> TimeStamp | None:
    """The stamp; None if its numbers cannot be a date and a time."""
    parts = match.groupdict()
    word = parts["month"]
    month = MONTHS.index(word) + 1 if word in MONTHS else int(word)
    day, hour, minute = int(parts["day"]), int(parts["hour"]), int(parts["minute"])
    second = float(parts["second"].replace(",", "."))
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61):
        return None
    year = parts.get("year")
    time = month, day, hour, minute, second
    return TimeStamp(time, int(year) if year else None, parts.get("zone") or "")


def _parse_zone(text: str) -> timezone:
    """The zone of a stamp; raises ValueError if it does not exist."""
    if text == "Z":
        return timezone.utc
    digits = text[1:].replace(":", "")
    ahead = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(ahead if text[0] == "+" else -ahead)


# -- Lines -----------------------------------------------------------------------------------------

# How much of an endless line is examined before and after a word.
BEFORE_BYTES, AFTER_BYTES = 2**11, 2**12
# How much is kept before a chunk of a log.
BEHIND_BYTES = 2**13
MAX_TEXT = 600
ANSI = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
PREFIX_CHARS = 200
RANK = re.compile(r"\[rank(\d{1,6})\]:|\(default_pg\) Rank (\d{1,6})\]")
NCCL_HEADER = re.compile(r"([A-Za-z0-9][\w.-]{0,254}):\d{1,9}:\d{1,9} \[-?\d{1,9}\] (?=\S)")
SYSLOG = re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d ([\w.-]{1,255}) kernel:")


class Printed(NamedTuple):
    """Where a program printed the traceback of an error that it had caught: the time stamp beside
    it, and the last step above it. `live`: what the program prints is not held back in a buffer."""

    time: Time | None
    above: GoodLine | None
    live: bool

    @classmethod
    def at(cls, buffer: bytes, begin: int, *, first: bool) -> Printed:
        """For a traceback that begins there; `first`: the buffer begins where the log does."""
        text = buffer[max(0, begin - BEHIND_BYTES) : begin].decode(errors="replace")
        lines = re.split(r"[\r\n]", text)
        head = [line for line in lines[-2:] if line.strip()]
        time = last_time_in(head[-1][-MAX_TEXT:]) if head else None
        steps = (GoodLine.of(0, line) for line in reversed(lines) if PROGRESS.search(line[:4000]))
        above = next((good for good in steps if good.step), None)
        return cls(time, above, first and begin < BLOCK_BYTES)

    def is_before(self, good: GoodLine) -> bool:
        """Whether a later line shows a step that the program made after it printed the traceback,
        and not one that it made before, and that its buffer held back."""
        if self.time and good.time:
            return self.time < good.time
        above = self.above
        if above is None or (above.bar, above.time is None) != (good.bar, good.time is None):
            return False  # nothing, or another stream
        return (self.live or good.bar) and above.step < good.step


class LogLine(NamedTuple):
    """One line of a log as evidence. `source` counts the inputs, in the order they were read."""

    source: int
    number: int
    file: str
    text: str
    time: Time | None
    rank: int | None = None  # its writer's, if that is certain
    caught: bool = False  # the text around it says that the program caught the error
    ends_rank: bool = False  # torch labels it as what ended its rank
    printed: Printed | None = None  # the program caught the error and printed its traceback

    @property
    def is_caught(self) -> bool:
        return self.caught or self.printed is not None


class Piece(NamedTuple):
    """A line, or the part of it that is examined: its bounds in the buffer, and its text."""

    begin: int
    end: int
    text: bytes


def piece_at(buffer: bytes, start: int, end: int, looked: int) -> Piece:
    """The line around a word; if it is long, the part not yet examined. A progress bar ends its
    lines with a carriage return."""
    least, most = max(0, start - BEFORE_BYTES), min(len(buffer), end + AFTER_BYTES)
    begin = max(buffer.rfind(b"\n", least, start), buffer.rfind(b"\r", least, start)) + 1
    begin = max(begin, least, looked if looked <= start else 0)
    stops = [at for at in (buffer.find(b"\n", end, most), buffer.find(b"\r", end, most)) if at >= 0]
    stop = min(stops, default=most)
    return Piece(begin, stop, strip_colors(buffer[begin:stop]))


def groups_at(
    signature: Signature, pattern: Pattern, buffer: bytes, piece: Piece, text: str
) -> dict[str, str | None] | None:
    """The groups of the pattern if it matches there, else None."""
    if pattern.regex is None:
        return {}
    if signature.lines > 1 and pattern.spans_lines:
        text = _around(buffer, piece, signature.lines - 1)
    match = pattern.regex.search(text)
    return match.groupdict() if match else None


def _around(buffer: bytes, piece: Piece, lines: int) -> str:
    """The line with this many lines before and after it."""
    begin, end = piece.begin, piece.end
    for _ in range(lines):
        begin = max(buffer.rfind(b"\n", max(0, begin - BEFORE_BYTES), max(0, begin - 1)) + 1, 0)
        stop = buffer.find(b"\n", end + 1, end + AFTER_BYTES)
        end = stop if stop >= 0 else min(len(buffer), end + AFTER_BYTES)
    return strip_colors(buffer[max(begin, piece.begin - BEHIND_BYTES) : end]).decode(
        errors="replace"
    )


def time_at(buffer: bytes, piece: Piece, text: str) -> Time | None:
    """The time stamp of a line; without one, the last stamp shortly before it."""
    time = last_time_in(text)
    if time is None:
        before = buffer[max(0, piece.begin - BEFORE_BYTES) : piece.begin]
        time = last_time_in(before.decode(errors="replace"))
    return time


def strip_colors(raw: bytes) -> bytes:
    """Without colours and carriage returns."""
    return (ANSI.sub(b"", raw) if b"\x1b" in raw else raw).replace(b"\r", b"")


def cut(text: str, start: int = 0) -> str:
    """The part of a line that fits, around its word."""
    text = text.rstrip()
    if len(text) <= MAX_TEXT:
        return text.strip()
    begin = max(0, min(start - MAX_TEXT // 3, len(text) - MAX_TEXT))
    return text[begin : begin + MAX_TEXT].strip()


def rank_of_line(line: str) -> int | None:
    match = RANK.search(line, 0, PREFIX_CHARS)
    return int(match.group(1) or match.group(2)) if match else None


def host_of_line(line: str) -> str | None:
    nccl = NCCL_HEADER.search(line, 0, PREFIX_CHARS) if "NCCL" in line else None
    match = nccl or SYSLOG.search(line, 0, PREFIX_CHARS)
    return match.group(1) if match else None


def named_places(groups: Mapping[str, str | None]) -> tuple[list[str], list[int]]:
    """Hosts and ranks that a signature's groups name."""
    hosts = [groups["host"]] if groups.get("host") else []
    ranks = [int(word) for word in re.findall(r"\d{1,6}", groups.get("rank") or "")]
    return [host for host in hosts if host], ranks


# -- Logs that end well ----------------------------------------------------------------------------

# Said at the end of a run: by MLPerf's logger, training scripts, the trainer of transformers,
# Lightning, torchrun, DeepSpeed's launcher, nccl-tests.
SUCCEEDED = re.compile(
    r'"status": "success"|'
    r"\btraining (?:is |was |has )?(?:complete|completed|finished|done)\b(?! ?[:=]? ?\d)|"
    r"\b(?:finished|completed) training\b(?! ?[:=]? ?\d| \w)|"
    r"'train_runtime': |\btrain_runtime {1,20}= |"
    r"`Trainer\.fit` stopped: |"
    r"worker group successfully finished|"
    r"\] Process \d{1,9} exits successfully|"
    r"# Out of bounds values : 0 OK",
    re.IGNORECASE,
)
# Said by a launcher of all its ranks.
ALL_SUCCEEDED = re.compile(r"worker group successfully finished|# Out of bounds values : 0 OK")
# torch labels the traceback of an exception that ends its rank.
ENDS_RANK = re.compile(r"\[rank\d{1,6}\]: ")
PROGRESS = re.compile(
    r"(?<![a-z])(?:steps?|iters?|iterations?|epochs?|batch(?:es)?|loss)\b\W{0,12}\d|"
    r"\d/\d{1,9} \[\d\d:\d\d|\dit/s|\ds/it",
    re.IGNORECASE,
)
# How far the training is: the epoch, step or batch, alone or of how many.
STEP = re.compile(
    r"(?<![a-z])(?:steps?|iters?|iterations?|epochs?|batch(?:es)?)\b\W{0,12}"
    r"(?P<number>\d{1,9}(?:\.\d{1,9})?)|(?<![\d./])(?P<part>\d{1,9}) ?/ {0,8}\d{1,9}(?![\d./])",
    re.IGNORECASE,
)
Step = tuple[float, ...]
# tqdm writes its bars to stderr, at once.
BAR = re.compile(r"\d/\d{1,9} \[\d\d:\d\d")
OVER = re.compile(
    r"^(?:\d{1,6}: )?(?:all )?(?:done|finished|completed)\W{0,3}$|\b(?:run|job|epoch) (?:is )?"
    r"(?:done|finished|complete[d]?)\b|\b(\d{1,9})/\1\b|saved (?:the )?(?:final )?model",
    re.IGNORECASE,
)
# Said next to an error that the program caught.
CAUGHT = re.compile(
    rb"retrying|will (?:retry|(?:be )?try(?:ing)? again)|try(?:ing)? again (?:at|in|later|with)|"
    rb"retry loop|reducing (?:the )?(?:batch|micro)|decreasing batch size|"
    rb"trying (?:a )?(?:smaller |micro[- ]?)?batch size|"
    rb"(?:skip(?:ping|ped)|ignor(?:ing|ed)|drop(?:ping|ped)|discard(?:ing|ed)) "
    rb"(?:(?:this|that|the|a|bad|broken|invalid|corrupt(?:ed)?) ){0,2}"
    rb"(?:batch|sample|example|record|item|image|document|row|error|exception)\b|"
    rb"attempting to recover|continuing (?:anyway|training|without|with)|falling back to",
    re.IGNORECASE,
)
# What stdout still had buffered appears after the traceback of a rank that failed, but is shorter.
GOES_ON_LINES = 500
# So many different steps after it show that a program went on after an error that it printed: of
# several ranks, the others stop at the next collective.
GOES_ON_STEPS = 3
# Python holds back so much of what it prints to a file. A log that is shorter and shows steps is
# of a program that does not.
BLOCK_BYTES = 8192
MAX_LINES = 60
AROUND_BYTES = 1000


@dataclass(frozen=True)
class LogEnd:
    """The last lines of a log that report success and progress."""

    succeeded: tuple[GoodLine, ...] = ()
    progress: tuple[GoodLine, ...] = ()
    over: bool = False  # something says that it is done, perhaps only a part

    @classmethod
    def of(cls, text: str, first: int) -> LogEnd:
        """From the end of a log, whose first line has this number. A progress bar ends its lines
        with a carriage return."""
        lines = enumerate(text.split("\n"), first)
        parts = [(number, part) for number, line in lines for part in line.split("\r") if part]
        numbered = parts[-MAX_LINES:]
        succeeded = [GoodLine.of(*pair) for pair in numbered if SUCCEEDED.search(pair[1][:4000])]
        progress = [GoodLine.of(*pair) for pair in numbered if PROGRESS.search(pair[1][:4000])]
        over = bool(succeeded) or any(OVER.search(line[:4000]) for _, line in numbered)
        return cls(tuple(succeeded), tuple(progress), over)

    def is_good(self, failures: Iterable[FailureLine]) -> bool:
        """Whether the run survived these failures."""
        known = list(failures)
        return all(map(self._survives, known)) if known else bool(self.succeeded)

    def _survives(self, failure: FailureLine) -> bool:
        if any(failure.is_before(line) for line in self.succeeded):
            return True
        after = [line for line in self.progress if failure.is_before(line)]
        if len(after) < 2:
            return False
        if failure.caught or after[-1].number - failure.number > GOES_ON_LINES:
            return True
        printed = failure.printed
        steps = {line.step for line in after if printed and printed.is_before(line)}
        return len(steps - {()}) >= GOES_ON_STEPS

    def goes_on(self, number: int = 0) -> bool:
        """Whether the log shows progress or success after this line."""
        after = [line for line in self.progress if line.number > number]
        return len(after) >= 2 or any(line.number > number for line in self.succeeded)


class GoodLine(NamedTuple):
    """A line that reports success or progress, and its writer's rank, if that is certain."""

    number: int
    rank: int | None = None
    of_all: bool = False  # it speaks of all ranks
    time: Time | None = None
    step: Step = ()
    bar: bool = False

    @classmethod
    def of(cls, number: int, line: str) -> GoodLine:
        line = line[:4000]
        of_all, bar = ALL_SUCCEEDED.search(line) is not None, BAR.search(line) is not None
        return cls(number, rank_of_line(line), of_all, last_time_in(line), step_of(line), bar)


@dataclass(frozen=True)
class FailureLine:
    """The last line of a log that shows a failure, and its writer's rank, if that is certain;
    `caught` if the program caught all of them, `printed` if it printed all their tracebacks.
    `ends_rank`: it surely ended its rank."""

    number: int
    caught: bool = False
    rank: int | None = None
    ends_rank: bool = False
    printed: Printed | None = None

    @classmethod
    def of(cls, line: LogLine, before: FailureLine | None = None) -> FailureLine:
        """A line, after others of the same failure."""
        caught, ends, printed = line.caught, line.ends_rank, line.printed
        if before is not None:
            caught, ends = caught and before.caught, ends or before.ends_rank
            printed = printed if before.printed else None
        return cls(line.number, caught, line.rank, ends, printed)

    def is_before(self, good: GoodLine) -> bool:
        """Whether a later line is good news for the rank that failed."""
        if good.number <= self.number:
            return False
        if good.of_all or self.rank is None or good.rank == self.rank:
            return True
        return good.rank is None and (self.caught or not self.ends_rank)


def step_of(line: str) -> Step:
    """How far the training is by this line."""
    return tuple(float(match["number"] or match["part"]) for match in STEP.finditer(line[:4000]))


def is_caught(buffer: bytes, begin: int, end: int) -> bool:
    """Whether the text around a failure, between these bounds, says that the program caught it."""
    return CAUGHT.search(buffer, max(0, begin - AROUND_BYTES), end + AROUND_BYTES) is not None
