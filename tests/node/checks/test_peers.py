"""What nodes measured of each other: reachability and clocks."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_clustersmoke.node import checks
from pytest_clustersmoke.node.checks import FAILURE, WARNING, Check
from tests.support.node_facts import node


def meeting(*words: Any) -> list[Check]:
    return checks.peers.checks([node(rank) for rank in range(len(words))], words)


def clock(offset: Any, error: Any = 0.001) -> dict[str, Any]:
    return {"ok": True, "clock": {"offset_s": offset, "error_s": error}}


NODE_ZERO = {"ok": True}


def test_a_node_that_could_not_reach_node_0() -> None:
    """From where, to where, and how it failed."""
    words = {"ok": False, "address": "10.0.0.1", "port": 4711, "error": "no route to host"}
    (check,) = meeting(NODE_ZERO, clock(0.0), words)
    assert (check.id, check.nodes, check.severity) == ("master-unreachable", (2,), FAILURE)
    assert check.what == "cannot reach node 0 (n0) at 10.0.0.1:4711: no route to host"


@pytest.mark.parametrize(
    ("offsets", "nodes"),
    [
        ([0.2, -0.3, 0.9], []),
        ([0.0, 5.0, 0.0], [(2,)]),
        ([-5.0, -5.0, -5.1], [(0,)]),
        ([7.0], [(0, 1)]),
        ([0.9], []),
    ],
)
def test_clocks_that_differ(offsets: list[float], nodes: list[tuple[int, ...]]) -> None:
    """A warning beyond a second, for those that differ from most; of two, for both."""
    found = meeting(NODE_ZERO, *(clock(one) for one in offsets))
    assert [one.nodes for one in found] == nodes
    assert all((one.id, one.severity) == ("clock-differs", WARNING) for one in found)


def test_a_clock_is_not_judged_beyond_what_was_measured() -> None:
    """A difference that the time of the measurement explains is none; the bound is told."""
    assert meeting(NODE_ZERO, clock(1.5, 0.6)) == []
    (check,) = meeting(NODE_ZERO, clock(2.5, 0.25))
    assert "2.50 s, measured to within 0.250 s" in check.what


@pytest.mark.parametrize("value", [None, "x", "nan", "inf", [], True, 10**400])
def test_a_clock_of_another_shape_is_unknown(value: Any) -> None:
    """Hostile words are no measurement."""
    assert meeting(NODE_ZERO, clock(value)) == meeting(NODE_ZERO, clock(9.0, value)) == []
    assert meeting(None, clock(9.0)) == meeting({"clock": value}, {"ok": value}) == []
