"""bf16 on hardware without it, and a plan without problems."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.preflight import find_plan_problems, precision
from pytest_clustersmoke.text import Problem
from tests.support.evidence import make_phase, make_profile

REPOSITORY = Path(__file__).resolve().parents[2]


def problems(folder: Path, gpu: str, **args: Any) -> list[Problem]:
    """The problems of a phase with these arguments on a Slurm cluster with this GPU."""
    hardware = {"gpu": gpu, "device": "cuda", "gpus_per_node": 4}
    profile = make_profile(folder, backend="slurm", hardware=hardware)
    return find_plan_problems(profile, [make_phase(profile, nodes=2, gpus_per_node=4, args=args)])


@pytest.mark.parametrize("args", [{"bf16": True}, {"precision": "bf16-mixed"}])
def test_bf16_on_hardware_without_it_is_refused(tmp_path: Path, args: dict[str, Any]) -> None:
    """The problem has the argument and the line of the hardware."""
    (problem,) = problems(tmp_path, "Tesla V100-SXM2-32GB", **args)
    ((name, value),) = args.items()
    assert f"{name}={value}" in problem.what and ".yaml:" in problem.what
    assert "compute capability 7.0, and bf16 needs 8.0" in problem.what


def test_other_precisions_are_accepted(tmp_path: Path) -> None:
    assert problems(tmp_path, "Tesla T4", bf16=False, precision="fp16") == []
    assert problems(tmp_path, "NVIDIA A100", bf16=True) == []


@pytest.mark.parametrize(
    "gpu",
    [
        *("Tesla V100-PCIE-16GB", "Tesla P100-PCIE-16GB", "Tesla T4", "NVIDIA GeForce RTX 2080 Ti"),
        *("Quadro RTX 6000", "NVIDIA TITAN RTX", "Tesla K80", "NVIDIA GeForce GTX 1080 Ti"),
    ],
)
def test_gpus_without_bf16_are_known(gpu: str) -> None:
    """The reason has their compute capability."""
    assert "compute capability" in precision.lacks_bf16(gpu)


@pytest.mark.parametrize(
    "gpu",
    [
        *("NVIDIA A100 80GB PCIe", "NVIDIA H100 80GB HBM3", "NVIDIA A10", "NVIDIA L4"),
        *("NVIDIA L40S", "NVIDIA GeForce RTX 3090", "NVIDIA RTX 6000 Ada Generation"),
        *("NVIDIA RTX A4000", "NVIDIA GeForce RTX 4070", "NVIDIA B200", "NVIDIA GH200 480GB"),
        *("AMD Instinct MI250X", "NVIDIA RTX 5000 Ada Generation", "any", "none", "fake"),
    ],
)
def test_other_gpus_are_accepted(gpu: str) -> None:
    """They have bf16, or are unknown."""
    assert precision.lacks_bf16(gpu) == ""


def test_shipped_suite_has_no_problem() -> None:
    """No phase of a shipped profile has a problem, on any machine."""
    from pytest_clustersmoke.config.cluster_file import load_cluster_file

    file = load_cluster_file(REPOSITORY / "cluster.yaml", {"HOME": "/home/u", "USER": "u"})
    for name in file.names:
        profile = file.profile(name)
        phases = [
            make_phase(profile, phase, script=script)
            for phase in profile.phases
            for script in (REPOSITORY / "smoke_tests").glob("train_*.py")
        ]
        assert find_plan_problems(profile, phases) == [], name
