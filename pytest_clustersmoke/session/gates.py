"""Chooses the phase that a fault is staged in, and derives the small phase to stage it in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest

from ..config.phase import Phase, Sourced, Staged
from ..config.profile import Profile
from ..evidence.transport_rule import TransportRule
from ..faults import FAULTS, HOOK, JOB, NOTHING, Fault
from ..text import near
from .items import PhaseClass, PhaseItem, suite_of

STEPS = "test_all_steps_are_done"
# A class may have this attribute in place of its marker's `small`.
SMALL_ARGS = "proof_args"


@dataclass(frozen=True)
class Candidate:
    """A phase that a fault could be staged in."""

    item: GateItem
    cls: PhaseClass
    phase: Phase
    marks: frozenset[str]
    criteria: tuple[pytest.Item, ...]

    @property
    def names(self) -> frozenset[str]:
        """The names of its criteria, without parameters."""
        return frozenset(item.name.partition("[")[0] for item in self.criteria)

    @property
    def cost(self) -> tuple[int, int]:
        return int(self.phase.nodes.value), self.phase.world_size


def choose_candidate(
    fault: Fault, candidates: Iterable[Candidate], profile: Profile
) -> Candidate | str:
    """The smallest phase that the fault can be staged in, or why there is none."""
    phases = list(candidates)
    misfits = [find_misfit(fault, candidate, profile) for candidate in phases]
    fitting = [candidate for candidate, why in zip(phases, misfits, strict=True) if why is None]
    if fitting:
        return min(fitting, key=lambda candidate: candidate.cost)
    # The phase that passed the most checks gives the most useful reason.
    return max((why for why in misfits if why), key=lambda why: why.checked).reason


class Misfit(NamedTuple):
    """Why a fault cannot be staged in a phase, and how many checks passed before that one."""

    checked: int
    reason: str


def find_misfit(fault: Fault, candidate: Candidate, profile: Profile) -> Misfit | None:
    """The first requirement of the fault that the phase does not meet; None if it meets all."""
    reasons = enumerate(_reasons(fault, candidate, profile))
    return next((Misfit(index, reason) for index, reason in reasons if reason), None)


def _reasons(fault: Fault, candidate: Candidate, profile: Profile) -> Iterator[str]:
    """The result of each check: a reason against the phase, or nothing."""
    absent = sorted(fault.red - {JOB} - candidate.names)
    lacks_mark = bool(fault.mark) and fault.mark not in candidate.marks
    other_backend = bool(fault.backend) and fault.backend != profile.backend
    yield f"{profile.name} is not a {fault.backend} cluster" if other_backend else ""
    yield f"needs {fault.nodes} nodes" if candidate.phase.nodes.value < fault.nodes else ""
    yield f"needs {fault.ranks} ranks" if candidate.phase.world_size < fault.ranks else ""
    yield "needs a phase that trains" if fault.trains and STEPS not in candidate.names else ""
    yield f"needs a phase marked `{fault.mark}`" if lacks_mark else ""
    yield f"needs a phase with {', '.join(absent)}" if absent else ""
    is_judged = bool(fault.red or candidate.item.fault.red)
    yield "" if is_judged else f'needs a criterion marked detects("{fault.name}")'
    yield _explain_transports(fault, candidate, profile) if fault.transports else ""


def _explain_transports(fault: Fault, candidate: Candidate, profile: Profile) -> str:
    """Why switching a transport off would go unnoticed; empty if it would be seen.

    It is seen only where NCCL is used and `expect` does not accept the transport that remains.
    """
    if profile.hardware.device == "cpu":
        return f"the ranks of {profile.name} communicate over gloo, which has no NCCL transports"
    inside = fault.transports == "inside"
    where = "inside nodes" if inside else "between nodes"
    if inside and candidate.phase.gpus_per_node.value < 2:
        return "needs a phase with two ranks per node"
    rule = TransportRule.of(profile.expect.get(candidate.phase.name), inside=inside)
    if rule.is_empty:
        return f"cluster.yaml states no expected transports {where}"
    accepted = [wording for wording in fault.unexpected if not rule.refuse(wording)]
    if accepted:
        return f"`expect` accepts the transport that remains {where}: {accepted[0]}"
    return ""


def with_fault(fault: Fault, candidate: Candidate) -> Phase:
    """The small phase with the fault staged in it; a fault of one rank is staged on the last."""
    source = f"staged: {fault.name}"
    phase = _shrink(candidate, f"{PREFIX}{fault.name}")
    assert phase.staged is not None
    staged = replace(
        phase.staged, fault=fault.name, setup=fault.setup, python_flags=fault.python_flags
    )
    limits = {
        name: Sourced(min(limit, phase.stage_limits_s[name].value), source)
        for name, limit in fault.stage_limits_s.items()
    }
    timeout_s = phase.timeout_s
    if fault.timeout_s is not None:
        timeout_s = Sourced(fault.timeout_s, source)
    return replace(
        phase,
        timeout_s=timeout_s,
        proof=Sourced(fault.proof, source) if fault.proof else phase.proof,
        peaks=Sourced("always", source) if fault.peaks else phase.peaks,
        slurm={**phase.slurm, **_sourced(fault.slurm, source)},
        env_set={**phase.env_set, **_sourced(fault.env, source)},
        env_unset={name: value for name, value in phase.env_unset.items() if name not in fault.env},
        stage_limits_s={**phase.stage_limits_s, **limits},
        staged=staged,
    )


def without_fault(candidate: Candidate) -> Phase:
    """The same small phase with nothing staged, to compare with."""
    return _shrink(candidate, f"{PREFIX}{NOTHING}-{candidate.phase.name}")


def _shrink(candidate: Candidate, name: str) -> Phase:
    phase = candidate.phase
    small_args = getattr(candidate.cls.obj, SMALL_ARGS, {})
    small = {**phase.small, **_sourced(small_args, f"{phase.where}: {SMALL_ARGS}")}
    overridden = {
        name: value for name, value in phase.args.items() if value.source == "--cluster-set"
    }
    staged = Staged(NOTHING, phase.name, phase.world_size - 1, HOOK)
    args = {**phase.args, **small, **overridden}
    # Which phase measures a device would depend on their order, and so would its criterion.
    peaks = Sourced("never", "--cluster-prove")
    return replace(phase, name=name, args=args, writes_gib=0.0, staged=staged, peaks=peaks)


def _sourced(values: Any, source: str) -> dict[str, Sourced]:
    return {name: Sourced(value, source) for name, value in values.items()}


# pytest collects every fault for every phase; the suite keeps the best phase for each.

PREFIX = "prove-"


class GateItem(PhaseItem):
    """One fault staged in one phase; passes if the fault turned its criterion red. `fault` includes
    the criteria that the class marks with `detects`."""

    def __init__(self, *, fault: Fault, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.fault = fault

    @property
    def staged_name(self) -> str:
        """The name of the phase that the fault is staged in."""
        return f"{PREFIX}{self.fault.name}"

    def runtest(self) -> None:
        suite_of(self.config).run_gate(self)


def make_gates(cls: PhaseClass) -> Iterator[GateItem]:
    must, may = read_detections(cls)
    for name, fault in FAULTS.items():
        fault = replace(fault, red=fault.red | must[name], follows=fault.follows | may[name])
        gate: GateItem = GateItem.from_parent(cls, name=f"prove[{name}]", fault=fault)
        yield gate


Detections = dict[str, frozenset[str]]


def read_detections(cls: PhaseClass) -> tuple[Detections, Detections]:
    """Fault -> the criteria of the class that must turn red, and those that may; by their `detects`
    marks."""
    must: Detections = dict.fromkeys(FAULTS, frozenset())
    may: Detections = dict.fromkeys(FAULTS, frozenset())
    for item in cls.criteria:
        for mark in item.iter_markers("detects"):
            if unknown := [name for name in mark.args if name not in list(FAULTS)]:
                hint = near(str(unknown[0]), FAULTS)
                text = (
                    f"{item.nodeid} is marked detects({unknown[0]!r}), which is not a fault that "
                    "can be staged"
                )
                raise cls.CollectError("; ".join(filter(None, [text, hint])))
            detections = must if mark.kwargs.get("required", True) else may
            for name in mark.args:
                detections[name] |= {item.name}
    return must, may
