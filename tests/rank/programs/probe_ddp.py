"""The gradient probe under DDP: healthy, then with the reduction bypassed, omitted and wrong. Then
all of it again, with buckets and pieces that are smaller than some parameters."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_clustersmoke.rank import Rank, gradients

SIZES = [(gradients.BUCKET, gradients.PIECE), (200, 100)]  # of 512, 32, 128 and 4 elements


def main() -> None:
    with Rank.start() as rank:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.3), nn.Linear(32, 4))
        ddp = DistributedDataParallel(model)
        torch.manual_seed(1 + rank.rank)
        inputs, targets = torch.randn(8, 16), torch.randn(8, 4)

        def loss_of(network: nn.Module) -> torch.Tensor:
            return nn.functional.mse_loss(network(inputs), targets)

        def unsynced() -> None:
            with ddp.no_sync():
                loss_of(ddp).backward()

        def summed() -> None:
            loss_of(ddp).backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad *= rank.world_size

        def one_left_out() -> None:
            loss_of(ddp).backward()
            bias = model.get_parameter("3.bias")
            bias.grad = torch.autograd.grad(loss_of(model), bias)[0]

        faults = {
            "none": lambda: loss_of(ddp).backward(),
            "bypassed": lambda: loss_of(ddp.module).backward(),
            "no_sync": unsynced,
            "summed": summed,
            "one_left_out": one_left_out,
        }
        for gradients.BUCKET, gradients.PIECE in SIZES:
            for fault, backward in faults.items():
                model.zero_grad()
                torch.manual_seed(1 + rank.rank)  # of dropout
                synced = rank.verify_gradients(
                    model.named_parameters(), local_loss=lambda: loss_of(model), backward=backward
                )
                rank.fact(fault=fault, bucket=gradients.BUCKET, synced=synced)


if __name__ == "__main__":
    main()
