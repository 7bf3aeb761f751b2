"""train_fsdp.py's model, state and checkpoint, on the same batches whatever the number of ranks.

Without READ_FROM it trains some steps, saves its shards into WRITE_TO, and trains on. With it, it
loads those shards in new processes, perhaps of another world size, and trains on. Facts: a digest
of the whole state before it trains on, and the losses of the next steps. WITHOUT_OPTIMIZER loads
the weights alone.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

from pytest_clustersmoke.rank import Rank

sys.path.insert(0, str(Path(__file__).parents[3] / "smoke_tests"))
program: Any = importlib.import_module("train_fsdp")

BATCH = 12  # examples of a step, over all ranks
BEFORE, AFTER = 4, 4  # steps


def train_step(model: Any, optimizer: Any, rank: Rank, examples: Any, index: int) -> float:
    """One step on this rank's part of the batch; returns the mean loss of all its examples. Each
    example counts alike, however many tokens it has."""
    own = BATCH // rank.world_size
    first = index * BATCH + rank.rank * own
    rows = torch.arange(first, first + own) % len(examples["input_ids"])
    losses = [
        model(**{name: column[row : row + 1] for name, column in examples.items()}).loss
        for row in rows.tolist()
    ]
    optimizer.zero_grad(set_to_none=True)
    torch.stack(losses).mean().backward()
    optimizer.step()
    total = sum(float(loss) for loss in losses)
    mean = torch.tensor(total / BATCH, dtype=torch.float64)
    dist.all_reduce(mean)
    return float(mean)


def digest_whole(model: Any, optimizer: Any, rank: Rank) -> str:
    """Of the state gathered from all ranks."""
    options = StateDictOptions(full_state_dict=True)
    weights, states = get_state_dict(model, optimizer, options=options)
    assert len(weights) > 20 and states["state"], "the state is empty"
    return str(rank.digest({"model": weights, "optimizer": states["state"]}).hex)


def main() -> None:
    args = program.parse_args()
    with Rank.start(init="torch") as rank:
        examples, names = program.prepare_data(args)
        read_from = os.environ.get("READ_FROM")
        seed = args.seed + (1 if read_from else 0)
        vocabulary = max(names.values()) + 1
        model, optimizer = program.build(args, rank, vocabulary, seed)
        model.eval()  # dropout would draw other numbers on other ranks
        if read_from:
            program.load(read_from, model, optimizer)
            if os.environ.get("WITHOUT_OPTIMIZER"):
                optimizer.state.clear()
        else:
            for index in range(BEFORE):
                train_step(model, optimizer, rank, examples, index)
            path = os.environ["WRITE_TO"]
            program.save_shards(program.state_of(model, optimizer), checkpoint_id=path)
        rank.fact(
            state=digest_whole(model, optimizer, rank),
            next_losses=[
                train_step(model, optimizer, rank, examples, BEFORE + index)
                for index in range(AFTER)
            ],
            held_share=program.describe_units(model)["held_share"],
        )


if __name__ == "__main__":
    main()
