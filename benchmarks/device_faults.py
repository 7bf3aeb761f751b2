"""What a rank gets wrong in a trial: results of its matrix products, or one bit of its state."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_clustersmoke.rank import Proof
from pytest_clustersmoke.rank.proof import find_optimizer

PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)
NEIGHBOURS = 32
INTEGERS = {2: torch.int16, 4: torch.int32}


def flip_bits(output: torch.Tensor, draw: random.Random) -> None:
    """Several bits of one number; of fp32 not the ten lowest."""
    at, size = draw.randrange(output.numel()), output.element_size()
    bits = range(10, 31) if size == 4 else range(15)
    output.view(-1).view(INTEGERS[size])[at] ^= sum(1 << bit for bit in draw.sample(bits, 4))


def spoil_neighbours(output: torch.Tensor, draw: random.Random) -> None:
    """32 values side by side, as a broken lane of a vector unit gives them."""
    at = draw.randrange(max(1, output.numel() - NEIGHBOURS))
    output.view(-1)[at : at + NEIGHBOURS] *= 1 + draw.uniform(0.01, 0.5)


def spoil_by_value(output: torch.Tensor, draw: random.Random) -> None:
    """Values above a bound that changes with every call, as temperature and voltage do."""
    flat = output.view(-1)
    bound = float(flat.abs().max()) * draw.uniform(0.5, 0.95)
    flat[flat.abs() > bound] *= 1.03125


CLASSES: dict[str, Callable[[torch.Tensor, random.Random], None]] = {
    "multi-bit": flip_bits,
    "neighbours": spoil_neighbours,
    "value-dependent": spoil_by_value,
}


# Not by chance: 32 values side by side, at a place and by a factor that the shape decides.
SAME = "same-each-time"


class Corruption(TorchDispatchMode):
    """Spoils the result of a matrix product with probability `share`, once `active`, and `most`
    products in all."""

    def __init__(self, kind: str, share: float, seed: str, most: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._most = most
        self.active, self.hits = False, 0
        self.step, self.calls = 0, Counter[int]()  # products in each step, once active
        self._kind, self._share, self._seed, self._draw = kind, share, seed, random.Random(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if self.active and func in PRODUCTS:
            self.calls[self.step] += 1
            if self._kind == SAME:
                self.hits += 1
                place = f"{self._seed} {func} {tuple(output.shape)}"
                spoil_neighbours(output, random.Random(place))
            elif self.hits != self._most and self._draw.random() < self._share:
                self.hits += 1
                names = sorted(CLASSES)
                kind = self._draw.choice(names) if self._kind == "mixed" else self._kind
                CLASSES[kind](output, self._draw)
        return output


class Flip:
    """Flips one bit of the state, once."""

    def __init__(self, kind: str, seed: str) -> None:
        self.kind, self.hits = kind, 0
        self._draw = random.Random(seed)

    def strike(self, proof: Proof) -> None:
        tensor = self._choose(proof)
        at, bits = self._draw.randrange(tensor.numel()), tensor.element_size() * 8
        bit = self._draw.randrange(bits)
        # The highest bit of a signed integer is its sign.
        mask = 1 << bit if bit < bits - 1 else -(1 << bit)
        tensor.view(-1).view(INTEGERS[bits // 8])[at] ^= mask
        self.hits += 1

    def _choose(self, proof: Proof) -> torch.Tensor:
        """A weight of the model, or one of the tensors that the optimizer keeps."""
        if self.kind == "weight":
            weights = [p for p in proof.model.parameters() if p.requires_grad]
            return self._draw.choice(weights).data
        optimizer = find_optimizer(proof)
        stepped = [p for group in optimizer.param_groups for p in group["params"]]
        parameter: torch.Tensor = self._draw.choice(stepped)
        if self.kind == "master":
            return parameter.data
        moment: torch.Tensor = optimizer.state[parameter][
            self._draw.choice(["exp_avg", "exp_avg_sq"])
        ]
        return moment
