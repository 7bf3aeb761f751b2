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


def weight(rank: int) -> int:
    return rank % 13 + 1


class Collectives:
    """The collectives over all ranks, on two buffers of the largest size.

    all-reduce works in place, on `received`.
    """

    def __init__(self, rank: Rank, max_bytes: int) -> None:
        self.rank, self.ranks, self.device = rank.rank, rank.world_size, rank.device
        count = max(max_bytes // ELEMENT_BYTES, SHARE_BYTES // ELEMENT_BYTES * self.ranks)
        self.sent = torch.zeros(count, device=self.device)
        self.received = torch.zeros(count, device=self.device)
        self.weights = sum(map(weight, range(self.ranks)))

    def call(self, name: str, count: int) -> Callable[[], object]:
        """The collective on `count` elements, as a function that can be called repeatedly."""
        share, sent, received = count // self.ranks, self.sent[:count], self.received[:count]
        if name == "all_reduce":
            return partial(dist.all_reduce, received)
        if name == "all_gather":
            return partial(_all_gather, received, sent[:share])
        if name == "reduce_scatter":
            return partial(_reduce_scatter, received[:share], sent)
        return partial(dist.all_to_all_single, received, sent)

    def exchange(self, peer: int, count: int) -> None:
        """Send and receive `count` elements at the same time, to and from one peer."""
        # In the default group, so that NCCL uses the communicator of all ranks.
        sent, received = self.sent[:count], self.received[:count]
        ops = [dist.P2POp(dist.isend, sent, peer), dist.P2POp(dist.irecv, received, peer)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()

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

    def clear(self, count: int) -> None:
        """Fill with zeros for the timing: in-place sums of all-reduce would grow and overflow."""
        self.sent[:count] = 0
        self.received[:count] = 0

    def fill(self, name: str, count: int) -> None:
        """Write this rank's data, and -1, which is never a result, where results will be."""
        self.received[:count] = -1
        own = count // self.ranks if name == "all_gather" else count
        for part, index in self._parts(own):
            if name == "all_reduce":
                self.received[part] = self.summand(weight(self.rank), index)
            elif name == "reduce_scatter":
                self.sent[part] = self.summand(weight(self.rank), index)
            else:
                self.sent[part] = self.marked(self.rank, index)

    def check(self, name: str, count: int, peer: int = 0) -> dict[str, Any]:
        """Compare every element of the result; returns the number of elements, the number of wrong
        ones, and the first wrong one."""
        checked = count // self.ranks if name == "reduce_scatter" else count
        wrong, first = 0, None
        for part, index in self._parts(checked):
            actual, expected = self.received[part], self._expected(name, count, index, peer)
            differs = actual != expected  # NaN differs from everything
            if first is None and differs.any():
                at = int(differs.nonzero()[0])
                values = {"found": float(actual[at]), "expected": float(expected[at])}
                first = {"index": part.start + at, **values}
            wrong += int(differs.sum())
        return {"checked": checked, "wrong": wrong, "first_wrong": first}

    def _expected(self, name: str, count: int, index: torch.Tensor, peer: int) -> torch.Tensor:
        share = count // self.ranks
        if name == "all_reduce":
            return self.summand(self.weights, index)
        if name == "reduce_scatter":
            return self.summand(self.weights, self.rank * share + index)
        if name == "all_gather":
            return self.marked(index // share, index % share)
        if name == "all_to_all":
            return self.marked(index // share, self.rank * share + index % share)
        return self.marked(peer, index)

    def summand(self, weights: int, index: torch.Tensor) -> torch.Tensor:
        """A rank's addend for its weight, or the sum over all ranks for the sum of weights."""
        period = min(PERIOD, EXACT // self.weights)
        return (weights * (index % period + 1)).float()

    def marked(self, rank: torch.Tensor | int, index: torch.Tensor) -> torch.Tensor:
        """An element that encodes which rank sent it, and its index there."""
        return ((rank * 1_000_003 + index) % PRIME).float()

    def _parts(self, count: int) -> Iterator[tuple[slice, torch.Tensor]]:
        """Split `count` elements into chunks: the slice of each and the indices of its elements."""
        for begin in range(0, count, CHUNK):
            end = min(begin + CHUNK, count)
            yield slice(begin, end), torch.arange(begin, end, device=self.device)
