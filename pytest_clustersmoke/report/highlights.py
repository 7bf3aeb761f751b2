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

from ..config.metrics import describe_distance, show
from ..evidence.job_results import NOT_MEASURED
from ..evidence.metric import BETWEEN, INSIDE
from ..evidence.node_naming import NamedNodeRecord
from ..evidence.node_observation import SLOW
from ..evidence.run_counts import CriterionRecord, ProofRecord
from ..evidence.run_record import (
    DifferenceRecord,
    MetricRecord,
    PhaseRecord,
    RankRecord,
    RunRecord,
)
from ..evidence.screen_record import FAILING, NO_ANSWER, ScreenedNode
from ..text import outcome_words, shorten
from .named_nodes import describe_first, list_shared, remark_on_node, title_node
from .node_records import fact_words
from .phase_table import RATES, describe_isolation

MAX_EACH = 3  # of each kind on the first screen; the rest is counted
MAX_NAMES = MAX_LINKS = 4
NAMED = "named"  # the kind of a node that several phases name
THROUGHPUT = {"steps_per_s", "steady_steps_per_s", *RATES}
# These say of the same steps how long they took.
SPEED = THROUGHPUT | {"step_time_p50_s", "step_time_p95_s", "own_step_s"}


@dataclass(frozen=True)
class HighlightLink:
    """What one phase says, its place on the page, and the line that shows it."""

    where: str
    anchor: str
    text: str
    file: str
    line: int

    @property
    def name(self) -> str:
        return self.where


@dataclass(frozen=True)
class Highlight:
    """One thing that stands out: its title, a sentence with figures, and its place on the page."""

    title: str
    text: str
    where: str  # the name of the phase, or of the part of the page
    anchor: str
    is_warning: bool = False  # `known` covers it, or the phases that it is about passed
    node: str = ""  # the one that it is about, if it has links
    links: tuple[HighlightLink, ...] = ()  # in place of `where`: what each phase says
    more_links: tuple[HighlightLink, ...] = ()  # of which the page shows only where they lead

    @property
    def name(self) -> str:
        """What a link to it says: the phase, or what it is about in a part of the page."""
        return self.title if self.where == self.anchor else self.where


@dataclass(frozen=True)
class HighlightGroup:
    """The highlights of one kind; of `rest` the page shows only where they are."""

    id: str
    title: str
    tone: Literal["bad", "warn"]
    items: list[Highlight]
    rest: list[Highlight]

    @property
    def more(self) -> int:
        return len(self.rest)

    @property
    def places(self) -> set[str]:
        """The phases and parts of the page about which it says something."""
        links = {link.where for item in self.items for link in item.links}
        return {item.where for item in self.items} | links


def find_highlights(record: RunRecord, anchors: dict[str, str]) -> list[HighlightGroup]:
    """The highlights, failures before warnings, the worst kind first. `anchors` maps phases to
    their HTML anchors; of a screen, nodes."""
    if record.proof is not None:
        return list(_group("gates", "Gates not proven", "bad", _gates(record.proof)))
    if record.screen is not None:
        failing, silent = map(record.screen.of, (FAILING, NO_ANSWER))
        return [
            *_group("nodes", "Bad node", "bad", _nodes(failing, anchors)),
            *_group("silent", "No answer", "warn", _nodes(silent, anchors)),
            *_group("differences", "Nodes differ", "warn", _differences(record, "screen")),
        ]
    phases = [(phase, anchors[phase.phase]) for phase in record.phases]
    shared = list_shared(record)
    shown = shared[:MAX_EACH]
    groups = [
        *_group(NAMED, "Named by several phases", "bad", _shared_nodes(record, shared, anchors)),
        *_group("jobs", "Failed job", "bad", _other(_each(_failed_jobs, phases), shown)),
        *_group("stragglers", "Slow rank", "bad", _other(_each(_stragglers, phases), shown)),
        *_group("links", "Unexpected transport", "bad", _each(_links, phases)),
        *_group("metrics", "Off reference or past runs", "bad", _each(_metric_failures, phases)),
        *_group("criteria", "Failed criteria", "bad", _each(_criteria, phases)),
        *_group("unmeasured", "Not measured", "warn", _each(_unmeasured_jobs, phases)),
        *_group("warnings", "Off past runs, a warning", "warn", _each(_metric_warnings, phases)),
        *_group("differences", "Nodes differ", "warn", _differences(record, "nodes")),
    ]
    return sorted(groups, key=lambda group: group.tone == "warn")


def _group(
    name: str, title: str, tone: Literal["bad", "warn"], items: Iterable[Highlight]
) -> Iterator[HighlightGroup]:
    listed = list(items)
    if listed:
        worst = "warn" if all(item.is_warning for item in listed) else tone
        yield HighlightGroup(name, title, worst, listed[:MAX_EACH], listed[MAX_EACH:])


def _each(
    find: Callable[[PhaseRecord, str], Iterator[Highlight]], phases: list[tuple[PhaseRecord, str]]
) -> Iterator[Highlight]:
    for phase, anchor in phases:
        yield from find(phase, anchor)


def _shared_nodes(
    record: RunRecord, shared: Iterable[NamedNodeRecord], anchors: dict[str, str]
) -> Iterator[Highlight]:
    """Nodes that several phases name, each with what every phase says. It is a warning where all of
    these phases passed, or are known to fail."""
    bad = {phase.phase for phase in record.phases if _is_bad(phase)}
    parts = {(one.phase, True): "-ranks" for one in record.phases if one.ranks}
    parts |= {(one.phase, False): "-findings" for one in record.phases if one.findings}
    new = {(one.phase, node) for one in record.phases if one.places for node in one.places.first}
    for node in shared:
        links = tuple(
            HighlightLink(
                naming.phase,
                anchors[naming.phase] + parts.get((naming.phase, naming.finding == SLOW), ""),
                f"{naming.finding}: {naming.cause}"
                + ("; for the first time here" if (naming.phase, node.node) in new else ""),
                naming.file,
                naming.line,
            )
            for naming in node.named
        )
        yield Highlight(
            title_node(node),
            "; ".join(remark_on_node(node)),
            "nodes",
            "nodes",
            is_warning=not bad & {*node.phases},
            node=node.node,
            links=links[:MAX_LINKS],
            more_links=links[MAX_LINKS:],
        )


def _is_bad(phase: PhaseRecord) -> bool:
    red = any(criterion.result == "failed" for criterion in phase.criteria.values())
    return red or (phase.outcome != "passed" and phase.known is None)


def _other(items: Iterable[Highlight], shown: Iterable[NamedNodeRecord]) -> Iterator[Highlight]:
    """The highlights that are not part of a shown one about a node."""
    said = {(naming.phase, naming.cause) for node in shown for naming in node.named}
    slow = {
        (naming.phase, node.node)
        for node in shown
        for naming in node.named
        if naming.finding == SLOW
    }
    for item in items:
        _, _, node = item.title.rpartition(" on ")
        if (item.where, item.title) not in said and (item.where, node) not in slow:
            yield item


def _failed_jobs(phase: PhaseRecord, anchor: str) -> Iterator[Highlight]:
    if phase.outcome not in {"passed", *NOT_MEASURED}:
        yield _job(phase, anchor)


def _unmeasured_jobs(phase: PhaseRecord, anchor: str) -> Iterator[Highlight]:
    """Jobs that show nothing about the cluster, such as one that never ran."""
    if phase.outcome in NOT_MEASURED:
        yield _job(phase, anchor)


def _job(phase: PhaseRecord, anchor: str) -> Highlight:
    first = next((finding for finding in phase.findings if finding.primary), None)
    title = first.cause if first else phase.reason or "no reason was recorded"
    hosts = f" on {name_list(first.hosts)}" if first and first.hosts else ""
    target = f"{anchor}-findings" if phase.findings else anchor
    known = f", known until {phase.known.until}" if phase.known else ""
    new = describe_first(phase.places)
    text = f"{outcome_words(phase.outcome)}{hosts}{known}" + (f"; it {new}" if new else "")
    isolated = describe_isolation(phase)
    text += f"; isolated: {isolated}" if isolated else ""
    return Highlight(title, text, phase.phase, target, bool(known))


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
    """How the rank compares with the median of the others: by the part of its steps until it waits
    for others, or by the step that it repeated alone, whichever shows more."""
    others = [other for other in ranks if other is not rank]
    times = []
    if rank.own_s and (own := [other.own_s.p50 for other in others if other.own_s]):
        times.append(("own part of a step", rank.own_s.p50, statistics.median(own)))
    if rank.own_step_s and (alone := [other.own_step_s for other in others if other.own_step_s]):
        times.append(("own step, repeated alone,", rank.own_step_s, statistics.median(alone)))
    if not times:
        return "it is slower than the others"
    words, seconds, usual = max(times, key=lambda time: time[1] / time[2] if time[2] else math.inf)
    step = f"; a whole step takes {_ms(rank.step_s.p50)}" if rank.step_s else ""
    return f"its {words} takes {_ms(seconds)}, that of the others {_ms(usual)}{step}"


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


@dataclass(frozen=True)
class _Deviation:
    """A metric that is off: by which share, in which words, and whether that is a failure."""

    name: str
    metric: MetricRecord
    share: float
    words: str

    @property
    def failed(self) -> bool:
        past = self.metric.past
        return self.metric.met is False or bool(
            isinstance(self.metric.value, str) or (past and past["status"] == "fail")
        )

    @property
    def order(self) -> tuple[bool, bool, bool, float]:
        """No number at all, then references, then throughput before what follows from it."""
        is_number = not isinstance(self.metric.value, str)
        return is_number, self.metric.met is not False, self.name not in THROUGHPUT, -self.share


def _metrics(phase: PhaseRecord, anchor: str, failed: bool) -> Iterator[Highlight]:
    """One highlight per phase, of its failures or of its warnings: the metric that leads, and the
    names of the others. A warning that follows from a failed throughput is named there."""
    off = sorted(_deviations(phase), key=lambda deviation: deviation.order)
    failures = [deviation for deviation in off if deviation.failed]
    is_slow = any(deviation.name in SPEED for deviation in failures)
    following = [d for d in off if not d.failed and is_slow and d.name in SPEED]
    listed = failures + following if failed else [d for d in off if d not in failures + following]
    if not listed:
        return
    first, *others = listed
    value = f"{first.name} is {show_number(first.metric.value)} {unit_words(first.metric.unit)}"
    also = f"; also {name_list([other.name for other in others])}" if others else ""
    since = f". Since the last good run: {name_list(phase.changed)}" if phase.changed else ""
    title = first.words if math.isinf(first.share) else f"{first.name} {first.words}"
    known = _known(
        phase, {kind for deviation in listed for kind in _failed_kinds(deviation.metric)}
    )
    text = f"{value.rstrip()}{also}{known}{since}"
    yield Highlight(title, text, phase.phase, f"{anchor}-metrics", bool(known))


def _metric_failures(phase: PhaseRecord, anchor: str) -> Iterator[Highlight]:
    yield from _metrics(phase, anchor, failed=True)


def _metric_warnings(phase: PhaseRecord, anchor: str) -> Iterator[Highlight]:
    yield from _metrics(phase, anchor, failed=False)


def _deviations(phase: PhaseRecord) -> Iterator[_Deviation]:
    for name, metric in phase.metrics.items():
        if off := _off(name, metric):
            yield _Deviation(name, metric, *off)


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
        words = describe_distance(value, reference.value, "the reference", metric.unit)
        return abs(value / reference.value - 1), words
    if metric.met is False:
        return math.inf, "outside its reference"
    if past is None or past["status"] not in ("warn", "fail"):
        return None
    if not past["median"]:
        return math.inf, f"{name} is off its past runs"
    others = " on other versions" if past.get("other_versions") else ""
    words = describe_distance(value, past["median"], "the median", metric.unit)
    return abs(value / past["median"] - 1), f"{words} of {past['runs']} runs{others}"


def _criteria(phase: PhaseRecord, anchor: str) -> Iterator[Highlight]:
    """The failed criteria whose failure has no highlight of its own."""
    failed = {
        name: criterion
        for name, criterion in phase.criteria.items()
        if criterion.result == "failed" and not _is_shown(criterion, phase)
    }
    if phase.outcome != "passed" or not failed:
        return
    first, *more = failed
    lines = failed[first].text.strip().splitlines()
    title = f"{len(failed)} of {len(phase.criteria)} criteria" if more else first
    text = name_list(failed) if more else lines[0] if lines else ""
    yield Highlight(title, text, phase.phase, f"{anchor}-criteria")


def _is_shown(criterion: CriterionRecord, phase: PhaseRecord) -> bool:
    """Whether a highlight of a rank, link or metric shows what failed the criterion."""
    kinds = set(criterion.judged)
    links = phase.topology.links if phase.topology else []
    shown = {INSIDE if link.inside else BETWEEN for link in links if link.unexpected}
    shown |= {"stragglers"} if any(rank.behind for rank in phase.ranks) else set()
    metrics = [deviation.metric for deviation in _deviations(phase)]
    texts = [metric.text for metric in metrics]
    texts += [metric.past["text"] for metric in metrics if metric.past]
    lines = criterion.text.strip().splitlines()
    of_metrics = bool(lines) and all(any(text and text in line for text in texts) for line in lines)
    return of_metrics or bool(kinds & shown and kinds <= shown | {"transports"})


def _differences(record: RunRecord, anchor: str) -> Iterator[Highlight]:
    for difference in record.differences:
        yield Highlight(difference.fact, describe_difference(difference), "nodes", anchor)


def describe_difference(difference: DifferenceRecord) -> str:
    """The nodes whose fact is not that of most nodes, and what most have."""
    (usual, most), *others = (
        (fact_words(value, difference.fact), nodes) for value, nodes in difference.values.items()
    )
    rest = "; ".join(f"{value} on {name_list(nodes)}" for value, nodes in others[:MAX_NAMES])
    return f"{rest}; {usual} on the other {len(most)}"


def _nodes(nodes: Iterable[ScreenedNode], anchors: dict[str, str]) -> Iterator[Highlight]:
    """The nodes of a screen that are not fit."""
    for node in nodes:
        yield Highlight(node.node, node.reason, node.node, anchors[node.node])


def _gates(proof: ProofRecord) -> Iterator[Highlight]:
    for gate in proof.gates:
        if gate.status != "proven":
            text = "; ".join(gate.reasons)
            yield Highlight(f"{gate.fault}: {gate.status}", text, "proof", "proof")


def name_list(names: Iterable[str]) -> str:
    """Names on one line; of many, the first ones and how many more there are."""
    return shorten(list(names), MAX_NAMES)


def unit_words(unit: str) -> str:
    """A metric's unit; nothing for a plain number."""
    return "" if unit == "1" else unit


def show_number(value: float | str | None) -> str:
    """A number of the record as text; a dash if there is none."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else show(value)
