"""What groups of nodes showed when they ran a failed phase's program: the history that the next
groups are chosen by, and the nodes that are known to be good."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

Group = tuple[str, ...]

PARTS = 4  # of a group that fails
PASSED, FAILED, SLOW, NO_ANSWER = "passed", "failed", "slow", "no answer"


@dataclass(frozen=True)
class GroupTest:
    """One test: the nodes of the group, and its result."""

    nodes: Group
    result: str

    @property
    def is_bad(self) -> bool:
        """Whether it did not pass: it failed, or gave no answer."""
        return self.result != PASSED

    @property
    def has_failed(self) -> bool:
        return self.result in (FAILED, SLOW)

    def __str__(self) -> str:
        shown = ", ".join(self.nodes) if len(self.nodes) <= 4 else f"{len(self.nodes)} nodes"
        return f"{shown}: {self.result}"


class GroupTests:
    """The tests so far. `switches`: name -> its nodes, of the cluster's topology, if it has one;
    `good`: nodes that passed other phases of this session."""

    def __init__(
        self,
        nodes: Iterable[str],
        switches: Mapping[str, Collection[str]],
        good: Iterable[str] = (),
    ) -> None:
        self.tests: list[GroupTest] = []
        own = frozenset(nodes)
        self._switches = {name: own & frozenset(below) for name, below in switches.items()}
        self._leaves: dict[str, str] = {}
        for name in sorted(switches, key=lambda name: -len(switches[name])):
            self._leaves |= dict.fromkeys(switches[name], name)  # the smallest comes last
        self._good = dict.fromkeys(good)
        self._served: Counter[str] = Counter()
        self._passed: dict[str, None] = {}

    def add(self, group: Group, result: str) -> None:
        self.tests.append(GroupTest(group, result))
        if result == PASSED:
            self._passed |= dict.fromkeys(group)

    def order(self, nodes: Iterable[str]) -> Group:
        """The nodes, those below one switch side by side."""
        names = list(nodes)
        first: dict[str, int] = {}
        for number, name in enumerate(names):
            first.setdefault(self.leaf(name), number)
        return tuple(sorted(names, key=lambda name: first[self.leaf(name)]))

    def leaf(self, node: str) -> str:
        """The smallest switch that has the node; empty if none has."""
        return self._leaves.get(node, "")

    def below(self, switch: str) -> frozenset[str]:
        """The job's nodes below a switch."""
        return self._switches[switch]

    @property
    def failed(self) -> list[GroupTest]:
        return [test for test in self.tests if test.has_failed]

    def find_least(self, nodes: Group) -> Group:
        """The smallest group that failed; these nodes if none did."""
        return min((test.nodes for test in self.failed), key=len, default=nodes)

    def count_passed(self) -> int:
        """How many nodes passed together; 0 if none did."""
        return max((len(test.nodes) for test in self.tests if not test.is_bad), default=0)

    @property
    def has_passed(self) -> bool:
        return bool(self._passed)

    @property
    def passed(self) -> Collection[str]:
        """The nodes of groups that passed."""
        return self._passed

    @property
    def proven(self) -> Collection[str]:
        """The nodes that passed, here or in other phases."""
        return {**self._passed, **self._good}

    @property
    def has_passed_pair(self) -> bool:
        return any(len(test.nodes) == 2 and not test.is_bad for test in self.tests)

    def last(self, group: Group) -> bool:
        """Whether the last test of a group was bad; false if there was none."""
        return next((test.is_bad for test in reversed(self.tests) if test.nodes == group), False)

    def partners_of(self, node: str, *, failed: bool = False) -> list[str]:
        """The nodes that a node was paired with, in order; only those it `failed` with, which
        passed in another group."""
        tests = [test for test in self._pairs_of(node) if test.has_failed or not failed]
        others = [other for test in tests for other in test.nodes if other != node]
        return [other for other in others if other in self.proven] if failed else others

    def count_failed(self, group: Group) -> int:
        """How often this group failed."""
        return sum(test.has_failed and {*test.nodes} == {*group} for test in self.tests)

    def has_passed_paired(self, node: str) -> bool:
        return not all(test.is_bad for test in self._pairs_of(node))

    def describe(self, node: str) -> str:
        """What a node that was paired with others showed."""
        shown = [
            f"{test.result} with {(*{*test.nodes} - {node},)[0]}" for test in self._pairs_of(node)
        ]
        return f"{node} {', '.join(shown)}"

    def _pairs_of(self, node: str) -> list[GroupTest]:
        return [test for test in self.tests if len(test.nodes) == 2 and node in test.nodes]

    def implied(self, group: Collection[str]) -> bool | None:
        """Whether a group must fail, by the tests so far, if its members alone decide."""
        own = frozenset(group)
        for test in self.tests:
            if test.has_failed and own.issuperset(test.nodes):
                return True
            if not test.is_bad and own.issubset(test.nodes):
                return False
        return None

    def find_uncrossed(self, groups: Sequence[Group], rejected: Collection[str]) -> str:
        """The smallest switch with nodes of all of these failing groups that no group which passed
        talked through: had a node below it and another elsewhere. Empty if there is none."""
        everything = len({node for below in self._switches.values() for node in below})
        for name, below in sorted(self._switches.items(), key=lambda item: len(item[1])):
            is_part = 3 <= len(below) < everything and name not in rejected
            is_common = is_part and all(self._fits(below, group) for group in groups)
            if is_common and not any(self._crosses(test, below) for test in self.tests):
                return name
        return ""

    @staticmethod
    def _fits(below: frozenset[str], group: Group) -> bool:
        return len(group) <= 2 * len(below) and not below.isdisjoint(group)

    @staticmethod
    def _crosses(test: GroupTest, below: frozenset[str]) -> bool:
        inside = sum(node in below for node in test.nodes)
        return not test.is_bad and 0 < inside < len(test.nodes)

    def find_partner(self, node: str, taken: Collection[str]) -> str:
        """A node that passed, to be paired with a suspect: if there is one, below another switch
        than the suspect and its partners before, and one that served least. Falls back on nodes
        that passed other phases; empty if there is none."""
        own = self.leaf(node)
        before = {self.leaf(other) for other in self.partners_of(node)} - {""}
        for pool in (self._passed, self._good):
            free = [name for name in pool if name not in taken and name != node]
            if free:
                chosen = min(
                    free,
                    key=lambda name: (
                        self.leaf(name) == own != "",
                        self.leaf(name) in before,
                        self._served[name],
                    ),
                )
                self._served[chosen] += 1
                return chosen
        return ""


def split_group(group: Group) -> list[Group]:
    """Up to four parts of at least two nodes, side by side."""
    count = min(PARTS, len(group) // 2)
    bounds = [len(group) * number // count for number in range(count + 1)]
    return [group[first:last] for first, last in pairwise(bounds)]


def leave_fourth(parts: Sequence[Group], has_all: bool) -> Sequence[Group]:
    return parts if has_all or len(parts) < PARTS else parts[:-1]


def rotate_pairs(nodes: Group) -> Iterator[list[Group]]:
    """Rounds of disjoint pairs, in which each node meets each other once."""
    ring = [*nodes, *([""] if len(nodes) % 2 else [])]
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        yield [pair for pair in pairs if all(pair)]
        ring = [ring[0], ring[-1], *ring[1:-1]]
