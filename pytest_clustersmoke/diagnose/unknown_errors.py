"""Errors that no signature knows: the first of them that the program did not survive is quoted,
without a guess at its cause."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .log_lines import BEHIND_BYTES, LogLine, Printed, last_time_in, rank_of_line, strip_colors

TRACEBACK = "Traceback (most recent call last)"
HEADER = TRACEBACK.encode()
WARN = "NCCL WARN"
SCHEDULER = ("srun: error:", "slurmstepd: error:", "sbatch: error:", "salloc: error:")
STARTS = tuple(word.encode() for word in (TRACEBACK, WARN, *SCHEDULER))
# The error that a program without a traceback logs as its last line.
LAST = "last line"
# A Python exception says most. Slurm's messages say least: they come last, about ended tasks.
WEIGHTS = {TRACEBACK: 0, WARN: 1, SCHEDULER[0]: 2, LAST: 3}
MAX_TRACEBACK_LINES = 400
MAX_LOOKS = 1000  # at one kind of error in one file
# NCCL's own description of an error follows torch's, on the next lines.
NCCL_ERROR, NCCL_LINES = "NCCL error", 4
DIGIT = re.compile(r"\d")
BOX = "\u256d"  # in which rich draws a traceback
FRAME = re.compile(r'\s*File "([^"]{1,400})", line (\d{1,9}), in ([^\s,]{1,200})')
# `module.SomeError: why`, at the beginning of a line; lines of other programs may come between.
RAISED = re.compile(r"[A-Za-z_][\w.]{0,200}(?:Error|Exception|Exit|Interrupt|Timeout)\b(?::|\s*$)")
# An exception as the last line. Numbers do not count: a metric's name may end in `Error`.
LAST_RAISED = re.compile(
    r"(?:[A-Za-z_][\w.]{0,200}(?:Error|Exception|Exit|Interrupt|Timeout): |"  # C extensions
    r"(?:\S{1,200}: )?(?:fatal |internal )?error: |Error: )"  # argparse, SystemExit("error: ...")
    r"(?!\s*[-+]?[\d.]+(?:e[-+]?\d+)?\s*%?\s*$)(?=.{0,99}\w)",
)
# torch adds these lines to each error of CUDA and HIP.
HINT = re.compile(
    r"(?:CUDA|HIP) kernel errors might be |For debugging consider passing (?:CUDA|AMD)_|"
    r"Compile with `TORCH_USE_(?:CUDA|HIP)_DSA`|Search for `(?:cuda|hip)Error"
)
# Python prints the errors of finalizers, and goes on.
FINALIZER = re.compile(
    r"(?:multiprocessing/util\.py|weakref\.py):\d{1,9}, in _(?:run_finalizers|exitfunc)"
)
# Prefixes of a line: ranks from torch and torchrun, tasks from srun, streams from a container.
LABEL = re.compile(
    r"(?:\[(?:rank|default)\d{1,6}\]: ?|\d{1,6}: |\S{10,40} std(?:err|out) [FP] )+", re.ASCII
)
# Logged if the exception above was being handled: the next one ended the program.
HANDLED = "During handling of the above exception, another exception occurred"
# Said between the tracebacks of errors of which one led to the next.
CHAINED = (HANDLED, "The above exception was the direct cause of the following exception")
# Where a process, a thread or a worker begins. The traceback of an error that ended it begins
# there; one that a program prints begins in the function that caught the error.
BEGINS = re.compile(
    r"<module>|_run_module_as_main|_run_code|_bootstrap(?:_inner)?|spawn_main|_wrap|"
    r"_worker_loop|_process_worker"
)
# How far below a traceback its message, and the next of its chain, are looked for.
MESSAGE_LINES = 12
NAMED = re.compile(r"[A-Za-z_][\w.]{0,200}(?:: |\s*$)")


class UnknownError(NamedTuple):
    """An error in a log: its kind, its message, how many lines below the error's beginning the
    message is, and where in the program it happened. `handled`: the program was handling it when
    the next one was raised."""

    kind: str
    message: tuple[str, ...]
    offset: int
    where: str
    handled: bool = False

    @classmethod
    def parse(cls, lines: Sequence[str]) -> UnknownError | None:
        """The error that begins on the first of these lines; None if its end is missing."""
        if not lines:
            return None
        kind = _kind(lines[0])
        if kind == TRACEBACK:
            return _traceback(lines, _prefix_of(lines))
        return cls(kind, (lines[0].strip(),), 0, "")


# An error, its line, and its writer's host and rank.
UnknownAt = tuple[UnknownError, LogLine, list[str], list[int]]


@dataclass
class UnknownErrors:
    """The errors that no signature knows, of each kind in each file up to a bound: a program may
    survive the first."""

    errors: list[UnknownAt] = field(default_factory=list)
    _looks: Counter[tuple[int, str]] = field(default_factory=Counter)

    def wants(self, index: int, text: str) -> bool:
        """Whether an error that begins with this line is looked at."""
        self._looks[index, _kind(text)] += 1
        return not self.has_enough(index, text)

    def has_enough(self, index: int, text: str) -> bool:
        """Whether this kind of error was looked for often enough in the file."""
        return self._looks[index, _kind(text)] > MAX_LOOKS

    def is_capped(self, index: int) -> bool:
        """Whether the file has errors that were not looked at; NCCL may warn more often."""
        return any(self._looks[index, kind] > MAX_LOOKS for kind in (TRACEBACK, SCHEDULER[0]))

    def add(self, error: UnknownError, line: LogLine, hosts: list[str], ranks: list[int]) -> None:
        self.errors.append((error, line, hosts, ranks))


def _kind(text: str) -> str:
    return next((kind for kind in (TRACEBACK, WARN) if kind in text), SCHEDULER[0])


def _prefix_of(lines: Sequence[str]) -> str:
    """What is before a traceback on each of its lines. Text before its header that the next line
    does not repeat is no prefix, but perhaps a progress bar, or the edge of a box; a label may
    stand between the bar and the header."""
    prefix = lines[0][: lines[0].index(TRACEBACK)]
    if BOX in prefix:
        label = prefix.partition(BOX)[0]
        return label if label and len(lines) > 1 and _has_prefix(lines[1], label) else ""
    label = lines[1].partition('  File "')[0] if len(lines) > 1 and '  File "' in lines[1] else ""
    if label and prefix.endswith(label):
        return label
    bar = not _has_prefix(lines[1], prefix) and FRAME.match(lines[1]) if len(lines) > 1 else False
    return prefix if prefix.strip() and not bar else ""


def _traceback(lines: Sequence[str], prefix: str) -> UnknownError | None:
    """The exception at the end of a traceback. Of the unindented lines with the same prefix it is
    the first that starts with an exception's name, or else the first that looks like a message."""
    where, first, finalizer = "", None, False
    for offset, line in enumerate(lines[1:MAX_TRACEBACK_LINES], 1):
        if not _has_prefix(line, prefix):
            continue
        text = line[len(prefix) :]
        if frame := FRAME.match(text):
            where = f"{frame.group(1)}:{frame.group(2)}, in {frame.group(3)}"
            finalizer = finalizer or FINALIZER.search(where) is not None
        elif text.startswith("Traceback"):
            break
        elif finalizer:
            return None
        elif RAISED.match(text):
            message, handled = _message(lines, offset, prefix), _is_handled(lines, offset)
            return UnknownError(TRACEBACK, message, offset, where, handled)
        elif first is None and where and NAMED.match(text):
            first = UnknownError(TRACEBACK, _message(lines, offset, prefix), offset, where)
    return first


def find_printed(buffer: bytes, end: int, *, first: bool) -> Printed | None:
    """Where the program printed the traceback of the error on the line that ends there, if it did;
    `first`: the buffer begins where the log does."""
    at = buffer.rfind(HEADER, max(0, end - BEHIND_BYTES), end)
    if at < 0:
        return None
    begin = max(buffer.rfind(b"\n", 0, at), buffer.rfind(b"\r", 0, at)) + 1
    text = strip_colors(buffer[begin : end + BEHIND_BYTES]).decode(errors="replace")
    if not is_printed(text.split("\n"), buffer.count(b"\n", begin, end)):
        return None
    while any(words.encode() in buffer[max(0, at - 200) : at] for words in CHAINED):
        at = max(0, buffer.rfind(HEADER, 0, at))
    return Printed.at(buffer, at, first=first)


def is_printed(lines: Sequence[str], number: int) -> bool:
    """Whether a program printed the traceback that begins on the first of these lines itself, so
    that the error did not end it. `number`: the index of a line about that error."""
    begin = 0
    while True:
        prefix = _prefix_of(lines[begin : begin + 2])
        own = (
            (index, lines[index][len(prefix) :])
            for index in range(begin + 1, len(lines))
            if _has_prefix(lines[index], prefix)
        )
        frame = FRAME.match(next(own, (0, ""))[1])
        raised = next((index for index, text in own if text.strip() and not text[0].isspace()), -1)
        if frame is None or raised < 0 or number > raised + MESSAGE_LINES:
            return False
        below = range(raised + 1, min(len(lines), raised + 1 + MESSAGE_LINES))
        chained = next((at for at in below if any(words in lines[at] for words in CHAINED)), None)
        if chained is None:
            return BEGINS.fullmatch(frame[3]) is None
        header = next((at for at in below if at > chained and TRACEBACK in lines[at]), None)
        if header is None:
            return False
        begin, number = header, header


def _is_handled(lines: Sequence[str], offset: int) -> bool:
    """Whether the lines after an exception say that another was raised while it was handled; other
    ranks may write between them."""
    return any(HANDLED in line for line in lines[offset + 1 : offset + 9])


def error_on_last_line(text: str, above: str) -> str:
    """An error on the last line, without the label before it; empty if there is none, or if the
    line above belongs to a traceback, which is read separately."""
    line = _without_label(text)
    if _without_label(above)[:1].isspace() or any(word in text for word in SCHEDULER):
        return ""
    return line.strip() if LAST_RAISED.match(line) else ""


def _without_label(text: str) -> str:
    label = LABEL.match(text)
    return text[label.end() :] if label else text


def _has_prefix(line: str, prefix: str) -> bool:
    """Whether the writer of that prefix wrote the line; its time stamp may have advanced."""
    if line.startswith(prefix):
        return True
    if last_time_in(prefix) is None or rank_of_line(line) != rank_of_line(prefix):
        return False
    return DIGIT.sub("0", line[: len(prefix)]) == DIGIT.sub("0", prefix)


def _message(lines: Sequence[str], offset: int, prefix: str) -> tuple[str, ...]:
    count = NCCL_LINES if NCCL_ERROR in lines[offset] else 1
    return tuple(
        line[len(prefix) :].strip()
        for line in lines[offset : offset + count]
        if _has_prefix(line, prefix)
    )
