"""Four ranks repeat each other's passes: healthy ones, and with one that is always wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_clustersmoke.rank import Proof, Rank
from pytest_clustersmoke.rank.proof import StepProver

WIDTH, STEPS, GUILTY = 8, 4, 2
PROVEN = (0, 2)


def batch(index: int, share: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * index + share)
    return torch.randn(16, WIDTH, generator=generator)


def build() -> nn.Sequential:
    """With random numbers in the forward pass, and with buffers that differ between ranks."""
    torch.manual_seed(0)
    norm, dropout = nn.BatchNorm1d(WIDTH), nn.Dropout(0.3)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), norm, dropout, nn.Linear(WIDTH, WIDTH))


def spoil(layer: nn.Linear, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
    """The same wrong answer each time: one number of the output is half as large again."""
    wrong = output.clone()
    wrong.view(-1)[0] *= 1.5
    return wrong


def spoil_always(model: nn.Sequential, rank: int) -> None:
    if rank == GUILTY:
        model[0].register_forward_hook(spoil)


def spoil_parameter(model: nn.Sequential, rank: int) -> None:
    if rank == GUILTY:
        next(model.parameters()).data[0, 0] += 1


def use_buffer(model: nn.Sequential, rank: int) -> None:
    """A model whose gradients depend on a buffer of the rank's own."""
    model.register_buffer("scale", torch.tensor(1.0 + rank))
    model.register_forward_hook(lambda module, _inputs, output: output * module.scale)


def mark_compiled(model: nn.Sequential, rank: int) -> None:
    if rank == GUILTY:
        model.__dict__["_compiled_call_impl"] = model._call_impl


def train(
    rank: Rank, change: Callable[[nn.Sequential, int], None] | None, peers: bool
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Everything that training leaves behind, and the proofs."""
    model = build()
    engine = DistributedDataParallel(model, broadcast_buffers=False)
    if change is not None:
        change(model, rank.rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def loss_of(network: nn.Module, index: int, share: int) -> torch.Tensor:
        loss: torch.Tensor = network(batch(index, share)).square().mean()
        return loss

    proof = Proof(
        model,
        lambda index: loss_of(model, index, rank.rank),
        peer_loss=(lambda index, other: loss_of(model, index, other)) if peers else None,
    )
    prover, proofs = StepProver(proof, PROVEN, rank.world_size, lambda: None), []
    torch.manual_seed(1 + rank.rank)  # each rank drops other numbers
    for index in range(STEPS):
        prover.begin(index)
        optimizer.zero_grad()
        loss_of(engine, index, rank.rank).backward()
        if index in PROVEN:
            proofs.append(prover.prove(index))
        optimizer.step()
    gradients = [parameter.grad for parameter in model.parameters()]
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    return {**state, "gradients": gradients, "random": torch.get_rng_state()}, proofs


CASES: dict[str, Callable[[nn.Sequential, int], None] | None] = {
    "healthy": None,
    "always wrong": spoil_always,
    "other parameters": spoil_parameter,
    "other buffers": use_buffer,
    "compiled": mark_compiled,
}


def main() -> None:
    with Rank.start() as rank:
        for case, change in CASES.items():
            _, proofs = train(rank, change, peers=True)
            own = [proof["differing_count"] for proof in proofs]
            rank.fact(case=case, cross=[proof["cross"] for proof in proofs], own=own)
        with_it, without = (train(rank, None, peers)[0] for peers in (True, False))
        torch.testing.assert_close(with_it, without, rtol=0, atol=0)
        rank.fact(left_as_it_was=True)


if __name__ == "__main__":
    main()
