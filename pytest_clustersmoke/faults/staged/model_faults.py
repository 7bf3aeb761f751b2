"""Models that compute in another precision, or train other weights, than their program says."""

from __future__ import annotations

import functools
import importlib
from abc import ABC, abstractmethod
from typing import Any

from .staging import NO_PROOF, Staging, cannot_stage, wrap_attribute

DECLARED = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


class WrongPrecision(Staging):
    """Computes linear layers in bf16 instead of fp32, or in fp32 instead of the others. What comes
    after them gets the declared precision, as it needs."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._handles: list[Any] = []

    def before_step(self, index: int, count: int) -> None:
        import torch

        if self.proof is None:
            raise cannot_stage(NO_PROOF)
        modules = self.proof.model.modules()
        layers = [module for module in modules if isinstance(module, torch.nn.Linear)]
        if not layers:
            raise cannot_stage("its model has no torch.nn.Linear")
        declared = getattr(torch, DECLARED[self.proof.precision])
        if index == 0:
            wrong = torch.bfloat16 if declared == torch.float32 else torch.float32
            wrap_attribute(torch.nn.Linear, "forward", lambda _: self._make_forward(wrong))
        for handle in self._handles:
            handle.remove()
        # Registered last, so that the hooks of a proven step see what the layers computed.
        self._handles = [
            layer.register_forward_hook(lambda _layer, _inputs, output: output.to(declared))
            for layer in layers
        ]

    def _make_forward(self, dtype: Any) -> Any:
        import torch

        def forward(layer: torch.nn.Linear, values: torch.Tensor) -> torch.Tensor:
            self.stage()
            bias = None if layer.bias is None else layer.bias.to(dtype)
            with torch.autocast(values.device.type, enabled=False):
                return torch.nn.functional.linear(values.to(dtype), layer.weight.to(dtype), bias)

        return forward


class Retrained(Staging, ABC):
    """Changes which parameters of peft's model are trained, as soon as it is built."""

    def introduced(self) -> None:
        try:
            peft: Any = importlib.import_module("peft")
        except ImportError as error:
            raise cannot_stage("it does not use peft") from error

        def altering(build: Any) -> Any:
            @functools.wraps(build)
            def build_altered(model: Any, *args: Any, **kwargs: Any) -> None:
                build(model, *args, **kwargs)
                self.stage()
                self.alter(dict(model.named_parameters()))

            return build_altered

        wrap_attribute(peft.PeftModel, "__init__", altering)

    @abstractmethod
    def alter(self, parameters: dict[str, Any]) -> None:
        """Change `requires_grad` of some of the model's parameters."""


class ProjectionFrozen(Retrained):
    def alter(self, parameters: dict[str, Any]) -> None:
        first = next((name for name in parameters if ".lora_" in name), "")
        projection = first.partition(".lora_")[0].rpartition(".")[2]
        if not projection:
            raise cannot_stage("its peft model has no LoRA adapters")
        for name, parameter in parameters.items():
            if f".{projection}.lora_" in name:
                parameter.requires_grad_(False)


class BaseTrainable(Retrained):
    def alter(self, parameters: dict[str, Any]) -> None:
        base = [parameter for parameter in parameters.values() if not parameter.requires_grad]
        if not base:
            raise cannot_stage("all parameters of its peft model are trained")
        min(base, key=lambda parameter: int(parameter.numel())).requires_grad_(True)


STAGINGS: dict[str, type[Staging]] = {
    "precision-wrong": WrongPrecision,
    "lora-projection-frozen": ProjectionFrozen,
    "lora-base-trainable": BaseTrainable,
}
