"""How often the judge of peaks names a healthy device, in screens of 64 nodes.

    python -m benchmarks.peaks [--screens 60] [--trials 600] [--seed 0] [--store FILE]

First `pytest --cluster-screen` runs `--screens` times on four nodes of a lab, and measures each by
a rank; the store keeps what they measured, so that a later run goes on where this one stopped.
Then, in each of `--trials` screens of 64 nodes, every node gets a measurement drawn from these.
GPUs, eight in a node, differ by 1, 3 and 8 %: that is a simulation. So do the copies between every
two of them, and those to the host, which come through the far socket here, with the floor of their
PCIe link. A trial with any name counts.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.node_screens import NODES as LAB_NODES
from benchmarks.node_screens import Screen, count_failed, read_screens, run_screens
from pytest_clustersmoke.cli.sensitivity_command import wilson_interval
from pytest_clustersmoke.criteria.device_peaks import Place, judge_figures
from pytest_clustersmoke.criteria.link_speed import (
    COPIES,
    PlacedPair,
    find_below_floor,
    judge_pairs,
)
from pytest_clustersmoke.evidence.device_links import DevicePair, PcieLink
from pytest_clustersmoke.evidence.node_observation import DeviceFigure

NODES, GPUS = 64, 8
# A link, and what copies reach of it through the far socket.
LINK, FAR_SHARE = PcieLink(32.0, 16), 0.49
SPREADS = (0.01, 0.03, 0.08)
OF_GPUS = (
    "gemm_bf16_tflops",
    "device_copy_gb_per_s",
    "host_to_device_gb_per_s",
    "device_to_host_gb_per_s",
)


def count_names(screens: Sequence[Screen], places: Place) -> int:
    """In how many of these screens of CPUs anything is named."""
    return sum(
        bool(judge_figures(screen, [places] * len(screen), whole_nodes=True).slow)
        for screen in screens
    )


def draw_cpu_screen(screens: Sequence[Screen], draw: random.Random) -> Screen:
    """64 nodes, each of which measured what one of four once did."""
    figures = []
    for node in range(NODES):
        screen = draw.choice(screens)
        name = draw.choice(sorted({figure.node for figure in screen}))
        measured = [figure for figure in screen if figure.node == name]
        figures += [replace(figure, node=f"m{node}") for figure in measured]
    return figures


def name_gpus(spread: float, draw: random.Random) -> bool:
    """Whether anything is named in a screen of 64 nodes of eight GPUs that differ by this."""
    figures, places = [], []
    for name in OF_GPUS:
        for gpu in range(NODES * GPUS):
            value = 1 / max(0.1, draw.gauss(1, spread))
            node, number = divmod(gpu, GPUS)
            figures.append(DeviceFigure(f"n{node}", f"GPU-{gpu}", name, value, "1", True))
            places.append(Place("GPU", number, True, "CPU", True, True))
    for name in ("cpu_copy_gb_per_s", "cpu_latency_ns"):
        for node in range(NODES):
            value = max(0.1, draw.gauss(1, spread))
            figures.append(DeviceFigure(f"n{node}", "", name, value, "1", False))
            places.append(Place("GPU", 0, True, "CPU", True))
    named = judge_figures(figures, places, whole_nodes=True).slow
    return bool(named or name_pairs(spread, draw) or name_by_floor(spread, draw))


def name_pairs(spread: float, draw: random.Random) -> bool:
    """Whether any of 56 pairs of GPUs of 64 nodes is named, by NVLink or through the host."""
    pairs = [
        PlacedPair(f"n{node}", "GPU", first, "CPU", DevicePair(to, link, draw.gauss(1, spread)))
        for node in range(NODES)
        for first, to in itertools.permutations(range(GPUS), 2)
        for link in ("NVLink" if first // 4 == to // 4 else "SYS through the host",)
    ]
    return bool(judge_pairs(pairs)[0])


def name_by_floor(spread: float, draw: random.Random) -> bool:
    """Whether any copy through the far socket is named, whose link nobody else uses."""
    usual = LINK.gb_per_s * FAR_SHARE
    figures = [
        DeviceFigure(f"n{gpu // GPUS}", f"GPU-{gpu}", name, value, "GB/s", True)
        for gpu in range(NODES * GPUS)
        for name in COPIES
        for value in (usual * draw.gauss(1, spread),)
    ]
    return any(find_below_floor(figures, [LINK] * len(figures)))


def _say(what: str, named: int, trials: int) -> None:
    low, high = wilson_interval(named, trials)
    print(f"{what}: {named} of {trials} with a name ({low:.2%}-{high:.2%})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--screens", type=int, default=60)
    parser.add_argument("--trials", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", type=Path, help="keeps the screens of the lab")
    parsed = parser.parse_args()
    draw, cpu = random.Random(parsed.seed), Place("CPU", 0, False, "CPU", True)
    with tempfile.TemporaryDirectory() as folder:
        store = parsed.store or Path(folder) / "node_screens.tsv"
        run_screens(parsed.screens, store)
        screens, (failed, taken) = read_screens(store), count_failed(store)
    values = defaultdict(list)
    for figure in (figure for screen in screens for figure in screen):
        values[figure.name].append(figure.value)
    for name, measured in values.items():
        low, high = min(measured), max(measured)
        middle = statistics.median(measured)
        print(f"{name}: {low:.4g} to {high:.4g}, median {middle:.4g}, of {len(measured)}")
    _say(f"screens of {LAB_NODES} nodes of a lab", failed, taken)
    drawn = [draw_cpu_screen(screens, draw) for _ in range(parsed.trials)]
    _say(f"screens of {NODES} nodes, drawn from them", count_names(drawn, cpu), len(drawn))
    for spread in SPREADS:
        named = sum(name_gpus(spread, draw) for _ in range(parsed.trials))
        _say(f"{NODES} nodes of {GPUS} GPUs, spread {spread:.0%}", named, parsed.trials)


if __name__ == "__main__":
    main()
