"""Which answers `--cluster-isolate` gives, by simulation: how often it is right, and how often it
names what is healthy.

Plants faults in jobs of 232 and of 1,024 nodes, and asks the planner of groups as a session does:
up to four bad nodes, two nodes that fail only together, a leaf switch (all of its traffic, or only
what leaves it), three nodes that fail only together, and each of them showing half of the time
only. A group fails if it has what is planted. Node numbers and faults are drawn from seeds.

    python -m benchmarks.isolation                        # 10,000 plantings, some minutes
    python -m benchmarks.isolation --plantings 400        # the short form of `make bench`
    python -m benchmarks.isolation --tests 128            # another budget
"""

from __future__ import annotations

import argparse
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from pytest_clustersmoke.session.group_tests import FAILED, PASSED, Group
from pytest_clustersmoke.session.isolation_answer import LINK, NODES, NOT_AGAIN, SWITCH, TOGETHER
from pytest_clustersmoke.session.isolation_plan import IsolationPlan

SIZES = {232: 16, 1024: 32}  # nodes of a job, and below a leaf switch
KINDS = ("no fault", *(f"{n} bad" for n in (1, 2, 3, 4)), "pair", "leaf", "uplink", "triple")
SOMETIMES = "half of the time"


@dataclass(frozen=True)
class Planting:
    """A fault in a job: `nodes` are the bad ones, or those of the set; `chance`: how often a group
    that has it fails."""

    kind: str
    size: int
    nodes: frozenset[int]
    chance: float
    seed: int

    @property
    def row(self) -> str:
        return self.kind if self.chance == 1 else f"{self.kind}, {SOMETIMES}"

    def shows_in(self, group: frozenset[int]) -> bool:
        if self.kind.endswith("bad") or self.kind == "leaf":
            return bool(group & self.nodes)
        if self.kind == "uplink":
            return 0 < len(group & self.nodes) < len(group)
        return bool(self.nodes) and group >= self.nodes


@dataclass(frozen=True)
class Trial:
    """How one planting ended: whether the answer is right, whether it names anything healthy, and
    what it took."""

    is_right: bool
    is_named: bool
    is_false: bool
    tests: int
    rounds: int


def name_node(number: int) -> str:
    return f"n{number}"


def plant_faults(count: int, first_seed: int = 0) -> Iterator[Planting]:
    """Every kind in both sizes, each third one showing only half of the time."""
    chances = (1.0, 1.0, 0.5)
    rows = [(kind, size, chance) for size in SIZES for kind in KINDS for chance in chances]
    for seed, (kind, size, chance) in enumerate(islice(cycle(rows), count), first_seed):
        draw = random.Random(seed)
        chance = 1.0 if kind == "no fault" else chance
        yield Planting(kind, size, draw_nodes(kind, size, draw), chance, seed)


def draw_nodes(kind: str, size: int, draw: random.Random) -> frozenset[int]:
    if kind in ("leaf", "uplink"):
        first = draw.randrange(size // SIZES[size]) * SIZES[size]
        return frozenset(range(first, first + SIZES[size]))
    count = {"no fault": 0, "pair": 2, "triple": 3}.get(kind) or int(
        kind[0] if kind[0].isdigit() else 0
    )
    return frozenset(draw.sample(range(size), count))


def run_trial(planting: Planting, tests: int) -> Trial:
    """Isolate a planted fault, as a session does."""
    draw, per_leaf = random.Random(-planting.seed - 1), SIZES[planting.size]
    names = [name_node(number) for number in range(planting.size)]
    switches = {
        f"leaf{first // per_leaf}": names[first : first + per_leaf]
        for first in range(0, planting.size, per_leaf)
    }
    plan = IsolationPlan(names, switches=switches, tests=tests)

    def test(group: Group) -> str:
        own = frozenset(int(name[1:]) for name in group)
        shows = planting.shows_in(own) and draw.random() < planting.chance
        return FAILED if shows else PASSED

    while plan.answer is None:
        plan.take({group: test(group) for group in plan.round})
    return judge_answer(planting, plan)


def judge_answer(planting: Planting, plan: IsolationPlan) -> Trial:
    answer = plan.answer
    assert answer is not None
    own = {name_node(number) for number in planting.nodes}
    leaf = f"leaf{min(planting.nodes, default=0) // SIZES[planting.size]}"
    of_switch = planting.kind in ("leaf", "uplink")
    expected = {"no fault": NOT_AGAIN, "pair": LINK, "triple": TOGETHER}.get(
        planting.kind, SWITCH if of_switch else NODES
    )
    named = {*answer.nodes, *(answer.suspects if answer.kind == TOGETHER else ())}
    is_false = not named <= own or (answer.switch not in ("", leaf if of_switch else ""))
    is_whole = answer.switch == leaf if of_switch else named == own
    is_right = answer.kind == expected and (is_whole or expected == NOT_AGAIN)
    is_named = bool(named or answer.switch) and not is_false
    return Trial(is_right, is_named, is_false, len(plan.history.tests), plan.rounds)


def wilson(found: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share."""
    z, share = 1.96, found / of
    middle = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z / (1 + z * z / of) * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return max(0.0, middle - half), min(1.0, middle + half)


def show_share(trials: Sequence[Trial], holds: Callable[[Trial], bool]) -> str:
    """`12 of 20 (60.00 %; 38.66-78.12 %)`."""
    found = sum(map(holds, trials))
    low, high = wilson(found, len(trials))
    share = found / len(trials)
    return f"{found} of {len(trials)} ({share:.2%}; {low:.2%}-{high:.2%})"


def print_tables(trials: Mapping[Planting, Trial]) -> None:
    rows: dict[tuple[int, str], list[Trial]] = defaultdict(list)
    for planting, trial in trials.items():
        rows[planting.size, planting.row].append(trial)
    shares = "right | named, in part or whole | false name"
    print(f"| nodes | planted | {shares} | tests: median, most | rounds: median, most |")
    print("|---|---|---|---|---|---|---|")
    order = sorted(rows.items(), key=lambda row: (row[0][0], SOMETIMES in row[0][1]))
    for (size, kind), own in order:
        print(f"| {size:,} | {kind} | {describe_trials(own)} |")
    steady = [trial for planting, trial in trials.items() if planting.chance == 1]
    unsteady = [trial for planting, trial in trials.items() if planting.chance < 1]
    print(f"\nright, of deterministic faults: {show_share(steady, lambda t: t.is_right)}")
    print(f"false names, of all: {show_share([*trials.values()], lambda t: t.is_false)}")
    if unsteady:
        print(
            f"named, of faults that show {SOMETIMES}: {show_share(unsteady, lambda t: t.is_named)}"
        )


def describe_trials(trials: Sequence[Trial]) -> str:
    """The cells of one row."""
    counts = [
        sum(trial.is_right for trial in trials),
        sum(trial.is_named for trial in trials),
        sum(trial.is_false for trial in trials),
    ]
    tests, rounds = (sorted(t.tests for t in trials), sorted(t.rounds for t in trials))
    spans = [f"{each[len(each) // 2]}, {each[-1]}" for each in (tests, rounds)]
    return " | ".join([*(f"{count} of {len(trials)}" for count in counts), *spans])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--plantings", type=int, default=10_000)
    parser.add_argument("--tests", type=int, default=64, help="the budget (`limits.isolate.tests`)")
    parser.add_argument("--first-seed", type=int, default=0)
    options = parser.parse_args()
    plantings = plant_faults(options.plantings, options.first_seed)
    print_tables({planting: run_trial(planting, options.tests) for planting in plantings})


if __name__ == "__main__":
    main()
