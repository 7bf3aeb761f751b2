"""A rank stages a fault only if its launcher and its phase's spec name the same one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.run_directory import PhaseDir, write_json
from pytest_clustersmoke.node import launch_environment
from pytest_clustersmoke.node.node_job import NodeJob
from pytest_clustersmoke.node.rendezvous import Endpoint
from pytest_clustersmoke.rank.hook import load_hook
from pytest_clustersmoke.rank.rank_environment import EnvironmentUnusable, read_rank_environment

FAULT = {"name": "rank-killed", "base": "small", "rank": 0}


@pytest.fixture
def phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PhaseDir:
    """The directory of a phase whose one rank is this process."""
    directory = PhaseDir(tmp_path)
    monkeypatch.setenv("CLUSTERSMOKE_PHASE_DIR", str(tmp_path))
    monkeypatch.delenv("CLUSTERSMOKE_FAULT", raising=False)
    for name, value in {"RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    return directory


def test_fault_is_staged_when_spec_and_launcher_agree(
    phase: PhaseDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher's variable and the spec agree."""
    write_json(phase.spec, {"fault": FAULT})
    monkeypatch.setenv("CLUSTERSMOKE_FAULT", "rank-killed")
    assert read_rank_environment().fault == FAULT


def test_no_fault_is_staged_in_a_normal_run(phase: PhaseDir) -> None:
    """Its spec names none."""
    write_json(phase.spec, {"phase": "small"})
    assert read_rank_environment().fault is None


@pytest.mark.parametrize(
    ("spec", "variable"),
    [({}, "rank-killed"), ({"fault": FAULT}, ""), ({"fault": FAULT}, "rank-hung")],
)
def test_rank_does_not_start_when_spec_and_launcher_disagree(
    phase: PhaseDir, monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any], variable: str
) -> None:
    """Neither an inherited variable nor the spec alone stages a fault."""
    write_json(phase.spec, spec)
    if variable:
        monkeypatch.setenv("CLUSTERSMOKE_FAULT", variable)
    with pytest.raises(EnvironmentUnusable, match="only --cluster-prove stages faults"):
        read_rank_environment()


def test_program_run_by_hand_stages_no_fault(
    phase: PhaseDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no phase, so the variable in its shell is ignored."""
    monkeypatch.delenv("CLUSTERSMOKE_PHASE_DIR")
    monkeypatch.setenv("CLUSTERSMOKE_FAULT", "rank-killed")
    assert read_rank_environment().fault is None


@pytest.mark.parametrize(("fault", "variable"), [({}, None), ({"fault": FAULT}, "rank-killed")])
def test_launcher_sets_the_fault_that_the_spec_names(
    phase: PhaseDir, monkeypatch: pytest.MonkeyPatch, fault: dict[str, Any], variable: str | None
) -> None:
    """The variable in its own environment is ignored."""
    monkeypatch.setenv("CLUSTERSMOKE_FAULT", "inherited")
    spec = {"phase_dir": str(phase.root), "device": "cpu", "env_set": {}, **fault}
    env = launch_environment.rank_environment(
        NodeJob(spec, 0, "n0"), Endpoint("127.0.0.1", 1, True)
    )
    assert env.get("CLUSTERSMOKE_FAULT") == variable


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("RANK", "x", "expected a whole number, set by the launcher"),
        ("WORLD_SIZE", "-1", "expected a whole number, set by the launcher"),
        ("CLUSTERSMOKE_DEVICE", "gpu", "expected auto, cpu or cuda"),
        ("CLUSTERSMOKE_PG_TIMEOUT_S", "0", "expected a number of seconds above 0"),
        ("CLUSTERSMOKE_PG_TIMEOUT_S", "soon", "expected a number of seconds above 0"),
    ],
)
def test_unusable_variable_is_named(
    phase: PhaseDir, monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    """By a class of its own, from which a run knows its cause."""
    monkeypatch.setenv(name, value)
    with pytest.raises(EnvironmentUnusable, match=f"{name}='{value}'.*{words}"):
        read_rank_environment()


def test_fault_without_a_hook_is_named() -> None:
    with pytest.raises(EnvironmentUnusable, match="has no `hook`; expected `module:function`"):
        load_hook(None, FAULT, print)  # type: ignore[arg-type]
