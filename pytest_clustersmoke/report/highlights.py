"""What stands out in a run and should be read first, each with a link to where the page shows it.

Failed jobs and criteria, slow ranks, unexpected links, metrics off their reference or their past
runs, nodes that differ, gates that were not proven.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from ..config.metrics import show
from ..evidence.metric import BETWEEN, INSIDE
from ..evidence.run_record import MetricRecord, PhaseRecord, ProofRecord, RankRecord, RunRecord
from ..text import shorten

MAX_EACH = 3  # of each kind on the first screen; the rest is counted
MAX_NAMES = 4


@dataclass(frozen=True)
class Highlight:
    """One thing that stands out: its title, a sentence with figures, and its place on the page."""

    title: str
    text: str
    where: str  # the name of the phase, or of the part of the page
    anchor: str
    known: bool = False  # an entry of `known` covers it


@dataclass(frozen=True)
class HighlightGroup:
    """The highlights of one kind; `more` is how many are not listed."""

    id: str
    title: str
    tone: Literal["bad", "warn"]
    items: list[Highlight]
    more: int


def find_highlights(record: RunRecord, anchors: dict[str, str]) -> list[HighlightGroup]:
    """The highlights, the worst kind first. `anchors` maps phases to their HTML anchors."""
    if record.proof is not None:
        return list(_group("gates", "Gates not proven", "bad", _gates(record.proof)))
    phases = [(phase, anchors[phase.phase]) for phase in record.phases]
    tone: Literal["bad", "warn"] = "warn" if _only_warns(record) else "bad"
    return [
        *_group("jobs", "Failed job", "bad", _each(_jobs, phases)),
        *_group("stragglers", "Slow rank", "bad", _each(_stragglers, phases)),
        *_group("links", "Unexpected transport", "bad", _each(_links, phases)),
        *_group("metrics", "Off reference or past runs", tone, _each(_metrics, phases)),
        *_group("criteria", "Failed criteria", "bad", _each(_criteria, phases)),
        *_group("differences", "Nodes differ", "warn", _differences(record)),
    ]


def _group(
    name: str, title: str, tone: Literal["bad", "warn"], items: Iterable[Highlight]
) -> Iterator[HighlightGroup]:
    listed = list(items)
    if listed:
        worst = "warn" if all(item.known for item in listed) else tone
        yield HighlightGroup(name, title, worst, listed[:MAX_EACH], len(listed) - MAX_EACH)


def _each(
    find: Callable[[PhaseRecord, str], Iterator[Highlight]], phases: list[tuple[PhaseRecord, str]]
) -> Iterator[Highlight]:
    for phase, anchor in phases:
        yield from find(phase, anchor)


def _jobs(phase: PhaseRecord, anchor: str) -> Iterator[Highlight]:
    if phase.outcome == "passed":
        return
    first = next((finding for finding in phase.findings if finding.primary), None)
    title = first.cause if first else phase.reason or "no reason was recorded"
    hosts = f" on {name_list(first.hosts)}" if first and first.hosts else ""
    target = f"{anchor}-findings" if phase.findings else anchor
    known = f", known until {phase.known.until}" if phase.known else ""
    text = f"{outcome_words(phase.outcome)}{hosts}{known}"
    yield Highlight(title, text, phase.phase, target, bool(known))


def _known(phase: PhaseRecord, kinds: set[str]) -> str:
    """ "; known until ..." if entries of `known` cover all red criteria that judged one of these
    kinds; empty if one of them is not covered, or if none is red."""
    red = [
        criterion
        for criterion in phase.criteria.values()
        if criterion.result in ("failed", "known") and kinds & set(criterion.judged)
    ]
    until = [
        criterion.known.until
        for criterion in red
        if criterion.result == "known" and criterion.known
    ]
    return f"; known until {min(until)}" if until and len(until) == len(red) else ""


def _stragglers(phase: PhaseRecord, anchor: str) -> Iterator[Highlight]:
    behind = [rank for rank in phase.ranks if rank.behind]
    known = _known(phase, {"stragglers"})
    where = (phase.phase, f"{anchor}-ranks", bool(known))
    for rank in behind[:MAX_NAMES]:
        text = f"{_lateness(rank, phase.ranks)}{known}"
        yield Highlight(f"rank {rank.rank} on {rank.node}", text, *where)
    if len(behind) > MAX_NAMES:
        rest = [str(rank.rank) for rank in behind[MAX_NAMES:]]
        yield Highlight(f"ranks {name_list(rest)}", f"also behind{known}", *where)


def _lateness(rank: RankRecord, ranks: list[RankRecord]) -> str:
    """How the rank's own part of a step compares with that of the others, by medians."""
    others = [other.own_s.p50 for other in ranks if other.own_s and other is not rank]
    if not rank.own_s or not others:
        return "it is slower than the others"
    step = f"; a whole step takes {_ms(rank.step_s.p50)}" if rank.step_s else ""
    times = f"{_ms(rank.own_s.p50)}, that of the others {_ms(statistics.median(others))}"
    return f"its own part of a step takes {times}{step}"


def _ms(seconds: float) -> str:
    return f"{show(seconds * 1e3)} ms"


def _links(phase: PhaseRecord, anchor: str) -> Iterator[Highlight]:
    topology = phase.topology
    wrong = [link for link in topology.links if link.unexpected] if topology else []
    if not topology or not wrong:
        return
    first, count = wrong[0], sum(group.unexpected for group in topology.groups)
    node = {rank.rank: rank.node for rank in phase.ranks}
    ends = [node.get(first.source, "?"), node.get(first.destination, "?")]
    where = f"inside {ends[0]}" if first.inside else f"from {ends[0]} to {ends[1]}"
    more = f"; {count} such links" if count > 1 else ""
    known = _known(phase, {INSIDE if link.inside else BETWEEN for link in wrong})
    text = f"rank {first.source} to rank {first.destination}: {first.unexpected}"
    yield Highlight(
        f"{first.transport} {where}",
        f"{text}{more}{known}",
        phase.phase,
        f"{anchor}-topology",
        bool(known),
    )


def _metrics(phase: PhaseRecord, anchor: str) -> Iterator[Highlight]:
    """One highlight per phase: the metric that is furthest off, and the names of the others."""
    deviations = [
        (name, *off) for name, metric in phase.metrics.items() if (off := _off(name, metric))
    ]
    if not deviations:
        return
    deviations.sort(key=lambda entry: -entry[1])
    name, share, against = deviations[0]
    metric = phase.metrics[name]
    value = f"{name} is {show_number(metric.value)} {unit_words(metric.unit)}".rstrip()
    also = f"; also {name_list([entry[0] for entry in deviations[1:]])}" if deviations[1:] else ""
    since = f". Since the last good run: {name_list(phase.changed)}" if phase.changed else ""
    title = against if math.isinf(share) else f"{name} {against}"
    metrics = [phase.metrics[name] for name, *_ in deviations]
    known = _known(phase, {kind for metric in metrics for kind in _failed_kinds(metric)})
    text = f"{value}{also}{known}{since}"
    yield Highlight(title, text, phase.phase, f"{anchor}-metrics", bool(known))


def _failed_kinds(metric: MetricRecord) -> Iterator[str]:
    """The kinds of criteria that the metric fails."""
    if metric.met is False:
        yield "references"
    if metric.past is not None and metric.past["status"] == "fail":
        yield "history"


def _off(name: str, metric: MetricRecord) -> tuple[float, str] | None:
    """How far a metric is off, as a figure and in words; None if it is not off."""
    reference, past, value = metric.reference, metric.past, metric.value
    if isinstance(value, str):
        return math.inf, f"{value}, which is not a finite number"
    if metric.met is False and reference and reference.value:
        return _share(value, reference.value, "the reference")
    if metric.met is False:
        return math.inf, "outside its reference"
    if past is None or past["status"] not in ("warn", "fail"):
        return None
    if not past["median"]:
        return math.inf, f"{name} is off its past runs"
    others = " on other versions" if past.get("other_versions") else ""
    return _share(value, past["median"], f"the median of {past['runs']} runs{others}")


def _only_warns(record: RunRecord) -> bool:
    """Whether no metric of a run is worse than a warning."""
    metrics = [metric for phase in record.phases for metric in phase.metrics.values()]
    return not any(
        isinstance(metric.value, str)
        or metric.met is False
        or (metric.past is not None and metric.past["status"] == "fail")
        for metric in metrics
    )


def _share(value: float, base: float, words: str) -> tuple[float, str]:
    share = (value / base - 1) * 100
    return abs(share), f"{share:+.1f} % against {words} {show(base)}"


def _criteria(phase: PhaseRecord, anchor: str) -> Iterator[Highlight]:
    red = [name for name, criterion in phase.criteria.items() if criterion.result == "failed"]
    if phase.outcome != "passed" or not red:
        return
    lines = phase.criteria[red[0]].text.strip().splitlines()
    title = f"{len(red)} of {len(phase.criteria)} criteria" if red[1:] else red[0]
    text = name_list(red) if red[1:] else lines[0] if lines else ""
    yield Highlight(title, text, phase.phase, f"{anchor}-criteria")


def _differences(record: RunRecord) -> Iterator[Highlight]:
    for difference in record.differences:
        usual, *others = difference.values.items()
        rest = "; ".join(f"{value} on {name_list(nodes)}" for value, nodes in others[:MAX_NAMES])
        text = f"{rest}; {usual[0]} on the other {len(usual[1])}"
        yield Highlight(difference.fact, text, "nodes", "nodes")


def _gates(proof: ProofRecord) -> Iterator[Highlight]:
    for gate in proof.gates:
        if gate.status != "proven":
            text = "; ".join(gate.reasons)
            yield Highlight(f"{gate.fault}: {gate.status}", text, "proof", "proof")


def name_list(names: Iterable[str]) -> str:
    """Names on one line; of many, the first ones and how many more there are."""
    return shorten(list(names), MAX_NAMES)


def outcome_words(outcome: str) -> str:
    """An outcome as people read it: `never ran`."""
    return outcome.replace("_", " ")


def unit_words(unit: str) -> str:
    """A metric's unit; nothing for a plain number."""
    return "" if unit == "1" else unit


def show_number(value: float | str | None) -> str:
    """A number of the record as text; a dash if there is none."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else show(value)
