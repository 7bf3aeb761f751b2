"""What the templates of index.html need beside the record: anchors, links, counts, columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from markupsafe import Markup

from ..evidence.gpu_model import ANY_GPU
from ..evidence.progress_record import LaneState
from ..evidence.run_counts import MissingRecord, Result
from ..evidence.run_record import (
    FactsRecord,
    HardwareRecord,
    PhaseRecord,
    RunRecord,
    SpreadRecord,
)
from ..text import plural, shorten, shorten_lines
from .highlights import HighlightGroup, find_highlights
from .named_nodes import describe_first, describe_usual, find_bad_nodes, title_bad_nodes
from .next_steps import list_next_steps
from .node_records import UNKNOWN, common_facts, fact_words
from .page_curves import CurvesView, curves_view
from .page_ranks import LinksView, RanksView, links_view, ranks_view
from .phase_table import RATES, PhaseVerdict, compare_with_usual, judge_phase
from .verdict import list_absent

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
# Columns of the table of nodes, by the names of node_records.py.
NODE_FACTS = ("GPUs", "GPU", "driver", "kernel", "python", "package torch", "memory_bytes")
RESULTS: tuple[Result, ...] = ("failed", "known", "passed", "skipped")
LONG_NAME = re.compile(r"\w{30,}")
LANE_STATES: dict[LaneState, str] = {
    "named": "named as a cause",
    "silent": "wrote nothing",
    "failed": "raised an exception",
    "unfinished": "ended with the job",
    "done": "done",
}
MAX_PLACES = 8  # nodes of a phase that are named in a line
MAX_STEPS = 8
MAX_FRAGMENT = 160  # characters of a line that a link finds
PERCENTILES = ("p5", "p25", "p50", "p75", "p95")


@dataclass(frozen=True)
class PhaseSection:
    """A phase with everything the page shows about it."""

    record: PhaseRecord
    anchor: str
    folder: str  # of its evidence, relative to the page
    job: str  # the folder of its last job, relative to that; empty if there was one alone
    verdict: PhaseVerdict
    usual: str  # its rate against its past runs
    open: bool  # whether there is something to look at
    counts: list[tuple[str, int]]  # criteria by result, failed ones first
    rate: str  # the metric shown as its rate; empty if it has none
    first: str  # the nodes on which it ran for the first time
    ranks: RanksView
    links: LinksView
    curves: CurvesView
    was_placed: bool  # some rank is known to have had a node
    merged: bool  # ranks that ended alike share a row
    has_losses: bool  # of its marks, if it did not pass

    def criteria_of(self, result: str) -> list[tuple[list[str], str]]:
        """The criteria of this result, each with its text. Those that passed are together, and so
        are those that were skipped for one reason, since the job failed say."""
        named = {name: one for name, one in self.record.criteria.items() if one.result == result}
        if result in ("failed", "known"):
            return [([name], criterion.text) for name, criterion in named.items()]
        by_text: dict[str, list[str]] = {}
        for name, criterion in named.items():
            by_text.setdefault(criterion.text, []).append(name)
        return [(names, text) for text, names in by_text.items()]


@dataclass(frozen=True)
class FactCell:
    """A fact of a node; `differs`: most nodes have another value, although all should be equal."""

    text: str
    differs: bool


@dataclass(frozen=True)
class PageContent:
    """Everything that the templates get besides the record."""

    bad_nodes: str  # in one line; empty without any
    stands_out: list[HighlightGroup]
    phases: list[PhaseSection]
    versions: list[tuple[str, list[tuple[str, list[str]]]]]  # name -> value -> phases
    node_columns: list[str]
    node_rows: list[tuple[FactsRecord, list[FactCell]]]
    next_steps: list[str]
    scope: str  # what was selected, unless the sentence says so
    node_anchors: dict[str, str]  # of the nodes of a screen
    not_measured: list[str]  # each in words, then the phases that this cluster does not run
    optional: list[str]  # kinds that were neither required nor measured
    had_past: bool  # there are earlier runs of these phases
    places: list[tuple[str, str, str, str]]  # phase, its nodes, those new to it, those of earlier


def build_view(record: RunRecord) -> PageContent:
    """The view of a record whose texts are sanitized."""
    named = anchors(phase.phase for phase in record.phases)
    nodes = anchors((node.node for node in record.screen.nodes), "node") if record.screen else {}
    highlights = find_highlights(record, nodes or named)
    places = {place for group in highlights for place in group.places}
    phases = [_phase(phase, named, places, record.missing) for phase in record.phases]
    columns, rows = _node_table(record)
    return PageContent(
        bad_nodes=title_bad_nodes(find_bad_nodes(record)),
        stands_out=highlights,
        phases=phases,
        versions=_versions(record.phases),
        node_columns=columns,
        node_rows=rows,
        next_steps=shorten_lines(list_next_steps(record), MAX_STEPS),
        scope=_scope(record),
        node_anchors=nodes,
        not_measured=_list_unmeasured(record),
        optional=_optional(record),
        had_past=any(phase.trend and phase.trend["run_ids"] for phase in record.phases),
        places=_list_places(record),
    )


def _list_unmeasured(record: RunRecord) -> list[str]:
    """What was not measured; a phase that no test defines is missing and absent."""
    return [*record.not_measured, *list_absent(record, "\n".join(record.not_measured))]


def _list_places(record: RunRecord) -> list[tuple[str, str, str, str]]:
    """What ran where; nothing if none of it ran before."""
    if not any(phase.places and phase.places.runs for phase in record.phases):
        return []
    return [
        (
            phase.phase,
            shorten([node.node for node in phase.nodes], MAX_PLACES),
            shorten(phase.places.first if phase.places else [], MAX_PLACES),
            describe_usual(phase.places),
        )
        for phase in record.phases
        if phase.nodes
    ]


def _node_table(record: RunRecord) -> tuple[list[str], list[tuple[FactsRecord, list[FactCell]]]]:
    """The columns of the table of nodes, and each node with its cells."""
    by_node = {node.node: dict(common_facts(node.facts)) for node in record.nodes}
    columns = [name for name in NODE_FACTS if any(name in facts for facts in by_node.values())]
    odd = {
        (difference.fact, node)
        for difference in record.differences
        for nodes in [*difference.values.values()][1:]
        for node in nodes
    }
    rows = []
    for node in sorted(record.nodes, key=lambda node: natural(node.node)):
        cells = []
        for name in columns:
            value = by_node[node.node].get(name, UNKNOWN)
            cells.append(FactCell(fact_words(value, name), (name, node.node) in odd))
        rows.append((node, cells))
    return columns, rows


def _scope(record: RunRecord) -> str:
    """How many phases were selected and by what, unless the sentence says so."""
    count = f"{len(record.phases_chosen)} of {len(record.phases_of_cluster)} phases"
    count = "" if record.screen is not None else count
    parts = [part for part in (count, record.selection) if part and part not in record.sentence]
    return ": ".join(parts)


def _optional(record: RunRecord) -> list[str]:
    """Kinds that were neither required nor measured, with the number of phases that lack each."""
    if record.proof is not None:
        return []
    phases, required = record.phases, {(entry.phase, entry.kind) for entry in record.missing}
    counted = Counter(
        kind
        for phase in phases
        for kind in phase.not_measured
        if (phase.phase, kind) not in required
    )
    return [
        kind if count == len(phases) else f"{kind} ({count} of {len(phases)} phases)"
        for kind, count in sorted(counted.items())
    ]


def anchors(names: Iterable[str], kind: str = "phase") -> dict[str, str]:
    """Name -> a unique id that needs no escaping."""
    made: dict[str, str] = {}
    for number, name in enumerate(names, 1):
        anchor = f"{kind}-" + re.sub(r"[^A-Za-z0-9_-]", "-", name)
        made[name] = f"{anchor}-{number}" if anchor in made.values() else anchor
    return made


def _phase(
    record: PhaseRecord,
    named: dict[str, str],
    places: set[str],
    missing: Iterable[MissingRecord],
) -> PhaseSection:
    progress = record.progress
    marks = [mark for track in progress.tracks for mark in track.marks] if progress else []
    counted = Counter(criterion.result for criterion in record.criteria.values())
    held = [name for name in RATES if name in record.metrics]
    return PhaseSection(
        record=record,
        anchor=named[record.phase],
        folder=f"phases/{quote(record.phase, safe='')}/",
        job=f"attempt-{record.attempts[-1].attempt}/" if record.attempts else "",
        verdict=judge_phase(record, missing),
        usual=compare_with_usual(record),
        open=record.phase in places or record.outcome != "passed",
        counts=[(result, counted[result]) for result in RESULTS if counted[result]],
        rate=held[-1] if held else "",
        first=describe_first(record.places),
        ranks=ranks_view(record),
        links=links_view(record),
        curves=curves_view(record),
        was_placed=any(rank.node_rank is not None for rank in record.ranks),
        merged=progress is not None and any(len(lane.ranks) > 1 for lane in progress.lanes),
        has_losses=any(mark.loss is not None for mark in marks),
    )


def _versions(phases: Iterable[PhaseRecord]) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """Each version with the phases that ran on it."""
    versions: dict[str, dict[str, list[str]]] = {}
    for phase in phases:
        for name, value in phase.versions.items():
            versions.setdefault(name, {}).setdefault(value, []).append(phase.phase)
    return [(name, list(values.items())) for name, values in versions.items()]


def natural(name: str) -> list[tuple[int, str]]:
    """node2 before node10."""
    parts = re.split(r"(\d{1,18})", name)  # int() refuses thousands of digits
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def evidence_link(exists: Callable[[str], bool], folder: str, file: str) -> str:
    """The link to a file of the evidence; empty if the file is elsewhere or missing."""
    if file.startswith("/") or ".." in file.split("/") or not file:
        return ""
    return folder + quote(file) if exists(unquote(folder) + file) else ""


def text_fragment(excerpt: str) -> str:
    """What makes a link to a file of text lead to this line of it, in browsers that know text
    fragments; they find whole words alone. Empty without a line."""
    line = next(iter(excerpt.strip().splitlines()), "")
    if len(line) > MAX_FRAGMENT:
        line = line[:MAX_FRAGMENT].rpartition(" ")[0]
    return f"#:~:text={quote(line, safe='').replace('-', '%2D')}" if line else ""


def tone(word: str) -> str:
    """How a verdict, an outcome or a result is shown: good, bad, warn or none."""
    return TONES.get(word, "warn")


def bounds_words(low: float | str | None, high: float | str | None) -> list[tuple[str, Any]]:
    """The bounds of a reference as words, each with the number that follows it."""
    if low is None and high is None:
        return [("any value", None)]
    if high is None:
        return [("at least ", low)]
    return [("at most ", high)] if low is None else [("", low), (" to ", high)]


def hardware_words(hardware: HardwareRecord) -> str:
    """The hardware of a node, by the profile."""
    count, gpu = hardware.gpus_per_node, hardware.gpu
    devices = (
        plural(count, "device") if gpu in ANY_GPU else f"{count} \N{MULTIPLICATION SIGN} {gpu}"
    )
    return ", ".join(filter(None, (f"{devices} per node", hardware.interconnect)))


def soft(text: str) -> Markup:
    """The text with line breaks allowed after the underscores of names too long for a phone."""
    from markupsafe import Markup, escape

    escaped = str(escape(text))
    return Markup(LONG_NAME.sub(lambda name: name[0].replace("_", "_<wbr>"), escaped))


def spread_cells(spread: SpreadRecord | None) -> list[float | None]:
    """The percentiles of a spread, in the order of PERCENTILES."""
    return [getattr(spread, name) if spread else None for name in PERCENTILES]


def against(value: float, usual: float | None) -> str:
    """A value against the usual one, in percent; a dash if that is not known."""
    return f"{(value / usual - 1) * 100:+.1f} %" if usual else "-"
