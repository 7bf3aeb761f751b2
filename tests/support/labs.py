"""A real Slurm of a test's own, on this machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pytest_clustersmoke import lab
from pytest_clustersmoke.lab import lab_state
from tests.support.needs import need_lab


@contextmanager
def running_lab(settings: lab.LabSettings) -> Iterator[lab.Lab]:
    """Start a lab, named for this process, and stop it at the end. Skips the test where this
    machine cannot run such a lab, or where its nodes would not see this Python."""
    if settings.isolated and sys.prefix.startswith("/tmp/"):  # each node has a /tmp of its own
        pytest.skip(f"isolated nodes do not see this Python, which lies in {sys.prefix}")
    need_lab(settings.accounting, settings.isolated, settings.memory)
    name = f"{settings.name}-{os.getpid()}"
    running = lab.start_lab(replace(settings, name=name))
    try:
        yield running
    finally:
        lab.stop_lab(name)


@contextmanager
def visible_folder() -> Iterator[Path]:
    """A directory that isolated nodes see, too: each has a /tmp of its own."""
    folder = Path(tempfile.mkdtemp(prefix="csm-", dir="/var/tmp"))
    yield folder
    shutil.rmtree(folder)


@contextmanager
def stopped_controller(running: lab.Lab) -> Iterator[None]:
    """Stop slurmctld, and let it go on at the end."""
    (controller,) = [
        process
        for process in psutil.process_iter(["name", "cmdline"])
        # psutil gives None for a process that ended meanwhile
        if (process.info["name"] or "").startswith("slurmctld")
        and str(running.slurm_conf) in (process.info["cmdline"] or ())
    ]
    controller.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        controller.send_signal(signal.SIGCONT)


class LabHosts:
    """The nodes of an isolated lab, and commands in one of them."""

    def __init__(self, name: str) -> None:
        (record,) = [record for record in lab_state.list_running() if record.name == name]
        self._holders = {daemon.role: daemon.pid for daemon in record.daemons}
        self.addresses = {
            name: address
            for address, *names in map(str.split, record.files.hosts.read_text().splitlines())
            for name in names
        }

    def run(self, node: str, script: str, *words: object) -> None:
        """Run a script in the node's namespaces; its arguments are `words`."""
        enter = ("nsenter", "--target", str(self._holders[f"host-{node}"]), "--net", "--mount")
        command = [*enter, "--", "sh", "-ec", script, "sh", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, (script, done.stderr)

    def slurmd(self, node: str) -> psutil.Process:
        """The node's daemon."""
        return psutil.Process(self._holders[f"slurmd-{node}"])


def kill_daemon(running: lab.Lab, role: str) -> None:
    """Kill one daemon of a lab by SIGKILL, such as `slurmd-node3`."""
    (record,) = [record for record in lab_state.list_running() if record.name == running.name]
    (daemon,) = [daemon for daemon in record.daemons if daemon.role == role]
    os.kill(daemon.pid, signal.SIGKILL)
