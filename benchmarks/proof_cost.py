"""What a proof costs a program of the suite: its unproven steps, and the proofs themselves.

Each rank sums its gradients in every step, and every tenth step takes a fingerprint of its
parameters; with `--proof twin` it takes fingerprints of gradients, parameters and moments in every
step. Runs a rank program whose loop goes on in blocks, in turns with a proof and without any, so
that a change of the machine's speed affects both, and compares the unproven steps of each pair of
blocks by their CPU time, on CUDA by events: of a twin run those of the first pass, which is the
timed one. Then it says which share of the stage `train` of a block the proofs take.

A block has as many steps as the program is asked for: with 100 of them, the share is that of a run
of 100 steps. Arguments that are not listed here are the program's own, and follow those for small
sizes.

    OMP_NUM_THREADS=1 torchrun --standalone --nproc_per_node=2 -m benchmarks.proof_cost
    torchrun --standalone --nproc_per_node=2 -m benchmarks.proof_cost --proof twin --blocks 40
    torchrun --standalone --nproc_per_node=2 -m benchmarks.proof_cost --program train_zero

With the sizes of `mlp_1gpu`, `ddp_2gpu`, `zero1_2gpu` and `lora_sft_ddp`, on GPUs:

    torchrun --standalone --nproc_per_node=1 -m benchmarks.proof_cost --blocks 40 \\
        --hidden-size 1024 --batch-size 32 --steps 100
    torchrun --standalone --nproc_per_node=2 -m benchmarks.proof_cost --blocks 40 \\
        --hidden-size 2048 --batch-size 64 --steps 100
    torchrun --standalone --nproc_per_node=2 -m benchmarks.proof_cost --program train_zero \\
        --blocks 10 --hidden-size 4096 --layers 6 --micro-batch 32 --bucket-size 500000000 \\
        --steps 100
    torchrun --standalone --nproc_per_node=8 -m benchmarks.proof_cost --program train_lora_sft \\
        --blocks 10 --model mistralai/Mistral-7B-v0.1 --dataset yahma/alpaca-cleaned \\
        --subset-size 2048 --seq-len 512 --max-steps 100
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from statistics import fmean, stdev
from typing import Any

from benchmarks.corruption import Recorder
from pytest_clustersmoke.rank import Proof, Rank
from pytest_clustersmoke.rank.step_clock import CpuClock
from pytest_clustersmoke.rank.steps import StepLog
from pytest_clustersmoke.rank.twin import TwinLog

Z = 1.96  # of a 95 % interval
STEP_LOG = Rank.step_log
# Program -> arguments for small sizes.
PROGRAMS = {
    "train_mlp": "--hidden-size 256 --batch-size 64 --steps 30 --learning-rate 1e-4",
    "train_zero": "--hidden-size 128 --layers 2 --micro-batch 8 --steps 30 --stage 1 "
    "--bucket-size 1000000",
    "train_lora_sft": "--model tiny --dataset shipped --subset-size 64 --seq-len 64 "
    "--max-steps 20 --micro-batch 1",
}


def parse_args() -> tuple[argparse.Namespace, list[str]]:
    """The options, and the program's own arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--program", choices=PROGRAMS, default="train_mlp")
    parser.add_argument("--blocks", type=int, default=200, help="half of them with a proof")
    parser.add_argument("--proof", choices=("sampled", "twin"), default="sampled")
    args, own = parser.parse_known_args()
    if args.blocks < 4:
        parser.error(f"--blocks {args.blocks}; expected at least 4, for an interval")
    return args, [*PROGRAMS[args.program].split(), *own]


@dataclasses.dataclass(frozen=True)
class Block:
    """The seconds of an unproven step after warm-up, the mean; of the stage `train`; and of the
    proofs in it."""

    step: float
    train: float
    proofs: float
    steps: int

    @classmethod
    def read(cls, events: Recorder) -> Block:
        """From what a rank records of its loop."""
        (times,) = events.named("step_times")
        (train,) = (
            fields["seconds"]
            for fields in events.named("stage")
            if (fields["name"], fields["state"]) == ("train", "end")
        )
        left_out = {*times["proven"], *range(times["warmup"])}  # both from 0
        seconds = times["seconds"]
        step = fmean(s for at, s in enumerate(seconds) if at not in left_out)
        return cls(step, train, times["proof_seconds"], len(seconds))


class Turns:
    """Takes the place of a program's StepLog: the loop runs once for each block, and the program
    ends with the last."""

    def __init__(
        self, rank: Rank, count: int, blocks: int, make_log: Callable[[bool], StepLog]
    ) -> None:
        self.count = count
        self._rank, self._blocks, self._make_log = rank, blocks, make_log

    def number_from(self, first: int, total: int) -> None:
        pass

    def passes(self, **options: Any) -> Iterator[StepLog | TwinLog]:
        blocks: list[Block] = []
        writer = self._rank._events
        for number in range(2 + self._blocks // 2 * 2):  # the first two warm up
            events = self._rank._events = Recorder()  # type: ignore[assignment]
            yield from self._make_log(number % 2 == 1).passes(**options)
            blocks.append(Block.read(events))
        lines = describe_steps(blocks[2::2], blocks[3::2]), describe_proofs(blocks[3::2])
        print(*(f"rank {self._rank.rank}: {line}\n" for line in lines), sep="", end="", flush=True)
        self._rank._events = writer
        self._rank._close()
        os._exit(0)  # what the program does after its loop is not measured


def describe_steps(without: list[Block], with_proof: list[Block]) -> str:
    """The geometric mean of the ratios with its 95 % interval (normal, of the logarithms)."""
    logs = [math.log(b.step / a.step) for a, b in zip(without, with_proof, strict=True)]
    half = Z * stdev(logs) / math.sqrt(len(logs))
    low, mean, high = (math.exp(fmean(logs) + shift) - 1 for shift in (-half, 0, half))
    seconds = fmean(block.step for block in without)
    return (
        f"{len(logs)} pairs of blocks: {seconds:.4g} s per step without a proof, "
        f"{mean:+.2%} with one (95 % interval {low:+.2%} to {high:+.2%})"
    )


def describe_proofs(blocks: list[Block]) -> str:
    """Their share of the stage `train`."""
    shares = [block.proofs / block.train for block in blocks]
    proofs, train = (fmean(getattr(b, name) for b in blocks) for name in ("proofs", "train"))
    return (
        f"proofs take {proofs:.3g} s of {train:.3g} s in a run of {blocks[0].steps} steps: "
        f"{fmean(shares):.1%} ({min(shares):.1%} to {max(shares):.1%})"
    )


def main() -> None:
    args, own = parse_args()

    def step_log(rank: Rank, count: int, *, proof: Proof | None = None, **options: Any) -> Turns:
        rank._environment = dataclasses.replace(rank._environment, proof=args.proof)
        return Turns(
            rank,
            count,
            args.blocks,
            lambda proven: STEP_LOG(rank, count, proof=proof if proven else None, **options),
        )

    Rank.step_log = step_log  # type: ignore[method-assign, assignment]
    CpuClock._now = lambda self: (time.process_time(), 0.0)  # type: ignore[method-assign]
    sys.argv = [args.program, *own]
    importlib.import_module(args.program).main()


if __name__ == "__main__":
    main()
