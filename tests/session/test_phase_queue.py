"""What the queue of a run costs grows with its phases, and no faster."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_clustersmoke.config.phase import Phase
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
