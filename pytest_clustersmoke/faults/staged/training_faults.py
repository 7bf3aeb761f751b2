"""Gradients, losses and results of collectives that are wrong."""

from __future__ import annotations

import importlib
from typing import Any
from unittest import mock

from .staging import Staging, cannot, replace


class NoSync(Staging):
    """DistributedDataParallel takes every forward pass under no_sync: nothing is reduced."""

    def opened(self) -> None:
        from torch.nn.parallel import DistributedDataParallel

        def without(forward: Any) -> Any:
            def unsynced(module: Any, *inputs: Any, **named: Any) -> Any:
                self.stage()
                with module.no_sync():  # DDP decides in the forward pass what the backward does
                    return forward(module, *inputs, **named)

            return unsynced

        replace(DistributedDataParallel, "forward", without)


class _Done:
    """What a collective that is left out answers, where its caller would wait."""

    def wait(self, *_: object) -> None:
        pass


class NoSyncZero(Staging):
    """DeepSpeed's reductions do nothing during its backward pass. Its all-gather still makes the
    parameters equal on all ranks, so that only a look at the gradients can tell."""

    def opened(self) -> None:
        engine: Any = importlib.import_module("deepspeed.runtime.engine")
        comm: Any = importlib.import_module("deepspeed.comm")

        def without(backward: Any) -> Any:
            def unreduced(*given: Any, **named: Any) -> Any:
                self.stage()
                with (
                    mock.patch.object(comm, "all_reduce", lambda *_, **__: _Done()),
                    mock.patch.object(comm, "reduce", lambda *_, **__: _Done()),
                ):
                    return backward(*given, **named)

            return unreduced

        replace(engine.DeepSpeedEngine, "backward", without)


class Flipped(Staging):
    """The sign of the largest gradient is turned once it is reduced, as the probe looks at it."""

    def after_backward(self) -> None:
        if not self.chosen:
            return
        gradients = [one.grad for one in self.parameters if one.grad is not None]
        if not gradients:
            raise cannot("no parameter has a gradient")
        self.stage()
        max(gradients, key=lambda one: float(one.norm())).neg_()


class NanInput(Staging):
    """In the last step the first number of the model's input is NaN on one rank."""

    def before_step(self, index: int, count: int) -> None:
        if not self.chosen or index != count - 1:
            return
        import torch

        def spoil(_module: Any, inputs: tuple[Any, ...]) -> Any:
            for place, one in enumerate(inputs):
                if isinstance(one, torch.Tensor) and one.is_floating_point() and one.numel():
                    handle.remove()
                    self.stage()
                    bad = one.clone()
                    bad.reshape(-1)[0] = float("nan")
                    return (*inputs[:place], bad, *inputs[place + 1 :])
            return None

        handle: Any = torch.nn.modules.module.register_module_forward_pre_hook(spoil)


class Flat(Staging):
    """Every step of every optimizer is taken back: the parameters stay as they are."""

    def opened(self) -> None:
        import torch
        from torch.optim import optimizer

        kept: dict[int, list[torch.Tensor]] = {}

        def parameters(one: torch.optim.Optimizer) -> list[torch.Tensor]:
            return [parameter for group in one.param_groups for parameter in group["params"]]

        def before(one: torch.optim.Optimizer, *_: Any) -> None:
            self.stage()
            kept[id(one)] = [parameter.detach().clone() for parameter in parameters(one)]

        def after(one: torch.optim.Optimizer, *_: Any) -> None:
            with torch.no_grad():
                for parameter, value in zip(parameters(one), kept.pop(id(one)), strict=True):
                    parameter.copy_(value)

        optimizer.register_optimizer_step_pre_hook(before)
        optimizer.register_optimizer_step_post_hook(after)


class CorruptedResult(Staging):
    """One number of every float32 buffer that is reduced comes out wrong on one rank."""

    def opened(self) -> None:
        if not self.chosen:
            return
        import torch
        import torch.distributed as dist

        def spoilt(all_reduce: Any) -> Any:
            def spoil(tensor: torch.Tensor, *given: Any, **named: Any) -> Any:
                found = all_reduce(tensor, *given, **named)
                if tensor.dtype == torch.float32:  # what ranks agree on beside is float64
                    self.stage()
                    tensor.view(-1)[-1] += 1.0
                return found

            return spoil

        replace(dist, "all_reduce", spoilt)


STAGINGS: dict[str, type[Staging]] = {
    "no-gradient-sync": NoSync,
    "no-gradient-sync-zero": NoSyncZero,
    "gradient-flipped": Flipped,
    "loss-nan": NanInput,
    "loss-flat": Flat,
    "result-corrupted": CorruptedResult,
}
