"""Launchers that cannot start a phase's ranks, and those that need SSH."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.preflight import unfit_launchers
from tests.support.evidence import make_phase, make_profile


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
        unfit_launchers.find_launchers(profile, [make_phase(profile, script=script, args=args)])
    )
    assert len(found_problems) == 5
    assert "`python` is the launcher `mpirun`" in found_problems[0].what
    assert found_problems[1].where == profile.where("setup", 1)
    assert "hostfile=/h" in found_problems[2].what and "launcher=pdsh" in found_problems[3].what
    assert found_problems[4].where == f"{script}:3" and "srun" in found_problems[4].expected


@pytest.mark.parametrize(
    ("launcher", "backend", "marker", "words"),
    [
        ("srun", "local", {}, "but the backend of `one` is `local`"),
        ("srun", "ssh", {}, "but the backend of `one` is `ssh`"),
        ("srun", "slurm", {}, ""),
        ("deepspeed", "slurm", {"nodes": 2}, "reaches other nodes over SSH"),
        ("deepspeed", "local", {"gpus_per_node": 2}, ""),
        ("none", "local", {"gpus_per_node": 2}, "one process on each node, but 2 GPUs per node"),
        ("none", "local", {"nodes": 2}, ""),
        ("accelerate", "local", {"nodes": 2, "gpus_per_node": 2}, ""),
        ("torchrun-c10d", "slurm", {"nodes": 2}, ""),
    ],
)
def test_launcher_that_cannot_start_the_ranks_is_refused(
    tmp_path: Path, launcher: Any, backend: str, marker: dict[str, Any], words: str
) -> None:
    """With the place where it is written."""
    hosts = {"hosts": ["n1"]} if backend == "ssh" else {}
    profile = make_profile(tmp_path, backend=backend, **hosts)
    phase = make_phase(profile, launcher=launcher, **marker)
    found = [str(problem) for problem in unfit_launchers.find_launchers(profile, [phase])]
    assert len(found) == bool(words)
    assert all(words in problem and "test_x.py:1" in problem for problem in found)


@pytest.mark.parametrize(
    "keys", [{"python": "apptainer exec i.sif python"}, {"slurm": {"container_image": "i"}}]
)
def test_step_of_a_containers_job_is_refused(tmp_path: Path, keys: dict[str, Any]) -> None:
    """srun is not inside, and its tasks would start outside."""
    profile = make_profile(tmp_path, backend="slurm", **keys)
    (problem,) = unfit_launchers.find_launchers(profile, [make_phase(profile, launcher="srun")])
    assert "its job runs in a container" in str(problem)


def test_deepspeed_with_hosts_is_refused(tmp_path: Path) -> None:
    """A number of GPUs does not keep it on its node when it has a host file."""
    setup = ["deepspeed --num_gpus=2 --hostfile=/h train.py", "deepspeed --num_gpus 2 -H /h x.py"]
    profile = make_profile(tmp_path, backend="slurm", setup=setup)
    found = list(unfit_launchers.find_launchers(profile, []))
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
    assert list(unfit_launchers.find_launchers(profile, [make_phase(profile, script=script)])) == []
