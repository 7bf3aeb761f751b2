"""The event that a program writes just before its fault."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_clustersmoke.evidence.run_directory import PhaseDir
from pytest_clustersmoke.evidence.telemetry import EventWriter


def staged() -> None:
    """Write that the fault comes now: the seconds to its finding count from here."""
    phase = PhaseDir(Path(os.environ["CLUSTERSMOKE_PHASE_DIR"]))
    writer = EventWriter(phase.rank_events(int(os.environ["RANK"])))
    writer.write("staged")
    writer.close()
