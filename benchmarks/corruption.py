"""How often proven steps, or a twin run, find a rank that computes wrongly, and name it.

Trains one of the suite's programs again and again, at sizes of a second. In each trial one rank's
matrix products go wrong from a random step on, each with a given probability; nothing else is
touched. With `--proof twin` one product of step 10 goes wrong as well, or one bit of a weight, of a
moment or of ZeRO's master weights is flipped, all in the first of the two passes or from there on.
Counts the trials that corruption really hit, those found, and those in which exactly that rank was
named; and clean trials in which anything was found. "Expected" is the chance that any of the
products in proven steps goes wrong, in the loop or in its repetition. With three ranks or more,
another kind of trial makes one rank's products wrong in the same way each time, which only the
other ranks can see.

    torchrun --standalone --nproc_per_node=2 -m benchmarks.corruption
    torchrun --standalone --nproc_per_node=4 -m benchmarks.corruption --trials 0 --same 100
    torchrun --standalone --nproc_per_node=2 -m benchmarks.corruption --program zero --trials 100
    torchrun --standalone --nproc_per_node=2 -m benchmarks.corruption --program lora --proof twin \\
        --shares 0.1 0.01 0.001
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import random
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.trained_programs import PROGRAMS
from pytest_clustersmoke.criteria.outvoted_ranks import Vote, find_outvoted, read_vote
from pytest_clustersmoke.criteria.twin_run import find_first, find_guilty
from pytest_clustersmoke.rank import Proof, Rank
from pytest_clustersmoke.rank.own_step import OwnStep
from pytest_clustersmoke.rank.proof import find_optimizer

MEASURE = OwnStep.measure
PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)
NEIGHBOURS = 32
INTEGERS = {2: torch.int16, 4: torch.int32}


def flip_bits(output: torch.Tensor, draw: random.Random) -> None:
    """Several bits of one number; of fp32 not the ten lowest."""
    at, size = draw.randrange(output.numel()), output.element_size()
    bits = range(10, 31) if size == 4 else range(15)
    output.view(-1).view(INTEGERS[size])[at] ^= sum(1 << bit for bit in draw.sample(bits, 4))


def spoil_neighbours(output: torch.Tensor, draw: random.Random) -> None:
    """32 values side by side, as a broken lane of a vector unit gives them."""
    at = draw.randrange(max(1, output.numel() - NEIGHBOURS))
    output.view(-1)[at : at + NEIGHBOURS] *= 1 + draw.uniform(0.01, 0.5)


def spoil_by_value(output: torch.Tensor, draw: random.Random) -> None:
    """Values above a bound that changes with every call, as temperature and voltage do."""
    flat = output.view(-1)
    bound = float(flat.abs().max()) * draw.uniform(0.5, 0.95)
    flat[flat.abs() > bound] *= 1.03125


CLASSES: dict[str, Callable[[torch.Tensor, random.Random], None]] = {
    "multi-bit": flip_bits,
    "neighbours": spoil_neighbours,
    "value-dependent": spoil_by_value,
}


# Not by chance: 32 values side by side, at a place and by a factor that the shape decides.
SAME = "same-each-time"


class Corruption(TorchDispatchMode):
    """Spoils the result of a matrix product with probability `share`, once `active`, and `most`
    products in all."""

    def __init__(self, kind: str, share: float, seed: str, most: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._most = most
        self.active, self.hits = False, 0
        self.step, self.calls = 0, Counter[int]()  # products in each step, once active
        self._kind, self._share, self._seed, self._draw = kind, share, seed, random.Random(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if self.active and func in PRODUCTS:
            self.calls[self.step] += 1
            if self._kind == SAME:
                self.hits += 1
                place = f"{self._seed} {func} {tuple(output.shape)}"
                spoil_neighbours(output, random.Random(place))
            elif self.hits != self._most and self._draw.random() < self._share:
                self.hits += 1
                names = sorted(CLASSES)
                kind = self._draw.choice(names) if self._kind == "mixed" else self._kind
                CLASSES[kind](output, self._draw)
        return output


class Flip:
    """Flips one bit of the state, once."""

    def __init__(self, kind: str, seed: str) -> None:
        self.kind, self.hits = kind, 0
        self._draw = random.Random(seed)

    def strike(self, proof: Proof) -> None:
        tensor = self._choose(proof)
        at, bits = self._draw.randrange(tensor.numel()), tensor.element_size() * 8
        bit = self._draw.randrange(bits)
        # The highest bit of a signed integer is its sign.
        mask = 1 << bit if bit < bits - 1 else -(1 << bit)
        tensor.view(-1).view(INTEGERS[bits // 8])[at] ^= mask
        self.hits += 1

    def _choose(self, proof: Proof) -> torch.Tensor:
        """A weight of the model, or one of the tensors that the optimizer keeps."""
        if self.kind == "weight":
            weights = [p for p in proof.model.parameters() if p.requires_grad]
            return self._draw.choice(weights).data
        optimizer = find_optimizer(proof)
        stepped = [p for group in optimizer.param_groups for p in group["params"]]
        parameter: torch.Tensor = self._draw.choice(stepped)
        if self.kind == "master":
            return parameter.data
        moment: torch.Tensor = optimizer.state[parameter][
            self._draw.choice(["exp_avg", "exp_avg_sq"])
        ]
        return moment


class Recorder:
    """Keeps the rank's events in memory."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def event(self, name: str, /, **fields: Any) -> None:
        self.events.append((name, fields))


class Trials:
    """Trainings of one program, with or without a fault."""

    def __init__(self, rank: Rank, program: str) -> None:
        self.rank = rank
        self.program = program
        _, self._train, self.steps = PROGRAMS[program]

    def train(self, seed: int, fault: Corruption | Flip | None, begins: int) -> Recorder:
        recorder = Recorder()
        self.rank._events = recorder  # type: ignore[assignment]

        def strike(index: int, proof: Proof) -> None:
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
        self._train(self.rank, seed, strike)
        return recorder


def find(recorder: Recorder) -> tuple[bool, bool, bool]:
    """Whether this rank disagreed with itself, whether anything was found, and whether a loss or a
    gradient was not finite."""
    proofs = [fields for name, fields in recorder.events if name == "proof"]
    own = any(fields["differing_count"] for fields in proofs)
    replicas = [fields for name, fields in recorder.events if name == "replicas"]
    apart = any(not fields["equal"] for fields in replicas)
    unsynced = any(not fields["gradients"]["synced"] for fields in proofs)
    crossed = any(fields.get("cross", {}).get("differing_count") for fields in proofs)
    watch = next(fields for name, fields in recorder.events if name == "gradient_watch")
    losses = next(fields for name, fields in recorder.events if name == "losses")
    finite = watch["not_finite_at"] is None and losses["local_finite"]
    return own, own or apart or unsynced or crossed, not finite


def proven_steps(recorder: Recorder) -> list[int]:
    """From 0."""
    return [fields["step"] - 1 for name, fields in recorder.events if name == "proof"]


def read_votes(rank: Rank, recorder: Recorder) -> list[Vote]:
    """The votes on the passes of all ranks."""
    proofs = [fields for name, fields in recorder.events if name == "proof"]
    everyone = gather(
        rank, [(fields["step"], fields["cross"]) for fields in proofs if "cross" in fields]
    )
    votes = [
        read_vote(rank.world_size, owner, step, cross)
        for owner, records in enumerate(everyone)
        for step, cross in records
    ]
    return [vote for vote in votes if vote is not None]


def find_in_twin(rank: Rank, recorder: Recorder) -> tuple[bool, list[int]]:
    """Whether the twin run found anything, and the ranks that the criterion names."""
    record = next(fields for name, fields in recorder.events if name == "twin")
    firsts = dict(enumerate(gather(rank, find_first(record))))
    differing = {at: first for at, first in firsts.items() if first is not None}
    guilty = find_guilty(differing) if differing else []
    is_named = rank.world_size == 1 or len(guilty) <= rank.world_size / 2
    return bool(differing), guilty if is_named else []


def gather(rank: Rank, value: Any) -> list[Any]:
    values: list[Any] = [None] * rank.world_size
    torch.distributed.all_gather_object(values, value)
    return values


def run_trials(runs: Trials, kind: str, share: float, trials: int) -> str:
    rank = runs.rank
    hit = found = named = nan = 0
    expected = compared = 0.0
    for trial in range(trials):
        draw = random.Random(f"{kind} {share} {trial}")
        guilty, begins = draw.randrange(rank.world_size), draw.randrange(runs.steps)
        corruption = Corruption(kind, share, f"{kind} {trial}")
        if rank.rank == guilty:
            with corruption:
                recorder = runs.train(trial, corruption, begins)
        else:
            recorder = runs.train(trial, None, begins)
        calls = sum(corruption.calls[index] for index in proven_steps(recorder))
        results = gather(rank, (*find(recorder), corruption.hits, calls))
        if not sum(hits for *_, hits, _ in results):
            continue
        hit += 1
        found += any(anything for _, anything, *_ in results)
        named += [at for at, (own, *_) in enumerate(results) if own] == [guilty]
        nan += any(not_finite for _, _, not_finite, *_ in results)
        compared += results[guilty][-1]
        expected += 1 - (1 - share) ** results[guilty][-1]
    low, high = wilson(named, hit)
    return (
        f"| {kind} | {share:g} | {hit} of {trials} | {found} | {named} "
        f"({low:.0%} to {high:.0%}) | {expected / max(1, hit):.0%} of {compared / max(1, hit):.0f} "
        f"| {nan} |"
    )


def run_same(runs: Trials, trials: int) -> str:
    """Trials in which a rank is always wrong in the same way: the guilty one agrees with itself,
    is among those outvoted, or is the only one of these."""
    rank = runs.rank
    hit = itself = found = named = 0
    for trial in range(trials):
        draw = random.Random(f"{SAME} {trial}")
        guilty, begins = draw.randrange(rank.world_size), draw.randrange(runs.steps)
        corruption = Corruption(SAME, 1.0, f"{SAME} {trial}")
        if rank.rank == guilty:
            with corruption:
                recorder = runs.train(trial, corruption, begins)
        else:
            recorder = runs.train(trial, None, begins)
        outvoted = sorted(find_outvoted(read_votes(rank, recorder)))
        results = gather(rank, (find(recorder)[0], corruption.hits))
        hit += any(hits for _, hits in results)
        itself += not any(own for own, _ in results)
        found += bool(outvoted)
        named += outvoted == [guilty]
    low, high = wilson(named, hit)
    return (
        f"| {SAME} | {hit} of {trials} | {itself} | {found} | {named} ({low:.0%} to {high:.0%}) |"
    )


def run_twins(
    runs: Trials, kind: str, make: Callable[[str], Corruption | Flip], trials: int
) -> str:
    """Trials of one kind in which the loop is trained twice."""
    rank = runs.rank
    hit = found = named = 0
    for trial in range(trials):
        draw = random.Random(f"{kind} {trial}")
        guilty, fault = draw.randrange(rank.world_size), make(f"{kind} {trial}")
        begins = 9 if kind == "once" else draw.randrange(1, runs.steps)
        is_guilty = rank.rank == guilty
        with fault if is_guilty and isinstance(fault, Corruption) else nullcontext():
            recorder = runs.train(trial, fault if is_guilty else None, begins)
        anything, names = find_in_twin(rank, recorder)
        if not names:  # a product of a proof, or of the first step, which a proof repeats
            owns = gather(rank, find(recorder)[0])
            names = [at for at, own in enumerate(owns) if own]
            anything = anything or any(owns)
        if not sum(gather(rank, fault.hits)):
            continue
        hit += 1
        found += anything
        named += names == [guilty]
    low, high = wilson(named, hit)
    return f"| {kind} | {hit} of {trials} | {found} | {named} ({low:.0%} to {high:.0%}) |"


def compare_twins(runs: Trials, args: argparse.Namespace, tell: Callable[..., Any]) -> None:
    """The table of `--proof twin`."""
    rank = runs.rank
    rank._environment = dataclasses.replace(rank._environment, proof="twin")
    alarms = sum(find_in_twin(rank, runs.train(trial, None, 0))[0] for trial in range(args.clean))
    tell(f"clean: something was found in {alarms} of {args.clean} trials\n", flush=True)
    tell("| what goes wrong | hit | found | right rank named |\n|---|---|---|---|")
    kinds: dict[str, Callable[[str], Corruption | Flip]] = {
        f"{share:g} of all products": partial(Corruption, "mixed", share) for share in args.shares
    }
    states = ("weight", "moment", *(["master"] if runs.program == "zero" else []))
    kinds["once"] = partial(Corruption, "mixed", 1.0, most=1)
    kinds |= {f"bit of a {state}": partial(Flip, state) for state in states}
    for kind, make in kinds.items():
        tell(run_twins(runs, kind, make, args.trials), flush=True)


def wilson(count: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson, 1927)."""
    if not total:
        return 0.0, 1.0
    z, share = 1.96, count / total
    centre = share + z * z / (2 * total)
    spread = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return (centre - spread) / scale, (centre + spread) / scale


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", choices=PROGRAMS, default="mlp")
    parser.add_argument("--trials", type=int, default=20, help="per class and probability")
    parser.add_argument(
        "--same", type=int, default=0, help=f"trials of {SAME}, three ranks or more"
    )
    parser.add_argument("--clean", type=int, default=60, help="trials without corruption")
    parser.add_argument("--shares", type=float, nargs="+", default=[1.0, 0.1, 0.01])
    parser.add_argument("--proof", choices=("sampled", "twin"), default="sampled")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with Rank.start(init=PROGRAMS[args.program][0]) as rank:
        runs = Trials(rank, args.program)
        print_once = print if rank.is_main else lambda *_, **__: None
        writer = rank._events
        if args.proof == "twin":
            compare_twins(runs, args, print_once)
            rank._events = writer
            return
        alarms = 0
        for trial in range(args.clean):
            results = gather(rank, find(runs.train(trial, None, 0)))
            alarms += any(anything for _, anything, _ in results)
        print_once(f"clean: something was found in {alarms} of {args.clean} trials\n", flush=True)
        if args.same:
            print_once("| class | hit | agreed with itself | outvoted | right rank named |")
            print_once(f"|---|---|---|---|---|\n{run_same(runs, args.same)}", flush=True)
        if args.trials:
            titles = ("class", "share of products", "hit", "found", "right rank named")
            print_once(f"| {' | '.join(titles)} | expected, of products | NaN |")
            print_once("|---|---|---|---|---|---|---|")
        for share in args.shares if args.trials else ():
            for kind in [*CLASSES, "mixed"]:
                line = run_trials(runs, kind, share, args.trials)
                print_once(line, flush=True)
        rank._events = writer


if __name__ == "__main__":
    main()
