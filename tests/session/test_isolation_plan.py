"""Which groups of nodes are tested, and what their results say about nodes, links and switches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from random import Random

import pytest

from benchmarks.isolation import plant_faults, run_trial
from pytest_clustersmoke.criteria.peer_judge import judge_peers
from pytest_clustersmoke.session.group_rounds import Steps
from pytest_clustersmoke.session.group_tests import FAILED, NO_ANSWER, PASSED, SLOW, Group
from pytest_clustersmoke.session.isolation_answer import (
    JOB,
    LINK,
    NODES,
    NOT_AGAIN,
    PAIR,
    SWITCH,
    TOGETHER,
    UNKNOWN,
    UNSTABLE,
    IsolationAnswer,
    explain_answer,
)
from pytest_clustersmoke.session.isolation_plan import IsolationPlan, _Narrowed

Judge = Callable[[Group], str]


def name_nodes(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


def fails_with(*bad: str, result: str = FAILED) -> Judge:
    """A group fails if it has any of these nodes."""
    return lambda group: result if {*bad} & {*group} else PASSED


def fails_together(*bad: str) -> Judge:
    """A group fails if it has all of these nodes."""
    return lambda group: FAILED if {*bad} <= {*group} else PASSED


def follow(plan: IsolationPlan, judge: Judge) -> IsolationAnswer:
    """Test groups until the plan has its answer; each round must be of disjoint groups."""
    while plan.answer is None:
        nodes = [node for group in plan.round for node in group]
        assert len(nodes) == len({*nodes}), plan.round
        assert min(map(len, plan.round)) > 1, plan.round
        plan.take({group: judge(group) for group in plan.round})
    return plan.answer


def find(count: int, judge: Judge, good: Iterable[str] = ()) -> IsolationAnswer:
    return follow(IsolationPlan(name_nodes(count), good), judge)


def leaves(count: int, size: int) -> Mapping[str, list[str]]:
    names = name_nodes(count)
    return {f"leaf{at // size}": names[at : at + size] for at in range(0, count, size)}


@pytest.mark.parametrize("count", range(3, 11))
def test_each_bad_node_of_a_small_job_is_named_alone(count: int) -> None:
    for node in name_nodes(count):
        answer = find(count, fails_with(node))
        assert (answer.kind, answer.nodes) == (NODES, (node,)), answer


@pytest.mark.parametrize("count", range(4, 11))
def test_two_bad_nodes_of_a_small_job_are_named(count: int) -> None:
    for bad in combinations(name_nodes(count), 2):
        answer = find(count, fails_with(*bad))
        assert (answer.kind, {*answer.nodes}) == (NODES, {*bad}), answer


@pytest.mark.parametrize("count", range(3, 11))
def test_two_nodes_that_fail_only_together_are_a_link(count: int) -> None:
    for ends in combinations(name_nodes(count), 2):
        answer = find(count, fails_together(*ends))
        assert (answer.kind, {*answer.nodes}) == (LINK, {*ends}), answer


@pytest.mark.parametrize("count", range(3, 9))
def test_three_nodes_that_fail_only_together_are_said_to_and_none_is_named(count: int) -> None:
    for three in combinations(name_nodes(count), 3):
        answer = find(count, fails_together(*three))
        assert answer.kind == TOGETHER and not answer.nodes, answer
        assert {*answer.suspects} == {*three}


def test_job_that_passes_again_did_not_fail_again_after_one_test() -> None:
    """It is never worded as healthy."""
    plan = IsolationPlan(name_nodes(64))
    answer = follow(plan, lambda group: PASSED)
    assert answer.kind == NOT_AGAIN and len(plan.history.tests) == 1
    finding = explain_answer(answer, 1, "isolation.json")
    assert "did not fail again" in finding.cause
    assert "does not make its nodes healthy" in finding.fix


def test_saying_what_is_known_changes_nothing_of_the_search() -> None:
    """It is written after each test. Before two nodes have passed, it names none, and the search
    goes on with those that it has found."""
    plan = IsolationPlan(name_nodes(8))
    plan._named["n3"] = None
    assert plan.give_up("interrupted").nodes == ()
    assert [*plan._named] == ["n3"]


def test_two_nodes_without_a_third_are_the_answer_as_a_pair() -> None:
    answer = find(2, fails_with("n0"))
    assert answer.kind == PAIR and not answer.nodes and answer.suspects == ("n0", "n1")


@pytest.mark.parametrize(
    ("count", "bad", "kind"), [(2, ["n0"], PAIR), (4, ["n0", "n2"], NODES), (4, ["n1"], NODES)]
)
def test_nodes_of_the_job_are_suspects_whatever_they_passed(
    count: int, bad: Sequence[str], kind: str
) -> None:
    """A bad one is never known to be good, nor is the job itself at fault."""
    answer = find(count, fails_with(*bad), good=name_nodes(count))
    assert (answer.kind, [*answer.nodes]) == (kind, bad if kind == NODES else [])


def test_bad_node_of_two_is_named_by_nodes_that_passed_other_phases() -> None:
    answer = find(2, fails_with("n0"), good=["g0", "g1"])
    assert (answer.kind, answer.nodes) == (NODES, ("n0",))


@pytest.mark.parametrize("leaf", [0, 4])
@pytest.mark.parametrize("count", [16, 64])
def test_program_that_does_not_run_on_two_nodes_names_no_healthy_one(count: int, leaf: int) -> None:
    """Such as a model that is split over four nodes."""
    names, switches = name_nodes(count), leaves(count, leaf) if leaf else {}
    plan = IsolationPlan(names, switches=switches)
    answer = follow(plan, lambda group: FAILED if len(group) < 4 or "n5" in group else PASSED)
    assert (answer.kind, answer.nodes) == (UNKNOWN, ()), answer
    assert "no two nodes passed" in " ".join(answer.support)


@pytest.mark.parametrize("count", [2, 4, 16, 64])
def test_program_that_fails_on_known_good_nodes_is_the_job_itself(count: int) -> None:
    answer = find(count, lambda group: FAILED, good=["g0", "g1", "g2"])
    assert answer.kind == JOB and not answer.nodes


def test_without_known_good_nodes_a_job_that_always_fails_is_not_isolated() -> None:
    plan = IsolationPlan(name_nodes(64))
    answer = follow(plan, lambda group: FAILED)
    assert answer.kind == UNKNOWN and not answer.nodes
    assert len(plan.history.tests) <= 21, "it must not test every pair"


def test_slow_groups_count_as_those_that_fail() -> None:
    answer = find(12, fails_with("n7", result=SLOW))
    assert (answer.kind, answer.nodes) == (NODES, ("n7",))
    assert "slow with" in answer.support[0]


@pytest.mark.parametrize(
    ("count", "gpus", "kind"), [(4, 1, NOT_AGAIN), (8, 1, UNSTABLE), (8, 2, NODES), (16, 1, NODES)]
)
def test_slightly_slow_node_is_named_if_enough_ranks_show_their_spread(
    count: int, gpus: int, kind: str
) -> None:
    """20 % slow; up to four ranks are judged by a fixed factor."""
    draw, plan = Random(count), IsolationPlan(name_nodes(count))
    while plan.answer is None:
        ranks = [(group, node) for group in plan.round for node in group for _ in range(gpus)]
        times = [draw.gauss(1.2 if node == "n3" else 1, 0.005) for _, node in ranks]
        slow = {ranks[number][0] for number in judge_peers(dict(enumerate(times))).slow}
        plan.take({group: SLOW if group in slow else PASSED for group in plan.round})
    assert (plan.answer.kind, plan.answer.nodes) == (kind, ("n3",) if kind == NODES else ())


def test_node_that_gives_no_answer_is_reported_and_not_named() -> None:
    """Another user's job may have it."""
    answer = find(12, fails_with("n7", result=NO_ANSWER))
    assert answer.kind == UNKNOWN and not answer.nodes and answer.suspects == ("n7",)
    assert "n7 gave no answer" in answer.support


def test_node_that_gives_no_answer_does_not_hide_a_bad_one() -> None:
    def judge(group: Group) -> str:
        return NO_ANSWER if "n7" in group else FAILED if "n2" in group else PASSED

    answer = find(12, judge)
    assert (answer.kind, answer.nodes) == (NODES, ("n2",))
    assert "n7 gave no answer" in answer.support


def test_nodes_that_slurm_has_down_are_named_by_its_words() -> None:
    plan = IsolationPlan(name_nodes(8), down={"n3": "Slurm says: n3 is down"})
    answer = follow(plan, lambda group: PASSED)
    assert (answer.kind, answer.nodes) == (NODES, ("n3",))
    assert "n3: Slurm says: n3 is down" in answer.support
    assert all("n3" not in test.nodes for test in plan.history.tests)


def test_node_that_goes_down_in_a_test_is_left_out_of_the_next() -> None:
    plan = IsolationPlan(name_nodes(8))
    plan.take({plan.round[0]: FAILED}, {"n5": "Slurm says: n5 is down"})
    answer = follow(plan, lambda group: PASSED)
    assert (answer.kind, answer.nodes) == (NODES, ("n5",))


def test_node_that_goes_down_late_in_a_small_job_does_not_keep_the_search_from_ending() -> None:
    """No test can be made without it; the answer has what is known by then."""
    plan, seen = IsolationPlan(name_nodes(3)), 0
    while plan.answer is None:
        (group,) = plan.round
        seen += {*group} == {"n0", "n2"}
        result = PASSED if {*group} == {"n0", "n2"} and seen == 1 else FAILED
        plan.take({group: result}, {"n2": "Slurm says: n2 is down"} if seen == 2 else {})
    assert (plan.answer.kind, {*plan.answer.nodes}) == (NODES, {"n1", "n2"})
    assert "n2: Slurm says: n2 is down" in plan.answer.support


def test_turn_of_the_search_that_makes_no_test_is_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = IsolationPlan(name_nodes(4))
    turns: list[tuple[Group, bool]] = []

    def narrow(suspect: Group, is_direct: bool) -> Steps[_Narrowed]:
        turns.append((suspect, is_direct))
        assert len(turns) < 5, "the search goes on although it makes no test"
        yield from ()
        return _Narrowed(singles={"n1": "n0"})

    def confirm(*_: object) -> Steps[tuple[Group, Group]]:
        yield from ()
        return (), plan.nodes

    monkeypatch.setattr(plan, "_narrow", narrow)
    monkeypatch.setattr(plan, "_confirm", confirm)
    plan.history.add(("n0", "n2"), PASSED)
    plan.take({plan.round[0]: FAILED})
    assert plan.answer is not None and plan.answer.kind == UNKNOWN
    assert "no other group of the nodes that are left can be tested" in plan.answer.support


@pytest.mark.parametrize("result", [FAILED, NO_ANSWER])
@pytest.mark.parametrize("is_bad", [True, False], ids=["bad", "healthy"])
def test_suspect_whose_partner_dies_is_paired_again(is_bad: bool, result: str) -> None:
    """It is named for what it shows with the next partner alone."""
    plan = IsolationPlan(name_nodes(12))
    for _ in range(3):
        plan.take({group: fails_with("n5")(group) for group in plan.round})
    pair = next(group for group in plan.round if group[0] == "n5")
    results = {group: result if group == pair else PASSED for group in plan.round}
    plan.take(results, {pair[1]: "Slurm says: down"})
    assert [group[0] for group in plan.round] == ["n5"] and pair[1] not in plan.round[0]
    answer = follow(plan, fails_with("n5") if is_bad else lambda group: PASSED)
    assert {*answer.nodes} == {pair[1], *(["n5"] if is_bad else [])}


@pytest.mark.parametrize("seed", range(8))
def test_busy_and_dying_nodes_get_nothing_healthy_named(seed: int) -> None:
    """Small jobs, in which other users' jobs take nodes for a while and others go down."""
    for trial in range(150):
        draw = Random(1_000 * seed + trial)
        nodes = name_nodes(draw.randint(2, 16))
        bad = {*draw.sample(nodes, draw.randint(0, 2))}
        busy = {*draw.sample(nodes, draw.randint(0, max(1, len(nodes) // 3)))}
        chance, deaths = draw.choice([0, 0.5, 0.9, 1]), draw.choice([0, 0.05, 0.2])
        half = len(nodes) // 2
        switches = draw.choice([{}, {"s0": nodes[:half], "s1": nodes[half:]}])
        plan = IsolationPlan(nodes, draw.choice([(), ("g0", "g1", "g2")]), switches)
        down: dict[str, str] = {}  # also of healthy nodes
        while plan.answer is None:
            results: dict[Group, str] = {}
            for group in plan.round:
                if draw.random() < deaths and len(down) < 3:
                    down[draw.choice(group)] = "Slurm says: down"
                if not down.keys().isdisjoint(group):
                    results[group] = draw.choice([FAILED, NO_ANSWER])
                elif not busy.isdisjoint(group) and draw.random() < chance:
                    results[group] = NO_ANSWER
                else:
                    results[group] = PASSED if bad.isdisjoint(group) else FAILED
            plan.take(results, down)
        assert {*plan.answer.nodes} <= bad | {*down}, (seed, trial, plan.answer)
        below = {*switches.get(plan.answer.switch, ())}
        assert below <= bad | {*down}, (seed, trial, plan.answer)


def test_fault_that_comes_and_goes_names_nothing() -> None:
    plan = IsolationPlan(name_nodes(8))
    plan.take({plan.round[0]: FAILED})
    answer = follow(plan, lambda group: PASSED)
    assert answer.kind == UNSTABLE and not answer.nodes


@pytest.mark.parametrize("inside", [True, False], ids=["all of its traffic", "its uplink"])
def test_bad_leaf_switch_is_named_with_a_topology(inside: bool) -> None:
    switches = leaves(48, 8)

    def judge(group: Group) -> str:
        below = {*switches["leaf2"]} & {*group}
        return FAILED if below and (inside or len(below) < len(group)) else PASSED

    answer = follow(IsolationPlan(name_nodes(48), switches=switches), judge)
    assert (answer.kind, answer.switch, answer.nodes) == (SWITCH, "leaf2", ())


def test_without_a_topology_a_switch_is_never_named() -> None:
    """Only the set of nodes is."""
    bad = leaves(48, 4)["leaf2"]
    answer = find(48, fails_with(*bad))
    assert answer.switch == "" and {*answer.nodes} == {*bad}


def test_single_bad_node_below_a_switch_does_not_blame_the_switch() -> None:
    for node in name_nodes(24):
        plan = IsolationPlan(name_nodes(24), switches=leaves(24, 6))
        answer = follow(plan, fails_with(node))
        assert (answer.kind, answer.nodes) == (NODES, (node,)), answer


def test_budget_ends_the_tests_and_nothing_unproven_is_named() -> None:
    plan = IsolationPlan(name_nodes(232), tests=8)
    answer = follow(plan, fails_with("n100"))
    assert len(plan.history.tests) <= 8
    assert answer.kind == UNKNOWN and "n100" in answer.suspects
    assert "the budget of 8 tests is spent" in answer.support


@pytest.mark.parametrize("switches", [{}, leaves(232, 16)], ids=["no topology", "topology"])
def test_bad_node_of_232_is_found_in_19_tests_and_6_rounds(
    switches: Mapping[str, list[str]],
) -> None:
    """Whichever it is, confirmation included."""
    for node in name_nodes(232):
        plan = IsolationPlan(name_nodes(232), switches=switches)
        answer = follow(plan, fails_with(node))
        assert answer.nodes == (node,)
        assert len(plan.history.tests) <= 19 and plan.rounds <= 6


def test_planted_faults_are_isolated_and_nothing_healthy_is_named() -> None:
    """A short form of the simulation, whose figures are published."""
    trials = {planting: run_trial(planting, 64) for planting in plant_faults(216)}
    certain = [planting for planting in trials if planting.chance == 1 and not planting.away]
    wrong = [planting for planting in certain if not trials[planting].is_right]
    assert wrong == []
    assert [p for p, trial in trials.items() if trial.is_false] == []
