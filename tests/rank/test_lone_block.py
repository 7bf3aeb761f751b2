"""One block of a model that runs alone, as that of a sharded model does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_clustersmoke.rank.lone_block import LoneBlock
from pytest_clustersmoke.rank.replay import Unrepeatable

WIDTH = 8


class Block(torch.nn.Module):
    """Takes its input with something else, as a layer of a language model does."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, hidden: Any, *, extra: Any = None) -> tuple[Any, None]:
        self.calls += 1
        return self.linear(hidden), None


class Model(torch.nn.Module):
    """A wide embedding, and three blocks."""

    def __init__(self, extra: Any = None) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(1000, WIDTH)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))
        self.extra = extra

    def forward(self, index: int) -> Any:
        hidden = self.embedding(torch.tensor([index]))
        for block in self.blocks:
            hidden, _ = block(hidden, extra=self.extra)
        return hidden.sum()


def test_largest_of_equal_blocks_stands_for_all() -> None:
    """With what it gets in the pass, whatever is outside the list; the model stays as it is."""
    model: Any = Model(extra=(torch.ones(2), None, "eager"))
    hooked: list[Any] = []
    for module in model.modules():
        module.register_forward_hook(lambda *given: hooked.append(given))
    before = {name: value.clone() for name, value in model.named_parameters()}
    lone = LoneBlock(model, lambda: model(3))
    assert lone.scale == 3
    passed, calls = len(hooked), model.blocks[0].calls.clone()
    (loss,) = lone.losses()
    lone.differentiate(loss)
    expected = model.blocks[0].linear(model.embedding(torch.tensor([3]))).sum()
    assert torch.equal(loss, expected)
    assert len(hooked) == passed + 2  # those of the expected value
    assert torch.equal(calls, model.blocks[0].calls)
    for name, value in model.named_parameters():
        assert torch.equal(value, before[name]) and value.grad is None


def test_blocks_of_a_sequence_may_differ() -> None:
    """The largest one is measured; a list within a list is opened."""
    inner = torch.nn.Sequential(torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(3 * WIDTH, 1))
    model = torch.nn.Sequential(torch.nn.Linear(1, WIDTH), inner)
    lone = LoneBlock(model, lambda: model(torch.ones(4, 1)))
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in inner]
    assert lone.scale == sum(sizes) / sizes[0]
    (loss,) = lone.losses()
    assert torch.equal(loss, inner[0](model[0](torch.ones(4, 1))).sum())


def test_frozen_block_has_a_backward_pass() -> None:
    """Under LoRA the gradient passes through it."""
    model = Model().requires_grad_(False)
    lone = LoneBlock(model, lambda: model(1))
    (loss,) = lone.losses()
    assert loss.requires_grad
    lone.differentiate(loss)


class Cache:
    """Grows in each pass."""


@pytest.mark.parametrize(
    ("model", "runs", "words"),
    [
        (Model(extra={"cache": Cache()}), True, "blocks get a Cache, which they may change"),
        (Block(), True, "no ModuleList or Sequential"),
        (Model(), False, "never calls the model's largest block"),
        (torch.nn.ModuleList([torch.nn.Embedding(9, 2)]), True, "no input of the model's blocks"),
    ],
)
def test_block_that_cannot_run_alone(model: Any, runs: bool, words: str) -> None:
    """It is said why, and no hook is left."""

    def forward() -> None:
        if isinstance(model, torch.nn.ModuleList):
            model[0](torch.tensor([1]))
        elif runs:
            model(torch.ones(1, WIDTH) if isinstance(model, Block) else 1)

    with pytest.raises(Unrepeatable, match=words):
        LoneBlock(model, forward)
    assert not any(module._forward_pre_hooks for module in model.modules())
