"""When a rank stages a fault: where its launcher and its phase's spec name the same, and only
there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.run_directory import PhaseDir, write_json
from pytest_clustersmoke.node import torchrun
from pytest_clustersmoke.node.node_job import NodeJob
from pytest_clustersmoke.node.rendezvous import Meeting
from pytest_clustersmoke.rank.rank_environment import read_rank_environment

FAULT = {"name": "rank-killed", "base": "small", "rank": 0}


@pytest.fixture
def phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PhaseDir:
    """The directory of a phase whose one rank is this process."""
    found = PhaseDir(tmp_path)
    monkeypatch.setenv("CLUSTERSMOKE_PHASE_DIR", str(tmp_path))
    monkeypatch.delenv("CLUSTERSMOKE_FAULT", raising=False)
    for name, value in {"RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    return found


def test_a_fault_is_staged_where_both_name_it(
    phase: PhaseDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher's variable and the spec agree."""
    write_json(phase.spec, {"fault": FAULT})
    monkeypatch.setenv("CLUSTERSMOKE_FAULT", "rank-killed")
    assert read_rank_environment().fault == FAULT


def test_without_a_fault_none_is_staged(phase: PhaseDir) -> None:
    """A normal run's spec names none."""
    write_json(phase.spec, {"phase": "small"})
    assert read_rank_environment().fault is None


@pytest.mark.parametrize(
    ("spec", "told"),
    [({}, "rank-killed"), ({"fault": FAULT}, ""), ({"fault": FAULT}, "rank-hung")],
)
def test_a_rank_that_is_told_two_things_does_not_start(
    phase: PhaseDir, monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any], told: str
) -> None:
    """An inherited variable stages nothing, and a spec without its launcher neither."""
    write_json(phase.spec, spec)
    if told:
        monkeypatch.setenv("CLUSTERSMOKE_FAULT", told)
    with pytest.raises(ValueError, match="only --cluster-prove stages faults"):
        read_rank_environment()


def test_by_hand_nothing_is_staged(phase: PhaseDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program run by hand has no phase, whatever its shell says."""
    monkeypatch.delenv("CLUSTERSMOKE_PHASE_DIR")
    monkeypatch.setenv("CLUSTERSMOKE_FAULT", "rank-killed")
    assert read_rank_environment().fault is None


@pytest.mark.parametrize(("fault", "told"), [({}, None), ({"fault": FAULT}, "rank-killed")])
def test_the_launcher_tells_its_ranks_what_the_spec_names(
    phase: PhaseDir, monkeypatch: pytest.MonkeyPatch, fault: dict[str, Any], told: str | None
) -> None:
    """Whatever stands in its own environment."""
    monkeypatch.setenv("CLUSTERSMOKE_FAULT", "inherited")
    spec = {"phase_dir": str(phase.root), "device": "cpu", "env_set": {}, **fault}
    env = torchrun.rank_environment(NodeJob(spec, 0, "n0"), Meeting("127.0.0.1", 1, True))
    assert env.get("CLUSTERSMOKE_FAULT") == told
