"""Records of runs, made by hand, for tests of the renderers and of the history.

Each builder returns valid plain data, of which a test changes what it needs. `parsed` turns it into
the model that the views take.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from pytest_clustersmoke.criteria import past_annotation
from pytest_clustersmoke.evidence.history import history_store
from pytest_clustersmoke.evidence.run_counts import ProofRecord, RunTally
from pytest_clustersmoke.evidence.run_directory import RunDir
from pytest_clustersmoke.evidence.run_record import RunRecord
from pytest_clustersmoke.report.node_evidence import observe_nodes
from pytest_clustersmoke.report.record_builder import FinishedRun, count_run, store_verdict
from pytest_clustersmoke.report.verdict import judge_record

Record = dict[str, Any]  # a part of report.json, as plain data
BEGUN = 1_795_000_000.0
REQUEST = {
    "user": "anna",
    "host": "login1",
    "command": "pytest --cluster gilbreth --cluster-set 'a.env.WANDB_API_KEY=(hidden)'",
    "utc_offset_s": -18000,
    "publish": "all",
}
VERSIONS = {
    "python": "3.11.7",
    "torch": "2.5.1+cu121",
    "cuda": "12.1",
    "nccl": "2.21.5",
    "driver": "550.54.15",
}


def parsed(record: Record) -> RunRecord:
    return RunRecord.model_validate(record)


def counted(tally: RunTally, proof: ProofRecord | None = None) -> RunRecord:
    """The record of what was counted, not judged yet."""
    return count_run(FinishedRun(RunDir(Path()), Path(), run(), tally, proof=proof))


def judged(tally: RunTally) -> RunRecord:
    """The record of what was counted, with its verdict."""
    record = counted(tally)
    store_verdict(record, judge_record(record))
    return record


def annotate(record: Record, report_dir: Path) -> None:
    """Complete the record with its past, as `past_annotation.annotate` completes the model."""
    completed = parsed(record)
    past_annotation.annotate(completed, report_dir)
    record |= completed.as_json()


def store_run(record: Record, report_dir: Path, judged: bool = True) -> None:
    """Store the record in the history of this directory."""
    made = parsed(record)
    history_store.store_run(made, report_dir, judged, observations=observe_nodes(made))


def insert_rows(connection: Connection, table: str, rows: Iterable[Sequence[object]]) -> None:
    """Insert many rows with the first columns of a table of history.db; those that later versions
    add come after them, and get their defaults."""
    rows = list(rows)
    count = len(rows[0])
    columns = [column[1] for column in connection.execute(f"PRAGMA table_info({table})")]
    names, marks = ", ".join(columns[:count]), ", ".join("?" * count)
    connection.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", rows)


def metric(value: float, unit: str = "steps/s", higher_is_better: bool = True) -> Record:
    return {
        "value": value,
        "unit": unit,
        "higher_is_better": higher_is_better,
        "reference": None,
        "met": None,
        "text": f"{value} {unit}; no reference",
        "past": None,
    }


def finding(**changes: Any) -> Record:
    made: dict[str, Any] = {
        "id": "rank-killed",
        "cause": "rank 3 was killed by signal 9",
        "fix": "look into the kernel's log of node1",
        "primary": True,
        "evidence": [{"file": "nodes/0001/launcher.log", "line": 12, "text": "exitcode: -9"}],
        "hosts": ["node1"],
        "ranks": [3],
        "detail": {},
        "severity": "failure",
    }
    return {**made, **changes}


def node(number: int) -> Record:
    return {"node_rank": number, "node": f"node{number}", "host": f"node{number}"}


def facts(number: int, *phases: str, **changes: Any) -> Record:
    """The facts of a node in these phases; `changes` replaces some of them."""
    usual = {
        "kernel": "6.1.0",
        "python": "3.11.7",
        "packages": {"torch": "2.5.1"},
        "gpus": [{"name": "NVIDIA H100", "driver_version": "550.54.15"}],
        "memory_bytes": 2**40,
    }
    return {
        "node": f"node{number}",
        "host": f"node{number}",
        "phases": list(phases),
        "facts": {**usual, **changes},
        "earlier": {},
    }


def facts_of(phases: Iterable[Record]) -> list[Record]:
    """The facts of all nodes of these phases, equal on every node."""
    names: dict[int, list[str]] = {}
    for phase in phases:
        for node in phase["nodes"]:
            names.setdefault(node["node_rank"], []).append(phase["phase"])
    return [facts(number, *of_node) for number, of_node in names.items()]


def rank(number: int, ranks_per_node: int, step_s: float = 0.1) -> Record:
    node_rank = number // ranks_per_node
    return {
        "rank": number,
        "node_rank": node_rank,
        "node": f"node{node_rank}",
        "host": f"node{node_rank}",
        "local_rank": number % ranks_per_node,
        "device": f"cuda:{number % ranks_per_node}",
        "done": True,
        "steps": 30,
        "peak_memory_gib": 9.0 + number / 1000,
        "step_s": dict(
            zip(
                ("p5", "p25", "p50", "p75", "p95"),
                (step_s * f for f in (0.9, 0.97, 1, 1.03, 1.1)),
                strict=True,
            )
        ),
        "own_s": None,
        "gpu": f"GPU-{number:08x}-0000-4000-8000-000000000000",
        "own_step_s": 0.08 + number / 100_000,
        "behind": False,
    }


def topology(nodes: int, ranks_per_node: int) -> Record:
    """A ring over all ranks, by P2P inside nodes and InfiniBand between them."""
    world = nodes * ranks_per_node
    links: list[Record] = []
    counts: dict[tuple[tuple[int, int], str], int] = {}
    for source in range(world if world > 1 else 0):
        destination = (source + 1) % world
        ends = sorted((source // ranks_per_node, destination // ranks_per_node))
        inside = ends[0] == ends[1]
        kind = "P2P/CUMEM" if inside else "NET/IB"
        counts[(ends[0], ends[1]), kind] = counts.get(((ends[0], ends[1]), kind), 0) + 1
        links.append(
            {
                "source": source,
                "destination": destination,
                "inside": inside,
                "transport": kind if inside else "NET/IB/0/GDRDMA",
                "kind": kind,
                "nics": [] if inside else ["mlx5_0"],
                "channels": 2,
                "unexpected": "",
                "where": f"nccl/0000/node0.{source}.log:42",
            }
        )
    groups: list[Record] = [
        {
            "nodes": pair,
            "kind": kind,
            "links": count,
            "unexpected": 0,
            "bandwidth_gb_per_s": None if pair[0] == pair[1] else 45.5,
        }
        for (pair, kind), count in counts.items()
    ]
    return {"backend": "nccl", "note": "", "links": links, "groups": groups}


def phase(
    name: str = "zero1_4node", nodes: int = 4, ranks_per_node: int = 2, **changes: Any
) -> Record:
    world = nodes * ranks_per_node
    made: dict[str, Any] = {
        "phase": name,
        "outcome": "passed",
        "reason": "",
        "job_id": "1042",
        "scheduler_state": "COMPLETED",
        "scheduler_nodes": f"node[0-{nodes - 1}]",
        "estimated_start": None,
        "submitted": BEGUN,
        "started": BEGUN + 12.5,
        "ended": BEGUN + 72.5,
        "queue_s": 12.5,
        "run_s": 60.0,
        "torchrun_s": 55.0,
        "overhead_s": 4.0,
        "findings": [],
        "known": None,
        "world_size": world,
        "marks": ["multinode" if nodes > 1 else "multigpu", "deepspeed"],
        "args": {"steps": 30},
        "nodes": [node(number) for number in range(nodes)],
        "ranks": [rank(number, ranks_per_node) for number in range(world)],
        "versions": dict(VERSIONS),
        "hardware": f"{nodes} nodes x {ranks_per_node} NVIDIA H100",
        "shape": "steps=30",
        "transport": "NET/IB, P2P/CUMEM",
        "topology": topology(nodes, ranks_per_node),
        "metrics": {
            "steps_per_s": metric(9.5),
            "samples_per_s": metric(2432.0, "samples/s"),
            "peak_memory_gib": metric(9.007, "GiB", higher_is_better=False),
            "final_loss": metric(0.25, "1", higher_is_better=False),
        },
        "loss": [(step, 1.0 / step) for step in range(1, 31)],
        "trend": None,
        "changed": [],
        "remarks": [],
        "stage_seconds": {"init": 2.0, "model": 3.0, "train": 40.0},
        "criteria": {
            "job": {"result": "passed", "text": ""},
            "test_all_ranks_are_done": {"result": "passed", "text": ""},
            "test_throughput_meets_the_reference": {
                "result": "skipped",
                "text": "not measured (references): no reference",
            },
        },
        "all_criteria": True,
        "not_measured": ["references"],
    }
    return {**made, **changes}


def attempt(number: int = 1, outcome: str = "passed", **changes: Any) -> Record:
    """A job of a phase that was tried again."""
    made: Record = {
        "attempt": number,
        "outcome": outcome,
        "reason": "",
        "job_id": str(number),
        "nodes": ["n1"],
        "failed_nodes": [],
        "submitted": None,
        "ended": None,
        "queue_s": None,
        "run_s": None,
    }
    return {**made, **changes}


_numbers = itertools.count(1)


def run(*phases: Record, **changes: Any) -> Record:
    """A run of these phases, or of the default phase, with a unique run id."""
    selected = list(phases) or [phase()]
    number = next(_numbers)
    made: dict[str, Any] = {
        "schema": 1,
        "run_id": f"20261101-020000-{number:06x}",
        "package_version": "0.1.0",
        "cluster": "gilbreth",
        "backend": "slurm",
        "hardware": {
            "gpu": "NVIDIA H100",
            "device": "cuda",
            "gpus_per_node": 2,
            "interconnect": "InfiniBand",
        },
        "evidence": f"/scratch/runs/20261101-020000-{number:06x}",
        "begun": BEGUN,
        "written": BEGUN + 90,
        "verdict": "FIT",
        "sentence": f"FIT: {len(selected)} of {len(selected)} phases passed",
        "failed": [],
        "not_measured": [],
        "known": [],
        "known_remarks": [],
        "phases_chosen": [phase["phase"] for phase in selected],
        "phases_of_cluster": [phase["phase"] for phase in selected],
        "selection": "",
        "interrupted": False,
        "partial": "",
        "absent_phases": [],
        "changes": [],
        "nodes": facts_of(selected),
        "differences": [],
        "phases": selected,
    }
    return {**made, **changes}


def gate(fault: str = "rank-killed", **changes: Any) -> Record:
    """A gate that is proven."""
    made = {
        "fault": fault,
        "what": "a rank is killed",
        "phase": "ddp_2gpu",
        "status": "proven",
        "reasons": [],
        "expected": ["job"],
        "red": ["job"],
        "finding": "rank-killed",
        "words": "rank 1 was killed",
        "ranks": [1],
        "hosts": ["node0"],
        "seconds": 12.25,
    }
    return {**made, **changes}


def proof(*gates: Record, **not_applicable: str) -> Record:
    return {
        "cluster": "gilbreth",
        "date": "2026-11-01",
        "planned": [gate["fault"] for gate in gates],
        "proven": [gate["fault"] for gate in gates if gate["status"] == "proven"],
        "stayed_green": [gate["fault"] for gate in gates if gate["status"] == "stayed green"],
        "gates": list(gates),
        "not_applicable": not_applicable,
    }
