"""The step summary of GitHub Actions: a run's record as Markdown."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..known import sentence
from . import proof
from .markdown_text import block, code, inline, table
from .terminal import COLUMNS, NUMBERS, row_of

if TYPE_CHECKING:
    from .model import CriterionRecord, FindingRecord, PhaseRecord, RunRecord

# GitHub drops a step's whole summary beyond 1 MiB, and a step may run several commands.
MAX_BYTES = 256 * 2**10
MAX_WORDS, MAX_EVIDENCE, MAX_EVIDENCE_LINES, MAX_NAMES = 1000, 3, 12, 16
MORE = "There is more in report.json."


def summary(record: RunRecord) -> str:
    """Verdict, phases, findings with their next steps, what changed; at most MAX_BYTES of UTF-8."""
    blocks: list[str] = []
    left = MAX_BYTES - len(MORE) - 2
    for one in _blocks(record):
        left -= len(one.encode()) + 2
        if left < 0:
            blocks.append(MORE)
            break
        blocks.append(one)
    return "\n\n".join(blocks) + "\n"


def short(record: RunRecord) -> str:
    """The verdict alone, where there is no room for more."""
    return "\n\n".join([*_verdict(record), MORE]) + "\n"


def _blocks(record: RunRecord) -> Iterator[str]:
    yield from _verdict(record)
    if "proof" in record:
        yield block("\n".join(line for line, _ in proof.lines(record)))
        return
    yield table(
        [*COLUMNS, "reference"], [_cells(phase) for phase in record["phases"]], right=NUMBERS
    )
    yield from _listed("Phases that did not run here", record["absent_phases"])
    for phase in record["phases"]:
        yield from _found(phase)
    yield from _listed("What changed", list(_changes(record)))
    yield from _listed("Nodes differ", list(_differences(record)))
    known = [f"{one['what']}: {sentence(one)}" for one in record["known"]]
    yield from _listed("Known failures", [*known, *record["known_remarks"]])


def _verdict(record: RunRecord) -> Iterator[str]:
    yield f"## {inline(record['cluster'])}: {inline(record['verdict'])}"
    yield f"**{inline(record['sentence'][:MAX_WORDS])}**"
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(record["begun"]))
    version = inline(record["package_version"])
    run = f"Run {code(record['run_id'])}, begun {began} UTC, pytest-clustersmoke {version}."
    yield f"{run} {_hardware(record)}".strip()
    if record["partial"]:
        yield f"Not all is known: {inline(record['partial'])}."
    if record["interrupted"] and not record["partial"]:
        yield "The run was interrupted."


def _hardware(record: RunRecord) -> str:
    held = record["hardware"]
    return f"{held['gpus_per_node']} x {inline(held['gpu'])} a node."


def _cells(phase: PhaseRecord) -> list[str]:
    return [cell[:MAX_WORDS] for cell in row_of(phase)]


def _found(phase: PhaseRecord) -> Iterator[str]:
    """What is wrong with a phase: its findings, else its outcome, and the criteria that failed."""
    primary = [one for one in phase["findings"] if one["primary"]]
    others = len(phase["findings"]) - len(primary)
    failed = {
        name: one
        for name, one in phase["criteria"].items()
        if one["result"] == "failed" and name != "job"
    }
    bad = phase["outcome"] != "passed"
    if not (bad or primary or failed):
        return
    known = ", known" if phase["known"] else ""
    yield f"### {inline(phase['phase'])}: {inline(phase['outcome'])}{known}"
    if bad and phase["reason"]:
        yield inline(phase["reason"][:MAX_WORDS])
    for one in primary:
        yield from _finding(one)
    if others:
        yield f"{others} more {'finding' if others == 1 else 'findings'} in report.json."
    if phase["outcome"] == "passed":  # else each says no more than that the job failed
        for name, criterion in failed.items():
            yield from _criterion(name, criterion)


def _finding(one: FindingRecord) -> Iterator[str]:
    names = [*one["hosts"], *(f"rank {rank}" for rank in one["ranks"])]
    where = f" ({inline(_some(names))})" if names else ""
    kind = "Finding" if one["severity"] == "failure" else "Warning"
    yield f"{kind} {code(one['id'])}: **{inline(one['cause'][:MAX_WORDS])}**{where}"
    yield f"Next: {inline(one['fix'][:MAX_WORDS])}"
    for shown in one["evidence"][:MAX_EVIDENCE]:
        yield code(f"{shown['file']}:{shown['line']}")
        lines = shown["text"][:MAX_WORDS].splitlines()[:MAX_EVIDENCE_LINES]
        if lines:
            yield block("\n".join(lines))


def _criterion(name: str, one: CriterionRecord) -> Iterator[str]:
    yield f"Criterion {code(name)}:"
    yield block(one["text"][:MAX_WORDS])


def _changes(record: RunRecord) -> Iterator[str]:
    """Since the run before, and of each metric that left the past's band."""
    yield from record["changes"]
    for phase in record["phases"]:
        name = phase["phase"]
        for metric, one in phase["metrics"].items():
            past: Any = one["past"]
            if past is not None and past["status"] in ("warn", "fail"):
                yield f"{name}: {metric}: {past['text']}"
        yield from (f"{name}: {words}" for words in phase["changed"])


def _differences(record: RunRecord) -> Iterator[str]:
    for one in record["differences"]:
        values = [f"{value} on {_some(nodes)}" for value, nodes in one["values"].items()]
        yield f"{one['fact']}: {'; '.join(values)}"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def _listed(title: str, lines: list[str]) -> Iterator[str]:
    if lines:
        items = [f"- {inline(line[:MAX_WORDS])}" for line in lines]
        yield "\n".join([f"### {title}", "", *items])
