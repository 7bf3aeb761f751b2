"""The facts of a node; for its GPUs see test_gpu_facts.py."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from pytest_clustersmoke.node import node_facts


def test_node_without_nvidia_smi_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathering facts then takes no time; the facts are JSON."""

    def started(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(subprocess, "Popen", started)
    facts = node_facts.gather_node_facts(0, "n0")
    assert facts["gpus"] is None and json.dumps(facts)


def test_variables_of_the_ranks_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only variables of NCCL, torch and gloo are kept; possible secrets are hidden."""
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


def test_nccl_files_are_parsed_as_nccl_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the file that NCCL_CONF_FILE names, then the node's. The first NAME=VALUE line of a
    name counts; comments, lines without `=` and variables of other programs are ignored."""
    users, nodes = tmp_path / "users.conf", tmp_path / "nccl.conf"
    users.write_text("#NCCL_PROTO=LL\nNCCL_ALGO=Ring\nNCCL_ALGO=Tree\nPATH=/x\nNCCL_NET\n")
    nodes.write_bytes(b"NCCL_SOCKET_IFNAME==eth0\nNCCL_NET=\xff")
    monkeypatch.setenv("NCCL_CONF_FILE", str(users))
    monkeypatch.setattr(node_facts, "NCCL_CONF", str(nodes))
    assert node_facts.gather_node_facts(0, "n0")["nccl_conf"] == {
        str(users): {"NCCL_ALGO": "Ring"},
        str(nodes): {"NCCL_NET": "\ufffd", "NCCL_SOCKET_IFNAME": "=eth0"},
    }


def test_nccl_file_must_be_a_regular_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A FIFO, a directory or a missing file is ignored, and nothing waits for it; nor does a path
    fail that cannot be looked up, as in a home that this user may not enter."""
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setattr(node_facts, "NCCL_CONF", str(tmp_path / "none"))
    for path in (tmp_path / "fifo", tmp_path, tmp_path / ("x" * 300)):
        monkeypatch.setenv("NCCL_CONF_FILE", str(path))
        assert node_facts.gather_node_facts(0, "n0")["nccl_conf"] == {}


def test_interfaces_have_their_addresses() -> None:
    """Loopback has an IPv4 address and a list of IPv6 addresses, which may be empty."""
    loopback = node_facts.gather_node_facts(0, "n0")["interfaces"]["lo"]
    assert loopback["ipv4"] == ["127.0.0.1"] and isinstance(loopback["ipv6"], list)


def test_limits_and_shared_memory_are_recorded() -> None:
    """Sizes are in bytes, in total and free; null means no limit."""
    facts = node_facts.gather_node_facts(0, "n0")
    assert 0 <= facts["dev_shm_free_bytes"] <= facts["dev_shm_bytes"]
    assert facts["may_lock_memory"] in (True, False)
    assert facts["open_files_limit"] is None or facts["open_files_limit"] > 0


def test_temporary_directory_is_probed_with_a_file(tmp_path: Path) -> None:
    """A writable directory has no error, and no file is left in it."""
    directories = node_facts.scratch_directories({"TMPDIR": str(tmp_path)})
    assert directories["tmp"]["error"] is None and directories["tmp"]["free_bytes"] > 0
    assert directories["build_directory"] is None and list(tmp_path.iterdir()) == []


def test_missing_temporary_directory_is_recorded(tmp_path: Path) -> None:
    """The fact has the system's error, and the directory that is used instead."""
    tmp = node_facts.scratch_directories({"TMPDIR": str(tmp_path / "job.7")})["tmp"]
    assert tmp["error"] == "No such file or directory"
    assert tmp["instead"] in node_facts.FALLBACKS


def test_build_directory_is_checked_and_not_created(tmp_path: Path) -> None:
    """A directory that can be created has no error; one below a file has. A name that cannot be
    looked up, as below a directory that this user may not enter, is no reason to fail."""
    (tmp_path / "file").touch()
    for name, usable in (("a/b", True), ("file/b", False), ("x" * 300, True)):
        path = str(tmp_path / name)
        build = node_facts.scratch_directories({"TORCH_EXTENSIONS_DIR": path})["build_directory"]
        assert (build["error"] is None) is usable
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_interfaces_are_those_that_psutil_lists() -> None:
    """Their names, addresses and states, read without psutil."""
    import psutil

    ours = node_facts.gather_node_facts(0, "n0")["interfaces"]
    theirs, states = psutil.net_if_addrs(), psutil.net_if_stats()
    assert sorted(ours) == sorted(theirs)
    for name, entries in theirs.items():
        for kind, family in (("ipv4", socket.AF_INET), ("ipv6", socket.AF_INET6)):
            listed = [entry.address for entry in entries if entry.family == family]
            assert sorted(ours[name][kind]) == sorted(listed)
        assert ours[name]["up"] is states[name].isup


def test_versions_of_packages_are_those_of_their_metadata() -> None:
    from importlib import metadata

    packages = node_facts.gather_node_facts(0, "n0")["packages"]
    assert {"pytest-clustersmoke", "submitit"} <= packages.keys()
    assert packages == {name: metadata.version(name) for name in packages}
