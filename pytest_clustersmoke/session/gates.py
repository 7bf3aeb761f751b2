"""Which phase a fault is staged in, and the small phase that is made of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest

from ..config.phase import Phase, Sourced, Staged
from ..config.profile import Expectation, Profile
from ..criteria.transport_sides import matches
from ..faults import FAULTS, HOOK, JOB, NOTHING, Fault
from .items import PhaseClass, PhaseItem, suite_of

STEPS = "test_all_steps_are_done"
# What a class may have in place of its marker's `small`.
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
        """Of its criteria; of one with several parameters, what they share."""
        return frozenset(item.name.partition("[")[0] for item in self.criteria)

    @property
    def cost(self) -> tuple[int, int]:
        return int(self.phase.nodes.value), self.phase.world_size


def best(fault: Fault, candidates: Iterable[Candidate], profile: Profile) -> Candidate | str:
    """The smallest phase that the fault can be staged in, the first of several; or why none can."""
    known = list(candidates)
    misfits = [misfit(fault, one, profile) for one in known]
    fitting = [one for one, why in zip(known, misfits, strict=True) if why is None]
    if fitting:
        return min(fitting, key=lambda one: one.cost)
    # The phase that lacks least says it best: the one that got furthest.
    return max((why for why in misfits if why), key=lambda why: why.checked).reason


class Misfit(NamedTuple):
    """Why a fault cannot be staged in a phase, and how many things had been right before."""

    checked: int
    reason: str


def misfit(fault: Fault, one: Candidate, profile: Profile) -> Misfit | None:
    """The first thing that the fault needs and the phase has not; None where it has all."""
    reasons = enumerate(_reasons(fault, one, profile))
    return next((Misfit(index, reason) for index, reason in reasons if reason), None)


def _reasons(fault: Fault, one: Candidate, profile: Profile) -> Iterator[str]:
    """What stands against it, check by check; empty where nothing does."""
    absent = sorted(fault.red - {JOB} - one.names)
    lacks_mark = bool(fault.mark) and fault.mark not in one.marks
    other_backend = bool(fault.backend) and fault.backend != profile.backend
    yield f"{profile.name} is not a {fault.backend} cluster" if other_backend else ""
    yield f"needs {fault.nodes} nodes" if one.phase.nodes.value < fault.nodes else ""
    yield f"needs {fault.ranks} ranks" if one.phase.world_size < fault.ranks else ""
    yield "needs a phase that trains" if fault.trains and STEPS not in one.names else ""
    yield f"needs a phase marked `{fault.mark}`" if lacks_mark else ""
    yield f"needs a phase with {', '.join(absent)}" if absent else ""
    yield _transports(fault, one, profile) if fault.transports else ""


def _transports(fault: Fault, one: Candidate, profile: Profile) -> str:
    """A transport that is switched off shows only where NCCL is used and another one is expected
    than what remains."""
    if profile.hardware.device == "cpu":
        return f"the ranks of {profile.name} communicate over gloo, which has no NCCL transports"
    inside = fault.transports == "inside"
    where = "inside nodes" if inside else "between nodes"
    if inside and one.phase.gpus_per_node.value < 2:
        return "needs a phase with two ranks per node"
    expect = profile.expect.get(one.phase.name)
    globs = (expect.intra_node if inside else expect.inter_node) if expect else ()
    if expect is None or not (globs or expect.forbid):
        return f"cluster.yaml states no expected transports {where}"
    accepted = [wording for wording in fault.unexpected if _accepted(wording, globs, expect)]
    if accepted:
        return f"`expect` accepts the transport that remains {where}: {accepted[0]}"
    return ""


def _accepted(wording: str, globs: Iterable[str], expect: Expectation) -> bool:
    if any(matches(wording, glob) for glob in expect.forbid):
        return False
    known = list(globs)
    return not known or any(matches(wording, glob) for glob in known)


def with_fault(fault: Fault, one: Candidate) -> Phase:
    """The small phase in which the fault is staged, on its last rank where it is one rank's."""
    source = f"staged: {fault.name}"
    phase = _small(one, f"{PREFIX}{fault.name}")
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
        slurm={**phase.slurm, **_sourced(fault.slurm, source)},
        env_set={**phase.env_set, **_sourced(fault.env, source)},
        env_unset={name: one for name, one in phase.env_unset.items() if name not in fault.env},
        stage_limits_s={**phase.stage_limits_s, **limits},
        staged=staged,
    )


def alone(one: Candidate) -> Phase:
    """The small phase with nothing staged, to compare with."""
    return _small(one, f"{PREFIX}{NOTHING}-{one.phase.name}")


def _small(one: Candidate, name: str) -> Phase:
    phase = one.phase
    given = getattr(one.cls.obj, SMALL_ARGS, {})
    small = {**phase.small, **_sourced(given, f"{phase.where}: {SMALL_ARGS}")}
    said = {name: value for name, value in phase.args.items() if value.source == "--cluster-set"}
    staged = Staged(NOTHING, phase.name, phase.world_size - 1, HOOK)
    return replace(phase, name=name, args={**phase.args, **small, **said}, staged=staged)


def _sourced(values: Any, source: str) -> dict[str, Sourced]:
    return {name: Sourced(value, source) for name, value in values.items()}


# A gate as pytest collects it: every fault of every phase, of which the suite keeps the best.

PREFIX = "prove-"


class GateItem(PhaseItem):
    """One fault staged in one phase: passes where it turned its criterion red, as it must."""

    def __init__(self, *, fault: Fault, **given: Any) -> None:
        super().__init__(**given)
        self.fault = fault

    @property
    def staged_name(self) -> str:
        """The name of the phase in which the fault is staged."""
        return f"{PREFIX}{self.fault.name}"

    def runtest(self) -> None:
        suite_of(self.config).run_gate(self)


def gates(cls: PhaseClass) -> Iterator[GateItem]:
    for fault in FAULTS.values():
        gate: GateItem = GateItem.from_parent(cls, name=f"prove[{fault.name}]", fault=fault)
        yield gate
