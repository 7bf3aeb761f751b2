"""Starts one rank, for launchers that give it no log of its own.

    python -m pytest_clustersmoke.node.rank_starter SCRIPT [ARGUMENT...]
    python -m pytest_clustersmoke.node.rank_starter --step PHASE_DIR

The first form becomes the rank: the launcher has set its variables. The second is a task of a step
that srun started. It numbers the rank, and stays to write down how the rank ended, which no other
process on its node is told.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from ..evidence.process_start import start_s
from ..evidence.run_directory import PhaseDir, read_json, write_json
from .abort_flag import visible
from .launch_environment import number_rank
from .process_tree import end_with_parent

# The nodes are ready at the same time, but a shared directory may show a file later.
ENVIRONMENT_S = 60.0
POLL_S = 0.05


def main(argv: list[str]) -> None:
    if argv[:1] == ["--step"]:
        sys.exit(run_task(PhaseDir(Path(argv[1]))))
    directory = PhaseDir(Path(os.environ["CLUSTERSMOKE_PHASE_DIR"]))
    node_rank, local_rank = os.environ["CLUSTERSMOKE_NODE_RANK"], os.environ.get("LOCAL_RANK", "0")
    for descriptor, path in enumerate(_logs(directory, node_rank, local_rank), start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), descriptor)
    os.execv(sys.executable, [sys.executable, "-u", *argv])


def run_task(directory: PhaseDir) -> int:
    """Run this task's rank to its end; returns the exit status as a shell would."""
    node_rank, local_rank = int(os.environ["SLURM_NODEID"]), int(os.environ["SLURM_LOCALID"])
    env, spec = _wait_for_environment(directory, node_rank), read_json(directory.spec) or {}
    # The numbers of this step, not those of the node's own task.
    env |= {name: value for name, value in os.environ.items() if name.startswith("SLURM")}
    env |= number_rank(spec, node_rank, local_rank, env["MASTER_ADDR"], env["MASTER_PORT"])
    stdout, stderr = _logs(directory, str(node_rank), str(local_rank))
    with stdout.open("ab") as output, stderr.open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-u", spec["script"], *spec["argv"]],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            preexec_fn=end_with_parent,
        )
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    record = {"pid": process.pid, "pid_started": start_s(process.pid)}
    record |= {"task_pid": os.getpid(), "task_pid_started": start_s(os.getpid())}
    path = directory.rank_process(int(env["RANK"]))
    write_json(path, record)
    code = process.wait()
    write_json(path, {**record, "code": code})
    return code if code >= 0 else 128 - code


def _logs(directory: PhaseDir, node_rank: str, local_rank: str) -> tuple[Path, Path]:
    """Where torchrun would redirect this rank's stdout and stderr."""
    folder = directory.rank_logs(node_rank) / "attempt_0" / local_rank
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "stdout.log", folder / "stderr.log"


def _wait_for_environment(directory: PhaseDir, node_rank: int) -> dict[str, str]:
    path, deadline = directory.node_environment(node_rank), time.monotonic() + ENVIRONMENT_S
    while time.monotonic() < deadline:
        if visible(path) and (env := read_json(path)) is not None:
            return env
        time.sleep(POLL_S)
    raise SystemExit(
        f"waited {ENVIRONMENT_S:g} s for {path}, which node {node_rank} of the job writes before "
        "its ranks start; check that it runs there, and that the directory is shared"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
