"""A run in ten lines, for mails and chats: a view of its record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..evidence.run_counts import describe_missing
from ..evidence.run_record import RunRecord
from ..text import clip, format_span, format_time, plural, sanitize_line, shorten, shorten_lines
from .named_nodes import describe_node, find_bad_nodes, list_shared, title_bad_nodes
from .next_steps import list_next_steps
from .node_records import list_named
from .phase_table import explain_failures, explain_others
from .summary import inline
from .terminal import known_words

MAX_LINES, MAX_STEPS, MAX_NAMES, MAX_NODES = 10, 2, 3, 2
MAX_LINE = 400  # characters


@dataclass(frozen=True)
class RunDigest:
    """What a person wants to know of a run first. Times are Unix seconds."""

    verdict: str
    sentence: str
    run_id: str
    cluster: str
    begun: float
    ended: float | None  # None: unknown, since its controller was killed
    utc_offset_s: int | None  # of the local time where it began; None: unknown
    nodes: int
    phases: int
    partial: str  # why the run is incomplete; empty if it is complete
    bad_nodes: dict[str, str]  # what shows that they are
    named_nodes: list[str]  # those that several phases name
    causes: list[str]  # of each phase that did not pass, and of what else is wrong
    next: list[str]  # what to do
    known: list[str]
    changes: list[str]  # since the run before
    report: str

    @classmethod
    def of(cls, record: RunRecord, report: Path) -> RunDigest:
        """The digest of a record, which lies in the directory `report`."""
        nodes = list_named(record.phases)
        return cls(
            verdict=record.verdict,
            sentence=_one_line(record.sentence),
            run_id=record.run_id,
            cluster=record.cluster,
            begun=record.begun,
            ended=None if record.counts.cut_off else record.written,
            utc_offset_s=record.utc_offset_s,
            nodes=len(nodes) if record.screen is None else len(record.screen.nodes),
            phases=len(record.phases_chosen),
            partial=_one_line(record.partial),
            bad_nodes=find_bad_nodes(record),
            named_nodes=[_one_line(describe_node(node)) for node in list_shared(record)],
            causes=[*map(_one_line, _list_causes(record))],
            next=[*map(_one_line, list_next_steps(record))],
            known=[_one_line(known_words(known)) for known in record.known],
            changes=[*map(_one_line, record.changes)],
            report=str(report),
        )

    def as_dict(self) -> dict[str, Any]:
        """The whole digest, with lists that are not cut."""
        return asdict(self)

    def lines(self) -> list[str]:
        """At most MAX_LINES lines; the first is the verdict."""
        bad = _one_line(title_bad_nodes(self.bad_nodes))
        before = [self.sentence, *filter(None, [bad]), self._describe_run()]
        before += [f"incomplete: {self.partial}"] if self.partial else []
        after = [f"next: {step}" for step in self.next[:MAX_STEPS]]
        for name, texts in (("known", self.known), ("changed", self.changes)):
            after += [_one_line(f"{name}: {shorten(texts, MAX_NAMES, '; ')}")] if texts else []
        after.append(f"report: {self.report}")
        room = MAX_LINES - len(before) - len(after)
        causes = [*self.named_nodes[:MAX_NODES], *self.causes]
        causes = [each for each in causes if each not in self.sentence]
        if len(causes) > room:
            room -= 1  # for the line that counts the rest
        return [*before, *shorten_lines(causes, room), *after]

    def markdown(self) -> list[str]:
        """The same lines as Markdown, in which text of the record is shown literally."""
        first, *others = map(inline, self.lines())
        return [f"**{first}**", "", *(f"- {line}" for line in others)]

    def _describe_run(self) -> str:
        begun = format_time(self.begun, self.utc_offset_s, "%H:%M")
        took = "" if self.ended is None else f"took {format_span(self.begun, self.ended)}, "
        what = f"{plural(self.phases, 'phase')} on {plural(self.nodes, 'node')}"
        return f"{sanitize_line(self.cluster)}, run {self.run_id}: {begun}, {took}{what}"


def _one_line(text: str) -> str:
    return clip(sanitize_line(text), MAX_LINE)


def _list_causes(record: RunRecord) -> Iterator[str]:
    """A line for everything that keeps the run from the best verdict."""
    if record.proof is not None:
        for gate in record.proof.gates:
            if gate.status != "proven":
                yield f"{gate.fault}: {gate.status}: {'; '.join(gate.reasons)}"
        return
    explained = [*explain_failures(record)]
    yield from explained
    yield from explain_others(record)
    begins = tuple(f"{phase.phase}: " for phase in record.phases)
    yield from (text for text in record.failed if not text.startswith(begins))
    named = {line.partition(": ")[0] for line in explained}
    yield from describe_missing(m for m in record.missing if m.kind or m.phase not in named)
