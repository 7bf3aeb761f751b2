"""An MLP learns a linear map, on one GPU or on several under DistributedDataParallel.

    python smoke_tests/train_mlp.py \\
        --hidden-size 128 --batch-size 32 --steps 30 --learning-rate 1e-3
    torchrun --standalone --nproc_per_node=2 smoke_tests/train_mlp.py \\
        --hidden-size 2048 --batch-size 64 --steps 100
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_clustersmoke.rank import Proof, Rank
from teacher import Teacher


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden-size", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True, help="per rank")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def build_model(hidden_size: int) -> nn.Module:
    """Three linear layers, h -> 4h -> 4h -> h."""
    return nn.Sequential(
        nn.Linear(hidden_size, hidden_size * 4),
        nn.GELU(),
        nn.Linear(hidden_size * 4, hidden_size * 4),
        nn.GELU(),
        nn.Linear(hidden_size * 4, hidden_size),
    )


def build(
    args: argparse.Namespace, seed: int, device: torch.device
) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = build_model(args.hidden_size).to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=args.learning_rate)


def loss_of(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    inputs, targets = batch  # both (batch_size, hidden_size)
    return nn.functional.mse_loss(model(inputs), targets)


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    saved = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return state_of(model, optimizer)


def main() -> None:
    args = parse_args()
    with Rank.start(init="torch") as rank:
        # Data. Each rank draws its own share.
        def draw(share: int) -> Teacher:
            return Teacher(args.hidden_size, args.batch_size, share, rank.device)

        data = rank.stage("data", lambda: draw(rank.rank))

        # Model. `engine` is what trains: the model itself, or DDP around it.
        model, optimizer = rank.stage("model", lambda: build(args, args.seed, rank.device))
        engine = model
        if rank.world_size > 1:
            engine = rank.stage("model", lambda: DistributedDataParallel(model))
        rank.fact(
            parameters=sum(p.numel() for p in model.parameters()),
            precision="fp32",
            optimizer=type(optimizer).__name__,
            engine=type(engine).__name__,
        )

        # Loop. The rank draws steps and proves them, with the bare model: DDP does not run.
        proof = Proof(
            model,
            local_loss=lambda index: loss_of(model, data.batch(index)),
            optimizer=optimizer,
            peer_loss=lambda index, other: loss_of(model, draw(other).batch(index)),
        )
        for step in rank.steps(args.steps, samples_per_rank=args.batch_size, proof=proof):
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(engine, data.batch(step.index))
            step.local_done()  # the backward pass waits for the other ranks
            loss.backward()
            step.backward_done()
            optimizer.step()
            step.record(loss=loss)

        # Checkpoint. Rank 0 saves the state that all ranks share; each loads it into a new model.
        path = rank.output_dir / ("ddp.pt" if rank.world_size > 1 else "mlp.pt")
        trained = state_of(model, optimizer)
        rank.save_checkpoint(lambda: torch.save(trained, path) if rank.is_main else None)
        rank.verify_reload(trained, lambda: load(path, *build(args, args.seed + 1, rank.device)))


if __name__ == "__main__":
    main()
