"""Finds the rank whose local gradient stopped being finite first, and the parameter.

A reduction spreads one rank's NaN to all ranks: from the next step on every loss is NaN, and
nothing shows where it came from. DeepSpeed may skip that step, and then no loss shows anything. So
a hook sums each gradient as autograd produces it, before any reduction; the sum is finite only if
all its elements are. The sums stay on the device, so nothing waits for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# Sums are kept for this many steps, then reduced to one number per step.
ROWS = 1000


class GradientWatch:
    """Call `step_done` after each step, `close` at the end. It reads each gradient once a step."""

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        count: int,
        device: torch.device,
    ) -> None:
        import torch

        trained = [(name, p) for name, p in named_parameters if p.requires_grad]
        if not trained:
            raise ValueError("no parameter requires a gradient, so there is nothing to watch")
        self._names = [name for name, _ in trained]
        shape = (min(count, ROWS), len(trained))
        self._sums = torch.zeros(shape, dtype=torch.float32, device=device)
        self._row = 0
        self._is_paused = False
        self._folded: list[torch.Tensor] = []
        self._handles = [
            parameter.register_hook(partial(self._add_sum, index))
            for index, (_, parameter) in enumerate(trained)
        ]

    def step_done(self) -> None:
        self._row += 1
        if self._row == len(self._sums):
            self._fold()

    def close(self) -> dict[str, Any]:
        """The fields of the `gradient_watch` event: the number of parameters watched, the first
        step (from 1) with a gradient that was not finite, and the name of its parameter nearest to
        the loss; None if all were finite."""
        import torch

        for handle in self._handles:
            handle.remove()
        self._fold()
        parameters = torch.cat(self._folded)  # one index for each step, -1 where all were finite
        bad_steps = (parameters >= 0).nonzero().flatten().tolist()
        return {
            "parameters": len(self._names),
            "not_finite_at": bad_steps[0] + 1 if bad_steps else None,
            "not_finite_in": self._names[int(parameters[bad_steps[0]])] if bad_steps else None,
        }

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the gradients of a pass that is not the engine's own."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def _add_sum(self, index: int, gradient: torch.Tensor) -> None:
        import torch

        if self._is_paused:
            return
        # Add, because a step may have several backward passes.
        self._sums[self._row, index].add_(gradient.detach().sum(dtype=torch.float32))

    def _fold(self) -> None:
        import torch

        bad = ~torch.isfinite(self._sums[: self._row])
        # The last parameter of the model: a NaN propagates from the loss to the first layers.
        last = bad.shape[1] - 1 - bad.flip(1).to(torch.int32).argmax(dim=1)
        self._folded.append(torch.where(bad.any(dim=1), last, -1).to(torch.int32))
        self._sums.zero_()
        self._row = 0
