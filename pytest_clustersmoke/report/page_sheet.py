"""The one sheet of paper that a printed page of a run is: header, causes, and a table.

It must fit a page of A4 or Letter, so each text has a bound, and what is left out is counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..evidence.run_record import RunRecord
from ..text import clip, format_span, format_time, plural, shorten, shorten_lines
from .highlights import NAMED, HighlightGroup
from .named_nodes import find_bad_nodes, title_bad_nodes
from .node_records import list_named
from .page_view import hardware_words
from .phase_table import judge_phase, phase_row
from .run_digest import RunDigest
from .screen_lists import COLUMNS as NODE_COLUMNS
from .screen_lists import screen_rows

LINES = 58.0  # of small text below the verdict, on Letter, which is shorter than A4
HEADER_LINES, TITLE_LINES, ROW_LINES = 1.5, 2.3, 0.35  # a line of the header; above texts; a row
# That fit one line: of the header, of a text, of three cells.
HEADER_CHARS, LINE_CHARS, NAME_CHARS, VERDICT_CHARS, TRANSPORT_CHARS = 78, 115, 26, 22, 18
LONG_FACTS = ("Command", "Versions")
MAX_CAUSES, MAX_STEPS, MAX_TEXT, MAX_STEP, MAX_FACT, MAX_CELL = 10, 3, 230, 400, 110, 60
MAX_LONG_FACT = 4 * MAX_FACT
MAX_SENTENCE, MAX_PARTIAL, MAX_NAMED = 400, 240, 4  # the first two as in page.html.j2
# Columns of phase_row, without the last, whose text has no bound.
COLUMNS = (
    *("Phase", "Verdict", "Nodes", "Queue s", "Run s", "Steps/s", "Rate", "Against usual", "GiB"),
    "Transport",
)
NUMBERS = frozenset(COLUMNS[2:9])


@dataclass(frozen=True)
class SheetRow:
    """A row of the sheet's table, with the tone of its verdict."""

    cells: Sequence[str]
    tone: str


@dataclass(frozen=True)
class PrintedSheet:
    """What a printed page says of a run."""

    facts: list[tuple[str, str]]  # what, and in words
    notes: list[tuple[str, list[str]]]  # title, and texts
    columns: Sequence[str]
    rows: list[SheetRow]
    more: str  # the rows that are left out
    numbers: frozenset[str] = NUMBERS  # columns


def make_sheet(record: RunRecord, stands_out: Iterable[HighlightGroup]) -> PrintedSheet:
    """The sheet of a record whose texts are sanitized, and of what stands out in it."""
    digest = RunDigest.of(record, Path())
    causes = [*_list_causes(stands_out, digest)] if record.is_of_cluster else digest.causes
    notes = [(title, texts) for title, texts in _list_notes(causes, digest) if texts]
    columns, rows = _list_rows(record)
    facts = list_facts(record)
    shown = _choose_rows(rows, LINES - _count_header(record) - _count_text(facts, notes))
    left = len(rows) - len(shown)
    return PrintedSheet(
        facts=facts,
        notes=notes,
        columns=columns,
        rows=shown,
        more=_count_left(left, len(shown)) if left else "",
    )


def _count_left(left: int, shown: int) -> str:
    if not shown:
        return f"There is no room for the table: {plural(left, 'row')}."
    return f"and {left:,} more, none of them worse"


def list_facts(record: RunRecord) -> list[tuple[str, str]]:
    """Who ran what, where, when, and on which versions."""
    request = record.request
    moment = find_clock(record)
    ended = "Reported" if record.counts.cut_off else "Ended"
    took = format_span(record.begun, record.written)
    nodes = list_named(record.phases)
    facts = [
        ("Run", record.run_id),
        ("Cluster", f"{record.cluster} ({record.backend}), {hardware_words(record.hardware)}"),
        ("Began", moment(record.begun)),
        (ended, moment(record.written)),
        ("Took", "" if record.counts.cut_off else took),
        ("User", request.user if request else ""),
        ("Host", request.host if request else ""),
        ("Nodes", f"{len(nodes)}: {shorten(nodes, MAX_NAMED)}" if nodes else ""),
        ("Selected", record.selection),
        ("Command", request.command if request else ""),
        ("Versions", ", ".join(_list_versions(record))),
    ]
    return [
        (name, clip(text, MAX_LONG_FACT if name in LONG_FACTS else MAX_FACT))
        for name, text in facts
        if text
    ]


def _list_versions(record: RunRecord) -> Iterator[str]:
    yield f"pytest-clustersmoke {record.package_version}"
    versions: dict[str, dict[str, None]] = {}
    for phase in record.phases:
        for name, value in phase.versions.items():
            versions.setdefault(name, {})[value] = None
    for name, values in versions.items():
        yield f"{name} {shorten([*values], 2, ' or ')}"


def find_clock(record: RunRecord) -> Callable[[float | None], str]:
    """What shows a time of this run: in the local time of where it began, and in UTC."""
    return lambda seconds: format_time(seconds, record.utc_offset_s)


def _list_causes(groups: Iterable[HighlightGroup], digest: RunDigest) -> Iterator[str]:
    """What stands out, and every cause that is of no phase in which something does."""
    named = set()
    yield from digest.named_nodes
    for group in groups:
        if group.id == NAMED:
            continue
        for item in group.items:
            named.add(f"{item.where}: ")
            yield f"{item.where}: {group.title.lower()}: {item.title}: {item.text}"
        if group.more > 0:
            yield f"{group.title.lower()}: and {group.more:,} more"
    yield from (cause for cause in digest.causes if not cause.startswith(tuple(named)))


def _list_notes(causes: Iterable[str], digest: RunDigest) -> Iterator[tuple[str, list[str]]]:
    """The texts of the sheet, by title."""
    yield "Causes", shorten_lines([clip(cause, MAX_TEXT) for cause in causes], MAX_CAUSES)
    yield "What to do next", shorten_lines([clip(s, MAX_STEP) for s in digest.next], MAX_STEPS)
    for title, texts in (("Known", digest.known), ("Changed", digest.changes)):
        yield title, [clip(shorten(texts, MAX_NAMED, "; "), MAX_TEXT)] if texts else []


def _count_header(record: RunRecord) -> float:
    """How many lines the header takes, beside one for the cluster and one for the sentence."""
    what = f"{record.cluster}{hardware_words(record.hardware)}"
    sentence = clip(record.sentence, MAX_SENTENCE)
    partial = ""
    if record.partial or record.interrupted:
        partial = f"Partial report. {clip(record.partial, MAX_PARTIAL)}"
    bad = title_bad_nodes(find_bad_nodes(record))
    lines = [math.ceil(len(text) / HEADER_CHARS) for text in (what, sentence, bad, partial)]
    return HEADER_LINES * (sum(lines) - 2 + 1.5 * bool(partial))


def _count_text(facts: list[tuple[str, str]], notes: list[tuple[str, list[str]]]) -> float:
    """How many lines facts and notes take."""
    long = sum(_count_lines(text) for name, text in facts if name in LONG_FACTS)
    short = sum(len(name) + len(text) + 8 for name, text in facts if name not in LONG_FACTS)
    texts = sum(TITLE_LINES + sum(map(_count_lines, some)) for _, some in notes)
    return long + 2 + math.ceil(short / LINE_CHARS) + texts


def _count_lines(text: str) -> int:
    return max(1, math.ceil(len(text) / LINE_CHARS))


def _list_rows(record: RunRecord) -> tuple[Sequence[str], list[SheetRow]]:
    """The table: of the phases, of the nodes of a screen, or of the gates of a proof."""
    if record.proof is not None:
        gates = [
            SheetRow(
                (gate.fault, gate.status, gate.phase),
                "good" if gate.status == "proven" else "bad",
            )
            for gate in record.proof.gates
        ]
        return ("Fault", "Gate", "Staged in"), gates
    if record.screen is not None:
        rows = screen_rows(record.screen)
        return NODE_COLUMNS, [
            SheetRow([clip(cell, MAX_TEXT) for cell in cells], "bad" if colour else "good")
            for cells, colour in rows
        ]
    return COLUMNS, [
        SheetRow(
            [clip(cell, MAX_CELL) for cell in phase_row(phase, record.missing)[: len(COLUMNS)]],
            judge_phase(phase, record.missing).tone,
        )
        for phase in record.phases
    ]


def _choose_rows(rows: Sequence[SheetRow], room: float) -> list[SheetRow]:
    """The rows that fit, in their order: those that are not good come first."""
    worst = sorted(rows, key=lambda row: ("bad", "warn", "none", "good").index(row.tone))
    kept, left = set(), room
    for row in worst:
        left -= _count_row_lines(row.cells)
        if left < 0:
            break
        kept.add(id(row))
    return [row for row in rows if id(row) in kept]


def _count_row_lines(cells: Sequence[str]) -> float:
    name, verdict, *others = cells
    longest = max((len(text) for text in others), default=0)
    room = TRANSPORT_CHARS if len(cells) == len(COLUMNS) else NAME_CHARS
    lines = (len(name) / NAME_CHARS, len(verdict) / VERDICT_CHARS, longest / room)
    return max(1, *map(math.ceil, lines)) + ROW_LINES
