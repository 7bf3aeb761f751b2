"""Lets two other ranks repeat each rank's pass: one that is always wrong in the same way shows.

A device that gives the same wrong answer each time agrees with itself. So each rank also repeats
the passes of the next two ranks, from their batches and random states. Three ranks then have the
same pass, and two that agree outvote the third. All ranks hold the same parameters and compute with
the same kernels; where they do not, nothing is compared, and the reason is recorded.

A difference counts only if it is there again with kernels that add in a fixed order, and with the
buffers of rank 0: buffers such as the running mean of a batch norm differ between healthy ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from ..text import plural
from .device import name_device
from .leaves import is_sharded, shares_statistics
from .replay import MOST_NAMES, Randomness, Replay, deterministic_kernels, fingerprint

CHECKERS = 2  # how many other ranks repeat a rank's pass
RANKS = CHECKERS + 1
MOST_WORDS = 200


class CrossReplay:
    """Call `compare` on all ranks at the same steps.

    `named` are the trained parameters of `model`. `loss_of(index, rank)` computes, with the bare
    model, the loss of that rank's batch of step `index`, or yields those of its micro batches.
    """

    def __init__(
        self, model: Any, named: list[tuple[str, Any]], loss_of: Callable[[int, int], Any]
    ) -> None:
        self._model = model
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._loss_of = loss_of

    def compare(self, index: int, randomness: Randomness, own: list[int]) -> dict[str, Any]:
        """Compare the three results of each rank's pass of step `index`. Returns, for this rank's
        own pass: who repeated it, which rank disagrees with the other two, which parameters differ,
        and whether it had to be repeated with deterministic kernels.

        `own` are the fingerprints of this rank's repeated pass, `randomness` its random state.
        """
        import torch.distributed as dist

        rank, size = dist.get_rank(), dist.get_world_size()
        everyone: list[Any] = [None] * size
        dist.all_gather_object(everyone, (self._describe(), randomness))
        if reason := self._find_obstacle([described for described, _ in everyone]):
            return {"not_measured": reason}
        passes = [
            Replay(
                self._model,
                self._parameters,
                lambda other=other: self._loss_of(index, other),  # type: ignore[misc]
                everyone[other][1],
            )
            for other in ((rank + by) % size for by in range(RANKS))
        ]
        kernels: list[str] = []
        results = self._gather([own, *(other.prints() for other in passes[1:])])
        again = bool((results != results[:, :1]).any())
        if again:
            with passes[0].as_before(), deterministic_kernels() as kernels:
                self._take_buffers()
                results = self._gather([repeated.prints() for repeated in passes])
        differing = (results[rank] != results[rank, :1]).any(dim=0).nonzero().flatten().tolist()
        members = [(rank - by) % size for by in range(RANKS)]
        alone = find_alone(results[rank].tolist())
        return {
            "checkers": members[1:],
            "compared": len(self._names),
            "alone": None if alone is None else members[alone],
            "differing": [self._names[at] for at in differing[:MOST_NAMES]],
            "differing_count": len(differing),
            "nondeterministic": kernels,
            "again": again,
        }

    def _describe(self) -> tuple[str, str, str]:
        """What decides how this rank computes: its kernels, what chooses them, and a digest of the
        parameters. Those that are sharded do not count: all ranks compute with the same gathered
        tensors, whichever parts they hold."""
        import torch

        device = self._parameters[0].device
        prints = [fingerprint(p) for p in self._parameters if not is_sharded(p)]
        values = torch.stack(prints).tolist() if prints else []
        digest = hashlib.sha256(repr(values).encode()).hexdigest()
        return describe_kernels(device), describe_choice(self._model, device), digest

    def _find_obstacle(self, everyone: list[tuple[str, str, str]]) -> str:
        """Why the results of healthy ranks need not be equal; the same on all ranks, which get the
        same descriptions."""
        kinds = sorted({kernels for kernels, _, _ in everyone})
        if len(kinds) > 1:
            return f"the ranks compute with {' and with '.join(kinds)}"[:MOST_WORDS]
        if choice := next((choice for _, choice, _ in everyone if choice), ""):
            return f"{choice}, so each rank may compute with kernels of its own"
        if shares_statistics(self._model):
            return (
                "batch norms average over the ranks, and the order of that sum depends on which "
                "rank repeats which pass"
            )
        equal = len({digest for _, _, digest in everyone}) == 1
        return "" if equal else "the ranks hold different parameters"

    def _gather(self, prints: list[list[int]]) -> Any:
        """`prints` of the passes of this rank and of the next two -> the three results for each
        rank's pass: its own, that of the rank before it, that of the one before that; of shape
        (ranks, 3, parameters), on the host."""
        import torch
        import torch.distributed as dist

        table = torch.tensor(prints, dtype=torch.int64, device=self._parameters[0].device)
        everyone = [torch.zeros_like(table) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, table)
        tables = torch.stack(everyone).cpu()
        return torch.stack([tables[:, by].roll(by, 0) for by in range(RANKS)], dim=1)

    def _take_buffers(self) -> None:
        """Take the buffers of rank 0; the caller restores this rank's own."""
        import torch.distributed as dist

        for buffer in self._model.buffers():
            value = buffer.detach().clone().contiguous()
            dist.broadcast(value, 0)
            buffer.data.copy_(value)


def describe_kernels(device: Any) -> str:
    """The hardware and the libraries that decide which kernels compute."""
    import torch

    parts = [name_device(device), f"torch {torch.__version__}"]
    if device.type == "cuda":
        return ", ".join([*parts, f"cuDNN {torch.backends.cudnn.version()}"])
    return ", ".join([*parts, plural(torch.get_num_threads(), "thread")])


def describe_choice(model: Any, device: Any) -> str:
    """What chooses kernels by timing them; empty if nothing does."""
    import torch

    if device.type == "cuda" and torch.backends.cudnn.benchmark:
        return "torch.backends.cudnn.benchmark is on"
    compiled = ("_orig_mod", "_compiled_call_impl")
    if any(getattr(module, name, None) for module in model.modules() for name in compiled):
        return "the model is compiled"
    return ""


def find_alone(results: list[Any]) -> int | None:
    """Which of three results differs from the two others, which are equal; None if all are equal or
    all differ."""
    first, second, third = results
    equal = (second == third, first == third, first == second)
    return equal.index(True) if sum(equal) == 1 else None
