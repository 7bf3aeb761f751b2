"""Judges the twin run: the second pass over the training loop gave the same bits as the first.

Who is at fault is shown by what differs first. A rank's own numbers (its batch, the weights that
its forward pass reads, its loss, its local gradients, its partition of the master weights) differ
on that rank before its error reaches the others, at the next update at the latest. If most ranks
differ at once, the error came to them with a reduction, and nobody is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from ..evidence.metric import Unmeasured, fail
from ..evidence.phase_result import PhaseResult
from ..evidence.telemetry import parse_int, parse_texts
from ..text import ranges
from .repeated_passes import NEVER_REPEATS, add_in_any_order, never_repeat
from .training_proofs import NO_PROOF, Proofs, identify_device, list_proofs, require_all_ranks

KIND = "twin"
# In the order in which a step makes them; a rank's loss and its local gradients show the same pass.
ORDER = {
    "batch": 0,
    "weight": 1,
    "loss": 2,
    "gradient": 2,
    "partition": 3,
    "parameter": 4,
    "moment": 4,
}
UPDATED = ("partition", "parameter", "moment")  # by the reduced gradients, which came over links


@dataclass(frozen=True, order=True)
class Difference:
    """Where a rank's two passes differ first; `step` counts from 1."""

    step: int
    order: int
    kind: str
    name: str

    def __str__(self) -> str:
        of = "" if self.kind in ("batch", "loss") else f" ({self.name})"
        return f"{self.kind}{of} at step {self.step}"


@dataclass(frozen=True)
class Divergence:
    """The ranks whose passes differ before those of all others, each with what differs first.

    `reason` says why equal bits could not be expected; `at_once` is true if most ranks differ at
    the same place, so that the error came to them with a reduction.
    """

    ranks: Mapping[int, Difference]
    reason: str
    at_once: bool

    @property
    def first(self) -> Difference:
        return next(iter(self.ranks.values()))


def check_twin(phase: PhaseResult) -> None:
    """Fail, naming the ranks that differed first; unmeasured without a second pass, and if equal
    bits could not be expected of it."""
    __tracebackhide__ = True
    if phase.spec.get("proof") != "twin":
        pytest.skip("the phase's `proof` is not `twin`")
    records = phase.events("twin")
    if not records:
        raise Unmeasured(KIND, NO_PROOF)
    require_all_ranks(phase, records, "the twin run")
    for rank, record in records.items():
        _require_comparison(phase, rank, record)
    divergence = find_divergence(records, phase.world_size, list_proofs(phase))
    if divergence is not None:
        _fail_for(phase, divergence)
    phase.judged.add(KIND)


def _require_comparison(phase: PhaseResult, rank: int, record: Mapping[str, Any]) -> None:
    """Unmeasured unless the rank trained again, with the same learning rates."""
    if record.get("reason"):
        raise Unmeasured(KIND, str(record["reason"]))
    compared = record.get("compared")
    if not isinstance(compared, dict) or not parse_int(compared.get("loss")):
        raise Unmeasured(KIND, f"{phase.ranks[rank]} compared no step")
    if (step := record.get("rate_differs_at")) is not None:
        raise Unmeasured(
            KIND,
            f"the learning rate of the second pass is another one from step {step} on; a scheduler "
            "outside of Proof.optimizer goes on where it was",
        )


def find_divergence(
    records: Mapping[int, Mapping[str, Any]], world_size: int, proofs: Proofs
) -> Divergence | None:
    """Which ranks differ first, from the `twin` events and the proofs of all ranks; None if both
    passes gave the same bits everywhere."""
    firsts = {rank: first for rank, r in records.items() if (first := _find_first(r)) is not None}
    if not firsts:
        return None
    earliest = min((first.step, first.order) for first in firsts.values())
    ranks = {
        rank: first
        for rank, first in sorted(firsts.items())
        if (first.step, first.order) == earliest
    }
    return Divergence(
        ranks,
        _find_reason(records, firsts, ranks, world_size, proofs),
        at_once=world_size > 1 and len(ranks) > world_size / 2,
    )


def _find_reason(
    records: Mapping[int, Mapping[str, Any]],
    firsts: Mapping[int, Difference],
    ranks: Mapping[int, Difference],
    world_size: int,
    proofs: Proofs,
) -> str:
    """Why the bits need not be equal; empty if they must be. `ranks` are those of `firsts` that
    differ before all others."""
    first = next(iter(ranks.values()))
    if first.kind == "batch":
        return (
            f"the model saw other data in step {first.step} of the second pass on rank"
            f"{'s' if len(ranks) > 1 else ''} {ranges(list(ranks))}; a program that draws its data "
            "by step.index sees the same"
        )
    for differing in (ranks, firsts):
        kernels = [records[rank].get("nondeterministic") for rank in differing]
        if add_in_any_order(kernels, world_size, proofs):
            return f"not deterministic: {', '.join(parse_texts(kernels[0]))}"
    return NEVER_REPEATS if never_repeat(proofs, world_size) else ""


def _find_first(record: Mapping[str, Any]) -> Difference | None:
    """What differs first; of a record that is not sound, something at step 0."""
    differing = record.get("differing")
    if differing == {}:
        return None
    places = differing.items() if isinstance(differing, dict) else ()
    found = [
        Difference(step, ORDER[kind], kind, str(place.get("name")))
        for kind, place in places
        if kind in ORDER and isinstance(place, dict) and (step := parse_int(place.get("step")))
    ]
    return min(found, default=Difference(0, 0, "record", "unknown"))


def _fail_for(phase: PhaseResult, divergence: Divergence) -> None:
    """Fail with the ranks that differ before all others, unless nothing was to be equal."""
    __tracebackhide__ = True
    ranks, first = divergence.ranks, divergence.first
    if divergence.reason:
        raise Unmeasured(KIND, divergence.reason)
    if divergence.at_once:
        fail(
            f"the second pass gave other bits on {ranges(list(ranks))} of {phase.world_size} ranks "
            f"at once, first {first}; no rank differed before the others, so a reduction between "
            f"them gave another result in step {max(1, first.step - 1)} or {first.step}"
        )
    if first.kind in UPDATED and phase.world_size > 1:
        fail("\n".join(_describe_update(phase, rank, at) for rank, at in ranks.items()))
    fail("\n".join(_accuse(phase, rank, at) for rank, at in ranks.items()), wrong_ranks=ranks)


def _describe_update(phase: PhaseResult, rank: int, first: Difference) -> str:
    return (
        f"the second pass gave other bits on {identify_device(phase.ranks[rank])} before the other "
        f"ranks, first {first}, after the same local gradients; expected the same bits. Its own "
        "update or memory was wrong in one of the two passes, or the reduced gradient that it "
        "received: test the device (dcgmi diag -r 3) and the links to it (the all-reduce phases)"
    )


def _accuse(phase: PhaseResult, rank: int, first: Difference) -> str:
    before = " before those of the other ranks" if phase.world_size > 1 else ""
    return (
        f"{identify_device(phase.ranks[rank])} disagrees with itself: trained again from the same "
        f"state, its numbers differ{before}, first {first}; expected the same bits. Its device or "
        "its memory was wrong in one of the two passes: take it out of service and test it (dcgmi "
        "diag -r 3)"
    )
