"""The job of one node, for tests of the launcher's modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_clustersmoke.node.node_job import NodeJob

SPEC = {
    "schema": 1,
    "run_id": "run1",
    "phase": "small",
    "backend": "local",
    "nodes": 1,
    "ranks_per_node": 1,
    "script": "train.py",
    "argv": [],
    "env_set": {},
    "env_unset": [],
    "device": "cpu",
    "stage_limits_s": {"init": 60, "train_step": 60},
    "timeout_s": 60,
    "dump_wait_s": 0.2,
    "nccl_hostid": False,
}


def make_job(folder: Path, node_rank: int = 0, **spec: Any) -> NodeJob:
    """Make the job `small` on a node `nN`, with its directories; `spec` adds keys to the spec."""
    job = NodeJob({**SPEC, "phase_dir": str(folder), **spec}, node_rank, f"n{node_rank}")
    job.dir.node(node_rank).mkdir(parents=True)
    job.dir.rank_events(0).parent.mkdir(exist_ok=True)
    return job
