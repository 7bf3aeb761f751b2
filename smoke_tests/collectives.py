"""The collectives of train_allreduce.py: the calls, their data and the expected results.

The data are whole numbers that float32 represents exactly, sums included. So each result is known
without a collective, and a single wrong bit makes a wrong element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from collective_sizes import ELEMENT_BYTES, SHARE_BYTES
from pytest_clustersmoke.rank import Rank

EXACT = 2**24  # float32 represents every whole number up to this one
PERIOD = 127  # the data repeat after a prime number of elements, so misplaced chunks are detected
PRIME = 16_777_213  # the largest below 2**24
CHUNK = 2**22  # elements checked at once: 32 MiB of indices, in addition to the buffers

# torch deprecated the old names after 2.2.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def marked(rank: torch.Tensor | int, index: torch.Tensor) -> torch.Tensor:
    """An element that encodes which rank sent it, and its index there."""
    return ((rank * 1_000_003 + index) % PRIME).float()


def exchange(received: torch.Tensor, sent: torch.Tensor, peer: int) -> None:
    """Send and receive at the same time, to and from one peer."""
    # In the default group, so that NCCL uses the communicator of all ranks.
    ops = [dist.P2POp(dist.isend, sent, peer), dist.P2POp(dist.irecv, received, peer)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


class Collectives:
    """The collectives over all ranks, and the exchange with one (`peer`), on two buffers of the
    largest size.

    all-reduce works in place, on `received`.
    """

    def __init__(self, rank: Rank, max_bytes: int) -> None:
        self.rank, self.ranks, self.device = rank.rank, rank.world_size, rank.device
        count = max(max_bytes // ELEMENT_BYTES, SHARE_BYTES // ELEMENT_BYTES * self.ranks)
        self.sent = torch.zeros(count, device=self.device)
        self.received = torch.zeros(count, device=self.device)
        weights = [rank % 13 + 1 for rank in range(self.ranks)]
        self.weight, self.weights = weights[self.rank], sum(weights)

    def call(self, name: str, count: int, peer: int = 0) -> Callable[[], object]:
        """The collective on `count` elements, as a function that can be called repeatedly."""
        share, sent, received = count // self.ranks, self.sent[:count], self.received[:count]
        return {
            "all_reduce": partial(dist.all_reduce, received),
            "all_gather": partial(_all_gather, received, sent[:share]),
            "reduce_scatter": partial(_reduce_scatter, received[:share], sent),
            "all_to_all": partial(dist.all_to_all_single, received, sent),
            "send_recv": partial(exchange, received, sent, peer),
        }[name]

    def expect(self, name: str, count: int, index: torch.Tensor, peer: int = 0) -> torch.Tensor:
        """The elements of the result at `index`."""
        share, begin = count // self.ranks, count // self.ranks * self.rank
        return {
            "all_reduce": lambda: self.summand(self.weights, index),
            "all_gather": lambda: marked(index // share, index % share),
            "reduce_scatter": lambda: self.summand(self.weights, begin + index),
            "all_to_all": lambda: marked(index // share, begin + index % share),
            "send_recv": lambda: marked(peer, index),
        }[name]()

    def summand(self, weights: int, index: torch.Tensor) -> torch.Tensor:
        """A rank's addend for its weight, or the sum over all ranks for the sum of weights."""
        period = min(PERIOD, EXACT // self.weights)
        return (weights * (index % period + 1)).float()

    def verify(
        self, name: str, count: int, peer: int = 0
    ) -> tuple[Callable[[], object], dict[str, Any]]:
        """Call a collective once and check the result; returns the call, for timing, and what
        `check` found."""
        call = self.call(name, count, peer)
        self.fill(name, count)
        call()  # also opens the connections: NCCL 2.22 and later open them on first use
        checked = self.check(name, count, peer)
        # In the timing, in-place sums of all-reduce would grow and overflow.
        self.sent[:count] = self.received[:count] = 0
        return call, checked

    def fill(self, name: str, count: int) -> None:
        """Write this rank's data, and -1, which is never a result, where results will be."""
        for part, index in self._parts(count):
            if name in ("all_reduce", "reduce_scatter"):
                self.sent[part] = self.summand(self.weight, index)
            else:
                self.sent[part] = marked(self.rank, index)
            self.received[part] = self.sent[part] if name == "all_reduce" else -1

    def check(self, name: str, count: int, peer: int = 0) -> dict[str, Any]:
        """Compare every element of the result; returns the number of elements, the number of wrong
        ones, and the first wrong one."""
        checked = count // self.ranks if name == "reduce_scatter" else count
        wrong, first = 0, None
        for part, index in self._parts(checked):
            found, expected = self.received[part], self.expect(name, count, index, peer)
            differing = (found != expected).nonzero()  # NaN differs from everything
            wrong += len(differing)
            if first is None and len(differing):
                at = int(differing[0])
                values = {"found": float(found[at]), "expected": float(expected[at])}
                first = {"index": part.start + at, **values}
        return {"checked": checked, "wrong": wrong, "first_wrong": first}

    def why_absent(self, name: str) -> str | None:
        """Try the collective once; returns torch's message if this gloo does not support it."""
        try:
            self.call(name, SHARE_BYTES // ELEMENT_BYTES * self.ranks)()
        except RuntimeError as error:  # includes NotImplementedError
            # "no support for _allgather_base in Gloo process group", "gloo does not support ..."
            if dist.get_backend() != "gloo" or "support" not in str(error):
                raise
            return str(error).splitlines()[0]
        return None

    def _parts(self, count: int) -> Iterator[tuple[slice, torch.Tensor]]:
        """Split `count` elements into chunks: the slice of each and the indices of its elements."""
        for begin in range(0, count, CHUNK):
            end = min(begin + CHUNK, count)
            yield slice(begin, end), torch.arange(begin, end, device=self.device)
