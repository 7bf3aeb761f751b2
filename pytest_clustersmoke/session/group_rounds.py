"""The rounds of an isolation: which groups are asked side by side, with whom a suspect is paired,
and what the nodes that give no answer mean for a group."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from typing import TypeVar

from .group_tests import NO_ANSWER, Group, GroupTests

T = TypeVar("T")
# Yields the groups of a round, takes their results, and returns what follows from them.
Steps = Generator[tuple[Group, ...], Mapping[Group, str], T]


class BudgetSpent(Exception):
    """The next round would exceed the tests that are allowed."""


class GroupRounds:
    """`down`: node -> why the scheduler runs no job there; `silent`: nodes of which a test, paired
    with another, gave no answer; `named`: those that are known to be bad. No test has any of the
    first two, and no suspect is paired with any of them."""

    def __init__(self, history: GroupTests, most_tests: int, down: Mapping[str, str]) -> None:
        self._history, self.most_tests = history, most_tests
        self.down = dict(down)
        self.silent: dict[str, None] = {}
        self.named: dict[str, None] = {}

    def ask(self, groups: Sequence[Group]) -> Steps[list[bool]]:
        """Test groups side by side; return which of them did not pass. Nodes that are gone, also
        those that a test has just shown to be, are left out of theirs."""
        live = [self._leave_out(group) for group in groups]
        wanted = tuple(group for group in live if len(group) > 1)
        if len(self._history.tests) + len(wanted) > self.most_tests:
            raise BudgetSpent
        results = (yield wanted) if wanted else {}
        for group in wanted:
            self._history.add(group, results[group])
            if results[group] == NO_ANSWER and len(group) == 2 and not self._is_known(group):
                self.silent[group[0]] = None
        if any(self._history.last(group) and self._leave_out(group) != group for group in wanted):
            return (yield from self.ask(live))
        return [
            self._history.last(group) if len(group) > 1 else bool(group and group[0] == own[0])
            for group, own in zip(live, groups, strict=True)
        ]

    def fails(self, group: Group) -> Steps[bool]:
        return (yield from self.ask([group]))[0]

    def fails_or_must(self, group: Group) -> Steps[bool]:
        """Whether a group fails, by the tests so far or by another one: of a single node, with a
        partner."""
        if len(group) == 1:
            group = (*group, *self.pair(group).values())
        implied = self._history.implied(group) if len(group) > 1 else False
        return implied if implied is not None else (yield from self.fails(group))

    def pair(
        self, nodes: Iterable[str], taken: Collection[str] = (), is_new: bool = False
    ) -> dict[str, str]:
        """Each node with a partner of its own; nodes for which there is none are left out.
        `is_new`: one that it was not paired with before."""
        pairs: dict[str, str] = {}
        shut = {*taken, *nodes, *self.named, *self.down, *self.silent}
        for node in nodes:
            before = self._history.partners_of(node) if is_new else ()
            if partner := self._history.find_partner(node, shut.union(pairs.values(), before)):
                pairs[node] = partner
        return pairs

    def _leave_out(self, group: Group) -> Group:
        return tuple(node for node in group if node not in self.down and node not in self.silent)

    def _is_known(self, group: Group) -> bool:
        """Whether it is known already why the group gave no answer."""
        return self._leave_out(group) != group
