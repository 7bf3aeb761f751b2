"""Excerpts of real logs get the cause that an expert reads in them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.diagnose.logs import diagnosed

FOLDER = Path(__file__).parent / "failure_logs"
LOGS: list[dict[str, Any]] = json.loads((FOLDER / "expected.json").read_text())


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log["file"].removesuffix(".log"))
def test_first_finding_is_what_an_expert_reads(log: dict[str, Any]) -> None:
    """Its id, cause and next step match `want`; a healthy job has no finding."""
    findings = diagnosed((FOLDER / log["file"]).read_bytes())
    if log["want"] is None:
        assert findings == []
        return
    first = findings[0]
    assert first.id != "unknown"
    assert re.search(log["want"], f"{first.id}\n{first.cause}\n{first.fix}", re.IGNORECASE)


def test_every_log_is_expected() -> None:
    """No log lies in the folder without an expectation."""
    assert {log["file"] for log in LOGS} == {path.name for path in FOLDER.glob("*.log")}
