"""Where each node stands after a run: what the newest run saw of it, and what the ledger says."""

from __future__ import annotations

from typing import Any

from pytest_clustersmoke.evidence.history.node_history import DAY_S
from pytest_clustersmoke.evidence.node_observation import PastObservation
from pytest_clustersmoke.report.node_standing import NodeStanding, hide_names, judge_nodes
from pytest_clustersmoke.report.redaction import Redactor

NOW = 100 * DAY_S


def see(state: Any, days_ago: float, source: str = "ddp", **changes: Any) -> PastObservation:
    """An observation; all of one time are of one run."""
    made = {"run_id": f"run {days_ago}", "seen": NOW - days_ago * DAY_S, **changes}
    return PastObservation(node="", source=source, state=state, **made)


def test_newest_run_decides_by_its_worst_phase() -> None:
    """Earlier runs only count how often it was bad, a run once."""
    bad = {"reason": "slow-rank: x"}
    standings = judge_nodes(
        {
            "better": [see("good", 1), see("bad", 2, **bad), see("bad", 2, "zero", **bad)],
            "worse": [see("good", 1), see("bad", 1, "zero", **bad), see("bad", 3, **bad)],
            "quiet": [see("good", 1), see("unknown", 1, "zero")],
        },
        NOW,
    )
    assert {each.node: (each.state, each.named_runs) for each in standings} == {
        "worse": ("bad", 2),
        "better": ("good", 1),
        "quiet": ("unknown", 0),
    }
    assert [each.node for each in standings] == ["worse", "quiet", "better"]


def test_definite_evidence_leaves_a_node_out_and_puts_it_first() -> None:
    """As `clustersmoke exclude` judges, also after a night in which nothing was found."""
    died = see("bad", 2, reason="node-down: x", definite=True)
    slow = see("bad", 1, reason="slow-rank: x")
    standings = judge_nodes({"slow": [slow], "died": [see("good", 1), died]}, NOW)
    assert standings == [
        NodeStanding("died", "good", 1, True),
        NodeStanding("slow", "bad", 1, False),
    ]


def test_node_that_no_run_had_lately_has_no_standing() -> None:
    """What it was two weeks ago says nothing about today."""
    assert judge_nodes({"away": [see("bad", 15, reason="node-down: x", definite=True)]}, NOW) == []


def test_names_are_hidden_as_in_reports() -> None:
    """Two nodes that then have one name are one series: the worse one."""
    worst, other = NodeStanding("anna.a", "bad", 1, True), NodeStanding("b", "good", 0, False)
    same = NodeStanding("anna.a", "good", 0, False)
    shown = hide_names([worst, other, same], Redactor("anna"))
    assert [(each.node, each.state) for each in shown] == [("<user>.a", "bad"), ("b", "good")]
    assert hide_names([worst, other], None) == [worst, other]
