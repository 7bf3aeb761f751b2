"""Text helpers: sanitise untrusted text, report usage problems; format counts, lists, sizes, times.

Text that a job wrote is sanitised before it reaches a terminal, XML or a report: control
characters, terminal escapes, marks that change the writing direction, and unpaired UTF-16
surrogates become U+FFFD. All printable text stays.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

REPLACEMENT = "\ufffd"
_VALUE = r"(?:[-+]?(?:\d[\d_.]{0,30}(?:e[-+]?\d{1,4})?j?|nan|inf)|True|False|\.\.\.)"
_BETWEEN = r"[\s,\[\]]{1,200}"
# More than eight of them, in brackets; the first two are kept.
VALUES = re.compile(rf"(?<=\[)(\s{{0,20}}{_VALUE}{_BETWEEN}{_VALUE})(?:{_BETWEEN}{_VALUE}){{7,}}")
# How bad it is: only a failure decides a verdict, and a note asks for nothing.
FAILURE, WARNING, NOTE = "failure", "warning", "note"


def sanitize_line(text: str) -> str:
    """The text on one line: nothing in it starts a new line or moves the cursor."""
    if text.isprintable():
        return text
    joined = " ".join(part for part in text.replace("\t", " ").splitlines() if part.strip())
    return "".join(char if char.isprintable() else REPLACEMENT for char in joined)


def sanitize_lines(text: str) -> str:
    """The text sanitised; its lines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else REPLACEMENT for char in text)


@dataclass(frozen=True)
class Problem:
    """One mistake in the user's options, files or environment.

    The message says where, what is wrong, what was expected and what to do. `where` is `file:line`
    or the option's name; it comes first, so that editors can jump to it. `name` is the variable
    that it is about. Only a failure is refused; the others start with their severity.
    """

    what: str
    where: str = ""
    expected: str = ""
    todo: str = ""
    name: str = ""
    severity: str = FAILURE

    def __str__(self) -> str:
        severity = "" if self.severity == FAILURE else self.severity
        return ": ".join(part for part in (severity, self.where, self.text) if part)

    @property
    def text(self) -> str:
        """The message without the place."""
        expected = f"expected {self.expected}" if self.expected else ""
        return "; ".join(part for part in (self.what, expected, self.todo) if part)


class UsageProblems(Exception):
    """Every mistake in the options and files, reported together."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: Sequence[Problem] = tuple(dict.fromkeys(problems))
        super().__init__("\n".join(map(str, self.problems)))


def near(word: str, known: Iterable[str]) -> str:
    """The hint "did you mean `x`?" if a word of `known` is close to `word`; otherwise empty."""
    import difflib  # nodes read this module, and need no hints

    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean `{close[0]}`?" if close else ""


def plural(count: int, singular: str, several: str = "") -> str:
    """`1 pair`, `2 pairs`; `several` is the plural if it does not end in `s`."""
    return f"{count:,} {singular if count == 1 else several or singular + 's'}"


def shorten(words: Sequence[str], most: int, separator: str = ", ") -> str:
    """`a, b and 3 more`: at most the first `most` words, then how many are left out."""
    text = separator.join(words[:most])
    if len(words) <= most:
        return text
    joint = " and" if separator == ", " else f"{separator}and"
    return f"{text}{joint} {len(words) - most:,} more"


def shorten_lines(lines: Sequence[str], most: int | None, where: str = "") -> list[str]:
    """At most the first `most` lines (all if None), then `... and 3 more`, followed by `where`."""
    if most is None or len(lines) <= most:
        return list(lines)
    return [*lines[:most], f"... and {len(lines) - most:,} more{where}"]


def clip(text: str, most: int) -> str:
    """The text, or its beginning and `...`: at most so many characters. It is cut at a word, unless
    that loses half of them."""
    if len(text) <= most:
        return text
    kept = text[: most - 3]
    words = kept if text[most - 3].isspace() else kept.rpartition(" ")[0].rstrip(" ,;:(")
    return f"{(words if 2 * len(words) > len(kept) else kept).rstrip()}..."


def abridge_values(text: str) -> str:
    """The text with the values of tensors and long lists of numbers cut: `tensor([1., 2., ...])`.
    What stands before and after them stays."""
    return VALUES.sub(r"\1, ...", text)


def ranges(numbers: Iterable[int]) -> str:
    """Sorted numbers as `0-7, 9`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return span_list(spans)


def name_ranks(ranks: Iterable[int]) -> str:
    """Ranks as `rank 3` or `ranks 0-7, 9`."""
    listed = sorted(ranks)
    return f"{'rank' if len(listed) == 1 else 'ranks'} {ranges(listed)}"


def quote_names(words: Iterable[str]) -> str:
    """Names as `a`, `b`."""
    return ", ".join(f"`{word}`" for word in words)


def format_seconds(value: float | None) -> str:
    """Seconds with one decimal; `-` if unknown."""
    return "-" if value is None else f"{value:.1f}"


def format_bytes(count: float) -> str:
    """A number of bytes in the largest unit that does not exceed it: 8 B, 1.5 KiB, 64 MiB."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= scale:
            return f"{count / scale:.4g} {unit}"
    return f"{count:.0f} B"


def format_span(begun: float, ended: float) -> str:
    """The time between two Unix times as `0:01:30`; a dash if they are no times."""
    from datetime import timedelta

    try:
        return str(timedelta(seconds=round(max(0.0, ended - begun))))
    except (ValueError, OverflowError):
        return "-"


def format_local(seconds: float, offset_s: int | None, clock: str) -> str:
    """A part of a Unix time, in the local time of this offset; a dash if it is no time."""
    from datetime import datetime, timedelta, timezone

    try:
        universal = datetime.fromtimestamp(seconds, timezone.utc)
        return universal.astimezone(timezone(timedelta(seconds=offset_s or 0))).strftime(clock)
    except (ValueError, OverflowError, OSError):
        return "-" if not offset_s else format_local(seconds, None, clock)


def format_time(seconds: float | None, offset_s: int | None = None, clock: str = "%H:%M:%S") -> str:
    """A Unix time as `2026-11-15 03:00:00 UTC+01:00 (02:00:00 UTC)`; in UTC alone if the offset of
    the local time is zero or unknown; a dash if the time is missing or invalid."""
    from datetime import datetime, timedelta, timezone  # they take time, and a screen has none

    try:
        universal = datetime.fromtimestamp(float(seconds or "nan"), timezone.utc)
        local = universal.astimezone(timezone(timedelta(seconds=offset_s or 0)))
    except (ValueError, OverflowError, OSError):
        return "-" if not offset_s else format_time(seconds, clock=clock)
    day = "" if local.date() == universal.date() else "%Y-%m-%d "
    beside = universal.strftime(f" ({day}{clock} UTC)") if offset_s else ""
    return f"{local.strftime(f'%Y-%m-%d {clock}')} {local.tzname()}{beside}"


def format_here(seconds: float) -> str:
    """A Unix time by this machine's clock, to the minute and with its zone; empty if it is no
    date."""
    try:
        offset_s = time.localtime(seconds).tm_gmtoff
    except (OverflowError, ValueError, OSError):
        return ""
    return format_time(seconds, offset_s, "%H:%M")


def outcome_words(outcome: str) -> str:
    """An outcome as people read it: `never ran`."""
    return outcome.replace("_", " ")


def span_list(spans: Iterable[Iterable[int]]) -> str:
    """Spans, each given by its first and last number, as `0-7, 9`."""
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
