"""Judges the passes that each rank repeated: does its device compute the same bits again?

A rank that disagrees with itself is named without a majority, unless its program explains that: by
another batch or loss than it trained on, by kernels that add in any order (unless it differs in
every step, and no other rank in any), or by passes that never repeat, on any rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..evidence.metric import Unmeasured, fail
from ..evidence.phase_result import PhaseResult
from ..evidence.telemetry import UNNAMED_KERNELS, parse_int, parse_texts
from .training_proofs import (
    FEWEST_STEPS,
    NO_PROOF,
    Proofs,
    find_reason,
    identify_device,
    list_proofs,
    name_ranks,
    reason_of,
    require_all_ranks,
)

LONE_STEPS, LONE_PEERS = 5, 3
NEVER_REPEATS = (
    "no rank gives the same bits twice in most of its proven steps: kernels that torch does not "
    "know (an extension, Triton) may add in any order, or the program draws from a generator of "
    "its own"
)


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
            if not reason_of(record) and not record.get("replayed"):
                fail(f"{phase.ranks[rank]} repeated no gradient at step {step}; expected all")
    first, kernels = find_disagreements(proofs, phase.world_size)
    elsewhere = [rank for rank in sorted(first) if _drew_anew(rank, first[rank][0], proofs)]
    if elsewhere and kernels in ("", UNNAMED_KERNELS):
        fail(
            f"{name_ranks(phase, elsewhere)} repeated step {first[elsewhere[0]][0]} with another "
            "batch than the step trained on, so nothing shows whether the device computes "
            "correctly; expected Proof.local_loss(index) to compute the loss of the batch of that "
            "step: keep the batch, or draw it by the index, and draw no new one"
        )
    if kernels and (elsewhere or not _differs_alone(phase, first, proofs)):
        raise Unmeasured(
            "replay",
            f"not deterministic: {kernels}; or Proof.local_loss is not the loss of the step"
            f"{_name_few(phase, sorted(first))}",
        )
    if never_repeat(proofs, phase.world_size):
        raise Unmeasured("replay", NEVER_REPEATS)
    if _share_sums(proofs) and len(first) > 1:
        fail(
            f"{name_ranks(phase, sorted(first))} disagree with themselves: repeated from the same "
            "state, a step gave other gradients. The ranks add up in each pass (batch norms, "
            "tensor parallel layers), so the error of one reaches others: each may be the one "
            "that computes wrongly"
        )
    if other := [rank for rank in sorted(first) if _trained_on_another_loss(rank, proofs)]:
        fail(
            f"{name_ranks(phase, other)} trained on another loss than the one that "
            f"Proof.local_loss computes: in each of the {len(proofs)} proven steps all gradients "
            "differ from those of the step, while repeated passes give the same bits. Expected the "
            "loss on which the loop calls backward(), with the same weight, state and batch. If it "
            f"is the same, test {' and '.join(identify_device(phase.ranks[r]) for r in other)} "
            "(dcgmi diag -r 3)"
        )
    if first:
        lines = (_describe_disagreement(phase, rank, *first[rank]) for rank in sorted(first))
        fail("\n".join(lines), wrong_ranks=first)
    if reason := find_reason(proofs) or _describe_hidden(phase, proofs):
        raise Unmeasured("replay", reason)


def _differs_alone(phase: PhaseResult, first: Mapping[int, object], proofs: Proofs) -> bool:
    """Whether one rank differs in each of `LONE_STEPS` proven steps or more, and no other of its
    role in any, of which there are `LONE_PEERS` or more: they run the same kernels. If passes that
    add in any order differ with one chance on all of four ranks, this is seen in at most one run of
    20,000, whatever the chance is."""
    if len(first) != 1 or len(proofs) < LONE_STEPS:
        return False
    (number,) = first
    peers = [rank for rank in phase.ranks if rank.role == phase.ranks[number].role]
    records = [records[number] for records in proofs.values() if number in records]
    return len(peers) > LONE_PEERS and all(record.get("differing_count") for record in records)


def never_repeat(proofs: Proofs, world_size: int) -> bool:
    """Whether every one of several ranks disagrees with itself in most proven steps, also with
    deterministic kernels. So many devices are not wrong so often: what the program computes differs
    each time. A single rank cannot show that, nor can ranks of which one's error reaches all."""
    if world_size < 2 or len(proofs) < FEWEST_STEPS or _share_sums(proofs):
        return False
    by_rank = ([of_step.get(rank, {}) for of_step in proofs.values()] for rank in range(world_size))
    return all(sum(map(_differs_in_any_kernel, records)) > len(records) / 2 for records in by_rank)


def _differs_in_any_kernel(record: Mapping[str, Any]) -> bool:
    """Whether a rank's passes differ, and no kernel that adds in any order explains it."""
    return bool(parse_int(record.get("differing_count"))) and record.get("nondeterministic") == []


def _describe_hidden(phase: PhaseResult, proofs: Proofs) -> str:
    """The ranks whose pass differed when it was repeated, though passes with deterministic kernels
    did not: torch names a kernel that may add in any order. Empty without one."""
    found = {
        rank: parse_texts(record.get("nondeterministic"))
        for records in proofs.values()
        for rank, record in records.items()
        if parse_int(record.get("unequal_count")) and record.get("differing_count") == 0
    }
    if not found:
        return ""
    kernels = ", ".join(next(iter(found.values())))
    return f"not deterministic: {kernels}{_name_few(phase, sorted(found))}"


def _name_few(phase: PhaseResult, ranks: Sequence[int]) -> str:
    """The ranks that differ, if few do: the others have the same kernels."""
    if not 0 < len(ranks) < phase.world_size / 2:
        return ""
    devices = " and ".join(identify_device(phase.ranks[rank]) for rank in ranks)
    return (
        f"; only {devices} {'differs' if len(ranks) == 1 else 'differ'}: test it (dcgmi diag -r 3)"
    )


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
            if not reason_of(record) and record.get("differing_count") != 0:
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
    return _differ_in_most(proofs) or not (world_size == 1 or _share_sums(proofs))


def _share_sums(proofs: Proofs) -> bool:
    """Whether ranks add up in a pass, so that one's error reaches others."""
    records = (record for of_step in proofs.values() for record in of_step.values())
    return any(record.get("shares_sums") is True for record in records)


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
