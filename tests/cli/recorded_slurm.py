"""A fake Slurm: `scontrol` and `sacctmgr` on PATH give recorded answers."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from pytest_clustersmoke.cli import SIGNALS, main
from tests.preflight.slurm_texts import CONFIG, node, partition

REPOSITORY = Path(__file__).parents[2]
# Variables that `init` reads, and that an outer job, a lab or the site may have set.
READ = ("SLURM_CONF", "SCRATCH", "WORK", "WORKDIR", "LOADEDMODULES")


class Slurm:
    """Recorded answers, as a directory that comes first on PATH."""

    def __init__(self, directory: Path) -> None:
        self.bin = directory / "bin"
        self.bin.mkdir()
        self.answer("config", CONFIG.replace("slurmdbd", "none"))
        self.nodes(
            *(
                node(f"n{i}", host=f"host{i}", partitions="gpu", gres="gpu:a100:4(S:0-1)")
                for i in range(4)
            )
        )
        self.partitions(partition("gpu"))
        self._program(
            "scontrol",
            'for word; do last=$word; done; cat "$here/$last" 2>/dev/null || '
            "{ echo first >&2; echo 'scontrol: fatal: no such thing' >&2; exit 1; }",
        )

    def _program(self, name: str, body: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\nhere={shlex.quote(str(self.bin))}\n{body}\n")
        path.chmod(0o755)

    def answer(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)

    def nodes(self, *lines: str) -> None:
        self.answer("node", "\n".join(lines))

    def partitions(self, *lines: str) -> None:
        self.answer("partition", "\n".join(lines))

    def accounts(self, associations: str, default: str) -> None:
        """Add accounting, which enforces these associations."""
        self.answer("config", CONFIG)
        self.answer("associations", associations)
        self.answer("default", default)
        self._program(
            "sacctmgr",
            'case "$*" in *" assoc "*) cat "$here/associations";; *) cat "$here/default";; esac',
        )


def environment(slurm: Slurm | None, **changed: str) -> dict[str, str]:
    """A user's, with these Slurm commands on PATH, or none."""
    env = {name: value for name, value in os.environ.items() if name not in READ}
    path = [str(slurm.bin), "/usr/bin", "/bin"] if slurm else ["/nowhere"]
    return env | {"PATH": ":".join(path), "PYTHONPATH": str(REPOSITORY), **changed}


def run_apart(
    slurm: Slurm | None, *words: str | Path, cwd: Path, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run `clustersmoke init` as a user does."""
    command = [sys.executable, "-m", "pytest_clustersmoke.cli", "init", *map(str, words)]
    env = environment(slurm, **environ)
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


def run(
    slurm: Slurm | None, *words: str | Path, cwd: Path, **environ: str
) -> subprocess.CompletedProcess[str]:
    """The same in this process, which saves its start."""
    command, out, err = ["init", *map(str, words)], io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    with (
        pytest.MonkeyPatch.context() as patch,
        mock.patch.dict(os.environ, environment(slurm, **environ), clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.chdir(cwd)
        try:
            status = main(command)
        except SystemExit as exit:  # argparse's
            status = int(exit.code or 0)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    return subprocess.CompletedProcess(command, status, out.getvalue(), err.getvalue())
