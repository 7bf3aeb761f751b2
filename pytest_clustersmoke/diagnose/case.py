"""What is known of the ranks of a phase that hung or fell out of step, each read once."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from .. import clean
from ..findings import Evidence
from ..text import ranges
from . import flight_recorder, suspects
from .flight_recorder import Call
from .ranks import ECHO
from .stacks import of_children

if TYPE_CHECKING:
    from ..result import PhaseResult

# What a rank says where sizes or kinds of a collective differ between ranks.
MISMATCHED = re.compile(r"enforce fail|op\.preamble|mismatch|monitoredBarrier", re.I)
MAX_LINES = 8


class Case:
    """What is known of the ranks, each read once."""

    def __init__(self, result: PhaseResult) -> None:
        self.result = result
        self.ranks = {rank.rank: rank for rank in result.ranks}
        self.records = flight_recorder.read_all(result.directory, self.ranks)
        self.where = suspects.stood(result)
        self.world = [rank.rank for rank in result.ranks if not rank.done]
        self.errors = {
            rank.rank: error
            for rank in result.ranks
            if (error := rank.events.last("error")) is not None
        }

    def hosts(self, ranks: Iterable[int]) -> tuple[str, ...]:
        per_node = int(self.result.spec.get("ranks_per_node") or 1)
        names = {node.node_rank: node.name for node in self.result.nodes}
        found = []
        for rank in ranks:
            said = self.ranks[rank].start.get("node") if rank in self.ranks else None
            # A rank that hangs before its Rank has said nothing: static ranks are counted by node.
            found.append(str(said or names.get(rank // per_node, "unknown")))
        return tuple(dict.fromkeys(found))

    def named(self, ranks: Collection[int]) -> str:
        """`rank 3 (n1)`, or `ranks 3, 5-7 (n1, n2)`."""
        hosts = ", ".join(self.hosts(sorted(ranks)))
        return f"{'rank' if len(ranks) == 1 else 'ranks'} {ranges(ranks)} ({hosts})"

    def stands(self, rank: int) -> str:
        """Where a rank stood, in words."""
        stack = self.where.get(rank)
        if stack is None:
            return ""
        words = stack.line
        if stack.frames[0] != stack.program:
            words += f" (inside it {stack.frames[0]})"
        if stack.waits_for_loader:
            workers = [str(one.program) for one in of_children(self.result.directory, rank)]
            at = f", which stands at {workers[0]}" if workers else ""
            words += f", waiting for a worker of its DataLoader{at}"
        return words

    def lines(self, ranks: Iterable[int]) -> dict[str, str]:
        """Rank -> the line of the program on which it stood."""
        found = ((rank, self.where.get(rank)) for rank in list(ranks)[:MAX_LINES])
        return {str(rank): clean.line(stack.line) for rank, stack in found if stack}

    def evidence(self, ranks: Iterable[int]) -> list[Evidence]:
        """Stack and flight recorder of each, as far as they are there."""
        found = []
        for rank in list(ranks)[:MAX_LINES]:
            stack, record = self.where.get(rank), self.records.get(rank)
            if stack is not None:
                found.append(stack.evidence())
            if record is not None:
                last = {group: str(calls[max(calls)]) for group, calls in record.calls.items()}
                said = "; ".join(f"group {group}: {call}" for group, call in last.items())
                found.append(record.evidence(f"rank {rank}'s last collective by group: {said}"))
        return found

    def detail(self, **more: Any) -> dict[str, Any]:
        return {**more, "positions": suspects.positions(self.result)}


def is_consequence(error: dict[str, Any]) -> bool:
    said = f"{error.get('type')}: {error.get('message')}"
    return bool(ECHO.search(said) or MISMATCHED.search(said))


def line_of(case: Case, call: Call, ranks: Collection[int]) -> str:
    """The line of the program that called it: by the recorder, else by the stack of a rank that
    still waits in it."""
    if call.line:
        return call.line
    for rank in ranks:
        stack, record = case.where.get(rank), case.records.get(rank)
        if stack is None or record is None:
            continue
        if any(calls and max(calls) == call.number for calls in record.calls.values()):
            return stack.line
    return ""


def text_of(ranks: Collection[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {ranges(ranks)}"
