"""The cost of watching gradients for numbers that are not finite.

Measures steps of train_mlp.py's model with and without the watch, alternating within one run, so
that a change of the machine's speed affects both.

    torchrun --standalone --nproc_per_node=2 benchmarks/gradient_watch.py
    torchrun --standalone --nproc_per_node=2 benchmarks/gradient_watch.py --hidden-size 128
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_clustersmoke.rank import Rank
from pytest_clustersmoke.rank.watches import GradientWatch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "smoke_tests"))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden-size", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=64, help="per rank")
    parser.add_argument("--steps", type=int, default=5, help="in a turn")
    parser.add_argument("--turns", type=int, default=9)
    return parser.parse_args()


def training(
    args: argparse.Namespace, device: torch.device
) -> tuple[nn.Module, Callable[[], None]]:
    from train_mlp import build_model

    model: nn.Module = build_model(args.hidden_size).to(device)
    ddp, optimizer = DistributedDataParallel(model), torch.optim.AdamW(model.parameters())
    inputs = torch.randn(args.batch_size, args.hidden_size, device=device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.mse_loss(ddp(inputs), inputs).backward()
        optimizer.step()

    return model, step


def seconds(
    count: int, step: Callable[[], None], device: torch.device, watched: nn.Module | None
) -> float:
    """The mean seconds of a step in one turn on this rank; all ranks begin the turn together."""
    watch = GradientWatch(watched.named_parameters(), count, device) if watched else None
    dist.barrier()
    started = time.perf_counter()
    for _ in range(count):
        step()
        if watch is not None:
            watch.step_done()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    taken = (time.perf_counter() - started) / count
    if watch is not None:
        assert watch.close()["not_finite_at"] is None
    return taken


def main() -> None:
    args = parse_args()
    with Rank.start(init="torch") as rank:
        model, step = training(args, rank.device)
        seconds(args.steps, step, rank.device, model)  # warm-up
        pairs = [
            (
                seconds(args.steps, step, rank.device, None),
                seconds(args.steps, step, rank.device, model),
            )
            for _ in range(args.turns)
        ]
        ratios = sorted(with_watch / without for without, with_watch in pairs)
        rank.say(
            f"{args.turns} pairs of {args.steps} steps: without the watch "
            f"{median(without for without, _ in pairs):.4g} s per step, with it "
            f"{median(with_watch for _, with_watch in pairs):.4g} s; ratio {median(ratios):.4f} "
            f"({ratios[0]:.4f} to {ratios[-1]:.4f})"
        )


if __name__ == "__main__":
    main()
