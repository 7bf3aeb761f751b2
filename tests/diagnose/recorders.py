"""Flight recorders and stacks as ranks leave them, written by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_clustersmoke.diagnose.failure_evidence import FailureEvidence
from pytest_clustersmoke.evidence.phase_result import PhaseResult, collect_phase
from pytest_clustersmoke.evidence.run_directory import PhaseDir, write_json
from pytest_clustersmoke.evidence.telemetry import EventWriter

RANKS = 4
FRAME = '  File "/p/train.py", line {line} in {name}'
IN_COLLECTIVE = (
    '  File "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3'
)


def call(
    number: int,
    kind: str = "all_reduce",
    sizes: Sequence[Sequence[int]] = ((4,),),
    dtype: str = "Float",
    *,
    ended: bool = True,
    group: str = "0",
    line: int = 0,
    **more: Any,
) -> dict[str, Any]:
    """One entry as torch 2.13 writes it for gloo."""
    frames = [
        {"name": kind, "filename": "/v/site-packages/torch/distributed/x.py", "line": 9},
        {"name": "step", "filename": "/p/train.py", "line": line},
    ]
    return {
        "record_id": number - 1,
        "pg_id": 0,
        "process_group": [group, "default_pg" if group == "0" else "undefined"],
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "profiling_name": f"gloo:{kind}",
        "time_created_ns": 10**18 + number,
        "input_sizes": [list(size) for size in sizes],
        "input_dtypes": [dtype],
        "state": "scheduled",
        "retired": ended,
        "is_p2p": False,
        "frames": frames if line else [],
        **more,
    }


def calls(count: int, **last: Any) -> list[dict[str, Any]]:
    """This many calls, all ended; `last` are fields of the last one."""
    made = [call(number) for number in range(1, count + 1)]
    return [*made[:-1], call(count, **last)] if last else made


def fake_dump(entries: Sequence[Any], ranks: int = RANKS, **more: Any) -> dict[str, Any]:
    """A dump as torch 2.10 writes it under NCCL."""
    members = json.dumps(list(range(ranks)))
    status = {"last_enqueued_collective": len(entries) or -1, "last_completed_collective": 1}
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": members}},
        "pg_status": {"0": status},
        "entries": list(entries),
        **more,
    }


class Left:
    """What the ranks of one phase left behind."""

    def __init__(self, folder: Path, ranks: int, nodes: int = 1) -> None:
        self.dir = PhaseDir(folder / "p")
        self.ranks, self.per_node = ranks, ranks // nodes
        write_json(self.dir.spec, {"phase": "p", "nodes": nodes, "ranks_per_node": self.per_node})
        self.dir.dumps.mkdir()
        for rank in range(ranks):
            node = rank // self.per_node
            self.event(rank, "start", rank=rank, node_rank=node, node=f"n{node}", pid=1000 + rank)
            self.event(rank, "stage", name="train", state="begin")

    def event(self, rank: int, event: str, /, **fields: Any) -> Left:
        writer = EventWriter(self.dir.rank_events(rank))
        writer.write(event, **fields)
        writer.close()
        return self

    def stalled(self, node: int = 0) -> Left:
        why = {"reason": "stalled", "why": "rank 0 has made no progress", "rank": 0}
        write_json(self.dir.abort, {"node": f"n{node}", **why})
        write_json(self.dir.node_result(node), {"ok": False, "node": f"n{node}", **why})
        return self

    def record(self, rank: int, entries: Iterable[Mapping[str, Any]], **more: Any) -> Left:
        write_json(self.dir.rank_flight_recorder(rank), {"entries": list(entries), **more})
        return self

    def stack(self, rank: int, line: int, name: str, waits: bool = False) -> Left:
        """The main thread is on this line, in a collective if the rank `waits`."""
        frames = [f"{IN_COLLECTIVE} in all_reduce"] if waits else []
        text = ["Current thread 0x1 (most recent call first):", *frames]
        text.append(FRAME.format(line=line, name=name))
        asked = f"== asked: rank {rank}, pid {1000 + rank} =="
        self.dir.rank_stack(rank).write_text("\n".join([asked, *text]) + "\n")
        return self

    def evidence(self) -> FailureEvidence:
        return FailureEvidence(self.result())

    def result(self) -> PhaseResult:
        return collect_phase(self.dir)
