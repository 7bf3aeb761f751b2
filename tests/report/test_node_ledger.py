"""Which nodes jobs should leave out."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pytest_clustersmoke.evidence.history.node_history import DAY_S
from pytest_clustersmoke.evidence.node_observation import SCREEN, PastObservation
from pytest_clustersmoke.report.node_ledger import (
    NodeLedger,
    NodeSummary,
    find_too_many,
    most_left_out,
)

NOW = 100 * DAY_S


def bad(node: str, reason: str, days_ago: float, source: str = "ddp", **changes: Any) -> Any:
    return see(node, "bad", days_ago, source, reason=reason, **changes)


def see(node: str, state: Any, days_ago: float, source: str = "ddp", **changes: Any) -> Any:
    """An observation; all of one time are of one run."""
    made = {"run_id": f"run {days_ago}", "seen": NOW - days_ago * DAY_S, **changes}
    return PastObservation(node=node, source=source, state=state, **made)


def ledger(*seen: PastObservation, days: float = 14.0) -> NodeLedger:
    by_node: dict[str, list[PastObservation]] = {}
    for made in sorted(seen, key=lambda made: -made.seen):
        by_node.setdefault(made.node, []).append(made)
    return NodeLedger(by_node, NOW, days)


def left_out(*seen: PastObservation, days: float = 14.0) -> list[str]:
    return [entry.node for entry in ledger(*seen, days=days).left_out()]


def test_one_definite_piece_of_evidence_is_enough() -> None:
    """A check needs two."""
    assert left_out(bad("n1", "gpu-ecc-errors: x", 1, definite=True)) == ["n1"]
    assert left_out(bad("n1", "tmp-full: x", 1), see("n2", "unknown", 1)) == []


def test_two_independent_pieces_are_enough() -> None:
    """Of two runs; or of two phases of one run, in which different things were found."""
    other = [see("n2", "unknown", day, source) for day in (1, 2) for source in ("ddp", "zero")]
    full = bad("n1", "tmp-full: x", 1)
    assert left_out(full, bad("n1", "tmp-full: x", 2), *other) == ["n1"]
    assert left_out(full, bad("n1", "slow-rank: x", 1, "zero"), *other) == ["n1"]
    assert left_out(full, bad("n1", "tmp-full: x", 1, "zero"), *other) == []


def test_ranks_that_are_slow_each_night_need_another_phase() -> None:
    """They may have more to do than the others; other ranks of the node do not."""
    other = [see("n2", "unknown", day, source) for day in (1, 2) for source in ("ddp", "zero")]
    slow = bad("n1", "slow-rank: rank 3 fell behind", 1)
    assert left_out(slow, bad("n1", slow.reason, 2), *other) == []
    assert left_out(slow, bad("n1", slow.reason, 2, "zero"), *other) == ["n1"]
    assert left_out(slow, bad("n1", "slow-rank: rank 5 fell behind", 2), *other) == ["n1"]


def test_evidence_ends_after_some_days() -> None:
    """The older of two pieces decides until when."""
    other = [see("n2", "unknown", day) for day in (1, 13)]
    pair = [bad("n1", "tmp-full: x", 1), bad("n1", "tmp-full: x", 13), *other]
    (entry,) = ledger(*pair).left_out()
    assert entry.until == NOW + DAY_S
    assert left_out(*pair, days=12) == []
    assert left_out(bad("n1", "node-down: x", 14.1, definite=True)) == []
    assert left_out(bad("n1", "node-down: x", 14.1, definite=True), days=15) == ["n1"]


def test_evidence_ends_at_a_later_clean_screen() -> None:
    """A screen before it, or a phase that passed, ends nothing."""
    seen = {"cleared": frozenset({"node-down"})}
    down = bad("n1", "node-down: x", 3, definite=True)
    assert left_out(down, see("n1", "good", 2)) == ["n1"]
    assert left_out(down, see("n1", "good", 4, SCREEN, **seen)) == ["n1"]
    assert left_out(down, see("n1", "good", 2, SCREEN, **seen)) == []
    long = bad("n1", "node-down: x", 3, definite=True, written=NOW - 1.5 * DAY_S)
    assert left_out(long, see("n1", "good", 2, SCREEN, **seen)) == ["n1"], (
        "it died after the screen"
    )
    assert left_out(long, see("n1", "good", 1, SCREEN, **seen)) == []
    again = bad("n1", "node-down: x", 1, definite=True)
    assert left_out(down, see("n1", "good", 2, SCREEN, **seen), again) == ["n1"]


@pytest.mark.parametrize("kind", ["device-wrong-answer", "gpu-errors-during-job"])
def test_clean_screen_ends_only_what_it_looked_for(kind: str) -> None:
    """A device that computed wrongly stays out until a screen has measured it."""
    wrong = bad("n1", f"{kind}: x", 3, definite=True)
    other = see("n1", "good", 2, SCREEN, cleared=frozenset({"tmp-full", "node-down"}))
    assert left_out(wrong, other) == ["n1"]
    assert left_out(wrong, other, see("n1", "good", 1, SCREEN, cleared=frozenset({kind}))) == []


def test_evidence_ends_at_a_changed_part() -> None:
    """Also if the node had died, and its parts are those of before. The driver is a part only for
    evidence about the driver."""
    old, new = {"GPU": "GPU-1", "driver": "1"}, {"GPU": "GPU-2", "driver": "1"}
    down = bad("n1", "gpu-ecc-errors: x", 3, definite=True)
    before, after = see("n1", "good", 5, parts=old), see("n1", "good", 1, parts=new)
    assert left_out(before, down, after) == []
    assert left_out(before, down, see("n1", "good", 1, parts=old)) == ["n1"]
    driver = see("n1", "good", 1, parts={**old, "driver": "2"})
    assert left_out(before, down, driver) == ["n1"]
    odd = [bad("n1", "driver-differs: x", day) for day in (3, 4)]
    others = [see("n2", "unknown", day) for day in (3, 4)]
    assert left_out(before, *odd, *others) == ["n1"]
    assert left_out(before, *odd, *others, driver) == []


def test_a_setting_that_all_nodes_share_accuses_none() -> None:
    """A check counts only if another node was found without it, there or in another run."""
    alone = [bad("n1", "shm-small: x", day) for day in (1, 2)]
    assert left_out(*alone) == []
    both = [*alone, *(bad("n2", "shm-small: x", day) for day in (1, 2))]
    assert left_out(*both) == []
    assert left_out(*alone, see("n3", "good", 5)) == ["n1"]


def test_a_failure_of_the_job_counts_only_if_it_follows_the_node() -> None:
    """Failed with it, passed without it, failed with it."""
    fails = [bad("n1", "rank-died: x", 1), bad("n1", "rank-died: x", 5)]
    elsewhere = see("n2", "good", 3)
    assert left_out(*fails, elsewhere) == ["n1"]
    assert left_out(*fails) == []  # the program may be broken
    assert left_out(*fails, see("n2", "good", 0.5)) == []  # and may have been repaired
    assert left_out(*fails, see("n2", "good", 3, "other")) == []
    assert left_out(fails[0], elsewhere) == []
    assert left_out(*fails, elsewhere, see("n1", "good", 3)) == []  # the run had the node, too
    assert left_out(*fails, elsewhere, see("n1", "good", 0.5)) == []  # it passes by now
    named = [bad("n3", "rank-died: x", day) for day in (2, 4)]
    assert left_out(*fails, elsewhere, *named) == []  # it names others as often


def test_a_screen_is_a_check() -> None:
    """Whatever its checks are called: no program of the user runs in it."""
    slow = [bad("n1", "gemm: x", day, SCREEN) for day in (1, 2)]
    clean = [see("n2", "good", day, SCREEN) for day in (1, 2)]
    assert left_out(*slow, *clean) == ["n1"]


def test_the_reason_is_the_definite_one() -> None:
    """Otherwise the newest."""
    seen = [bad("n1", "tmp-full: x", 1), bad("n1", "node-down: y", 2, definite=True)]
    (entry,) = ledger(*seen, see("n2", "unknown", 1)).left_out()
    assert entry.reason == "node-down: y"
    assert [piece.kind for piece in entry.evidence] == ["tmp-full", "node-down"]


def test_no_more_than_a_fifth_of_the_nodes_is_left_out() -> None:
    """At least one."""
    assert [most_left_out(nodes) for nodes in (0, 1, 4, 9, 10, 64)] == [1, 1, 1, 1, 2, 12]
    one = {"a": {"p"}, "b": {"p"}}
    assert find_too_many(["a"], one, one) is None
    assert str(find_too_many(["a", "b"], one, one)) == "2 nodes of 2 of partition p"


def test_no_partition_loses_more_than_its_share() -> None:
    """Although the cluster could spare all nodes of a small one; nor do those that were tested."""
    nodes = {f"n{number}": {"all", "gpu"} if number < 8 else {"all"} for number in range(64)}
    gpus = [f"n{number}" for number in range(8)]
    assert str(find_too_many(gpus, nodes, nodes)) == "8 nodes of 8 of partition gpu"
    assert find_too_many(["n7", "n8", "n9"], nodes, nodes) is None
    tested = [f"n{number}" for number in (7, 8, 9, 10)]
    named = str(find_too_many(tested[:3], nodes, tested))
    assert named == "3 nodes of 4 that the history knows"


def test_flaky_programs_name_no_node() -> None:
    """A program that fails at random in half of the nights, on a random node of 16 each time, in
    200 histories of 14 nights: at most 1 % of them name a node. (0 of 200 here; a program that
    always fails on the node of rank 0 of a fixed set names none either.)"""
    names = [f"n{number}" for number in range(16)]
    wrong = 0
    for seed in range(200):
        draw = random.Random(seed)
        nights = []
        for day in range(14):
            job = draw.sample(names, 4)
            failed = draw.random() < 0.5
            for rank, node in enumerate(job):
                if failed and rank == 0:
                    nights.append(bad(node, "rank-error: x", day + 0.1))
                else:
                    nights.append(see(node, "unknown" if failed else "good", day + 0.1))
        wrong += bool(left_out(*nights))
    assert wrong <= 2, wrong
    fixed = []
    for day in range(14):
        fixed.append(bad("n0", "rank-error: x", day + 0.1))
        fixed += [see(node, "unknown", day + 0.1) for node in names[1:4]]
    assert left_out(*fixed) == []


def test_a_lemon_is_found_among_random_placements() -> None:
    """A node on which every job dies, of 16, four a night: left out in most of 100 histories, and
    no other node ever is."""
    names = [f"n{number}" for number in range(16)]
    found, draw = 0, random.Random(1)
    for _ in range(100):
        nights = []
        for day in range(14):
            job = draw.sample(names, 4)
            for node in job:
                dies = node == "n7"
                state = "bad" if dies else "unknown" if "n7" in job else "good"
                nights.append(see(node, state, day + 0.1, reason="rank-died: x" if dies else ""))
        named = left_out(*nights)
        assert named in ([], ["n7"])
        found += named == ["n7"]
    assert found > 75, found


def test_a_node_that_is_slow_in_all_phases_is_one_line() -> None:
    """What was found in it, in how many of its phases."""
    phases = [f"phase{number}" for number in range(8)]
    slow = [bad("n1", "slow-rank: x", 1, source) for source in phases]
    summary = NodeSummary("n1", slow)
    assert list(summary.describe_failures()) == ["slow-rank in 8 of 8 phases"]
    assert (summary.failures, summary.last_good, summary.last_bad) == (1, None, slow[0])


def test_reboots_and_changed_parts_are_listed() -> None:
    """The newest change first; unknown boots and parts change nothing."""
    history = [
        see("n1", "good", 1, boot_id="b2", parts={"GPU": "A, C", "driver": "2"}),
        see("n1", "bad", 2),
        see("n1", "good", 3, boot_id="b1", parts={"GPU": "A, B", "driver": "2"}),
        see("n1", "good", 4, boot_id="b1", parts={"driver": "1"}),
    ]
    summary = NodeSummary("n1", history)
    assert summary.reboots == 1
    assert list(summary.describe_changes()) == [
        (NOW - DAY_S, "GPU B -> C"),
        (NOW - 3 * DAY_S, "driver 1 -> 2"),
    ]
    assert summary.count_states("ddp") == {"good": 3, "bad": 1, "unknown": 0}


@pytest.mark.parametrize("histories", [{}, {"n1": []}])
def test_no_history_leaves_no_node_out(histories: Any) -> None:
    assert NodeLedger(histories, NOW).left_out() == []
