"""What index.html's template needs beside the record: anchors, links to files, counts, columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote, unquote

from markupsafe import Markup

from ..config.metrics import show
from ..evidence.gpu_model import ANY_GPU
from ..text import plural
from .highlights import HighlightGroup, changed_since, stands_out, words
from .node_records import UNKNOWN, common_facts
from .page_ranks import LinksView, RanksView, links_view, ranks_view
from .run_record import FactsRecord, HardwareRecord, PhaseRecord, Result, RunRecord, SpreadRecord
from .terminal import RATES

TONES = {
    "FIT": "good",
    "PROVEN": "good",
    "UNFIT": "bad",
    "NOT PROVEN": "bad",
    "passed": "good",
    "failed": "bad",
    "cluster_failed": "bad",
    "known": "warn",
    "skipped": "none",
}
# Columns of the table of nodes, by the names of node_facts.py.
NODE_FACTS = ("GPUs", "GPU", "driver", "kernel", "python", "package torch", "memory_bytes")
RESULTS: tuple[Result, ...] = ("failed", "known", "passed", "skipped")
LONG_NAME = re.compile(r"\w{30,}")
PERCENTILES = ("p5", "p25", "p50", "p75", "p95")


@dataclass(frozen=True)
class PhaseSection:
    """A phase, and what the page says around it."""

    record: PhaseRecord
    anchor: str
    folder: str  # of its evidence, relative to the page
    state: str  # the job's outcome; of one that passed, with its red criteria
    tone: str  # of the worst of job and criteria
    changed: str  # since the last good run, which is named before
    open: bool  # whether there is something to look at
    counts: list[tuple[str, int]]  # criteria by result, the failed first
    rate: str  # the metric that is its rate; empty where it has none
    ranks: RanksView
    links: LinksView


@dataclass(frozen=True)
class FactCell:
    """A node's fact; `differs`: most nodes have another, though they should be alike in it."""

    text: str
    differs: bool


@dataclass(frozen=True)
class PageContent:
    """Everything that the template is given beside the record."""

    stands_out: list[HighlightGroup]
    phases: list[PhaseSection]
    versions: list[tuple[str, list[tuple[str, list[str]]]]]  # name -> value -> phases
    node_columns: list[str]
    node_rows: list[tuple[FactsRecord, list[FactCell]]]
    scope: str  # what was chosen, where the sentence does not say it
    optional: list[str]  # kinds that are not required, and were not measured
    had_past: bool  # a run of one of these phases came before


def view(record: RunRecord) -> PageContent:
    """The view of a record whose texts are clean."""
    anchors = _anchors([phase.phase for phase in record.phases])
    standing = stands_out(record, anchors)
    places = {item.where for group in standing for item in group.items}
    phases = [_phase(one, anchors, places) for one in record.phases]
    columns, rows = _node_table(record)
    return PageContent(
        stands_out=standing,
        phases=phases,
        versions=_versions(record.phases),
        node_columns=columns,
        node_rows=rows,
        scope=_scope(record),
        optional=_optional(record),
        had_past=any(one.trend and one.trend["run_ids"] for one in record.phases),
    )


def _node_table(record: RunRecord) -> tuple[list[str], list[tuple[FactsRecord, list[FactCell]]]]:
    """The columns of the table of nodes, and each node with its cells."""
    by_node = {node.node: dict(common_facts(node.facts)) for node in record.nodes}
    columns = [name for name in NODE_FACTS if any(name in facts for facts in by_node.values())]
    usual = {one.fact: next(iter(one.values)) for one in record.differences}
    rows = []
    for node in sorted(record.nodes, key=lambda node: _natural(node.node)):
        cells = []
        for name in columns:
            value = by_node[node.node].get(name, UNKNOWN)
            differs = bool(node.facts) and value != usual.get(name, value)
            cells.append(FactCell(fact_words(value, name), differs))
        rows.append((node, cells))
    return columns, rows


def fact_words(value: str, fact: str) -> str:
    """A fact's value as people read it: bytes as GiB."""
    if fact.endswith("_bytes") and value.isdecimal():
        return f"{show(int(value) / 2**30)} GiB"
    return value


def _scope(record: RunRecord) -> str:
    """How many phases ran and what was selected, as far as the sentence does not say it."""
    count = f"{len(record.phases_chosen)} of {len(record.phases_of_cluster)} phases"
    told = [one for one in (count, record.selection) if one and one not in record.sentence]
    return ": ".join(told)


def _optional(record: RunRecord) -> list[str]:
    """Kinds that are not required and could not be judged, with how many phases lack each."""
    if record.proof is not None:
        return []
    phases, required = record.phases, set(record.not_measured)
    counted = Counter(
        kind
        for one in phases
        for kind in one.not_measured
        if f"{one.phase}: {kind} not measured" not in required
    )
    return [
        kind if count == len(phases) else f"{kind} ({count} of {len(phases)} phases)"
        for kind, count in sorted(counted.items())
    ]


def _anchors(names: Iterable[str]) -> dict[str, str]:
    """Phase -> an id of its own that needs no escaping anywhere."""
    made: dict[str, str] = {}
    for number, name in enumerate(names, 1):
        anchor = "phase-" + re.sub(r"[^A-Za-z0-9_-]", "-", name)
        made[name] = f"{anchor}-{number}" if anchor in made.values() else anchor
    return made


def _phase(record: PhaseRecord, anchors: dict[str, str], places: set[str]) -> PhaseSection:
    counted = Counter(one.result for one in record.criteria.values())
    held = [name for name in RATES if name in record.metrics]
    state, tone = _state(record, counted)
    changed, last_good = changed_since(record.changed)
    return PhaseSection(
        record=record,
        anchor=anchors[record.phase],
        folder=f"phases/{quote(record.phase, safe='')}/",
        state=state,
        tone=tone,
        changed=f"{' ' * bool(last_good)}{last_good}: {'; '.join(changed)}",
        open=record.phase in places or record.outcome != "passed",
        counts=[(result, counted[result]) for result in RESULTS if counted[result]],
        rate=held[-1] if held else "",
        ranks=ranks_view(record),
        links=links_view(record),
    )


def _state(record: PhaseRecord, counted: Counter[Result]) -> tuple[str, str]:
    """Words and tone of a phase: a job that passed is not green where a criterion is red."""
    outcome = record.outcome
    if outcome != "passed":
        return words(outcome), "warn" if record.known else TONES.get(outcome, "warn")
    if counted["failed"]:
        return f"{words(outcome)}, {counted['failed']} red", "bad"
    if counted["known"]:
        return f"{words(outcome)}, {counted['known']} known", "warn"
    return words(outcome), "good"


def _versions(phases: Iterable[PhaseRecord]) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """Each version with the phases that ran on it: one value, where all ran on the same."""
    found: dict[str, dict[str, list[str]]] = {}
    for phase in phases:
        for name, value in phase.versions.items():
            found.setdefault(name, {}).setdefault(value, []).append(phase.phase)
    return [(name, list(values.items())) for name, values in found.items()]


def _natural(name: str) -> list[tuple[int, str]]:
    """node2 before node10."""
    parts = re.split(r"(\d{1,18})", name)  # Python reads no number of thousands of digits
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def evidence_link(there: Callable[[str], bool], folder: str, file: str) -> str:
    """The page's link to a file of the evidence; empty for one that lies elsewhere, or nowhere."""
    if file.startswith("/") or ".." in file.split("/") or not file:
        return ""
    return folder + quote(file) if there(unquote(folder) + file) else ""


def utc(seconds: float | None) -> str:
    """A Unix time in words; a dash where there is none or it is no time."""
    try:
        told = datetime.fromtimestamp(float(seconds or "nan"), timezone.utc)
    except (ValueError, OverflowError, OSError):
        return "-"
    return told.strftime("%Y-%m-%d %H:%M:%S UTC")


def tone(word: str) -> str:
    """good, bad, warn or none: how a verdict, an outcome or a result is shown."""
    return TONES.get(word, "warn")


def allowed(low: float | str | None, high: float | str | None) -> list[tuple[str, Any]]:
    """A reference's bounds as words, each with the number that follows it."""
    if low is None and high is None:
        return [("any value", None)]
    if high is None:
        return [("at least ", low)]
    return [("at most ", high)] if low is None else [("", low), (" to ", high)]


def hardware_words(hardware: HardwareRecord) -> str:
    """What the profile says a node has."""
    count, gpu = hardware.gpus_per_node, hardware.gpu
    devices = (
        plural(count, "device") if gpu in ANY_GPU else f"{count} \N{MULTIPLICATION SIGN} {gpu}"
    )
    return ", ".join(filter(None, (f"{devices} per node", hardware.interconnect)))


def soft(text: str) -> Markup:
    """The text, in which names too long for a phone may be broken after each underscore."""
    from markupsafe import Markup, escape

    escaped = str(escape(text))
    return Markup(LONG_NAME.sub(lambda name: name[0].replace("_", "_<wbr>"), escaped))


def spread_cells(spread: SpreadRecord | None) -> list[float | None]:
    """The percentiles of a spread, in the order of PERCENTILES."""
    return [getattr(spread, name) if spread else None for name in PERCENTILES]
