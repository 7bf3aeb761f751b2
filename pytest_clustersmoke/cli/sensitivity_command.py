"""`clustersmoke sensitivity`: which slow-downs the criteria would see, by simulation."""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from .subcommand import add, print_lines
from .tables import table

DESCRIPTION = """\
Simulates jobs with a slow rank, pair of nodes, node or GPU, and judges them as the criteria do: how
often it is named, and how often anything else is.

Ranks: test_no_rank_falls_behind on GPUs, of which a node has 8. Healthy ranks differ by the spread
(standard deviation), and the passes of a rank by 1 %.
Pairs: test_no_pair_of_nodes_is_slow. A healthy pair is as slow as the slower of its nodes, which
differ by the spread, and a measurement by half as much.
GPUs: test_each_gpu_is_as_fast_as_it_was. A GPU differs from run to run by the spread.
"""
EXAMPLES = """\
examples:
  clustersmoke sensitivity                (a few minutes)
  clustersmoke sensitivity --trials 20000 --seed 1

exit status: 0 done, 2 unusable arguments
"""
RANKS = (4, 8, 16, 64)
NODES = (4, 8, 16)
GPUS_PER_NODE = 8  # of ranks on several nodes
GPU_NODES = (3, 5, 8, 16)
SPREADS = (0.0, 0.01, 0.03, 0.08)
GPUS_AND_RUNS = ((1, 8), (8, 8), (8, 20), (8, 60), (512, 8))
RUN_SPREADS = (0.003, 0.005, 0.01)
SLOW_DOWNS = (0.0, 0.02, 0.05, 0.08, 0.10, 0.15, 0.20, 0.40)
PASSES, PASS_NOISE = 10, 0.01
PAIR_NOISE_SHARE = 0.5
HEALTHY_GPUS_DIFFER = 0.03
WILSON_Z = 1.96  # 95 %


@dataclass
class Cell:
    """How often, in trials with something slow, it was named, and anything else."""

    right: int = 0
    wrong: int = 0

    def count(self, right: bool, wrong: bool) -> None:
        self.right += right
        self.wrong += wrong


Cells = dict[float, Cell]  # by slow-down


@dataclass
class Study:
    """What is slow in it, what sizes its rows have, and the rows: sizes and spread as text."""

    slow: str
    sizes: tuple[str, ...]
    rows: list[tuple[tuple[str, ...], Cells]]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = add(
        subparsers,
        "sensitivity",
        "show which slow ranks, nodes and GPUs would be named",
        DESCRIPTION,
        EXAMPLES,
    )
    parser.add_argument(
        "--trials", type=_positive, default=2000, metavar="N", help="trials of a cell (2000)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the trials (0)")
    parser.set_defaults(run=_run_command)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of trials; expected 1 or more")
    return int(text)


def _run_command(parsed: argparse.Namespace) -> int:
    for study in _run_studies(parsed.trials, parsed.seed):
        print_lines(_text_lines(study, parsed.trials))
    return 0


def _run_studies(trials: int, seed: int) -> Iterator[Study]:
    yield Study(
        "rank",
        ("ranks", "spread"),
        [
            ((f"{size}", f"{spread:.0%}"), simulate_ranks(size, spread, trials, seed))
            for size in RANKS
            for spread in SPREADS
        ],
    )
    yield Study(
        f"node of {GPUS_PER_NODE} GPUs",
        ("nodes", "spread"),
        [
            ((f"{nodes}", f"{spread:.0%}"), simulate_gpu_nodes(nodes, spread, trials, seed))
            for nodes in GPU_NODES
            for spread in SPREADS
        ],
    )
    for slow, simulate in (("pair of nodes", simulate_pairs), ("node", simulate_nodes)):
        yield Study(
            slow,
            ("nodes", "spread"),
            [
                ((f"{nodes}", f"{spread:.0%}"), simulate(nodes, spread, trials, seed))
                for nodes in NODES
                for spread in SPREADS
            ],
        )
    yield Study(
        "GPU (against its own past)",
        ("GPUs", "runs", "spread"),
        [
            (
                (f"{gpus}", f"{runs}", f"{spread:.1%}"),
                simulate_gpus(gpus, runs, spread, trials, seed),
            )
            for gpus, runs in GPUS_AND_RUNS
            for spread in RUN_SPREADS
        ],
    )


def simulate_ranks(size: int, spread: float, trials: int, seed: int) -> Cells:
    """What was named among `size` ranks whose healthy times differ by `spread`. The same healthy
    ranks are judged with each slow-down."""
    return _simulate_ranks(size, 1, spread, trials, random.Random(f"{seed}/{size}/{spread}"))


def simulate_gpu_nodes(nodes: int, spread: float, trials: int, seed: int) -> Cells:
    """What was named if all GPUs of the first node are slow; it is named if one of them is."""
    drawn = random.Random(f"{seed}/{nodes}/{spread}/gpus")
    return _simulate_ranks(nodes * GPUS_PER_NODE, GPUS_PER_NODE, spread, trials, drawn)


def _simulate_ranks(
    size: int, slow_ranks: int, spread: float, trials: int, drawn: random.Random
) -> Cells:
    from ..criteria.peer_judge import judge_ranks  # late: it loads pytest
    from ..evidence.telemetry import typical_s

    cells = {slow_down: Cell() for slow_down in SLOW_DOWNS}
    normal, expected = drawn.gauss, {*range(slow_ranks)}
    for _ in range(trials):
        speeds = [max(0.01, normal(1, spread)) for _ in range(size)]
        times = {
            rank: typical_s([speed * normal(1, PASS_NOISE) for _ in range(PASSES)])
            for rank, speed in enumerate(speeds)
        }
        for slow_down, cell in cells.items():
            slower = {rank: times[rank] * (1 + slow_down) for rank in expected}
            verdicts = judge_ranks(times | slower, lambda rank: rank // GPUS_PER_NODE)
            slow = {rank for verdict in verdicts if verdict for rank in verdict.slow}
            right = slow_down > 0 and bool(expected & slow)
            cell.count(right, bool(slow - expected if slow_down else slow))
    return cells


def simulate_pairs(nodes: int, spread: float, trials: int, seed: int) -> Cells:
    """What was named if the pair of the first two nodes is slow."""
    return _simulate_pairs(nodes, {(0, 1)}, spread, trials, seed)


def simulate_nodes(nodes: int, spread: float, trials: int, seed: int) -> Cells:
    """What was named if all pairs of the first node are slow; it is named if all of them are."""
    return _simulate_pairs(nodes, {(0, node) for node in range(1, nodes)}, spread, trials, seed)


def _simulate_pairs(
    nodes: int, bad: set[tuple[int, int]], spread: float, trials: int, seed: int
) -> Cells:
    from ..criteria.peer_judge import judge_pairs

    cells = {slow_down: Cell() for slow_down in SLOW_DOWNS}
    normal = random.Random(f"{seed}/{nodes}/{spread}/pairs").gauss
    pairs = list(combinations(range(nodes), 2))
    expected = {number for number, pair in enumerate(pairs) if pair in bad}
    for _ in range(trials):
        speeds = [normal(1, spread) for _ in range(nodes)]
        times = {
            number: max(0.01, max(speeds[a], speeds[b]) + normal(0, PAIR_NOISE_SHARE * spread))
            for number, (a, b) in enumerate(pairs)
        }
        for slow_down, cell in cells.items():
            slower = {number: times[number] * (1 + slow_down) for number in expected}
            slow = set(judge_pairs(times | slower, nodes).slow)
            right = slow_down > 0 and expected <= slow
            cell.count(right, bool(slow - expected if slow_down else slow))
    return cells


def simulate_gpus(gpus: int, runs: int, spread: float, trials: int, seed: int) -> Cells:
    """What was named if the first of `gpus` GPUs is slower than in `runs` runs of its past."""
    from ..criteria.gpu_past import judge_gpus

    cells = {slow_down: Cell() for slow_down in SLOW_DOWNS}
    normal = random.Random(f"{seed}/{gpus}/{runs}/{spread}/past").gauss
    for _ in range(trials):
        usual = {f"{gpu}": normal(1, HEALTHY_GPUS_DIFFER) for gpu in range(gpus)}
        series = {
            gpu: [own_s * normal(1, spread) for _ in range(runs + 1)]
            for gpu, own_s in usual.items()
        }
        tonight = {gpu: seconds.pop() for gpu, seconds in series.items()}
        verdicts = judge_gpus(tonight, series)
        first = verdicts.pop("0")  # its bound is that of its past, however slow it is
        others = any(verdict.slow for verdict in verdicts.values())
        for slow_down, cell in cells.items():
            slow = first.own_s * (1 + slow_down) > first.bound_s
            cell.count(slow and slow_down > 0, others or (slow and not slow_down))
    return cells


def wilson_interval(hits: int, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a probability."""
    share, square = hits / trials, WILSON_Z**2 / trials
    middle = share + square / 2
    half = WILSON_Z * math.sqrt(share * (1 - share) / trials + square / trials / 4)
    low, high = (middle - half) / (1 + square), (middle + half) / (1 + square)
    return max(0.0, low), min(1.0, high)


def _text_lines(study: Study, trials: int) -> Iterator[str]:
    sizes = [f"#{size}" for size in study.sizes]
    titles = (*sizes, *(f"#{slow_down:.0%} slow" for slow_down in SLOW_DOWNS))
    for caption, counted in (
        (f"The slow {study.slow} is named", "right"),
        (f"Anything else is named with a slow {study.slow}", "wrong"),
    ):
        yield f"{caption}, % of {trials:,} trials (95 % interval):"
        yield from table(
            titles,
            [
                [*labels, *(_share(vars(cell)[counted], trials) for cell in cells.values())]
                for labels, cells in study.rows
            ],
        )
        yield ""


def _share(hits: int, trials: int) -> str:
    low, high = map(_percent, wilson_interval(hits, trials))
    return f"{_percent(hits / trials)} ({low}-{high})"


def _percent(share: float) -> str:
    return f"{share * 100:.{1 if share >= 0.01 else 2}f}"
