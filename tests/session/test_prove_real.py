"""Real faults, staged in the suite's own phases on virtual nodes and on a real Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke import lab
from pytest_clustersmoke.faults import FAULTS
from tests.support.labs import running_lab

ROOT = Path(__file__).resolve().parents[2]
# CPU ranks communicate over gloo, which has no transports.
NO_TRANSPORTS = {"p2p-off", "network-in-node", "infiniband-off"}
NOT_HERE = NO_TRANSPORTS | {"submission-refused"}  # virtual nodes need no sbatch
# One of each kind: criteria that blame a rank or a device, a setting, a limit.
# test_broken_programs.py stages the death of a rank.
SOME = {
    "gradient-flipped": "test_ddp.py::TestDdpOnTwoGpus",
    "device-wrong-answer": "test_ddp.py::TestDdpOnTwoGpus",
    "setup-line-fails": "test_mlp.py::TestMlpOnOneGpu",
    "time-limit": "test_mlp.py::TestMlpOnOneGpu",
}


def prove(folder: Path, *words: str, cluster: str = "local", **variables: str) -> dict[str, Any]:
    """Prove gates, as a user does; returns the report."""
    command = [sys.executable, "-m", "pytest", *words, "--cluster", cluster, "--cluster-prove"]
    command += ["--cluster-report-dir", str(folder / "reports"), "-p", "no:cacheprovider"]
    env = {**os.environ, "CLUSTERSMOKE_SHARED_DIR": str(folder / "runs"), **variables}
    env["CUDA_VISIBLE_DEVICES"] = ""
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("PROVEN"), done.stdout
    path = folder / "reports/latest-proof/report.json"
    report: dict[str, Any] = json.loads(path.read_text())
    return report


def check(report: dict[str, Any], gates: set[str]) -> None:
    """These gates are proven, and no job left a checkpoint."""
    proof = report["proof"]
    assert set(proof["proven"]) == set(proof["planned"]) == gates
    assert not list(Path(report["evidence"]).glob("phases/*/output"))


def test_one_gate_of_each_kind_is_proven(tmp_path: Path) -> None:
    """A gradient, a device, a setup line and a limit: each turns its own criterion red."""
    check(prove(tmp_path, *(f"smoke_tests/{c}::prove[{f}]" for f, c in SOME.items())), set(SOME))


@pytest.mark.slow
def test_every_gate_of_this_machine_is_proven(tmp_path: Path) -> None:
    """Every fault that is possible on CPU and gloo; the others are named with the reason."""
    report = prove(tmp_path, "smoke_tests")
    check(report, set(FAULTS) - NOT_HERE)
    assert set(report["proof"]["not_applicable"]) == NOT_HERE


@pytest.mark.lab
@pytest.mark.slow_lab
def test_every_gate_of_a_real_slurm_is_proven(tmp_path: Path) -> None:
    """The same on a lab, where sbatch refuses a job as well."""
    with running_lab(lab.LabSettings(name="gates", directory=tmp_path / "lab")) as running:
        conf = str(running.slurm_conf)
        report = prove(tmp_path, "smoke_tests", cluster="lab", SLURM_CONF=conf)
    check(report, set(FAULTS) - NO_TRANSPORTS)
    assert set(report["proof"]["not_applicable"]) == NO_TRANSPORTS
