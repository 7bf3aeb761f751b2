"""Judges the proofs of training that the ranks recorded: reduction, replicas, reload.

A program that hands `rank.steps` a `Proof` has its first step, its last and some drawn ones proven;
each such step is a `proof` event. One that calls `rank.verify_gradients` proves a single pass. Two
ranks that differ do not show which of them is right, so neither is accused; a rank that disagrees
with itself, or with a majority, is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from ..evidence.job_results import RankResult
from ..evidence.metric import Unmeasured, fail
from ..evidence.phase_result import PhaseResult
from ..evidence.telemetry import (
    parse_finite,
    parse_int,
    parse_text,
    parse_texts,
)
from ..text import plural, ranges
from .finite_values import find_first_step

NO_PROOF = "the program gave rank.steps no `proof`"
FEWEST_STEPS = 3  # proven, that tell a wrong program from a wrong device
SAME_ERROR = 0.01  # what ranks that are off by the same may differ by, as a share
# step -> rank -> its `proof` event.
Proofs = Mapping[int, Mapping[int, Mapping[str, Any]]]


@dataclass(frozen=True)
class _Comparison:
    """The comparison of the ranks' gradients in one pass; `step` is 0 for a pass of its own.
    `sound_until` is the last step before it that was in sync; 0 if none was compared."""

    step: int
    records: Mapping[int, Mapping[str, Any]]
    sound_until: int = 0

    @property
    def where(self) -> str:
        since = f" (in sync until step {self.sound_until})" if self.sound_until else ""
        return f" at step {self.step}{since}" if self.step else ""


def check_gradients(phase: PhaseResult) -> None:
    """Fail unless the gradients that each rank applied matched an all-reduce of its own, in every
    pass that was compared."""
    __tracebackhide__ = True
    proofs, alone = list_proofs(phase), _list_calls(phase, "gradients")
    for records in alone or ([] if proofs else [{}]):
        require_all_ranks(phase, records, "the gradient probe")
    comparisons = [*_compare_steps(phase, proofs), *(_Comparison(0, call) for call in alone)]
    for comparison in comparisons:
        _check_comparison(phase, comparison)
    if reason := find_reason(proofs) or _explain_outside(proofs):
        raise Unmeasured("gradients", reason)
    if not comparisons:
        raise Unmeasured("gradients", "no proven step is left whose numbers are sound")
    sensitive = [
        all(record.get("sensitive") is True for record in comparison.records.values())
        for comparison in comparisons
    ]
    if phase.world_size > 1 and not any(sensitive):
        raise Unmeasured(
            "gradients",
            "the local gradients of the ranks are too similar for a missing all-reduce to show",
        )
    phase.judged.add("gradients")


def _compare_steps(phase: PhaseResult, proofs: Proofs) -> Iterator[_Comparison]:
    """The proven steps that can be judged. A step is left out if it could not be repeated, if a
    rank disagrees with itself, if gradients overflowed under dynamic loss scaling, and after a
    number that is not finite: it is wrong for all ranks, and criteria of their own name the rank.
    A step in which a rank disagrees is judged all the same if all gradients are one multiple of
    their mean: neither a wrong device nor kernels that add in any order lead to that.
    """
    finite_before, sound_until = find_first_step(phase), 0
    for step, records in proofs.items():
        require_all_ranks(phase, records, f"the proof of step {step}")
        gradients = {rank: record.get("gradients") for rank, record in records.items()}
        sound = {rank: g if isinstance(g, dict) else {} for rank, g in gradients.items()}
        differs = any(record.get("differing_count") for record in records.values())
        repeated = not any(
            reason_of(record) or record.get("overflowed") is True for record in records.values()
        ) and (not differs or all(map(_find_factor, sound.values())))
        if repeated and step < finite_before:
            yield _Comparison(step, sound, sound_until)
            sound_until = step  # the caller fails at the first that is not


def _check_comparison(phase: PhaseResult, comparison: _Comparison) -> None:
    __tracebackhide__ = True
    for rank, record in comparison.records.items():
        if record.get("compared") != record.get("parameters") or not record.get("compared"):
            fail(
                f"{phase.ranks[rank]} compared the gradients of {record.get('compared')} of "
                f"{record.get('parameters')} parameters{comparison.where}; expected all of them"
            )
    # The error is a share of the ranks' own gradients: of many ranks with little in common, half of
    # the mean is within the tolerance.
    unsynced = [
        rank
        for rank, record in comparison.records.items()
        if record.get("synced") is not True or _find_factor(record) is not None
    ]
    if unsynced:
        record = comparison.records[unsynced[0]]
        fail(
            f"gradients are not in sync on {name_ranks(phase, unsynced)}{comparison.where}: "
            f"{_describe_factor(record, phase.world_size)}relative error "
            f"{record.get('max_relative_error')} at {record.get('worst')}, tolerance "
            f"{record.get('tolerance')} for {record.get('precision')}"
            f"{_guess_cause(comparison) if len(unsynced) == phase.world_size else ''}"
        )


def _find_factor(record: Mapping[str, Any]) -> float | None:
    """The multiple of their mean that all gradients are; None if they are not, or equal it."""
    factor = parse_finite(record.get("factor"))
    tolerance = parse_finite(record.get("tolerance")) or 0
    return None if factor is None or abs(factor - 1) <= tolerance else factor


def _describe_factor(record: Mapping[str, Any], world_size: int) -> str:
    """How all gradients are a multiple of their mean; empty if they are not."""
    factor = _find_factor(record)
    tolerance = parse_finite(record.get("tolerance")) or 0
    if factor is None:
        return ""
    ranks = parse_int(record.get("ranks")) or world_size
    if abs(factor / ranks - 1) <= tolerance:
        number = "world size" if ranks == world_size else "number of replicas"
        return f"scaled by {factor:.4g} (the {number}): summed, not averaged; "
    return f"scaled by {factor:.4g}; "


def _guess_cause(comparison: _Comparison) -> str:
    """What a program may have wrong, where the gradients of all ranks look like that; empty if they
    do not."""
    records = list(comparison.records.values())
    off, parameters = (parse_int(records[0].get(name)) for name in ("off_count", "parameters"))
    if not off or not parameters:
        return ""
    if comparison.sound_until and off == parameters and _may_be_left_over(records):
        return (
            "; gradients of earlier steps may still be there: call optimizer.zero_grad() in each "
            "step, and build the optimizer with all trained parameters"
        )
    if off == parameters and comparison.step and all(map(_find_factor, records)):
        return (
            "; if the program clips or scales gradients, call step.backward_done() before it does; "
            "if it weights the loss that it trains on, Proof.local_loss must weight it as well"
        )
    if comparison.sound_until or off > parameters / 2:
        return ""
    names = parse_texts(records[0].get("off"))
    more = f" and {off - len(names)} more" if off > len(names) else ""
    return (
        f"; the gradients of {off} of {parameters} parameters are wrong ({', '.join(names)}{more}),"
        " the others are not: if their module is outside the wrapper (DDP, DeepSpeed), nothing "
        "reduces them"
    )


def _may_be_left_over(records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether gradients of earlier steps may have been added to those of this one: all ranks are
    then off by the same amount, usually by more than 1. Without a reduction each rank is off by its
    own distance from the mean: seldom more than 1, and then not the same on all ranks."""
    errors = [parse_finite(record.get("max_relative_error")) or 0.0 for record in records]
    alike = max(errors) - min(errors) <= SAME_ERROR * max(errors)
    return alike and (len(errors) == 1 or min(errors) > 1)


def reason_of(record: Mapping[str, Any]) -> str:
    """Why a rank could not repeat its step; empty if it could."""
    return parse_text(record.get("not_measured")) or ""


def find_reason(proofs: Proofs) -> str:
    reasons = (reason_of(record) for records in proofs.values() for record in records.values())
    return next(filter(None, reasons), "")


def _explain_outside(proofs: Proofs) -> str:
    """Why the proofs do not cover all that is trained; empty if they do."""
    records = [record for by_rank in proofs.values() for record in by_rank.values()]
    count = max((parse_int(record.get("outside")) or 0 for record in records), default=0)
    if not count:
        return ""
    return (
        f"the optimizer has {plural(count, 'trained parameter')} that Proof.model does not have, "
        "so nothing shows that their gradients are reduced; hand Proof a module that has all "
        "trained parameters"
    )


def identify_device(rank: RankResult) -> str:
    """The rank with its host, and the UUID of its GPU."""
    device = f", {rank.gpu_uuid}" if rank.gpu_uuid else ""
    return f"{rank} on {rank.host}{device}"


def check_replicas(phase: PhaseResult) -> None:
    """Fail if the ranks' parameters stopped being equal, with the steps between which they did."""
    __tracebackhide__ = True
    if phase.world_size < 2:
        pytest.skip("there is no other rank to compare with")
    records = phase.events("replicas")
    if not records:
        raise Unmeasured("replicas", f"{NO_PROOF}, and no `gradients_of`")
    require_all_ranks(phase, records, "the comparison of parameters")
    record = records[0]
    if record.get("sharded") is True:
        raise Unmeasured("replicas", "the parameters are sharded: no two ranks hold the same part")
    if record.get("equal") is True and record.get("compared"):
        return
    until, at = record.get("equal_until"), record.get("differ_at")
    if type(at) is int and at >= find_first_step(phase):
        raise Unmeasured("replicas", f"not every number is finite from step {at} on")
    since = f"equal until step {until}" if until else "not known to be equal before"
    fail(
        f"{_describe_groups(phase, record)} from step {at} on ({since}); the first parameter that "
        f"differs is {record.get('parameter')}; expected the same bits on all ranks"
    )


def _describe_groups(phase: PhaseResult, record: Mapping[str, Any]) -> str:
    """Which ranks differ, of those that hold the same part of the model. A group smaller than half
    is named; otherwise nothing shows who is right."""
    raw = record.get("groups")
    groups = [
        [rank for rank in group if type(rank) is int and 0 <= rank < phase.world_size]
        for group in (raw if isinstance(raw, list) else [])
        if isinstance(group, list)
    ]
    largest = max(groups, key=len, default=[])
    others = sorted(rank for group in groups if group is not largest for rank in group)
    if len(largest) > len(others) > 0:
        verb = "differs" if len(others) == 1 else "differ"
        return f"{name_ranks(phase, others)} {verb} from most ranks in the parameters"
    return f"ranks {ranges(sorted(largest + others))} differ in the parameters"


def replicas_differ(phase: PhaseResult) -> bool:
    """Whether ranks recorded that their parameters differ."""
    records = phase.events("replicas").values()
    return any(record.get("equal") is not True and not record.get("sharded") for record in records)


def check_reload(phase: PhaseResult) -> None:
    """Fail unless every rank read the checkpoint back into a new model, bit for bit.

    Unmeasured if the ranks held different parameters: one rank's checkpoint then cannot equal the
    state of the others, and it is not the checkpoint that is at fault.
    """
    __tracebackhide__ = True
    unmeasured: list[Unmeasured] = []
    for records in _list_calls(phase, "reload") or [{}]:
        require_all_ranks(phase, records, "the comparison after reload")
        try:
            _check_reloaded(phase, records)
        except Unmeasured as error:  # a later call may fail
            unmeasured.append(error)
    if unmeasured:
        raise unmeasured[0]
    phase.judged.add("checkpoint")


def _check_reloaded(phase: PhaseResult, records: Mapping[int, Mapping[str, Any]]) -> None:
    """What each rank found in one call of `rank.verify_reload`."""
    __tracebackhide__ = True
    for rank, record in records.items():
        compared = record.get("tensors") or reason_of(record)
        if record.get("equal") is not True or not compared:
            if record.get("tensors") and _has_buffers_of_another(record, records):
                continue
            if record.get("tensors") and replicas_differ(phase):
                raise Unmeasured(
                    "checkpoint", "the ranks trained different parameters, and one was saved"
                )
            fail(
                f"the reloaded checkpoint differs on {phase.ranks[rank]}: "
                f"{record.get('tensors')} tensors compared with what was saved, mismatched: "
                f"{record.get('mismatched')}"
            )
    if reason := next(filter(None, map(reason_of, records.values())), ""):
        raise Unmeasured("checkpoint", reason)
    if shared := next(filter(None, (parse_texts(r.get("shared")) for r in records.values())), []):
        raise Unmeasured(
            "checkpoint",
            f"`reload` returned tensors of the state that was saved ({', '.join(shared)}), so "
            "nothing shows that they were loaded; build the model and the optimizer anew in it",
        )


def _has_buffers_of_another(
    record: Mapping[str, Any], records: Mapping[int, Mapping[str, Any]]
) -> bool:
    """Whether all that differs are buffers, and the checkpoint has those of a rank that found it
    equal. The batch norms of a replica have statistics of its own, and one replica is saved."""
    found = record.get("reloaded_buffers")
    saved = [r.get("buffers") for r in records.values() if r.get("equal") is True]
    return record.get("only_buffers_differ") is True and type(found) is str and found in saved


def require_all_ranks(phase: PhaseResult, records: Mapping[int, Any], subject: str) -> None:
    """Fail if a rank is missing."""
    __tracebackhide__ = True
    missing = [rank.rank for rank in phase.ranks if rank.rank not in records]
    if missing or len(phase.ranks) != phase.world_size:
        fail(f"rank {missing[0] if missing else '?'} reported no result of {subject}")


def _list_calls(phase: PhaseResult, event: str) -> list[dict[int, dict[str, Any]]]:
    """What the ranks recorded in each call of a proof that a program may make several times, by
    rank; a rank that made fewer is missing in the last ones."""
    calls: list[dict[int, dict[str, Any]]] = []
    for rank in phase.ranks:
        for number, record in enumerate(rank.events.named(event)):
            if number == len(calls):
                calls.append({})
            calls[number][rank.rank] = record
    return calls


def list_proofs(phase: PhaseResult) -> dict[int, dict[int, dict[str, Any]]]:
    """step -> rank -> its `proof` event, in the order of the steps."""
    by_step: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
    for rank in phase.ranks:
        for record in rank.events.named("proof"):
            step = record.get("step")
            by_step[step if type(step) is int else -1][rank.rank] = record
    return dict(sorted(by_step.items()))


def list_precisions(phase: PhaseResult) -> set[str]:
    """Those that the program named for the passes it proved; empty if it proved none."""
    proofs = [record.get("gradients") for r in phase.ranks for record in r.events.named("proof")]
    passes = [*proofs, *phase.events("gradients").values()]
    return {str(p["precision"]) for p in passes if isinstance(p, dict) and "precision" in p}


def name_ranks(phase: PhaseResult, ranks: Sequence[int]) -> str:
    """One rank with its host, several by their numbers, or all."""
    if len(ranks) == 1:
        return str(phase.ranks[ranks[0]])
    return "all ranks" if len(ranks) == phase.world_size else f"ranks {ranges(ranks)}"
