"""Wrong gradients, losses and results of collectives."""

from __future__ import annotations

from typing import Any

from ...rank.leaves import is_sharded
from ...rank.proof import find_optimizer
from .staging import AT_STEP, NO_PROOF, Staging, cannot_stage, wrap_attribute


class Flipped(Staging):
    """Flips the sign of the largest gradient after its reduction, just before the probe."""

    def after_backward(self) -> None:
        if not self.chosen:
            return
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if not gradients:
            raise cannot_stage("no parameter has a gradient")
        self.stage()
        max(gradients, key=lambda gradient: float(gradient.norm())).neg_()


class CorruptedGradient(Staging):
    """Doubles one number of the first gradient in every second pass, before any reduction."""

    def before_step(self, index: int, count: int) -> None:
        if not self.chosen or index:
            return
        if not self.parameters:
            raise cannot_stage(NO_PROOF)
        import torch

        passes = 0

        def corrupt(gradient: torch.Tensor) -> torch.Tensor | None:
            nonlocal passes
            passes += 1
            if passes % 2:
                return None
            self.stage()
            wrong = gradient.clone()
            wrong.view(-1)[wrong.abs().argmax()] *= 2
            return wrong

        self.parameters[0].register_hook(corrupt)


class AlwaysWrong(Staging):
    """Makes the first number of each linear layer's output half as large again, in every pass.

    The other ranks do the same work with a factor of one, so that the rank is not slower than they.
    """

    def before_step(self, index: int, count: int) -> None:
        if index:
            return
        if not self.has_peer_loss:
            raise cannot_stage("the program gave rank.steps no proof with a peer_loss")
        import torch

        factor = 1.5 if self.chosen else 1.0

        def spoil(module: Any, _inputs: Any, output: Any) -> Any:
            if not isinstance(module, torch.nn.Linear):
                return None
            if self.chosen:
                self.stage()
            scaled = output.clone()
            scaled.view(-1)[0] *= factor
            return scaled

        torch.nn.modules.module.register_module_forward_hook(spoil)


class FlippedWeight(Staging):
    """Flips the highest bit of the mantissa of one weight, as an error of the memory would."""

    def before_step(self, index: int, count: int) -> None:
        if self.is_spared or index != min(AT_STEP, count - 1):
            return
        if not self.parameters:
            raise cannot_stage(NO_PROOF)
        import torch

        if any(map(is_sharded, self.parameters)):
            raise cannot_stage("its parameters are sharded, and a twin run needs whole ones")
        weight = self.find_weight().data.view(-1)
        self.stage()
        integers = {2: (torch.int16, 6), 4: (torch.int32, 22)}  # type, bit: bf16 and fp32
        dtype, bit = integers[weight.element_size()]
        weight.view(dtype)[weight.abs().argmax()] ^= 1 << bit

    @property
    def is_spared(self) -> bool:
        return not self.chosen

    def find_weight(self) -> Any:
        return self.parameters[0]


class FlippedWeights(FlippedWeight):
    """The same on every rank, so that the replicas stay equal; a single rank has none."""

    is_spared = False


class FlippedMaster(FlippedWeight):
    """The same in the rank's own partition of ZeRO's master weights in fp32."""

    def find_weight(self) -> Any:
        optimizer = None if self.proof is None else find_optimizer(self.proof)
        if optimizer is None:
            raise cannot_stage("the program's proof names no optimizer")
        return optimizer.param_groups[0]["params"][0]


class NanInput(Staging):
    """Makes the first number of the model's input NaN in the last step of one rank."""

    def before_step(self, index: int, count: int) -> None:
        if not self.chosen or index != count - 1:
            return
        import torch

        def spoil(_module: Any, inputs: tuple[Any, ...]) -> Any:
            for place, value in enumerate(inputs):
                if not isinstance(value, torch.Tensor):
                    continue
                if value.is_floating_point() and value.numel():
                    handle.remove()
                    self.stage()
                    bad = value.clone()
                    bad.reshape(-1)[0] = float("nan")
                    return (*inputs[:place], bad, *inputs[place + 1 :])
            return None

        handle: Any = torch.nn.modules.module.register_module_forward_pre_hook(spoil)


class Flat(Staging):
    """Undoes every optimizer step, so that the parameters never change."""

    def opened(self) -> None:
        import torch
        from torch.optim import optimizer

        kept: dict[int, list[torch.Tensor]] = {}

        def parameters_of(stepped: torch.optim.Optimizer) -> list[torch.Tensor]:
            return [parameter for group in stepped.param_groups for parameter in group["params"]]

        def before(stepped: torch.optim.Optimizer, *_: Any) -> None:
            self.stage()
            kept[id(stepped)] = [value.detach().clone() for value in parameters_of(stepped)]

        def after(stepped: torch.optim.Optimizer, *_: Any) -> None:
            with torch.no_grad():
                for parameter, value in zip(
                    parameters_of(stepped), kept.pop(id(stepped)), strict=True
                ):
                    parameter.copy_(value)

        optimizer.register_optimizer_step_pre_hook(before)
        optimizer.register_optimizer_step_post_hook(after)


class CorruptedResult(Staging):
    """Changes one number of every reduced float32 buffer on one rank."""

    def opened(self) -> None:
        if not self.chosen:
            return
        import torch
        import torch.distributed as dist

        def with_wrong_result(all_reduce: Any) -> Any:
            def reduce_wrongly(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
                work = all_reduce(tensor, *args, **kwargs)
                if tensor.dtype == torch.float32:  # our own agreement between ranks uses float64
                    self.stage()
                    tensor.view(-1)[-1] += 1.0
                return work

            return reduce_wrongly

        wrap_attribute(dist, "all_reduce", with_wrong_result)


STAGINGS: dict[str, type[Staging]] = {
    "gradient-flipped": Flipped,
    "gradient-corrupted": CorruptedGradient,
    "always-wrong": AlwaysWrong,
    "weight-flipped": FlippedWeight,
    "weights-flipped": FlippedWeights,
    "master-flipped": FlippedMaster,
    "loss-nan": NanInput,
    "loss-flat": Flat,
    "result-corrupted": CorruptedResult,
}
