"""What is observed of the engine's own pass: the samples and tokens that the model got."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from pytest_clustersmoke.rank.engine_pass import ModelInputs

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
