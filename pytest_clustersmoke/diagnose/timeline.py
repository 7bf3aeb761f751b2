"""What happened over all nodes and ranks, in one order of time.

Within a node the order is that of its own clock. Between nodes it is only as good as their clocks,
so these are set right: by how far each was ahead of node 0's when the nodes met, as they measured;
where they could not tell, by what must have come first. Every node reads the facts of all nodes
before it meets them, and the flag before it says that it was told to end. A clock that contradicts
neither is left alone; another one is moved to the middle of what they allow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..findings import Evidence
from ..rundir import read_json
from ..telemetry import Events, number, read_events

if TYPE_CHECKING:
    from ..evidence import RankResult
    from ..result import PhaseResult

# Around a cause so many moments are told before and behind it.
BEFORE, BEHIND = 2, 4
MAX_WHAT = 160


@dataclass(frozen=True)
class Moment:
    """Something that happened: when (Unix s, by the first node's clock), where and what."""

    time: float
    node: int | None
    rank: int | None
    what: str
    evidence: Evidence


@dataclass(frozen=True)
class Timeline:
    """All moments in order; `told` is when a node knew that the phase would end."""

    moments: tuple[Moment, ...]
    moved: dict[int, float] = field(default_factory=dict)  # node -> seconds added to its clock
    told: dict[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, result: PhaseResult) -> Timeline:
        events = {
            node.node_rank: read_events(result.directory.node_events(node.node_rank))
            for node in result.nodes
        }
        flag = read_json(result.directory.abort) or {}
        moved = _moved(result, events, flag)
        found = [
            *_of_nodes(result, events),
            *(moment for rank in result.ranks for moment in _of_rank(rank)),
            *_of_flag(result, flag),
        ]
        moments = [
            Moment(one.time + moved.get(one.node, 0.0), *_rest(one))
            if one.node is not None
            else one
            for one in found
        ]
        told = {
            node: record["time"] + moved.get(node, 0.0)
            for node, one in events.items()
            if (record := next(one.named("trouble"), None)) is not None
        }
        return cls(tuple(sorted(moments, key=lambda one: one.time)), moved, told)

    def at(self, node: int | None, record: dict[str, Any]) -> float:
        """When a node or one of its ranks wrote a record."""
        return float(record["time"]) + (self.moved.get(node, 0.0) if node is not None else 0.0)

    def around(self, time: float, logged: Iterable[Moment] = ()) -> list[str]:
        """A few lines about what happened then, in seconds from that moment on, and what logs said
        beside it."""
        before = [one for one in self.moments if one.time < time][-BEFORE:]
        behind = [one for one in self.moments if one.time >= time][: BEHIND + 1]
        told = sorted([*before, *behind, *logged], key=lambda one: one.time)
        return [f"{one.time - time:+8.3f} s  {one.what}" for one in told]


def node_of(rank: RankResult) -> int | None:
    value = rank.start.get("node_rank")
    return value if type(value) is int else None


def _rest(one: Moment) -> tuple[int | None, int | None, str, Evidence]:
    return one.node, one.rank, one.what, one.evidence


def _of_nodes(result: PhaseResult, events: dict[int, Events]) -> Iterator[Moment]:
    for node in result.nodes:
        of_node = events[node.node_rank]
        for record, line in zip(of_node.records, of_node.lines, strict=True):
            what = "torchrun starts" if record["event"] == "torchrun_start" else ""
            if record["event"] == "trouble" and record.get("reason") == "aborted":
                what = "sees that the phase ends"
            elif record["event"] == "trouble":
                what = f"sees: {record.get('why')}"
            if what:
                evidence = Evidence(str(of_node.path), line, record["event"])
                yield Moment(
                    float(record["time"]), node.node_rank, None, f"{node.name}: {what}", evidence
                )


def _of_rank(rank: RankResult) -> Iterator[Moment]:
    """Where its stages begin, its last step, its exception and its end."""
    events = rank.events
    last_step = events.last("step")
    for record, line in zip(events.records, events.lines, strict=True):
        event, what = record["event"], ""
        if event == "stage" and record.get("state") == "begin":
            what = f"begins stage {record.get('name')}"
        elif record is last_step:
            what = f"has done step {record.get('step')}, its last"
        elif event == "error":
            what = f"raises {record.get('type')}: {record.get('message')}"
        elif event == "done":
            what = "is done"
        if what:
            evidence = Evidence(str(events.path), line, event)
            what = f"{rank} {what}"[:MAX_WHAT]
            yield Moment(float(record["time"]), node_of(rank), rank.rank, what, evidence)


def _of_flag(result: PhaseResult, flag: dict[str, Any]) -> Iterator[Moment]:
    time, node = _finite(flag.get("time")), flag.get("node_rank")
    if time is not None:
        of_node = node if type(node) is int else None
        evidence = Evidence(str(result.directory.abort), 1, str(flag.get("reason")))
        yield Moment(
            time, of_node, None, f"{flag.get('node')}: ends the phase on all nodes", evidence
        )


def _moved(
    result: PhaseResult, events: dict[int, Events], flag: dict[str, Any]
) -> dict[int, float]:
    """Node -> seconds to add to its clock, so that it agrees with the first node's."""
    facts = {one.node_rank: _finite(one.facts.get("time")) for one in result.nodes}
    met = {node: _time(one, "rendezvous") for node, one in events.items()}
    seen = {node: _told_to_end(one) for node, one in events.items()}
    raised, raiser = _finite(flag.get("time")), flag.get("node_rank")
    moved = {0: 0.0}
    # The node that raised the flag first: the others' bounds build upon its clock.
    for node in sorted((node for node in events if node), key=lambda node: node != raiser):
        least = _behind(facts.get(0), met[node])
        most = [-bound for bound in _behind(facts.get(node), met.get(0))]
        if raiser == node:
            most += [-bound for bound in _behind(raised, seen.get(0))]
        elif type(raiser) is int and raiser in moved:
            least += [moved[raiser] + bound for bound in _behind(raised, seen[node])]
        measured = _measured(result, node)
        if measured is not None:
            moved[node] = -measured
            continue
        moved[node] = _within(max(least, default=-math.inf), min(most, default=math.inf))
    return moved


def _measured(result: PhaseResult, node: int) -> float | None:
    """By how much the node found its clock ahead of node 0's (launch/reach.py), in seconds; None
    where that may be wrong by as much."""
    clock = (read_json(result.directory.node_meeting(node)) or {}).get("clock")
    found = clock if isinstance(clock, dict) else {}
    offset, error = _finite(found.get("offset_s")), _finite(found.get("error_s"))
    known = offset is not None and error is not None and abs(offset) > abs(error)
    return offset if known else None


def _within(least: float, most: float) -> float:
    if least <= 0 <= most:
        return 0.0
    if math.isinf(least) or math.isinf(most):
        return most if math.isinf(least) else least
    return (least + most) / 2


def _behind(earlier: float | None, later: float | None) -> list[float]:
    """By how much the clock that told the later time is behind the other's, at the least."""
    return [] if earlier is None or later is None else [earlier - later]


def _finite(value: object) -> float | None:
    said = number(value)
    return said if said is not None and math.isfinite(said) else None


def _told_to_end(events: Events) -> float | None:
    """When a node saw the flag that another had raised."""
    for record in events.named("trouble"):
        if record.get("reason") == "aborted":
            return float(record["time"])
    return None


def _time(events: Events, event: str) -> float | None:
    record = events.last(event)
    return None if record is None else float(record["time"])
