"""Records as pages, the elements of a page, and its links."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pytest_clustersmoke.report import page as page_module
from pytest_clustersmoke.report.terminal import write_summary
from tests.report import staged
from tests.support import records

HOSTILE = (
    '</script><script>alert(1)</script><img src=x onerror="alert(2)">&\u2028\u202e\x1b[31m\x00'
)


def page(record: records.Record) -> str:
    return page_module.page(records.parsed(record))


def printed(record: records.Record) -> list[str]:
    """The lines that the terminal shows at the end of a run."""
    lines: list[str] = []

    class Reporter:
        def section(self, *_: object, **__: object) -> None: ...

        def write_line(self, line: str, **_: object) -> None:
            lines.append(line)

    write_summary(Reporter(), records.parsed(record), ["report: here"])
    return lines


class Elements(HTMLParser):
    """All elements of a page with their attributes, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def links(report: Path) -> set[str]:
    """The files and folders to which the page of a report links, without their fragments."""
    elements = Elements((report / "index.html").read_text(encoding="utf-8")).all("a")
    targets = [str(element["href"]) for element in elements]
    return {unquote(target).partition("#")[0] for target in targets if not target.startswith("#")}


def dead(report: Path) -> list[str]:
    return sorted(link for link in links(report) if not (report / link).exists())


def hostile(value: Any, keep: frozenset[str] = frozenset()) -> Any:
    """A copy with hostile text added to every text, except values that code compares or parses."""
    if isinstance(value, str):
        return value + HOSTILE
    if isinstance(value, dict):
        return {key: inner if key in keep else hostile(inner, keep) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [hostile(inner, keep) for inner in value]
    return value


def hostile_run() -> records.Record:
    fixed = frozenset({"verdict", "outcome", "result", "status", "severity", "loss", "state"})
    record: records.Record = hostile(staged.run(), fixed)
    for phase in record["phases"]:
        phase["metrics"][f"metric{HOSTILE}"] = records.metric(1.0)
        phase["args"][HOSTILE] = HOSTILE
        phase["criteria"][HOSTILE] = {"result": "failed", "text": HOSTILE}
    for node in record["nodes"]:
        node["facts"][HOSTILE] = {HOSTILE: [HOSTILE]}
        node["earlier"][HOSTILE] = {HOSTILE: HOSTILE}
    return record


def sparse() -> records.Record:
    """A phase that never ran."""
    empty: dict[str, Any] = dict.fromkeys(
        ("estimated_start", "submitted", "started", "ended", "queue_s", "run_s", "torchrun_s")
    )
    empty |= {"nodes": [], "ranks": [], "versions": {}, "metrics": {}, "criteria": {}, "loss": []}
    empty |= {"hardware": "", "transport": "", "topology": None, "stage_seconds": {}, "job_id": ""}
    made: Any = {**records.phase(outcome="never_ran", reason="no nodes"), **empty}
    phase: records.Record = made
    return phase


def not_finite() -> records.Record:
    phase = records.phase()
    phase["metrics"]["final_loss"] = {**records.metric(1.0, "1"), "value": "nan", "met": False}
    phase["loss"] = [(1, 0.5), (2, "nan"), (3, "inf")]
    phase["ranks"][0]["peak_memory_gib"] = "inf"
    return phase


def proof() -> records.Record:
    green = records.gate("slow_rank", status="stayed green", seconds=None)
    proven = records.proof(records.gate(), green, p2p_off="one GPU a node")
    phase = records.phase(fault="rank_killed", outcome="failed", reason="killed")
    sentence = "NOT PROVEN: 1 of 2 gates proven on gilbreth, 2026-11-01"
    return records.run(phase, verdict="NOT PROVEN", sentence=sentence, proof=proven)


def without_phases() -> records.Record:
    return records.run(
        verdict="INCONCLUSIVE",
        sentence="INCONCLUSIVE: 0 of 2 phases finished (interrupted)",
        partial="the controller was killed",
        phases=[],
        phases_chosen=[],
    )


RUNS = {
    "sound": records.run,
    "staged": staged.run,
    "without phases": without_phases,
    "never ran": lambda: records.run(sparse(), verdict="INCONCLUSIVE"),
    "not finite": lambda: records.run(not_finite(), verdict="UNFIT"),
    "proof": proof,
    "hostile": hostile_run,
}
