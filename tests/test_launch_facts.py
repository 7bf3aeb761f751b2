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


def test_variables_that_the_ranks_will_see(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's, torch's and gloo's variables are kept, and no others; what may be a secret is not."""
    monkeypatch.setattr(
        os,
        "environ",
        {
            "PATH": "/nowhere",
            "NCCL_ALGO": "Ring",
            "TORCH_NCCL_NAN_CHECK": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "GLOO_LICENSE_KEY": "hush",
            "HF_TOKEN": "hush",
        },
    )
    assert facts.gather(0, "n0")["variables"] == {
        "GLOO_LICENSE_KEY": "(hidden)",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_ALGO": "Ring",
        "TORCH_NCCL_NAN_CHECK": "1",
    }


def test_nccls_files_are_read_as_nccl_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that NCCL_CONF_FILE names, then the node's: NAME=VALUE lines, the first of a name
    counting; a comment, a line without `=`, and another program's variable are passed over."""
    mine, nodes = tmp_path / "mine.conf", tmp_path / "nccl.conf"
    mine.write_text("#NCCL_PROTO=LL\nNCCL_ALGO=Ring\nNCCL_ALGO=Tree\nPATH=/x\nNCCL_NET\n")
    nodes.write_bytes(b"NCCL_SOCKET_IFNAME==eth0\nNCCL_NET=\xff")
    monkeypatch.setenv("NCCL_CONF_FILE", str(mine))
    monkeypatch.setattr(facts, "NCCL_CONF", str(nodes))
    assert facts.gather(0, "n0")["nccl_conf"] == {
        str(mine): {"NCCL_ALGO": "Ring"},
        str(nodes): {"NCCL_NET": "\ufffd", "NCCL_SOCKET_IFNAME": "=eth0"},
    }


def test_a_file_of_nccl_that_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A FIFO, a directory or nothing of that name is passed over, and not waited for."""
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setattr(facts, "NCCL_CONF", str(tmp_path / "none"))
    for path in (tmp_path / "fifo", tmp_path):
        monkeypatch.setenv("NCCL_CONF_FILE", str(path))
        assert facts.gather(0, "n0")["nccl_conf"] == {}


def test_interfaces_have_their_addresses() -> None:
    """Loopback has an IPv4 address, and a list of the others, empty where there are none."""
    loopback = facts.gather(0, "n0")["interfaces"]["lo"]
    assert loopback["ipv4"] == ["127.0.0.1"] and isinstance(loopback["ipv6"], list)
