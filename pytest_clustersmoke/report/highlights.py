"""What stands out in a run: what a person should see first, each with the place that shows it.

Failed jobs and criteria, ranks that fall behind, links that are not as the cluster expects, metrics
beyond their reference or their own past, nodes that differ, gates that are not proven.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from ..config.metrics import show
from .run_record import MetricRecord, PhaseRecord, ProofRecord, RankRecord, RunRecord

MAX_EACH = 3  # of one kind on the first screen; the rest is counted
MAX_NAMES = 4
LAST_GOOD = " (last good run "


@dataclass(frozen=True)
class Highlight:
    """One thing: what, a sentence with its figures, and where on the page it is shown."""

    what: str
    text: str
    where: str  # the name of the phase, or of the part of the page
    anchor: str
    known: bool = False  # somebody answers for it


@dataclass(frozen=True)
class HighlightGroup:
    """All things of one kind; `more` are not listed."""

    id: str
    title: str
    tone: Literal["bad", "warn"]
    items: list[Highlight]
    more: int


def stands_out(record: RunRecord, anchors: dict[str, str]) -> list[HighlightGroup]:
    """What stands out, the worst kind first. `anchors` are those of the phases' parts."""
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
    found = list(items)
    if found:
        worst = "warn" if all(one.known for one in found) else tone
        yield HighlightGroup(name, title, worst, found[:MAX_EACH], len(found) - MAX_EACH)


def _each(
    find: Callable[[PhaseRecord, str], Iterator[Highlight]], phases: list[tuple[PhaseRecord, str]]
) -> Iterator[Highlight]:
    for phase, anchor in phases:
        yield from find(phase, anchor)


def _jobs(phase: PhaseRecord, anchor: str) -> Iterator[Highlight]:
    if phase.outcome == "passed":
        return
    first = next((finding for finding in phase.findings if finding.primary), None)
    what = first.cause if first else phase.reason or "no reason was recorded"
    hosts = f" on {listed(first.hosts)}" if first and first.hosts else ""
    target = f"{anchor}-findings" if phase.findings else anchor
    known = f", known until {phase.known.until}" if phase.known else ""
    text = f"{words(phase.outcome)}{hosts}{known}"
    yield Highlight(what, text, phase.phase, target, bool(known))


def _known(phase: PhaseRecord, judges: Callable[[str, str], object]) -> str:
    """The words for an acknowledgement of all red criteria that judge a thing, by their name and
    text; empty where one of them is not acknowledged, or none is red."""
    red = [
        one
        for name, one in phase.criteria.items()
        if one.result in ("failed", "known") and judges(name, one.text)
    ]
    until = [one.known.until for one in red if one.result == "known" and one.known]
    return f"; known until {min(until)}" if until and len(until) == len(red) else ""


def _stragglers(phase: PhaseRecord, anchor: str) -> Iterator[Highlight]:
    behind = [one for one in phase.ranks if one.behind]
    known = _known(phase, lambda name, text: "falls_behind" in name)
    where = (phase.phase, f"{anchor}-ranks", bool(known))
    for rank in behind[:MAX_NAMES]:
        text = f"{_lateness(rank, phase.ranks)}{known}"
        yield Highlight(f"rank {rank.rank} on {rank.node}", text, *where)
    if len(behind) > MAX_NAMES:
        rest = [str(one.rank) for one in behind[MAX_NAMES:]]
        yield Highlight(f"ranks {listed(rest)}", f"also behind{known}", *where)


def _lateness(rank: RankRecord, ranks: list[RankRecord]) -> str:
    """Its own part of a step beside the others', by medians."""
    others = [one.own_s.p50 for one in ranks if one.own_s and one is not rank]
    if not rank.own_s or not others:
        return "it is slower than the others"
    step = f"; a whole step takes {_ms(rank.step_s.p50)}" if rank.step_s else ""
    times = f"{_ms(rank.own_s.p50)}, that of the others {_ms(statistics.median(others))}"
    return f"its own part of a step takes {times}{step}"


def _ms(seconds: float) -> str:
    return f"{show(seconds * 1e3)} ms"


def _links(phase: PhaseRecord, anchor: str) -> Iterator[Highlight]:
    topology = phase.topology
    wrong = [one for one in topology.links if one.unexpected] if topology else []
    if not topology or not wrong:
        return
    first, count = wrong[0], sum(group.unexpected for group in topology.groups)
    node = {one.rank: one.node for one in phase.ranks}
    ends = [node.get(first.source, "?"), node.get(first.destination, "?")]
    where = f"inside {ends[0]}" if first.inside else f"from {ends[0]} to {ends[1]}"
    more = f"; {count} such links" if count > 1 else ""
    side = "inside" if all(one.inside for one in wrong) else "transports"
    known = _known(phase, lambda name, text: "transports" in name and side in name)
    text = f"rank {first.source} to rank {first.destination}: {first.unexpected}"
    yield Highlight(
        f"{first.transport} {where}",
        f"{text}{more}{known}",
        phase.phase,
        f"{anchor}-topology",
        bool(known),
    )


def _metrics(phase: PhaseRecord, anchor: str) -> Iterator[Highlight]:
    """One thing for each phase: the metric that is furthest off, and the names of the others."""
    found = [(name, *off) for name, one in phase.metrics.items() if (off := _off(name, one))]
    if not found:
        return
    found.sort(key=lambda one: -one[1])
    name, share, against = found[0]
    metric = phase.metrics[name]
    value = f"{name} is {show_number(metric.value)} {unit_words(metric.unit)}".rstrip()
    also = f"; also {listed([one[0] for one in found[1:]])}" if found[1:] else ""
    told, _ = changed_since(phase.changed)
    since = f". Since the last good run: {listed(told)}" if told else ""
    what = against if math.isinf(share) else f"{name} {against}"
    names = re.compile(rf"\b({'|'.join(re.escape(one[0]) for one in found)})\b")
    known = _known(phase, lambda name, text: names.search(text))
    text = f"{value}{also}{known}{since}"
    yield Highlight(what, text, phase.phase, f"{anchor}-metrics", bool(known))


def changed_since(changed: Iterable[str]) -> tuple[list[str], str]:
    """What changed since the last good run, and that run, which each entry of a record names."""
    parts = [one.rpartition(LAST_GOOD) for one in changed]
    runs = {tail.removesuffix(")") for _, found, tail in parts if found}
    if len(runs) > 1:
        return ["".join(one) for one in parts], ""
    return [head if found else tail for head, found, tail in parts], "".join(runs)


def _off(name: str, metric: MetricRecord) -> tuple[float, str] | None:
    """By what share a metric is off, and the words for it; None where nothing says that it is."""
    reference, past, value = metric.reference, metric.past, metric.value
    if isinstance(value, str):
        return math.inf, f"{value}, which is not a number"
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
    """Whether no metric of a run is worse than a warning beside its past."""
    metrics = [one for phase in record.phases for one in phase.metrics.values()]
    return not any(
        isinstance(one.value, str)
        or one.met is False
        or (one.past is not None and one.past["status"] == "fail")
        for one in metrics
    )


def _share(value: float, base: float, words: str) -> tuple[float, str]:
    share = (value / base - 1) * 100
    return abs(share), f"{share:+.1f} % against {words} {show(base)}"


def _criteria(phase: PhaseRecord, anchor: str) -> Iterator[Highlight]:
    red = [name for name, one in phase.criteria.items() if one.result == "failed"]
    if phase.outcome != "passed" or not red:
        return
    said = phase.criteria[red[0]].text.strip().splitlines()
    what = f"{len(red)} of {len(phase.criteria)} criteria" if red[1:] else red[0]
    text = listed(red) if red[1:] else said[0] if said else ""
    yield Highlight(what, text, phase.phase, f"{anchor}-criteria")


def _differences(record: RunRecord) -> Iterator[Highlight]:
    for one in record.differences:
        usual, *others = one.values.items()
        said = "; ".join(f"{value} on {listed(nodes)}" for value, nodes in others[:MAX_NAMES])
        text = f"{said}; {usual[0]} on the other {len(usual[1])}"
        yield Highlight(one.fact, text, "nodes", "nodes")


def _gates(proof: ProofRecord) -> Iterator[Highlight]:
    for gate in proof.gates:
        if gate.status != "proven":
            text = "; ".join(gate.reasons)
            yield Highlight(f"{gate.fault}: {gate.status}", text, "proof", "proof")


def listed(names: Iterable[str]) -> str:
    """Names in one line, and how many more there are."""
    held = list(names)
    more = f" and {len(held) - MAX_NAMES} more" if len(held) > MAX_NAMES else ""
    return ", ".join(held[:MAX_NAMES]) + more


def words(outcome: str) -> str:
    """An outcome as people read it."""
    return outcome.replace("_", " ")


def unit_words(unit: str) -> str:
    """A metric's unit; nothing for a plain number."""
    return "" if unit == "1" else unit


def show_number(value: float | str | None) -> str:
    """A number of the record in words; a dash where there is none."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else show(value)
