"""Which rank the others waited for, by stacks and marks: where a collective hangs or breaks, most
ranks are victims."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from ..text import ranges
from . import stacks

if TYPE_CHECKING:
    from ..evidence import RankResult
    from ..result import PhaseResult
    from .stacks import Stack

MAX_POSITIONS = 32


def left_before(result: PhaseResult, victims: Iterable[RankResult]) -> list[RankResult]:
    """The ranks that said they were done without having been through the stage in which a victim
    still was: they returned from their program early."""
    inside = {stage for victim in victims if (stage := _inside(victim))}
    return [rank for rank in result.ranks if rank.done and inside - _ended(rank)]


def stood(result: PhaseResult) -> dict[int, Stack]:
    """Rank -> where its main thread stood, where it left a stack; where it raised, if it did."""
    found = {rank.rank: _stood(result, rank) for rank in result.ranks}
    return {rank: stack for rank, stack in found.items() if stack is not None}


def _stood(result: PhaseResult, rank: RankResult) -> Stack | None:
    error = rank.events.last("error")
    if error is not None:
        line, traceback = rank.events.line_of(error), str(error.get("traceback"))
        raised = stacks.of_error(rank.events.path, line, traceback)
        if raised is not None:
            return raised
    return stacks.of_rank(result.directory, rank.rank)


def elsewhere(where: Mapping[int, Stack], world: Collection[int]) -> list[int]:
    """The ranks whose stack is in no collective while all others' are or may be, in one at least
    for certain; none where no stack of all but one tells."""
    away = [rank for rank in world if rank in where and not where[rank].perhaps_in_collective]
    unknown = [rank for rank in world if rank not in where]
    waits = [rank for rank in world if rank in where and where[rank].perhaps_in_collective]
    return away if away and waits and not unknown else []


def behind(result: PhaseResult, among: Collection[int]) -> list[int]:
    """Of these ranks those that have come least far, by their stages first, then by their steps;
    none where all are equally far."""
    marks = {rank.rank: _progress(rank) for rank in result.ranks if rank.rank in among}
    least = min(marks.values(), default=(0, 0))
    found = [rank for rank, mark in marks.items() if mark == least]
    return found if len(found) < len(marks) else []


def positions(result: PhaseResult) -> dict[str, str]:
    """Last stage and step -> the ranks that stood there, of all nodes."""
    found: dict[str, list[int]] = defaultdict(list)
    for rank in result.ranks:
        found[position(rank)].append(rank.rank)
    return {where: ranges(ranks) for where, ranks in list(found.items())[:MAX_POSITIONS]}


def position(rank: RankResult) -> str:
    """The rank's last stage, and its last step where that is in it."""
    if rank.done:
        return "done"
    stage, step = rank.events.last("stage"), rank.events.last("step")
    if stage is None:
        return "before its Rank" if not rank.start else "init"
    name, state = str(stage.get("name"))[:100], stage.get("state")
    if state == "end":
        return f"after {name}"
    if name == "train" and step is not None and type(step.get("step")) is int:
        return f"{name}, step {step['step']} of {step.get('steps')}"[:200]
    return name


def _progress(rank: RankResult) -> tuple[int, int]:
    """How many stages it began and ended, and the last step it marked."""
    if rank.done:
        return 2**31, 0
    step = (rank.events.last("step") or {}).get("step")
    return sum(1 for _ in rank.events.named("stage")), step if type(step) is int else 0


def _inside(rank: RankResult) -> str:
    stage = rank.events.last("stage") or {}
    return str(stage.get("name")) if stage.get("state") == "begin" else ""


def _ended(rank: RankResult) -> set[str]:
    return {
        str(record.get("name"))
        for record in rank.events.named("stage")
        if record.get("state") == "end"
    }
