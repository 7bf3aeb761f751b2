"""Trains on several ranks, of which the last records its second step without a loss."""

from __future__ import annotations

import torch

from pytest_clustersmoke.rank import Rank

with Rank.start(init="torch") as rank:
    model = torch.nn.Linear(4, 1)
    for step in rank.steps(3, samples_per_rank=8, gradients_of=model.named_parameters()):
        loss = model(torch.ones(8, 4)).square().mean()
        loss.backward()
        is_missing = step.index == 1 and rank.rank == rank.world_size - 1
        step.record(loss=None if is_missing else loss)
