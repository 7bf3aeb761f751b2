"""Judges which ranks of one role are slower than their peers, by the spread that the peers show.

A rank is slow if it lies outside its peers' distribution: one-sided t-tests, the slowest ranks left
out of their own comparison, so that several slow ranks do not hide each other (Rosner's
generalised extreme Studentised deviate). The fewer the peers and the wider their spread, the wider
the threshold; it is never below `FLOOR`. Where too few peers show a spread, a fixed factor decides.

The ranks of a node that is slow as a whole hide each other all the same, where they are more than a
quarter. So the middle ranks of nodes are judged as well, by the same test.

Pairs of nodes are judged alike, with two differences. A slow node makes all of its pairs slow, so
the pairs of up to half of the nodes may be slow. And pairs that share a node are not independent:
they count as no more peers than there are nodes.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

# The smallest loss worth a night's work.
FLOOR = 0.04
FEWEST_PEERS = 4
# The fixed factor: four healthy GPUs that differ by 8 % stay below it, as measured by
# `clustersmoke sensitivity`. CPU times of ranks that share cores differ by up to 30 %.
FEW_PEERS_FACTOR, CPU_FACTOR = 1.5, 2.0
# A healthy job of up to 8 ranks has a rank named in one run of 1,400. More ranks show their spread
# so well that the rate can fall with their number, and 10 % are still seen.
FALSE_NAMES, FALSE_NAMES_RANKS = 0.0007, 8
# Most of it goes to the test for a single slow rank, the rest to those for several.
SINGLE_SHARE = 6 / 7
MOST_SLOW_SHARE, MOST_SLOW = 1 / 4, 64
# Healthy pairs of one fabric are within a few percent of each other. A link that came up at half
# its rate or width, or a NIC shared by two GPUs because another failed, takes twice as long. Four
# healthy nodes that differ by 8 % stay below this factor (`clustersmoke sensitivity`).
FEW_PAIRS_FACTOR = 1.35


@dataclass(frozen=True)
class PeerVerdict:
    """The slow ranks or pairs, the slowest first; the usual time of the others in seconds; the
    smallest slow-down against them (0.25: 25 % longer) that would have been named; the fixed factor
    that this follows from, if there are too few peers to show a spread; and whether the slow ones
    are named by the spread."""

    slow: tuple[int, ...]
    usual_s: float
    visible: float
    factor: float | None = None
    by_spread: bool = False

    @property
    def by_factor(self) -> str:
        """` (by a fixed factor of 1.5)`; empty if the spread decides."""
        return "" if self.factor is None else f" (by a fixed factor of {self.factor:g})"


def judge_peers(times: Mapping[int, float], judgements: int = 1) -> PeerVerdict:
    """Judge the ranks of one role: rank -> its typical seconds, of two ranks or more. So many
    `judgements` are made of them, which share the chance of a false name."""
    if len(times) <= FEWEST_PEERS:
        return judge_by_factor(times, FEW_PEERS_FACTOR)
    most = min(MOST_SLOW, int(len(times) * MOST_SLOW_SHARE))
    return _judge_by_spread(times, most, len(times), FEW_PEERS_FACTOR, judgements)


def find_middles(times: Mapping[int, float], node_of: Callable[[int], Hashable]) -> list[int]:
    """Of each node with several of these ranks, the one in the middle, if there are three such
    nodes or more. The ranks of a node that is slow as a whole widen the spread in which each of
    them is judged; against the middles of the other nodes it shows."""
    by_node: dict[Hashable, list[int]] = {}
    for number in sorted(times, key=lambda number: times[number]):
        by_node.setdefault(node_of(number), []).append(number)
    middles = [own[len(own) // 2] for own in by_node.values() if len(own) > 1]
    return middles if len(middles) > 2 else []


def judge_ranks(
    times: Mapping[int, float], node_of: Callable[[int], Hashable]
) -> tuple[PeerVerdict, PeerVerdict | None]:
    """Judge the ranks of one role, and the middle ranks of their nodes, if there are enough: those
    of nodes of which no rank is slow by itself."""
    middles = find_middles(times, node_of)
    judgements = 2 if len(middles) > FEWEST_PEERS else 1  # by the spread
    verdict = judge_peers(times, judgements)
    if not middles:
        return verdict, None
    of_nodes = judge_peers({number: times[number] for number in middles}, judgements)
    named = {*map(node_of, verdict.slow)}
    whole = tuple(number for number in of_nodes.slow if node_of(number) not in named)
    return verdict, replace(of_nodes, slow=whole)


def judge_pairs(times: Mapping[int, float], nodes: int) -> PeerVerdict:
    """Judge all pairs of three nodes or more: number of the pair -> its seconds."""
    healthy = (nodes + 1) // 2
    most = len(times) - healthy * (healthy - 1) // 2
    return _judge_by_spread(times, most, nodes, FEW_PAIRS_FACTOR)


def _judge_by_spread(
    times: Mapping[int, float], most: int, freedom: int, factor: float, judgements: int = 1
) -> PeerVerdict:
    """Judge by the others' spread, which has at most these degrees of freedom, and by a factor over
    the slowest of them if they are too few; at most `most` are slow."""
    names = sorted(times, key=lambda name: times[name])
    ordered = [times[name] for name in names]
    spread = _running_spread(ordered)
    slow = 0
    for number in range(1, most + 1):
        # The `number` slowest are slow if the fastest of them is outside the others' spread.
        peers = len(names) - number
        usual_s, error_s = spread[peers]
        if peers < FEWEST_PEERS:
            bound_s = factor * ordered[peers - 1]
        elif ordered[peers] <= (1 + FLOOR) * usual_s:
            continue  # whatever the spread is
        else:
            bound_s = _bound(usual_s, error_s, _quantile(peers, number, freedom, judgements))
        if ordered[peers] > bound_s:
            slow = number
    healthy = len(names) - slow
    usual_s, named = spread[healthy][0], tuple(reversed(names[healthy:]))
    if healthy <= FEWEST_PEERS:
        visible = factor * ordered[healthy - 1] / usual_s - 1
        return PeerVerdict(named, usual_s, visible, factor, healthy == FEWEST_PEERS)
    quantile = _quantile(healthy - 1, slow + 1, freedom, judgements)
    visible = _highest_bound(ordered[:healthy], quantile) / usual_s - 1
    return PeerVerdict(named, usual_s, visible, by_spread=True)


def judge_by_factor(times: Mapping[int, float], factor: float) -> PeerVerdict:
    """Judge ranks by a fixed factor over the median of the others: for CPUs and for few peers."""
    ordered = sorted(times.values())
    slow = [
        rank for rank, own_s in times.items() if own_s > factor * _median_without(ordered, own_s)
    ]
    usual_s = statistics.median(own_s for rank, own_s in times.items() if rank not in slow)
    named = tuple(sorted(slow, key=lambda rank: -times[rank]))
    return PeerVerdict(named, usual_s, factor - 1, factor)


def _median_without(ordered: Sequence[float], value: float) -> float:
    """The median of sorted values without one of them."""
    at, count = bisect_left(ordered, value), len(ordered) - 1
    low, high = ((count - 1) // 2, count // 2)
    return (ordered[low + (low >= at)] + ordered[high + (high >= at)]) / 2


def _quantile(peers: int, number: int, freedom: int, judgements: int) -> float:
    """How many standard errors above its peers the `number`-th slowest must be."""
    return student_quantile(_chance(peers + 1, number) / judgements, min(peers - 1, freedom))


def _bound(usual_s: float, error_s: float, quantile: float) -> float:
    """The time above which a rank is slow."""
    return usual_s + max(FLOOR * usual_s, quantile * error_s)


def _highest_bound(healthy: Sequence[float], quantile: float) -> float:
    """The time above which any of these ranks would be slow, judged by the others of them."""
    mean, others = statistics.fmean(healthy), len(healthy) - 1
    squares = sum((value - mean) ** 2 for value in healthy)
    bounds = []
    for value in healthy:
        usual_s = mean - (value - mean) / others
        variance = max(0.0, squares - (value - mean) ** 2 * (1 + 1 / others)) / (others - 1)
        bounds.append(_bound(usual_s, math.sqrt(variance * (1 + 1 / others)), quantile))
    return max(bounds)


def _running_spread(ordered: Sequence[float]) -> list[tuple[float, float]]:
    """For each number of the fastest: their mean, and the standard error of one more time against
    it (Welford's algorithm)."""
    spread, mean, squares = [(0.0, 0.0)], 0.0, 0.0
    for count, value in enumerate(ordered, 1):
        off = value - mean
        mean += off / count
        squares += off * (value - mean)
        spread.append((mean, math.sqrt(squares / max(1, count - 1) * (1 + 1 / count))))
    return spread


@cache
def _chance(candidates: int, number: int) -> float:
    """The chance that one of `candidates` healthy ranks may have to be named as the `number`-th."""
    of_all = FALSE_NAMES * min(1, FALSE_NAMES_RANKS / candidates)
    if number == 1:
        return of_all * SINGLE_SHARE / candidates
    rest = of_all * (1 - SINGLE_SHARE) * 6 / math.pi**2  # the sum of 1/n^2 is pi^2/6
    return rest / (number - 1) ** 2 / candidates


@cache
def student_quantile(chance: float, freedom: int) -> float:
    """The value that Student's t with `freedom` degrees of freedom exceeds with this chance."""
    low, high = 0.0, 1.0
    while _student_tail(high, freedom) > chance:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        if _student_tail(middle, freedom) > chance:
            low = middle
        else:
            high = middle
    return high


def _student_tail(value: float, freedom: int) -> float:
    """The chance that Student's t exceeds `value` (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan2(value, math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0 if freedom == 1 else term
    for index in range(2 + odd, freedom - 1, 2):
        term *= cosine**2 * (index - 1) / index
        total += term
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return (1 - inside) / 2
