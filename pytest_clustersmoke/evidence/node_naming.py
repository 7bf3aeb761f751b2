"""The parts of a run's record about its nodes: where each phase ran before, and which nodes and
devices were named, in how many phases."""

from __future__ import annotations

from pydantic import Field

from .run_counts import RecordModel


class PlacesRecord(RecordModel):
    """Where a phase ran in earlier runs on this cluster, by the history."""

    runs: int = Field(
        description="earlier runs whose nodes are known, of the newest 200; 0: it is new"
    )
    is_all: bool = Field(description="there were no other ones")
    nodes: dict[str, int] = Field(
        description="node -> in how many of them the phase ran there: the nodes of this run, at "
        "most 64, then at most 8 others, the most frequent first"
    )
    first: list[str] = Field(
        description="nodes of this run on which it ran in none of them; empty if it is new"
    )


class NamingRecord(RecordModel):
    """What named a node in one phase."""

    phase: str
    finding: str = Field(description="the id of a finding, or slow-rank")
    cause: str
    is_check: bool = Field(description="the node itself was looked at, or compared with others")
    file: str = Field(description="of the first line of evidence, in the phase's folder; or empty")
    line: int


class NamedNodeRecord(RecordModel):
    """A node that phases of this run name, and the device if it is the same one in all of them."""

    node: str
    device: str = Field(description="the UUID of a GPU; empty: not one, or unknown")
    named: list[NamingRecord]
    past_runs: int | None = Field(
        default=None, description="earlier runs that had this node; null: not known"
    )
    past_bad: int | None = Field(default=None, description="in how many of them it was named")

    @property
    def phases(self) -> list[str]:
        """The phases that name it, each once."""
        return list(dict.fromkeys(naming.phase for naming in self.named))
