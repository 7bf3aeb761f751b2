"""A training that stops and is resumed in new processes, under real torchrun."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from pytest_clustersmoke.criteria.phase_criteria import PhaseView, view_phase
from pytest_clustersmoke.criteria.resumption import check_earlier_attempts, check_resumption
from pytest_clustersmoke.evidence.phase_result import collect_phase
from pytest_clustersmoke.evidence.run_directory import ATTEMPT_VARIABLE, PhaseDir, write_json
from pytest_clustersmoke.rank import resume
from pytest_clustersmoke.rank.rank_environment import read_rank_environment
from pytest_clustersmoke.rank.rank_events import RankEventWriter
from pytest_clustersmoke.rank.resume import Resume
from tests.rank.conftest import PROGRAMS, RUN_WITHIN_S, rank_environment, started, torchrun_line
from tests.support.waiting import wait_for_end

RANKS = 2


def train(folder: Path, *words: str, resume: int, attempts: int) -> PhaseView:
    """Start the program once for each attempt, as the node does; each must end well."""
    place = PhaseDir(folder / "small")
    spec = {"phase": "small", "nodes": 1, "ranks_per_node": RANKS, "args": {"precision": "fp32"}}
    write_json(place.spec, {**spec, "resume": resume})
    for attempt in range(attempts):
        environ = {**rank_environment(place), ATTEMPT_VARIABLE: str(attempt)}
        line = torchrun_line(PROGRAMS / "resumed.py", RANKS, words)
        with started(line, environ) as process:
            output = wait_for_end(process, RUN_WITHIN_S)
        assert process.returncode == 0, output
    return view_phase(collect_phase(place))


@pytest.mark.slow
def test_both_parts_are_the_training_that_does_not_stop(tmp_path: Path) -> None:
    """Losses and final weights are equal bit by bit, with dropout and AdamW; steps count on."""
    whole = train(tmp_path / "whole", resume=0, attempts=1)
    parts = train(tmp_path / "parts", resume=4, attempts=2)
    check_resumption(parts)
    check_earlier_attempts(parts)
    assert [len(attempt.losses) for attempt in (*parts.earlier, parts)] == [4, 6]
    assert parts.losses == whole.losses and len(whole.losses) == 6
    assert parts.fact("final") == whole.fact("final")
    assert parts.steps_done() == {0: 6, 1: 6} and parts.earlier[0].steps_done() == {0: 4, 1: 4}


@pytest.mark.parametrize(
    ("breaks", "words"),
    [
        pytest.param(
            "data",
            "in its first step after the stop; before the stop, the same step gave",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "optimizer", "loaded another state than was saved: optimizer", marks=pytest.mark.slow
        ),
        pytest.param(
            "weights", "loaded another state than was saved: model", marks=pytest.mark.slow
        ),
    ],
)
def test_state_or_data_that_do_not_go_on_are_found(tmp_path: Path, breaks: str, words: str) -> None:
    phase = train(tmp_path, "--breaks", breaks, resume=4, attempts=2)
    with pytest.raises(AssertionError, match=re.escape(words)):
        check_resumption(phase)


def test_resumed_loop_agrees_as_often_as_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of two seconds: the signal is looked for before each, also after 1000 steps of an
    attempt before and a start of a minute. Otherwise it would be seen too late."""
    monkeypatch.setenv("CLUSTERSMOKE_PHASE_DIR", str(tmp_path))
    monkeypatch.setenv(ATTEMPT_VARIABLE, "10")
    write_json(PhaseDir(tmp_path).spec, {"phase": "small", "resume": True})
    monkeypatch.setattr(resume, "reduce_max", lambda values: None)  # a world of one
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    environment = read_rank_environment()
    events = RankEventWriter(environment)
    loop = Resume(environment, events)
    now, loop.first = now + 60, 1000
    loop.begin_loop()
    for step in range(1001, 1005):
        now += 2
        assert loop.may_stop(step)
        assert loop.agree(step, "cpu") is False
    events.close()
