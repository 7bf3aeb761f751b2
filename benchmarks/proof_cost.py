"""What a proof costs the steps that are not proven: CPU time of a rank, on CUDA time of its device.

Each rank sums its gradients in every step, and every tenth step takes a fingerprint of its
parameters; with `--proof twin` it takes fingerprints of gradients, parameters and moments in every
step. Trains train_mlp.py's model in blocks, in turns with a proof and without any, so that a change
of the machine's speed affects both, and compares the unproven steps of each pair of blocks: of a
twin run those of the first pass, which is the timed one.

    OMP_NUM_THREADS=1 torchrun --standalone --nproc_per_node=2 benchmarks/proof_cost.py
    torchrun --standalone --nproc_per_node=2 benchmarks/proof_cost.py --hidden-size 128
    torchrun --standalone --nproc_per_node=2 benchmarks/proof_cost.py --proof twin --blocks 40
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import time
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from pytest_clustersmoke.rank import Proof, Rank
from pytest_clustersmoke.rank.steps import StepLog

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "smoke_tests"))

WARMUP = 2  # the rank's own step is measured after the last of these
Z = 1.96  # of a 95 % interval


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden-size", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=64, help="per rank")
    parser.add_argument("--steps", type=int, default=30, help="of a block")
    parser.add_argument("--blocks", type=int, default=200, help="half of them with a proof")
    parser.add_argument("--proof", choices=("sampled", "twin"), default="sampled")
    return parser.parse_args()


class Silence:
    """Takes the rank's events: each block would write those of a whole training."""

    def event(self, name: str, /, **fields: Any) -> None:
        pass


class Trainer:
    """The model, its data, and blocks of steps."""

    def __init__(self, args: argparse.Namespace, rank: Rank) -> None:
        from teacher import Teacher
        from train_mlp import build, loss_of

        self._rank, self._args, self._loss_of = rank, args, loss_of
        self._data = Teacher(args.hidden_size, args.batch_size, rank.rank, rank.device)
        self._model, self._optimizer = build(args, 0, rank.device)
        self._engine = DistributedDataParallel(self._model)
        self._proof = Proof(
            self._model,
            lambda index: loss_of(self._model, self._data.batch(index)),
            optimizer=self._optimizer if args.proof == "twin" else None,  # whose state is restored
        )

    def run_block(self, proof: bool) -> float:
        """The mean seconds of an unproven step after warm-up, on this rank."""
        seconds = []
        for step in self._rank.steps(
            self._args.steps,
            samples_per_rank=self._args.batch_size,
            warmup=WARMUP,
            proof=self._proof if proof else None,
        ):
            prover = getattr(step._log, "_prover", None)
            begin = self._now()
            self._optimizer.zero_grad(set_to_none=True)
            loss = self._loss_of(self._engine, self._data.batch(step.index))
            loss.backward()
            step.backward_done()
            self._optimizer.step()
            step.record(loss=loss)
            is_proven = prover is not None and step.index in prover.steps
            is_timed = isinstance(step._log, StepLog)  # not the second pass of a twin run
            if step.index >= WARMUP and is_timed and not is_proven:
                seconds.append((begin, self._now()))
        if self._rank.device.type == "cuda":
            torch.cuda.synchronize(self._rank.device)
            return fmean(begin.elapsed_time(end) / 1000 for begin, end in seconds)
        return fmean(end - begin for begin, end in seconds)

    def _now(self) -> Any:
        if self._rank.device.type != "cuda":
            return time.process_time()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def describe_ratio(pairs: list[tuple[float, float]]) -> str:
    """The geometric mean of the ratios with its 95 % interval (normal, of the logarithms)."""
    logs = [math.log(with_proof / without) for without, with_proof in pairs]
    half = Z * stdev(logs) / math.sqrt(len(logs))
    low, mean, high = (math.exp(fmean(logs) + shift) - 1 for shift in (-half, 0, half))
    without = fmean(seconds for seconds, _ in pairs)
    return (
        f"{len(pairs)} pairs of blocks: {without:.4g} s per step without a proof, "
        f"{mean:+.2%} with one (95 % interval {low:+.2%} to {high:+.2%})"
    )


def main() -> None:
    args = parse_args()
    args.learning_rate = 1e-4
    with Rank.start(init="torch") as rank:
        rank._environment = dataclasses.replace(rank._environment, proof=args.proof)
        writer = rank._events
        rank._events = Silence()  # type: ignore[assignment]
        trainer = Trainer(args, rank)
        for proof in (False, True):
            trainer.run_block(proof)  # warm-up
        pairs = [
            (trainer.run_block(False), trainer.run_block(True)) for _ in range(args.blocks // 2)
        ]
        rank._events = writer
        print(f"rank {rank.rank}: {describe_ratio(pairs)}", flush=True)


if __name__ == "__main__":
    main()
