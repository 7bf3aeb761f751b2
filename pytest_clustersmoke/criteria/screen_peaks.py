"""Judges what the devices of screened nodes reached, by the judge of a phase's devices.

A wrong answer is damage. Slow is what lies outside the figures of the other nodes, which each were
measured alone. A node that could not measure what at least half of the nodes could is not as the
others, and fails. What most nodes could not measure, or has too few peers, is skipped with its
reason: it speaks neither for nor against the node.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from ..evidence.device_links import PAIRS
from ..evidence.node_measurement import MeasuredDevice, NodeMeasurement
from ..evidence.screen_files import NodeAnswer
from ..evidence.telemetry import parse_int
from ..text import FAILURE, plural
from .device_answers import find_outvoted
from .device_peaks import Place, SlowFigure, judge_figures, kind_of
from .link_speed import (
    FloorMiss,
    PlacedCard,
    PlacedPair,
    choose_link,
    find_below_floor,
    find_unusable,
    judge_cards,
    judge_pairs,
)
from .screen_judge import FEWEST_CPUS, CheckJudgement

PEAKS = "peaks"
WRONG, SLOW, FAILED = "device-wrong-answer", "device-slow", "peaks-failed"
# In the order in which they count, and what to do.
FIXES = {
    WRONG: "take it out of service",
    SLOW: "look for throttling, a power cap, a narrow link or other work on the node",
    FAILED: "read the log of its job (screen/job_logs), and look at the device on the node",
}
UNASKED = CheckJudgement("skipped", "what its devices reach is not measured (`peaks: never`)")
SHARE = "not compared: the job does not have all cores of the node"
TIMED_OUT = (124, 137)  # the statuses of `timeout`

Measured = Mapping[str, NodeMeasurement]


def judge_peaks(
    answers: Sequence[NodeAnswer],
    measured: Measured,
    limit_s: float,
    spared: Mapping[str, str] | None = None,
    explain: Callable[[str], str] = lambda node: "",
) -> dict[str, CheckJudgement]:
    """By node, what its devices' figures show; `limit_s` is the time that it had for them. `spared`
    says of nodes why their measurement was cut short, for no fault of theirs; `explain` what the
    log of a node's job gives as the cause."""
    spared = spared or {}
    whole = {answer.node: answer.cpu for answer in answers if answer.work_s}
    texts, compared = _compare(whole, measured)
    linked = {
        answer.node: whole[answer.node]
        for answer in answers
        if answer.node in whole and not _hides_gpus(answer, measured[answer.node])
    }
    cards = [*_place_cards(linked, measured)]
    silent = [
        (node, ": ".join(filter(None, (why, explain(node)))))
        for node, why in _find_silent(answers, measured, limit_s, spared)
    ]
    found = {
        WRONG: [*_find_wrong(measured)],
        SLOW: [*texts, *_find_slow_pairs(linked, measured), *_find_slow_cards(cards)],
        FAILED: [*silent, *_find_unable(measured), *_find_unusable(cards)],
    }
    blamed = {id: _group_texts(pairs) for id, pairs in found.items()}
    judged: dict[str, CheckJudgement] = {}
    for answer in answers:
        node = answer.node
        if bad := {id: by_node[node] for id, by_node in blamed.items() if node in by_node}:
            fixes = "; ".join(FIXES[id] for id in bad)
            judged[node] = CheckJudgement(
                "failed", "; ".join(bad.values()), next(iter(bad)), fixes, FAILURE
            )
        elif why := _explain_skip(answer, measured[node], limit_s, spared, node in compared):
            is_known = measured[node].figures or node in spared
            kinds = frozenset[str]() if is_known else frozenset({FAILED})
            judged[node] = CheckJudgement("skipped", why, open=kinds)
        else:
            judged[node] = CheckJudgement("passed")
    return judged


def _find_silent(
    answers: Sequence[NodeAnswer], measured: Measured, limit_s: float, spared: Collection[str]
) -> Iterator[tuple[str, str]]:
    """The nodes without a figure, where at least half of the nodes have one, and why."""
    silent = [
        answer
        for answer in answers
        if not measured[answer.node].figures and answer.node not in spared
    ]
    able = sum(bool(found.figures) for found in measured.values())
    for answer in silent if len(silent) <= able else ():
        why = _explain_missing(answer, measured[answer.node], limit_s)
        yield answer.node, f"not measured, unlike {plural(able, 'other node')}: {why}"


def _find_unable(measured: Measured) -> Iterator[tuple[str, str]]:
    """The nodes with a device that could not measure something, where at least half of the nodes
    with this model could, and why."""
    tried: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    failed: defaultdict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for node, found in measured.items():
        for device in found.devices:
            own = ("", device.identity)
            names = {figure.name for figure in found.figures if figure.device in own}
            for name in {*names, *device.not_measured, *([PAIRS] if device.pairs else [])}:
                tried[device.model, name].add(node)
            for name, why in device.not_measured.items():
                text = f"{device.identity} could not measure {name}: {why}"
                failed[device.model, name].setdefault(node, text)
    for key, texts in failed.items():
        if 2 * len(texts) <= len(tried[key]):
            yield from texts.items()


def _find_unusable(cards: Sequence[PlacedCard]) -> Iterator[tuple[str, str]]:
    for made in find_unusable(cards):
        why = made.card.why
        yield made.node, f"NCCL cannot use its {made.card}, as it can on other nodes: {why}"


def _find_wrong(measured: Measured) -> Iterator[tuple[str, str]]:
    """The nodes with a device that computes wrongly, and how that shows."""
    devices = [(node, device) for node, found in measured.items() for device in found.devices]
    for node, device in devices:
        if device.wrong:
            calls = plural(device.calls, "equal multiplication")
            yield (
                node,
                f"{device.identity} computes wrongly: it gave another answer in {device.wrong} "
                f"of {calls} ({device.precision})",
            )
    voters = [(node, each) for node, each in devices if each.on_gpu and each.answer is not None]
    kinds = [(device.model, device.precision, device.versions) for _, device in voters]
    for number, votes in find_outvoted(kinds, [device.answer for _, device in voters]):
        node, device = voters[number]
        if not device.wrong:
            yield (
                node,
                f"{device.identity} computes another product than the {votes} others of its kind, "
                f"each time ({device.precision})",
            )


def _hides_gpus(answer: NodeAnswer, found: NodeMeasurement) -> bool:
    """Whether the node has GPUs that its job cannot see: the same numbers may be other GPUs on
    other nodes."""
    return (parse_int(answer.facts.get("gpus_on_bus")) or 0) > len(found.devices)


def _compare(
    whole: Mapping[str, str], measured: Measured
) -> tuple[list[tuple[str, str]], set[str]]:
    """The nodes with slow devices, and how slow they are; and all nodes with a figure that was
    compared. Only nodes that the job had alone are: node -> the model of its CPU."""
    shared = _find_shared(measured)
    pairs = [
        (figure, _find_place(figure.device, found.devices, whole[node], shared))
        for node, found in measured.items()
        if node in whole
        for figure in found.figures
    ]
    kinds = Counter(kind_of(figure, place) for figure, place in pairs)
    low = find_below_floor([figure for figure, _ in pairs], [place.link for _, place in pairs])
    pairs = [(made, at) for made, at in pairs if kinds[kind_of(made, at)] >= FEWEST_CPUS]
    figures, places = [figure for figure, _ in pairs], [place for _, place in pairs]
    verdict = judge_figures(figures, places, whole_nodes=True)
    named: list[SlowFigure | FloorMiss] = [*low, *verdict.slow]
    texts = [
        (found.figure.node, f"{found.figure.device or 'the node'}: {found}") for found in named
    ]
    return texts, {figures[number].node for number in verdict.compared}


def _find_slow_pairs(linked: Mapping[str, str], measured: Measured) -> Iterator[tuple[str, str]]:
    placed = [
        (device, PlacedPair(node, device.model, device.local_rank or 0, linked[node], pair))
        for node, found in measured.items()
        if node in linked
        for device in found.devices
        for pair in device.pairs
    ]
    slow, _ = judge_pairs([made for _, made in placed])
    for found in slow:
        yield found.made.node, f"{placed[found.at][0].identity}: {found}"


def _place_cards(linked: Mapping[str, str], measured: Measured) -> Iterator[PlacedCard]:
    for node, found in measured.items():
        for device in found.devices if node in linked else ():
            for card in device.cards:
                yield PlacedCard(node, device.model, linked[node], card)


def _find_slow_cards(cards: Sequence[PlacedCard]) -> Iterator[tuple[str, str]]:
    for found in judge_cards(cards)[0]:
        yield found.made.node, str(found)


def _find_shared(measured: Measured) -> set[str]:
    """The devices of several nodes, which are virtual: they measure at the same time."""
    owned = [{device.identity for device in found.devices} for found in measured.values()]
    counts = Counter(identity for identities in owned for identity in identities)
    return {identity for identity, count in counts.items() if count > 1}


def _find_place(
    device: str, devices: Sequence[MeasuredDevice], cpu: str, shared: Collection[str]
) -> Place:
    """Where a figure was measured; the first rank measures the node itself."""
    for found in devices:
        if found.identity == device or not device:
            place = (found.model, found.local_rank, found.on_gpu)
            link = None if device in shared else choose_link(found.link, found.model)
            return Place(*place, cpu, all_cores=True, near=found.near, link=link)
    return Place("", None, False, cpu, all_cores=True)


def _explain_skip(
    answer: NodeAnswer,
    found: NodeMeasurement,
    limit_s: float,
    spared: Mapping[str, str],
    is_compared: bool,
) -> str:
    """Why nothing can be said of a node; empty if something can."""
    if not found.figures and answer.node in spared:
        return f"not measured: {spared[answer.node]}"
    if not found.figures:
        return f"not measured: {_explain_missing(answer, found, limit_s)}"
    for device in found.devices:
        for name, why in device.not_measured.items():
            return f"{device.identity} could not measure {name}: {why}"
    if not any(device.calls for device in found.devices):
        return "not measured: no rank multiplied matrices whose product is known"
    if not answer.work_s:
        return SHARE
    few = f"not compared: fewer than {FEWEST_CPUS} devices of its kind were measured"
    return "" if is_compared else few


def _explain_missing(answer: NodeAnswer, found: NodeMeasurement, limit_s: float) -> str:
    packages = answer.facts.get("packages")
    if isinstance(packages, Mapping) and not packages.get("torch"):
        return "torch is not installed there"
    if found.status in TIMED_OUT:
        return f"no figures within {limit_s:g} s (limits.screen_peaks_s)"
    if found.status is not None:
        return f"its measurement ended with status {found.status}; see the log of its job"
    return "its job ended before it had figures"


def _group_texts(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    texts: defaultdict[str, list[str]] = defaultdict(list)
    for node, text in pairs:
        texts[node].append(text)
    return {node: "; ".join(found) for node, found in texts.items()}
