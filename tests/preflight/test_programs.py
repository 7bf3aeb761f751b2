"""Launchers that need SSH, bf16 on hardware without it, paths that nodes do not share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.preflight import find_plan_problems, launchers, precision, shared_paths
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


def test_launchers_that_need_ssh_are_refused(tmp_path: Path) -> None:
    """In `python`, `setup`, arguments and the script, each with its line."""
    script = tmp_path / "train.py"
    script.write_text("import subprocess\n\nsubprocess.run(['/usr/bin/deepspeed', 'x.py'])\n")
    profile = make_profile(
        tmp_path,
        backend="slurm",
        python="mpirun -np 2 python",
        setup=["module load x", "A=1 deepspeed --hostfile h train.py  # start"],
    )
    args = {"hostfile": "/h", "launcher": "pdsh"}
    found_problems = list(
        launchers.find_launchers(profile, [make_phase(profile, script=script, args=args)])
    )
    assert len(found_problems) == 5
    assert "`python` is the launcher `mpirun`" in found_problems[0].what
    assert found_problems[1].where == profile.where("setup", 1)
    assert "hostfile=/h" in found_problems[2].what and "launcher=pdsh" in found_problems[3].what
    assert found_problems[4].where == f"{script}:3" and "srun" in found_problems[4].expected


def test_deepspeed_with_hosts_is_refused(tmp_path: Path) -> None:
    """A number of GPUs does not keep it on its node when it has a host file."""
    setup = ["deepspeed --num_gpus=2 --hostfile=/h train.py", "deepspeed --num_gpus 2 -H /h x.py"]
    profile = make_profile(tmp_path, backend="slurm", setup=setup)
    found = list(launchers.find_launchers(profile, []))
    assert [problem.where for problem in found] == [profile.where("setup", n) for n in (0, 1)]


@pytest.mark.parametrize(
    "source",
    [
        "import deepspeed\ndeepspeed.initialize()\n",
        "'''By hand: mpirun or pdsh'''\nprint('deepspeed x')\n",
        "import subprocess\nsubprocess.run(['nvidia-smi'])  # no mpirun\n",
        "deepspeed(",
        "import os\nos.system('deepspeed --num_gpus=2 train.py')\n",
        "import subprocess\nsubprocess.run(['deepspeed', '--num_gpus', '2', 'train.py'])\n",
    ],
)
def test_other_uses_of_the_names_are_accepted(tmp_path: Path, source: str) -> None:
    """The library deepspeed, comments and plain text start nothing; `deepspeed --num_gpus=2`
    starts ranks on its own node, without SSH."""
    script = tmp_path / "train.py"
    script.write_text(source)
    profile = make_profile(
        tmp_path, setup=["echo deepspeed", "export X=$(which mpirun)", "deepspeed --num_gpus=2 x"]
    )
    assert list(launchers.find_launchers(profile, [make_phase(profile, script=script)])) == []


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


def test_paths_under_node_local_are_refused(tmp_path: Path) -> None:
    """The interpreter; for phases of several nodes, outputs and DeepSpeed's configuration."""
    profile = make_profile(
        tmp_path, backend="slurm", node_local=["/scratch-local"], python="/scratch-local/bin/python"
    )
    args = {"output_dir": "/scratch-local/x", "cache_dir": "/scratch-local/hf"}
    args["deepspeed_config"] = "/scratch-local/ds.json"
    two, single = (make_phase(profile, args=args, nodes=nodes) for nodes in (2, 1))
    first, second, third = shared_paths.find_node_local(profile, [two, single])
    assert "the interpreter of the nodes" in first.what and first.where == profile.where("python")
    assert "output_dir=/scratch-local/x" in second.what
    assert "deepspeed_config=/scratch-local/ds.json" in third.what
    plain = make_profile(
        tmp_path, backend="slurm", node_local=["/scratch-local"], python="python3 -X dev"
    )
    assert list(shared_paths.find_node_local(plain, [single])) == []


def test_shipped_suite_has_no_problem() -> None:
    """No phase of a shipped profile has a problem, on any machine."""
    from pytest_clustersmoke.config.cluster_file import load

    file = load(REPOSITORY / "cluster.yaml", {"HOME": "/home/u", "USER": "u"})
    for name in file.names:
        profile = file.profile(name)
        phases = [
            make_phase(profile, phase, script=script)
            for phase in profile.phases
            for script in (REPOSITORY / "smoke_tests").glob("train_*.py")
        ]
        assert find_plan_problems(profile, phases) == [], name
