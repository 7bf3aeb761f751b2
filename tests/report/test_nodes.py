"""Facts of nodes in the record: once for each node, bounded, what changed by its phase."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.report.nodes import MAX_ENTRIES, MAX_TEXT, Facts, bounded, nodes
from pytest_clustersmoke.result import PhaseResult, collect
from pytest_clustersmoke.rundir import RunDir, write_json


def told(root: Path, phase: str, *facts: dict[str, Any]) -> PhaseResult:
    """A phase whose nodes told these facts."""
    directory = RunDir(root).phase(phase)
    directory.root.mkdir(parents=True)
    write_json(directory.spec, {"phase": phase, "nodes": len(facts), "ranks_per_node": 0})
    for number, one in enumerate(facts):
        directory.node(number).mkdir(parents=True)
        if one:
            write_json(directory.node_facts(number), {"node_rank": number, **one})
    return collect(directory)


def gathered(*results: PhaseResult) -> list[Any]:
    found = Facts()
    for one in results:
        found.add(one)
    return list(found.records())


def test_a_node_has_its_facts_once(tmp_path: Path) -> None:
    """As the last phase found it; what an earlier phase found otherwise stands by its name."""
    packages = {"torch": "2.5.1"}
    first = {"node": "a", "host": "h", "time": 1.0, "packages": packages, "swap": 1}
    (one,) = gathered(
        told(tmp_path, "p", first),
        told(tmp_path, "q", {**first, "time": 2.0}),
        told(tmp_path, "r", {"node": "a", "host": "h", "time": 2.0, "packages": packages}),
    )
    assert one == {
        "node": "a",
        "host": "h",
        "phases": ["p", "q", "r"],
        "facts": {"time": 2.0, "packages": packages},
        "earlier": {"p": {"time": 1.0, "swap": 1}, "q": {"swap": 1}},
    }


def test_a_silent_node_keeps_what_it_told_before(tmp_path: Path) -> None:
    """A phase in which it told nothing says nothing; one that never told anything has no facts."""
    here = {"node": "node 0", "host": "h", "kernel": "6"}
    one, other = gathered(told(tmp_path, "p", here, {}), told(tmp_path, "q", {}, {}))
    assert (one["phases"], one["host"], one["facts"]) == (["p"], "h", {"kernel": "6"})
    assert (other["node"], other["phases"], other["facts"]) == ("node 1", [], {})


def test_two_nodes_of_one_name_are_two(tmp_path: Path) -> None:
    """What one of them said is not the other's."""
    twins = [{"node": "a", "kernel": "5"}, {"node": "a", "kernel": "6"}]
    result = told(tmp_path, "p", *twins)
    assert [one["facts"] for one in gathered(result)] == [{"kernel": "5"}, {"kernel": "6"}]
    assert [one["node_rank"] for one in nodes(result)] == [0, 1]


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "facts",
    [
        {"deep": nested(700)},
        {"text": "x" * 10**7},
        {"x" * 10**6: 1},
        {"list": [0] * 10**6},
        {str(number): number for number in range(10**5)},
        {"wide": {str(n): {str(m): ["word" * 100] * 9 for m in range(99)} for n in range(99)}},
        {"number": 10**4000, "numbers": [10**4000] * 400},
    ],
)
def test_facts_without_end_are_cut_and_say_so(facts: dict[str, Any]) -> None:
    """Depth, entries, length of texts and all together have a bound."""
    kept = json.dumps(bounded(facts), ensure_ascii=False)
    assert len(kept) < 500_000
    assert "…" in kept


def test_what_is_cut_counts_what_is_missing() -> None:
    """A reader sees how much is not there."""
    kept = bounded({"t": "x" * (MAX_TEXT + 7), "l": [0] * (MAX_ENTRIES + 3), "d": nested(9)})
    assert kept["t"] == "x" * MAX_TEXT + "\u2026 7 more characters"
    assert kept["l"][-1] == "\u2026 3 more" and len(kept["l"]) == MAX_ENTRIES + 1
    assert json.dumps(kept["d"], ensure_ascii=False) == '[[[[["\u2026 nested deeper than 6"]]]]]'


def test_usual_facts_are_whole() -> None:
    """What a node with eight GPUs tells is not touched."""
    gpus = [{"name": "H100", "uuid": f"GPU-{n}", "remapped": {"pending": 0}} for n in range(8)]
    facts = {"gpus": gpus, "interfaces": {"ib0": {"ipv4": ["10.0.0.1"]}}, "x": None, "y": 1.5}
    assert bounded(facts) == facts
