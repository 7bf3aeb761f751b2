"""The configuration files, ports, paths and packages of a lab; no Slurm is needed."""

from __future__ import annotations

import dataclasses
import ipaddress
import socket
from pathlib import Path

import pytest

from pytest_clustersmoke.config.hostlist import expand_hostlist
from pytest_clustersmoke.lab import (
    LabError,
    LabSettings,
    addresses,
    lab_paths,
    packages,
    slurm_config,
)
from pytest_clustersmoke.lab.isolation import NETWORKS, reserve_network
from pytest_clustersmoke.lab.lab_settings import check_settings
from pytest_clustersmoke.text import UsageProblems

FILES = lab_paths.LabDir(Path("/lab"), Path("/lab/run"))
PLAN = slurm_config.Plan(
    files=FILES,
    cluster="t",
    user="root",
    control_host="host",
    control_address="127.0.0.1",
    control_port=20000,
    nodes=tuple(
        slurm_config.NodePlan(f"node{i}", "host", "127.0.0.1", 20001 + i) for i in range(2)
    ),
    cpus_per_node=8,
    gpus_per_node=2,
    slurm_version=(22, 5),
)


def settings_of(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if not line.startswith(("NodeName", "Partition"))]
    names = [line.partition("=")[0] for line in lines]
    assert len(names) == len(set(names)), "a setting is given twice"
    return dict(line.partition("=")[::2] for line in lines)


def test_daemons_listen_on_one_address_only() -> None:
    """slurm.conf for a plain lab keeps every daemon from listening on all addresses."""
    text = slurm_config.render_slurm_conf(PLAN, bound=True)
    words = settings_of(text)["CommunicationParameters"].split(",")
    assert set(words) == {"NoInAddrAny", "NoCtldInAddrAny"}
    assert "SlurmctldHost=host(127.0.0.1)" in text
    assert text.count("NodeAddr=127.0.0.1") == 2


def test_higher_partition_preempts() -> None:
    """`main` is the default partition. Jobs of `high` requeue its jobs at once, and those of
    `preemptible` after a minute, of which the signal that they asked for tells them."""
    text = slurm_config.render_slurm_conf(PLAN, bound=True)
    settings = settings_of(text)
    assert settings["PreemptType"] == "preempt/partition_prio"
    assert settings["PreemptMode"] == "REQUEUE"
    assert "PartitionName=main Nodes=node0,node1 Default=YES PriorityTier=1 " in text
    preemptible = "PartitionName=preemptible Nodes=node0,node1 Default=NO PriorityTier=1 GraceTime="
    assert preemptible + "60 " in text
    assert settings["SlurmctldParameters"] == "preempt_send_user_signal"
    assert "PartitionName=high Nodes=node0,node1 Default=NO PriorityTier=10 " in text


def test_memory_is_limited_in_the_labs_own_groups() -> None:
    """slurmd finds the groups below the lab's directory; a job gets a share by default."""
    without = settings_of(slurm_config.render_slurm_conf(PLAN, bound=True))
    assert (without["TaskPlugin"], without["SelectTypeParameters"]) == ("task/none", "CR_CPU")
    plan = dataclasses.replace(PLAN, memory=True)
    settings = settings_of(slurm_config.render_slurm_conf(plan, bound=True))
    assert settings["TaskPlugin"] == "task/cgroup"
    assert settings["SelectTypeParameters"] == "CR_CPU_Memory"
    assert int(settings["DefMemPerCPU"]) * PLAN.cpus_per_node < slurm_config.NODE_MEMORY_MIB
    groups = settings_of(slurm_config.render_cgroup_conf(plan))
    assert groups["CgroupMountpoint"] == "/lab/run/cgroup"
    assert groups["ConstrainRAMSpace"] == "yes"


def test_no_gres_without_gpus() -> None:
    """A lab of nodes without GPUs names no gres anywhere."""
    plan = dataclasses.replace(PLAN, gpus_per_node=0)
    assert "gres" not in slurm_config.render_slurm_conf(plan, bound=True).lower()
    assert "Name=gpu" not in slurm_config.render_gres_conf(plan)


def test_accounting_enforces_limits() -> None:
    """With accounting, unknown accounts and QOS are refused; without it nothing is stored."""
    without = settings_of(slurm_config.render_slurm_conf(PLAN, bound=True))
    assert without["AccountingStorageType"] == "accounting_storage/none"
    plan = dataclasses.replace(PLAN, accounting_port=20009)
    settings = settings_of(slurm_config.render_slurm_conf(plan, bound=True))
    assert settings["AccountingStorageEnforce"] == "associations,limits,qos"
    assert settings["AccountingStoragePort"] == "20009"
    assert settings_of(slurm_config.render_slurmdbd_conf(plan))["DbdPort"] == "20009"


@pytest.mark.parametrize(
    ("version", "plugin"), [((22, 5), "cgroup/v1"), ((23, 11), "disabled"), ((25, 5), "disabled")]
)
def test_cgroups_are_disabled_for_each_version(version: tuple[int, int], plugin: str) -> None:
    """cgroup.conf disables control groups in the way that each version of Slurm needs."""
    plan = dataclasses.replace(PLAN, slurm_version=version)
    assert f"CgroupPlugin={plugin}\n" in slurm_config.render_cgroup_conf(plan)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node0", ["node0"]),
        ("gpu[0-2,7]", ["gpu0", "gpu1", "gpu2", "gpu7"]),
        ("a[08-10],b", ["a08", "a09", "a10", "b"]),
    ],
)
def test_node_lists_expand(text: str, names: list[str]) -> None:
    """Slurm's short form of a node list expands to these nodes."""
    assert expand_hostlist(text) == names


def test_all_wrong_settings_are_reported_at_once() -> None:
    """Everything that is wrong with the settings is reported at once, each with its option."""
    with pytest.raises(UsageProblems) as refused:
        check_settings(LabSettings(name="A b", nodes=0, gpus_per_node=17, directory=Path("/a b/c")))
    where = [problem.where for problem in refused.value.problems]
    assert where == ["--name", "--nodes", "--gpus-per-node", "--dir"]


def test_reserved_ports_are_exclusive() -> None:
    """While reserved, another reservation gets other ports, and a daemon can bind ours."""
    with (
        addresses.reserve_ports("127.0.0.1", 3) as ours,
        addresses.reserve_ports("127.0.0.1", 3) as theirs,
    ):
        assert len(set(ours) | set(theirs)) == 6
        with socket.socket() as daemon:
            daemon.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            daemon.bind(("127.0.0.1", ours[0]))
            daemon.listen()
            assert addresses.is_listening("127.0.0.1", ours[0])
        assert not addresses.is_listening("127.0.0.1", theirs[0])


def test_network_in_use_is_not_chosen() -> None:
    """Two labs choose different networks, and neither has one to which the host has a route."""
    free = [ipaddress.IPv4Network("10.77.4.0/24"), ipaddress.IPv4Network("10.77.9.0/24")]
    used = [net for net in NETWORKS.subnets(new_prefix=24) if net not in free]
    with reserve_network(used) as first, reserve_network(used) as second:
        assert {first, second} == set(free)
        with pytest.raises(LabError, match="no free network"), reserve_network(used):
            pass


def test_long_path_gets_a_short_directory_for_sockets(tmp_path: Path) -> None:
    """A short path keeps its sockets; a long one gets a directory in which they fit."""
    assert lab_paths.choose_run(Path("/short")) == Path("/short/run")
    run = lab_paths.choose_run(tmp_path / ("x" * 100))
    try:
        assert len(str(run / lab_paths.LONGEST_SOCKET)) <= lab_paths.SOCKET_BYTES
        assert run.stat().st_mode & 0o777 == 0o700
    finally:
        run.rmdir()


def test_no_directory_for_sockets_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no short directory can be made, the message names the path and the option."""
    monkeypatch.setattr(lab_paths, "_make_private", lambda path: False)
    with pytest.raises(LabError, match=r"too many for the sockets .* --dir"):
        lab_paths.choose_run(tmp_path / ("x" * 100))


def test_missing_packages_are_those_without_their_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing programs are reported by package, only for the requested kind of lab."""
    monkeypatch.setattr(packages, "which", lambda name: None if name != "sbatch" else "/bin/sbatch")
    assert packages.missing_packages(False, False) == ["slurmctld", "slurmd", "munge"]
    assert packages.missing_packages(True, True)[3:] == [
        "slurmdbd",
        "mariadb-server",
        "iproute2",
        "util-linux",
    ]


def test_install_prints_its_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """apt-get runs with the requested packages; its command line and its failure are shown."""
    apt = tmp_path / "apt-get"
    apt.write_text('#!/bin/sh\necho "$RUNLEVEL $@" >> $0.log\necho no such thing\nexit $STATUS\n')
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(packages, "is_debian", lambda: True)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    messages: list[str] = []
    monkeypatch.setenv("STATUS", "0")
    packages.install(["munge"], messages.append)
    last = (tmp_path / "apt-get.log").read_text().splitlines()[-1]
    arguments = "-o DPkg::Lock::Timeout=120 install -y --no-install-recommends munge"
    assert last == f"1 {arguments}"
    assert f"RUNLEVEL=1 apt-get {arguments}" in messages[-2]
    assert "waits up to 120 s for another apt or dpkg" in messages[-1]
    monkeypatch.setenv("STATUS", "100")
    with pytest.raises(LabError, match="no such thing"):
        packages.install(["munge"], messages.append)


def test_only_root_on_debian_can_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the message names the packages that the administrator has to install."""
    monkeypatch.setattr(packages, "is_debian", lambda: False)
    with pytest.raises(LabError, match=r"on Debian or Ubuntu; ask .* to install munge"):
        packages.install(["munge"], print)
    monkeypatch.setattr(packages, "is_debian", lambda: True)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(LabError, match="only root"):
        packages.install(["munge"], print)


def test_node_lists_are_bounded() -> None:
    """A list that a job wrote may name any number of nodes, or none that is valid."""
    assert len(expand_hostlist("n[0-99999999999]")) == 100_000
    assert expand_hostlist("n[x-y,2]") == ["n2"]
