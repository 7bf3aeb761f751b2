"""Whether all ranks hold the same parameters, and from which step on they do not.

Data-parallel replicas start equal and apply the same gradients, so their parameters stay equal bit
for bit. Every few steps each rank takes a fingerprint of each parameter; the fingerprints stay on
the device and are compared once, after the last step. A program that lets its ranks drift apart and
makes them equal again before it saves is found by the steps between.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .replay import fingerprint

if TYPE_CHECKING:
    import torch

# A fingerprint of 100 million parameters takes 56 ms on the CPU, 2.5 % of a step: every tenth step
# it is a quarter of a percent. Of a long run at most MOST_ROWS are taken.
EVERY = 10
MOST_ROWS = 100


class ReplicaWatch:
    """Call `step_done` after each step, and `close` on all ranks at the end."""

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        count: int,
        world_size: int,
        device: torch.device,
    ) -> None:
        import torch

        named = list(named_parameters)
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._every = max(EVERY, -(-count // MOST_ROWS))
        self._count = count
        self._world_size = world_size
        self._steps: list[int] = []  # from 1, the steps after which a row was taken
        rows = -(-count // self._every)
        self._rows = torch.zeros((rows, len(named)), dtype=torch.int64, device=device)

    def step_done(self, step: int) -> None:
        """`step` (from 1) is done, with its update of the parameters."""
        import torch

        if self._world_size > 1 and (step % self._every == 0 or step == self._count):
            prints = [fingerprint(parameter) for parameter in self._parameters]
            self._rows[len(self._steps)] = torch.stack(prints)
            self._steps.append(step)

    def close(self) -> dict[str, Any] | None:
        """The fields of the `replicas` event, the same on all ranks: the steps compared, the first
        at which ranks differ, the last before it, the parameter that differs, and the ranks in
        groups that hold the same values. None where there is no other rank."""
        import torch
        import torch.distributed as dist

        if self._world_size < 2 or not self._parameters:
            return None
        rows = self._rows[: len(self._steps)]
        lowest, highest = rows.clone(), rows.clone()
        dist.all_reduce(lowest, dist.ReduceOp.MIN)
        dist.all_reduce(highest, dist.ReduceOp.MAX)
        differing = (lowest != highest).nonzero()
        fields: dict[str, Any] = {"every": self._every, "compared": len(rows)}
        if not len(differing):
            return fields | {"equal": True}
        row, column = differing[0].tolist()
        everyone = [torch.zeros_like(rows[row, column]) for _ in range(self._world_size)]
        dist.all_gather(everyone, rows[row, column].contiguous())
        groups: dict[int, list[int]] = {}
        for rank, value in enumerate(everyone):
            groups.setdefault(int(value), []).append(rank)
        return fields | {
            "equal": False,
            "differ_at": self._steps[row],
            "equal_until": self._steps[row - 1] if row else 0,
            "parameter": self._names[column],
            "groups": sorted(groups.values()),
        }
