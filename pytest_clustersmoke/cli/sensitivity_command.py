"""`clustersmoke sensitivity`: which slow-downs the judge of slow ranks would see, by simulation."""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from .subcommand import add, print_lines
from .tables import table

DESCRIPTION = """\
Simulates jobs in which one rank is slow, and judges them as test_no_rank_falls_behind judges the
ranks' own steps on GPUs: how often the slow rank is named, and how often any other one is. Healthy
ranks differ by the spread (standard deviation), and the passes of a rank by 1 %.
"""
EXAMPLES = """\
examples:
  clustersmoke sensitivity
  clustersmoke sensitivity --trials 20000 --seed 1

exit status: 0 done, 2 unusable arguments
"""
RANKS = (4, 8, 16, 64)
SPREADS = (0.0, 0.01, 0.03, 0.08)
SLOW_DOWNS = (0.0, 0.02, 0.05, 0.08, 0.10, 0.15, 0.20, 0.40)
PASSES, PASS_NOISE = 10, 0.01
WILSON_Z = 1.96  # 95 %


@dataclass
class Cell:
    """How often, in trials with one slow rank, it was named, and any other one."""

    right: int = 0
    wrong: int = 0


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = add(
        subparsers,
        "sensitivity",
        "show which slow ranks would be named",
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
    rows = [
        (size, spread, simulate_ranks(size, spread, parsed.trials, parsed.seed))
        for size in RANKS
        for spread in SPREADS
    ]
    print_lines(_text_lines(rows, parsed.trials))
    return 0


def simulate_ranks(size: int, spread: float, trials: int, seed: int) -> dict[float, Cell]:
    """Slow-down -> what was named among `size` ranks whose healthy times differ by `spread`. The
    same healthy ranks are judged with each slow-down."""
    from ..criteria.peer_judge import judge_peers, typical_s  # late: it loads pytest

    cells = {slow_down: Cell() for slow_down in SLOW_DOWNS}
    normal = random.Random(f"{seed}/{size}/{spread}").gauss
    for _ in range(trials):
        speeds = [max(0.01, normal(1, spread)) for _ in range(size)]
        times = {
            rank: typical_s([speed * normal(1, PASS_NOISE) for _ in range(PASSES)])
            for rank, speed in enumerate(speeds)
        }
        for slow_down, cell in cells.items():
            slow = judge_peers({**times, 0: times[0] * (1 + slow_down)}).slow
            named = slow_down > 0 and 0 in slow
            cell.right += named
            cell.wrong += len(slow) > named
    return cells


def wilson_interval(hits: int, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a probability."""
    share, square = hits / trials, WILSON_Z**2 / trials
    middle = share + square / 2
    half = WILSON_Z * math.sqrt(share * (1 - share) / trials + square / trials / 4)
    low, high = (middle - half) / (1 + square), (middle + half) / (1 + square)
    return max(0.0, low), min(1.0, high)


def _text_lines(rows: list[tuple[int, float, dict[float, Cell]]], trials: int) -> Iterator[str]:
    titles = ("#ranks", "#spread", *(f"#{slow_down:.0%} slow" for slow_down in SLOW_DOWNS))
    for caption, counted in (
        ("The slow rank is named", "right"),
        ("A rank that is not slow is named", "wrong"),
    ):
        yield f"{caption}, % of {trials:,} trials (95 % interval):"
        yield from table(
            titles,
            [
                [f"{size}", f"{spread:.0%}", *(_share(vars(c)[counted], trials) for c in cells)]
                for size, spread, by_slow_down in rows
                for cells in [by_slow_down.values()]
            ],
        )
        yield ""


def _share(hits: int, trials: int) -> str:
    low, high = map(_percent, wilson_interval(hits, trials))
    return f"{_percent(hits / trials)} ({low}-{high})"


def _percent(share: float) -> str:
    return f"{share * 100:.{1 if share >= 0.01 else 2}f}"
