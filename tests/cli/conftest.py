"""A recorded Slurm and an empty directory for what `init` writes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.cli import parser
from pytest_clustersmoke.config.cluster_file import load_cluster_file
from pytest_clustersmoke.config.profile import Profile
from tests.cli.recorded_slurm import Slurm, run
from tests.cli.transport_logs import RING

Init = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    """Four nodes of four A100, in the default partition `gpu`."""
    return Slurm(tmp_path)


@pytest.fixture
def init(tmp_path: Path, slurm: Slurm) -> Init:
    """Run `clustersmoke init` on that Slurm; it writes into `new`."""

    def call(*words: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
        return run(slurm, *words, tmp_path / "new", cwd=tmp_path, **environ)

    return call


@pytest.fixture
def profile(tmp_path: Path, init: Init) -> Callable[..., tuple[Profile, str]]:
    """The profile that `init` writes, as pytest will read it, and the text of its file."""

    def make(*words: str, **environ: str) -> tuple[Profile, str]:
        done = init(*words, **environ)
        assert done.returncode == 0, done.stdout + done.stderr
        path = tmp_path / "new" / "cluster.yaml"
        file: Any = load_cluster_file(path, {"HOME": "/home/me"})
        (name,) = file.names
        return file.profile(name), path.read_text()

    return make


@dataclass
class CommandResult:
    """The exit status of a subcommand, and what it printed; `--json` prints a `json_type`."""

    json_type: type
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        value = json.loads(self.out)
        assert isinstance(value, self.json_type)
        return value


@pytest.fixture
def run_command(capsys: pytest.CaptureFixture[str]) -> Callable[..., CommandResult]:
    """Run a subcommand in this process."""

    def call(json_type: type, *words: object) -> CommandResult:
        parsed = parser().parse_args([str(word) for word in words])
        status = parsed.run(parsed)
        return CommandResult(json_type, status, *capsys.readouterr())

    return call


@pytest.fixture
def transports(run_command: Callable[..., Any]) -> Any:
    """Run the subcommand in this process."""
    return partial(run_command, dict, "transports")


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    path = tmp_path / "ring.log"
    path.write_text(RING)
    return path
