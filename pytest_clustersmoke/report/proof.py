"""What the terminal shows of a proof: one line a gate, those that this cluster cannot have, and how
many of how many are proven."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COLUMNS = ("fault", "staged in", "red", "finding", "on", "seconds", "gate")


def lines(record: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """Each line, and whether it tells of a gate that is not proven."""
    proof = record["proof"]
    rows = [list(COLUMNS), *(_row(gate) for gate in proof["gates"])]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    told = []
    for index, row in enumerate(rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        bad = index > 0 and proof["gates"][index - 1]["status"] != "proven"
        told.append(("  ".join(cells).rstrip(), bad))
    absent = proof["not_applicable"].items()
    return [*told, *((f"{name} is not staged: {why}", False) for name, why in absent)]


def _row(gate: Mapping[str, Any]) -> list[str]:
    where = [f"rank {rank}" for rank in gate["ranks"][:4]] + list(gate["hosts"][:4])
    seconds = gate["seconds"]
    return [
        gate["fault"],
        gate["phase"],
        ", ".join(gate["red"]) or "-",
        gate["finding"] or "-",
        ", ".join(where) or "-",
        "-" if seconds is None else f"{seconds:.1f}",
        gate["status"],
    ]
