"""The queue of a run: what it costs grows with its phases, and no faster; how long it waits for a
scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_clustersmoke.config.phase import Phase
from pytest_clustersmoke.jobs.backend import Refused, Submission
from pytest_clustersmoke.session import phase_queue
from pytest_clustersmoke.session.phase_queue import PhaseQueue
from tests.fakes.backend import FakeBackend
from tests.support.evidence import make_phase, make_profile


def count_shapes(folder: Path, phases: int, alike: bool, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often the queue compares phases until it has given all of them out, one by one."""
    folder.mkdir()
    names = [f"p{number}" for number in range(phases)]
    profile = make_profile(folder, phases=dict.fromkeys(names), limits={"max_jobs": 8})
    made = {
        name: make_phase(profile, name, gpus_per_node=1 if alike else 1 + number % 4)
        for number, name in enumerate(names)
    }
    asked, shape = 0, PhaseQueue._shape

    def count(queue: PhaseQueue, phase: Phase) -> str:
        nonlocal asked
        asked += 1
        return shape(queue, phase)

    monkeypatch.setattr(PhaseQueue, "_shape", count)
    queue = PhaseQueue(made, FakeBackend(), profile.limits)
    taken: list[str] = []
    while queue.waiting:  # seven other jobs run, so there is no room for an array
        (phase,) = queue.take({}, {}, unknown=7)
        taken.append(phase.name)
    monkeypatch.undo()
    assert sorted(taken) == sorted(names)
    return asked


@pytest.mark.parametrize("alike", [True, False])
def test_four_times_the_phases_cost_four_times_the_comparisons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alike: bool
) -> None:
    few = count_shapes(tmp_path / "few", 50, alike, monkeypatch)
    many = count_shapes(tmp_path / "many", 200, alike, monkeypatch)
    assert few >= 50 and many <= 4.4 * few


@pytest.mark.parametrize("between", ["accepted", "refused", ""])
def test_patience_with_the_scheduler_begins_anew_once_it_has_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: str
) -> None:
    """An outage says nothing about another one, an hour later."""
    now, busy = [1000.0], Refused("temporarily unable to accept job", for_now=True)
    monkeypatch.setattr(phase_queue, "time", SimpleNamespace(monotonic=lambda: now[0]))
    profile = make_profile(tmp_path, phases={"a": None}, limits={"scheduler_patience_s": 60})
    phase = make_phase(profile, "a")
    queue = PhaseQueue({"a": phase}, FakeBackend(), profile.limits)
    assert queue.put_back([phase], busy, has_jobs=True)
    now[0] += 30
    if between == "accepted":
        queue.note_answer()
    elif between:
        assert not queue.put_back([phase], Refused("Invalid account"), has_jobs=True)
    now[0] += 60
    assert bool(queue.put_back([phase], busy, has_jobs=True)) == bool(between)


def test_phase_over_a_limit_on_submitted_jobs_waits_for_those_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For as long as one of them is left; others of the user have the scheduler's patience. Nobody
    watches the jobs of a run that detaches, and an array needs more room than its phases."""
    now, limit = [1000.0], Refused("QOSMaxSubmitJobPerUserLimit", at_limit=True)
    monkeypatch.setattr(phase_queue, "time", SimpleNamespace(monotonic=lambda: now[0]))
    profile = make_profile(tmp_path, phases={"a": None}, limits={"scheduler_patience_s": 60})
    phase = make_phase(profile, "a")
    queue = PhaseQueue({"a": phase}, FakeBackend(), profile.limits)
    for _ in range(3):
        assert "until jobs of this run have ended" in queue.put_back([phase], limit, has_jobs=True)
        now[0] += 50
    assert "trying again for up to 60 s" in queue.put_back([phase], limit, has_jobs=False)
    now[0] += 20
    assert queue.put_back([phase], limit, has_jobs=False) == ""
    queue.note_answer()
    words = queue.put_back([phase, phase], limit, has_jobs=True)
    assert "each phase is submitted by itself" in words
    detaching = PhaseQueue({"a": phase}, FakeBackend(), profile.limits, has_cap=False)
    assert detaching.put_back([phase], limit, has_jobs=True) == ""


class WithArrays(FakeBackend):
    """One that could start several phases as one array."""

    def submit_array(
        self, jobs: Sequence[Submission], at_once: int, after: str = ""
    ) -> list[str]:  # pragma: no cover
        raise NotImplementedError


def test_points_of_a_sweep_get_a_job_each_where_arrays_are_refused(tmp_path: Path) -> None:
    """A site may have disabled arrays, or allow fewer submitted jobs than there are points."""
    profile = make_profile(tmp_path, phases={"a": None}, limits={"max_jobs": 8})
    names = [f"a-{number}" for number in range(3)]
    made = {name: make_phase(profile, name, base="a", gpus_per_node=1) for name in names}
    queue = PhaseQueue(made, WithArrays(), profile.limits)
    points = queue.take({}, {}, unknown=0)
    assert [phase.name for phase in points] == names
    words = queue.put_back(points, Refused("Job array specification is invalid"), has_jobs=False)
    assert "each phase is submitted by itself" in words
    for name in names:
        (phase,) = queue.take({}, {}, unknown=0)
        assert phase.name == name
    assert queue.put_back([made["a-0"]], Refused("Invalid account"), has_jobs=False) == ""
