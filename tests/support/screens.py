"""What tests of `--cluster-screen` stage on the nodes of a lab, by lines of `setup`; and answers of
nodes that are on no machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_clustersmoke.evidence.screen_files import NodeAnswer
from tests.fakes.nvidia_smi import gpu
from tests.support.harness import Outcome, Suite

USUAL_DRIVER, OTHER_DRIVER = "550.90.12", "535.54.03"
# The work of one core, repeated: what a slow node would take.
SLOW = """
from pytest_clustersmoke.node import core_speed
once = core_speed.do_work
core_speed.do_work = lambda: [once() for _ in range(5)]
"""
# Each hop through the node's memory, as it is measured, repeated.
SLOW_MEMORY = """
from pytest_clustersmoke.rank.memory_speed import HostMemory
once = HostMemory.time_latency
HostMemory.time_latency = lambda self: sum(once(self) for _ in range(4))
"""
# What leaves nothing of an isolated node's own /tmp.
FILL_TMP = "mount -o remount,size=1m /tmp; ! dd if=/dev/zero of=/tmp/full bs=64k"
# A fake: it lists two GPUs with this driver, and knows no other question.
NVIDIA_SMI = """#!/bin/sh
case $1 in
--query-gpu=index,name,uuid,driver_version*)
  echo "0, NVIDIA H100, GPU-0-$SLURMD_NODENAME, {driver}, 81559 MiB, 00000000:01:00.0"
  echo "1, NVIDIA H100, GPU-1-$SLURMD_NODENAME, {driver}, 81559 MiB, 00000000:02:00.0";;
*) echo 'Field "x" is not a valid field to query.'; exit 2;;
esac
"""


def use_fake_gpus(suite: Suite, folder: Path, limit_s: float) -> None:
    """Have each node list two GPUs, and answer within a limit."""
    suite.profile["limits"] |= {"screen_s": limit_s}
    suite.profile["hardware"] = {"gpu": "any", "device": "cuda", "gpus_per_node": 2}
    suite.profile["setup"] = [f"export PATH={write_smi(folder / 'usual', USUAL_DRIVER)}:$PATH"]
    suite.profile["env"]["common"]["set"].pop("PYTHONPATH")  # for `make_slow`


def write_smi(folder: Path, driver: str) -> Path:
    """A folder with a fake nvidia-smi."""
    folder.mkdir()
    path = folder / "nvidia-smi"
    path.write_text(NVIDIA_SMI.format(driver=driver))
    path.chmod(0o755)
    return folder


def on_node(node: str, line: str) -> str:
    """A setup line that one node runs."""
    return f'if [ "$SLURMD_NODENAME" = {node} ]; then {line}; fi'


def stop_process(node: str) -> str:
    """The node's process is stopped before it can answer."""
    return on_node(node, "kill -STOP $$")


def change_driver(node: str, folder: Path) -> str:
    """The node's GPUs have another driver."""
    return on_node(node, f"export PATH={write_smi(folder / 'other', OTHER_DRIVER)}:$PATH")


def make_slow(node: str, folder: Path, code: str = SLOW) -> str:
    """The node's core takes five times as long for the same work, or what `code` says."""
    slow = folder / "slow"
    slow.mkdir()
    (slow / "sitecustomize.py").write_text(code)
    return on_node(node, f"export PYTHONPATH={slow}")


def read_screen(outcome: Outcome) -> dict[str, Any]:
    """The newest screen's report.json."""
    path = outcome.files.reports / "latest-screen" / "report.json"
    assert path.exists(), outcome.output
    record: dict[str, Any] = json.loads(path.read_text())
    return record


def read_lists(outcome: Outcome) -> dict[str, list[str]]:
    """The names in each list of the newest screen."""
    folder = outcome.files.reports / "latest-screen" / "screen"
    return {path.stem: path.read_text().split() for path in folder.glob("*.txt")}


def exclude_word(outcome: Outcome) -> str:
    """The word for sbatch that the terminal shows."""
    words = {word for line in outcome.outlines for word in line.split()}
    (word,) = {word for word in words if word.startswith("--exclude=")}
    return word


# What a screen of nodes with two GPUs asks of each.
SPEC: Mapping[str, Any] = {
    "backend": "slurm",
    "device": "cuda",
    "gpu": "any",
    "ranks_per_node": 2,
    "nodes": 2,
    "infiniband": False,
}


def answer(name: str, **facts: Any) -> NodeAnswer:
    """A healthy node's answer, changed by `facts`."""
    gpus = [{key: str(value) for key, value in gpu(index).items()} for index in range(2)]
    own = {
        "node": name,
        "boot_id": f"boot of {name}",
        "network_namespace": "net:[1]",
        "gpus": gpus,
        "gpu_processes": [],
        "gpu_driver": True,
        "packages": {"torch": "2.5.1"},
        "python": "3.11.7",
        "interfaces": {"eth0": {"up": True, "physical": True, "ipv4": ["10.0.0.1"], "ipv6": []}},
        "rdma_ports": [],
        "tmp": {"path": "/tmp", "error": None, "free_bytes": 2**40},
        "dev_shm_bytes": 2**36,
        "dev_shm_free_bytes": 2**36,
        "open_files_limit": 4096,
    }
    return NodeAnswer(name, {**own, **facts}, cpu="one", work_s=0.0015)


def healthy(count: int) -> list[NodeAnswer]:
    return [answer(f"n{number}") for number in range(count)]
