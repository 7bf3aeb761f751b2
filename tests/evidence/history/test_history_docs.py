"""docs/reference/history.md and docs/explanation/past-runs.md match the code."""

from __future__ import annotations

import contextlib
import re
import shlex
import sqlite3
from pathlib import Path
from unittest.mock import Mock

import pytest

from pytest_clustersmoke.cli import accept_command, main
from pytest_clustersmoke.evidence.history import history_database as database
from pytest_clustersmoke.evidence.history import history_schema
from pytest_clustersmoke.evidence.history.drift_judge import (
    ALLOWANCE,
    MAX_DISTANCE,
    MIN_NIGHTS,
    THRESHOLD,
)
from pytest_clustersmoke.evidence.history.outlier_judge import (
    FAIL_SPREADS,
    FAR_MADS,
    LEAST,
    LEAST_ABSOLUTE,
    LEAST_SPREAD,
    MEAN_SCALE,
    MIN_RUNS,
    SCALE,
    SHOWN_LOSS,
    WARN_SPREADS,
    WINDOW,
    widening_factor,
)
from tests.evidence.history.made import DAY_S, night, nights
from tests.support.records import BEGUN, annotate

DOCS = Path(__file__).parents[3] / "docs"
TEXT = "".join(
    (DOCS / page).read_text() for page in ("reference/history.md", "explanation/past-runs.md")
)
# The rows of the document's other tables do not name tables of the database.
TABLES = (
    *("runs", "phases", "setups", "metrics", "accepted_levels", "gpus", "gpu_steps", "nodes"),
    *("boots", "node_observations", "devices", "figures", "device_figures", "curve_points"),
)


def test_document_lists_all_tables(tmp_path: Path) -> None:
    """The document has every table and column, and no other."""
    nights(tmp_path, 1)
    documented = {
        table: set(re.findall(r"`(\w+)`", columns)) - {"nan", "inf"}
        for table, columns in re.findall(r"^\| `(\w+)` \| (.*) \|$", TEXT, re.MULTILINE)
        if table in TABLES
    }
    with contextlib.closing(sqlite3.connect(tmp_path / database.NAME)) as connection:
        tables = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        ).fetchall()
        stored = {
            name: {row[1] for row in connection.execute(f"PRAGMA table_info({name})")} - {"id"}
            for (name,) in tables
        }
    assert documented == stored


def test_document_has_the_numbers_of_the_code() -> None:
    """Application id, schema version and thresholds."""
    words = " ".join(TEXT.split()).replace(" %", "%")
    assert f"`PRAGMA application_id` is {history_schema.APPLICATION_ID}," in words
    assert f"the schema's version ({history_schema.VERSION})" in words
    assert f"the newest {WINDOW} good runs" in words
    assert f"fewer than {MIN_RUNS} such runs" in words
    assert f"`warn` | {WARN_SPREADS:.0f} spreads, widened, or more from the median" in words
    assert f"from the median, and {LEAST:.0%} or more, in the bad direction" in words
    assert f"`fail` | {FAIL_SPREADS:.0f} spreads, widened, or more" in words
    assert f"counted up to {FAR_MADS:.0f} scaled MADs; times {MEAN_SCALE:.4f} (" in words
    assert f"at least {LEAST_SPREAD:.1%} of the median" in words
    assert f"times {SCALE}" in words
    assert f"than {LEAST_ABSOLUTE:f} of the metric's unit" in words
    assert f"times {widening_factor(8):.2f} at 8 runs, {widening_factor(60):.2f} at 60" in words
    assert f"at most the first {WINDOW} good nights" in words
    assert f"With fewer than {MIN_NIGHTS} such nights" in words
    assert f"at most {MAX_DISTANCE:.0f}, less {ALLOWANCE:.0f};" in words
    assert f"and at {THRESHOLD:.0f} the metric fails" in words
    assert f"more than {SHOWN_LOSS:.0%} from the median" in words
    waits = f"up to {database.PATIENCE_S:.0f} s for others ({database.HURRIED_S:.0f} s if"
    assert waits in words


def test_documented_command_excludes_earlier_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command in the document ends the past of a metric."""
    (command,) = re.findall(r"^\$ clustersmoke (references accept .*)$", TEXT, re.MULTILINE)
    nights(tmp_path, 12)
    monkeypatch.setattr(accept_command, "time", Mock(time=lambda: BEGUN + 9.5 * DAY_S))
    assert main([*shlex.split(command), "--report-dir", str(tmp_path)]) == 0
    record = night(12)
    annotate(record, tmp_path)
    past = record["phases"][0]["metrics"]["steps_per_s"]["past"]
    assert past is not None
    assert past["runs"] == 2
