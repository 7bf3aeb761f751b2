"""Jobs of this machine: which processes are their nodes and ranks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_clustersmoke.evidence.run_directory import PhaseDir, RunDir, write_json
from pytest_clustersmoke.evidence.telemetry import EventWriter
from pytest_clustersmoke.jobs.backend import Submission
from pytest_clustersmoke.jobs.local_backend import (
    TOKEN_VARIABLE,
    LocalBackend,
    _abort_after_failed_node,
    _find_left,
    _Job,
)
from pytest_clustersmoke.node import process_tree
from pytest_clustersmoke.node.node_job import RANK_VARIABLE
from tests.support.evidence import make_phase, make_profile
from tests.support.waiting import wait_for


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


@pytest.mark.parametrize(
    ("earlier", "later", "raised"),
    [
        ({"stopped": True}, None, True),
        ({"stopped": True}, {"ok": True}, False),
        ({"ok": False}, None, False),
    ],
    ids=["killed", "done", "failed"],
)
def test_node_that_is_killed_in_a_later_attempt_ends_the_others(
    tmp_path: Path, earlier: dict[str, bool], later: dict[str, bool] | None, raised: bool
) -> None:
    """The result of a planned stop is not that of the attempt after it."""
    directory = RunDir(tmp_path / "run").phase("small")
    attempt = replace(directory, attempt=1)
    for place, result in ((directory, earlier), (attempt, later)):
        place.node_result(0).parent.mkdir(parents=True)
        if result is not None:
            write_json(place.node_result(0), result)
    _abort_after_failed_node(_Job([], directory, 2, 0.0, []), [9, None])
    assert attempt.abort.exists() is raised


@pytest.mark.parametrize(
    ("later", "raw"), [(None, "FAILED"), ({"ok": False}, "FAILED"), ({"ok": True}, "COMPLETED")]
)
def test_node_of_an_earlier_controller_ended_as_its_last_attempt_did(
    tmp_path: Path, later: dict[str, bool] | None, raw: str
) -> None:
    """A node that was killed in a later attempt left a good result in the first."""
    backend, job = submission(tmp_path)
    write_json(job.directory.node_process(0), {"pid": 2**22 + 1, "started": 1.0})  # no such process
    places = (job.directory, replace(job.directory, attempt=1))
    for place, result in zip(places, ({"ok": True, "stopped": True}, later), strict=True):
        place.node_result(0).parent.mkdir(parents=True, exist_ok=True)
        if result is not None:
            write_json(place.node_result(0), result)
    backend.adopt(job, "local-1")
    assert backend.states(["local-1"])["local-1"].raw == raw


@contextmanager
def virtual_node(token: str, rank: int) -> Iterator[subprocess.Popen[bytes]]:
    """The process of a virtual node whose controller was killed before it wrote of it."""
    environ = {**os.environ, TOKEN_VARIABLE: token, RANK_VARIABLE: str(rank)}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=environ) as process:
        # The kernel sets the program's name before its environment, which is empty between the two.
        environment = psutil.Process(process.pid).environ
        wait_for("its environment", lambda: environment().get(TOKEN_VARIABLE) == token)
        yield process
        process.kill()


def submission(folder: Path, nodes: int = 1) -> tuple[LocalBackend, Submission]:
    profile = make_profile(folder)
    directory = RunDir(folder / "20261101-020000-abcdef").phase("small")
    phase = make_phase(profile, nodes=nodes)
    spec = {"nodes": nodes, "ranks_per_node": 1, "token": "t1"}
    write_json(directory.spec, spec)
    return LocalBackend(profile, os.environ), Submission(phase, directory, "t1")


def test_node_of_which_nothing_was_written_is_found_by_its_token(tmp_path: Path) -> None:
    """The controller was killed between the start of the process and the line about it. A process
    of another submission, or of another node, is not taken for it."""
    backend, job = submission(tmp_path)
    with virtual_node("t2", 0), virtual_node("t1", 1), virtual_node("t1", 0) as node:
        (job_id,) = backend.find_submitted([job])
        assert backend.states([job_id])[job_id].kind == "running"
        assert [each.process.pid for each in backend._jobs[job_id].nodes] == [node.pid]
        assert backend.jobs_of_runs([job.directory.run]) == {job.directory.run.run_id: [job_id]}


@pytest.mark.parametrize("has_claimed", [False, True])
def test_job_of_which_some_nodes_were_started_is_ended(tmp_path: Path, has_claimed: bool) -> None:
    """It counts as not submitted, and is started anew; but a phase that it has claimed has had its
    one start."""
    backend, job = submission(tmp_path, nodes=2)
    if has_claimed:
        write_json(job.directory.claim, {"token": "t1", "job_id": "small.0"})
    with virtual_node("t1", 0) as node:
        found = backend.find_submitted([job])
        assert process_tree.find_process(node.pid) is None
    assert found == (["local-20261101-020000-abcdef-small"] if has_claimed else [])
    for state in backend.states(found).values():
        assert state.raw == "CANCELLED"
        assert state.reason == "its controller was killed before it had started every node"
    assert backend.states(["local-20261101-020000-abcdef-other"]) == {}
