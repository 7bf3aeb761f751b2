"""Labs for the tests of `pytest_clustersmoke.lab`; each test has its own home for them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_clustersmoke import lab
from pytest_clustersmoke.lab import lab_state, teardown
from tests.support.needs import need_lab
from tests.support.waiting import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The state home of this test's labs, short and not below /tmp; they end with the test."""
    path = Path(tempfile.mkdtemp(prefix="csm-", dir="/var/tmp"))
    monkeypatch.setenv("XDG_STATE_HOME", str(path))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    try:
        yield path
    finally:
        for record in lab_state.records():
            if record.here:
                teardown.end_lab(record)
        shutil.rmtree(path)


@pytest.fixture
def need() -> Callable[..., None]:
    """Skip if the machine cannot run such a lab; fail if it is required to."""
    return need_lab


@pytest.fixture
def start(need: Callable[..., None]) -> Callable[..., lab.Lab]:
    """Start a lab, by default of two nodes."""

    def start_lab(
        name: str = "t",
        nodes: int = 2,
        accounting: bool = False,
        isolated: bool = False,
        directory: Path | None = None,
        memory: bool = False,
    ) -> lab.Lab:
        need(accounting, isolated, memory)
        settings = lab.LabSettings(
            name=name,
            nodes=nodes,
            accounting=accounting,
            isolated=isolated,
            memory=memory,
            directory=directory,
        )
        return lab.start_lab(settings)

    return start_lab


@pytest.fixture
def command(home: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command in the test's home, with the SLURM_CONF of `lab`."""

    def run(*arguments: str, lab: lab.Lab | None = None) -> subprocess.CompletedProcess[str]:
        environ = {name: value for name, value in os.environ.items() if name != "SLURM_CONF"}
        if lab is not None:
            environ["SLURM_CONF"] = str(lab.slurm_conf)
        return subprocess.run(
            arguments, env=environ, cwd=home, capture_output=True, text=True, timeout=PATIENCE_S
        )

    return run


@pytest.fixture
def clustersmoke(
    command: Callable[..., subprocess.CompletedProcess[str]],
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the `clustersmoke` command."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return command(sys.executable, "-m", "pytest_clustersmoke.cli", *arguments)

    return run
