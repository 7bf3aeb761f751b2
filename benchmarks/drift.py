"""False alarms of the drift judge, and how soon both judges of the history find a loss.

python benchmarks/drift.py               the figures of docs/explanation/measured.md; minutes
python benchmarks/drift.py --short       the same on a few histories; half a minute

Everything here is simulated. A history is a series of nights with independent noise; level and
noise are estimated from it, as in use. False alarms are rare, so numpy draws many histories;
delays come from the shipped judges and the shipped rule for good runs, one history at a time.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from statistics import median
from typing import Any

from pytest_clustersmoke.cli.suite_files import PACKAGE, shipped_phases
from pytest_clustersmoke.config.marker import PhaseMarker
from pytest_clustersmoke.config.metrics import METRICS
from pytest_clustersmoke.evidence.history.drift_judge import (
    ALLOWANCE,
    MAX_DISTANCE,
    MAX_FIRST,
    MIN_NIGHTS,
    THRESHOLD,
    count_level_nights,
    judge_drift,
)
from pytest_clustersmoke.evidence.history.outlier_judge import (
    FAILING_UNITS,
    FAR_MADS,
    MEAN_SCALE,
    SCALE,
    WINDOW,
    OutlierJudge,
    widening_factor,
)

# Metrics that are the same figure times what a past fixes (batch, sequence length): if one has
# an alarm, so has the other.
SAME_FIGURE = {"samples_per_s": "steps_per_s", "tokens_per_s_per_rank": "steps_per_s"}
SWEEP, PAIRS = "train_allreduce.py", "pair_bandwidth_min_gb_per_s"
MONTH = 30
AGES = (MIN_NIGHTS, 40, WINDOW, 2 * WINDOW)  # nights before those that are counted
LOSSES, NOISES = (0.03, 0.05, 0.08, 0.10, 0.15, 0.25), (0.01, 0.02, 0.03, 0.05)
CHUNK = 20_000
PATIENCE = 60  # nights until a loss counts as not found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help="a few histories only")
    short = parser.parse_args().short
    print_false_alarms(40_000 if short else 500_000)
    print_delays(10 if short else 100)


# The ladder


def count_ladder_series() -> int:
    """Of the shipped profile that lists most, how many independent metrics of its phases can fail:
    those in units that can, on GPUs."""
    import yaml

    profiles = yaml.safe_load((PACKAGE / "_cluster.yaml").read_text(encoding="utf-8"))["clusters"]
    series = {phase.name: len(list_series(phase)) for phase in shipped_phases()}
    return max(sum(map(series.__getitem__, profile["phases"])) for profile in profiles.values())


def list_series(phase: PhaseMarker) -> set[str]:
    """The metrics of a shipped phase that can fail, without those that are the same figure."""
    failing = {name for name, kind in METRICS.items() if kind.unit in FAILING_UNITS}
    bandwidths = {name for name in failing if METRICS[name].unit == "GB/s"}
    if phase.script.name != SWEEP:
        return {SAME_FIGURE.get(name, name) for name in failing - bandwidths}
    return bandwidths - ({PAIRS} if phase.nodes == 1 else set())


# False alarms


def print_false_alarms(histories: int) -> None:
    try:
        import numpy
    except ImportError:
        print("numpy is not installed: false alarms are not measured", file=sys.stderr)
        return
    ladder = count_ladder_series()
    print(f"False alarms within {MONTH} healthy nights, {histories:,} histories per row\n")
    print(f"| noise | nights before | per metric | any of {ladder} metrics |")
    print("|---|---|---|---|")
    rows = [("normal", normal_noise, age) for age in AGES]
    rows += [("heavy tails", tailed_noise, age) for age in (AGES[0], AGES[-1])]
    rows.append(("correlated", tied_noise, AGES[-1]))
    for name, draw, age in rows:
        alarms = count_false_alarms(draw, numpy.random.default_rng(age), age, histories)
        share = alarms / histories
        of_ladder = 1 - (1 - share) ** ladder
        print(f"| {name} | {age} | {share:.1e} | {of_ladder * 100:.2f} % |", flush=True)


def count_false_alarms(
    draw: Callable[[Any, int, int], Any], drawn: Any, age: int, histories: int
) -> int:
    """Of healthy histories, those with an alarm in the 30 nights after the first `age`."""
    alarms = 0
    for begun in range(0, histories, CHUNK):
        nights = draw(drawn, age + MONTH, min(CHUNK, histories - begun))
        alarms += int(find_alarms(nights, age).sum())
    return alarms


def find_alarms(nights: Any, age: int) -> Any:
    """Which histories have an alarm from night `age` on, as `judge_drift` on all earlier nights.

    `nights` are spreads of the noise off the level, (nights, histories); lower is worse. The
    smallest spread that the judge assumes is left out: it only makes alarms rarer.
    """
    import numpy

    alarms = numpy.zeros(nights.shape[1], dtype=bool)
    for tonight in range(age, len(nights)):
        if tonight == age or count_level_nights(tonight) > count_level_nights(tonight - 1):
            middle, spread = measure_levels(nights[: count_level_nights(tonight)])
        total = numpy.zeros(nights.shape[1])
        for night in nights[max(0, tonight - WINDOW) : tonight + 1]:
            distance = numpy.minimum((middle - night) / spread, MAX_DISTANCE)
            total = numpy.clip(total + distance - ALLOWANCE, 0.0, THRESHOLD)
        alarms |= total >= THRESHOLD
    return alarms


def measure_levels(nights: Any) -> tuple[Any, Any]:
    """Median and widened spread of each history, as `measure_level`."""
    import numpy

    middle = numpy.median(nights, axis=0)
    distances = numpy.abs(nights - middle)
    far = FAR_MADS * SCALE * numpy.median(distances, axis=0)
    spread = MEAN_SCALE * numpy.minimum(distances, far).mean(axis=0)
    return middle, spread * widening_factor(len(nights))


def normal_noise(drawn: Any, nights: int, histories: int) -> Any:
    return drawn.standard_normal((nights, histories))


def tailed_noise(drawn: Any, nights: int, histories: int) -> Any:
    """Student's t with 5 degrees of freedom, scaled to a standard deviation of 1."""
    return drawn.standard_t(5, (nights, histories)) * (3 / 5) ** 0.5


def tied_noise(drawn: Any, nights: int, histories: int) -> Any:
    """Each night resembles the one before: a correlation of 0.3."""
    values = drawn.standard_normal((nights, histories))
    for night in range(1, nights):
        values[night] = 0.3 * values[night - 1] + (1 - 0.3**2) ** 0.5 * values[night]
    return values


# Delays


def print_delays(histories: int) -> None:
    print(f"\nNights until a loss is found, after {WINDOW} healthy nights: half of {histories}")
    print(f"histories, nine of ten, and the share not found in {PATIENCE} nights\n")
    print("| loss | noise | by the outlier judge | not found | by either judge | not found |")
    print("|---|---|---|---|---|---|")
    for loss in LOSSES:
        for noise in NOISES:
            found = [find_loss(loss, noise, seed) for seed in range(histories)]
            cells = map(describe_delay, zip(*found, strict=True))
            print(f"| {percent(loss)} | {percent(noise)} | {' | '.join(cells)} |", flush=True)
    print("\nA loss of 5 % with 2 % of noise, by the healthy nights before it\n")
    print("| nights before | by the outlier judge | not found | by either judge | not found |")
    print("|---|---|---|---|---|")
    for before in (MIN_NIGHTS, 30, 40):
        found = [find_loss(0.05, 0.02, seed, before) for seed in range(histories)]
        cells = map(describe_delay, zip(*found, strict=True))
        print(f"| {before} | {' | '.join(cells)} |", flush=True)


def find_loss(loss: float, noise: float, seed: int, before: int = WINDOW) -> tuple[int, int]:
    """After how many nights of a lasting loss a run first fails: by the outlier judge alone, and by
    either judge; PATIENCE + 1 if no run does. `before` is the number of healthy nights."""
    drawn = random.Random(seed)
    healthy = [drawn.gauss(1.0, noise) for _ in range(before)]
    losing = [drawn.gauss(1.0 - loss, noise) for _ in range(PATIENCE)]
    outlier = both = PATIENCE + 1
    judged = islice(judge_nights(healthy + losing), before, None)
    for night, (status, drift) in enumerate(judged, 1):
        if "fail" in (status, drift):
            both = min(both, night)
        if status == "fail":
            outlier = night
            break
    return outlier, both


def judge_nights(values: Sequence[float]) -> Iterator[tuple[str, str]]:
    """The status of each night by the outlier judge and by the drift judge. A night is good, so
    that later nights are judged against it, if neither finds anything."""
    good: list[float] = []
    for number, value in enumerate(values):
        recent = list(reversed(values[max(0, number - WINDOW) : number]))
        outlier = OutlierJudge().judge("", value, True, good[::-1][:WINDOW], [])["status"]
        drift = judge_drift(value, True, good[:MAX_FIRST], recent)["status"]
        if outlier not in ("warn", "fail") and drift != "fail":
            good.append(value)
        yield outlier, drift


def describe_delay(nights: Sequence[int]) -> str:
    """`6, 10 | 0 %`: two quantiles, and the share not found; `-` for one that was not found."""
    ordered = sorted(nights)
    figures = (median(ordered), ordered[len(ordered) * 9 // 10])
    words = ("-" if figure > PATIENCE else f"{figure:.0f}" for figure in figures)
    return f"{', '.join(words)} | {percent(sum(n > PATIENCE for n in nights) / len(nights))}"


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"


if __name__ == "__main__":
    main()
