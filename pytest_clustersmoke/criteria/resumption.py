"""Judges whether a training that stopped went on in new processes as if it had not stopped."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from ..evidence.job_results import RankResult
from ..evidence.metric import fail
from ..evidence.phase_result import PhaseResult
from ..evidence.process_start import identity
from ..evidence.telemetry import parse_finite, parse_int, parse_numbers, parse_text, parse_texts
from . import finite_values, outvoted_ranks, training_proofs

# The same batch on the same weights, computed once without an update and once in a step: the
# kernels are the same, but on a GPU some add in any order. Losses of two batches differ by more.
SAME_LOSS = {"fp32": 1e-5}
SAME_LOSS_16_BIT = 1e-2
PROOFS: tuple[Callable[[PhaseResult], None], ...] = (
    finite_values.check_finite_values,
    training_proofs.check_gradients,
    training_proofs.check_replay,
    outvoted_ranks.check_cross_replay,
    training_proofs.check_replicas,
    training_proofs.check_data,
)


def check_resumption(phase: PhaseResult) -> None:
    """Fail unless every rank stopped where the phase or the scheduler asked it to, and was started
    again with the state that was saved, and with the next batch."""
    __tracebackhide__ = True
    asked = _steps_asked(phase)
    if not phase.earlier:
        fail(
            f"the phase was to stop after {asked} steps and go on in new processes, but it started "
            "once: does its program save its progress and end when rank.should_stop is true?"
        )
    attempts = (*phase.earlier, phase)
    for before, after in pairwise(attempts):
        for rank, resumed in zip(before.ranks, after.ranks, strict=True):
            _check_rank(rank, resumed, asked, phase)


def _check_rank(before: RankResult, after: RankResult, asked: int, phase: PhaseResult) -> None:
    __tracebackhide__ = True
    stop, resume = before.events.last("stop"), after.events.last("resume")
    stopped = parse_int((stop or {}).get("step"))
    if resume is None:
        fail(f"{after} did not load what was saved: its program did not call rank.resume")
    first = parse_int(resume.get("step"))
    if stop is None and first is not None and (before.steps_done or 0) >= first:
        phase.sensitivity.append(
            f"{before} was ended before it could save: it had done {before.steps_done} steps, of "
            f"which those after step {first} were done again"
        )
        return
    if stop is None or (stopped != asked and stop.get("asked") is not True):
        fail(f"{before} stopped after {stopped} steps; expected {asked}")
    if identity(before.start) is None or identity(before.start) == identity(after.start):
        fail(f"{after} went on in the process that stopped; expected a new one")
    if first != stopped:
        fail(f"{after} went on at step {first}; expected {stopped}")
    if resume.get("equal") is not True or not parse_int(resume.get("tensors")):
        names = ", ".join(parse_texts(resume.get("mismatched"))) or "it holds no tensors"
        fail(f"{after} loaded another state than was saved: {names}")
    _check_next_loss(before, after, parse_finite(stop.get("next_loss")), phase)


def _check_next_loss(
    before: RankResult, after: RankResult, expected: float | None, phase: PhaseResult
) -> None:
    __tracebackhide__ = True
    if expected is None:
        fail(f"{before} did not compute the loss of the next step: save_progress has no next_loss")
    losses = parse_numbers((after.events.last("losses") or {}).get("local_first"))
    found = losses[0] if losses else None
    precision = parse_text(after.facts().get("precision")) or parse_text(
        phase.args.get("precision")
    )
    tolerance = SAME_LOSS.get(precision or "", SAME_LOSS_16_BIT)
    if found is None or not abs(found - expected) <= tolerance * abs(expected):
        fail(
            f"{after} had the loss {found} in its first step after the stop; the same step had "
            f"{expected} before it: another batch, or another state"
        )


def check_earlier_attempts(phase: PhaseResult) -> None:
    """Fail if a step before the stop is not proven, where the steps after it are."""
    __tracebackhide__ = True
    _steps_asked(phase)
    if not phase.earlier:
        fail("no attempt stopped before the last one")
    for attempt in filter(lambda attempt: attempt.stopped, phase.earlier):
        for check in PROOFS:
            try:
                check(attempt)
            except pytest.skip.Exception:  # also where it is not measured
                if _is_measured(check, phase):
                    raise


def _is_measured(check: Callable[[PhaseResult], None], phase: PhaseResult) -> bool:
    try:
        check(phase)
    except pytest.skip.Exception:
        return False
    except AssertionError:  # a criterion of the last attempt reports it
        pass
    return True


def _steps_asked(phase: PhaseResult) -> int:
    asked = parse_int(phase.spec.get("resume"))
    if not asked:
        pytest.skip("the phase has no `resume`")
    return asked
