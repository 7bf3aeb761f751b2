"""Files of nodes and ranks are seen on NFS even after a look-up that came too early.

NFS remembers for up to a minute that a file was missing, which would hide a job's results.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_clustersmoke.evidence.phase_result import collect_phase
from pytest_clustersmoke.evidence.run_directory import create_phase
from pytest_clustersmoke.evidence.scheduler_record import JobState
from pytest_clustersmoke.jobs import job_watch
from pytest_clustersmoke.jobs.job_watch import WatchedJob
from pytest_clustersmoke.jobs.outcome import judge_job
from pytest_clustersmoke.session.live.event_tail import EventTail
from tests.fakes.nfs import FakeNfs
from tests.support.evidence import Evidence


@pytest.fixture
def nfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNfs:
    return FakeNfs(tmp_path, monkeypatch)


def made(folder: Path) -> Evidence:
    """The directories of a job of two nodes, as the controller creates them."""
    evidence = Evidence(folder, nodes=2)
    create_phase(evidence.dir, 2)
    return evidence


def test_fake_nfs_remembers_missing_files(tmp_path: Path, nfs: FakeNfs) -> None:
    """A file that was looked up too early stays missing until its directory is listed."""
    with nfs.elsewhere():
        (tmp_path / "job").mkdir()
    path = tmp_path / "job" / "late"
    assert not path.exists()
    with nfs.elsewhere():
        path.touch()
    assert not path.exists()
    assert list(path.parent.iterdir()) == [path] and path.exists()


def test_node_results_are_read_after_an_early_look(
    tmp_path: Path, nfs: FakeNfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is checked before its nodes have written anything, and fails soon after."""
    with nfs.elsewhere():
        evidence = made(tmp_path)
    job = WatchedJob("small", "7", evidence.dir, 2, 0.0)
    job.record_state(JobState("running", "RUNNING"))
    assert not job.is_over()
    collect_phase(evidence.dir)
    with nfs.elsewhere():
        for node in (0, 1):
            evidence.node(node, ok=False, reason="preflight", why="it has 1 GPU")
    monkeypatch.setattr(job_watch, "VERDICT_GRACE_S", -1.0)
    state = JobState("ended", "FAILED", "NonZeroExitCode")
    job.record_state(state)
    assert job.is_over() and set(job.results) == {0, 1}
    assert judge_job(collect_phase(evidence.dir), state).reason == "n0: it has 1 GPU"


def test_rank_events_are_read_after_an_early_look(tmp_path: Path, nfs: FakeNfs) -> None:
    """The result has the events that the live view missed."""
    with nfs.elsewhere():
        evidence = made(tmp_path)
    tail = EventTail(evidence.dir.rank_events(0), "")
    tail.read()
    with nfs.elsewhere():
        evidence.done()
    result = collect_phase(evidence.dir)
    assert result.ranks_done == result.world_size == 2
    assert judge_job(result, None).outcome == "passed"
