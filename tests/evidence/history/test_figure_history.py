"""What devices reached, in history.db."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.fingerprint import Fingerprint
from pytest_clustersmoke.evidence.history import figure_history, history_database, history_store
from pytest_clustersmoke.evidence.history.accepted_levels import (
    AcceptedLevel,
    store_accepted_level,
)
from pytest_clustersmoke.evidence.history.figure_history import (
    key_of,
    read_figure_past,
    read_figures,
)
from pytest_clustersmoke.evidence.node_observation import DeviceFigure
from tests.evidence.history.made import DAY_S, of_night, with_versions
from tests.support.records import BEGUN, parsed, phase

PHASE = "zero1_4node"
GEMM = DeviceFigure("n1", "GPU-a", "gemm_tflops", 700.0, "TFLOP/s", True)
LATENCY = DeviceFigure("n1", "", "cpu_latency_ns", 90.0, "ns", False)


def figure(value: float, like: DeviceFigure = GEMM, **changes: str) -> DeviceFigure:
    return DeviceFigure(**{**vars(like), **changes, "value": value})


def store(directory: Path, number: int, *figures: DeviceFigure, **changes: Any) -> None:
    """A night in which one phase, of which these are `changes`, measured the figures."""
    made = [replace(figure, phase=PHASE) for figure in figures]
    record = parsed(of_night(number, phase(PHASE, **changes)))
    history_store.store_run(record, directory, figures=made)


def past(
    directory: Path,
    *figures: DeviceFigure,
    before: float = math.inf,
    cluster: str = "gilbreth",
    **versions: str,
) -> list[list[float]]:
    usual = phase(PHASE)
    who = Fingerprint(usual["hardware"], usual["shape"], with_versions(**versions))
    found = read_figure_past(directory, cluster, PHASE, who, figures, before)
    return [found.get(key_of(made), []) for made in figures]


def test_the_past_of_a_device_is_the_newest_first(tmp_path: Path) -> None:
    """Only values of that device, name and unit, of earlier runs on that cluster."""
    for number in range(3):
        store(tmp_path, number, figure(700.0 + number), figure(90.0 + number, LATENCY))
    store(tmp_path, 3, figure(1.0, name="other"), figure(2.0, unit="GFLOP/s"))
    assert past(tmp_path, GEMM, LATENCY) == [[702.0, 701.0, 700.0], [92.0, 91.0, 90.0]]
    assert past(tmp_path, GEMM, before=BEGUN + DAY_S) == [[700.0]]
    assert past(tmp_path, figure(1.0, device="GPU-b")) == [[]]
    assert past(tmp_path, GEMM, cluster="another") == [[]]


def test_other_versions_and_hardware_are_no_past(tmp_path: Path) -> None:
    """A new torch or driver may cost every GPU some percent; so may other nodes."""
    store(tmp_path, 0, GEMM)
    store(tmp_path, 1, figure(1.0), hardware="4 nodes x 2 NVIDIA H200")
    store(tmp_path, 2, figure(2.0), shape="steps=60")
    assert past(tmp_path, GEMM) == [[700.0]]
    assert past(tmp_path, GEMM, torch="2.9.0") == past(tmp_path, GEMM, driver="600.1") == [[]]


def test_bad_phase_and_screen_are_no_past(tmp_path: Path) -> None:
    """A device that was named in a run does not become its own good past."""
    store(tmp_path, 0, GEMM)
    criteria = {"test_devices_reach_their_peaks": {"result": "failed", "text": "slow"}}
    store(tmp_path, 1, figure(600.0), outcome="passed", criteria=criteria)
    history_store.store_run(parsed(of_night(2)), tmp_path, figures=[figure(650.0)])
    assert past(tmp_path, GEMM) == [[700.0]]


def test_accepted_level_ends_the_past(tmp_path: Path) -> None:
    """Of all metrics of the phase, or of the figure."""
    for number in range(3):
        store(tmp_path, number, figure(700.0 + number), figure(90.0 + number, LATENCY))
    accepted = AcceptedLevel("gilbreth", PHASE, GEMM.name, BEGUN + 1.5 * DAY_S, "me", "new cooling")
    store_accepted_level(accepted, tmp_path)
    assert past(tmp_path, GEMM, LATENCY) == [[702.0], [92.0, 91.0, 90.0]]


def test_a_device_takes_its_past_to_another_node(tmp_path: Path) -> None:
    """A GPU by its UUID; a figure of the node itself stays with the node."""
    store(tmp_path, 0, GEMM, LATENCY)
    assert past(tmp_path, figure(1.0, node="n2"), figure(1.0, LATENCY, node="n2")) == [[700.0], []]


def test_figures_are_read_by_node(tmp_path: Path) -> None:
    """With the run, the newest first."""
    store(tmp_path, 0, GEMM, LATENCY)
    store(tmp_path, 1, figure(710.0))
    with history_database.open_for_reading(tmp_path) as connection:
        assert connection is not None
        (found,) = read_figures(connection, "gilbreth").values()
        assert list(read_figures(connection, "gilbreth", BEGUN + 1)["n1"]) == found[:1]
    values = [(made.device, made.name, made.value, made.seen - BEGUN) for made in found]
    assert values == [
        ("GPU-a", "gemm_tflops", 710.0, DAY_S),
        ("", "cpu_latency_ns", 90.0, 0.0),
        ("GPU-a", "gemm_tflops", 700.0, 0.0),
    ]
    assert (found[0].unit, found[0].higher_is_better, found[1].higher_is_better) == (
        *("TFLOP/s", True),
        False,
    )


def test_a_run_that_is_stored_again_has_its_figures_once(tmp_path: Path) -> None:
    """So has a run that gives a figure twice; two nodes that share a card keep a figure each."""
    record = parsed(of_night(0))
    shared = figure(40.0, node="n2")
    for _ in range(2):
        history_store.store_run(record, tmp_path, figures=[GEMM, GEMM, shared])
    with history_database.open_for_reading(tmp_path) as connection:
        assert connection is not None
        assert {node: len(made) for node, made in read_figures(connection, "gilbreth").items()} == {
            "n1": 1,
            "n2": 1,
        }


def test_unusable_and_old_figures_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values that are not finite, figures of no node, more than allowed, and what is older than
    180 days before the device's newest run."""
    store(tmp_path, 0, figure(math.nan), figure(math.inf), figure(1.0, node=""), figure(700.0))
    assert past(tmp_path, GEMM) == [[700.0]]
    store(tmp_path, 181, figure(710.0))
    assert past(tmp_path, GEMM) == [[710.0]]
    monkeypatch.setattr(figure_history, "MAX_FIGURES", 1)
    store(tmp_path, 182, figure(711.0), LATENCY)
    assert past(tmp_path, GEMM, LATENCY) == [[711.0, 710.0], []]


def test_no_history_is_no_past(tmp_path: Path) -> None:
    """Not an error."""
    assert past(tmp_path, GEMM) == [[]]
