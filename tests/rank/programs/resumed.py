"""Trains a small model with dropout under DDP, and stops and resumes if its phase asks for it."""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from pytest_clustersmoke.rank import Proof, Rank

parser = argparse.ArgumentParser()
parser.add_argument("--breaks", default="", help="what does not go on: data, optimizer, weights")
parser.add_argument("--precision", choices=["fp32"], default="fp32")
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--pause-s", type=float, default=0.0, help="before each step")
args = parser.parse_args()


def batch(index: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + index)
    return torch.randn(8, 16, generator=generator)


with Rank.start() as rank:
    torch.manual_seed(7 if rank.device.type == "cpu" else 0)
    bare = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.Dropout(0.3), torch.nn.Linear(32, 16)
    )
    model = DistributedDataParallel(bare)
    optimizer = torch.optim.AdamW(bare.parameters(), lr=0.01)
    path = rank.output_dir / "progress.pt"
    first = 0

    def state() -> dict[str, Any]:
        return {"model": bare.state_dict(), "optimizer": optimizer.state_dict()}

    def load() -> dict[str, Any]:
        saved = torch.load(path, weights_only=True)
        if args.breaks != "weights":
            bare.load_state_dict(saved["model"])
        if args.breaks != "optimizer":
            optimizer.load_state_dict(saved["optimizer"])
        return state()

    def local_loss(index: int) -> torch.Tensor:
        inputs = batch(index - first if args.breaks == "data" else index, rank.rank)
        loss: torch.Tensor = (bare(inputs) - inputs).square().mean()
        return loss

    first = rank.resume(load)
    torch.rand(rank.rank + 3)  # a program may draw numbers when it starts
    for step in rank.steps(args.steps, samples_per_rank=8, proof=Proof(bare, local_loss)):
        time.sleep(args.pause_s)
        optimizer.zero_grad()
        inputs = batch(step.index - first if args.breaks == "data" else step.index, rank.rank)
        loss = (model(inputs) - inputs).square().mean()
        loss.backward()
        step.backward_done()
        optimizer.step()
        step.record(loss)
    if rank.should_stop:
        rank.save_progress(
            lambda: torch.save(state(), path) if rank.is_main else None,
            state=state(),
            next_loss=local_loss,
        )
    else:
        rank.fact(final=rank.digest(bare.state_dict()).hex)
        rank.save_checkpoint(lambda: torch.save(state(), path) if rank.is_main else None)
        rank.verify_reload(state(), lambda: torch.load(path, weights_only=True))
