"""The evidence of a healthy all-reduce phase, for tests that change a piece of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import collective_sizes
from pytest_clustersmoke.criteria.phase_criteria import PhaseView, view_phase
from pytest_clustersmoke.evidence.run_directory import write_json
from tests.support.evidence import Evidence, make_profile

ARGS = {"max_bytes": 2**30, "factor": 2}
SIZES = [2**power for power in range(3, 31)]
LATENCY_S = 20e-6
BUS_BYTES_PER_S = 200e9
PAIR_BYTES = 2**26
PAIR_GB_PER_S = 12.0

Record = dict[str, Any]
# Maps a rank and one of its measurements to the record that it writes instead, or to None.
Change = Callable[[int, Record], Record | None]


def bus_bytes(name: str, size: int, ranks: int) -> float:
    """The bytes that cross the bus: 2(n-1)/n of the size for all-reduce, (n-1)/n for the others."""
    return size * (2 if name == "all_reduce" else 1) * (ranks - 1) / ranks


def measured_bytes(name: str, asked: int, ranks: int) -> int:
    """The size, rounded down to equal shares of 16 bytes except for all-reduce; may be 0."""
    return asked if name == "all_reduce" else asked // (16 * ranks) * 16 * ranks


def collective(name: str, asked: int, ranks: int) -> Record:
    """One collective on a healthy cluster."""
    size = measured_bytes(name, asked, ranks)
    seconds = LATENCY_S + bus_bytes(name, size, ranks) / BUS_BYTES_PER_S
    return {
        "what": "collective",
        "collective": name,
        "asked_bytes": asked,
        "size_bytes": size,
        "seconds": seconds,
        "own_seconds": seconds,
        "iterations": 20,
        "checked": size // 4 // (ranks if name == "reduce_scatter" else 1),
        "wrong": 0,
        "first_wrong": None,
    }


def pair(peer: int) -> Record:
    return {
        "what": "pair",
        "peer": peer,
        "size_bytes": PAIR_BYTES,
        "own_seconds": PAIR_BYTES / PAIR_GB_PER_S / 1e9,
        "iterations": 20,
        "checked": PAIR_BYTES // 4,
        "wrong": 0,
        "first_wrong": None,
    }


def unchanged(rank: int, record: Record) -> Record | None:
    return record


class Swept:
    """A phase on `nodes` nodes of `per_node` ranks; `change` may replace each record."""

    def __init__(
        self,
        folder: Path,
        nodes: int = 1,
        per_node: int = 2,
        *,
        backend: str = "nccl",
        backend_of_job: str = "slurm",
        args: Mapping[str, Any] = ARGS,
        change: Change = unchanged,
        **facts: Any,
    ) -> None:
        self.folder, self.args = folder, args
        self.evidence = Evidence(folder, nodes, per_node).started(backend)
        spec = {"phase": "small", "nodes": nodes, "ranks_per_node": per_node, "args": dict(args)}
        spec["backend"] = backend_of_job
        write_json(self.evidence.dir.spec, spec)
        values = {"max_bytes": args.get("max_bytes"), "free_bytes": 2**36, "left_out": {}, **facts}
        self.evidence.each("fact", values=values)
        for rank in range(self.evidence.world):
            records = [*self._collectives(values), *self._pairs(rank)]
            changed = [change(rank, record) for record in records]
            self.evidence.rank(rank, *(("measured", record) for record in changed if record))

    def _collectives(self, values: Mapping[str, Any]) -> Iterable[Record]:
        ranks = self.evidence.world
        for size in SIZES:
            for name in collective_sizes.PEAKS:
                if name not in (values["left_out"] or ()) and measured_bytes(name, size, ranks):
                    yield collective(name, size, ranks)

    def _pairs(self, rank: int) -> Iterable[Record]:
        per_node = self.evidence.per_node
        node, local = divmod(rank, per_node)
        for first, second in combinations(range(self.evidence.nodes), 2):
            if node in (first, second):
                yield pair((first + second - node) * per_node + local)

    def metrics(self, **values: Any) -> Swept:
        """Make every rank write the metrics that follow from its records, except `values`."""
        ranks = self.evidence.world

        def busbw(name: str, asked: int) -> float:
            record = collective(name, asked, ranks)
            seconds: float = record["seconds"]
            return bus_bytes(name, record["size_bytes"], ranks) / seconds / 1e9

        best = {
            metric: max(busbw(name, size) for size in SIZES)
            for name, metric in collective_sizes.PEAKS.items()
        }
        best |= {
            metric: busbw("all_reduce", size) for size, metric in collective_sizes.AT_SIZE.items()
        }
        best["latency_us"] = collective("all_reduce", 8, ranks)["seconds"] * 1e6
        if self.evidence.nodes > 1:
            best["pair_bandwidth_min_gb_per_s"] = PAIR_GB_PER_S
        self.evidence.each("metrics", values={**best, **values})
        return self

    def result(self, **references: Any) -> PhaseView:
        """The phase as criteria see it; `references` are by the metric's name."""
        keys = {"references": {"small": references}} if references else {}
        return view_phase(self.evidence.result(make_profile(self.folder, **keys)))


def where(name: str, size: int, rank: int | None = None, **values: Any) -> Change:
    """Change one collective at one size, on one rank or all; without values, remove it."""

    def change(of: int, record: Record) -> Record | None:
        if (
            record.get("collective") != name
            or record["asked_bytes"] != size
            or rank not in (of, None)
        ):
            return record
        return {**record, **values} if values else None

    return change


def slow_pairs(*slow: tuple[int, int], per_node: int = 1, factor: float = 2.0) -> Change:
    """These pairs of nodes take `factor` times as long."""

    def change(rank: int, record: Record) -> Record | None:
        if record["what"] == "pair":
            nodes = tuple(sorted((rank // per_node, record["peer"] // per_node)))
            if nodes in slow:
                return {**record, "own_seconds": record["own_seconds"] * factor}
        return record

    return change
