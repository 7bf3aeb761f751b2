"""Waiting for something that another process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pytest_clustersmoke.evidence.telemetry import read_events

# For a loaded machine: what is measured is measured by the clocks of the evidence.
PATIENCE_S = 240.0
POLL_S = 0.05

Found = TypeVar("Found")


def wait_for(what: str, look: Callable[[], Found | None], patience_s: float = PATIENCE_S) -> Found:
    """Return what `look` returns, once that is true; fail naming `what` after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(POLL_S)
    raise AssertionError(f"waited {patience_s:g} s for {what}")


def wait_for_event(path: Path, event: str) -> dict[str, Any]:
    """Return the first event of this name in a file of events, once it is there."""
    return wait_for(
        f"event `{event}` in {path}", lambda: next(read_events(path).named(event), None)
    )
