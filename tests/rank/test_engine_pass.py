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


def seen_of(*inputs: Any, **named: Any) -> tuple[int | None, bool]:
    seen = ModelInputs(batch_dim=0)
    seen.add(inputs, named)
    return seen.batch, seen.is_whole


def test_batches_are_equal_where_their_tensors_are() -> None:
    """However they are nested; one element that differs shows. What cannot be looked into may hold
    other data."""
    other = FLOATS.clone()
    other[3, 3] = 1.0
    same = [seen_of(FLOATS, IDS), seen_of({"a": [FLOATS], "b": IDS}), seen_of(Batch(FLOATS, IDS))]
    assert same == [same[0]] * 3 and same[0][1]
    assert seen_of(other, IDS) != same[0]
    assert seen_of(FLOATS, IDS, "text", None, True, scale=0.5) == same[0]
    assert seen_of(FLOATS, IDS, object()) == (same[0][0], False)
    assert seen_of("text", 3) == (None, True)


def test_the_same_tokens_in_another_order_are_another_batch() -> None:
    """Sequences that count up from different numbers, each number as often as the others."""
    first, second = ((start + torch.arange(2048)) % 512 for start in (3, 70))
    assert sorted(first.tolist()) == sorted(second.tolist())
    assert (
        len({seen_of(first), seen_of(second), seen_of(first, second), seen_of(second, first)}) == 4
    )
    micro, swapped = ModelInputs(0), ModelInputs(0)
    for batch in (first, second):
        micro.add((batch,), {})
    for batch in (second, first):
        swapped.add((batch,), {})
    assert micro.batch != swapped.batch
    assert seen_of(torch.ones(2, dtype=torch.complex128))[1]


@pytest.mark.parametrize("empty", [torch.zeros(0), torch.zeros(0, dtype=torch.bool)])
def test_any_tensor_may_be_an_argument(empty: torch.Tensor) -> None:
    """One whose elements lie in no order has no fingerprint, and is no reason to fail."""
    assert seen_of(empty, torch.tensor(True), torch.ones(3, dtype=torch.complex64))[1]
    assert seen_of(torch.ones(3, dtype=torch.complex64).conj()) == (None, False)
    assert seen_of(FLOATS.to_sparse()) == (None, False)
    nested = torch.nested.nested_tensor([FLOATS, FLOATS[:1]], layout=torch.jagged)
    assert seen_of(nested) == (None, False)


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
