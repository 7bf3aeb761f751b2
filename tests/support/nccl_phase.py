"""A phase whose ranks left NCCL logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.fakes.nccl import FakeNccl, Wording, healthy
from tests.support.evidence import Evidence

Changes = Mapping[tuple[int, int], "str | None"]
EXPECT = {"intra_node": ["P2P/*"], "inter_node": ["NET/IB*"]}


class Job(FakeNccl):
    """A phase whose NCCL logs the test defines; nodes are named k0, k1, …"""

    def stage(
        self,
        folder: Path,
        hosts: Sequence[str] = (),
        backend: str = "nccl",
        silent: Iterable[int] = (),
        unknown: Iterable[int] = (),
    ) -> Evidence:
        """Write the run directory. Ranks of `silent` left no log, those of `unknown` no events."""
        evidence = Evidence(folder, self.nodes, self.per_node)
        for rank in range(self.world):
            node, pid = self.node(rank), 4000 + rank
            host = hosts[node] if hosts else f"k{node}"
            device = sum(self.node(other) == node for other in range(rank))
            start = {"rank": rank, "node_rank": node, "node": f"k{node}", "host": host, "pid": pid}
            if rank not in unknown:
                evidence.rank(rank, ("start", {**start, "device": f"cuda:{device}"}))
            evidence.rank(rank, ("group", {"backend": backend, "world_size": self.world}))
            if rank not in silent:
                folder = evidence.dir.nccl_logs(node)
                folder.mkdir(parents=True, exist_ok=True)
                text = "\n".join(self.lines(rank, host, pid)) + "\n"
                (folder / f"{host}.{pid}.log").write_text(text)
        return evidence


def swap(job: FakeNccl, changes: Changes, role: str = "") -> Wording:
    """A healthy job, except for the wording of some edges (as logged by one role, or both)."""
    well = healthy(job)

    def wording(source: int, destination: int, by: str) -> str | None:
        changed = (source, destination) in changes and role in ("", by)
        return changes[source, destination] if changed else well(source, destination, by)

    return wording
