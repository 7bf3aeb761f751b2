"""What is observed of the engine's own pass: the samples and tokens that the model got."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from pytest_clustersmoke.rank.engine_pass import EnginePass, ModelInputs

IDS = torch.zeros(4, 16, dtype=torch.int64)
FLOATS = torch.zeros(4, 16)


@dataclass
class Batch:
    inputs: torch.Tensor
    labels: torch.Tensor


@pytest.mark.parametrize(
    ("inputs", "named", "tokens"),
    [
        ((IDS,), {}, 64),
        ((FLOATS, IDS), {}, 64),
        ((), {"position_ids": IDS[:1], "input_ids": IDS}, 64),
        (({"position_ids": IDS[:1], "input_ids": IDS},), {}, 64),
        ((UserDict(labels=FLOATS, input_ids=IDS.int()),), {}, 64),
        ((Batch(FLOATS, IDS),), {}, 64),
        (([None, (IDS,)],), {}, 64),
        ((FLOATS,), {"mask": FLOATS.bool(), "scale": torch.tensor(3)}, None),
        (("text", object()), {}, None),
    ],
)
def test_tokens_are_counted_with_padding(
    inputs: tuple[Any, ...], named: dict[str, Any], tokens: int | None
) -> None:
    """They are the elements of `input_ids`, or of the first tensor of integers; several micro
    batches are added up."""
    seen = ModelInputs(batch_dim=0)
    seen.add(inputs, named)
    assert seen.tokens == tokens
    seen.add(inputs, named)
    assert seen.tokens == (tokens and 2 * tokens)


class Adapted(torch.nn.Module):
    """A layer of 16 bits under an adapter in fp32, named as peft does, and a head in fp32."""

    def __init__(self) -> None:
        super().__init__()
        self.wrapped = torch.nn.ModuleDict(
            {
                "base_layer": torch.nn.Linear(4, 4, dtype=torch.bfloat16),
                "lora_A": torch.nn.ModuleDict({"default": torch.nn.Linear(4, 4)}),
            }
        )
        self.head = torch.nn.Linear(4, 4)

    def forward(self, inputs: torch.Tensor) -> Any:
        base = self.wrapped["base_layer"](inputs.bfloat16())
        adapters: Any = self.wrapped["lora_A"]
        return self.head(base + adapters["default"](inputs))


@pytest.mark.parametrize("under_autocast", [True, False])
def test_what_each_layer_computes_in_is_recorded(under_autocast: bool) -> None:
    """Adapters are told apart from the layers below them."""
    model = Adapted()
    # An engine may convert what a layer puts out; the layer computed in another type.
    model.wrapped["base_layer"].register_forward_hook(lambda *each: each[-1].float())
    observed = EnginePass(model, list(model.parameters()), batch_dim=0)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=under_autocast):
        model(torch.ones(2, 4))
    observed.close()
    head, adapters = ("bfloat16",) * 2 if under_autocast else ("float32",) * 2
    expected: dict[str, list[str]] = {"bfloat16": ["wrapped.base_layer"]}
    expected.setdefault(head, []).append("head")
    assert (observed.dtypes, observed.adapter_dtypes) == (expected, {adapters})
