"""A classifier with batch norm learns a finite dataset in epochs, under DistributedDataParallel.

    torchrun --standalone --nproc_per_node=2 smoke_tests/train_epochs.py \\
        --width 32 --examples 256 --batch-size 16 --epochs 4 \\
        --base-learning-rate 1e-2 --base-batch 32
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler, TensorDataset

from batch_norm import check_statistics, make_batch_norm
from pytest_clustersmoke.rank import Proof, Rank
from train_mlp import load, state_of

DATA_SEED = 1234
CLASSES = 8

Batch = tuple[torch.Tensor, torch.Tensor]  # inputs (samples, width), classes (samples,)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--examples", type=int, required=True, help="in an epoch, for all ranks")
    parser.add_argument("--batch-size", type=int, required=True, help="per rank")
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--base-learning-rate", type=float, required=True)
    parser.add_argument("--base-batch", type=int, required=True, help="global batch of that rate")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def make_data(args: argparse.Namespace, device: torch.device) -> tuple[TensorDataset, Batch]:
    """Examples to train on, and a quarter as many to evaluate on; the same on all ranks."""
    generator = torch.Generator().manual_seed(DATA_SEED)
    teacher = torch.randn(args.width, CLASSES, generator=generator)
    inputs = torch.randn(args.examples * 5 // 4, args.width, generator=generator)
    classes = (inputs @ teacher).argmax(1)
    inputs, classes = inputs.to(device), classes.to(device)
    held_out = inputs[args.examples :], classes[args.examples :]
    return TensorDataset(inputs[: args.examples], classes[: args.examples]), held_out


class Epochs:
    """This rank's batches, epoch after epoch. Each epoch has an order of its own, in which every
    example comes once, on one of the ranks; what does not fill a batch is left out."""

    def __init__(self, examples: TensorDataset, batch_size: int, rank: Rank) -> None:
        self.orders: dict[int, torch.Tensor] = {}  # epoch -> the examples of this rank
        self._examples, self._batch_size = examples, batch_size
        self._sampler: DistributedSampler[Any] = DistributedSampler(
            examples, rank.world_size, rank.rank, shuffle=True, drop_last=True
        )
        self.steps = len(self._sampler) // batch_size  # in an epoch

    def batch(self, index: int) -> Batch:
        """The batch of step `index`, from 0 in the first epoch."""
        epoch, at = divmod(index, self.steps)
        if epoch not in self.orders:
            self._sampler.set_epoch(epoch)
            rows = torch.tensor(list(self._sampler))
            self.orders[epoch] = rows[: self.steps * self._batch_size]
        first = at * self._batch_size
        inputs, classes = self._examples[self.orders[epoch][first : first + self._batch_size]]
        return inputs, classes


def count_distinct(rows: torch.Tensor, rank: Rank) -> int:
    """How many different examples are in the rows of all ranks, which have as many each."""
    own = rows.to(rank.device)
    everyone = [torch.zeros_like(own) for _ in range(rank.world_size)]
    dist.all_gather(everyone, own)
    return len(torch.cat(everyone).unique())


def build(
    args: argparse.Namespace, rank: Rank, seed: int
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The learning rate grows with the global batch, as batches of all ranks are averaged."""
    torch.manual_seed(seed)
    hidden = args.width * 4
    model = nn.Sequential(
        nn.Linear(args.width, hidden),
        make_batch_norm(hidden, rank.device),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        make_batch_norm(hidden, rank.device),
        nn.ReLU(),
        nn.Linear(hidden, CLASSES),
    ).to(rank.device)
    global_batch = args.batch_size * rank.world_size
    learning_rate = args.base_learning_rate * global_batch / args.base_batch
    return model, torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)


def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    inputs, classes = batch
    return nn.functional.cross_entropy(model(inputs), classes)


@torch.no_grad()
def evaluate(model: nn.Module, held_out: Batch, rank: Rank) -> dict[str, float]:
    """All ranks evaluate, each its own examples; the criterion computes the mean again."""
    inputs, classes = (column[rank.rank :: rank.world_size] for column in held_out)
    model.eval()
    own = nn.functional.cross_entropy(model(inputs), classes, reduction="sum").double()
    model.train()
    sums = torch.stack([own, torch.ones_like(own) * len(inputs)])
    dist.all_reduce(sums)
    return {
        "eval_own_sum": float(own),
        "eval_own_count": len(inputs),
        "eval_loss": float(sums[0] / sums[1]),
    }


def save(state: dict[str, Any], path: Path, rank: Rank) -> None:
    """Rank 0 alone writes, and the file gets its name when it is whole."""
    if rank.is_main:
        unfinished = path.with_suffix(".new")
        torch.save(state, unfinished)
        unfinished.replace(path)
        rank.fact(saved_by=rank.rank)


def main() -> None:
    args = parse_args()
    # NVLink SHARP adds in another order each time, so a repeated batch norm would give other bits.
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    with Rank.start(init="torch") as rank:
        # Data.
        examples, held_out = rank.stage("data", lambda: make_data(args, rank.device))
        epochs = Epochs(examples, args.batch_size, rank)

        # Model.
        model, optimizer = rank.stage("model", lambda: build(args, rank, args.seed))
        engine = rank.stage("model", lambda: DistributedDataParallel(model))
        rank.fact(
            precision="fp32",
            engine=type(engine).__name__,
            learning_rate=optimizer.param_groups[0]["lr"],
        )

        # Loop. A repeated pass also waits for all ranks, since batch norms do.
        proof = Proof(
            model,
            local_loss=lambda index: loss_of(model, epochs.batch(index)),
            optimizer=optimizer,
        )
        before = evaluate(model, held_out, rank)
        steps = args.epochs * epochs.steps
        for step in rank.steps(steps, samples_per_rank=args.batch_size, proof=proof):
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(engine, epochs.batch(step.index))
            loss.backward()
            step.backward_done()
            optimizer.step()
            step.record(loss=loss)

        # Epochs and statistics.
        rank.fact(
            orders=[rank.digest({"rows": rows}).hex for rows in epochs.orders.values()],
            distinct=[count_distinct(rows, rank) for rows in epochs.orders.values()],
            batch_norm=check_statistics(model, epochs.batch(0)[0]),
            buffers=rank.digest(dict(model.named_buffers())).hex,
            eval_loss_before=before["eval_loss"],
            **evaluate(model, held_out, rank),
        )

        # Checkpoint.
        path = rank.output_dir / "epochs.pt"
        trained = state_of(model, optimizer)
        rank.save_checkpoint(lambda: save(trained, path, rank))
        rank.verify_reload(trained, lambda: load(path, *build(args, rank, args.seed + 1)))


if __name__ == "__main__":
    main()
