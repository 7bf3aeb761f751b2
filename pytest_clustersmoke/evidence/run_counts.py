"""What a session counts: what was selected, and what each criterion reported. With the outcomes of
the jobs it decides the verdict.

The tallies are kept while the run goes on; their counts are parts of its record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from ..config.marker import JOB

Result = Literal["passed", "failed", "skipped", "known"]
Outcome = Literal[
    "passed", "failed", "cluster_failed", "never_ran", "preempted", "cancelled", "lost"
]
# The status of a gate. Wrong: something failed, but not what must, or for another reason.
PROVEN_GATE, GREEN_GATE = "proven", "stayed green"
WRONG_GATE, UNSTAGED_GATE = "not as it must be", "not staged"
# It was staged, and nothing in this place could show it.
UNPROVABLE_GATE = "not proven here"
# Proofs of training; each has a check of this name in the view of a phase that criteria get.
TRAINING_PROOFS = {
    "gradients": "check_gradients",
    "data": "check_data",
    "checkpoint": "check_reload",
}
UNJUDGED = "no criterion judged"  # how the reason of a missing kind begins


class RecordModel(BaseModel):
    """A part of report.json. It has no other fields. A field with a default is left out of
    report.json unless it is set."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), defer_build=True)


class KnownRecord(RecordModel):
    """A failure that an entry of `known` in cluster.yaml covers, until a day."""

    what: str
    reason: str
    until: str = Field(description="YYYY-MM-DD")
    where: str = Field(description="file:line")

    @property
    def sentence(self) -> str:
        """The reason, the last day, and the entry's file:line."""
        return f"{self.reason} (known until {self.until}, {self.where})"


class CriterionRecord(RecordModel):
    """The result of one criterion."""

    result: Result
    text: str = Field(
        description="the reason for the result; of one that passed, how small a fault it would "
        "have seen"
    )
    known: KnownRecord | SkipJsonSchema[None] = Field(
        default=None, description="the entry of `known` that covers it, if there is one"
    )
    judged: list[str] = Field(default=[], description="the kinds of criteria that it judged")

    @classmethod
    def of(
        cls, result: Result, text: str = "", known: KnownRecord | None = None, judged: str = ""
    ) -> CriterionRecord:
        """A result; `judged` has kinds joined with commas."""
        made = cls(result=result, text=text)
        if known is not None:
            made.known = known
        if judged:
            made.judged = judged.split(",")
        return made


class AttemptRecord(RecordModel):
    """One job of a phase that was tried again, by its own outcome."""

    attempt: int = Field(description="its number, from 1")
    outcome: Outcome
    reason: str = Field(description="why the outcome is this one")
    job_id: str = Field(description="the scheduler's; empty if nothing was submitted")
    nodes: list[str] = Field(description="the scheduler's names of the nodes that it had")
    failed_nodes: list[str] = Field(description="those that failed, which later jobs did not get")
    submitted: float | None = Field(description="Unix s")
    ended: float | None = Field(description="Unix s")
    queue_s: float | None
    run_s: float | None


class MissingRecord(RecordModel):
    """Something that was required and not measured."""

    phase: str = Field(description="empty: it is not about one phase")
    kind: str = Field(description="of criteria; empty: it is not about one kind")
    reason: str

    def __str__(self) -> str:
        return f"{self.phase}: {self.reason}" if self.phase else self.reason

    @property
    def is_unjudged_proof(self) -> bool:
        """Whether it is a proof of training that no criterion of the phase judged."""
        return self.kind in TRAINING_PROOFS and self.reason.startswith(UNJUDGED)


def describe_missing(missing: Iterable[MissingRecord]) -> list[str]:
    """Everything that is missing, in words; proofs that no criterion judged are named together."""
    words: list[str] = []
    by_phase = defaultdict[str, list[str]](list)
    for each in missing:
        if each.is_unjudged_proof:
            by_phase[each.phase].append(each.kind)
        else:
            words.append(str(each))
    by_kinds = defaultdict[str, list[str]](list)
    for phase, kinds in by_phase.items():
        by_kinds[", ".join(kinds)].append(phase)
    proofs = [f"{', '.join(phases)}: {UNJUDGED} {kinds}" for kinds, phases in by_kinds.items()]
    return [*words, *proofs[:-1], *(f"{each}, as `Trained` does" for each in proofs[-1:])]


class PhaseCounts(RecordModel):
    """What was counted of one phase, beside the results of its criteria."""

    has_ended: bool = Field(default=False, description="how its job ended is known")
    defined: list[str] | None = Field(
        default=None, description="all criteria of its class; null: not known"
    )
    selected: list[str] = Field(default=[], description="those that were to run")
    require: list[str] = Field(
        default=[], description="kinds of criteria that its own settings require"
    )
    judged: list[str] = Field(default=[], description="the kinds that its criteria judged")
    proofs: list[str] = Field(
        default=[], description="proofs of training that it must have, since it trained as it did"
    )
    sides: list[str] = Field(
        default=[], description="where its ranks communicate: inside nodes, between nodes"
    )

    @property
    def is_cut(self) -> bool:
        """Whether some criteria were not selected."""
        return not {*(self.defined or ())} <= {*self.selected}


class RunCounts(RecordModel):
    """What was counted of a run, beside its phases."""

    require: list[str] = Field(
        default=[], description="kinds of criteria without which no phase is FIT"
    )
    selection: str = Field(default="", description="what was selected or changed, in words")
    avoided: list[str] = Field(
        default=[],
        description="nodes that no job got, by --cluster-avoid: the verdict excepts them",
    )
    undefined_phases: list[str] = Field(
        default=[], description="phases of the cluster that no collected test defines"
    )
    is_whole: bool = Field(default=False, description="all files were collected")
    skipped_files: list[str] = Field(
        default=[], description="files skipped at collection, with the reason"
    )
    other_failures: int = Field(default=0, description="failed tests outside the phases")
    failed_tests: list[str] = Field(default=[], description="these tests and files")
    crashed_tests: list[str] = Field(
        default=[], description="tests during which a pytest-xdist worker died"
    )
    exit_status: int = Field(default=0, description="pytest's own, before the verdict")
    signal: str = Field(
        default="", description="the signal that interrupted the run; empty for Ctrl-C"
    )
    cut_off: str = Field(
        default="", description="how the run ended, if its session could not report it"
    )


@dataclass
class PhaseTally:
    """One selected phase, while the run goes on."""

    outcome: str = "lost"  # of its job, until `end` sets it
    criteria: dict[str, CriterionRecord] = field(default_factory=dict)  # that reported, and the job
    unmeasured: set[str] = field(default_factory=set)  # kinds that a criterion could not judge
    counts: PhaseCounts = field(default_factory=PhaseCounts)

    def end(self, outcome: str) -> None:
        """Set how its job ended."""
        self.outcome, self.counts.has_ended = outcome, True

    def as_dict(self) -> dict[str, Any]:
        """Its part of the phase's record."""
        defined, job = self.counts.defined, self.criteria.get(JOB)
        return {
            "outcome": self.outcome,
            "known": job.known if job is not None else None,
            "criteria": self.criteria,
            "all_criteria": defined is not None and {*defined} <= {*self.criteria},
            "not_measured": sorted(self.unmeasured),
            "counts": self.counts,
        }


@dataclass
class RunTally:
    """A run, while it goes on."""

    phases: dict[str, PhaseTally] = field(default_factory=dict)  # those selected
    phases_of_cluster: list[str] = field(default_factory=list)
    interrupted: bool = False
    counts: RunCounts = field(default_factory=RunCounts)

    def phase(self, name: str) -> PhaseTally:
        return self.phases.setdefault(name, PhaseTally())

    def as_dict(self) -> dict[str, Any]:
        """Its part of the run's record, without the phases."""
        return {
            "phases_chosen": list(self.phases),
            "phases_of_cluster": self.phases_of_cluster,
            "interrupted": self.interrupted,
            "counts": self.counts,
        }


class FigureRecord(RecordModel):
    """One figure of a device, or of a node itself, measured before the training."""

    rank: int = Field(description="that measured it")
    node: str
    device: str = Field(
        description="the GPU's UUID; of a CPU its node and local rank; of a network card its GUID "
        "and port; empty: the node"
    )
    name: str
    value: float
    unit: str
    higher_is_better: bool
    model: str = Field(
        default="", description="of the GPU or CPU; of a network card its rate; empty: not known"
    )
    dense_share: float | None = Field(
        default=None,
        description="of what the GPU could multiply at its highest clock; null: not known",
    )


class PairRecord(RecordModel):
    """How fast a GPU copies to another one of its node."""

    rank: int = Field(description="of the GPU that is read")
    node: str
    to: int = Field(description="the local rank of the GPU that is written")
    link: str = Field(description="what connects both, by NVML; empty: not known")
    gb_per_s: float


class PeaksRecord(RecordModel):
    """What the devices of a phase can do, measured before it trained."""

    seconds: float = Field(description="how long that took, on the slowest rank")
    figures: list[FigureRecord]
    calls: int = Field(description="multiplications whose answer was compared, of all ranks")
    wrong: int = Field(description="how many of them gave another answer")
    pairs: list[PairRecord] = Field(
        default_factory=list, description="every two GPUs of a node, both ways"
    )
    not_measured: list[str] = Field(description="figures that are missing, and why")


class GateRecord(RecordModel):
    """A staged fault, and whether its criterion turned red."""

    fault: str
    what: str
    phase: str
    status: str = Field(
        description="proven, stayed green, not as it must be, not proven here, or not staged"
    )
    reasons: list[str]
    expected: list[str]
    red: list[str]
    finding: str
    words: str
    ranks: list[int]
    hosts: list[str]
    seconds: float | None = Field(description="from the fault to its finding")


class ProofRecord(RecordModel):
    """The result of --cluster-prove."""

    cluster: str
    date: str
    planned: list[str]
    proven: list[str]
    stayed_green: list[str]
    gates: list[GateRecord]
    not_applicable: dict[str, str] = Field(description="fault -> why it is not staged here")

    def add(self, gate: GateRecord) -> None:
        """Add a judged gate."""
        self.gates.append(gate)
        lists = {PROVEN_GATE: self.proven, GREEN_GATE: self.stayed_green}
        if gate.status in lists:
            lists[gate.status].append(gate.fault)
