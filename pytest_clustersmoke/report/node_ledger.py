"""The ledger of nodes: what each node did in past runs, and which nodes jobs should leave out.

A node is left out on one definite piece of evidence, or on two that are independent: of two runs,
or of two phases in which different things were found. Evidence ends after some days, at a later
clean screen of the node that looked for it, and when a part of the node has changed.

What a check found counts only if another node was found without it, so that a setting that all
nodes share accuses none. A failure of the job, which may be the program's, counts only if it
follows the node: the same failure at least twice, the phase passed without the node in between, it
has not passed with the node since, and it named this node more often than all others together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..evidence.history.node_history import DAY_S
from ..evidence.node_observation import CHECKS, DRIVER, SCREEN, SLOW, PastObservation
from ..text import plural

DAYS = 14.0
MOST_SHARE = 0.2  # of the nodes: more of them is a bad test, not a bad cluster
# Kinds of evidence that end when the driver changes; all others only if hardware changes.
OF_DRIVER = frozenset({"driver-differs", "gpu-driver-failed"})

ByNode = Mapping[str, Sequence[PastObservation]]


@dataclass(frozen=True)
class LeftOut:
    """A node to leave out, the evidence against it, the newest first, and until when (Unix s)."""

    node: str
    evidence: tuple[PastObservation, ...]
    until: float

    @property
    def reason(self) -> str:
        """The reason of the newest definite piece of evidence, or of the newest."""
        return next((seen for seen in self.evidence if seen.definite), self.evidence[0]).reason


@dataclass(frozen=True)
class NodeLedger:
    """What was observed of each node, the newest first, and the time now, in Unix seconds."""

    by_node: ByNode
    now: float
    days: float = DAYS

    def left_out(self) -> list[LeftOut]:
        """The nodes to leave out, by name."""
        judged = ((node, self.find_evidence(node)) for node in sorted(self.by_node))
        return [
            LeftOut(node, tuple(evidence), last + self.days * DAY_S)
            for node, evidence in judged
            if (last := _find_last_sufficient(evidence)) is not None
        ]

    def find_evidence(self, node: str) -> list[PastObservation]:
        """The evidence against a node that still holds, the newest first."""
        history = self.by_node[node]
        since = self.now - self.days * DAY_S
        ends = _NodeChanges(history)
        bad = [
            seen
            for seen in history
            if seen.state == "bad" and seen.seen >= since and not ends.has_ended(seen)
        ]
        follows = {key for key in {_key_of(seen) for seen in bad} if self._follows(node, key, bad)}
        return [
            seen
            for seen in bad
            if seen.definite
            or (self._has_counterpart(node, seen) if is_check(seen) else _key_of(seen) in follows)
        ]

    def _has_counterpart(self, node: str, seen: PastObservation) -> bool:
        """Whether another node was found without it: in the same job or screen, or elsewhere."""
        there = self._found_in[seen.run_id, seen.source]
        passed = self._passed_on.get(seen.source, set())
        return there.total() > there[seen.kind] or bool(passed - {node})

    def _follows(self, node: str, key: tuple[str, str], bad: Sequence[PastObservation]) -> bool:
        """Whether failures of this phase and kind follow the node."""
        source, _ = key
        times = [seen.seen for seen in bad if _key_of(seen) == key]
        first, last = min(times), max(times)
        named = self._named[key]
        between = (
            nodes for seen, nodes in self._passes.get(source, {}).values() if first < seen < last
        )
        return (
            2 * named[node] > named.total()
            and any(node not in nodes for nodes in between)
            and not any(
                seen.source == source and seen.state == "good" and seen.seen > last
                for seen in self.by_node[node]
            )
        )

    @cached_property
    def _observations(self) -> list[PastObservation]:
        since = self.now - self.days * DAY_S
        return [seen for history in self.by_node.values() for seen in history if seen.seen >= since]

    @cached_property
    def _found_in(self) -> dict[tuple[str, str], Counter[str]]:
        """(run, source) -> what was found there, by the number of nodes; "" for nothing."""
        found: dict[tuple[str, str], Counter[str]] = {}
        for seen in self._observations:
            kind = seen.kind if seen.state == "bad" else ""
            found.setdefault((seen.run_id, seen.source), Counter())[kind] += 1
        return found

    @cached_property
    def _passed_on(self) -> dict[str, set[str]]:
        """Source -> the nodes that were good in it."""
        passed: dict[str, set[str]] = {}
        for seen in self._observations:
            if seen.state == "good":
                passed.setdefault(seen.source, set()).add(seen.node)
        return passed

    @cached_property
    def _passes(self) -> dict[str, dict[str, tuple[float, set[str]]]]:
        """Source -> run in which it passed -> when, and on which nodes."""
        passes: dict[str, dict[str, tuple[float, set[str]]]] = {}
        for seen in self._observations:
            if seen.state == "good":
                runs = passes.setdefault(seen.source, {})
                runs.setdefault(seen.run_id, (seen.seen, set()))[1].add(seen.node)
        return passes

    @cached_property
    def _named(self) -> dict[tuple[str, str], Counter[str]]:
        """(source, kind) -> how often it named each node."""
        named: dict[tuple[str, str], Counter[str]] = {}
        for seen in self._observations:
            if seen.state == "bad":
                named.setdefault(_key_of(seen), Counter())[seen.node] += 1
        return named


def is_check(seen: PastObservation) -> bool:
    """Whether the node itself was looked at, so that no program can be the cause."""
    return seen.source == SCREEN or seen.kind in CHECKS


def _key_of(seen: PastObservation) -> tuple[str, str]:
    return seen.source, seen.kind


def _find_last_sufficient(evidence: Sequence[PastObservation]) -> float | None:
    """The time from which on the evidence, the newest first, is sufficient: that of the newest
    definite piece, or of the older one of the newest two that are independent."""
    for count, seen in enumerate(evidence):
        if seen.definite or any(_are_independent(seen, newer) for newer in evidence[:count]):
            return seen.seen
    return None


def _are_independent(one: PastObservation, other: PastObservation) -> bool:
    """The same ranks that are slow in the same phase on two nights may have more to do."""
    if one.run_id != other.run_id:
        is_same = (one.source, one.reason) == (other.source, other.reason)
        return not (is_same and one.kind == SLOW)
    return one.source != other.source and one.kind != other.kind


class _NodeChanges:
    """When each kind of evidence was last cleared, and when each kind of parts last changed."""

    def __init__(self, history: Sequence[PastObservation]) -> None:
        self._cleared: dict[str, float] = {}
        self._changed: dict[str, float] = {}
        parts: dict[str, str] = {}
        for seen in reversed(history):
            if seen.source == SCREEN and seen.state == "good":
                self._cleared |= dict.fromkeys(seen.cleared, seen.seen)
            for kind, value in seen.parts.items():
                if parts.setdefault(kind, value) != value:
                    parts[kind], self._changed[kind] = value, seen.seen

    def has_ended(self, evidence: PastObservation) -> bool:
        changed = (
            seen > evidence.seen
            for kind, seen in self._changed.items()
            if kind != DRIVER or evidence.kind in OF_DRIVER
        )
        ended = max(evidence.seen, evidence.written)  # it may be newer than a screen during its run
        return self._cleared.get(evidence.kind, ended) > ended or any(changed)


@dataclass(frozen=True)
class TooMany:
    """Some nodes that would lose so many that the tests are to blame: `where` says which."""

    where: str
    nodes: int
    left_out: int

    def __str__(self) -> str:
        return f"{plural(self.left_out, 'node')} of {self.nodes} {self.where}"


def find_too_many(
    left_out: Collection[str], partitions: Mapping[str, Collection[str]], known: Collection[str]
) -> TooMany | None:
    """Whether too many would be left out: of these nodes, of any of their partitions, or of those
    that the history knows, since a job can have all of its nodes there. None if not."""
    names = sorted(set().union(*partitions.values()))
    groups = {f"of partition {name}": _list_members(partitions, name) for name in names}
    groups["of the cluster"] = set(partitions)
    groups["that the history knows"] = set(partitions) & set(known)
    for where, nodes in groups.items():
        lost = nodes & set(left_out)
        if len(lost) > most_left_out(len(nodes)):
            return TooMany(where, len(nodes), len(lost))
    return None


def _list_members(partitions: Mapping[str, Collection[str]], partition: str) -> set[str]:
    return {node for node, own in partitions.items() if partition in own}


def most_left_out(nodes: int) -> int:
    """How many of so many nodes may be left out."""
    return max(1, int(MOST_SHARE * nodes))


# What `clustersmoke nodes` shows of a node.


@dataclass(frozen=True)
class NodeSummary:
    """One node: when it was last seen good and bad, how often what named it, and what changed."""

    node: str
    history: Sequence[PastObservation]

    @property
    def last_good(self) -> PastObservation | None:
        return next((seen for seen in self.history if seen.state == "good"), None)

    @property
    def last_bad(self) -> PastObservation | None:
        return next((seen for seen in self.history if seen.state == "bad"), None)

    @property
    def failures(self) -> int:
        """In how many runs it was bad."""
        return len({seen.run_id for seen in self.history if seen.state == "bad"})

    @property
    def phases(self) -> list[str]:
        """The phases in which it was seen, `screen` included."""
        return sorted({seen.source for seen in self.history})

    def count_states(self, phase: str) -> dict[str, int]:
        """How often it was good, bad and unknown in a phase."""
        counts = Counter(seen.state for seen in self.history if seen.source == phase)
        return {state: counts[state] for state in ("good", "bad", "unknown")}

    def describe_failures(self) -> Iterator[str]:
        """`slow-rank in 8 of 8 phases`, what was found most often first."""
        sources: dict[str, set[str]] = {}
        runs: dict[str, set[str]] = {}
        for seen in self.history:
            if seen.state == "bad":
                sources.setdefault(seen.kind, set()).add(seen.source)
                runs.setdefault(seen.kind, set()).add(seen.run_id)
        for kind in sorted(sources, key=lambda kind: (-len(runs[kind]), kind)):
            if sources[kind] == {SCREEN}:
                yield f"{kind} in the screen"
            else:
                yield f"{kind} in {len(sources[kind])} of {len(self.phases)} phases"

    @property
    def reboots(self) -> int:
        """How often it was booted anew: each boot has an id of its own."""
        return max(0, len({seen.boot_id for seen in self.history if seen.boot_id}) - 1)

    def describe_changes(self) -> Iterator[tuple[float, str]]:
        """When (Unix s) and which parts changed, the newest first."""
        parts: dict[str, str] = {}
        changes = []
        for seen in reversed(self.history):
            for kind, value in seen.parts.items():
                before = parts.get(kind, value)
                parts[kind] = value
                if before != value:
                    changes.append((seen.seen, f"{kind} {_describe_difference(before, value)}"))
        yield from reversed(changes)


def _describe_difference(old: str, new: str) -> str:
    """What a list of parts no longer has, and what it has instead."""
    before, after = old.split(", "), new.split(", ")
    gone = [part for part in before if part not in after]
    come = [part for part in after if part not in before]
    return f"{', '.join(gone) or 'none'} -> {', '.join(come) or 'none'}"
