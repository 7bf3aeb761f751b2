"""The criterion: no device gives wrong answers, and none is slower than its peers.

A device that multiplies the same matrices must get the same bits. One that does not is named, and
so is one whose answer differs from that of all others of its kind, of which there must be two.

Slow is what lies outside the peers' distribution (`peer_judge.py`). Which are peers, and how far
apart healthy ones lie, depends on the figure:

- what a GPU does by itself: all GPUs of the model; and the median of each node's, so that a node
  all of whose GPUs are slow is not taken for the spread of healthy ones;
- copies between host and GPU: those with the same place in their node, beside the same CPU. A fixed
  factor decides, since the way there is longer for some of them, and others may use it as well.
  Their spread decides where the nodes are whole (`--cluster-screen`), and the host's memory was
  taken next to the GPU;
- what the host's processor does: those of the model, on nodes all of whose cores the job has;
  others are not compared. A fixed factor decides, by CPU time, and on whole nodes their spread.

And each figure is compared with those of the same device in past runs, of which there must be
eight, as each GPU's own step is (`gpu_past.py`); the factors above are then the smallest loss that
is named.

Copies from GPU to GPU are judged by `link_speed.py`. Those between host and GPU must also reach the
floor of the PCIe link, which needs no peer, where the job has the whole node.

All judgements of a phase share the chance of a false name. What all ranks measure together, as
`overlap_share`, shows no single device, and is not judged; nor are clock and power under load,
which differ between healthy GPUs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from ..config.metrics import show
from ..evidence.device_links import CARD_FIGURE, PcieLink, list_card_figures
from ..evidence.fingerprint import fingerprint_of
from ..evidence.history.figure_history import FigureKey, key_of, read_figure_past
from ..evidence.history.history_database import HistoryUnusable
from ..evidence.history.outlier_judge import MIN_RUNS
from ..evidence.job_results import RankResult
from ..evidence.measured_peaks import ONCE, RankPeaks, first_attempt, measured_in, read_peaks
from ..evidence.metric import Unmeasured, fail
from ..evidence.node_observation import DeviceFigure
from ..evidence.phase_result import PhaseResult
from ..evidence.telemetry import parse_int
from ..node.core_speed import owns_all_cores
from ..text import plural, shorten
from .device_answers import find_dissenting, find_unsteady, is_on_gpu
from .gpu_past import judge_gpus
from .link_speed import (
    FloorMiss,
    PlacedCard,
    PlacedPair,
    choose_link,
    describe_floor,
    find_below_floor,
    judge_cards,
    judge_pairs,
)
from .peer_judge import (
    CPU_FACTOR,
    FEWEST_PEERS,
    FLOOR,
    PeerVerdict,
    find_middles,
    judge_by_factor,
    judge_peers,
)

KIND = "peaks"
OF_HOST = ("cpu_copy_gb_per_s", "cpu_latency_ns")
OF_BOTH = ("host_to_device_gb_per_s", "device_to_host_gb_per_s")
NOT_JUDGED = ("overlap_share", "sm_clock_under_load_mhz", "power_under_load_watts")
# Half of a link's lanes make copies take twice as long; a GPU of the other socket less than this.
COPY_FACTOR = 1.8
MOST_NAMES = 4
OTHER_NODES = "peers on other nodes"


@dataclass(frozen=True)
class Place:
    """Where a figure was measured: the model of the device, and its number in its node; the model
    of the node's CPU (empty: unknown), whether the job has all cores of the node, whether the
    host's memory of copies was taken next to the device, and the PCIe link to it (None: unknown,
    or another job may use it)."""

    model: str
    local_rank: int | None
    on_gpu: bool
    cpu: str = ""
    all_cores: bool = False
    near: bool = False
    link: PcieLink | None = None


@dataclass(frozen=True)
class SlowFigure:
    """A figure outside what its peers show, and the usual one of these."""

    figure: DeviceFigure
    usual: float
    at: int  # in the figures that were judged
    others: str = "peers"

    def __str__(self) -> str:
        figure = self.figure
        return (
            f"its {figure.name} is {show(figure.value)} {figure.unit}, that of its {self.others} "
            f"{show(self.usual)} {figure.unit}"
        )


@dataclass(frozen=True)
class PeakVerdict:
    """The slow figures, the worst first, and by figure the smallest loss that would have been named
    (0.25: it takes 25 % longer). `compared`: the numbers of the figures that have peers."""

    slow: tuple[SlowFigure, ...]
    visible: Mapping[str, float]
    compared: frozenset[int] = frozenset()

    def describe(self) -> str:
        """`gemm_bf16_tflops 4%, cpu_latency_ns 100%`."""
        return ", ".join(
            f"{name} {math.ceil(loss * 100 - 1e-6)}%" for name, loss in self.visible.items()
        )


def judge_figures(
    figures: Sequence[DeviceFigure], places: Sequence[Place], whole_nodes: bool = False
) -> PeakVerdict:
    """Judge figures, each with its place, among their peers. `whole_nodes`: nobody else uses them,
    so the spread of what the hosts do tells, and that of copies."""
    groups = _group(figures, places)
    by_spread = {key for key in groups if _has_spread(key, places, groups, whole_nodes)}
    times_of = {key: {number: _time(figures[number]) for number in groups[key]} for key in groups}
    several = {
        key: middles
        for key in by_spread
        if (middles := find_middles(times_of[key], lambda number: figures[number].node))
    }
    judgements = len(by_spread) + len(several)
    slow: list[tuple[float, SlowFigure]] = []
    visible: dict[str, float] = {}
    for key, numbers in groups.items():
        times = times_of[key]
        verdict = _judge(times, key, places[numbers[0]], judgements, key in by_spread)
        name = figures[numbers[0]].name
        visible[name] = max(visible.get(name, 0.0), verdict.visible)
        slow += _list_slow(verdict, times, figures, "peers")
        named = {figures[number].node for number in verdict.slow}
        if key in several:
            middles = several[key]
            of_nodes = judge_peers({number: times[number] for number in middles}, judgements)
            whole = _list_slow(of_nodes, times, figures, OTHER_NODES)
            slow += [found for found in whole if found[1].figure.node not in named]
    slow.sort(key=lambda pair: -pair[0])
    compared = frozenset(number for numbers in groups.values() for number in numbers)
    return PeakVerdict(tuple(found for _, found in slow), visible, compared)


def _list_slow(
    verdict: PeerVerdict, times: Mapping[int, float], figures: Sequence[DeviceFigure], others: str
) -> Iterator[tuple[float, SlowFigure]]:
    """The slow figures, each with how many times as long as usual it takes."""
    for number in verdict.slow:
        figure = figures[number]
        usual = 1 / verdict.usual_s if figure.higher_is_better else verdict.usual_s
        yield times[number] / verdict.usual_s, SlowFigure(figure, usual, number, others)


def _group(
    figures: Sequence[DeviceFigure], places: Sequence[Place]
) -> dict[tuple[Hashable, ...], list[int]]:
    """The figures that are compared with each other, by their numbers; those without a peer are
    left out."""
    several_nodes = len({figure.node for figure in figures}) > 1
    groups: dict[tuple[Hashable, ...], list[int]] = defaultdict(list)
    for number, (figure, place) in enumerate(zip(figures, places, strict=True)):
        if not _can_judge(figure, place):
            continue
        by_place = figure.name in OF_BOTH and several_nodes
        key = (*kind_of(figure, place), place.local_rank if by_place else None)
        groups[key].append(number)
    return {key: numbers for key, numbers in groups.items() if len(numbers) > 1}


def kind_of(figure: DeviceFigure, place: Place) -> tuple[str, str, str]:
    """What peers share: the figure, and the models of the device and of the CPU where they
    matter."""
    return (
        figure.name,
        "" if figure.name in OF_HOST else place.model,
        place.cpu if figure.name in (*OF_HOST, *OF_BOTH) else "",
    )


def _can_judge(figure: DeviceFigure, place: Place) -> bool:
    """What one core does is only known of a node whose other cores the job has as well."""
    if figure.name in OF_HOST and not (place.all_cores and place.cpu):
        return False
    return figure.name not in NOT_JUDGED and _time(figure) > 0


def _has_spread(
    key: tuple[Hashable, ...],
    places: Sequence[Place],
    groups: Mapping[tuple[Hashable, ...], Sequence[int]],
    whole_nodes: bool,
) -> bool:
    """Whether the peers' spread decides."""
    name, *_, local_rank = key
    if not places[groups[key][0]].on_gpu:
        return False
    if name not in OF_BOTH:
        return whole_nodes or name not in OF_HOST
    # Four peers show no spread, and the factor in its place is too small for copies.
    near = all(places[number].near for number in groups[key])
    return whole_nodes and near and local_rank is not None and len(groups[key]) > FEWEST_PEERS


def _judge(
    times: Mapping[int, float],
    key: tuple[Hashable, ...],
    place: Place,
    judgements: int,
    by_spread: bool,
) -> PeerVerdict:
    if by_spread:
        return judge_peers(times, judgements)
    is_copy = key[0] in OF_BOTH and place.on_gpu
    return judge_by_factor(times, COPY_FACTOR if is_copy else CPU_FACTOR)


def _time(figure: DeviceFigure) -> float:
    """What takes longer the worse the figure is; 0 if there is none."""
    if figure.higher_is_better:
        return 1 / figure.value if figure.value > 0 else math.inf
    return figure.value


def check_peaks(phase: PhaseResult) -> None:
    """Fail, naming the devices with wrong answers and the slow ones; unmeasured if a rank that was
    asked to has no figure. Skipped where nobody asked, or an earlier phase measured them all."""
    __tracebackhide__ = True
    if phase.spec.get("peaks") not in ONCE:
        pytest.skip("what its devices can do was not measured (`peaks: never`)")
    peaks = read_peaks(first_attempt(phase).ranks)
    slow_links = [*_find_slow_pairs(phase, peaks), *_find_slow_cards(phase, peaks)]
    wrong = [*find_unsteady(peaks), *find_dissenting(peaks)]
    pairs = [(figure, peak.rank) for peak in peaks for figure in peak.figures]
    figures = [figure for figure, _ in pairs]
    places = [place for peak in peaks for place in [_place(phase, peak)] * len(peak.figures)]
    verdict = judge_figures(figures, places)
    low = list(find_below_floor(figures, [place.link for place in places]))
    became, known = judge_past(figures, places, _read_past(phase, figures))
    fails = phase.past is None or phase.past.fails
    named: list[SlowFigure | FloorMiss] = [*low, *verdict.slow, *(became if fails else ())]
    slow = [
        f"{rank} on {rank.host}{_of(found.figure)}: {found}"
        for found in named
        for _, rank in [pairs[found.at]]
    ]
    if wrong or slow or slow_links:
        phase.judged.add(KIND)
        fail("\n".join([*wrong, *slow, *slow_links]))
    _require_events(phase, peaks)
    _require_figures(peaks)
    for found in became:
        words = f"{pairs[found.at][1]}{_of(found.figure)}: {found} (history_check: warn)"
        raise Unmeasured(KIND, words)
    _require_comparison(peaks, verdict.compared | known)
    phase.judged.add(KIND)
    if words := verdict.describe():
        phase.sensitivity.append(f"would have named a device that takes longer by: {words}")
    if words := describe_floor([place.link for place in places]):
        phase.sensitivity.append(f"would have named a GPU whose copies reach less than {words}")


def _find_slow_pairs(phase: PhaseResult, peaks: Sequence[RankPeaks]) -> list[str]:
    """On nodes all of whose GPUs the job has: elsewhere the same two numbers may be others."""
    pairs = [
        (peak.rank, peak.cpu, pair)
        for peak in peaks
        if peak.pairs and _has_all_gpus(phase, peak.rank)
        for pair in peak.pairs
    ]
    placed = [
        PlacedPair(rank.node, rank.device_name or "", rank.local_rank or 0, cpu, pair)
        for rank, cpu, pair in pairs
    ]
    ranks = [rank for rank, *_ in pairs]
    slow, _ = judge_pairs(placed)
    return [f"{ranks[found.at]} on {ranks[found.at].host}: {found}" for found in slow]


def _find_slow_cards(phase: PhaseResult, peaks: Sequence[RankPeaks]) -> list[str]:
    """On nodes that the job has alone: elsewhere other jobs may use the same card."""
    cards = [
        (peak.rank.host, PlacedCard(peak.rank.node, peak.rank.device_name or "", peak.cpu, card))
        for peak in peaks
        if peak.cards and _place(phase, peak).all_cores and _has_all_gpus(phase, peak.rank)
        for card in peak.cards
    ]
    slow, _ = judge_cards([made for _, made in cards])
    texts = [f"{cards[found.at][0]}: {found}" for found in slow]
    if phase.past is not None and not phase.past.fails:
        return texts
    figures = [
        (host, fig) for host, made in cards for fig in list_card_figures(made.node, [made.card])
    ]
    past = _read_past(phase, [figure for _, figure in figures])
    places = [Place("", None, on_gpu=True)] * len(figures)
    became, _ = judge_past([figure for _, figure in figures], places, past)
    return texts + [f"{figures[found.at][0]}{_of(found.figure)}: {found}" for found in became]


def judge_past(
    figures: Sequence[DeviceFigure], places: Sequence[Place], past: Mapping[FigureKey, list[float]]
) -> tuple[list[SlowFigure], frozenset[int]]:
    """The figures that are worse than those of the same device in past runs, the worst first; and
    the numbers of all that have such a past. A GPU without a UUID may be another one each time."""
    names: dict[str, dict[str, int]] = defaultdict(dict)
    for number, (figure, place) in enumerate(zip(figures, places, strict=True)):
        if _can_judge(figure, place) and not figure.device.startswith(f"{figure.node}/cuda:"):
            names[figure.name][key_of(figure)[0]] = number
    slow: list[tuple[float, SlowFigure]] = []
    compared: set[int] = set()
    for name, numbers in names.items():
        times = {device: _time(figures[number]) for device, number in numbers.items()}
        before = {
            device: [_time(replace(figures[number], value=value)) for value in past[key]]
            for device, number in numbers.items()
            if (key := key_of(figures[number])) in past
        }
        on_gpu = all(places[number].on_gpu for number in numbers.values())
        verdicts = judge_gpus(times, before, _least_loss(name, on_gpu), len(names))
        compared |= {numbers[device] for device in verdicts}
        for device, verdict in verdicts.items():
            if verdict.slow:
                figure, usual_s = figures[numbers[device]], verdict.level.median
                usual = 1 / usual_s if figure.higher_is_better else usual_s
                found = SlowFigure(figure, usual, numbers[device], "good runs of the past")
                slow.append((verdict.own_s / usual_s, found))
    slow.sort(key=lambda pair: -pair[0])
    return [found for _, found in slow], frozenset(compared)


def _least_loss(name: str, on_gpu: bool) -> float:
    if not on_gpu or name in OF_HOST:
        return CPU_FACTOR - 1
    return COPY_FACTOR - 1 if name in (*OF_BOTH, CARD_FIGURE) else FLOOR


def _read_past(
    phase: PhaseResult, figures: Sequence[DeviceFigure]
) -> Mapping[FigureKey, list[float]]:
    """The past of each figure; empty without a history that can be read, which other criteria
    report."""
    if phase.past is None:
        return {}
    try:
        past = phase.past
        who = fingerprint_of(phase)
        return read_figure_past(past.report_dir, past.cluster, phase.name, who, figures, past.begun)
    except HistoryUnusable:
        return {}


def _require_events(phase: PhaseResult, peaks: Sequence[RankPeaks]) -> None:
    silent = phase.world_size - len(peaks)
    if silent:
        raise Unmeasured(
            KIND,
            f"{plural(silent, 'rank')} of {phase.world_size} measured nothing of their devices; "
            'expected it after the stage "init", in which the process group is opened',
        )
    elsewhere = {peak.measured_in for peak in peaks}
    if not any(peak.figures or peak.not_measured for peak in peaks) and "" not in elsewhere:
        for name in elsewhere:
            phase.judged.add(measured_in(name))
        names = shorten(sorted(elsewhere), MOST_NAMES)
        pytest.skip(f"its devices were measured in an earlier phase of the run ({names})")


def _require_figures(peaks: Sequence[RankPeaks]) -> None:
    """Raise Unmeasured for a figure that a device could not give."""
    for peak in peaks:
        for name, why in peak.not_measured.items():
            raise Unmeasured(KIND, f"{peak.rank} could not measure {name}: {why}")
    if not any(peak.calls for peak in peaks):
        raise Unmeasured(KIND, "no rank multiplied matrices whose product is known")


def _require_comparison(peaks: Sequence[RankPeaks], compared: frozenset[int]) -> None:
    """Raise Unmeasured for a device none of whose figures had a peer or a past."""
    first = 0
    for peak in peaks:
        numbers = range(first, first + len(peak.figures))
        first = numbers.stop
        if peak.figures and compared.isdisjoint(numbers):
            raise Unmeasured(
                KIND,
                f"{peak.rank} has nothing to be compared with: no device of its kind was measured "
                f"in this phase, and its past has fewer than {MIN_RUNS} good runs of this setup",
            )


def _of(figure: DeviceFigure) -> str:
    return f" ({figure.device})" if figure.device else ""


def _place(phase: PhaseResult, peak: RankPeaks) -> Place:
    rank = peak.rank
    all_cores = owns_all_cores(_facts_of(phase, rank))
    # A job that has a part of the node may share what leads to its GPUs with another one.
    has_all = all_cores and _has_all_gpus(phase, rank)
    return Place(
        rank.device_name or "",
        rank.local_rank,
        is_on_gpu(rank),
        peak.cpu,
        all_cores,
        peak.near_device,
        choose_link(peak.link, rank.device_name or "") if has_all else None,
    )


def _facts_of(phase: PhaseResult, rank: RankResult) -> Mapping[str, Any]:
    return next((node.facts for node in phase.nodes if node.name == rank.node), {})


def _has_all_gpus(phase: PhaseResult, rank: RankResult) -> bool:
    """Whether the ranks of this one's node have all of its GPUs. Those that a cgroup hides from
    the job are still on the bus. Virtual nodes of one machine, which measure at the same time, have
    its GPUs together."""
    facts = _facts_of(phase, rank)
    gpus, on_bus = facts.get("gpus"), parse_int(facts.get("gpus_on_bus")) or 0
    local = [each for each in phase.ranks if each.node == rank.node]
    is_virtual = any(each.host == rank.host and each.node != rank.node for each in phase.ranks)
    has_all = isinstance(gpus, list) and max(len(gpus), on_bus) <= len(local)
    return has_all and not is_virtual
