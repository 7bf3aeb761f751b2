"""Where ranks were: from their stacks, written by faulthandler or py-spy, and their last progress.

A stack file may hold several dumps: from a data loader's worker that ended long before, from the
rank when it was asked, from its children, from its end. The node's watch writes a line before each
dump that it asks for; the first dump after the rank's own line counts. If a collective hangs or
breaks, most ranks are victims: stacks and progress show which rank the others waited for.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..evidence.finding import MAX_TEXT, Evidence
from ..evidence.job_results import RankResult
from ..evidence.phase_result import PhaseResult
from ..evidence.run_directory import PhaseDir
from ..evidence.telemetry import read_start
from ..text import name_ranks, ranges, shorten

MAX_BYTES = 4 * 2**20
FRAME = re.compile(r'  File "(.{1,1000})", line (\d{1,9}) in (.{1,300})')
SPY_FRAME = re.compile(r"    (.{1,300}) \((.{1,1000}?)(?::(\d{1,9}))?\)")
RAISED_FRAME = re.compile(r'  File "([^"\n]{1,1000})", line (\d{1,9}), in ([^\n]{1,300})')
MAX_TRACEBACK = 64 * 2**10
ASKED = re.compile(r"== (?:asked|ended for its stacks): (a child of )?rank (\d{1,9})")
HEADS = ("Thread ", "Current thread ")
# Files that are not part of the program: the standard library, installed packages, this package.
LIBRARY = re.compile(r"(?:site|dist)-packages/|/lib(?:64)?/python3|^<|/pytest_clustersmoke/|\.so\b")
COLLECTIVE = re.compile(r"torch/distributed/distributed_c10d\.py$")
# In C++ code called from these, a rank may wait for others: backward reduces gradients, and the
# device that it waits for may be running a collective.
PERHAPS = re.compile(r"torch/autograd/(?:graph|__init__)\.py$|torch/cuda/(?:__init__|streams)\.py$")
LOADER = re.compile(r"torch/utils/data/dataloader\.py$")
MAX_POSITIONS, MOST_SHOWN = 32, 3


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
        """The innermost frame of the program itself; if there is none, the innermost of all."""
        return next((frame for frame in self.frames if frame.is_program), self.frames[0])

    @property
    def line(self) -> str:
        """That frame, and the frame of the program that called it, if there is one."""
        mine = [frame for frame in self.frames if frame.is_program]
        caller = [frame for frame in mine[1:2] if frame.name != "<module>"]
        return ", called at ".join(map(str, [self.program, *caller]))

    @property
    def in_collective(self) -> bool:
        return any(COLLECTIVE.search(frame.file) for frame in self.frames)

    @property
    def perhaps_in_collective(self) -> bool:
        return self.in_collective or any(PERHAPS.search(frame.file) for frame in self.frames)

    @property
    def waits_for_loader(self) -> bool:
        """Whether it waits for a worker of a DataLoader."""
        return any(
            LOADER.search(frame.file) and frame.name in ("_try_get_data", "_get_data")
            for frame in self.frames
        )

    def evidence(self) -> Evidence:
        frame = self.program
        return Evidence(str(self.path), frame.number, frame.text[:MAX_TEXT])


@dataclass
class _Dump:
    """The threads of one process; faulthandler lists the newest first, so the main one is last."""

    whose: str  # "rank", "child", or "" if nobody asked
    threads: list[list[Frame]] = field(default_factory=list)


def stack_of_rank(directory: PhaseDir, rank: int) -> Stack | None:
    """The stack of the rank's main thread while it hung; if nobody asked for it, as it ended."""
    path = directory.rank_stack(rank)
    dumps = [dump for dump in _dumps(path) if any(dump.threads)]
    asked = [dump for dump in dumps if dump.whose == "rank"]
    unasked = [dump for dump in dumps if dump.whose == ""]
    for dump in (*asked, *unasked):
        main = dump.threads[-1]
        if main:
            return Stack(path, tuple(main))
    return _read_py_spy(directory.rank_py_spy(rank))


def stack_of_error(path: Path, number: int, traceback: str) -> Stack | None:
    """The stack where a rank raised; `number` is the line of its error in its events."""
    frames = [
        Frame(match[1], int(match[2]), match[3], number, match[0].strip())
        for match in RAISED_FRAME.finditer(traceback[-MAX_TRACEBACK:])
    ]
    return Stack(path, tuple(reversed(frames))) if frames else None


def stacks_of_children(directory: PhaseDir, rank: int) -> list[Stack]:
    """The stacks of the processes that the rank forked."""
    path = directory.rank_stack(rank)
    return [
        Stack(path, tuple(dump.threads[-1]))
        for dump in _dumps(path)
        if dump.whose == "child" and dump.threads and dump.threads[-1]
    ]


def _dumps(path: Path) -> Iterator[_Dump]:
    """The dumps of one file in order. faulthandler puts an empty line between threads but none
    before the first, so a header right after a frame begins another dump."""
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


def _read_py_spy(path: Path) -> Stack | None:
    """The main thread in py-spy's dump, which lists it first."""
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
        text = read_start(path, MAX_BYTES).decode(errors="replace")
    except OSError:
        return
    yield from enumerate(text.split("\n"), 1)


def left_before(result: PhaseResult, victims: Iterable[RankResult]) -> list[RankResult]:
    """The ranks that were done without completing the stage that a victim was still in: their
    program returned early."""
    inside = {stage for victim in victims if (stage := _stage_in_progress(victim))}
    return [rank for rank in result.ranks if rank.done and inside - _stages_ended(rank)]


def read_stacks(result: PhaseResult) -> dict[int, Stack]:
    """Rank -> the stack where it raised, else of its main thread, if it left one."""
    stacks = {rank.rank: _stack_of(result, rank) for rank in result.ranks}
    return {rank: stack for rank, stack in stacks.items() if stack is not None}


def _stack_of(result: PhaseResult, rank: RankResult) -> Stack | None:
    if rank.error is not None:
        raised = stack_of_error(rank.events.path, rank.error.line, rank.error.traceback)
        if raised is not None:
            return raised
    return stack_of_rank(result.directory, rank.rank)


def ranks_elsewhere(where: Mapping[int, Stack], world: Collection[int]) -> list[int]:
    """The ranks whose stack is outside a collective while the stacks of all others are, or may be,
    in one; empty if a rank's stack is missing."""
    away = [rank for rank in world if rank in where and not where[rank].perhaps_in_collective]
    unknown = [rank for rank in world if rank not in where]
    waits = [rank for rank in world if rank in where and where[rank].perhaps_in_collective]
    return away if away and waits and not unknown else []


def ranks_behind(result: PhaseResult, among: Collection[int]) -> list[int]:
    """The ranks among these that are furthest behind, by stages first and then by steps; empty if
    all may be equally far. Steps are not all marked, so a rank is ahead only if it is so whatever
    the slowest did since its last mark."""
    ranks = [rank for rank in result.ranks if rank.rank in among]
    least = min((_latest_progress(rank) for rank in ranks), default=(0, 0))
    behind = [rank.rank for rank in ranks if _progress(rank) <= least]
    return behind if len(behind) < len(ranks) else []


def ranks_by_position(result: PhaseResult) -> dict[str, str]:
    """Last stage and step -> the ranks there, on all nodes."""
    places = list(_ranks_at(result).items())
    return {where: ranges(ranks) for where, ranks in places[:MAX_POSITIONS]}


def _ranks_at(result: PhaseResult) -> dict[str, list[int]]:
    ranks_at: dict[str, list[int]] = defaultdict(list)
    for rank in result.ranks:
        ranks_at[describe_position(rank)].append(rank.rank)
    return ranks_at


def describe_positions(result: PhaseResult) -> str:
    """Where the ranks were at the end, in words: the last event that each of them wrote."""
    places = [f"{name_ranks(ranks)}: {where}" for where, ranks in _ranks_at(result).items()]
    return shorten(places, MOST_SHOWN, "; ")


def describe_position(rank: RankResult) -> str:
    """The rank's last stage, with the last step that it marked if that is part of the stage."""
    if rank.done:
        return "done"
    if not rank.stages:
        return "before its Rank" if not rank.start else "init"
    stage = rank.stages[-1]
    name = stage.name[:100]
    if stage.ended:
        return f"after {name}"
    if name == "train" and rank.steps_done is not None:
        return f"{name}, after step {rank.steps_done} of {rank.steps_planned}"[:200]
    return name


def _progress(rank: RankResult) -> tuple[int, int]:
    """How many stages it began or ended, and the last step that it recorded."""
    if rank.done:
        return 2**31, 0
    return len(rank.stages), rank.steps_done or 0


def _latest_progress(rank: RankResult) -> tuple[int, int]:
    """The same with the steps that it may have done since its last mark."""
    stages, steps = _progress(rank)
    return stages, steps + rank.steps_since_mark


def _stage_in_progress(rank: RankResult) -> str:
    return rank.stages[-1].name if rank.stages and not rank.stages[-1].ended else ""


def _stages_ended(rank: RankResult) -> set[str]:
    return {stage.name for stage in rank.stages if stage.ended}
