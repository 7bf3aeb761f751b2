"""The GPUs of a lab's nodes: what `lab up --gpus real` gives to each (nvidia-smi is a fake)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_clustersmoke import lab
from tests.fakes import nvidia_smi
from tests.fakes.nvidia_smi import gpu
from tests.lab.conftest import REPOSITORY

pytestmark = pytest.mark.lab
Run = Callable[..., "subprocess.CompletedProcess[str]"]

# The batch script and the ranks of its two steps say which GPUs they see.
SCRIPT = """#!/bin/bash
#SBATCH --nodes=2 --gpus-per-node=2 --output=job.out
show='echo $0 $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES'
bash -c "$show" batch
srun bash -c "$show" all
srun --gpus-per-node=1 bash -c "$show" one
"""


@pytest.fixture
def gpus(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Gives this machine that many GPUs."""
    monkeypatch.setenv("PATH", f"{home / 'bin'}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (home / "bin").mkdir()

    def give(count: int, **answers: str) -> None:
        listed = [gpu(index) for index in range(count)]
        nvidia_smi.write(home / "bin", sys.executable, listed, **answers)

    return give


def test_each_node_has_gpus_of_its_own(
    need: Callable[..., None],
    gpus: Callable[..., None],
    clustersmoke: Run,
    command: Run,
    home: Path,
) -> None:
    """No two nodes on this machine share one, in the batch script and in every step; a job that
    asks for none sees none."""
    need()
    gpus(5)
    up = clustersmoke("lab", "up", "--gpus", "real", "--nodes", "2")
    assert "2 nodes with 2 real GPUs each" in up.stderr, up.stderr
    assert "clustersmoke init" in up.stderr and "--cluster lab" not in up.stderr
    slurm = lab.find_lab()
    assert (slurm.gpus, slurm.gpus_per_node) == ("real", 2)
    (home / "job.sh").write_text(SCRIPT)
    assert command("sbatch", "--wait", "job.sh", lab=slurm).returncode == 0
    assert sorted((home / "job.out").read_text().splitlines()) == [
        "all node0 GPU-0000,GPU-0001",
        "all node1 GPU-0002,GPU-0003",
        "batch node0 GPU-0000,GPU-0001",
        "one node0 GPU-0000",
        "one node1 GPU-0002",
    ]
    without = command("srun", "--nodes=2", "printenv", "CUDA_VISIBLE_DEVICES", lab=slurm)
    assert without.stdout == "\n\n"
    assert "(2 real GPUs each)" in clustersmoke("lab", "status").stdout


PAGE = REPOSITORY / "docs" / "how-to" / "slurm-on-one-machine.md"


def documented_steps() -> list[str]:
    """The commands that the page shows for real GPUs."""
    _, section = PAGE.read_text().split("## With the machine's own GPUs\n```console\n")
    lines = section.partition("```")[0].splitlines()
    return [line.removeprefix("$ ").partition("  #")[0].rstrip() for line in lines]


def test_documented_steps_lead_to_a_plan(
    need: Callable[..., None], gpus: Callable[..., None], command: Run, home: Path
) -> None:
    """`init` finds the GPUs of the lab's nodes, and its suite is ready to run on them."""
    need()
    gpus(8)
    steps = documented_steps()
    assert steps[0] == "clustersmoke lab up --nodes 2 --gpus real" and len(steps) == 4
    script = "\n".join([f"PATH={Path(sys.executable).parent}:$PATH", *steps])
    done = command("bash", "-ec", f"{script} --cluster-dry-run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "partition main (the default): 2 nodes of 4 GPUs" in done.stdout, done.stdout
    plans = dict(re.findall(r"^=== (\w+) \(smoke_tests/.*\n((?:(?!=== ).*\n)*)", done.stdout, re.M))
    assert {"zero1_2gpu", "ddp_2node"} <= plans.keys(), list(plans)
    assert not {"zero1_4node", "fsdp_1node"} & plans.keys(), "they need more than these nodes have"
    for phase, nodes, gpus_per_node in (("zero1_2gpu", 1, 2), ("ddp_2node", 2, 1)):
        assert f"#SBATCH --nodes={nodes}\n" in plans[phase]
        assert f"#SBATCH --gpus-per-node={gpus_per_node}\n" in plans[phase]
        assert "CLUSTERSMOKE_DEVICE=cuda" in plans[phase]


@pytest.mark.parametrize(
    ("options", "visible", "each"),
    [((), "1,2", "1"), (("--gpus-per-node", "1"), None, "1"), (("--nodes", "1"), None, "4")],
)
def test_real_gpus_are_those_of_this_shell(
    options: tuple[str, ...],
    visible: str | None,
    each: str,
    need: Callable[..., None],
    gpus: Callable[..., None],
    clustersmoke: Run,
    command: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that CUDA_VISIBLE_DEVICES names, an equal share for each node, or as many as asked."""
    need()
    gpus(4)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    up = clustersmoke("lab", "up", "--gpus", "real", "--nodes", "2", *options)
    assert f" with {each} real GPU" in up.stderr, up.stderr
    shown = command(
        *("srun", f"--gpus-per-node={each}", "printenv", "CUDA_VISIBLE_DEVICES"),
        lab=lab.find_lab(),
    )
    first = 1 if visible else 0
    wanted = ",".join(f"GPU-{index:04d}" for index in range(first, first + int(each)))
    assert shown.stdout == f"{wanted}\n"


@pytest.mark.parametrize(
    ("count", "options", "answers", "visible", "words"),
    [
        (
            1,
            (),
            {},
            None,
            "4 nodes with 1 GPU each need 4, and it has 1; choose fewer with --nodes",
        ),
        (0, (), {}, None, "4 nodes with 1 GPU each need 4, and it has 0"),
        (2, ("--nodes=1", "--gpus-per-node=3"), {}, None, "1 node with 3 GPUs each need 3, and it"),
        (1, (), {"words": "NVML: Driver mismatch", "status": 18}, None, "status 18: NVML: Driver"),
        (2, ("--nodes=1",), {}, "MIG-1", "names parts of GPUs (MIG)"),
    ],
)
def test_too_few_real_gpus_are_a_clear_error(
    count: int,
    options: tuple[str, ...],
    answers: dict[str, str],
    visible: str | None,
    words: str,
    need: Callable[..., None],
    gpus: Callable[..., None],
    clustersmoke: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before anything is started."""
    need()
    gpus(count, **answers)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    refused = clustersmoke("lab", "up", "--gpus", "real", *options)
    assert refused.returncode != 0 and words in refused.stderr, refused.stderr
    assert "Traceback" not in refused.stderr
    assert clustersmoke("lab", "status").stdout.startswith("no labs;")
