"""Jobs of this machine: which processes are ranks."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.run_directory import PhaseDir
from pytest_clustersmoke.evidence.telemetry import EventWriter
from pytest_clustersmoke.jobs.local_backend import _find_left, _Job
from pytest_clustersmoke.node import process_tree


@pytest.mark.parametrize(
    ("pid", "started"),
    [(0, 1.0), (-5, 1.0), (True, 1.0), ("5", 1.0), (5, float("nan")), (5, "nan"), (5, True)],
)
def test_rank_with_a_malformed_start_is_not_cancelled(
    tmp_path: Path, pid: Any, started: Any
) -> None:
    """Cancelling skips it, and no other rank."""
    directory = PhaseDir(tmp_path)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
        its = (other.pid, process_tree.started_at(other.pid))
        for rank, (its_pid, its_start) in enumerate([(pid, started), its]):
            writer = EventWriter(directory.rank_events(rank))
            writer.write("start", pid=its_pid, pid_started=its_start)
            writer.close()
        job = _Job(nodes=[], directory=directory, world_size=2, submitted=0.0, gpus=[])
        assert [process.pid for process in _find_left(job)] == [other.pid]
