"""DistributedDataParallel trains an MLP of 100,681,728 parameters; are gradients in sync?

By hand:  torchrun --standalone --nproc_per_node=2 smoke_tests/train_ddp.py
small:    torchrun --standalone --nproc_per_node=2 smoke_tests/train_ddp.py \\
              --hidden-size 128 --steps 30 --learning-rate 1e-3
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_clustersmoke.rank import Rank

if TYPE_CHECKING:
    from smoke_tests.teacher import Teacher
else:  # torchrun puts this file's own folder on the path, and not the one above
    from teacher import Teacher


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden-size", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=64, help="per rank")
    parser.add_argument("--steps", type=int, default=100)
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


def main() -> None:
    args = parse_args()
    with Rank.start(init="torch") as rank:

        def build(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
            torch.manual_seed(seed)
            model = build_model(args.hidden_size).to(rank.device)
            return model, torch.optim.AdamW(model.parameters(), lr=args.learning_rate)

        def loss_of(network: nn.Module, step: int) -> torch.Tensor:
            inputs, targets = data.batch(step)
            return nn.functional.mse_loss(network(inputs), targets)

        data = rank.stage(
            "data", lambda: Teacher(args.hidden_size, args.batch_size, rank.rank, rank.device)
        )
        model, optimizer = rank.stage("model", lambda: build(args.seed))
        # Without device_ids the module's own device is used, on CPU as on a GPU.
        ddp = rank.stage("model", lambda: DistributedDataParallel(model))
        rank.fact(
            parameters=sum(p.numel() for p in model.parameters()),
            precision="fp32",
            optimizer=type(optimizer).__name__,
            engine=type(ddp).__name__,
        )
        rank.verify_gradients(
            model.named_parameters(),
            local_loss=lambda: loss_of(model, 0),  # the bare module: no hook of DDP runs
            backward=lambda: loss_of(ddp, 0).backward(),
        )

        for step in rank.steps(
            args.steps, samples_per_rank=args.batch_size, gradients_of=model.named_parameters()
        ):
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(ddp, step.index)
            step.local_done()  # the backward pass waits for the other ranks
            loss.backward()
            optimizer.step()
            step.record(loss=loss)

        path = rank.output_dir / "ddp.pt"

        def state() -> dict[str, Any]:
            return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

        def save() -> None:
            if rank.is_main:  # all ranks hold the same
                torch.save(state(), path)

        def reload() -> dict[str, Any]:
            saved = torch.load(path, map_location=rank.device, weights_only=True)
            new_model, new_optimizer = build(args.seed + 1)
            new_model.load_state_dict(saved["model"])
            new_optimizer.load_state_dict(saved["optimizer"])
            return {"model": new_model.state_dict(), "optimizer": new_optimizer.state_dict()}

        rank.save_checkpoint(save)
        rank.verify_reload(state(), reload)


if __name__ == "__main__":
    main()
