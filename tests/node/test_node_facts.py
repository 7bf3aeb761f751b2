"""What a node says of itself; of its GPUs see test_launch_gpus.py."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from pytest_clustersmoke.node import node_facts


def test_a_node_without_gpus_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without nvidia-smi no process is started, so that facts take no time; and they are JSON."""

    def started(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(subprocess, "Popen", started)
    found = node_facts.gather_node_facts(0, "n0")
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
    assert node_facts.gather_node_facts(0, "n0")["variables"] == {
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
    monkeypatch.setattr(node_facts, "NCCL_CONF", str(nodes))
    assert node_facts.gather_node_facts(0, "n0")["nccl_conf"] == {
        str(mine): {"NCCL_ALGO": "Ring"},
        str(nodes): {"NCCL_NET": "\ufffd", "NCCL_SOCKET_IFNAME": "=eth0"},
    }


def test_a_file_of_nccl_that_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A FIFO, a directory or nothing of that name is passed over, and not waited for."""
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setattr(node_facts, "NCCL_CONF", str(tmp_path / "none"))
    for path in (tmp_path / "fifo", tmp_path):
        monkeypatch.setenv("NCCL_CONF_FILE", str(path))
        assert node_facts.gather_node_facts(0, "n0")["nccl_conf"] == {}


def test_interfaces_have_their_addresses() -> None:
    """Loopback has an IPv4 address, and a list of the others, empty where there are none."""
    loopback = node_facts.gather_node_facts(0, "n0")["interfaces"]["lo"]
    assert loopback["ipv4"] == ["127.0.0.1"] and isinstance(loopback["ipv6"], list)


def test_limits_and_shared_memory_are_told() -> None:
    """Sizes in bytes, of the whole and of what is free; null is no limit."""
    found = node_facts.gather_node_facts(0, "n0")
    assert 0 <= found["dev_shm_free_bytes"] <= found["dev_shm_bytes"]
    assert found["may_lock_memory"] in (True, False)
    assert found["open_files_limit"] is None or found["open_files_limit"] > 0


def test_the_directory_for_temporary_files_is_written_to(tmp_path: Path) -> None:
    """A directory that takes a file is well, and nothing is left in it."""
    found = node_facts.scratch_directories({"TMPDIR": str(tmp_path)})
    assert found["tmp"]["error"] is None and found["tmp"]["free_bytes"] > 0
    assert found["build_directory"] is None and list(tmp_path.iterdir()) == []


def test_a_directory_for_temporary_files_that_is_not_there(tmp_path: Path) -> None:
    """It is told with the system's words, and what is taken in its place."""
    found = node_facts.scratch_directories({"TMPDIR": str(tmp_path / "job.7")})["tmp"]
    assert found["error"] == "No such file or directory"
    assert found["instead"] in node_facts.FALLBACKS


def test_a_build_directory_is_looked_at_and_not_made(tmp_path: Path) -> None:
    """One that can still be made is well; one below a file is not, and both are left alone."""
    (tmp_path / "file").touch()
    for name, well in (("a/b", True), ("file/b", False)):
        path = str(tmp_path / name)
        build = node_facts.scratch_directories({"TORCH_EXTENSIONS_DIR": path})["build_directory"]
        assert (build["error"] is None) is well
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
