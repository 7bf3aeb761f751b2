"""Judges the proofs of training that the ranks recorded: reduction, repetition, replicas, reload.

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
    UNNAMED_KERNELS,
    parse_finite,
    parse_int,
    parse_text,
    parse_texts,
)
from ..text import ranges
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
    proofs, alone = list_proofs(phase), phase.events("gradients")
    if not proofs:
        require_all_ranks(phase, alone, "the gradient probe")
    comparisons = [*_compare_steps(phase, proofs), *([_Comparison(0, alone)] if alone else [])]
    for comparison in comparisons:
        _check_comparison(phase, comparison)
    if reason := _find_reason(proofs):
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
            _reason_of(record) or record.get("overflowed") is True for record in records.values()
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
    unsynced = [rank for rank, r in comparison.records.items() if r.get("synced") is not True]
    if unsynced:
        record = comparison.records[unsynced[0]]
        fail(
            f"gradients are not in sync on {_name_ranks(phase, unsynced)}{comparison.where}: "
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


def check_replay(phase: PhaseResult) -> None:
    """Fail, naming each rank whose own pass gave other bits when it was repeated; unmeasured if the
    program gave no proof, or if its kernels add in any order."""
    __tracebackhide__ = True
    proofs = list_proofs(phase)
    if not proofs:
        raise Unmeasured("replay", NO_PROOF)
    for step, records in proofs.items():
        require_all_ranks(phase, records, f"the proof of step {step}")
        for rank, record in records.items():
            if not _reason_of(record) and not record.get("replayed"):
                fail(f"{phase.ranks[rank]} repeated no gradient at step {step}; expected all")
    first, kernels = find_disagreements(proofs, phase.world_size)
    elsewhere = [rank for rank in sorted(first) if _drew_anew(rank, first[rank][0], proofs)]
    if elsewhere and kernels in ("", UNNAMED_KERNELS):
        fail(
            f"{_name_ranks(phase, elsewhere)} repeated step {first[elsewhere[0]][0]} with another "
            "batch than the step trained on, so nothing shows whether the device computes "
            "correctly; expected Proof.local_loss(index) to compute the loss of the batch of that "
            "step: keep the batch, or draw it by the index, and draw no new one"
        )
    if kernels:
        raise Unmeasured(
            "replay",
            f"not deterministic: {kernels}; or Proof.local_loss is not the loss of the step",
        )
    if _share_statistics(proofs) and len(first) > 1:
        fail(
            f"{_name_ranks(phase, sorted(first))} disagree with themselves: repeated from the same "
            "state, a step gave other gradients. Batch norms average over the ranks, so the error "
            "of one of them reaches all: each may be the one that computes wrongly"
        )
    if other := [rank for rank in sorted(first) if _trained_on_another_loss(rank, proofs)]:
        fail(
            f"{_name_ranks(phase, other)} trained on another loss than the one that "
            f"Proof.local_loss computes: in each of the {len(proofs)} proven steps all gradients "
            "differ from those of the step, while repeated passes give the same bits. Expected the "
            "loss on which the loop calls backward(), with the same weight, state and batch. If it "
            f"is the same, test {' and '.join(identify_device(phase.ranks[r]) for r in other)} "
            "(dcgmi diag -r 3)"
        )
    if first:
        lines = (_describe_disagreement(phase, rank, *first[rank]) for rank in sorted(first))
        fail("\n".join(lines), wrong_ranks=first)
    if reason := _find_reason(proofs):
        raise Unmeasured("replay", reason)


def _drew_anew(rank: int, step: int, proofs: Proofs) -> bool:
    """Whether the model got other tensors when the rank repeated this step. Not if it also did in a
    step that gave the same bits: then it ran for something else as well."""
    agreeing = [of_step[rank] for of_step in proofs.values() if rank in of_step]
    agreeing = [record for record in agreeing if record.get("differing_count") == 0]
    return _saw_another_batch(proofs[step][rank]) and not any(map(_saw_another_batch, agreeing))


def _trained_on_another_loss(rank: int, proofs: Proofs) -> bool:
    """Whether all gradients of each proven step differ from those of its repetitions, which agree
    with each other. A device that is wrong in every step would be so in the repetitions as well."""
    records = [of_step[rank] for of_step in proofs.values() if rank in of_step]
    return len(records) >= FEWEST_STEPS and all(
        record.get("differing_count") == record.get("replayed")
        and parse_texts(record.get("nondeterministic")) == [UNNAMED_KERNELS]
        for record in records
    )


def _saw_another_batch(record: Mapping[str, Any]) -> bool:
    batches = {parse_int(record.get("batch")), parse_int(record.get("repeated_batch"))}
    return None not in batches and len(batches) > 1


def find_disagreements(
    proofs: Proofs, world_size: int
) -> tuple[dict[int, tuple[int, Mapping[str, Any]]], str]:
    """Each rank that disagrees with itself, with the first step at which it does and its record
    there; and the kernels that explain it, empty if none do."""
    first: dict[int, tuple[int, Mapping[str, Any]]] = {}
    for step, records in proofs.items():
        for rank, record in records.items():
            if not _reason_of(record) and record.get("differing_count") != 0:
                first.setdefault(rank, (step, record))
    kernels = [record.get("nondeterministic") for _, record in first.values()]
    explained = add_in_any_order(kernels, world_size, proofs)
    return first, ", ".join(parse_texts(kernels[0])) if explained else ""


def add_in_any_order(kernels: Sequence[Any], world_size: int, proofs: Proofs) -> bool:
    """Whether the ranks whose passes differ, with the kernels that each of them lists, differ since
    kernels add in any order.

    All ranks run the same kernels: where torch did not name them, all ranks must differ. That says
    nothing if there is only one, or if one's error reaches all; the proven steps must show it then.
    """
    listed = [parse_texts(of_rank) for of_rank in kernels]
    if not listed or not all(listed):
        return False
    if all(any(text != UNNAMED_KERNELS for text in of_rank) for of_rank in listed):
        return True
    if len(listed) < world_size:
        return False
    return _differ_in_most(proofs) or not (world_size == 1 or _share_statistics(proofs))


def _share_statistics(proofs: Proofs) -> bool:
    """Whether batch norms average over the ranks, so that one's error reaches all."""
    records = (record for of_step in proofs.values() for record in of_step.values())
    return any(record.get("shares_statistics") is True for record in records)


def _differ_in_most(proofs: Proofs) -> bool:
    """Whether more than half of the proven steps differ, on any rank, and in each of them all
    passes with deterministic kernels are equal. With a kernel that adds in any order it is so; a
    device that is wrong so often seldom gives that many equal passes."""
    differing = [
        [record for record in records.values() if record.get("differing_count")]
        for records in proofs.values()
    ]
    explained = all(
        parse_texts(record.get("nondeterministic")) for records in differing for record in records
    )
    return explained and sum(map(bool, differing)) > len(proofs) / 2


def _reason_of(record: Mapping[str, Any]) -> str:
    """Why a rank could not repeat its step; empty if it could."""
    return parse_text(record.get("not_measured")) or ""


def _find_reason(proofs: Proofs) -> str:
    reasons = (_reason_of(record) for records in proofs.values() for record in records.values())
    return next(filter(None, reasons), "")


def _describe_disagreement(
    phase: PhaseResult, rank: int, step: int, record: Mapping[str, Any]
) -> str:
    differing = record.get("differing")
    names = ", ".join(map(str, differing)) if isinstance(differing, list) else "unknown"
    return (
        f"{identify_device(phase.ranks[rank])} disagrees with itself: repeated from the same "
        f"state, step {step} gave other gradients for {record.get('differing_count')} of "
        f"{record.get('replayed')} parameters ({names}); expected the same bits. Its device or its "
        "memory computes wrongly: take it out of service and test it (dcgmi diag -r 3)"
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
    """Which ranks differ. A group smaller than half is named; otherwise nothing shows who is
    right."""
    raw = record.get("groups")
    groups = [
        [rank for rank in group if type(rank) is int and 0 <= rank < phase.world_size]
        for group in (raw if isinstance(raw, list) else [])
        if isinstance(group, list)
    ]
    largest = max(groups, key=len, default=[])
    others = sorted(rank for group in groups if group is not largest for rank in group)
    if len(largest) > phase.world_size / 2 and others:
        verb = "differs" if len(others) == 1 else "differ"
        return f"{_name_ranks(phase, others)} {verb} from most ranks in the parameters"
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
    records = phase.events("reload")
    require_all_ranks(phase, records, "the comparison after reload")
    for rank, record in records.items():
        compared = record.get("tensors") or _reason_of(record)
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
    if reason := next(filter(None, map(_reason_of, records.values())), ""):
        raise Unmeasured("checkpoint", reason)
    if shared := next(filter(None, (parse_texts(r.get("shared")) for r in records.values())), []):
        raise Unmeasured(
            "checkpoint",
            f"`reload` returned tensors of the state that was saved ({', '.join(shared)}), so "
            "nothing shows that they were loaded; build the model and the optimizer anew in it",
        )
    phase.judged.add("checkpoint")


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


def _name_ranks(phase: PhaseResult, ranks: Sequence[int]) -> str:
    """One rank with its host, several by their numbers, or all."""
    if len(ranks) == 1:
        return str(phase.ranks[ranks[0]])
    return "all ranks" if len(ranks) == phase.world_size else f"ranks {ranges(ranks)}"
