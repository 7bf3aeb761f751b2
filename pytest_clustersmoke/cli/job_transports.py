"""The transports of one job, from its NCCL logs: the links of its ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..evidence.nccl.nccl_log import Communicator, Log, NcclProcess
from .links import Link, count_pairs, links_of, merge_equal
from .placement import Placement, place


@dataclass(frozen=True)
class JobTransports:
    """Which ranks of a job communicated, from its logs.

    Ranks are numbered per communicator: `links` keeps communicators apart, `merged()` does not.
    Links are sorted by source and destination, so those of a pair are adjacent.
    """

    log: Log
    files: tuple[str, ...] = ()
    unreadable: tuple[tuple[str, str], ...] = ()  # name, and why

    @cached_property
    def placements(self) -> tuple[Placement, ...]:
        """Where the ranks of each communicator ran, by its index."""
        return place(self.log)

    @cached_property
    def links(self) -> tuple[Link, ...]:
        return tuple(links_of(self.log, self.placements))

    def merged(self) -> Iterator[Link]:
        """One link for each source, destination and wording, over all communicators."""
        return merge_equal(self.links)

    def of(self, communicator: Communicator) -> Iterator[Link]:
        """The links that belong, or may belong, to a communicator."""
        return merge_equal(self._by_communicator[communicator.index])

    @cached_property
    def _by_communicator(self) -> Sequence[Sequence[Link]]:
        links: list[list[Link]] = [[] for _ in self.log.communicators]
        for link in self.links:
            for index in link.communicators:
                links[index].append(link)
        return links

    @cached_property
    def pairs(self) -> dict[tuple[str | None, str], int]:
        """Pairs of ranks by placement and kind; a pair with several kinds counts for each."""
        return count_pairs(self.links, lambda link: (link.placement, link.kind))

    @cached_property
    def sides(self) -> dict[str | None, int]:
        """Pairs of ranks by placement."""
        return count_pairs(self.links, lambda link: link.placement)

    @cached_property
    def asymmetric(self) -> list[tuple[int, int]]:
        """Pairs of ranks whose ends logged different kinds for one channel."""
        return sorted({(link.source, link.destination) for link in self.links if link.asymmetric})

    @cached_property
    def networks(self) -> dict[str, list[NcclProcess | None]]:
        """The networks that NCCL chose (`Using network IB`), and the processes that logged each."""
        users: dict[str, list[NcclProcess | None]] = {}
        for process, names in self.log.networks.items():
            for name in names:
                users.setdefault(name, []).append(process)
        return dict(sorted(users.items()))

    def nodes(self, communicator: Communicator) -> int | None:
        """NCCL's own count of nodes, or that of the host names if every rank has one."""
        if communicator.nodes is not None:
            return communicator.nodes
        placement = self.placements[communicator.index]
        whole = communicator.ranks is not None and len(placement.nodes) == communicator.ranks
        return placement.count if whole else None


def hosts_of(processes: Sequence[NcclProcess | None]) -> list[str]:
    """The host names of the known processes."""
    return sorted({process.host for process in processes if process is not None})
