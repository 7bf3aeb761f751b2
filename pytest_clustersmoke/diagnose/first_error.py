"""Errors that no signature knows: the first of them is told as it stands, without a guess."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .log_lines import LogLine, last_time_in, rank_of_line

TRACEBACK = "Traceback (most recent call last)"
WARN = "NCCL WARN"
SCHEDULER = ("srun: error:", "slurmstepd: error:", "sbatch: error:", "salloc: error:")
STARTS = tuple(word.encode() for word in (TRACEBACK, WARN, *SCHEDULER))
# How a program ends that says why without a traceback: in its last line.
LAST = "last line"
# A Python exception says most, Slurm's words least: they come last, of tasks that ended.
WEIGHTS = {TRACEBACK: 0, WARN: 1, SCHEDULER[0]: 2, LAST: 3}
MAX_TRACEBACK_LINES = 400
MAX_LOOKS = 1000  # at one file; the first error counts
# What NCCL says of an error stands on the lines behind torch's.
NCCL_ERROR, NCCL_LINES = "NCCL error", 4
DIGIT = re.compile(r"\d")
FRAME = re.compile(r'\s*File "([^"]{1,400})", line (\d{1,9}), in ([^\s,]{1,200})')
# `module.SomeError: why`, at the beginning of a line; other programs' words may stand between.
RAISED = re.compile(r"[A-Za-z_][\w.]{0,200}(?:Error|Exception|Exit|Interrupt|Timeout)\b(?::|\s*$)")
# Words of an exception as the last line: not a number, which a metric's name may end in `Error`.
LAST_RAISED = re.compile(
    r"(?:[A-Za-z_][\w.]{0,200}(?:Error|Exception|Exit|Interrupt|Timeout): |"  # C extensions
    r"(?:\S{1,200}: )?(?:fatal |internal )?error: |Error: )"  # argparse, SystemExit("error: ...")
    r"(?!\s*[-+]?[\d.]+(?:e[-+]?\d+)?\s*%?\s*$)(?=.{0,99}\w)",
)
# What others put before a line: torch's and torchrun's ranks, srun's tasks, a container's stream.
LABEL = re.compile(
    r"(?:\[(?:rank|default)\d{1,6}\]: ?|\d{1,6}: |\S{10,40} std(?:err|out) [FP] )+", re.ASCII
)
# Said as the exception behind a traceback was being handled: the next one ended the program.
HANDLED = "During handling of the above exception, another exception occurred"
NAMED = re.compile(r"[A-Za-z_][\w.]{0,200}(?:: |\s*$)")


class UnknownError(NamedTuple):
    """An error as a log tells it: its kind, its message (the first line says what), how many lines
    below its beginning that stands, and where in the program it happened. `handled`: the program
    was handling it as the next one came."""

    kind: str
    message: tuple[str, ...]
    offset: int
    where: str
    handled: bool = False

    @classmethod
    def parse(cls, lines: Sequence[str]) -> UnknownError | None:
        """The error that begins on the first of these lines; None where its end is not there."""
        if not lines:
            return None
        kind = _kind(lines[0])
        if kind == TRACEBACK:
            return _traceback(lines, lines[0][: lines[0].index(TRACEBACK)])
        return cls(kind, (lines[0].strip(),), 0, "")


@dataclass
class UnknownErrors:
    """The errors that no signature knows: of each file the first of each kind."""

    errors: list[tuple[UnknownError, LogLine, list[str], list[int]]] = field(default_factory=list)
    _had: set[tuple[int, str]] = field(default_factory=set)
    _looks: Counter[int] = field(default_factory=Counter)

    def wants(self, index: int, text: str) -> bool:
        """Whether an error that begins with this line may tell more than those there are."""
        self._looks[index] += 1
        return not self.has_enough(index, text)

    def has_enough(self, index: int, text: str) -> bool:
        """Whether an error of this text's kind was found there, or looked for often enough."""
        return self._looks[index] > MAX_LOOKS or (index, _kind(text)) in self._had

    def add(self, error: UnknownError, line: LogLine, hosts: list[str], ranks: list[int]) -> None:
        self._had.add((line.source, error.kind))
        self.errors.append((error, line, hosts, ranks))


def _kind(text: str) -> str:
    return next((kind for kind in (TRACEBACK, WARN) if kind in text), SCHEDULER[0])


def _traceback(lines: Sequence[str], prefix: str) -> UnknownError | None:
    """The exception at the end of a traceback: the first line with the same prefix that is not
    indented, and rather one that is named as exceptions are."""
    # What stands before it is no label where the next line goes on without it: a progress bar's.
    bar = not _same(lines[1], prefix) and FRAME.match(lines[1]) if len(lines) > 1 else False
    prefix = prefix if prefix.strip() and not bar else ""
    where, first = "", None
    for offset, line in enumerate(lines[1:MAX_TRACEBACK_LINES], 1):
        if not _same(line, prefix):
            continue
        said = line[len(prefix) :]
        if frame := FRAME.match(said):
            where = f"{frame.group(1)}:{frame.group(2)}, in {frame.group(3)}"
        elif said.startswith("Traceback"):
            break
        elif RAISED.match(said):
            message, handled = _message(lines, offset, prefix), _is_handled(lines, offset)
            return UnknownError(TRACEBACK, message, offset, where, handled)
        elif first is None and where and NAMED.match(said):
            first = UnknownError(TRACEBACK, _message(lines, offset, prefix), offset, where)
    return first


def _is_handled(lines: Sequence[str], offset: int) -> bool:
    """Whether the lines behind an exception's words say that another one came as it was handled;
    several ranks may write between them."""
    return any(HANDLED in line for line in lines[offset + 1 : offset + 9])


def last_words(text: str, above: str) -> str:
    """A last line that tells an error, without the label before it; empty where it tells none, or
    where the line above is of a traceback, which is read as one."""
    said = _bare(text)
    if _bare(above)[:1].isspace() or any(word in text for word in SCHEDULER):
        return ""
    return said.strip() if LAST_RAISED.match(said) else ""


def _bare(text: str) -> str:
    label = LABEL.match(text)
    return text[label.end() :] if label else text


def _same(line: str, prefix: str) -> bool:
    """Whether a line is of the writer of that prefix, whose time stamp goes on."""
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
        if _same(line, prefix)
    )
