"""The log of a job, put in order for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from .links import Link, count_pairs, links_of, merge_equal
from .model import Communicator, Log
from .placement import Placement, place


@dataclass(frozen=True)
class Job:
    """Everything that is reported of the logs of one job.

    Ranks are those of a communicator: `links` are kept apart by it, `merged` are not. Links are in
    the order of their source and destination; those of one pair stand together.
    """

    log: Log
    files: tuple[str, ...] = ()
    unreadable: tuple[tuple[str, str], ...] = ()  # name, and why
    placements: tuple[Placement, ...] = field(init=False)
    links: tuple[Link, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "placements", place(self.log))
        object.__setattr__(self, "links", tuple(links_of(self.log, self.placements)))

    def merged(self) -> Iterator[Link]:
        """One link for each source, destination and wording, over all communicators."""
        return merge_equal(self.links)

    def of(self, communicator: Communicator) -> Iterator[Link]:
        """The links that are, or may be, a communicator's."""
        return merge_equal(self._by_communicator[communicator.index])

    @cached_property
    def _by_communicator(self) -> Sequence[Sequence[Link]]:
        if len(self.log.communicators) == 1 and all(link.communicators for link in self.links):
            return [self.links]
        found: list[list[Link]] = [[] for _ in self.log.communicators]
        for link in self.links:
            for index in link.communicators:
                found[index].append(link)
        return found

    @cached_property
    def pairs(self) -> dict[tuple[str | None, str], int]:
        """Pairs of ranks by placement and kind; one that has several counts with each."""
        return count_pairs(self.links, lambda link: (link.placement, link.kind))

    @cached_property
    def sides(self) -> dict[str | None, int]:
        """Pairs of ranks by placement."""
        return count_pairs(self.links, lambda link: link.placement)

    @cached_property
    def asymmetric(self) -> tuple[tuple[int, int], ...]:
        """Pairs of ranks whose ends told different kinds of one channel."""
        return tuple(
            sorted({(one.source, one.destination) for one in self.links if one.asymmetric})
        )

    def nodes(self, communicator: Communicator) -> int | None:
        """NCCL's own count of nodes; else that of the names, where every rank has its node."""
        if communicator.nodes is not None:
            return communicator.nodes
        placement = self.placements[communicator.index]
        whole = communicator.ranks is not None and len(placement.nodes) == communicator.ranks
        return placement.count if whole else None
