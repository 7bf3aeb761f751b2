"""Starts one rank, for launchers that give it no log of its own.

    python -m pytest_clustersmoke.node.rank_starter SCRIPT [ARGUMENT...]
    python -m pytest_clustersmoke.node.rank_starter --step RUN_DIRECTORY PLACE
    python -m pytest_clustersmoke.node.rank_starter --guard LAUNCHER [ARGUMENT...]

The first form becomes the rank: the launcher has set its variables. The second is a task of a step
that srun started: it opens the run's directory as `job_entry` does, since the program and its
environment are read there. It numbers the rank, and stays to record how the rank ended, which its
node cannot see. The third ends what a launcher leaves behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from ..evidence.process_start import start_s
from ..evidence.run_directory import PhaseDir, place_of_rank, read_json, write_json
from . import process_tree
from .abort_flag import visible
from .job_entry import REFUSAL, NotOurs, open_run
from .launch_environment import number_rank, restore_variables

# The nodes are ready at the same time, but a shared directory may show a file later.
ENVIRONMENT_S = 60.0
POLL_S = 0.05
GRACE_S = 1.0  # from TERM to KILL


def main(argv: list[str]) -> None:
    process_tree.ignore_stop_signal()
    match argv:
        case ["--step", run, place]:
            sys.exit(run_task(_open_phase(Path(run), place)))
        case ["--guard", *command]:
            sys.exit(run_guarded(command))
    directory = place_of_rank(os.environ["CLUSTERSMOKE_PHASE_DIR"], os.environ)
    node_rank, local_rank = os.environ["CLUSTERSMOKE_NODE_RANK"], os.environ.get("LOCAL_RANK", "0")
    for descriptor, path in enumerate(_logs(directory, node_rank, local_rank), start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), descriptor)
    restore_variables()
    os.execv(sys.executable, [sys.executable, "-u", *argv])


def _open_phase(run: Path, place: str) -> PhaseDir:
    """The phase's directory, by a descriptor of the run's."""
    try:
        return place_of_rank(str(open_run(run) / place), os.environ)
    except NotOurs as error:
        sys.exit(f"{REFUSAL}{error}")


def run_guarded(command: list[str]) -> int:
    """Run a launcher that leaves its processes behind when it is ended: they end with this one."""
    process_tree.adopt_orphans()

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        process_tree.end(process_tree.descendants(), GRACE_S)

    signal.signal(signal.SIGTERM, end)
    return _shell_status(subprocess.Popen(command, preexec_fn=process_tree.prepare_child).wait())


def run_task(directory: PhaseDir) -> int:
    """Run this task's rank to its end; returns the exit status as a shell would."""
    path = directory.rank_process(int(os.environ["SLURM_PROCID"]))
    record: dict[str, object] = {"task_pid": os.getpid(), "task_pid_started": start_s(os.getpid())}
    code = 1
    try:
        process = _start_rank(directory)
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        record |= {"pid": process.pid, "pid_started": start_s(process.pid)}
        write_json(path, record)
        code = process.wait()
    finally:
        # When its last task ends, a node terminates what is left of the tasks; srun must not take
        # that for the tasks' own failure.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        write_json(path, {**record, "code": code})
    return _shell_status(code)


def _start_rank(directory: PhaseDir) -> subprocess.Popen[bytes]:
    node_rank, local_rank = int(os.environ["SLURM_NODEID"]), int(os.environ["SLURM_LOCALID"])
    env, spec = _wait_for_environment(directory, node_rank), read_json(directory.spec) or {}
    # The numbers of this step, not those of the node's own task.
    env |= {name: value for name, value in os.environ.items() if name.startswith("SLURM")}
    env |= number_rank(spec, node_rank, local_rank, env["MASTER_ADDR"], env["MASTER_PORT"])
    stdout, stderr = _logs(directory, str(node_rank), str(local_rank))
    with stdout.open("ab") as output, stderr.open("ab") as errors:
        return subprocess.Popen(
            [sys.executable, "-u", spec["script"], *spec["argv"]],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            preexec_fn=process_tree.prepare_child,
        )


def _shell_status(code: int) -> int:
    return code if code >= 0 else 128 - code


def _logs(directory: PhaseDir, node_rank: str, local_rank: str) -> tuple[Path, Path]:
    """Where this rank's stdout and stderr go."""
    out, err = (directory.rank_log(node_rank, local_rank, stream) for stream in ("out", "err"))
    out.parent.mkdir(parents=True, exist_ok=True)
    return out, err


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
