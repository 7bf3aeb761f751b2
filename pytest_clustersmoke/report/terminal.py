"""What the terminal shows at the end of a run: a table, and the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..config.metrics import show
from ..evidence.run_record import GateRecord, KnownRecord, MetricRecord, PhaseRecord, RunRecord
from ..preflight.variable_remarks import format_remarks, group_remarks
from ..text import WARNING, Problem, format_seconds, sanitize_lines, shorten_lines
from .verdict import FIT, NOT_PROVEN, PROVEN, UNFIT

COLUMNS = (
    *("phase", "outcome", "nodes", "queue s", "run s", "steps/s", "rate", "GiB", "transport"),
    "reference",
)
NUMBERS = {"queue s", "run s", "steps/s", "rate", "GiB"}
GATE_COLUMNS = ("fault", "staged in", "red", "finding", "on", "seconds", "gate")
# The rate of a phase is the last of these that it measured.
RATES = {
    "samples_per_s": "samples/s",
    "tokens_per_s_per_rank": "tokens/s",
    "busbw_gb_per_s": "GB/s bus",
}
COLOURS = {FIT: "green", PROVEN: "green", UNFIT: "red", NOT_PROVEN: "red"}
MAX_WARNINGS = 10
IN_REPORT = " in report.json"


def write_summary(reporter: Any, record: RunRecord, report: Iterable[str]) -> None:
    """The table of all phases, and the verdict as last line. `report`: lines about the report."""
    reporter.section(f"cluster {record.cluster}, run {record.run_id}", sep="-")
    table = _phase_lines(record) if record.proof is None else gate_lines(record)
    for line, colour in table:
        # Logs are hostile text: no control character may reach the terminal.
        reporter.write_line(sanitize_lines(line), **({colour: True} if colour else {}))
    for line in report:
        reporter.write_line(sanitize_lines(line))
    colour = COLOURS.get(record.verdict, "yellow")
    reporter.write_line(record.sentence, bold=True, **{colour: True})


def _phase_lines(record: RunRecord) -> Iterator[tuple[str, str]]:
    """The lines above the verdict, with their colours."""
    rows = _aligned([COLUMNS, *map(phase_row, record.phases)], NUMBERS)
    yield next(rows), ""
    for line, phase in zip(rows, record.phases, strict=True):
        yield line, "yellow" if phase.known else "" if phase.outcome == "passed" else "red"
    yield from ((line, "") for line in record.absent_phases)
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


def known_words(known: KnownRecord) -> str:
    """A known failure: what, why, until when, and the entry's file:line."""
    return f"{known.what}: {known.reason} (known until {known.until}, {known.where})"


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


def phase_row(phase: PhaseRecord) -> list[str]:
    """The cells of a phase, in the order of COLUMNS."""
    measured = {name: show(metric.value) for name, metric in phase.metrics.items()}
    rates = [f"{measured[name]} {unit}" for name, unit in RATES.items() if name in measured]
    return [
        phase.phase,
        f"{phase.outcome}{', known' if phase.known else ''}",
        str(len(phase.nodes)),
        format_seconds(phase.queue_s),
        format_seconds(phase.run_s),
        measured.get("steps_per_s", "-"),
        rates[-1] if rates else "-",
        measured.get("peak_memory_gib", "-"),
        phase.transport,
        _against(phase.metrics),
    ]


def _against(metrics: Mapping[str, MetricRecord]) -> str:
    """The comparison with the references: those missed, otherwise those met."""
    compared = {name: metric for name, metric in metrics.items() if metric.met is not None}
    if not compared:
        has_any = any(metric.reference for metric in metrics.values())
        return "reference of other sizes" if has_any else "no reference"
    missed = [_miss(name, metric) for name, metric in compared.items() if not metric.met]
    return "; ".join(missed) if missed else f"met ({', '.join(compared)})"


def _miss(name: str, metric: MetricRecord) -> str:
    """`steps_per_s -61.7 %`; the failed criterion has the details."""
    expected = metric.reference.value if metric.reference else 0
    if isinstance(metric.value, str) or not expected:
        return f"{name} {metric.value}"
    return f"{name} {(metric.value / expected - 1) * 100:+.1f} %"
