"""The rounds of an isolation: which groups are asked side by side, with whom a suspect is paired,
and what the nodes that give no answer mean for a group."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from typing import TypeVar

from .group_tests import NO_ANSWER, PASSED, Group, GroupTests

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
        """Test groups side by side; return which of them did not pass. Nodes that are gone are left
        out of theirs, and what is left of it is tested again if a test has just shown that they
        are. A first node that is left alone gets another partner; without one it is not bad."""
        bad = [False] * len(groups)
        waiting: Sequence[int] = range(len(groups))
        while waiting:
            live = self._complete({number: groups[number] for number in waiting}, groups)
            yield from self._test([*live.values()])
            failed = {number: group for number, group in live.items() if self._history.last(group)}
            waiting = [number for number, group in failed.items() if self._has_gone(group)]
            for number in failed:
                bad[number] = number not in waiting
        return bad

    def _complete(self, waiting: Mapping[int, Group], groups: Sequence[Group]) -> dict[int, Group]:
        """What is left of each group if a test can be made of it."""
        live = {number: self._leave_out(group) for number, group in waiting.items()}
        busy = {node for group in groups for node in group}
        for number, group in live.items():
            if len(group) == 1 and group == waiting[number][:1]:
                partners = self.pair(group, busy, is_new=True)
                live[number] = (*group, *partners.values())
                busy.update(partners.values())
        return {number: group for number, group in live.items() if len(group) > 1}

    def _test(self, groups: Sequence[Group]) -> Steps[None]:
        """Make tests. What a test shows in which a node went down, it shows of that node alone."""
        if len(self._history.tests) + len(groups) > self.most_tests:
            raise BudgetSpent
        results = (yield (*groups,)) if groups else {}
        for group in groups:
            result = results[group]
            is_void = result != PASSED and self._has_gone(group)
            self._history.add(group, NO_ANSWER if is_void else result)
            if result == NO_ANSWER and len(group) == 2 and not is_void:
                self.silent[group[0]] = None

    def fails(self, group: Group) -> Steps[bool]:
        return (yield from self.ask([group]))[0]

    def fails_or_must(self, group: Group) -> Steps[bool]:
        """Whether a group fails, by the tests so far or by another one: of a single node, with a
        partner."""
        if len(group) == 1:
            group = (*group, *self.pair(group).values())
        implied = self._history.implied(group) if len(group) > 1 else False
        return implied if implied is not None else (yield from self.fails(group))

    def refute_pairs(self) -> Steps[bool]:
        """Whether two nodes that passed otherwise fail as a pair, where no pair has passed yet: the
        program may not run on two nodes, and then no pair accuses a node."""
        if self._history.has_passed_pair:
            return False
        shut = {*self.named, *self.down, *self.silent}
        pair = [node for node in self._history.proven if node not in shut][:2]
        return len(pair) > 1 and (yield from self.fails((*pair,)))

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

    def _has_gone(self, group: Group) -> bool:
        """Whether a node of the group is gone."""
        return self._leave_out(group) != group
