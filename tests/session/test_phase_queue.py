"""The queue of a run: what it costs grows with its phases, and no faster; how long it waits for a
scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_clustersmoke.config.phase import Phase
from pytest_clustersmoke.evidence.run_directory import PhaseDir
from pytest_clustersmoke.jobs.backend import Refused, Submission
from pytest_clustersmoke.jobs.outcome import Judgement
from pytest_clustersmoke.jobs.poller import watch_job
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
    assert queue.put_back([phase], busy)
    now[0] += 30
    if between == "accepted":
        queue.note_answer()
    elif between:
        assert not queue.put_back([phase], Refused("Invalid account"))
    now[0] += 60
    assert bool(queue.put_back([phase], busy)) == bool(between)


def test_phase_over_a_limit_on_submitted_jobs_waits_for_those_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For as long as one of them may count towards it; then it has the scheduler's patience. Phases
    of another QOS are submitted meanwhile."""
    now, limit = [1000.0], Refused("QOSMaxSubmitJobPerUserLimit", at_limit=True)
    monkeypatch.setattr(phase_queue, "time", SimpleNamespace(monotonic=lambda: now[0]))
    settings = {"a": None, "b": None, "c": {"slurm": {"qos": "debug"}}, "d": None}
    profile = make_profile(
        tmp_path, backend="slurm", phases=settings, limits={"scheduler_patience_s": 60}
    )
    made = {name: make_phase(profile, name, nodes=2) for name in settings}
    queue = PhaseQueue(made, FakeBackend(), profile.limits)
    queue.drop("a")
    job = watch_job(Submission(made["a"], PhaseDir(tmp_path / "a")), "1", "")
    for _ in range(3):
        assert queue.take({"a": job}, {}, 0) == [made["b"]]
        words = queue.put_back([made["b"]], limit, has_jobs=True)
        assert "until jobs of this run have ended" in words
        now[0] += 45  # longer than any pause between two tries
    assert queue.take({"a": job}, {}, 0) == [made["b"]]
    assert "trying again for up to 60 s" in queue.put_back([made["b"]], limit)
    assert queue.take({}, {}, 0) == [made["c"]]
    assert queue.take({}, {}, 0) == []
    now[0] += 60
    assert queue.take({}, {}, 0) == [made["b"]]
    assert queue.put_back([made["b"]], limit) == ""
    queue.note_accepted([made["d"]])
    assert queue.put_back([made["b"]], limit) != ""


@pytest.mark.parametrize("busy_since", [0, 600])
def test_patience_at_a_limit_begins_once_the_run_has_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy_since: int
) -> None:
    """Whenever it was refused last; and it is none with a scheduler that cannot answer."""
    now, limit = [1000.0], Refused("AssocMaxSubmitJobLimit", at_limit=True)
    monkeypatch.setattr(phase_queue, "time", SimpleNamespace(monotonic=lambda: now[0]))
    profile = make_profile(
        tmp_path, phases=dict.fromkeys("ab"), limits={"max_jobs": 1, "scheduler_patience_s": 60}
    )
    made = {name: make_phase(profile, name) for name in "ab"}
    queue = PhaseQueue(made, FakeBackend(), profile.limits)
    job = watch_job(Submission(made["a"], PhaseDir(tmp_path / "a")), "1", "")
    queue.drop("a")
    busy = Refused("temporarily unable to accept job", for_now=True)
    if busy_since:
        assert queue.put_back([*queue.take({}, {}, 0)], busy)
        now[0] += busy_since
    assert queue.put_back([*queue.take({}, {}, 0)], limit, has_jobs=True)
    for _ in range(9):
        now[0] += 50
        assert queue.take({"a": job}, {}, 0) == []  # there is no room
    now[0] += 1
    assert queue.put_back([*queue.take({}, {}, 0)], limit if not busy_since else busy)


def test_limit_on_submitted_jobs_splits_an_array_and_stops_a_run_that_detaches(
    tmp_path: Path,
) -> None:
    """An array counts as all its tasks; nobody watches the jobs of a run that detaches."""
    limit = Refused("QOSMaxSubmitJobPerUserLimit", at_limit=True)
    profile = make_profile(tmp_path, phases=dict.fromkeys("ab"))
    made = {name: make_phase(profile, name) for name in "ab"}
    queue = PhaseQueue(made, FakeBackend(), profile.limits)
    words = queue.put_back([*made.values()], limit, has_jobs=True)
    assert "each phase is submitted by itself" in words
    detaching = PhaseQueue(made, FakeBackend(), profile.limits, has_cap=False)
    assert detaching.put_back([made["a"]], limit, has_jobs=True) == ""


class WithArrays(FakeBackend):
    """One that could start several phases as one array."""

    def submit_array(
        self, jobs: Sequence[Submission], at_once: int, after: str = ""
    ) -> list[str]:  # pragma: no cover
        raise NotImplementedError


@pytest.mark.parametrize("has_cap", [True, False])
def test_points_of_a_sweep_wait_for_room_and_not_in_the_schedulers_queue(
    tmp_path: Path, has_cap: bool
) -> None:
    """As many as can run at a time need it, since nothing widens an array later. The jobs of a run
    that detaches wait in Slurm's queue, since nobody watches them."""
    names = ["first", "a-0", "a-1", "a-2"]
    profile = make_profile(tmp_path, phases={"first": None, "a": None}, limits={"max_jobs": 2})
    points = {n: make_phase(profile, n, base="a", after="first") for n in names[1:]}
    made = {"first": make_phase(profile, "first"), **points}
    queue = PhaseQueue(made, WithArrays(chains=True), profile.limits, has_cap)
    (first,) = queue.take({}, {}, 0)
    job = watch_job(Submission(first, PhaseDir(tmp_path / "first")), "1", "")
    taken = queue.take({"first": job}, {}, 0)
    assert [phase.name for phase in taken] == ([] if has_cap else names[1:])
    if has_cap:
        passed = {"first": Judgement("passed", "")}
        assert queue.take({}, passed, unknown=1) == []
        assert [phase.name for phase in queue.take({}, passed, 0)] == names[1:]


def test_points_of_a_sweep_get_a_job_each_where_arrays_are_refused(tmp_path: Path) -> None:
    """A site may have disabled arrays, or allow fewer submitted jobs than there are points."""
    profile = make_profile(tmp_path, phases={"a": None}, limits={"max_jobs": 8})
    names = [f"a-{number}" for number in range(3)]
    made = {name: make_phase(profile, name, base="a", gpus_per_node=1) for name in names}
    queue = PhaseQueue(made, WithArrays(), profile.limits)
    points = queue.take({}, {}, unknown=0)
    assert [phase.name for phase in points] == names
    words = queue.put_back(points, Refused("Job array specification is invalid"))
    assert "each phase is submitted by itself" in words
    for name in names:
        (phase,) = queue.take({}, {}, unknown=0)
        assert phase.name == name
    assert queue.put_back([made["a-0"]], Refused("Invalid account")) == ""
