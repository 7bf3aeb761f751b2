"""Whether a training went on as if it had not stopped: what each attempt recorded is judged."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.criteria.past_criterion import judge_past
from pytest_clustersmoke.criteria.phase_criteria import PhaseView, view_phase
from pytest_clustersmoke.criteria.resumption import check_earlier_attempts, check_resumption
from pytest_clustersmoke.evidence.metric import Unmeasured
from pytest_clustersmoke.evidence.phase_result import collect_phase, with_bounds
from pytest_clustersmoke.evidence.run_directory import (
    RESTART,
    PhaseDir,
    create_phase,
    write_json,
)
from pytest_clustersmoke.evidence.telemetry import EventWriter
from tests.support.evidence import make_profile

STOP = {"step": 5, "asked": False, "next_loss": 2.0, "first_loss": 3.0}
RESUME = {"step": 5, "equal": True, "tensors": 4, "mismatched": []}


def two_attempts(
    folder: Path,
    stop: Mapping[str, Any] | None = STOP,
    resume: Mapping[str, Any] | None = RESUME,
    loss: float = 2.0,
    precision: str = "bf16",
    second: int = 1,
    **start: Any,
) -> PhaseView:
    """A rank that stopped after five of ten steps and went on, with these records."""
    place = PhaseDir(folder / "small")
    write_json(place.spec, {"phase": "small", "nodes": 1, "ranks_per_node": 1, "resume": 5})
    for attempt in (place, replace(place, attempt=second)):
        create_phase(attempt, 1)
        later = attempt.attempt == second
        process = {"pid": 100 + attempt.attempt, "pid_started": 5.0 + attempt.attempt}
        events = EventWriter(attempt.rank_events(0))
        events.write("start", rank=0, **(process | (start if later else {})))
        if later and resume is not None:
            events.write("resume", **resume)
        events.write("step", step=10 if later else 5, steps=10)
        if precision:
            events.write("proof", step=6, gradients={"precision": precision})
        mean = [loss, 1.0] if later else [3.0, 2.5]
        events.write("losses", mean=mean, local_first=mean, local_finite=True)
        if not later and stop is not None:
            events.write("stop", **stop)
        events.close()
    return view_phase(collect_phase(place))


def test_training_that_goes_on_passes(tmp_path: Path) -> None:
    """The losses are those of both attempts; tiny differences are those of rounding."""
    phase = two_attempts(tmp_path, loss=2.00001)
    check_resumption(phase)
    assert phase.losses == [3.0, 2.5, 2.00001, 1.0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stop": STOP | {"step": 4}}, "stopped after 4 steps; expected 5"),
        ({"resume": None}, "did not call rank.resume"),
        ({"resume": RESUME | {"step": 0}}, "went on at step 0; expected 5"),
        ({"resume": RESUME | {"equal": False, "mismatched": ["model.w"]}}, "model.w"),
        ({"resume": RESUME | {"tensors": 0}}, "it holds no tensors"),
        ({"pid": 100, "pid_started": 5.0}, "in the process that stopped; expected a new one"),
        ({"loss": 3.0}, "the batch or the state is another"),
        ({"loss": math.nan}, "the batch or the state is another"),
        (
            {"loss": 2.0, "precision": "fp32", "stop": STOP | {"next_loss": 2.002}},
            "0.001%, as fp32",
        ),
        ({"stop": {"step": 5}}, "save_progress was called without next_loss"),
        ({"stop": STOP | {"next_loss": math.nan}}, "the same step gave nan"),
    ],
)
def test_training_that_does_not_go_on_fails(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(AssertionError, match=re.escape(words)):
        check_resumption(two_attempts(tmp_path, **changes))


def test_state_that_could_not_be_read_is_unmeasured(tmp_path: Path) -> None:
    """Parameters on a disk: never a pass, while a wrong batch still fails."""
    unread = RESUME | {"tensors": 0, "not_measured": "on a disk"}
    with pytest.raises(Unmeasured, match=r"\(checkpoint\): on a disk"):
        check_resumption(two_attempts(tmp_path / "one", resume=unread))
    with pytest.raises(AssertionError, match="the batch or the state is another"):
        check_resumption(two_attempts(tmp_path / "two", resume=unread, loss=3.0))


def test_losses_that_are_too_alike_show_no_batch(tmp_path: Path) -> None:
    """Half a percent may be another rounding in 16 bits, or the first batch again."""
    stop = STOP | {"first_loss": 2.01}
    with pytest.raises(Unmeasured, match="too close to show which batch it was"):
        check_resumption(two_attempts(tmp_path, stop=stop, loss=2.01))
    check_resumption(two_attempts(tmp_path / "apart", loss=2.01))


def test_rounding_is_that_of_the_precision(tmp_path: Path) -> None:
    """Half a percent is another rounding in 16 bits, and never in fp32; where the program names no
    precision, nothing shows which of both it is."""
    for precision in ("bf16", "fp16"):
        check_resumption(two_attempts(tmp_path / precision, loss=2.01, precision=precision))
    with pytest.raises(AssertionError, match=re.escape("expected the same within 0.001%")):
        check_resumption(two_attempts(tmp_path / "fp32", loss=2.01, precision="fp32"))
    with pytest.raises(Unmeasured, match="the program names no precision"):
        check_resumption(two_attempts(tmp_path / "none", loss=2.01, precision=""))
    check_resumption(two_attempts(tmp_path / "equal", precision=""))


def test_attempt_that_was_ended_before_it_could_save_fails(tmp_path: Path) -> None:
    """Even if the next one loaded what an earlier attempt had saved."""
    with pytest.raises(AssertionError, match="stopped after None steps; expected 5"):
        check_resumption(two_attempts(tmp_path, stop=None))


def test_failure_before_the_stop_says_so(tmp_path: Path) -> None:
    """A loss that is not finite in the first attempt is found there."""
    phase = two_attempts(tmp_path)
    events = EventWriter(phase.earlier[0].directory.rank_events(0))
    events.write("losses", mean=[math.nan, 2.5], local_first=[math.nan], local_finite=False)
    events.close()
    with pytest.raises(AssertionError, match="before the stop: "):
        check_earlier_attempts(view_phase(collect_phase(phase.directory)))


def test_phase_that_stops_where_the_scheduler_asks(tmp_path: Path) -> None:
    """`resume: true`: a stop that nobody asked for fails; without one, nothing is judged."""
    spec = {"phase": "small", "nodes": 1, "ranks_per_node": 1, "resume": True}
    for name, asked in (("asked", True), ("unasked", False)):
        phase = two_attempts(tmp_path / name, stop={**STOP, "asked": asked})
        write_json(phase.directory.spec, spec)
        phase = view_phase(collect_phase(phase.directory))
        if asked:
            check_resumption(phase)
            continue
        with pytest.raises(AssertionError, match="after 5 steps; expected where the scheduler"):
            check_resumption(phase)
    whole = view_phase(replace(phase, earlier=()))
    for check in (check_resumption, check_earlier_attempts):
        with pytest.raises(pytest.skip.Exception, match="did not ask the phase to stop"):
            check(whole)


def test_phase_without_resume_is_skipped(tmp_path: Path) -> None:
    phase = two_attempts(tmp_path)
    write_json(phase.directory.spec, {"phase": "small", "nodes": 1, "ranks_per_node": 1})
    with pytest.raises(pytest.skip.Exception, match="the phase has no `resume`"):
        check_resumption(view_phase(collect_phase(phase.directory)))


@pytest.mark.parametrize(("proven", "is_judged"), [([1, 2], False), ([1], True), ("x", True)])
def test_reference_is_not_judged_by_a_few_proven_steps(
    tmp_path: Path, proven: Any, is_judged: bool
) -> None:
    """A phase that was requeued shortly before its end has no other steps to time."""
    two_attempts(tmp_path)
    events = EventWriter(replace(PhaseDir(tmp_path / "small"), attempt=1).rank_events(0))
    events.write("proof_plan", seed="0", steps=proven)
    events.write("step_times", seconds=[0.1, 0.1], warmup=0)
    events.write("metrics", values={"steps_per_s": 2.0})
    events.close()
    bound = {"value": 10.0, "lower": "-10 %", "unit": "steps/s", "source": "one night"}
    references = {"small": {"steps_per_s": bound}}
    profile = make_profile(tmp_path, references=references)
    metric = with_bounds(collect_phase(PhaseDir(tmp_path / "small")), profile).metric("steps_per_s")
    words = "the last attempt had only 2 of the steps to do, and its start and the time of proofs"
    with pytest.raises(AssertionError if is_judged else Unmeasured) as caught:
        metric.check()
    assert (words in str(caught.value)) is not is_judged


def test_rate_of_the_part_after_a_requeue_is_compared_with_nothing(tmp_path: Path) -> None:
    """The scheduler chose how many steps are left; their start weighs more than in a whole run."""
    two_attempts(tmp_path, second=RESTART)
    directory = PhaseDir(tmp_path / "small")
    events = EventWriter(replace(directory, attempt=RESTART).rank_events(0))
    events.write("proof_plan", seed="0", steps=[1])
    events.write("step_times", seconds=[0.1, 0.1], warmup=0)
    events.write("metrics", values={"steps_per_s": 2.0})
    events.close()
    bound = {"value": 10.0, "lower": "-10 %", "unit": "steps/s", "source": "one night"}
    profile = make_profile(tmp_path, references={"small": {"steps_per_s": bound}})
    result = with_bounds(collect_phase(directory), profile, tmp_path)
    assert result.directory.restarts == 1
    with pytest.raises(Unmeasured, match="the last attempt had only 2 of the steps"):
        result.metric("steps_per_s").check()
    with pytest.raises(Unmeasured, match="the job was requeued"):
        judge_past(result)
