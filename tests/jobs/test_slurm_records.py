"""Slurm's output, of several versions, becomes plain records; hostile text stays text."""

from __future__ import annotations

import time
from collections.abc import Iterator
from math import inf

import pytest

from pytest_clustersmoke.config.hostlist import expand_hostlist
from pytest_clustersmoke.jobs import slurm_records as records
from tests.preflight import slurm_texts as texts


@pytest.fixture
def in_chicago(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This machine's clock shows the time of Chicago."""
    monkeypatch.setenv("TZ", "America/Chicago")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_parse_node_of_slurm_22() -> None:
    """Name, state, GPUs, CPUs, memory, partitions and host; no reason if Slurm gives none."""
    (node,) = records.parse_nodes(texts.node()).values()
    assert (node.name, node.gpus, node.cpus, node.memory) == ("n0", 2, 8, 1048576)
    assert node.partitions == {"main", "high"} and node.features == frozenset()
    assert node.host == "vm" and not node.gone and not node.away and node.reason == ""


def test_drained_node_says_why_who_and_when(in_chicago: None) -> None:
    """A reason that looks like fields is kept whole and changes no other field; Slurm's time, which
    has no zone, gets that of this machine."""
    line = texts.node(state="IDLE+DRAIN", reason="bad | State=IDLE Gres=gpu:9 NodeName=x")
    (node,) = records.parse_nodes(line).values()
    assert node.gone and node.name == "n0" and node.gpus == 2
    assert node.reason == "bad | State=IDLE Gres=gpu:9 NodeName=x"
    assert (node.by, node.since) == ("root", "2026-11-21T22:35:51-06:00")
    assert node.description == f"n0 is drain+idle ({node.reason}; root 2026-11-21T22:35:51-06:00)"
    assert node.text.endswith("[root@2026-11-21T22:35:51]")


def test_parse_node_of_slurm_24() -> None:
    """GPUs of all types with their sockets count; text after the reason is not a state."""
    (node,) = records.parse_nodes(texts.NODE_24).values()
    assert node.gpus == 10 and node.cpus == 96 and node.features == {"a100", "80gb", "ib"}
    assert node.states == {"IDLE", "CLOUD", "DRAIN", "DYNAMIC_NORM", "NOT_RESPONDING"}
    assert node.gone and node.reason == "Kill task failed"


@pytest.mark.parametrize(
    ("state", "gone", "away"),
    [
        ("IDLE", False, False),
        ("MIXED+COMPLETING", False, False),
        ("ALLOCATED+PLANNED", False, False),
        ("IDLE+CLOUD+POWERED_DOWN", False, False),
        ("DOWN*", True, False),
        ("DOWN+DRAIN+INVALID_REG", True, False),
        ("ALLOCATED+DRAIN", True, False),
        ("IDLE+FAIL", True, False),
        ("IDLE+NOT_RESPONDING", False, True),
        ("IDLE+MAINTENANCE+RESERVED", False, True),
        ("MIXED+DRAIN+REBOOT_REQUESTED", False, True),
        ("IDLE+CLOUD+DRAIN+POWER_DOWN+POWER_DRAIN", False, True),
        ("IDLE+CLOUD+DRAIN+POWERED_DOWN", True, False),
        ("DOWN+CLOUD+POWERING_DOWN", True, False),
        ("", False, False),
    ],
)
def test_node_states_that_take_no_jobs(state: str, gone: bool, away: bool) -> None:
    """Drained, down and failing nodes are gone; those that come back by themselves are away; those
    that are powered down until a job needs them are neither."""
    (node,) = records.parse_nodes(texts.node(state=state)).values()
    assert (node.gone, node.away) == (gone, away)


@pytest.mark.parametrize(
    ("gres", "count"),
    [
        ("gpu:2", 2),
        ("gpu", 1),
        ("gpu:3090:4", 4),
        ("shard:8,gpu:h100:8(S:0-1)", 8),
        ("(null)", 0),
        ("mygpu:2,gpu:a100:0", 0),
        ("gpu:a100:x", 0),
    ],
)
def test_count_gpus_of_node(gres: str, count: int) -> None:
    """Every type of gres/gpu counts, and nothing else."""
    (node,) = records.parse_nodes(texts.node(gres=gres)).values()
    assert node.gpus == count


def test_parse_partitions() -> None:
    """Limits and lists of 22.05 and 24.11; ALL restricts nothing."""
    partitions = records.parse_partitions(f"{texts.partition()}\n{texts.PARTITION_24}\n")
    main, gpu = partitions["main"], partitions["gpu"]
    assert main.default and main.state == "UP" and main.rules == {}
    assert (main.max_nodes, main.min_nodes, main.max_time, main.qos) == (None, 0, inf, "")
    assert (gpu.max_nodes, gpu.min_nodes, gpu.max_time) == (4, 2, 3 * 24 * 3600)
    assert gpu.qos == "gpu-limits"
    assert gpu.rules == {
        "AllowGroups": {"hpc", "gpu"},
        "AllowAccounts": {"euge", "lab"},
        "DenyQos": {"standby"},
    }


def test_parse_accounting_limits() -> None:
    """QOS with their limits; only the associations of this cluster."""
    qos = records.parse_qos(texts.QOS)
    assert set(qos) == {"normal", "standby"} and qos["normal"].limits.max_wall == inf
    standby = qos["standby"]
    assert standby.flags == {"DenyOnLimit"} and standby.limits.max_wall == 1800
    assert standby.limits.tres["MaxTRES"] == {"node": 1}
    assert standby.limits.tres["MaxTRESPU"] == {"gres/gpu": 2}
    mine = records.parse_associations(texts.ASSOCIATIONS, "pf")
    assert [association.account for association in mine] == ["lab", "root"]
    assert mine[0].qos == {"normal", "standby"} and mine[0].default_qos == "normal"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("n[1-3,7],login", ["n1", "n2", "n3", "n7", "login"]),
        ("r[0-1]n[08-09]", ["r0n08", "r0n09", "r1n08", "r1n09"]),
        ("r[0-1]n[3,5]x,y", ["r0n3x", "r0n5x", "r1n3x", "r1n5x", "y"]),
        ("[1]" * 9, []),
        ("n[a-b]", []),
    ],
)
def test_expand_hostlists(text: str, names: list[str]) -> None:
    """Ranges, several ranges in one name, and leading zeros expand."""
    assert expand_hostlist(text) == names


@pytest.mark.parametrize("text", ["", "\0\x1b[31m\n", "=\n= =", "NodeName=", "a|b", "x" * 10_000])
def test_unparsable_output_gives_no_records(text: str) -> None:
    """Unparsable text gives no records, and control characters are removed."""
    assert not records.parse_nodes(text) and not records.parse_partitions(text)
    assert not records.parse_qos(text) and not records.parse_associations(text, "pf")
    assert "\x1b" not in records.parse_nodes(texts.node(reason="\x1b[31mred"))["n0"].description


def test_topology_lists_the_nodes_below_each_switch_and_block() -> None:
    """Lines of a tree and of blocks, with their host lists expanded; no other line counts."""
    tree = (
        "SwitchName=leaf0 Level=0 LinkSpeed=1 Nodes=gpu[00-03]\n"
        "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=gpu[04-05,07]\n"
        "SwitchName=spine Level=1 LinkSpeed=1 Nodes=gpu[00-05,07] Switches=leaf[0-1]\n"
        "SwitchName=empty Level=0 LinkSpeed=1 Nodes=(null)\n"
    )
    found = records.parse_topology(tree)
    assert found["leaf0"] == ("gpu00", "gpu01", "gpu02", "gpu03")
    assert found["leaf1"] == ("gpu04", "gpu05", "gpu07")
    assert found["spine"] == (*found["leaf0"], *found["leaf1"])
    assert "empty" not in found
    block = "BlockName=b1 BlockIndex=0 Nodes=gpu[0-1] BlockSize=2\n"
    assert records.parse_topology(block) == {"b1": ("gpu0", "gpu1")}
    assert records.parse_topology("No topology information available\n") == {}
