"""The step summary of GitHub Actions: the record of a run as Markdown, on the page of the job.

GITHUB_STEP_SUMMARY names a Markdown file. Each step has its own; every command of the step appends
to it.
Cluster names, findings and log lines may hold anything and are shown literally: they never become
markup, HTML, a link, a mention, a reference to an issue, an emoji or a formula.
"""

from __future__ import annotations

import html
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..evidence.run_record import FindingRecord, PhaseRecord, RunRecord
from ..text import FAILURE, format_time, plural, sanitize_line, sanitize_lines, shorten
from .named_nodes import describe_node, list_shared
from .phase_table import COLUMNS, NUMBERS, judge_phase, phase_row
from .terminal import gate_lines, known_words, screen_lines
from .verdict import list_absent

VARIABLE = "GITHUB_STEP_SUMMARY"
MAX_STEP_BYTES = 2**20  # beyond it GitHub drops all of the step's summary
MAX_BYTES = 256 * 2**10  # a step may run several commands
MAX_WORDS, MAX_EVIDENCE, MAX_EVIDENCE_LINES, MAX_NAMES = 1000, 3, 12, 16
MORE = "The rest is in report.json."

# GitHub turns these into links after it has parsed the Markdown, so a backslash does not help; a
# zero-width space does. Code is left alone.
APART = "\u200b"
LINKED = re.compile(r"(?<=@)|(?<=#)(?=\d)|(?<=GH-)|(?<=:)(?=//|[\w+-]+:)|(?<=www)(?=\.)", re.I)
MARKUP = re.compile(r"([\\`*_{}\[\]()#+\-.!|~=])")
FORMULA = "<span>$</span>"


def add_step_summary(record: RunRecord, environ: Mapping[str, str]) -> None:
    """Append the run's summary to that of the step, whole or not at all, if there is a step.

    Raises OSError if it cannot be written, or if the step's summary has no room left.
    """
    path = environ.get(VARIABLE)
    if not path:
        return
    # Non-blocking: a pipe without a reader would block the end of the run.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(path, flags, 0o644)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(f"{VARIABLE} names {path}, which is not a regular file")
        _append(fd, info.st_size, _fitting(record, MAX_STEP_BYTES - info.st_size))
    finally:
        os.close(fd)


def _fitting(record: RunRecord, room: int) -> bytes:
    """The summary, or only the verdict if the summary does not fit."""
    for text in (summary(record), short_summary(record)):
        made = f"\n{text}".encode()
        if len(made) <= room:
            return made
    raise OSError(f"the step's summary is full: GitHub takes at most {MAX_STEP_BYTES} bytes")


def _append(fd: int, size: int, made: bytes) -> None:
    try:
        written = os.write(fd, made)
        if written < len(made):  # the disk is full
            raise OSError(f"only {written} of {len(made)} bytes were written")
    except OSError:
        os.ftruncate(fd, size)
        raise


def summary(record: RunRecord) -> str:
    """Verdict, phases, findings with their next steps, what changed; at most MAX_BYTES of UTF-8."""
    blocks: list[str] = []
    left = MAX_BYTES - len(MORE) - 2
    for text in _blocks(record):
        left -= len(text.encode()) + 2
        if left < 0:
            blocks.append(MORE)
            break
        blocks.append(text)
    return "\n\n".join(blocks) + "\n"


def short_summary(record: RunRecord) -> str:
    """Only the verdict."""
    return "\n\n".join([*_verdict(record), MORE]) + "\n"


def _blocks(record: RunRecord) -> Iterator[str]:
    yield from _verdict(record)
    if record.proof is not None:
        yield block("\n".join(line for line, _ in gate_lines(record)))
        return
    if record.screen is not None:
        yield block("\n".join(line for line, _ in screen_lines(record, record.screen)))
        return
    rows = [phase_row(phase, record.missing) for phase in record.phases]
    yield table(COLUMNS, rows, right=NUMBERS)
    absent = list_absent(record, record.sentence)
    yield from _section("Phases that did not run here", absent)
    named = [describe_node(node) for node in list_shared(record)]
    yield from _section("Nodes that several phases name", named)
    for phase in record.phases:
        yield from _problems(phase, judge_phase(phase, record.missing).words)
    yield from _section("What changed", _changes(record))
    yield from _section("Nodes differ", _differences(record))
    known = [*map(known_words, record.known), *record.known_remarks]
    yield from _section("Known failures", known)


def _verdict(record: RunRecord) -> Iterator[str]:
    yield f"## {inline(record.cluster)}: {inline(record.verdict)}"
    yield f"**{inline(record.sentence)}**"
    started = format_time(record.begun, record.utc_offset_s)
    run = f"Run {code(record.run_id)}, started {started}"
    hardware = f"{record.hardware.gpus_per_node} x {inline(record.hardware.gpu)} per node."
    yield f"{run}, pytest-clustersmoke {inline(record.package_version)}. {hardware}"
    if record.partial:
        yield f"This report is incomplete: {inline(record.partial)}."
    elif record.interrupted:
        yield "The run was interrupted."


def _problems(phase: PhaseRecord, verdict: str) -> Iterator[str]:
    """What is wrong with a phase: its verdict, its findings, and the criteria that failed."""
    primary = [finding for finding in phase.findings if finding.primary]
    others = len(phase.findings) - len(primary)
    failed = {
        name: criterion.text
        for name, criterion in phase.criteria.items()
        if criterion.result == "failed"
    }
    failed.pop("job", None)
    bad = phase.outcome != "passed"
    if not (bad or primary or failed):
        return
    yield f"### {inline(phase.phase)}: {inline(verdict)}"
    if bad and phase.reason:
        yield inline(phase.reason)
    for finding in primary:
        yield from _finding(finding)
    if others:
        yield f"{plural(others, 'more finding')} in report.json."
    if not bad:  # otherwise each says only that the job failed
        for name, text in failed.items():
            yield f"Criterion {code(name)}:"
            yield block(text[:MAX_WORDS])


def _finding(finding: FindingRecord) -> Iterator[str]:
    names = [*finding.hosts, *(f"rank {rank}" for rank in finding.ranks)]
    where = f" ({inline(shorten(names, MAX_NAMES))})" if names else ""
    kind = "Finding" if finding.severity == FAILURE else "Warning"
    yield f"{kind} {code(finding.id)}: **{inline(finding.cause)}**{where}"
    yield f"Next: {inline(finding.fix)}"
    for shown in finding.evidence[:MAX_EVIDENCE]:
        yield code(f"{shown.file}:{shown.line}")
        lines = shown.text[:MAX_WORDS].splitlines()[:MAX_EVIDENCE_LINES]
        if lines:
            yield block("\n".join(lines))


def _changes(record: RunRecord) -> Iterator[str]:
    """Changes since the previous run, and metrics outside the range of past runs."""
    yield from record.changes
    for phase in record.phases:
        for name, metric in phase.metrics.items():
            if metric.past is not None and metric.past["status"] in ("warn", "fail"):
                yield f"{phase.phase}: {name}: {metric.past['text']}"
        for change in phase.changed:
            yield f"{phase.phase}: {change} (last good run {phase.last_good})"


def _differences(record: RunRecord) -> Iterator[str]:
    for difference in record.differences:
        values = [
            f"{value} on {shorten(nodes, MAX_NAMES)}" for value, nodes in difference.values.items()
        ]
        yield f"{difference.fact}: {'; '.join(values)}"


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    items = [f"- {inline(line)}" for line in lines]
    if items:
        yield "\n".join([f"### {title}", "", *items])


def inline(words: str) -> str:
    """The text on one line, shown literally."""
    apart = LINKED.sub(APART, sanitize_line(words[:MAX_WORDS]).strip())
    marked = MARKUP.sub(r"\\\1", html.escape(apart, quote=False))
    return marked.replace("$", FORMULA)


def code(words: str) -> str:
    """The text on one line, as code. Not for tables, where a bar would end the cell."""
    text = sanitize_line(words).strip()
    fence = "`" * (_longest(text) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") or not text else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def block(words: str) -> str:
    """The text with its line breaks, as a block of code."""
    text = sanitize_lines(words)
    fence = "`" * max(3, _longest(text) + 1)
    return f"{fence}text\n{text}\n{fence}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[str] = ()) -> str:
    """A table; the columns named in `right` are aligned to the right."""
    numbers = set(right)
    marks = ["---:" if name in numbers else "---" for name in head]
    cells = [[inline(cell) for cell in row] for row in (head, *rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [cells[0], marks, *cells[1:]])


def _longest(text: str) -> int:
    """The longest run of backticks."""
    return max((len(run) for run in re.findall(r"`+", text)), default=0)
