"""Which answers `--cluster-isolate` gives, by simulation: how often it is right, and how often it
names what is healthy.

Plants faults in jobs of 232 and of 1,024 nodes, and asks the planner of groups as a session does:
up to four bad nodes, two nodes that fail only together, a leaf switch (all of its traffic, or only
what leaves it), three nodes that fail only together, and each of them showing half of the time
only. A group fails if it has what is planted. Beside the fault, other users' jobs take nodes for a
while, so that their groups give no answer, or nodes go down by the scheduler's word, also in jobs
of 12 nodes. Node numbers and faults are drawn from seeds.

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
from itertools import cycle, islice, product

from pytest_clustersmoke.session.group_tests import FAILED, NO_ANSWER, PASSED, Group
from pytest_clustersmoke.session.isolation_answer import LINK, NODES, NOT_AGAIN, SWITCH, TOGETHER
from pytest_clustersmoke.session.isolation_plan import IsolationPlan

SIZES = {12: 4, 232: 16, 1024: 32}  # nodes of a job, and below a leaf switch
LARGE = (232, 1024)
BUSY, DYING = "3 busy", "3 dying"
KINDS = ("no fault", *(f"{n} bad" for n in (1, 2, 3, 4)), "pair", "leaf", "uplink", "triple")
TROUBLED = tuple(f"{fault}, {trouble}" for fault in KINDS[:3] for trouble in (BUSY, DYING))
SOMETIMES = "half of the time"
ROUNDS = 8  # in one of the first, trouble begins


@dataclass(frozen=True)
class Planting:
    """A fault in a job: `nodes` are the bad ones, or those of the set; `chance`: how often a group
    that has it fails; `away`: nodes that are busy or down, with the first round of it and the first
    one after it."""

    kind: str
    size: int
    nodes: frozenset[int]
    chance: float
    seed: int
    away: tuple[tuple[int, int, float], ...] = ()

    @property
    def fault(self) -> str:
        return self.kind.partition(",")[0]

    @property
    def row(self) -> str:
        return self.kind if self.chance == 1 else f"{self.kind}, {SOMETIMES}"

    def shows_in(self, group: frozenset[int]) -> bool:
        if self.fault.endswith("bad") or self.kind == "leaf":
            return bool(group & self.nodes)
        if self.kind == "uplink":
            return 0 < len(group & self.nodes) < len(group)
        return bool(self.nodes) and group >= self.nodes

    def find_away(self, group: frozenset[int], turn: int) -> set[int]:
        """The nodes of a group that are busy or down in a round."""
        return {node for node, first, end in self.away if node in group and first <= turn < end}


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
    """Every kind in both large sizes, each third one showing only half of the time; and in all
    sizes those with nodes that are busy or die."""
    rows = [*product(LARGE, KINDS, (1.0, 1.0, 0.5)), *product(SIZES, TROUBLED, (1.0,))]
    for seed, (size, kind, chance) in enumerate(islice(cycle(rows), count), first_seed):
        draw = random.Random(seed)
        chance = 1.0 if kind == "no fault" else chance
        nodes = draw_nodes(kind.partition(",")[0], size, draw)
        away = draw_away(kind, size, nodes, draw) if kind in TROUBLED else ()
        yield Planting(kind, size, nodes, chance, seed, away)


def draw_nodes(kind: str, size: int, draw: random.Random) -> frozenset[int]:
    if kind in ("leaf", "uplink"):
        first = draw.randrange(size // SIZES[size]) * SIZES[size]
        return frozenset(range(first, first + SIZES[size]))
    count = {"no fault": 0, "pair": 2, "triple": 3}.get(kind) or int(
        kind[0] if kind[0].isdigit() else 0
    )
    return frozenset(draw.sample(range(size), count))


def draw_away(
    kind: str, size: int, bad: frozenset[int], draw: random.Random
) -> tuple[tuple[int, int, float], ...]:
    """Three healthy nodes that others use for a while, or that go down for good."""
    chosen = draw.sample([node for node in range(size) if node not in bad], 3)
    firsts = [draw.randrange(ROUNDS) for _ in chosen]
    lasting = [draw.randint(1, ROUNDS) if kind.endswith(BUSY) else math.inf for _ in chosen]
    return tuple(
        (node, first, first + rounds)
        for node, first, rounds in zip(chosen, firsts, lasting, strict=True)
    )


def run_trial(planting: Planting, tests: int) -> Trial:
    """Isolate a planted fault, as a session does."""
    draw, per_leaf = random.Random(-planting.seed - 1), SIZES[planting.size]
    names = [name_node(number) for number in range(planting.size)]
    switches = {
        f"leaf{first // per_leaf}": names[first : first + per_leaf]
        for first in range(0, planting.size, per_leaf)
    }
    plan = IsolationPlan(names, switches=switches, tests=tests)
    down: dict[str, str] = {}

    def test(group: Group) -> str:
        own = frozenset(int(name[1:]) for name in group)
        if away := planting.find_away(own, plan.rounds):
            if planting.kind.endswith(BUSY):
                return NO_ANSWER
            down.update(dict.fromkeys(map(name_node, away), "Slurm says: down"))
            return draw.choice((FAILED, NO_ANSWER))
        shows = planting.shows_in(own) and draw.random() < planting.chance
        return FAILED if shows else PASSED

    while plan.answer is None:
        plan.take({group: test(group) for group in plan.round}, down)
    return judge_answer(planting, plan, down)


def judge_answer(planting: Planting, plan: IsolationPlan, down: Mapping[str, str]) -> Trial:
    """Nodes that are `down` must be named, too."""
    answer = plan.answer
    assert answer is not None
    own = {*map(name_node, planting.nodes), *down}
    leaf = f"leaf{min(planting.nodes, default=0) // SIZES[planting.size]}"
    of_switch = planting.kind in ("leaf", "uplink")
    expected = {"no fault": NOT_AGAIN, "pair": LINK, "triple": TOGETHER}.get(
        planting.fault, SWITCH if of_switch else NODES
    )
    named = {*answer.nodes, *(answer.suspects if answer.kind == TOGETHER else ())}
    is_false = not named <= own or (answer.switch not in ("", leaf if of_switch else ""))
    is_whole = answer.switch == leaf if of_switch else named == own
    is_right = answer.kind == expected and (is_whole or expected == NOT_AGAIN)
    if planting.fault == "no fault" and planting.away:  # nodes that are down are named
        is_right = is_whole and not answer.switch
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
    certain = {planting: trial for planting, trial in trials.items() if planting.chance == 1}
    steady = [trial for planting, trial in certain.items() if not planting.away]
    troubled = [trial for planting, trial in certain.items() if planting.away]
    unsteady = [trial for planting, trial in trials.items() if planting.chance < 1]
    print(f"\nright, of deterministic faults: {show_share(steady, lambda t: t.is_right)}")
    if troubled:
        print(f"right, with busy or dying nodes: {show_share(troubled, lambda t: t.is_right)}")
        print(f"false names, with those: {show_share(troubled, lambda t: t.is_false)}")
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
