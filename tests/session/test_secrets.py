"""Tokens and keys never reach the evidence of a run or its report."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_clustersmoke.evidence.run_directory import read_json
from tests.support.harness import Suite

PLANTED = {
    "HF_TOKEN": "hf_planted0token",
    "AWS_SECRET_ACCESS_KEY": "planted0aws0key",
    "WANDB_API_KEY": "planted0wandb0key",
    "NCCL_AUTH_TOKEN": "planted0nccl0token",
    "GLOO_CLIENT_SECRET": "planted0gloo0secret",
    "TORCH_PASSWORD": "planted0torch0password",
}
FAILS = """
import os
raise ValueError("no model")
"""


def find_files_with(folders: list[Path], words: list[str]) -> list[str]:
    """Every file below these folders that has one of the words, with the word."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 20
    return [
        f"{path}: {word}" for path in files for word in words if word.encode() in path.read_bytes()
    ]


def test_secrets_of_the_environment_are_in_no_file(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of a phase that passed nor of one that failed."""
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    fails = suite.path / "fails.py"
    fails.write_text(FAILS)
    suite.phase("passes")
    suite.phase("breaks", script=str(fails))
    outcome = suite.run()
    assert outcome.ret == pytest.ExitCode.TESTS_FAILED, outcome.output
    assert find_files_with([suite.shared, suite.reports], [*PLANTED.values()]) == []
    assert not [value for value in PLANTED.values() if value in outcome.output]


def test_secrets_of_an_option_are_not_in_the_report(suite: Suite) -> None:
    """Only the job needs them: its spec, script and call, in a directory that is closed to others,
    have them. A variable whose name and value say nothing is shown as it is."""
    planted = {name: f"{value}1's" for name, value in PLANTED.items()}
    planted["PLAIN"] = "hf_plantedByValue"
    suite.phase()
    options = [f"--cluster-set=small.env.{name}={value}" for name, value in planted.items()]
    options.insert(0, "--cluster-set=small.env.OTHER=shown0value")  # the verdict cuts the last ones
    plan = suite.run(*options, "--cluster-dry-run")
    assert plan.ret == 0 and "OTHER=shown0value" in plan.output, plan.output
    assert not [value for value in planted.values() if value in plan.output]
    assert "HF_TOKEN=(hidden)    # --cluster-set" in plan.output
    outcome = suite.run(*options)
    assert outcome.ret == 0, outcome.output
    assert find_files_with([suite.reports], [*planted.values()]) == []
    assert not [value for value in planted.values() if value in outcome.output]
    script = suite.report / "phases" / "small" / "batch.sh"
    assert "export HF_TOKEN='(hidden)'" in script.read_text()
    assert "export OTHER=shown0value" in script.read_text()
    spec = read_json(suite.report / "phases" / "small" / "spec.json") or {}
    assert spec["env_set"] | dict.fromkeys(planted, "(hidden)") == spec["env_set"]
    assert "small.env.HF_TOKEN=(hidden)" in outcome.output
    assert "small.env.OTHER=shown0value" in outcome.output
    kept = {
        Path(found.partition(": ")[0]) for found in find_files_with([suite.shared], ["planted"])
    }
    assert {path.name for path in kept if path.suffix != ".pkl"} == {"spec.json", "batch.sh"}
    assert {path.stat().st_mode & 0o077 for path in kept if path.suffix != ".pkl"} == {0}


def test_secrets_of_arguments_are_not_in_the_plan(suite: Suite) -> None:
    """Neither in the launcher's line nor among the sources of values."""
    suite.phase(args={"steps": 3, "hub_token": "planted0hub", "plain": "hf_plantedByValue"})
    plan = suite.run("--cluster-dry-run")
    assert plan.ret == 0 and "planted" not in plan.output, plan.output
    assert "--steps 3 --hub-token '(hidden)' --plain '(hidden)'" in plan.output
    assert "args.steps" in plan.output and "args.hub_token" in plan.output


def test_secrets_of_setup_are_not_in_the_report(suite: Suite) -> None:
    """Whatever their quotes, neither in the plan nor in what it copies; also not those of the line
    that fails, alone or in an `if`. Other lines are shown as they are."""
    suite.phase()
    lines = [
        "export WANDB_API_KEY=planted0wandb OTHER=shown0value",
        "export HF_TOKEN='planted0hf quoted' PLAIN=hf_plantedByValue",
        'AWS_SECRET_ACCESS_KEY="planted0aws \\"quoted\\""; export AWS_SECRET_ACCESS_KEY',
    ]
    suite.cluster(setup=lines)
    plan = suite.run("--cluster-dry-run")
    assert plan.ret == 0 and "export WANDB_API_KEY='(hidden)' OTHER=shown0value" in plan.output
    assert "planted" not in plan.output
    outcome = suite.run()
    assert outcome.ret == 0 and find_files_with([suite.reports], ["planted"]) == []
    script = (suite.report / "phases" / "small" / "batch.sh").read_text()
    assert "export WANDB_API_KEY='(hidden)' OTHER=shown0value" in script
    for failing in (
        ["export MY_TOKEN=planted0mine; false"],
        ["if true", "then export MY_TOKEN=planted0mine SHOWN=1 $(exit 3); false", "fi"],
        ["if true", "then env MY_TOKEN=planted0mine false", "fi"],
    ):
        suite.cluster(setup=[*lines, *failing])
        outcome = suite.run()
        assert outcome.ret == 1 and "setup line" in outcome.output, outcome.output
        assert "planted" not in outcome.output
        assert find_files_with([suite.reports], ["planted"]) == []
