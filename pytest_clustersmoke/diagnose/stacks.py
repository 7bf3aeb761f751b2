"""Where a rank stood: its stacks, as faulthandler or py-spy wrote them.

A file of stacks may hold several: of a data loader's worker that was ended long before, of the rank
when it was asked, of its children, of its end. The node's watch writes a line before each that it
asks for; the first behind the rank's own is what counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..findings import MAX_TEXT, Evidence
from ..rundir import PhaseDir

MAX_BYTES = 4 * 2**20
FRAME = re.compile(r'  File "(.{1,1000})", line (\d{1,9}) in (.{1,300})')
SPY_FRAME = re.compile(r"    (.{1,300}) \((.{1,1000}?)(?::(\d{1,9}))?\)")
RAISED_FRAME = re.compile(r'  File "([^"\n]{1,1000})", line (\d{1,9}), in ([^\n]{1,300})')
MAX_TRACEBACK = 64 * 2**10
ASKED = re.compile(r"== (?:asked|ended for its stacks): (a child of )?rank (\d{1,9})")
HEADS = ("Thread ", "Current thread ")
# Files that are no part of the program: the interpreter's library, installed packages, this one.
LIBRARY = re.compile(r"(?:site|dist)-packages/|/lib(?:64)?/python3|^<|/pytest_clustersmoke/|\.so\b")
COLLECTIVE = re.compile(r"torch/distributed/distributed_c10d\.py$")
# In C++ below these a rank may wait for others: gradients are reduced during backward, and a device
# is waited for that runs a collective.
PERHAPS = re.compile(r"torch/autograd/(?:graph|__init__)\.py$|torch/cuda/(?:__init__|streams)\.py$")
LOADER = re.compile(r"torch/utils/data/dataloader\.py$")


@dataclass(frozen=True)
class Frame:
    """`number` is its line in the file of stacks; `line`, of the source, is 0 in native code."""

    file: str
    line: int
    name: str
    number: int
    text: str

    @property
    def is_program(self) -> bool:
        return self.line > 0 and not LIBRARY.search(self.file)

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.name}" if self.line else f"{self.name}"


@dataclass(frozen=True)
class Stack:
    """The main thread's frames, the innermost first."""

    path: Path
    frames: tuple[Frame, ...]

    @property
    def program(self) -> Frame:
        """The innermost frame of the program itself; of anything, where there is none."""
        return next((one for one in self.frames if one.is_program), self.frames[0])

    @property
    def line(self) -> str:
        """That frame and the one of the program that called it, where there is one."""
        mine = [one for one in self.frames if one.is_program]
        caller = [one for one in mine[1:2] if one.name != "<module>"]
        return ", called at ".join(map(str, [self.program, *caller]))

    @property
    def in_collective(self) -> bool:
        return any(COLLECTIVE.search(one.file) for one in self.frames)

    @property
    def perhaps_in_collective(self) -> bool:
        return self.in_collective or any(PERHAPS.search(one.file) for one in self.frames)

    @property
    def waits_for_loader(self) -> bool:
        """Whether it waits for a worker of a DataLoader."""
        return any(
            LOADER.search(one.file) and one.name in ("_try_get_data", "_get_data")
            for one in self.frames
        )

    def evidence(self) -> Evidence:
        frame = self.program
        return Evidence(str(self.path), frame.number, frame.text[:MAX_TEXT])


@dataclass
class _Dump:
    """The threads of one process; faulthandler lists the newest first, and so the main one last."""

    whose: str  # "rank", "child", or "" where nobody asked
    threads: list[list[Frame]] = field(default_factory=list)


def of_rank(directory: PhaseDir, rank: int) -> Stack | None:
    """Where the rank's main thread stood while it hung; where nobody asked it, as it ended."""
    path = directory.rank_stack(rank)
    dumps = [one for one in _dumps(path) if any(one.threads)]
    asked = [one for one in dumps if one.whose == "rank"]
    for one in (*asked, *(dump for dump in dumps if dump.whose == "")):
        main = one.threads[-1]
        if main:
            return Stack(path, tuple(main))
    return _spied(directory.rank_py_spy(rank))


def of_error(path: Path, number: int, traceback: str) -> Stack | None:
    """Where a rank raised: `number` is the line of its error among its events."""
    frames = [
        Frame(found[1], int(found[2]), found[3], number, found[0].strip())
        for found in RAISED_FRAME.finditer(traceback[-MAX_TRACEBACK:])
    ]
    return Stack(path, tuple(reversed(frames))) if frames else None


def of_children(directory: PhaseDir, rank: int) -> list[Stack]:
    """Where the processes that it forked stood."""
    path = directory.rank_stack(rank)
    return [
        Stack(path, tuple(one.threads[-1]))
        for one in _dumps(path)
        if one.whose == "child" and one.threads and one.threads[-1]
    ]


def _dumps(path: Path) -> Iterator[_Dump]:
    """The dumps of one file in order. faulthandler puts an empty line between threads, and none
    before the first: so a head straight behind a frame begins another dump."""
    dump, empty, whose = _Dump(""), True, ""
    for number, line in _lines(path):
        if asked := ASKED.match(line):
            yield dump
            whose = "child" if asked[1] else "rank"
            dump, empty = _Dump(whose), True
        elif line.startswith(HEADS):
            if dump.threads and not empty:
                yield dump
                dump = _Dump("")  # what nobody asked for
            dump.threads.append([])
        elif dump.threads and (frame := FRAME.match(line)):
            dump.threads[-1].append(Frame(frame[1], int(frame[2]), frame[3], number, line.strip()))
        empty = not line.strip()
    yield dump


def _spied(path: Path) -> Stack | None:
    """The main thread in what py-spy wrote: it lists that one first."""
    frames: list[Frame] = []
    inside = False
    for number, line in _lines(path):
        if line.startswith("Thread "):
            if frames:
                break
            inside = True
        elif inside and (frame := SPY_FRAME.match(line)):
            frames.append(Frame(frame[2], int(frame[3] or 0), frame[1], number, line.strip()))
    return Stack(path, tuple(frames)) if frames else None


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open("rb") as stream:
            text = stream.read(MAX_BYTES).decode(errors="replace")
    except OSError:
        return
    yield from enumerate(text.split("\n"), 1)
