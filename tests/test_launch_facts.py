"""What a node says of itself, beside a driver that is sick or absent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pytest_clustersmoke.launch import facts

LINE = "0, NVIDIA H200, GPU-1, 550.54, 143771 MiB, 00000000:18:00.0"


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """nvidia-smi, for a test to write; whatever it started and noted in `pid` is ended."""
    path = tmp_path / "nvidia-smi"
    path.touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    yield path
    noted = tmp_path / "pid"
    if noted.exists():
        os.kill(int(noted.read_text()), signal.SIGKILL)


def test_gpus_are_listed_by_field(tool: Path) -> None:
    """Each line of nvidia-smi is a GPU with the fields that were asked for."""
    tool.write_text(f"#!/bin/sh\necho '{LINE}'\n")
    (gpu,) = facts.gather(0, "n0")["gpus"]
    assert gpu["name"] == "NVIDIA H200" and gpu["pci.bus_id"] == "00000000:18:00.0"


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 9\n", "#!/no/such/shell\n"])
def test_a_tool_that_fails_leaves_gpus_unknown(tool: Path, text: str) -> None:
    """No driver, or no tool that runs: null, and the other facts as ever."""
    tool.write_text(text)
    found = facts.gather(0, "n0")
    assert found["gpus"] is None and found["packages"]["submitit"]


def test_a_tool_that_cannot_be_ended_is_left_behind(
    tool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that keeps its output open past its time, and past its own KILL, is not waited for."""
    monkeypatch.setattr(facts, "NVIDIA_SMI_TIMEOUT_S", 0.5)
    noted = tool.parent / "pid"
    tool.write_text(
        f"#!/bin/sh\nsleep 600 &\necho $! > {noted}.new; mv {noted}.new {noted}; wait\n"
    )
    assert facts._gpus() is None
    assert psutil.pid_exists(int(noted.read_text()))


def test_a_node_without_gpus_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without nvidia-smi no process is started, so that facts take no time; and they are JSON."""

    def started(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(subprocess, "Popen", started)
    found = facts.gather(0, "n0")
    assert found["gpus"] is None and json.dumps(found)
