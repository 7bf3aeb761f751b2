"""Starts a lab's daemons, each in its own session, and waits until they are ready."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from .lab_paths import LabDir
from .lab_processes import TOKEN_VARIABLE, Process, start_time
from .lab_settings import LabStartError
from .lab_state import Journal
from .packages import SYSTEM_PATH

POLL_S = 0.02
TAIL_LINES = 12
COMMAND_TIMEOUT_S = 20.0
# Variables of an outer allocation or another cluster would change what clients and daemons do.
FOREIGN = ("SLURM", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "MUNGE_")


def clean_environment(slurm_conf: Path, token: str = "") -> dict[str, str]:
    """The environment of a lab's daemons and clients."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    kept["PATH"] = f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"
    kept["SLURM_CONF"] = str(slurm_conf)
    kept["LC_ALL"] = "C"
    if token:
        kept[TOKEN_VARIABLE] = token
    return kept


# Daemons outlive the start of the lab; kept here until they have ended and are reaped.
_started: list[subprocess.Popen[bytes]] = []


class Daemons:
    """The daemons of one lab that is being started."""

    def __init__(self, files: LabDir, token: str, journal: Journal, timeout_s: float) -> None:
        self._files = files
        self._journal = journal
        self._deadline = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self.environ = clean_environment(files.slurm_conf, token)
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start(
        self, role: str, command: Sequence[str], environ: Mapping[str, str] | None = None
    ) -> int:
        """Start a daemon in the foreground of its own session, journal it, and return its pid."""
        # Its output: errors from before it opens its own log.
        with self._files.output(role).open("ab") as log:
            child = subprocess.Popen(
                list(command),
                env={**self.environ, **(environ or {})},
                cwd=self._files.logs,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        started = start_time(child.pid)
        if started is not None:
            self._journal.started(Process(role, child.pid, started))
        self._children[role] = child
        _started.append(child)
        return child.pid

    def wait(self, role: str, is_ready: Callable[[], bool], action: str) -> None:
        """Wait until a daemon is ready; `action` says in a message what it did not do in time.

        Raises LabStartError with the end of its log if any daemon dies or time runs out.
        """
        while not is_ready():
            self.check()
            if time.monotonic() > self._deadline:
                self.fail(role, f"did not {action} within {self._timeout_s:.0f} s")
            time.sleep(POLL_S)

    def check(self) -> None:
        """Raise LabStartError if a daemon has died."""
        for role, child in self._children.items():
            status = child.poll()
            if status is not None:
                how = f"exit status {status}" if status >= 0 else f"signal {-status}"
                self.fail(role, f"ended while the lab was starting ({how})")

    def fail(self, role: str, problem: str) -> NoReturn:
        """Raise LabStartError with the end of a daemon's log."""
        log, output = self._files.log(role), self._files.output(role)
        path = log if log.is_file() and log.stat().st_size else output
        raise LabStartError(f"{role} {problem}; the last lines of {path}:\n{tail(path)}")

    def run(self, command: Sequence[str], text: str = "") -> str:
        """Run a command that must succeed, with `text` as its input; return its output."""
        try:
            result = subprocess.run(
                list(command),
                env=self.environ,
                input=text,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=COMMAND_TIMEOUT_S,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise LabStartError(
                f"`{shlex.join(command)}` did not end within {COMMAND_TIMEOUT_S:.0f} s"
            ) from None
        if result.returncode:
            output = "\n".join("    " + line for line in result.stdout.splitlines()[-TAIL_LINES:])
            raise LabStartError(
                f"`{shlex.join(command)}` failed (exit status {result.returncode}):\n{output}"
            )
        return result.stdout


def reap() -> None:
    """Reap children that have ended, so that none stays a zombie."""
    _started[:] = [child for child in _started if child.poll() is None]


def tail(path: Path) -> str:
    """The last lines of a log, indented."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return "\n".join("    " + line for line in lines[-TAIL_LINES:]) or "    (empty)"


def munged_command(files: LabDir, program: str) -> list[str]:
    return [
        program,
        "--foreground",
        # Without it munged refuses a directory below one that others can write to.
        "--force",
        f"--key-file={files.munge_key}",
        f"--socket={files.munge_socket}",
        f"--pid-file={files.run}/munged.pid",
        f"--log-file={files.log('munged')}",
        f"--seed-file={files.run}/munged.seed",
        # Clients wait for a free thread, and all sruns of a wide job ask at once.
        "--num-threads=4",
    ]
