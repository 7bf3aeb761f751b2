"""Records of runs in which something is wrong, made from tests/support/records.py."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

from pytest_clustersmoke.config.metrics import describe_distance
from pytest_clustersmoke.report.topology import MAX_LINKS
from tests.support import records

DAY_S = 86400.0


def spread(median: float, share: float = 0.04) -> records.Record:
    return {
        "p5": median * (1 - 2 * share),
        "p25": median * (1 - share),
        "p50": median,
        "p75": median * (1 + share),
        "p95": median * (1 + 2.5 * share),
    }


def with_own_times(phase: records.Record, slow: int | None = None) -> records.Record:
    """Give each rank an own part of a step; the rank `slow` keeps the others waiting."""
    for rank in phase["ranks"]:
        wobble = 1 + 0.02 * math.sin(rank["rank"] * 1.7)
        rank["own_s"] = spread(0.041 * wobble)
        rank["step_s"] = spread(0.1 if slow is None else 0.142)
        if rank["rank"] == slow:
            rank["own_s"], rank["behind"] = spread(0.131), True
    return phase


def with_wrong_link(phase: records.Record, source: int) -> records.Record:
    """Make the link from this rank to the next use sockets."""
    topology = phase["topology"]
    assert topology is not None
    (link,) = [link for link in topology["links"] if link["source"] == source]
    link |= {"transport": "NET/Socket/0", "kind": "NET/Socket", "nics": ["eth0"]}
    link["unexpected"] = "expected NET/IB*"
    topology["links"].sort(key=lambda link: not link["unexpected"])
    place = {rank["rank"]: rank["node_rank"] or 0 for rank in phase["ranks"]}
    ends = sorted((place[source], place[link["destination"]]))
    topology["groups"] = [group for group in topology["groups"] if list(group["nodes"]) != ends]
    made: records.Record = {
        "nodes": (ends[0], ends[1]),
        "kind": "NET/Socket",
        "links": 1,
        "unexpected": 1,
        "bandwidth_gb_per_s": 1.17,
    }
    topology["groups"].append(made)
    return phase


def against(value: float, reference: float, unit: str = "samples/s") -> records.Record:
    """A metric with a past and with a reference that allows 10 % less."""
    made = records.metric(value, unit)
    low = reference * 0.9
    made["reference"] = {"value": reference, "low": low, "high": None, "source": "acceptance"}
    made["met"] = value >= low
    made["text"] = f"{describe_distance(value, reference, 'the reference')} {unit}"
    status = "ok" if value >= low else "fail"
    made["past"] = {
        "status": "ok" if status == "ok" else "fail",
        "runs": 24,
        "median": reference * 1.01,
        "mad": reference * 0.008,
        "warn": reference * 0.96,
        "fail": reference * 0.93,
        "text": f"{describe_distance(value, reference * 1.01, 'the median')} of 24 runs",
    }
    return made


def trend(phase: records.Record, runs: int = 30) -> records.Record:
    """Past nightly runs; the first six had another driver, and night 17 was not good."""
    bases = {
        name: metric["reference"]["value"] if metric["reference"] else metric["value"]
        for name, metric in phase["metrics"].items()
    }
    nights = range(runs)
    return {
        "run_ids": [f"202610{night:02d}-020000-00{night:04x}" for night in nights],
        "begun": [records.BEGUN - (runs - night) * DAY_S for night in nights],
        "good": [night != 17 for night in nights],
        "same": [night >= 6 for night in nights],
        "metrics": {
            name: [
                float(base) * (1 + 0.012 * math.sin(night * 2.3) - (0.08 if night < 6 else 0))
                for night in nights
            ]
            for name, base in bases.items()
        },
    }


def slow_phase() -> records.Record:
    """A slow rank, a link over sockets, and 30 % of the throughput lost."""
    phase = records.phase("zero1_4node")
    with_wrong_link(with_own_times(phase, slow=5), 3)
    phase["metrics"]["samples_per_s"] = against(1702.4, 2432.0)
    phase["metrics"]["steps_per_s"] = against(6.65, 9.5, "steps/s")
    phase["trend"] = trend(phase)
    phase["changed"] = ["driver 550.54.15 to 550.90.07"]
    phase["criteria"] |= {
        "test_no_rank_falls_behind": {
            "result": "failed",
            "text": "rank 5 on node2 falls behind: its own part of a step takes 131 ms",
            "judged": ["stragglers"],
        },
        "test_transports_between_nodes": {
            "result": "failed",
            "text": "rank 3 (node1, GPU 1) -> rank 4 (node2, GPU 0): NET/Socket/0 (eth0), "
            "expected NET/IB*: nccl/0001/node1.3.log:88",
            "judged": ["transports between nodes"],
        },
        "test_throughput_meets_the_reference": {
            "result": "failed",
            "text": phase["metrics"]["samples_per_s"]["text"],
            "judged": ["references"],
        },
    }
    return phase


def later(
    phase: records.Record, after_s: float, run_s: float, queue_s: float = 4.0
) -> records.Record:
    """The phase, submitted `after_s` after the start of the run, with these times."""
    begun = records.BEGUN + after_s
    phase |= {"submitted": begun, "started": begun + queue_s, "ended": begun + queue_s + run_s}
    phase |= {"queue_s": queue_s, "run_s": run_s}
    return phase


def curves(*names: str, sizes: int = 7, factor: int = 8, past: int = 0) -> list[records.Record]:
    """Curves of these collectives that rise to a plateau; `past`: so many runs before."""
    return [
        {
            "collective": name,
            "points": [_point(8 * factor**at, 10.0 + number, past) for at in range(sizes)],
        }
        for number, name in enumerate(names)
    ]


def _point(size: int, plateau: float, past: int) -> records.Record:
    seconds = 20e-6 + size / plateau / 1e9
    busbw = size / seconds / 1e9
    made: records.Record = {
        "asked_bytes": size,
        "size_bytes": size,
        "seconds": seconds,
        "algbw_gb_per_s": busbw / 1.75,
        "busbw_gb_per_s": busbw,
        "wrong": 0,
    }
    if past:
        ranges = {"busbw_gb_per_s": busbw * 1.04, "seconds": seconds / 1.04}
        made["past"] = {
            "runs": past,
            **{
                name: {"low": value * 0.97, "median": value, "high": value * 1.02}
                for name, value in ranges.items()
            },
        }
    return made


def lane(ranks: list[int], state: str, note: str, step: int | None = 40) -> records.Record:
    """The end of some ranks: they trained from the third second on, or wrote nothing."""
    stages = [("init", 0.1, 2.0), ("model", 2.0, 3.1), ("train", 3.1, None)]
    silent = state == "silent"
    return {
        "ranks": ranks,
        "nodes": [f"node{ranks[0] // 8}"],
        "state": state,
        "note": note,
        "stages": []
        if silent
        else [{"name": name, "begun_s": begun, "ended_s": end} for name, begun, end in stages],
        "last_s": None if silent else 14.2,
        "step": None if silent else step,
    }


def progress(lanes: list[records.Record], named: int = 1) -> records.Record:
    """How far a job got whose rank `named` died; rank 0 went on a little."""
    tracks = [
        {
            "rank": rank,
            "marks": [
                {
                    "step": 2 * at,
                    "at_s": 3.1 + at * 0.5,
                    "loss": 1.0 / at,
                    "steps_per_s": 4.0 + at % 3,
                }
                for at in range(1, last + 1)
            ],
        }
        for rank, last in ((0, 22), (named, 20))
    ]
    return {
        "steps": 400,
        "step": 44,
        "mark_every_s": 0.5,
        "ended_s": 14.6,
        "lanes": lanes,
        "tracks": tracks,
    }


def gloo_phase(nodes: int = 4) -> records.Record:
    phase = records.phase("allreduce_multinode", nodes=nodes, ranks_per_node=1)
    pairs = [(first, second) for first in range(nodes) for second in range(first + 1, nodes)]
    phase["topology"] = {
        "backend": "gloo",
        "note": "the ranks used gloo, which does not log its connections",
        "links": [],
        "groups": [
            {
                "nodes": pair,
                "kind": "gloo",
                "links": 0,
                "unexpected": 0,
                "bandwidth_gb_per_s": 0.4 + 0.03 * number,
            }
            for number, pair in enumerate(pairs)
        ],
    }
    phase["metrics"] = {"busbw_gb_per_s": against(0.4812, 0.5, "GB/s")}
    phase["collectives"] = curves("all_reduce", "all_gather", past=24)
    phase["loss"] = []
    return phase


def failed_phase() -> records.Record:
    """A phase with a killed rank: a finding, no metrics, a loss that ends in NaN."""
    phase = records.phase(
        "zero1_2gpu",
        nodes=1,
        outcome="failed",
        reason="rank 1 was killed by signal 9",
        findings=[
            records.finding(cause="rank 1 was killed by signal 9", ranks=[1], hosts=["node0"]),
            records.finding(id="watchdog", cause="the other rank waited", primary=False),
        ],
        metrics={},
        not_measured=[],
    )
    phase["loss"] = [*phase["loss"][:20], (21, "nan"), (22, "nan")]
    phase["ranks"][1]["done"] = False
    phase["criteria"] = {"job": {"result": "failed", "text": "see the finding"}}
    cause = "rank 1 was killed by signal 9"
    phase["progress"] = progress(
        [lane([0], "failed", "raised RuntimeError", 44), lane([1], "named", cause)]
    )
    return phase


def run(**changes: Any) -> records.Record:
    """A run in which one phase has three faults and a rank of another was killed."""
    one_gpu = records.phase("mlp_1gpu", nodes=1, ranks_per_node=1)
    one_gpu["metrics"]["steps_per_s"] = against(307.7, 305.0, "steps/s")
    one_gpu["trend"] = trend(one_gpu)
    phases = [
        later(one_gpu, 0, 16.8, 0.4),
        later(with_own_times(records.phase("ddp_2gpu", nodes=1)), 1, 21.0, 18.5),
        later(slow_phase(), 2, 61.2, 41.5),
        later(failed_phase(), 3, 12.0, 6.0),
        later(gloo_phase(), 4, 44.0, 64.0),
    ]
    verdict = "UNFIT"
    nodes = records.facts_of(phases)
    nodes[2]["facts"]["gpus"] = [{"name": "NVIDIA H100", "driver_version": "550.90.07"}]
    reds = ", ".join(n for n, c in phases[2]["criteria"].items() if c["result"] == "failed")
    failed = [f"zero1_4node: {reds}", "zero1_2gpu: failed"]
    return records.run(
        *phases,
        **{
            "verdict": verdict,
            "sentence": f"{verdict}: 2 of 5 phases failed ({'; '.join(failed)})",
            "failed": failed,
            "nodes": nodes,
            "changes": [
                "driver on node2: 550.54.15 to 550.90.07",
                "zero1_4node: passed, now 3 criteria fail",
            ],
            "known": [
                {
                    "what": "allreduce_multinode::test_latency",
                    "reason": "switch 4 awaits its firmware",
                    "until": "2026-12-01",
                    "where": "cluster.yaml:71",
                }
            ],
            "not_measured": ["mlp_1gpu: references not measured"],
            "absent_phases": [
                "lora_sft_ddp does not run on gilbreth: it needs 8 GPUs per node, and gilbreth has "
                "2"
            ],
            "differences": [
                {
                    "fact": "driver",
                    "values": {"550.54.15": ["node0", "node1", "node3"], "550.90.07": ["node2"]},
                }
            ],
            **changes,
        },
    )


def large(nodes: int = 64, ranks_per_node: int = 8) -> records.Record:
    """All ranks in a ring, every pair of nodes measured: 64 and 2,016 groups of links."""
    phase = records.phase("allreduce_multinode", nodes=nodes, ranks_per_node=ranks_per_node)
    slow = nodes * ranks_per_node * 2 // 3
    with_wrong_link(with_own_times(phase, slow=slow), nodes * 41 // 64 * ranks_per_node - 1)
    topology = phase["topology"]
    assert topology is not None
    topology["groups"] += measured_pairs(topology["groups"], nodes)
    phase["metrics"]["busbw_gb_per_s"] = against(170.1, 243.0, "GB/s")
    phase["trend"] = trend(phase, 100)
    return records.run(phase, verdict="UNFIT", sentence="UNFIT: 1 of 1 phases failed", failed=["x"])


def measured_pairs(groups: list[records.Record], nodes: int) -> list[records.Record]:
    """Groups with a measured bandwidth, for all pairs of nodes that have no group yet."""
    known = {tuple(group["nodes"]) for group in groups}
    return [
        {
            "nodes": (first, second),
            "kind": "NET/IB",
            "links": 8,
            "unexpected": 0,
            "bandwidth_gb_per_s": 44 + ((first * 7 + second * 13) % 40) / 10,
        }
        for first, second in itertools.combinations(range(nodes), 2)
        if (first, second) not in known
    ]


def ladder(phases: int = 8, all_wrong: bool = False) -> records.Record:
    """Phases of 512 ranks in which something is wrong, and nodes with all their facts.

    `all_wrong`: every listed link is unexpected, and no rank is done.
    """
    first = large()["phases"][0]
    made = []
    for number in range(phases):
        phase = copy.deepcopy(first)
        phase["phase"] = f"phase_{number}"
        if all_wrong:
            _spoil(phase)
        made.append(phase)
    nodes = records.facts_of(made)
    for node in nodes:
        node["facts"].update(_facts(node["node"]))
    return records.run(*made, verdict="UNFIT", sentence="UNFIT", failed=["x"], nodes=nodes)


def _spoil(phase: records.Record) -> None:
    topology = phase["topology"]
    assert topology is not None
    for link in topology["links"]:
        link |= {"transport": "NET/Socket/0", "kind": "NET/Socket"}
        link["unexpected"] = "expected NET/IB*"
    topology["links"] = (topology["links"] * 4)[:MAX_LINKS]
    for group in topology["groups"]:
        group |= {"kind": "NET/Socket", "unexpected": group["links"]}
    for rank in phase["ranks"]:
        rank["done"] = False


def _facts(node: str) -> dict[str, Any]:
    """About 10,000 characters, like the facts of a node with eight GPUs."""
    gpu = {
        "name": "NVIDIA H100 80GB HBM3",
        "driver_version": "550.54.15",
        "memory.total": "81559 MiB",
        "pci.bus_id": "00000000:1A:00.0",
    }
    port = {"rate": "400 Gb/sec (4X NDR)", "state": "4: ACTIVE", "link_layer": "InfiniBand"}
    return {
        "gpus": [{**gpu, "uuid": f"GPU-{node}-{number}"} for number in range(8)],
        "rdma_ports": [{**port, "hca": f"mlx5_{number}"} for number in range(10)],
        "interfaces": {f"eth{number}": {"ipv4": ["10.0.0.1"]} for number in range(12)},
        "variables": {f"NCCL_VARIABLE_{number}": "x" * 20 for number in range(30)},
        "packages": {f"package{number}": "1.2.3" for number in range(60)},
    }
