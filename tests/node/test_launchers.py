"""The launchers' command lines and files; every one of them starts the same ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_clustersmoke.node.launch_environment import KEPT, restore_variables
from pytest_clustersmoke.node.launchers import LAUNCHERS, NodeLaunch, describe, launch_of
from pytest_clustersmoke.node.rendezvous import Endpoint
from tests.support.launched import SPEC, make_job

PROGRAM: dict[str, Any] = {"script": "train.py", "argv": ["--steps", "8"]}
RUN = {"STARTED": "1", "SLURM_JOB_ID": "7", "SLURM_CPU_BIND": "mask", "SBATCH_X": "1"}


def make_launch(folder: Path, node_rank: int = 1, **spec: Any) -> NodeLaunch:
    """The launch of a job with two ranks on each of two nodes."""
    sizes = {"nodes": 2, "ranks_per_node": 2, **PROGRAM, **spec}
    return launch_of(make_job(folder, node_rank, **sizes), Endpoint("127.0.0.1", 4321, True))


def test_step_of_a_phase_that_resumes_ignores_the_signal_to_stop(tmp_path: Path) -> None:
    """Slurm sends it to the ranks' tasks, too, also while their Python starts."""
    for name, ignores in (("resume", True), ("other", False)):
        words = LAUNCHERS["srun"].arguments(make_launch(tmp_path / name, **{name: True}))
        task = words[words.index("--export=ALL") + 1 : words.index(sys.executable)]
        command = [*task, "sh", "-c", "kill -USR1 $$; echo alive"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        assert answer.stdout == ("alive\n" if ignores else ""), answer


def test_dry_run_shows_the_line_of_each_launcher(tmp_path: Path) -> None:
    """Values that only the node knows are shell variables."""
    job = make_job(tmp_path, nodes=2, ranks_per_node=2, **PROGRAM)
    lines = {name: describe({**job.spec, "launcher": name}, job.dir) for name in LAUNCHERS}
    assert all(" train.py --steps 8" in line for line in lines.values())
    assert "--node-rank $NODE_RANK --master-addr $MASTER_ADDR" in lines["torchrun"]
    assert "--rdzv-endpoint $MASTER_ADDR:$MASTER_PORT" in lines["torchrun-c10d"]
    assert "is_host=$IS_HOST" in lines["torchrun-c10d"]
    assert "--node-rank" not in lines["torchrun-c10d"]
    assert lines["accelerate"].startswith("accelerate launch --config_file ")
    assert lines["deepspeed"].startswith("deepspeed --num_gpus 2 --master_port $MASTER_PORT ")
    assert lines["none"].startswith("python -m ")
    assert lines["srun"].startswith("srun --overlap --nodes=2 --ntasks=4 --ntasks-per-node=2 ")


def test_one_node_needs_no_address(tmp_path: Path) -> None:
    """torchrun finds its own port there, whichever rendezvous is asked for."""
    job = make_job(tmp_path, **PROGRAM)
    for name in ("torchrun", "torchrun-c10d"):
        assert "--standalone" in describe({**job.spec, "launcher": name}, job.dir)


def test_accelerate_gets_a_configuration_of_this_node(tmp_path: Path) -> None:
    """All ranks are counted, and the type is one of several processes, also on CPU."""
    launch = make_launch(tmp_path)
    assert LAUNCHERS["accelerate"].prepare(launch, {"A": "1"})["A"] == "1"
    written = yaml.safe_load(launch.directory.accelerate_config(1).read_text())
    assert written["distributed_type"] == "MULTI_GPU"
    assert (written["num_machines"], written["num_processes"], written["machine_rank"]) == (2, 4, 1)
    assert (written["main_process_ip"], written["main_process_port"]) == ("127.0.0.1", 4321)


@pytest.mark.slow
@pytest.mark.parametrize("configured", [True, False])
def test_accelerate_starts_one_process_without_a_configuration(
    tmp_path: Path, configured: bool
) -> None:
    """With `--cpu --num_processes 2` it starts one, without a rank; with ours, two."""
    pytest.importorskip("accelerate")
    program = tmp_path / "show.py"
    # One write a line: both write to one pipe.
    program.write_text("import os; os.write(1, f\"RANK {os.environ.get('RANK')}\\n\".encode())\n")
    launch = make_launch(tmp_path / "phase", 0, nodes=1)
    LAUNCHERS["accelerate"].prepare(launch, {})
    ours = ["--config_file", str(launch.directory.accelerate_config(0))]
    words = ours if configured else ["--cpu", "--num_processes", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "accelerate.commands.launch", *words, str(program)],
        env={**os.environ, "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    expected = ["RANK 0", "RANK 1"] if configured else ["RANK None"]
    assert sorted(line for line in done.stdout.splitlines() if "RANK" in line) == expected


def test_ranks_keep_what_a_launcher_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeepSpeed gives them the machine's first GPUs, and accelerate counts threads by itself."""
    launch = make_launch(tmp_path, 0, nodes=1)
    for launcher, name, own in (
        (LAUNCHERS["deepspeed"], "CUDA_VISIBLE_DEVICES", "GPU-8a5c,GPU-91f0"),
        (LAUNCHERS["accelerate"], "OMP_NUM_THREADS", "8"),
    ):
        env = launcher.prepare(launch, {name: own})
        monkeypatch.setattr("os.environ", {**env, name: "0,1"})
        restore_variables()
        assert os.environ[name] == own and KEPT not in os.environ
    env = LAUNCHERS["deepspeed"].prepare(launch, {})
    monkeypatch.setattr("os.environ", {**env, "CUDA_VISIBLE_DEVICES": "0,1"})
    restore_variables()
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_step_is_not_sized_by_the_step_that_starts_it(tmp_path: Path) -> None:
    """Of Slurm's variables only those that find the job reach srun; the ranks get all of them."""
    launch = make_launch(tmp_path)
    assert LAUNCHERS["srun"].prepare(launch, RUN) == {"STARTED": "1", "SLURM_JOB_ID": "7"}
    kept = yaml.safe_load(launch.directory.node_environment(1).read_text())
    assert kept == {**RUN, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4321"}


def test_plain_task_is_the_rank_of_its_node(tmp_path: Path) -> None:
    """It has all variables that torchrun would set."""
    env = LAUNCHERS["none"].prepare(make_launch(tmp_path, ranks_per_node=1), {})
    assert env == {
        "RANK": "1",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4321",
    }


def test_spec_without_a_launcher_is_run_by_torchrun(tmp_path: Path) -> None:
    """As in runs of earlier versions."""
    assert "launcher" not in SPEC
    assert describe(SPEC, make_job(tmp_path).dir).startswith("torchrun ")
