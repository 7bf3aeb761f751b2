"""What is reported of the logs of one job: its log, and the links of its ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..evidence.nccl.nccl_log import Communicator, Log, NcclProcess
from .links import Link, count_pairs, links_of, merge_equal
from .placement import Placement, place


@dataclass(frozen=True)
class JobTransports:
    """Who talked to whom in a job, as its logs say.

    Ranks are those of a communicator: `links` are kept apart by it, `merged` are not. Links are in
    the order of their source and destination; those of one pair stand together.
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
        """The links that are, or may be, a communicator's."""
        return merge_equal(self._by_communicator[communicator.index])

    @cached_property
    def _by_communicator(self) -> Sequence[Sequence[Link]]:
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
    def asymmetric(self) -> list[tuple[int, int]]:
        """Pairs of ranks whose ends told different kinds of one channel."""
        return sorted({(link.source, link.destination) for link in self.links if link.asymmetric})

    @cached_property
    def networks(self) -> dict[str, list[NcclProcess | None]]:
        """The networks that NCCL chose (`Using network IB`), and the processes that said so."""
        users: dict[str, list[NcclProcess | None]] = {}
        for process, names in self.log.networks.items():
            for name in names:
                users.setdefault(name, []).append(process)
        return dict(sorted(users.items()))

    def nodes(self, communicator: Communicator) -> int | None:
        """NCCL's own count of nodes; else that of the names, where every rank has its node."""
        if communicator.nodes is not None:
            return communicator.nodes
        placement = self.placements[communicator.index]
        whole = communicator.ranks is not None and len(placement.nodes) == communicator.ranks
        return placement.count if whole else None


def hosts_of(processes: Sequence[NcclProcess | None]) -> list[str]:
    """The host names of those that are known."""
    return sorted({process.host for process in processes if process is not None})
