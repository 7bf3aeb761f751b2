"""index.html: the whole report of a run in one file, which needs no network.

Every figure is in a table that works without scripts; the scripts draw charts from those tables.
So the page holds each number once: rounded as text, exact in `data-value`. For a phase with many
ranks it holds rounded ranges and says so (page_ranks.py).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import sys
from collections.abc import Callable
from functools import cache, partial
from importlib import util
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from jinja2.bccache import Bucket

from .. import __version__
from ..evidence.run_record import RunRecord
from ..text import format_bytes, format_seconds, outcome_words, ranges, sanitize_lines
from .highlights import show_number, unit_words
from .node_records import fact_words
from .page_sheet import find_clock, make_sheet
from .page_view import (
    LANE_STATES,
    PERCENTILES,
    against,
    anchors,
    bounds_words,
    build_view,
    evidence_link,
    hardware_words,
    soft,
    spread_cells,
    text_fragment,
    tone,
)
from .phase_table import describe_attempt, describe_proofs, percent, traced_steps

HERE = Path(__file__).parent / "html"
SCRIPTS = (
    "vendor/d3.min.js",
    "vendor/plot.umd.min.js",
    "charts.js",
    "progress.js",
    "topology.js",
    "curves.js",
    "filters.js",
    "page.js",
)
STYLES = ("page.css", "print.css")
# Nobody reads more of one text; the evidence has the rest.
MAX_TEXT = 8000
MAX_DIFFERENCES = 200
MAX_NAMED = 24  # phases with more of what a card shows


def page(
    record: RunRecord,
    exists: Callable[[str], bool] = lambda name: True,
    runs_page: bool = False,
) -> str:
    """The page of a record; every text in the record is treated as hostile.

    `exists` says whether a file of this name is, or will be, beside the page; other files are named
    without a link. `runs_page`: there is a page over runs, in the folder above, with this run.
    """
    sanitized = RunRecord.model_validate(_sanitize(record.as_json()))
    view = build_view(sanitized)
    return render(
        "page.html.j2",
        run=sanitized,
        runs_page=runs_page,
        ledger=f"{anchors([sanitized.cluster], 'cluster')[sanitized.cluster]}-nodes",
        view=view,
        sheet=make_sheet(sanitized, view.stands_out),
        moment=find_clock(sanitized),
        max_differences=MAX_DIFFERENCES,
        max_named=MAX_NAMED,
        percentiles=PERCENTILES,
        allowed=bounds_words,
        evidence_link=partial(evidence_link, exists),
    )


def render(template: str, **context: Any) -> str:
    """A page from its template, with the styles and scripts of all pages in it."""
    scripts = [(HERE / name).read_text(encoding="utf-8") for name in SCRIPTS]
    styles = "".join((HERE / name).read_text(encoding="utf-8") for name in STYLES)
    shared = {"scripts": scripts, "styles": styles, "policy": _policy(scripts)}
    return _environment().get_template(template).render(**context, **shared)


def load_templates() -> None:
    """Compile all templates, or load what was compiled."""
    for name in _environment().list_templates(extensions=["j2"]):
        _environment().get_template(name)


def _policy(scripts: list[str]) -> str:
    """Fetch nothing, and run only these scripts. Plot puts inline styles into its SVGs."""
    hashes = " ".join(f"'sha256-{_digest(text)}'" for text in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


class CompiledTemplates(jinja2.FileSystemBytecodeCache):
    """Compiled templates in a `__pycache__` beside them, as Python keeps its modules: to compile
    them takes longer than to fill them in. Where nothing can be written, or what is there cannot
    be read, they are compiled again."""

    def __init__(self, folder: Path) -> None:
        place = Path(util.cache_from_source(str(folder / "template.py"))).parent
        super().__init__(str(place), f"{__version__}-%s.jinja")

    def load_bytecode(self, bucket: Bucket) -> None:
        with contextlib.suppress(Exception):  # unpickling damaged bytes raises almost anything
            super().load_bytecode(bucket)

    def dump_bytecode(self, bucket: Bucket) -> None:
        if sys.dont_write_bytecode:
            return
        with contextlib.suppress(OSError):
            Path(self.directory).mkdir(parents=True, exist_ok=True)
            super().dump_bytecode(bucket)


@cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        bytecode_cache=CompiledTemplates(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "show": show_number,
        "exact": _exact,
        "seconds": format_seconds,
        "tone": tone,
        "words": outcome_words,
        "unit": unit_words,
        "hardware": hardware_words,
        "soft": soft,
        "quoted": partial(quote, safe=""),
        "fact": fact_words,
        "text_fragment": text_fragment,
        "spread": spread_cells,
        "percent": percent,
        "bytes": format_bytes,
        "against": against,
        "ranges": ranges,
        "lane_state": LANE_STATES.__getitem__,
        "traced": traced_steps,
        "attempt": describe_attempt,
        "proofs": describe_proofs,
    }
    return made


def _exact(value: float | str | None) -> str:
    """A number as in report.json, to the last digit."""
    return value if isinstance(value, str) else json.dumps(value)


def _sanitize(value: Any) -> Any:
    """The same data with every text made harmless, keys included."""
    if isinstance(value, str):
        cut = value if len(value) <= MAX_TEXT else value[:MAX_TEXT] + " …"
        return sanitize_lines(cut)
    if isinstance(value, dict):
        return {sanitize_lines(str(key)): _sanitize(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_sanitize(inner) for inner in value]
    return value
