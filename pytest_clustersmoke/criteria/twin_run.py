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
from .training_proofs import NO_PROOF, add_in_any_order, identify_device, require_all_ranks

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
    firsts = {rank: first for rank, r in records.items() if (first := find_first(r)) is not None}
    if firsts:
        _name_first(phase, records, firsts)
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


def find_first(record: Mapping[str, Any]) -> Difference | None:
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


def _name_first(
    phase: PhaseResult, records: Mapping[int, Mapping[str, Any]], firsts: Mapping[int, Difference]
) -> None:
    """Fail with the ranks that differ before all others, unless nothing was to be equal."""
    __tracebackhide__ = True
    guilty = find_guilty(firsts)
    first = firsts[guilty[0]]
    kernels = [records[rank].get("nondeterministic") for rank in guilty]
    if first.kind == "batch":
        raise Unmeasured(
            KIND,
            f"the model saw other data in step {first.step} of the second pass on rank"
            f"{'s' if len(guilty) > 1 else ''} {ranges(guilty)}; a program that draws its data by "
            "step.index sees the same",
        )
    everywhere = [records[rank].get("nondeterministic") for rank in firsts]
    if add_in_any_order(kernels, phase.world_size) or add_in_any_order(
        everywhere, phase.world_size
    ):
        raise Unmeasured(KIND, f"not deterministic: {', '.join(parse_texts(kernels[0]))}")
    if phase.world_size > 1 and len(guilty) > phase.world_size / 2:
        fail(
            f"the second pass gave other bits on {ranges(guilty)} of {phase.world_size} ranks at "
            f"once, first {first}; no rank differed before the others, so a reduction between "
            f"them gave another result in step {max(1, first.step - 1)} or {first.step}"
        )
    if first.kind in UPDATED and phase.world_size > 1:
        fail("\n".join(_describe_update(phase, rank, firsts[rank]) for rank in guilty))
    fail("\n".join(_accuse(phase, rank, firsts[rank]) for rank in guilty))


def find_guilty(firsts: Mapping[int, Difference]) -> list[int]:
    """The ranks that differ before all others."""
    earliest = min((first.step, first.order) for first in firsts.values())
    return [rank for rank, first in sorted(firsts.items()) if (first.step, first.order) == earliest]


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
