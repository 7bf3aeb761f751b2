"""What the tests of sessions share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_clustersmoke.jobs import job_watch, poller
from pytest_clustersmoke.session import cancellation, job_session
from tests.support.job_run import WITHIN_S, JobRun, until


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobRun]:
    """A run whose end waits for its watch, however slow this machine is."""
    for name in ("CLOSE_S", "SILENT_S"):
        monkeypatch.setattr(cancellation, name, WITHIN_S)
    for each in (job_session, cancellation):
        monkeypatch.setattr(each, "TICK_S", 0.01)
    monkeypatch.setattr(poller, "FIRST_POLL_S", 0.05)
    for name in ("RESULT_GRACE_S", "FORGOTTEN_LOOK_S", "VERDICT_GRACE_S"):
        monkeypatch.setattr(job_watch, name, 0.05)
    made = JobRun(tmp_path)
    yield made
    for session in made.sessions:
        session.close()
        until(lambda session=session: not session._thread.is_alive())  # type: ignore[misc]
