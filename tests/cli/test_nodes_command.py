"""`clustersmoke nodes`, run as a user runs it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.cli import main
from pytest_clustersmoke.evidence.history import history_store
from pytest_clustersmoke.evidence.history.node_history import DAY_S
from pytest_clustersmoke.evidence.node_observation import SCREEN, DeviceFigure, NodeObservation
from pytest_clustersmoke.report.node_evidence import observe_nodes
from tests.support import records

Nodes = Callable[..., tuple[int, str, str]]


@pytest.fixture
def nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Nodes:
    def run(*words: str, cluster: str = "gilbreth") -> tuple[int, str, str]:
        status = main(["nodes", "--cluster", cluster, "--reports", str(tmp_path), *words])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def store(directory: Path, days_ago: float, *phases: records.Record, **more: Any) -> str:
    """Store a run of so many days ago; returns its id."""
    begun = time.time() - days_ago * DAY_S
    made = records.parsed(records.run(*phases, begun=begun))
    more.setdefault("observations", observe_nodes(made))
    history_store.store_run(made, directory, **more)
    return made.run_id


def slow_phase(name: str) -> records.Record:
    """A phase that passed, in which the two ranks of node1 fell behind."""
    phase = records.phase(name)
    for rank in phase["ranks"][2:4]:
        rank["behind"] = True
    return phase


def test_a_node_that_is_slow_in_eight_phases_is_one_line(tmp_path: Path, nodes: Nodes) -> None:
    """And each of the others is one, too."""
    before = time.time()
    store(tmp_path, 2, records.phase("phase0"))
    store(tmp_path, 1, *(slow_phase(f"phase{number}") for number in range(8)))
    status, out, err = nodes()
    lines = out.splitlines()
    assert (status, err) == (0, "")
    assert lines[0] == "4 nodes on gilbreth in the last 90 days, 1 named bad"
    assert len(lines) == 3 + 4
    (line,) = [line for line in lines if line.startswith("node1")]
    assert "slow-rank in 8 of 8 phases" in line
    nights = [
        [time.strftime("%Y-%m-%d", time.gmtime(now - day * DAY_S)) for day in (2, 1)]
        for now in (before, time.time())  # which midnight may lie between
    ]
    assert any(f"node1  {good}" in line and bad in line for good, bad in nights)
    assert all("slow-rank" not in line for line in lines if not line.startswith("node1"))


def test_reboots_and_parts_are_shown(tmp_path: Path, nodes: Nodes) -> None:
    """Both numbers, and what was replaced, when."""
    for day, boot, gpu in ((3, "b1", "GPU-1"), (1, "b2", "GPU-2")):
        seen = NodeObservation("n1", SCREEN, "good", boot_id=boot, parts={"GPU": gpu})
        store(tmp_path, day, observations=[seen])
    _, out, _ = nodes()
    assert "GPU GPU-1 -> GPU-2 on 20" in out
    made = json.loads(nodes("--json")[1])
    (node,) = made["nodes"]
    assert node["reboots"] == 1
    assert [change["what"] for change in node["changes"]] == ["GPU GPU-1 -> GPU-2"]


def test_figures_are_compared_with_peers_and_past(tmp_path: Path, nodes: Nodes) -> None:
    """The one that is furthest on the bad side, whichever side that is."""

    def figures(slow: float) -> list[DeviceFigure]:
        made = [
            DeviceFigure(f"n{n}", f"GPU-{n}", "gemm_tflops", 700.0, "TFLOP/s", True)
            for n in range(3)
        ]
        made.append(DeviceFigure("n3", "GPU-3", "gemm_tflops", slow, "TFLOP/s", True))
        return [*made, DeviceFigure("n3", "", "cpu_latency_ns", 80.0, "ns", False)]

    store(tmp_path, 2, observations=[], figures=figures(690.0))
    store(tmp_path, 1, observations=[], figures=figures(621.0))
    _, out, _ = nodes("--node", "n3")
    assert "gemm_tflops 621.0 TFLOP/s, 11.3 % worse  gemm_tflops 621.0 TFLOP/s, 10.0 % worse" in out
    made = json.loads(nodes("--json")[1])
    by_name = {figure["name"]: figure for figure in made["nodes"][3]["figures"]}
    gemm, latency = by_name["gemm_tflops"], by_name["cpu_latency_ns"]
    assert (gemm["median_of_peers"], gemm["median_of_past"]) == (700.0, 690.0)
    assert (latency["median_of_peers"], latency["median_of_past"]) == (None, 80.0)
    assert [node["node"] for node in made["nodes"]] == ["n0", "n1", "n2", "n3"]


def test_peers_are_devices_of_the_same_model(tmp_path: Path, nodes: Nodes) -> None:
    """In a cluster with two models no node of the older one looks bad. A device whose model an
    older version did not store has it from its next measurement on."""
    speeds = {"H100": 700.0, "A100": 250.0}

    def figures(*, model: bool) -> list[DeviceFigure]:
        return [
            DeviceFigure(
                f"{name}-{n}",
                f"GPU-{name}-{n}",
                *("gemm_tflops", speed, "TFLOP/s", True),
                model=name if model else "",
            )
            for name, speed in speeds.items()
            for n in range(3)
        ]

    store(tmp_path, 2, observations=[], figures=figures(model=False))
    assert "A100-1" in nodes()[1] and "% worse" in nodes()[1]
    store(tmp_path, 1, observations=[], figures=figures(model=True))
    assert "% worse" not in nodes()[1]
    made = json.loads(nodes("--json")[1])
    (figure,) = next(node for node in made["nodes"] if node["node"] == "A100-1")["figures"]
    assert (figure["model"], figure["median_of_peers"]) == ("A100", 250.0)


def test_json_has_every_phase_of_a_node(tmp_path: Path, nodes: Nodes) -> None:
    """How often it was good, bad and unknown there, and the newest observations."""
    found = records.finding(id="gpu-ecc-errors", cause="GPU 3", hosts=["node1"])
    store(tmp_path, 2, records.phase("a"))
    run_id = store(tmp_path, 1, records.phase("a", outcome="failed", findings=[found]))
    made = json.loads(nodes("--json", "--node", "node1")[1])
    assert (made["cluster"], made["days"]) == ("gilbreth", 90)
    (node,) = made["nodes"]
    assert node["phases"] == [{"phase": "a", "good": 1, "bad": 1, "unknown": 0}]
    assert (node["bad_runs"], node["named_for"]) == (1, ["gpu-ecc-errors in 1 of 1 phases"])
    assert (node["last_bad"]["run_id"], node["last_bad"]["definite"]) == (run_id, True)
    assert node["last_bad"]["reason"] == "gpu-ecc-errors: GPU 3"


def test_days_limit_what_is_shown(tmp_path: Path, nodes: Nodes) -> None:
    """A cluster without nodes in these days is no error."""
    store(tmp_path, 40)
    assert nodes("--days", "30") == (
        0,
        "0 nodes on gilbreth in the last 30 days, 0 named bad\n",
        "",
    )


def test_unknown_names_are_refused(tmp_path: Path, nodes: Nodes) -> None:
    """With the known ones."""
    store(tmp_path, 1)
    status, out, err = nodes(cluster="gilbret")
    assert (status, out) == (2, "") and "did you mean `gilbreth`?" in err
    status, out, err = nodes("--node", "node9")
    assert (status, out) == (2, "") and "no node `node9` in the history" in err


def test_hostile_text_is_shown_harmless(tmp_path: Path, nodes: Nodes) -> None:
    """Escape sequences and line breaks in names, phases and reasons."""
    seen = NodeObservation("n1\x1b[2J\n", SCREEN, "bad", "x\x1b]0;t\x07: y\n" * 9, True)
    store(tmp_path, 1, observations=[seen])
    for words in ((), ("--json",)):
        status, out, _ = nodes(*words)
        assert status == 0 and "\x1b" not in out and "\x07" not in out
    assert len(nodes()[1].splitlines()) == 4
