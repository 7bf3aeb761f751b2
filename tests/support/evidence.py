"""The evidence of a job, written by hand, for tests of everything that reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_clustersmoke.config.cluster_file import load_cluster_file
from pytest_clustersmoke.config.marker import PhaseMarker
from pytest_clustersmoke.config.phase import Phase, resolve
from pytest_clustersmoke.config.profile import Profile
from pytest_clustersmoke.criteria.phase_criteria import PhaseView, view_phase
from pytest_clustersmoke.evidence.phase_result import collect_phase, with_bounds
from pytest_clustersmoke.evidence.run_directory import PhaseDir, write_json
from pytest_clustersmoke.evidence.telemetry import EventWriter


def make_profile(folder: Path, **keys: Any) -> Profile:
    """The profile `one`, local unless `keys` say otherwise, from a file in `folder`."""
    values: dict[str, Any] = {
        "backend": "local",
        "shared_dir": str(folder / "shared"),
        "hardware": {"gpu": "any", "device": "cpu", "gpus_per_node": 8},
        "phases": {"small": None},
        **keys,
    }
    path = folder / "cluster.yaml"
    path.write_text(json.dumps({"clusters": {"one": values}}, indent=1))
    return load_cluster_file(path, {}).profile("one")


def make_phase(profile: Profile, name: str = "small", settings: Any = (), **marker: Any) -> Phase:
    """A phase, made from a marker and a profile."""
    values: dict[str, Any] = {
        "script": Path("/suite/train.py"),
        "nodes": 1,
        "gpus_per_node": 1,
        "args": {},
        "timeout_s": 60.0,
        "where": "test_x.py:1",
        **marker,
    }
    return resolve(PhaseMarker(name, **values), profile, settings)


class Evidence:
    """The directory of one phase, filled piece by piece."""

    def __init__(
        self,
        folder: Path,
        nodes: int = 1,
        ranks_per_node: int = 1,
        args: Mapping[str, Any] | None = None,
    ) -> None:
        self.dir = PhaseDir(folder / "small")
        self.nodes, self.per_node = nodes, ranks_per_node
        sizes = {"nodes": nodes, "ranks_per_node": ranks_per_node}
        spec = {"phase": "small", **sizes, "args": dict(args or {})}
        write_json(self.dir.spec, spec)

    @property
    def world(self) -> int:
        return self.nodes * self.per_node

    def started(self, backend: str = "gloo") -> Evidence:
        """Make every rank start, with the pid 1000 + rank, and join the process group."""
        for rank in range(self.world):
            node = rank // self.per_node
            start = {"rank": rank, "node_rank": node, "node": f"n{node}", "pid": 1000 + rank}
            self.rank(
                rank,
                ("start", {**start, "host": "h"}),
                ("group", {"backend": backend, "world_size": self.world}),
            )
        return self

    def rank(self, rank: int, *events: tuple[str, Mapping[str, Any]]) -> Evidence:
        writer = EventWriter(self.dir.rank_events(rank))
        for event, fields in events:
            writer.write(event, **fields)
        writer.close()
        return self

    def each(self, event: str, **fields: Any) -> Evidence:
        """Write the same event for every rank."""
        for rank in range(self.world):
            self.rank(rank, (event, fields))
        return self

    def node(self, node: int, **result: Any) -> Evidence:
        """Make a node claim the job and write its result."""
        self.dir.claim.touch()
        write_json(self.dir.node_facts(node), {"node": f"n{node}", "host": "h"})
        write_json(self.dir.node_result(node), {"node": f"n{node}", **result})
        return self

    def done(self) -> Evidence:
        """Make every rank and every node finish successfully."""
        self.started().each("done", seconds=1.0)
        for node in range(self.nodes):
            self.node(node, ok=True, started=100.0, ended=110.0, launcher_s=9.0)
        return self

    def result(self, profile: Profile | None = None) -> PhaseView:
        result = collect_phase(self.dir)
        return view_phase(with_bounds(result, profile) if profile else result)
