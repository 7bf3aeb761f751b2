"""Judgement of node pairs: the slow pair, the slow node, and what cannot be judged."""

from __future__ import annotations

import random
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.criteria import node_pairs
from pytest_clustersmoke.evidence.metric import Unmeasured
from pytest_clustersmoke.evidence.run_directory import write_json
from tests.support.node_facts import port
from tests.support.swept import PAIR_GB_PER_S, Change, Record, Swept, slow_pairs


def of(node: int, nodes: int) -> list[tuple[int, int]]:
    return [pair for pair in combinations(range(nodes), 2) if node in pair]


def verdict(swept: Swept) -> str:
    with pytest.raises(AssertionError) as caught:
        node_pairs.check_none_is_slow(swept.result())
    return str(caught.value)


@pytest.mark.parametrize(("nodes", "per_node"), [(3, 1), (4, 2), (5, 8)])
def test_healthy_pairs(tmp_path: Path, nodes: int, per_node: int) -> None:
    """Every pair once, each with the bandwidth of its slowest rank; none is slow."""
    swept = Swept(tmp_path, nodes, per_node).metrics()
    speeds = node_pairs.Pairs(swept.result()).speeds
    assert sorted(speeds) == list(combinations(range(nodes), 2))
    assert list(speeds.values()) == pytest.approx([PAIR_GB_PER_S] * len(speeds))
    node_pairs.check_all_measured(swept.result())
    node_pairs.check_none_is_slow(swept.result())


@pytest.mark.parametrize("nodes", [3, 4, 5, 8])
def test_slow_node_is_named(tmp_path: Path, nodes: int) -> None:
    """If all pairs of a node are slow, that node is named, even if these are most pairs."""
    swept = Swept(tmp_path, nodes, 1, change=slow_pairs(*of(1, nodes)))
    assert verdict(swept) == (
        "node n1 is slow to every other node: 6.00 to 6.00 GB/s; pairs of nodes here usually "
        "reach 12.00 GB/s each way; a pair that is "
        + ("4% slower is named" if nodes > 4 else "26% slower (by a fixed factor of 1.35) is named")
    )


@pytest.mark.parametrize("nodes", [4, 5, 8])
def test_up_to_half_of_the_nodes_may_be_slow(tmp_path: Path, nodes: int) -> None:
    """Two slow nodes of four leave one healthy pair, which the others are compared with."""
    bad = range(nodes // 2)
    touched = {pair for node in bad for pair in of(node, nodes)}
    words = verdict(Swept(tmp_path, nodes, 1, change=slow_pairs(*touched)))
    assert all(f"node n{node} is slow to every other node" in words for node in bad)
    assert f"node n{nodes - 1} is slow" not in words


def test_slow_pair_is_named(tmp_path: Path) -> None:
    """If both nodes are fast to all others, the pair is at fault."""
    swept = Swept(tmp_path, 4, 2, change=slow_pairs((1, 3), per_node=2))
    assert verdict(swept).startswith("n1 and n3 are slow to each other: 6.00 GB/s; pairs")


def test_slow_node_and_slow_pair(tmp_path: Path) -> None:
    """Each is named once, the node first."""
    swept = Swept(tmp_path, 8, 1, change=slow_pairs(*of(0, 8), (4, 6)))
    words = verdict(swept)
    assert words.startswith("node n0 is slow to every other node: 6.00 to 6.00 GB/s; n4 and n6 are")
    assert words.count("slow to") == 2


def test_one_slow_rank_makes_its_pair_slow(tmp_path: Path) -> None:
    """One slow NIC of eight is not hidden by the seven others."""

    def change(rank: int, record: Record) -> Record:
        slow = record["what"] == "pair" and rank == 3 and record["peer"] == 19
        return {**record, "own_seconds": record["own_seconds"] * 2} if slow else record

    words = verdict(Swept(tmp_path, 3, 8, change=change))
    assert words.startswith("n0 and n2 are slow to each other: 6.00 GB/s")


def spread(percent: float, *slow: tuple[int, int], factor: float = 1.0) -> Change:
    """Healthy pairs differ by `percent` (standard deviation); some take longer, by a factor."""

    def change(rank: int, record: Record) -> Record | None:
        if record["what"] != "pair":
            return record
        pair = tuple(sorted((rank, record["peer"])))
        healthy = random.Random(f"{pair}").gauss(1, percent / 100)
        times = healthy * (factor if pair in slow else 1)
        return {**record, "own_seconds": record["own_seconds"] * times}

    return change


@pytest.mark.parametrize(
    ("nodes", "percent", "factor", "slow"),
    [
        (8, 0.3, 1.03, False),  # below the least that is ever named
        (8, 0.3, 1.08, True),  # outside what the others show
        (8, 5, 1.3, False),  # as the others
        (4, 0.3, 1.12, True),
        (3, 0.3, 1.3, False),  # too few pairs: a fixed factor
        (3, 0.3, 1.4, True),
    ],
)
def test_pair_is_judged_by_the_spread_of_the_others(
    tmp_path: Path, nodes: int, percent: float, factor: float, slow: bool
) -> None:
    """A pair is slow if it is outside what the others show."""
    swept = Swept(tmp_path, nodes, 1, change=spread(percent, (0, 1), factor=factor))
    if slow:
        assert verdict(swept).startswith("n0 and n1 are slow to each other")
    else:
        node_pairs.check_none_is_slow(swept.result())


@pytest.mark.parametrize("nodes", [4, 8])
def test_slow_node_is_found_among_pairs_that_differ(tmp_path: Path, nodes: int) -> None:
    """At 1 % of spread, a node with a third less bandwidth is named, and nothing else."""
    change = spread(1, *of(2, nodes), factor=1.5)
    words = verdict(Swept(tmp_path, nodes, 1, change=change))
    assert words.startswith("node n2 is slow to every other node") and words.count("slow to") == 1


def test_two_nodes_have_nothing_to_compare_with(tmp_path: Path) -> None:
    """One pair is measured and reported, but not judged without a reference."""
    swept = Swept(tmp_path, 2, 2).metrics()
    node_pairs.check_all_measured(swept.result())
    with pytest.raises(Unmeasured, match=r"two nodes are one pair \(12\.00 GB/s each way\)"):
        node_pairs.check_none_is_slow(swept.result())


def test_gloo_pairs_are_measured_but_not_judged(tmp_path: Path) -> None:
    """Under gloo pairs are measured, and their bandwidths not judged."""
    swept = Swept(tmp_path, 4, 1, backend="gloo", change=slow_pairs(*of(1, 4)))
    swept.metrics(pair_bandwidth_min_gb_per_s=PAIR_GB_PER_S / 2)
    node_pairs.check_all_measured(swept.result())
    with pytest.raises(Unmeasured, match="talked over gloo"):
        node_pairs.check_none_is_slow(swept.result())


def test_virtual_nodes_say_nothing_about_a_network(tmp_path: Path) -> None:
    """Nodes of one machine share its loopback, under NCCL as well."""
    swept = Swept(tmp_path, 4, 1, backend_of_job="local", change=slow_pairs(*of(1, 4)))
    with pytest.raises(Unmeasured, match="the nodes are virtual"):
        node_pairs.check_none_is_slow(swept.result())


def test_small_messages_are_not_judged(tmp_path: Path) -> None:
    """Below 64 MiB a pair is not judged."""
    mib = {"size_bytes": 2**20, "checked": 2**18, "own_seconds": 1e-3}

    def change(rank: int, record: Record) -> Record:
        return {**record, **mib} if record["what"] == "pair" else record

    with pytest.raises(Unmeasured, match="the pairs exchanged 1 MiB; below 64 MiB latency"):
        node_pairs.check_none_is_slow(Swept(tmp_path, 3, 1, change=change).result())


def test_nodes_with_the_same_name_stay_separate(tmp_path: Path) -> None:
    """Their node ranks distinguish them."""
    swept = Swept(tmp_path, 3, 1, change=slow_pairs(*of(1, 3)))
    for rank in (0, 1):
        start = {"rank": rank, "node_rank": rank, "node": "same", "host": "h"}
        swept.evidence.rank(rank, ("start", start))
    assert verdict(swept).startswith("node same (node 1) is slow to every other node")


def only(rank: int, other: int, /, **values: Any) -> Change:
    """Change what a rank recorded of its exchange with another; without values, remove it."""

    def change(of: int, record: Record) -> Record | None:
        if (of, record.get("peer")) != (rank, other):
            return record
        return {**record, **values} if values else None

    return change


@pytest.mark.parametrize("check", [node_pairs.check_all_measured, node_pairs.check_none_is_slow])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (only(2, 1), "rank 2 (n2) measured no exchange with n1"),
        (only(2, 1, peer=2), "rank 2 (n2) measured no exchange with n1"),
        (only(2, 1, peer="1"), "rank 2 (n2) measured no exchange with n1"),
        (only(2, 1, peer=-2), "rank 2 (n2) measured no exchange with n1"),
        (only(2, 1, size_bytes=8), "expected one size"),
        (only(2, 1, size_bytes=None), "expected one size"),
        (only(2, 1, own_seconds="nan"), "own_seconds of the exchange of rank 2 (n2) with rank 1"),
        (only(2, 1, own_seconds=0), "expected a positive time"),
        (only(2, 1, own_seconds=-1.0), "expected a positive time"),
        (only(2, 1, checked=1), "1 elements were checked, expected all 16777216"),
        (only(2, 1, wrong=1), "1 of 16777216 elements are wrong"),
        (only(2, 1, wrong=None), "expected a count"),
    ],
)
def test_pair_that_was_not_measured_fails(
    tmp_path: Path, check: Any, change: Change, words: str
) -> None:
    """A pair does not count if one end did not measure it or received wrong data."""
    with pytest.raises(AssertionError) as caught:
        check(Swept(tmp_path, 3, 1, change=change).metrics().result())
    assert words in str(caught.value)


def test_metric_that_does_not_follow_from_the_times(tmp_path: Path) -> None:
    """The slowest pair's bandwidth must follow from the recorded times."""
    swept = Swept(tmp_path, 3, 1).metrics(pair_bandwidth_min_gb_per_s=12.5)
    with pytest.raises(AssertionError, match=r"reports 12\.5 GB/s for the slowest pair; the times"):
        node_pairs.check_all_measured(swept.result())


@pytest.mark.parametrize("node", [None, "0", True, 1.0])
def test_rank_without_a_node_is_unmeasured(tmp_path: Path, node: Any) -> None:
    """Its pair is unknown."""
    swept = Swept(tmp_path, 3, 1).metrics()
    swept.evidence.rank(1, ("start", {"rank": 1, "node_rank": node}))
    for check in (node_pairs.check_all_measured, node_pairs.check_none_is_slow):
        with pytest.raises(Unmeasured, match=r"rank 1 \(unknown\) has no known node"):
            check(swept.result())


def test_ranks_on_fewer_nodes_than_requested(tmp_path: Path) -> None:
    """Three requested nodes turn out to be two."""
    swept = Swept(tmp_path, 3, 1).metrics()
    swept.evidence.rank(2, ("start", {"rank": 2, "node_rank": 1, "node": "n1"}))
    with pytest.raises(AssertionError, match="the ranks are on 2 nodes, expected 3"):
        node_pairs.check_all_measured(swept.result())


def test_one_node_has_no_pair(tmp_path: Path) -> None:
    """A phase that measured nothing does not pass."""
    with pytest.raises(AssertionError, match="no pair"):
        node_pairs.check_all_measured(Swept(tmp_path).metrics().result())


PORT = port(0, rate="200 Gb/sec (4X HDR)")  # 25 GB/s
USING = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB; OOB ib0:10.0.0.1<0>"


def with_ports(
    swept: Swept, via: str = "NET/IB/0/GDRDMA", connection: int = 1, back: str = ""
) -> Swept:
    """Ranks whose NCCL logs say that each exchange went `via` this, and came `back` by the same or
    by this, by a connection for send and receive, on nodes with a port of 200 Gbit/s and a faster
    one."""
    evidence = swept.evidence
    per_node, world = evidence.per_node, evidence.world
    for rank in range(world):
        node = rank // per_node
        head = f"n{node}:{1000 + rank}:{9000 + rank} [0] NCCL INFO "
        ids = f"comm 0x5a{rank:04x} rank {rank} nranks {world} cudaDev 0 nvmlDev 0 busId 18000 "
        lines = [USING, f"ncclCommInitRank {ids}commId 0xf1 - Init START"]
        lines.append(f"ncclCommInitRank {ids}commId 0xf1 - Init COMPLETE")
        for peer in range(rank % per_node, world, per_node):
            if peer != rank:
                channel = f"Channel 00/{connection} :"
                lines.append(f"{channel} {rank}[0] -> {peer}[0] [send] via {via}")
                lines.append(f"{channel} {peer}[0] -> {rank}[0] [receive] via {back or via}")
        logs = evidence.dir.nccl_logs(node)
        logs.mkdir(parents=True, exist_ok=True)
        (logs / f"n{node}.{1000 + rank}.log").write_text("".join(f"{head}{x}\n" for x in lines))
    for node in range(evidence.nodes):
        evidence.node(node, ok=True)
        facts = {"node": f"n{node}", "rdma_ports": [PORT, port(1)]}
        write_json(evidence.dir.node_facts(node), facts)
    return swept


@pytest.mark.parametrize(
    ("nodes", "per_node", "words"),
    [
        (2, 1, "n0 and n1 are slow to each other: 1.00 GB/s"),
        (3, 1, "all 3 pairs of nodes are slow: 1.00 to 1.00 GB/s"),
        (4, 2, "all 6 pairs of nodes are slow: 1.00 to 1.00 GB/s"),
    ],
)
def test_pair_below_a_tenth_of_its_ports_fails_without_peers(
    nodes: int, per_node: int, words: str, tmp_path: Path
) -> None:
    """Where all pairs are equally slow, as well: a PCIe path that sends copies the wrong way does
    that to every node. Ranks that share a port share what it carries."""
    every = slow_pairs(*combinations(range(nodes), 2), per_node=per_node, factor=12)
    failed = verdict(with_ports(Swept(tmp_path, nodes, per_node, change=every)))
    assert failed == (
        f"{words}; the ports that NCCL chose between n0 and n1 carry {25 / per_node:.2f} GB/s each "
        "way for each rank, of which at least 10% was expected: check the PCIe paths between their "
        "GPUs and ports (GPUDirect RDMA, access control services, IOMMU)"
    )


def test_node_below_a_tenth_of_its_ports_is_named(tmp_path: Path) -> None:
    """The others are not, and the floor is judged before the spread."""
    swept = with_ports(Swept(tmp_path, 4, 1, change=slow_pairs(*of(2, 4), factor=12)))
    assert verdict(swept).startswith(
        "node n2 is slow to every other node: 1.00 to 1.00 GB/s; the ports that NCCL chose"
    )


def test_pair_above_its_floor_passes_and_says_what_it_would_have_named(tmp_path: Path) -> None:
    """2.5 GB/s of 25 are the floor of one rank, half of it that of each of two."""
    result = with_ports(Swept(tmp_path, 4, 2)).result()
    node_pairs.check_none_is_slow(result)
    assert "would have named a pair below 1.250 GB/s each way" in result.sensitivity


def test_ports_to_send_by_and_to_receive_by_do_not_add_up(tmp_path: Path) -> None:
    """Where a GPU has two ports, NCCL may take one of them for each way: 12 GB/s each way are
    nearly half of the slower one, and not a sixth of both."""
    result = with_ports(Swept(tmp_path, 4, 1), back="NET/IB/1/GDRDMA").result()
    node_pairs.check_none_is_slow(result)
    assert any("below 2.5" in words for words in result.sensitivity)


@pytest.mark.parametrize(
    ("via", "connection", "ports"),
    [
        ("NET/Socket/0", 1, [port(0)]),
        ("NET/IB/0", 0, [port(0)]),
        ("NET/IB/2", 1, [port(0)]),
        ("NET/IB/0", 1, [port(1)]),
        ("NET/IB/0", 1, [port(0), {**port(0), "port": "2"}]),
        ("NET/IB/0", 1, [{**port(0), "rate": "unknown"}]),
        ("NET/IB/0", 1, None),
    ],
    ids=(
        "sockets",
        "of collectives",
        "not listed",
        "no such port",
        "two ports",
        "no rate",
        "no facts",
    ),
)
def test_ports_that_are_not_known_give_no_floor(
    via: str, connection: int, ports: Any, tmp_path: Path
) -> None:
    """A pair is then judged by the others alone."""
    every = slow_pairs(*combinations(range(3), 2), factor=12)
    swept = with_ports(Swept(tmp_path, 3, 1, change=every), via, connection)
    for node in range(3):
        write_json(swept.evidence.dir.node_facts(node), {"node": f"n{node}", "rdma_ports": ports})
    result = swept.result()
    node_pairs.check_none_is_slow(result)
    assert len(result.sensitivity) == 1
