"""What index.html's template needs beside the record: anchors, links to files, counts, columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from .page_ranks import links_view, ranks_view
from .standout import stands_out

if TYPE_CHECKING:
    from markupsafe import Markup

    from .model import FactsRecord, PhaseRecord, Result, RunRecord
    from .page_ranks import LinksView, RanksView
    from .standout import Group

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
# Metrics of the table of phases. As in the terminal, the rate is the last of these that was told.
RATES = ("samples_per_s", "tokens_per_s_per_rank", "busbw_gb_per_s")
RESULTS: tuple[Result, ...] = ("failed", "known", "passed", "skipped")
LONG_NAME = re.compile(r"\w{30,}")
PERCENTILES = ("p5", "p25", "p50", "p75", "p95")


@dataclass(frozen=True)
class PhaseView:
    """A phase, and what the page says around it."""

    record: PhaseRecord
    anchor: str
    folder: str  # of its evidence, relative to the page
    tone: str
    open: bool  # whether there is something to look at
    counts: list[tuple[str, int]]  # criteria by result, the failed first
    rate: str  # the metric that is its rate; empty where it has none
    ranks: RanksView
    links: LinksView
    node_ranks: list[tuple[int, str, str]]  # of nodes that are known by their facts or their ranks
    shows_steps: bool
    shows_own: bool
    memory: bool
    fault: str


@dataclass(frozen=True)
class View:
    """Everything that the template is given beside the record."""

    stands_out: list[Group]
    phases: list[PhaseView]
    versions: list[tuple[str, list[tuple[str, list[str]]]]]  # name -> value -> phases
    nodes: list[FactsRecord]


def view(record: RunRecord) -> View:
    """The view of a record whose texts are clean."""
    anchors = _anchors([phase["phase"] for phase in record["phases"]])
    standing = stands_out(record, anchors)
    places = {item.where for group in standing for item in group.items}
    phases = [_phase(one, anchors, places) for one in record["phases"]]
    nodes = sorted(record["nodes"], key=lambda node: _natural(node["node"]))
    return View(standing, phases, _versions(record["phases"]), nodes)


def _anchors(names: Iterable[str]) -> dict[str, str]:
    """Phase -> an id of its own that needs no escaping anywhere."""
    made: dict[str, str] = {}
    for number, name in enumerate(names, 1):
        anchor = "phase-" + re.sub(r"[^A-Za-z0-9_-]", "-", name)
        made[name] = f"{anchor}-{number}" if anchor in made.values() else anchor
    return made


def _phase(record: PhaseRecord, anchors: dict[str, str], places: set[str]) -> PhaseView:
    counted = Counter(one["result"] for one in record["criteria"].values())
    held = [name for name in RATES if name in record["metrics"]]
    ranks = record["ranks"]
    return PhaseView(
        record=record,
        anchor=anchors[record["phase"]],
        folder=f"phases/{quote(record['phase'], safe='')}/",
        tone=TONES.get(record["outcome"], "warn"),
        open=record["phase"] in places or record["outcome"] != "passed",
        counts=[(result, counted[result]) for result in RESULTS if counted[result]],
        rate=held[-1] if held else "",
        ranks=ranks_view(record),
        links=links_view(record),
        node_ranks=_node_ranks(record),
        shows_steps=any(one["step_s"] for one in ranks),
        shows_own=any(one["own_s"] for one in ranks),
        memory=any(isinstance(one["peak_memory_gib"], int | float) for one in ranks),
        fault=record.get("fault", ""),
    )


def _node_ranks(record: PhaseRecord) -> list[tuple[int, str, str]]:
    """Number, name and host of each node: of those that told facts, and those that ranks name."""
    found = {
        one["node_rank"]: (one["node_rank"], one["node"], one["host"])
        for one in record["ranks"]
        if one["node_rank"] is not None
    }
    found |= {
        one["node_rank"]: (one["node_rank"], one["node"], one["host"]) for one in record["nodes"]
    }
    return [found[number] for number in sorted(found)]


def _versions(phases: Iterable[PhaseRecord]) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """Each version with the phases that ran on it: one value, where all ran on the same."""
    found: dict[str, dict[str, list[str]]] = {}
    for phase in phases:
        for name, value in phase["versions"].items():
            found.setdefault(name, {}).setdefault(value, []).append(phase["phase"])
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


def soft(text: str) -> Markup:
    """The text, in which names too long for a phone may be broken after each underscore."""
    from markupsafe import Markup, escape

    escaped = str(escape(text))
    return Markup(LONG_NAME.sub(lambda name: name[0].replace("_", "_<wbr>"), escaped))


def spread_cells(spread: Any) -> list[float | None]:
    """The percentiles of a spread, in the order of PERCENTILES."""
    return [spread[name] if spread else None for name in PERCENTILES]
