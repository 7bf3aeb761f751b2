"""What the terminal shows at the end of a run: a table, and the verdict."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..evidence.history.outlier_judge import NOT_ENOUGH
from ..evidence.run_counts import GateRecord, KnownRecord
from ..evidence.run_record import PhaseRecord, RunRecord
from ..evidence.screen_record import ScreenRecord
from ..preflight.variable_remarks import format_remarks, group_remarks
from ..text import (
    WARNING,
    Problem,
    format_seconds,
    plural,
    sanitize_line,
    sanitize_lines,
    shorten,
    shorten_lines,
)
from .highlights import describe_difference
from .named_nodes import describe_node, list_shared
from .next_steps import list_next_steps
from .phase_table import (
    COLUMNS,
    NUMBERS,
    describe_attempt,
    describe_isolation,
    describe_proofs,
    describe_trace,
    explain_failures,
    judge_phase,
    phase_row,
)
from .screen_lists import COLUMNS as NODE_COLUMNS
from .screen_lists import screen_rows
from .verdict import FIT, NOT_PROVEN, PROVEN, UNFIT, list_absent

UNMEASURED = re.compile(r"not measured \(([\w ]+)\): ")
GATE_COLUMNS = ("fault", "staged in", "red", "finding", "on", "seconds", "gate")
TONES = {"good": "", "bad": "red", "warn": "yellow"}
COLOURS = {FIT: "green", PROVEN: "green", UNFIT: "red", NOT_PROVEN: "red"}
MAX_WARNINGS = MAX_TRACES = MAX_PROOFS = 10
MAX_ATTEMPTS, MAX_NODES, MAX_STEPS, MAX_DIFFERENCES = 20, 4, 8, 6
IN_REPORT = " in report.json"


def write_summary(reporter: Any, record: RunRecord, report: Iterable[str]) -> None:
    """The table of all phases, the cause of each that did not pass, and the verdict as last line.
    `report`: lines about the report."""
    reporter.section(f"cluster {record.cluster}, run {record.run_id}", sep="-")
    table = _lines_of(record)
    for line, colour in table:
        # Logs are hostile text: no control character may reach the terminal.
        reporter.write_line(sanitize_lines(line), **({colour: True} if colour else {}))
    for line in report:
        reporter.write_line(sanitize_lines(line))
    for line in explain_failures(record) if record.proof is None else ():
        reporter.write_line(sanitize_line(line), red=True)
    steps = [f"next: {step}" for step in list_next_steps(record)]
    for line in shorten_lines(steps, MAX_STEPS, " in `clustersmoke summary --json`"):
        reporter.write_line(sanitize_line(line))
    colour = COLOURS.get(record.verdict, "yellow")
    reporter.write_line(record.sentence, bold=True, **{colour: True})


def _lines_of(record: RunRecord) -> Iterator[tuple[str, str]]:
    """The lines above the verdict, with their colours."""
    if record.proof is not None:
        return gate_lines(record)
    return _phase_lines(record) if record.screen is None else screen_lines(record, record.screen)


def screen_lines(record: RunRecord, screen: ScreenRecord) -> Iterator[tuple[str, str]]:
    """The lines of a screen: its nodes, and the facts in which they differ."""
    yield from node_lines(screen)
    differ = [f"nodes differ: {it.fact}: {describe_difference(it)}" for it in record.differences]
    yield from ((line, "yellow") for line in shorten_lines(differ, MAX_DIFFERENCES, IN_REPORT))


def node_lines(screen: ScreenRecord) -> Iterator[tuple[str, str]]:
    """A line for each node that does not pass, one for all that do, and sbatch's word."""
    rows = list(screen_rows(screen))
    lines = _aligned([NODE_COLUMNS, *(cells for cells, _ in rows)])
    yield next(lines), ""
    yield from zip(lines, (colour for _, colour in rows), strict=True)
    if screen.exclude:
        yield f"leave out what is not fit: {screen.exclude}", ""
    if screen.doubt:
        yield screen.doubt, "yellow"


def _phase_lines(record: RunRecord) -> Iterator[tuple[str, str]]:
    """The lines of a run of phases."""
    cells = [phase_row(phase, record.missing) for phase in record.phases]
    rows = _aligned([COLUMNS, *cells], NUMBERS)
    yield next(rows), ""
    for line, phase in zip(rows, record.phases, strict=True):
        yield line, TONES[judge_phase(phase, record.missing).tone]
    yield from ((line, "") for line in list_absent(record, record.sentence))
    yield from ((line, "yellow") for line in _attempts(record.phases))
    yield from ((line, "yellow") for line in _isolations(record.phases))
    yield from ((describe_node(node), "yellow") for node in list_shared(record)[:MAX_NODES])
    yield from ((line, "") for line in _proofs(record.phases))
    yield from ((line, "") for line in _traces(record.phases))
    yield from ((line, "") for line in _count_skipped(record.phases))
    yield from ((f"known: {known_words(known)}", "yellow") for known in record.known)
    more = [*record.known_remarks, *_off_past(record.phases), *_warnings(record.phases)]
    yield from ((line, "yellow") for line in more)


def gate_lines(record: RunRecord) -> Iterator[tuple[str, str]]:
    """One line per gate of a proof, then the gates that do not apply here; with their colours."""
    assert record.proof is not None
    rows = _aligned([GATE_COLUMNS, *map(_gate_row, record.proof.gates)])
    yield next(rows), ""
    for line, gate in zip(rows, record.proof.gates, strict=True):
        yield line, "" if gate.status == "proven" else "red"
    for name, why in record.proof.not_applicable.items():
        yield f"{name} is not staged: {why}", ""


def _gate_row(gate: GateRecord) -> list[str]:
    where = [f"rank {rank}" for rank in gate.ranks[:4]] + gate.hosts[:4]
    return [
        gate.fault,
        gate.phase,
        ", ".join(gate.red) or "-",
        gate.finding or "-",
        ", ".join(where) or "-",
        format_seconds(gate.seconds),
        gate.status,
    ]


def _aligned(rows: list[Sequence[str]], numbers: Iterable[str] = ()) -> Iterator[str]:
    """The rows as lines, the header first; columns of numbers are aligned to the right."""
    head = rows[0]
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    for row in rows:
        cells = zip(head, row, widths, strict=True)
        line = [c.rjust(width) if name in numbers else c.ljust(width) for name, c, width in cells]
        yield "  ".join(line).rstrip()


def _attempts(phases: Iterable[PhaseRecord]) -> list[str]:
    lines = [
        f"{phase.phase}: {describe_attempt(each)}" for phase in phases for each in phase.attempts
    ]
    return shorten_lines(lines, MAX_ATTEMPTS, IN_REPORT)


def _isolations(phases: Iterable[PhaseRecord]) -> list[str]:
    return [
        f"{phase.phase}: isolated: {answer}"
        for phase in phases
        if (answer := describe_isolation(phase))
    ]


def _proofs(phases: Iterable[PhaseRecord]) -> list[str]:
    lines = [
        f"{phase.phase}: {describe_proofs(phase.proven_steps)}"
        for phase in phases
        if phase.proven_steps is not None
    ]
    return shorten_lines(lines, MAX_PROOFS, IN_REPORT)


def _traces(phases: Iterable[PhaseRecord]) -> list[str]:
    lines = [f"{phase.phase}: {describe_trace(each)}" for phase in phases for each in phase.traces]
    return shorten_lines(lines, MAX_TRACES, IN_REPORT)


def _count_skipped(phases: Iterable[PhaseRecord]) -> Iterator[str]:
    """How many criteria were skipped, by the kind that was not measured, and how to see why. Those
    of a job that did not pass are not measured for its sake."""
    texts: list[str] = []
    kinds: Counter[str] = Counter()
    for phase in phases:
        skipped = [each.text for each in phase.criteria.values() if each.result == "skipped"]
        texts += skipped
        for text in skipped:
            match = UNMEASURED.match(text)
            other = "others" if phase.outcome == "passed" else "job failed"
            kinds[match[1] if match else other] += 1
    if not texts:
        return
    parts = [f"{kind} {count}" for kind, count in kinds.most_common()]
    few = " (not enough history)" if any(NOT_ENOUGH in text for text in texts) else ""
    listed = shorten([f"{part}{few if part.startswith('history ') else ''}" for part in parts], 6)
    yield f"skipped: {plural(len(texts), 'criterion', 'criteria')}: {listed}; -rs says why"


def known_words(known: KnownRecord) -> str:
    """A known failure: what, why, until when, and the entry's file:line."""
    return f"{known.what}: {known.sentence}"


def _off_past(phases: Iterable[PhaseRecord]) -> Iterator[str]:
    """Metrics off their past runs, and with any regression the versions that changed."""
    for phase in phases:
        past = [metric.past for metric in phase.metrics.values() if metric.past is not None]
        texts = [judgement["text"] for judgement in past if judgement["status"] in ("warn", "fail")]
        yield from (f"{phase.phase}: {text}" for text in texts)
        if phase.changed and (
            texts or any(metric.met is False for metric in phase.metrics.values())
        ):
            changed = ", ".join(phase.changed)
            yield f"{phase.phase}: changed since its last good run {phase.last_good}: {changed}"


def _warnings(phases: Iterable[PhaseRecord]) -> list[str]:
    """Warnings about environment variables, each once, and how many more there are."""
    by_phase = {
        phase.phase: [
            Problem(remark.text, remark.source, severity=WARNING)
            for remark in phase.remarks
            if remark.severity == WARNING
        ]
        for phase in phases
    }
    return shorten_lines(format_remarks(group_remarks(by_phase)), MAX_WARNINGS, IN_REPORT)
