"""The collectives of the all-reduce phases: their calls, their data, and what must come out.

Data differ by rank and by place, and every result is known without a collective: whole numbers that
float32 holds exactly, sums included, so that one wrong bit anywhere is a wrong element.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from pytest_clustersmoke import sweep

EXACT = 2**24  # float32 holds every whole number up to here
# Data repeat after so many elements. Primes: chunks that change places, which are powers of two
# long, then show. The largest is used with which the sum over all ranks stays exact.
PERIODS = (127, 61, 31, 13, 7, 3, 2)
WEIGHTS = 61
PRIME = 16_777_213  # the largest below 2**24
STRIDE = 1_000_003
CHUNK = 2**22  # elements checked at once: 32 MiB of indices, beside the buffers
# What torch says of a collective that gloo has not: "no support for _allgather_base in Gloo process
# group", "Backend gloo does not support _reduce_scatter_base", "ProcessGroupGloo does not support".
NOT_THERE = re.compile(r"no support for \w+ in gloo|gloo does not support", re.I)

# A name that is newer than torch 2.2 is taken where it is there: the old one then warns.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def weight(rank: int) -> int:
    return rank % WEIGHTS + 1


def term(rank_sum: int, ranks: int, index: torch.Tensor) -> torch.Tensor:
    """What `rank_sum` weights add up to at these elements: exact for all `ranks` together."""
    most = sum(map(weight, range(ranks)))
    period = next(one for one in PERIODS if most * one <= EXACT)
    return (rank_sum * (index % period + 1)).float()


def marked(rank: torch.Tensor | int, index: torch.Tensor) -> torch.Tensor:
    """An element that tells whose it is and where it stood."""
    return ((rank * STRIDE + index) % PRIME).float()


class Collectives:
    """The collectives over all ranks, on two buffers as large as the largest size.

    `result` holds what comes out, which all-reduce takes in as well: torch has it in place only.
    """

    def __init__(self, rank: int, ranks: int, max_bytes: int, device: torch.device) -> None:
        self.rank, self.ranks, self.device = rank, ranks, device
        count = max(max_bytes // sweep.ELEMENT_BYTES, sweep.ALIGN_BYTES * ranks)
        self.source = torch.zeros(count, dtype=torch.float32, device=device)
        self.result = torch.zeros(count, dtype=torch.float32, device=device)

    def call(self, name: str, count: int) -> Callable[[], object]:
        """The collective on `count` elements, ready to be called again and again."""
        part = count // self.ranks
        source, result = self.source, self.result
        if name == "all_reduce":
            whole = result[:count]
            return lambda: dist.all_reduce(whole)
        if name == "all_gather":
            gathered, mine = result[:count], source[:part]
            return lambda: _all_gather(gathered, mine)
        if name == "reduce_scatter":
            reduced, all_of_it = result[:part], source[:count]
            return lambda: _reduce_scatter(reduced, all_of_it)
        received, sent = result[:count], source[:count]
        return lambda: dist.all_to_all_single(received, sent)

    def exchange(self, peer: int, count: int) -> Callable[[], None]:
        """Send and receive `count` elements at once, to and from one peer.

        On the default group, so that NCCL uses the communicator of all ranks.
        """
        sent, received = self.source[:count], self.result[:count]

        def both_ways() -> None:
            ops = [dist.P2POp(dist.isend, sent, peer), dist.P2POp(dist.irecv, received, peer)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()

        return both_ways

    def why_absent(self, name: str) -> str | None:
        """Try the collective once. torch's words where this gloo has it not; other errors rise."""
        try:
            self.call(name, sweep.ALIGN_BYTES // sweep.ELEMENT_BYTES * self.ranks)()
        except RuntimeError as error:  # NotImplementedError is one
            if dist.get_backend() != "gloo" or not NOT_THERE.search(str(error)):
                raise
            return str(error).splitlines()[0]
        return None

    # -- Data and what must come out of them -------------------------------------------------------

    def fill(self, name: str, count: int) -> None:
        """Lay this rank's data down, and in the result what no result is."""
        sums = name in ("all_reduce", "reduce_scatter")
        taken = count // self.ranks if name == "all_gather" else count

        def value(index: torch.Tensor) -> torch.Tensor:
            if sums:
                return term(weight(self.rank), self.ranks, index)
            return marked(self.rank, index)

        self.result[:count].fill_(-1.0)
        target = self.result if name == "all_reduce" else self.source
        for span, index in self._spans(taken):
            target[span] = value(index)

    def clear(self, count: int) -> None:
        """All zeros, for the timing: sums of all-reduce in place would grow until they overflow."""
        self.source[:count].zero_()
        self.result[:count].zero_()

    def check(self, name: str, count: int, peer: int = 0) -> dict[str, Any]:
        """Compare every element of the result: how many there are, are wrong, and the first."""
        part = count // self.ranks
        everyone = sum(map(weight, range(self.ranks)))
        expected: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
            "all_reduce": lambda i: term(everyone, self.ranks, i),
            "all_gather": lambda i: marked(i // part, i % part),
            "reduce_scatter": lambda i: term(everyone, self.ranks, self.rank * part + i),
            "all_to_all": lambda i: marked(i // part, self.rank * part + i % part),
            "send_recv": lambda i: marked(peer, i),
        }
        checked = sweep.received(name, count, self.ranks)
        wrong, first = 0, None
        for span, index in self._spans(checked):
            found, wanted = self.result[span], expected[name](index)
            differs = found != wanted  # a NaN differs from all
            wrong_here = int(differs.sum())
            if wrong_here and first is None:
                at = int(differs.nonzero()[0])
                values = {"found": float(found[at]), "expected": float(wanted[at])}
                first = {"index": span.start + at, **values}
            wrong += wrong_here
        return {"checked": checked, "wrong": wrong, "first_wrong": first}

    def _spans(self, count: int) -> Iterator[tuple[slice, torch.Tensor]]:
        """`count` elements in pieces: where each lies, and the numbers of its elements."""
        for begin in range(0, count, CHUNK):
            end = min(begin + CHUNK, count)
            yield slice(begin, end), torch.arange(begin, end, device=self.device)
