"""Nodes that differ from the others.

Each node has a network, mounts, /tmp and /dev/shm of its own here, and in each phase something is
wrong with one node.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest

from pytest_clustersmoke import lab
from tests.faults import staged
from tests.faults.table import Fault
from tests.faults.table.lab import ISOLATED
from tests.support.harness import IDLE, Outcome, Suite
from tests.support.labs import LabHosts, running_lab, visible_folder
from tests.support.leftovers import none_left

pytestmark = [pytest.mark.lab, pytest.mark.slow_lab]

NODES = 13
FULL, FULL_NODE = "tmp_is_full", "node12"
UNREACHABLE = "10.78.0.5"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with visible_folder() as path:
        yield path


@pytest.fixture(scope="module")
def isolated(folder: Path) -> Iterator[lab.Lab]:
    directory = folder / "lab"
    settings = lab.LabSettings(name="apart", nodes=NODES, isolated=True, directory=directory)
    with running_lab(settings) as running:
        yield running


def mount_over(node: str, hosts: LabHosts, upper: Path, place: Path) -> None:
    """Lay a folder over another one; what the node writes there goes to the upper one."""
    work = upper.with_name(f"{upper.name}.work")
    work.mkdir()
    options = f"lowerdir={place},upperdir={upper},workdir={work}"
    hosts.run(node, 'mount -t overlay overlay -o "$1" "$2"', options, place)


def break_nodes(hosts: LabHosts, folder: Path) -> None:
    """Break one node for each fault."""
    shared = folder / "shared"
    shared.mkdir(mode=0o700)
    # Another installation: the folder of one package's metadata has another version in its name.
    installed = Path(str(metadata.distribution("transformers").locate_file("")))
    (info,) = installed.glob("transformers-*.dist-info")
    other = folder / "installed"
    shutil.copytree(info, other / "transformers-0.0.1.dist-info")
    os.mknod(other / info.name, stat.S_IFCHR)  # hides what has this name below it
    mount_over("node2", hosts, other, installed)
    # A shared directory that shows what other nodes write, and hides what this one writes.
    (folder / "upper").mkdir()
    mount_over("node4", hosts, folder / "upper", shared)
    # The name of the rendezvous node leads to an interface that not every node can reach.
    (folder / "hosts").write_text(f"{UNREACHABLE} node5\n127.0.0.1 localhost\n")
    hosts.run("node5", 'mount --bind "$1" /etc/hosts', folder / "hosts")
    hosts.run("node5", 'ip address add "$1/32" dev eth0', UNREACHABLE)
    hosts.run("node8", "mount -t tmpfs -o size=4m tmpfs /dev/shm")
    # No route between two nodes, neither of which is the rendezvous node.
    hosts.run("node11", 'ip route add unreachable "$1/32"', hosts.addresses["node10"])
    hosts.run(FULL_NODE, "mount -o remount,size=1m /tmp; ! dd if=/dev/zero of=/tmp/full bs=64k")


@pytest.fixture(scope="module")
def outcome(isolated: lab.Lab, folder: Path) -> Iterator[Outcome]:
    """One run of all faults."""
    with none_left() as (marker, _):
        suite = Suite(folder, marker, real_torchrun=True)
        suite.use_slurm(isolated.slurm_conf)
        break_nodes(LabHosts(isolated.name), folder)
        for fault in ISOLATED:
            staged.add(fault, suite)
        suite.profile["stage_limits_s"] = {"train_step": 10}
        slurm = {"nodelist": FULL_NODE, "exclusive": True}
        suite.profile["phases"][FULL] = {"slurm": slurm}
        suite.phase(FULL, script=IDLE, nodes=1)
        yield suite.run_apart(patience_s=300)


@pytest.mark.parametrize("fault", ISOLATED, ids=lambda fault: fault.name)
def test_different_node_is_named(
    fault: Fault, outcome: Outcome, record_property: Callable[[str, object], None]
) -> None:
    """The finding says what is wrong with which node."""
    staged.check(fault, outcome, record_property)


def test_full_tmp_is_a_warning(outcome: Outcome) -> None:
    """Another directory is used instead: the phase passes, with a warning that names the node."""
    phase = outcome.phase(FULL)
    assert phase["outcome"] == "passed", outcome.output
    (warning,) = phase["findings"]
    assert (warning["id"], warning["severity"]) == ("tmp-not-writable", "warning")
    assert warning["hosts"] == [FULL_NODE]
