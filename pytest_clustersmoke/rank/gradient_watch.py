"""Which rank's own gradient stopped being finite first, and in which parameter.

A reduction hands one rank's NaN to all: from the next step on every rank's loss is NaN, and nothing
tells whose it was; or DeepSpeed leaves that step out, and no loss shows anything. So each gradient
is added up where autograd hands it over, before any reduction: the sum is not finite where one of
its numbers is not. It stays on the device, and nothing waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# Sums are kept for so many steps, then one number a step.
ROWS = 1000


class GradientWatch:
    """`step_done` after each step, `close` at the end. Costs one read of the gradients a step."""

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        count: int,
        device: torch.device,
    ) -> None:
        import torch

        trained = [(name, one) for name, one in named_parameters if one.requires_grad]
        if not trained:
            raise ValueError("no parameter requires a gradient, so there is nothing to watch")
        self._names = [name for name, _ in trained]
        shape = (min(count, ROWS), len(trained))
        self._sums = torch.zeros(shape, dtype=torch.float32, device=device)
        self._row = 0
        self._folded: list[torch.Tensor] = []
        self._handles = [
            one.register_hook(partial(self._see, index)) for index, (_, one) in enumerate(trained)
        ]

    def step_done(self) -> None:
        self._row += 1
        if self._row == len(self._sums):
            self._fold()

    def close(self) -> dict[str, Any]:
        """The fields of the `gradient_watch` event: how many parameters were watched, the first
        step (from 1) in which one's gradient was not finite, and the name of the one nearest to the
        loss, else None."""
        import torch

        for handle in self._handles:
            handle.remove()
        self._fold()
        at = torch.cat(self._folded)  # of each step a parameter, or -1
        bad = (at >= 0).nonzero().flatten().tolist()
        return {
            "parameters": len(self._names),
            "not_finite_at": bad[0] + 1 if bad else None,
            "not_finite_in": self._names[int(at[bad[0]])] if bad else None,
        }

    def _see(self, index: int, gradient: torch.Tensor) -> None:
        import torch

        # Added, since a step may have several backward passes.
        self._sums[self._row, index].add_(gradient.detach().sum(dtype=torch.float32))

    def _fold(self) -> None:
        import torch

        bad = ~torch.isfinite(self._sums[: self._row])
        # The last of the model: a NaN goes from the loss to the first layers.
        last = bad.shape[1] - 1 - bad.flip(1).to(torch.int32).argmax(dim=1)
        self._folded.append(torch.where(bad.any(dim=1), last, -1).to(torch.int32))
        self._sums.zero_()
        self._row = 0
