"""How often proven steps, or a twin run, find a rank that computes wrongly, and name it.

Trains one of the suite's programs again and again, at sizes of a second. In each trial one rank's
matrix products go wrong from a random step on, each with a given probability; or one product of
step 10 does; or one bit of a weight, of a moment or of ZeRO's master weights is flipped before a
random step. Nothing else is touched; with `--proof twin` a bit is flipped in the first of the two
passes. Counts the trials that corruption really hit, those found, and those in which exactly that
rank was named, judged as the suite's criteria judge; and clean trials in which anything was found.
"Expected" is the chance that any of the products that are compared goes wrong, 1 - (1 - p)^(2nk):
n products in each of k proven steps, in the loop and in its repetition. With `--proof twin`, what
was not found is compared with a clean training from the same seed: "without effect" are the trials
in which all losses, gradients, weights and moments of all steps and ranks have the same bytes. With
three ranks or more, another kind of trial makes one rank's products wrong in the same way each
time, which only the other ranks can see.

    torchrun --standalone --nproc_per_node=2 -m benchmarks.corruption
    torchrun --standalone --nproc_per_node=4 -m benchmarks.corruption --trials 0 --same 100
    torchrun --standalone --nproc_per_node=2 -m benchmarks.corruption --program zero --trials 100
    torchrun --standalone --nproc_per_node=2 -m benchmarks.corruption --program lora --proof twin \\
        --shares 0.1 0.01 0.001
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import math
import random
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from benchmarks.device_faults import CLASSES, SAME, Corruption, Flip
from benchmarks.trained_programs import PROGRAMS
from pytest_clustersmoke.criteria.outvoted_ranks import Vote, find_outvoted, read_vote
from pytest_clustersmoke.criteria.repeated_passes import find_disagreements
from pytest_clustersmoke.criteria.training_proofs import Proofs
from pytest_clustersmoke.criteria.twin_run import find_divergence
from pytest_clustersmoke.rank import Proof, Rank
from pytest_clustersmoke.rank.own_step import OwnStep
from pytest_clustersmoke.rank.proof import find_optimizer

MEASURE = OwnStep.measure


class Recorder:
    """Keeps the rank's events in memory, and a digest of what each step left."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.steps: list[str] = []

    @property
    def training(self) -> tuple[Any, ...]:
        """All numbers of this rank's passes over the loop."""
        return self.steps, *(fields["local_first"] for fields in self.named("losses"))

    def event(self, name: str, /, **fields: Any) -> None:
        self.events.append((name, fields))

    def named(self, name: str) -> list[dict[str, Any]]:
        return [fields for each, fields in self.events if each == name]


def digest_state(optimizer: Any) -> str:
    """Of all bytes that an optimizer reads and writes."""
    digest = hashlib.sha256()
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        for tensor in (parameter, parameter.grad, *optimizer.state.get(parameter, {}).values()):
            if isinstance(tensor, torch.Tensor):
                flat = tensor.detach().contiguous().view(-1)
                digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class Trials:
    """Trainings of one program, with or without a fault."""

    def __init__(self, rank: Rank, program: str) -> None:
        self.rank = rank
        self.program = program
        _, self._train, self.steps = PROGRAMS[program]
        self._clean: dict[int, tuple[Any, ...]] = {}  # seed -> a training without a fault
        self.products = self._count_products()

    def train(self, seed: int, fault: Corruption | Flip | None, begins: int) -> Recorder:
        recorder, proofs = Recorder(), list[Proof]()
        self.rank._events = recorder  # type: ignore[assignment]

        def keep_digest(optimizer: Any, *_: Any) -> None:
            if optimizer is find_optimizer(proofs[-1]):
                recorder.steps.append(digest_state(optimizer))

        def strike(index: int, proof: Proof) -> None:
            proofs.append(proof)
            if isinstance(fault, Corruption) and index >= begins:
                fault.active, fault.step = True, index
            elif isinstance(fault, Flip) and index == begins and not fault.hits:
                fault.strike(proof)

        def measure(own_step: OwnStep, index: int, progress: Callable[[], None]) -> None:
            """Measure the own step without corruption: nothing that it computes is used."""
            was_active = isinstance(fault, Corruption) and fault.active
            if isinstance(fault, Corruption):
                fault.active = False
            MEASURE(own_step, index, progress)
            if isinstance(fault, Corruption):
                fault.active = was_active

        OwnStep.measure = measure  # type: ignore[method-assign, assignment]
        hook = register_optimizer_step_post_hook(keep_digest)
        with fault if isinstance(fault, Corruption) else nullcontext():
            self._train(self.rank, seed, strike)
        hook.remove()
        return recorder

    def had_effect(self, seed: int, recorder: Recorder) -> bool:
        """Whether any number of the training, on any rank, is another one than without the
        fault."""
        if seed not in self._clean:
            self._clean[seed] = self.train(seed, None, 0).training
        assert recorder.steps, "no step of the optimizer was seen"
        return any(gather(self.rank, recorder.training != self._clean[seed]))

    def _count_products(self) -> int:
        """The matrix products of one pass, in a step that is not proven."""
        harmless = Corruption("mixed", 0.0, "")
        self.train(0, harmless, 0)
        return min(harmless.calls.values())


@dataclasses.dataclass(frozen=True)
class Kind:
    """What goes wrong: each product with probability `share`, or what `make(seed)` makes. `at` is
    the only step (from 0); otherwise a step is drawn, of which it goes on."""

    name: str
    share: float
    make: Callable[[str], Corruption | Flip]
    at: int | None = None

    @classmethod
    def of_products(cls, name: str, share: float) -> Kind:
        return cls(name, share, partial(Corruption, name, share))

    def draw_step(self, draw: random.Random, steps: int) -> int:
        if self.at is not None:
            return self.at
        # A moment is there after the first step.
        return draw.randrange(0 if self.share else 1, steps)


def list_single(program: str) -> list[Kind]:
    """What goes wrong once: a product, or a bit of the state."""
    states = ("weight", "moment", *(["master"] if program == "zero" else []))
    once = Kind("once", 1.0, partial(Corruption, "mixed", 1.0, most=1), at=9)
    return [once, *(Kind(f"bit of a {state}", 0.0, partial(Flip, state)) for state in states)]


def read_proofs(rank: Rank, recorder: Recorder) -> Proofs:
    """step -> rank -> its `proof` event."""
    everyone = gather(rank, {fields["step"]: fields for fields in recorder.named("proof")})
    return {step: {at: own[step] for at, own in enumerate(everyone)} for step in everyone[0]}


def judge(rank: Rank, recorder: Recorder) -> tuple[bool, list[int]]:
    """Whether the criteria find anything, and the ranks that those of the repeated steps and of the
    twin run name."""
    proofs = read_proofs(rank, recorder)
    first, kernels = find_disagreements(proofs, rank.world_size)
    names = [] if kernels else sorted(first)
    found = bool(names) or any(gather(rank, differs_from_others(recorder)))
    twins = gather(rank, next(iter(recorder.named("twin")), None))
    if twins[0] is not None:
        divergence = find_divergence(dict(enumerate(twins)), rank.world_size, proofs)
        if divergence is not None and not divergence.reason:
            found = True
            names = sorted({*names, *(() if divergence.at_once else divergence.ranks)})
    return found, names


def differs_from_others(recorder: Recorder) -> bool:
    """Whether this rank's parameters, gradients or passes are not those of the others."""
    proofs = recorder.named("proof")
    apart = any(not fields["equal"] for fields in recorder.named("replicas"))
    unsynced = any(not fields["gradients"]["synced"] for fields in proofs)
    return apart or unsynced or any(f.get("cross", {}).get("differing_count") for f in proofs)


def is_finite(recorder: Recorder) -> bool:
    """Whether all losses and gradients are."""
    (watch,), (losses,) = recorder.named("gradient_watch"), recorder.named("losses")
    return watch["not_finite_at"] is None and bool(losses["local_finite"])


def read_votes(rank: Rank, recorder: Recorder) -> list[Vote]:
    """The votes on the passes of all ranks."""
    votes = [
        read_vote(rank.world_size, owner, step, fields["cross"])
        for step, records in read_proofs(rank, recorder).items()
        for owner, fields in records.items()
        if "cross" in fields
    ]
    return [vote for vote in votes if vote is not None]


def gather(rank: Rank, value: Any) -> list[Any]:
    values: list[Any] = [None] * rank.world_size
    torch.distributed.all_gather_object(values, value)
    return values


@dataclasses.dataclass
class Tally:
    """The trials of one kind."""

    hit: int = 0
    found: int = 0
    named: int = 0
    idle: int = 0  # not found, and without effect
    nan: int = 0
    compared: float = 0.0
    expected: float = 0.0

    @property
    def shares(self) -> str:
        low, high = wilson(self.named, self.hit - self.idle)
        return f"{self.found} | {self.named} ({low:.0%} to {high:.0%})"


def run_trials(runs: Trials, kind: Kind, trials: int) -> Tally:
    rank, tally = runs.rank, Tally()
    for trial in range(trials):
        draw = random.Random(f"{kind.name} {kind.share} {trial}")
        guilty, begins = draw.randrange(rank.world_size), kind.draw_step(draw, runs.steps)
        fault = kind.make(f"{kind.name} {trial}")
        recorder = runs.train(trial, fault if rank.rank == guilty else None, begins)
        found, names = judge(rank, recorder)
        not_finite = not all(gather(rank, is_finite(recorder)))
        if not sum(gather(rank, fault.hits)):
            continue
        proven = [fields["step"] - 1 for fields in recorder.named("proof")]
        hit = [step for step in proven if step == begins or (kind.at is None and step > begins)]
        compared = 2 * runs.products * len(hit)
        tally.hit += 1
        if rank._environment.proof == "twin" and not found:
            tally.idle += not runs.had_effect(trial, recorder)
        tally.found += found
        tally.named += names == [guilty]
        tally.nan += not_finite
        tally.compared += compared
        tally.expected += 1 - (1 - kind.share) ** compared
    return tally


def run_same(runs: Trials, trials: int) -> str:
    """Trials in which a rank is always wrong in the same way: the guilty one agrees with itself,
    is among those outvoted, or is the only one of these."""
    rank = runs.rank
    hit = itself = found = named = 0
    for trial in range(trials):
        draw = random.Random(f"{SAME} {trial}")
        guilty, begins = draw.randrange(rank.world_size), draw.randrange(runs.steps)
        corruption = Corruption(SAME, 1.0, f"{SAME} {trial}")
        recorder = runs.train(trial, corruption if rank.rank == guilty else None, begins)
        outvoted = sorted(find_outvoted(read_votes(rank, recorder)))
        hit += any(gather(rank, corruption.hits))
        itself += not find_disagreements(read_proofs(rank, recorder), rank.world_size)[0]
        found += bool(outvoted)
        named += outvoted == [guilty]
    low, high = wilson(named, hit)
    return (
        f"| {SAME} | {hit} of {trials} | {itself} | {found} | {named} ({low:.0%} to {high:.0%}) |"
    )


def compare_sampled(runs: Trials, args: argparse.Namespace, tell: Callable[..., Any]) -> None:
    """The table of `--proof sampled`."""
    titles = ("class", "share of products", "hit", "found", "right rank named")
    tell(f"| {' | '.join(titles)} | expected, of products | NaN |")
    tell("|---|---|---|---|---|---|---|")
    names = [*CLASSES, "mixed"]
    kinds = [Kind.of_products(name, share) for share in args.shares for name in names]
    for kind in [*kinds, *list_single(runs.program)]:
        tally = run_trials(runs, kind, args.trials)
        share = f"{kind.share:g}" if kind in kinds else "-"
        trials = max(1, tally.hit)
        tell(
            f"| {kind.name} | {share} | {tally.hit} of {args.trials} | {tally.shares} | "
            f"{tally.expected / trials:.0%} of {tally.compared / trials:.0f} | {tally.nan} |",
            flush=True,
        )


def compare_twins(runs: Trials, args: argparse.Namespace, tell: Callable[..., Any]) -> None:
    """The table of `--proof twin`."""
    tell("| what goes wrong | hit | without effect | found | right rank named |")
    tell("|---|---|---|---|---|")
    kinds = [
        Kind(f"{share:g} of all products", share, partial(Corruption, "mixed", share))
        for share in args.shares
    ]
    for kind in [*kinds, *list_single(runs.program)]:
        if args.only and kind.name not in args.only:
            continue
        tally = run_trials(runs, kind, args.trials)
        hit = f"{tally.hit} of {args.trials} | {tally.idle}"
        tell(f"| {kind.name} | {hit} | {tally.shares} |", flush=True)


def wilson(count: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson, 1927)."""
    if not total:
        return 0.0, 1.0
    z, share = 1.96, count / total
    centre = share + z * z / (2 * total)
    spread = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return max(0.0, centre - spread) / scale, min(scale, centre + spread) / scale


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", choices=PROGRAMS, default="mlp")
    parser.add_argument("--trials", type=int, default=20, help="per class and probability")
    parser.add_argument(
        "--same", type=int, default=0, help=f"trials of {SAME}, three ranks or more"
    )
    parser.add_argument("--clean", type=int, default=60, help="trials without corruption")
    parser.add_argument("--shares", type=float, nargs="*", default=[1.0, 0.1, 0.01])
    parser.add_argument("--proof", choices=("sampled", "twin"), default="sampled")
    parser.add_argument("--only", nargs="+", help='of a twin run: rows such as "bit of a moment"')
    args = parser.parse_args()
    torch.set_num_threads(1)
    with Rank.start(init=PROGRAMS[args.program][0]) as rank:
        writer = rank._events
        runs = Trials(rank, args.program)
        print_once = print if rank.is_main else lambda *_, **__: None
        rank._environment = dataclasses.replace(rank._environment, proof=args.proof)
        alarms = sum(judge(rank, runs.train(trial, None, 0))[0] for trial in range(args.clean))
        print_once(f"clean: something was found in {alarms} of {args.clean} trials\n", flush=True)
        if args.same:
            print_once("| class | hit | agreed with itself | outvoted | right rank named |")
            print_once(f"|---|---|---|---|---|\n{run_same(runs, args.same)}", flush=True)
        if args.trials:
            compare = compare_twins if args.proof == "twin" else compare_sampled
            compare(runs, args, print_once)
        rank._events = writer


if __name__ == "__main__":
    main()
