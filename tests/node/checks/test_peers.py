"""Checks of what nodes measured of each other: reachability and clocks."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_clustersmoke.evidence.finding import Finding
from pytest_clustersmoke.node import checks
from pytest_clustersmoke.text import FAILURE, WARNING
from tests.support.node_facts import node


def failed(*reports: Any) -> list[Finding]:
    return checks.peers.check_peers([node(rank) for rank in range(len(reports))], reports)


def clock(offset: Any, error: Any = 0.001) -> dict[str, Any]:
    return {"ok": True, "clock": {"offset_s": offset, "error_s": error}}


NODE_ZERO = {"ok": True}


def test_node_that_cannot_reach_node_0_fails() -> None:
    """The message has the address and the error."""
    report = {"ok": False, "address": "10.0.0.1", "port": 4711, "error": "no route to host"}
    (check,) = failed(NODE_ZERO, clock(0.0), report)
    assert (check.id, check.hosts, check.severity) == ("master-unreachable", ("n2",), FAILURE)
    assert check.cause == "cannot reach node 0 (n0) at 10.0.0.1:4711: no route to host"


@pytest.mark.parametrize(
    ("offsets", "hosts"),
    [
        ([0.2, -0.3, 0.9], []),
        ([0.0, 5.0, 0.0], [("n2",)]),
        ([-5.0, -5.0, -5.1], [("n0",)]),
        ([7.0], [("n0", "n1")]),
        ([0.9], []),
    ],
)
def test_different_clocks_warn(offsets: list[float], hosts: list[tuple[str, ...]]) -> None:
    """Beyond a second, clocks that differ from most are named; of two clocks, both."""
    problems = failed(NODE_ZERO, *(clock(offset) for offset in offsets))
    assert [check.hosts for check in checks.merge_findings(problems)] == hosts
    assert all((check.id, check.severity) == ("clock-differs", WARNING) for check in problems)


def test_measurement_error_of_a_clock_is_subtracted() -> None:
    """A difference within the error is not reported; the message has the error."""
    assert failed(NODE_ZERO, clock(1.5, 0.6)) == []
    (check, _) = failed(NODE_ZERO, clock(2.5, 0.25))
    assert "2.50 s, measured to within 0.250 s" in check.cause


@pytest.mark.parametrize("value", [None, "x", "nan", "inf", [], True, 10**400])
def test_malformed_clock_is_unknown(value: Any) -> None:
    """Hostile values are not measurements."""
    assert failed(NODE_ZERO, clock(value)) == failed(NODE_ZERO, clock(9.0, value)) == []
    assert failed(None, clock(9.0)) == failed({"clock": value}, {"ok": value}) == []
