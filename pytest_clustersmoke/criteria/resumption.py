"""Judges whether a training that stopped went on in new processes as if it had not stopped."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest

from ..evidence.job_results import RankResult
from ..evidence.metric import Unmeasured, fail
from ..evidence.phase_result import PhaseResult
from ..evidence.process_start import identity
from ..evidence.telemetry import parse_int, parse_number, parse_numbers, parse_text, parse_texts
from . import (
    finite_values,
    outvoted_ranks,
    repeated_passes,
    training_proofs,
    twin_run,
    workload,
)
from .transport_sides import Transports

# Relative differences between two losses of the same batch on the same weights, computed once
# without an update and once in a step. Kernels that add in any order, or that were chosen anew,
# round otherwise: far less in fp32 than in 16 bits.
SAME_LOSS = {"fp32": 1e-5, "bf16": 1e-2, "fp16": 1e-2}
NOT_ASKED = "the scheduler did not ask the phase to stop"


def _check_transports_inside(phase: PhaseResult) -> None:
    Transports(phase).intra_node.check()


def _check_transports_between(phase: PhaseResult) -> None:
    Transports(phase).inter_node.check()


PROOFS: tuple[Callable[[PhaseResult], None], ...] = (
    finite_values.check_finite_values,
    training_proofs.check_gradients,
    repeated_passes.check_replay,
    outvoted_ranks.check_cross_replay,
    training_proofs.check_replicas,
    workload.check_data,
    workload.check_precision,
    workload.check_samples,
    twin_run.check_twin,
    _check_transports_inside,
    _check_transports_between,
)


def check_resumption(phase: PhaseResult) -> None:
    """Fail unless every rank stopped where the phase or the scheduler asked it to, and was started
    again with the state that was saved, and with the next batch."""
    __tracebackhide__ = True
    asked = _steps_asked(phase)
    if not phase.earlier:
        if asked is None:
            pytest.skip(NOT_ASKED)
        planned = max((rank.steps_planned or 0 for rank in phase.ranks), default=0)
        why = (
            f"its loop has only {planned}"
            if 0 < planned <= asked
            else "does its program save its progress and end when rank.should_stop is true?"
        )
        fail(
            f"the phase was to stop after {asked} steps and go on in new processes, but it started "
            f"once: {why}"
        )
    attempts = (*phase.earlier, phase)
    for before, after in pairwise(attempts):
        unclear: list[Unmeasured] = []
        for rank, resumed in zip(before.ranks, after.ranks, strict=True):
            _check_rank(rank, resumed, asked)
            try:
                _check_next_loss(rank, resumed, training_proofs.list_precisions(after))
            except Unmeasured as error:  # by chance, of two batches of its own
                unclear.append(error)
        if unclear and len(unclear) == len(after.ranks):
            raise unclear[0]
    for rank in (rank for attempt in attempts[1:] for rank in attempt.ranks):
        if unread := _find_unread(rank):
            raise Unmeasured("checkpoint", unread)


def _check_rank(before: RankResult, after: RankResult, asked: int | None) -> None:
    __tracebackhide__ = True
    stop, resume = before.events.last("stop"), after.events.last("resume")
    stopped = parse_int((stop or {}).get("step"))
    if resume is None:
        fail(f"{after} did not load what was saved: its program did not call rank.resume")
    first = parse_int(resume.get("step"))
    if stop is None or (stopped != asked and stop.get("asked") is not True):
        where = "where the scheduler asks" if asked is None else str(asked)
        fail(f"{before} stopped after {stopped} steps; expected {where}")
    if identity(before.start) is None:
        fail(f"{before} recorded no process in its `start`")
    if identity(before.start) == identity(after.start):
        fail(f"{after} went on in the process that stopped; expected a new one")
    if first != stopped:
        fail(f"{after} went on at step {first}; expected {stopped}")
    compared = parse_int(resume.get("tensors")) or _find_unread(after)
    if resume.get("equal") is not True or not compared:
        names = ", ".join(parse_texts(resume.get("mismatched"))) or "it holds no tensors"
        fail(f"{after} loaded another state than was saved: {names}")


def _find_unread(after: RankResult) -> str:
    """Why not all of the state that the rank loaded could be compared; empty if it could."""
    return parse_text((after.events.last("resume") or {}).get("not_measured")) or ""


def _check_next_loss(before: RankResult, after: RankResult, precisions: set[str]) -> None:
    """The first loss after the stop is that of the next step, not that of step 1, which it would be
    if the data had started over."""
    __tracebackhide__ = True
    stop = before.events.last("stop") or {}
    expected, other = (parse_number(stop.get(name)) for name in ("next_loss", "first_loss"))
    if expected is None or other is None:
        fail(
            f"{before} did not compute the loss of the next step: save_progress was called "
            "without next_loss"
        )
    losses = parse_numbers((after.events.last("losses") or {}).get("local_first"))
    found = losses[0] if losses else math.nan
    if abs(found - expected) <= SAME_LOSS["fp32"] * abs(expected):
        return
    share = max(SAME_LOSS.get(name, 0.0) for name in precisions or SAME_LOSS)
    tolerance = share * abs(expected)
    if not abs(found - expected) <= tolerance:
        fail(
            f"{after} had the loss {found} in its first step after the stop; before the stop, the "
            f"same step gave {expected}: the batch or the state is another; expected the same "
            f"within {share:.3%}, as {' or '.join(sorted(precisions)) or 'any precision'} rounds"
        )
    if not precisions:
        raise Unmeasured(
            "data",
            f"{after} had the loss {found} after the stop, {expected} before: the program names no "
            "precision, by which to judge the difference; expected Proof(..., precision=...)",
        )
    if abs(other - expected) <= 2 * tolerance:
        raise Unmeasured(
            "data",
            f"{after} had the loss {found} after the stop, {expected} before; step 1 has {other}, "
            "too close to show which batch it was",
        )


def check_earlier_attempts(phase: PhaseResult) -> None:
    """Fail if a step before the stop is not proven, where the steps after it are."""
    __tracebackhide__ = True
    asked = _steps_asked(phase)
    if not phase.earlier:
        if asked is None:
            pytest.skip(NOT_ASKED)
        fail("no attempt stopped before the last one")
    skipped: list[BaseException] = []
    for attempt in phase.earlier:
        for check in PROOFS:
            try:
                check(attempt)
            except pytest.skip.Exception as error:  # also where it is not measured
                skipped += [error] if _is_measured(check, phase) else []
            except AssertionError as error:
                fail(f"before the stop: {error}")
    if skipped:
        raise skipped[0]


def _is_measured(check: Callable[[PhaseResult], None], phase: PhaseResult) -> bool:
    try:
        check(phase)
    except pytest.skip.Exception:
        return False
    except AssertionError:  # a criterion of the last attempt reports it
        pass
    return True


def _steps_asked(phase: PhaseResult) -> int | None:
    """After how many steps the phase stops; None if it does so only where the scheduler asks."""
    asked = phase.spec.get("resume")
    if not asked:
        pytest.skip("the phase has no `resume`")
    return None if asked is True else parse_int(asked)
