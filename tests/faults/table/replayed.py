"""Faults that need real hardware, or a kernel that limits memory, replayed in real runs: a rank
writes what a real one logged and ends as it did (programs/recorded.yaml, with the sources)."""

from __future__ import annotations

from typing import Any

import yaml

from tests.faults.table.model import HANG_WITHIN_S, Fault
from tests.support.harness import PROGRAMS


def _fault(record: dict[str, Any]) -> Fault:
    finding = "rank-error" if "raises" in record else "rank-died"
    hangs = "hangs" in record
    nodes = int(record.get("nodes", 1))
    return Fault(
        record["name"],
        "replay.py",
        record.get("family", "hardware"),
        finding="hang" if hangs else finding,
        signature=record["signature"],
        rank=1,
        host=f"local{nodes - 1}",
        nodes=nodes,
        ranks_per_node=2 // nodes,
        args={"name": record["name"]},
        within_s=HANG_WITHIN_S if hangs else 10.0,
        replayed=True,
        slow=not record.get("fast", False),
    )


REPLAYED = tuple(
    _fault(record) for record in yaml.safe_load((PROGRAMS / "recorded.yaml").read_text())
)
