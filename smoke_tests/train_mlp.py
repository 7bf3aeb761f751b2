"""One GPU trains an MLP of 25,175,040 parameters: forward, backward, checkpoint, reload.

By hand:  torchrun --standalone --nproc_per_node=1 smoke_tests/train_mlp.py
or:       python smoke_tests/train_mlp.py --hidden-size 128 --steps 30 --learning-rate 1e-3
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pytest_clustersmoke.rank import Rank

if TYPE_CHECKING:
    from smoke_tests.teacher import Teacher
else:  # torchrun puts this file's own folder on the path, and not the one above
    from teacher import Teacher


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden-size", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=32)
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

        def loss_of(step: int) -> torch.Tensor:
            inputs, targets = data.batch(step)
            return nn.functional.mse_loss(model(inputs), targets)

        data = rank.stage(
            "data", lambda: Teacher(args.hidden_size, args.batch_size, rank.rank, rank.device)
        )
        model, optimizer = rank.stage("model", lambda: build(args.seed))
        rank.fact(
            parameters=sum(p.numel() for p in model.parameters()),
            precision="fp32",
            optimizer=type(optimizer).__name__,
        )
        rank.verify_gradients(
            model.named_parameters(),
            local_loss=lambda: loss_of(0),
            backward=lambda: loss_of(0).backward(),
        )

        for step in rank.steps(
            args.steps, samples_per_rank=args.batch_size, gradients_of=model.named_parameters()
        ):
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(step.index)
            step.local_done()
            loss.backward()
            optimizer.step()
            step.record(loss=loss)

        path = rank.output_dir / "mlp.pt"

        def state() -> dict[str, Any]:
            return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

        def reload() -> dict[str, Any]:
            saved = torch.load(path, map_location=rank.device, weights_only=True)
            new_model, new_optimizer = build(args.seed + 1)
            new_model.load_state_dict(saved["model"])
            new_optimizer.load_state_dict(saved["optimizer"])
            return {"model": new_model.state_dict(), "optimizer": new_optimizer.state_dict()}

        rank.save_checkpoint(lambda: torch.save(state(), path))
        rank.verify_reload(state(), reload)


if __name__ == "__main__":
    main()
