"""Which groups of nodes run a failed phase's program next, until the bad node, link or switch is
found.

A group fails if what is bad is in it. So the job runs once more, is split in four, and so are the
groups that fail, those of a round side by side. Of four parts three are tested: if they pass, the
fourth must have it. A suspect is then paired with a node that passed. It is named if it fails with
two different ones, and the search is over if the job's other nodes pass together, without it.

Where a group fails whose parts all pass, no single node is to blame: a search by halves finds the
smallest set that fails together. What failed passes again if the fault comes and goes, and then no
link, switch or set is named.

All of it is a generator without input or output: it yields rounds of disjoint groups, takes their
results, and returns the answer. So it can be simulated, and replayed from recorded results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..text import plural
from .group_rounds import BudgetSpent, GroupRounds, Steps
from .group_tests import PARTS, Group, GroupTests, leave_fourth, rotate_pairs, split_group
from .isolation_answer import (
    JOB,
    NODES,
    NOT_AGAIN,
    PAIR,
    SWITCH,
    UNKNOWN,
    UNSTABLE,
    IsolationAnswer,
    name_set,
    name_switch,
)

SAMPLES = 4  # nodes of a switch that are paired with others, twice
REPEATS = 3  # a suspect that passes with another partner is tested so often again
SET_REPEATS = 4  # a set that fails only together must fail so often again
CHECKS = 2  # nodes of a suspect's switch that are tested beside it
MANY_FAILED = 13  # so many tests of which none passes: the job itself, or what all nodes share
FEW = 8  # nodes that are paired with each other if no group passed
Bad = Mapping[Group, bool]  # whether a group did not pass
CHANGED = "what failed has passed since, with the same nodes"


@dataclass
class _Narrowed:
    """What is left of a failing group: nodes that failed, each with its partner; failing groups
    whose parts all passed; nodes of parts that were not tested; the switch that has it all. Of each
    part that must fail: `source`, the group that showed it by failing itself."""

    singles: dict[str, str] = field(default_factory=dict)
    tangled: list[Group] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)
    switch: str = ""
    source: dict[Group, Group] = field(default_factory=dict)


class IsolationPlan:
    """`round` are the groups to test next, `answer` is None until there are none. `good`: nodes
    that passed other phases of this session; `switches`: name -> nodes; `down`: node -> why the
    scheduler lets no job run there; `tests`: how many there may be."""

    def __init__(
        self,
        nodes: Iterable[str],
        good: Iterable[str] = (),
        switches: Mapping[str, Collection[str]] | None = None,
        tests: int = 64,
        down: Mapping[str, str] | None = None,
    ) -> None:
        gone, own = dict(down or {}), dict.fromkeys(nodes)  # suspects, whatever they passed before
        self._good = [node for node in good if node not in gone and node not in own]
        usable = [node for node in own if node not in gone]
        self.history = GroupTests(usable, switches or {}, self._good)
        self._rounds = GroupRounds(self.history, tests, gone)
        self.nodes = self.history.order(usable)
        self.rounds = 0
        self._named = self._rounds.named
        self._rejected: set[str] = set()  # switches
        self._has_changed = False  # what failed has passed since
        self._steps = self._isolate()
        self.round: tuple[Group, ...] = ()
        self.answer: IsolationAnswer | None = None
        self._advance(None)

    def take(self, results: Mapping[Group, str], down: Mapping[str, str] | None = None) -> None:
        """Take the results of the round, and what the scheduler says of nodes that are gone."""
        self._rounds.down.update(down or {})
        self._advance(results)

    def give_up(self, why: str) -> IsolationAnswer:
        """The answer if no more tests are made."""
        named = self._named if self.history.has_passed_pair else {}  # else two may never pass
        if named or self._rounds.down:
            return self._name_nodes(f"whether the others are good is not known: {why}", known=named)
        kind = UNSTABLE if self._has_changed else UNKNOWN
        suspects = (*self._rounds.silent,) or self.history.find_least(self.nodes)
        return IsolationAnswer(kind, support=(why, *self._list_silent()), suspects=suspects)

    def _list_silent(self) -> list[str]:
        return [f"{node} gave no answer" for node in self._rounds.silent]

    def _advance(self, results: Mapping[Group, str] | None) -> None:
        try:
            self.round = next(self._steps) if results is None else self._steps.send(results)
            self.rounds += 1
        except StopIteration as end:
            self.round, self.answer = (), end.value

    # The search

    def _isolate(self) -> Steps[IsolationAnswer]:
        try:
            if len(self.nodes) < 2:
                return self.give_up("fewer than two nodes of the job can run a test")
            if not (yield from self._rounds.fails(self.nodes)):
                why = f"the same job passed on the same {plural(len(self.nodes), 'node')}"
                passed = IsolationAnswer(NOT_AGAIN, support=(why,))
                return self._name_nodes() if self._rounds.down else passed
            answer = yield from self._search()
            if answer.kind in (NODES, SWITCH) and (yield from self._rounds.refute_pairs()):
                return self.give_up("no two nodes passed, not even two that passed in a group")
            return answer
        except BudgetSpent:
            return self.give_up(f"the budget of {plural(self._rounds.most_tests, 'test')} is spent")

    def _search(self) -> Steps[IsolationAnswer]:
        suspect, is_direct, before = self.nodes, True, -1
        while before < len(self.history.tests):  # a turn without a test is the last
            before = len(self.history.tests)
            found = yield from self._narrow(suspect, is_direct)
            if self._all_fail() or not (found.singles or found.switch or found.tangled):
                return (yield from self._judge_job())
            if found.switch:
                return (yield from self._confirm_switch(found.switch))
            if not found.singles:
                untangled = yield from self._untangle(found.tangled)
                if isinstance(untangled, IsolationAnswer):
                    return untangled
                found.singles = untangled
            checks = self._plan_checks(found.singles)
            link, rest = yield from self._confirm(found.singles, checks)
            if switch := self._take_checks(checks):
                return (yield from self._confirm_switch(switch))
            if not self.history.has_passed:
                return (yield from self._judge_job())
            if link and not self._named:
                return (yield from self._confirm_set(link))
            if not rest:
                return self._name_nodes() if self._named else self.give_up(CHANGED)
            aside = tuple(node for node in found.aside if node in rest)
            suspect, is_direct = (aside, False) if len(aside) > 1 else (rest, True)
        return self.give_up("no other group of the nodes that are left can be tested")

    def _narrow(self, suspect: Group, is_direct: bool) -> Steps[_Narrowed]:
        """Split a failing group until single nodes are left of it. `is_direct`: it failed itself,
        so that all of its parts are tested."""
        found, failing = _Narrowed(source={suspect: suspect}), [suspect]
        while failing and not self._all_fail():
            switch = self.history.find_uncrossed(failing, self._rejected)
            if switch and len(failing) > 1 and (yield from self._sample(switch, failing)):
                found.switch = switch
                break
            wide, pairs = self._sort(failing, found)
            parts = {group: split_group(group) for group in wide}
            has_all = is_direct and suspect in parts
            tested = [part for own in parts.values() for part in leave_fourth(own, has_all)]
            groups = [*tested, *pairs.items()]
            bad = yield from self._rounds.ask(groups)
            is_bad = dict(zip(groups, bad, strict=True))
            self._keep_singles(found, pairs, is_bad, failing)
            failing = self._choose_next(found, parts, is_bad)
        return found

    def _sort(
        self, failing: Sequence[Group], found: _Narrowed
    ) -> tuple[list[Group], dict[str, str]]:
        """The groups to be split, and the nodes of small ones with their partners. A small one for
        which no node is known to be good is tangled."""
        suspects = {node for group in failing for node in group}
        wide: list[Group] = []
        pairs: dict[str, str] = {}
        for group in failing:
            taken = suspects | {*pairs.values()}
            own = self._rounds.pair(group, taken) if len(group) <= PARTS else {}
            if own and len(own) == len(group):
                pairs |= own
            elif len(group) > 3:
                wide.append(group)
            else:
                found.tangled.append(group)
        return wide, pairs

    def _keep_singles(
        self, found: _Narrowed, pairs: Mapping[str, str], is_bad: Bad, failing: Sequence[Group]
    ) -> None:
        for group in failing:
            own = {node: pairs[node] for node in group if node in pairs}
            bad = {node: partner for node, partner in own.items() if is_bad[node, partner]}
            found.singles |= bad
            if own and not bad:
                found.tangled.append(found.source[group])

    def _choose_next(
        self, found: _Narrowed, parts: Mapping[Group, Sequence[Group]], is_bad: Bad
    ) -> list[Group]:
        """The parts that failed, or must, since the others of their group passed."""
        chosen: list[Group] = []
        for group, own in parts.items():
            untested = [part for part in own if part not in is_bad]
            bad = [part for part in own if is_bad.get(part)]
            found.source |= {part: part for part in bad}
            if bad:
                found.aside += [node for part in untested for node in part]
            elif untested:
                found.source[untested[0]] = found.source[group]
            else:
                found.tangled.append(found.source[group])
            chosen += bad or untested
        return chosen

    # Single nodes

    def _plan_checks(self, singles: Mapping[str, str]) -> dict[str, dict[str, str]]:
        """Other nodes below the switches of suspects, with partners elsewhere: if they fail, too,
        the switch is to blame."""
        checks: dict[str, dict[str, str]] = {}
        for node in singles:
            switch = self.history.find_uncrossed([(node,)], self._rejected)
            if switch and switch not in checks:
                below = self.history.below(switch)
                near = [other for other in self.nodes if other in below and other not in singles]
                taken = {n for pairs in checks.values() for pair in pairs.items() for n in pair}
                shut = below.union(singles, singles.values(), taken)
                checks[switch] = self._rounds.pair(
                    [n for n in near if n not in taken][:CHECKS], shut
                )
        return checks

    def _take_checks(self, checks: Mapping[str, Mapping[str, str]]) -> str:
        """The switch whose nodes all failed in these tests; empty if there is none."""
        for switch, pairs in checks.items():
            if pairs and all(map(self.history.last, pairs.items())):
                return switch
            self._rejected.add(switch)
        return ""

    def _confirm(
        self, singles: Mapping[str, str], checks: Mapping[str, Mapping[str, str]]
    ) -> Steps[tuple[Group, Group]]:
        """Pair each suspect with another partner, and run the other nodes together, `checks`
        beside them. Returns a pair that failed although its first node passes with others, and the
        other nodes if they fail, so that something else is bad."""
        proven = [n for n in singles if len({*self.history.partners_of(n, failed=True)}) > 1]
        beside = [pair for pairs in checks.values() for pair in pairs.items()]
        busy = {node for pair in beside for node in pair}
        waiting = [node for node in singles if node not in proven]
        others = self._rounds.pair(waiting, busy, is_new=True)
        left = busy.union(singles, self._named, others.values())
        rest = tuple(node for node in self.nodes if node not in left)
        groups = [*others.items(), *beside, rest if len(rest) > 1 else ()]
        bad = yield from self._rounds.ask(groups)
        if self._take_checks(checks):
            return (), ()
        self._named.update(dict.fromkeys(proven))
        self._name(others, bad[: len(others)])
        link = yield from self._repeat(
            {n: own for n, own in singles.items() if n not in self._named}
        )
        rest_fails = bad[-1]
        if len(rest) < 2:
            rest = tuple(node for node in self.nodes if node not in {*singles, *self._named})
            rest_fails = yield from self._rounds.fails_or_must(rest)
        return link, (rest if rest_fails else ())

    def _name(self, nodes: Iterable[str], bad: Iterable[bool]) -> None:
        """Name nodes that failed with one partner, and now with another."""
        for node in (node for node, is_bad in zip(nodes, bad, strict=True) if is_bad):
            self._named[node] = None
            self._has_changed |= self.history.has_passed_paired(node)

    def _repeat(self, doubtful: Mapping[str, str]) -> Steps[Group]:
        """Pair suspects with others, a few times, that did not fail with their second partner: one
        that does comes and goes. Returns the pair that failed first if it fails again."""
        for _ in range(REPEATS):
            pairs = self._rounds.pair([n for n in doubtful if n not in self._named], is_new=True)
            self._name(pairs, (yield from self._rounds.ask([*pairs.items()])))
        for pair in doubtful.items():
            if pair[0] not in {*self._named, *self._rounds.silent}:
                if (yield from self._rounds.fails(pair)):
                    return pair
                self._has_changed = True
        return ()

    # What fails only together

    def _untangle(self, tangled: Sequence[Group]) -> Steps[dict[str, str] | IsolationAnswer]:
        """Find out why a group failed whose parts all passed. Returns the answer, or single nodes
        with the partners that they failed with."""
        group = min(tangled, key=len)
        if not self._rounds.pair(group[:1], ()):
            return (yield from self._find_good(group))
        if not (yield from self._rounds.fails(group)):
            if self._rounds.silent:
                return self.give_up("the other nodes passed together")
            return (yield from self._try_again(group))
        return (yield from self._settle(group))

    def _settle(self, group: Group) -> Steps[dict[str, str] | IsolationAnswer]:
        """Find the smallest set of a failing group that fails, and whether its nodes fail alone."""
        smallest = yield from self._minimize(group)
        singles: dict[str, str] = {}
        for node in smallest:
            for pair in self._rounds.pair([node], smallest).items():
                if (yield from self._rounds.fails(pair)):
                    singles |= dict([pair])
        return singles or (yield from self._confirm_set(smallest))

    def _find_good(self, group: Group) -> Steps[dict[str, str] | IsolationAnswer]:
        """Look for a pair that passes where no group did, then pair the others with it in turn."""
        if len(self.nodes) == 2:
            why = "no other node is known to be good that they could be paired with"
            return IsolationAnswer(PAIR, support=(why,), suspects=group)
        singles: dict[str, str] = {}
        for pairs in rotate_pairs(self.nodes[:FEW]):
            yield from self._rounds.ask(
                [pair for pair in pairs if self.history.implied(pair) is None]
            )
            if self.history.has_passed:
                break
        for node in self.nodes[:FEW]:
            for pair in self._rounds.pair([node], ()).items():
                if node not in self.history.passed and (
                    yield from self._rounds.fails_or_must(pair)
                ):
                    singles |= dict([pair])
        if singles or not self.history.has_passed:
            return singles or (yield from self._judge_job())
        return (yield from self._settle(self.history.find_least(self.nodes)))

    def _try_again(self, group: Group) -> Steps[dict[str, str] | IsolationAnswer]:
        """Split a group again that failed, and then passed."""
        self._has_changed = True
        for _ in range(REPEATS):
            found = yield from self._narrow(group, is_direct=True)
            if found.singles:
                return found.singles
        return self.give_up(CHANGED)

    def _minimize(self, group: Group) -> Steps[Group]:
        """The smallest set of the group's nodes that fails together, each found by halves: the
        last one of the shortest part that fails with those found before."""
        kept: Group = ()
        while group and not (kept and (yield from self._rounds.fails_or_must(kept))):
            passes, fails = 0, len(group)
            while fails - passes > 1:
                middle = (passes + fails) // 2
                if (yield from self._rounds.fails_or_must((*kept, *group[:middle]))):
                    fails = middle
                else:
                    passes = middle
            kept, group = (*kept, group[fails - 1]), group[: fails - 1]
        if len(kept) > 1:
            return kept
        yield from self._rounds.ask([*self._rounds.pair(kept, is_new=True).items()])
        others = self.history.partners_of(kept[0], failed=True)
        # If it passes with another, it fails with that one only.
        return (*kept, *others[-1:]) if self.history.has_passed_paired(kept[0]) else kept

    def _confirm_set(self, group: Group) -> Steps[IsolationAnswer]:
        """Name a set only if it fails each time, and passes without any one of its nodes."""
        is_steady = len(group) > 1 and not self._has_changed
        for turn in range(SET_REPEATS if is_steady else 0):
            is_steady = yield from self._rounds.fails(group)
            for number, node in enumerate(group):
                if is_steady and (len(group) == 2 or turn == 0):
                    without = (*group[:number], *group[number + 1 :])
                    pair = [*self._rounds.pair([node], group).items()]
                    tested = [without] if len(group) > 2 else pair
                    is_steady = bool(tested) and not (yield from self._rounds.fails(tested[0]))
            if not is_steady:
                break
        if is_steady and self.history.count_failed(group) >= SET_REPEATS:
            return name_set(group, SET_REPEATS + 1)
        self._has_changed = not self._rounds.silent
        return self.give_up(CHANGED)

    # Switches

    def _sample(self, switch: str, failing: Sequence[Group]) -> Steps[bool]:
        """Whether nodes below a switch fail with nodes elsewhere, of each failing group one."""
        below = self.history.below(switch)
        first = [node for group in failing for node in [n for n in group if n in below][:1]]
        more = [node for node in self.nodes if node in below and node not in first]
        chosen = (first + more if len(failing) > 1 else more + first)[:SAMPLES]
        suspects = {node for group in failing for node in group}
        pairs = self._rounds.pair(chosen, below | suspects)
        bad = yield from self._rounds.ask([*pairs.items()])
        if len(pairs) > 1 and all(bad):
            return True
        self._rejected.add(switch)
        return False

    def _confirm_switch(self, switch: str) -> Steps[IsolationAnswer]:
        below = self.history.below(switch)
        fresh = [node for node in self.nodes if node in below][::-1][:SAMPLES]
        pairs = self._rounds.pair(fresh, below)
        away = below | {*pairs.values()}
        rest = tuple(node for node in self.nodes if node not in away)
        *bad, rest_fails = yield from self._rounds.ask([*pairs.items(), rest])
        if sum(bad) < 2 or not all(bad):
            return self.give_up(f"only some nodes of switch {switch} fail with nodes elsewhere")
        failed = {node for test in self.history.failed for node in test.nodes[:1] if node in below}
        return name_switch(switch, sorted(failed), len(rest), rest_fails)

    # The job itself

    def _all_fail(self) -> bool:
        return not self.history.has_passed and len(self.history.failed) >= MANY_FAILED

    def _judge_job(self) -> Steps[IsolationAnswer]:
        """No group of the job's nodes passed: run it on nodes that passed other phases."""
        good = tuple(self._good[:PARTS])
        failed = f"all {plural(len(self.history.failed), 'group')} failed"
        if len(good) < 2:
            return self.give_up(f"{failed}, and no other nodes are known to be good")
        bad = self.history.implied(self._good)
        if bad is None:
            yield from self._rounds.fails(good)
            bad = self.history.implied(good)
        if bad:
            also = f"also nodes that passed other phases: {', '.join(good)}"
            return IsolationAnswer(JOB, support=(failed, also))
        if self._named:
            return self._name_nodes()
        return self.give_up(f"{failed}, and nodes that passed other phases passed")

    # Answers

    def _name_nodes(self, *more: str, known: Mapping[str, None] | None = None) -> IsolationAnswer:
        named = self._named if known is None else known
        lines = [self.history.describe(node) for node in named]
        lines += [f"{node}: {why}" for node, why in self._rounds.down.items()]
        if most := self.history.count_passed():
            lines.append(f"{plural(most, 'other node')} passed together")
        nodes = (*{**named, **self._rounds.down},)
        return IsolationAnswer(NODES, nodes, support=(*lines, *self._list_silent(), *more))
