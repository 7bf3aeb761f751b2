"""The gradient probe: is what the engine would apply the mean of all ranks' own gradients?

Each rank takes its local gradients with the bare model, where no hook of DDP or DeepSpeed runs, and
averages them by an all-reduce of its own in float32. Then the engine does its forward and backward
on the same batch, and what it made of every parameter's gradient is compared with that mean. Equal
parameters on all ranks would prove nothing under ZeRO: its all-gather makes them equal even with
every reduction removed. Clipping plays no part, since engines clip in the step that comes after.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# Largest relative error that still counts as in sync. Healthy runs of 2 and of 8 ranks gave up to
# 4e-8 in fp32 (the order of additions) and up to 4e-3 in bf16 (DeepSpeed adds in bf16, rounding to
# 8 bits each time; it grows with the square root of the ranks). The parameter least affected by a
# reduction that is left out was off by 0.19 in the same runs.
TOLERANCES = {"fp32": 1e-4, "bf16": 2e-2}
# A parameter whose gradient is this much smaller than usual for its size is judged against that
# share of the usual: the rounding of a gradient that is all but zero says nothing.
FLOOR = 1e-3
# An unreduced gradient must stand out of the tolerance by this much, else the probe cannot fail.
SENSITIVE_BY = 10.0


@dataclass(frozen=True)
class Probe:
    """What is compared. `applied(p) * scale` is the gradient the engine would apply to p."""

    parameters: list[tuple[str, torch.nn.Parameter]]
    local_loss: Callable[[], torch.Tensor]
    backward: Callable[[], object]
    applied: Callable[[torch.nn.Parameter], torch.Tensor | None]
    precision: str
    scale: float
    world_size: int

    def run(self) -> dict[str, Any]:
        """The fields of the `gradients` event."""
        if not self.parameters:
            raise ValueError("no parameter requires a gradient, so there is nothing to probe")
        if self.precision not in TOLERANCES:
            raise ValueError(
                f"precision={self.precision!r}; expected one of {', '.join(TOLERANCES)}"
            )
        randomness = _Randomness()
        local = self._local_gradients()
        randomness.restore()  # both passes must drop out the same
        self.backward()
        return self._compare(local)

    def _local_gradients(self) -> list[torch.Tensor | None]:
        import torch

        parameters = [parameter for _, parameter in self.parameters]
        return list(torch.autograd.grad(self.local_loss(), parameters, allow_unused=True))

    def _compare(self, local: list[torch.Tensor | None]) -> dict[str, Any]:
        """Every rank goes through all parameters in the same order: each is a collective."""
        import torch

        rows = []
        for index, (_, parameter) in enumerate(self.parameters):
            rows.append(self._distances(parameter, local[index]))
            local[index] = None  # a large model's gradients are freed as they are done
        # Columns: squared norms of (local, mean over ranks), (applied - mean), (local - mean).
        table = torch.stack(rows)
        typical, error, spread = table.unbind(dim=1)
        sizes = torch.tensor([p.numel() for _, p in self.parameters], device=table.device)
        usual = sizes * (typical.sum() / sizes.sum())
        scale = torch.maximum(typical, FLOOR**2 * usual)
        errors = _relative(error, scale)
        spreads = _relative(spread, scale)
        worst = max(range(len(errors)), key=lambda i: _badness(errors[i]))
        tolerance = TOLERANCES[self.precision]
        return {
            "parameters": len(self.parameters),
            "compared": len(errors),
            "max_relative_error": errors[worst],
            "tolerance": tolerance,
            "worst": self.parameters[worst][0],
            "precision": self.precision,
            "local_spread": max(spreads),
            "least_local_spread": min(spreads),
            "sensitive": max(spreads) > SENSITIVE_BY * tolerance,
            "synced": errors[worst] <= tolerance,  # false for NaN
        }

    def _distances(self, parameter: torch.nn.Parameter, own: torch.Tensor | None) -> torch.Tensor:
        """Squared norms for one parameter. A gradient that is absent counts as zero.

        Errors are measured against the root mean square of the ranks' local norms, not against the
        norm of the mean: where local gradients all but cancel, rounding is as large as they are.
        """
        import torch
        import torch.distributed as dist

        local = torch.zeros_like(parameter, dtype=torch.float32) if own is None else own.float()
        mean = local / self.world_size
        typical = local.square().sum(dtype=torch.float64) / self.world_size
        dist.all_reduce(mean)
        dist.all_reduce(typical)
        found = self.applied(parameter)
        applied = torch.zeros_like(mean) if found is None else found.float() * self.scale
        error = (applied - mean).square().sum(dtype=torch.float64)
        spread = (local - mean).square().sum(dtype=torch.float64)
        return torch.stack([typical, error, spread])


def _relative(squared: torch.Tensor, scale: torch.Tensor) -> list[float]:
    """Square roots of the ratios; 0 where there is nothing on either side."""
    import torch

    ratio = torch.where((squared == 0) & (scale == 0), torch.zeros_like(squared), squared / scale)
    values: list[float] = ratio.sqrt().tolist()
    return values


def _badness(error: float) -> float:
    """NaN is the worst of all."""
    return error if error == error else float("inf")


class _Randomness:
    """The state of the generators that dropout draws from."""

    def __init__(self) -> None:
        import torch

        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None

    def restore(self) -> None:
        import torch

        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda)
