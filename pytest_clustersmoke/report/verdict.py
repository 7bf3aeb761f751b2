"""FIT, UNFIT or INCONCLUSIVE with its exit status: a pure function of a run's tally.

UNFIT: something failed. INCONCLUSIVE: nothing failed, but something required was not measured, or a
failure is known, or an xfail has no entry of `known`. UNFIT beats INCONCLUSIVE; a verdict is never
better than its evidence. A proof has a verdict of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ..evidence.job_results import NOT_MEASURED
from ..evidence.metric import RESULT

JOB = "job"  # the name under which a job is listed among the criteria of its phase

# A phase is FIT only if these could be judged where they were looked at, whatever its cluster
# requires: the proofs that training is correct, and the result itself. The sentence names those of
# OF_PROGRAM that could not be judged.
ALWAYS_REQUIRED = frozenset({"gradients", "data", "checkpoint", RESULT})
OF_PROGRAM = ("replay", "replicas", "samples", "precision", "data", "gradients")
EXIT_INCONCLUSIVE = 6  # pytest itself uses 0 to 5
FIT, UNFIT, INCONCLUSIVE = "FIT", "UNFIT", "INCONCLUSIVE"
PROVEN, NOT_PROVEN = "PROVEN", "NOT PROVEN"  # verdicts on gates, of --cluster-prove
EXIT_STATUSES = {FIT: 0, PROVEN: 0, UNFIT: 1, NOT_PROVEN: 1, INCONCLUSIVE: EXIT_INCONCLUSIVE}


@dataclass(frozen=True)
class KnownFailure:
    """A failure that an entry of `known` in cluster.yaml covers."""

    what: str
    reason: str
    until: str
    where: str

    @property
    def sentence(self) -> str:
        """The reason, the last day, and the entry's file:line."""
        return f"{self.reason} (known until {self.until}, {self.where})"


@dataclass(frozen=True)
class CriterionResult:
    """The result of one criterion."""

    result: Literal["passed", "failed", "skipped", "known"]
    text: str = ""
    known: KnownFailure | None = None
    judged: tuple[str, ...] = ()  # the kinds of criteria that it judged

    def as_dict(self) -> dict[str, Any]:
        made = asdict(self)
        return {name: value for name, value in made.items() if value not in (None, ())}


@dataclass(frozen=True)
class MissingMeasurement:
    """Something that was required and not measured; not about one phase or kind if that is
    empty."""

    reason: str
    phase: str = ""
    kind: str = ""

    def __str__(self) -> str:
        return f"{self.phase}: {self.reason}" if self.phase else self.reason


@dataclass
class PhaseTally:
    """The counts of one selected phase."""

    name: str
    outcome: str = ""  # of its job; empty until the job has ended
    criteria: dict[str, CriterionResult] = field(default_factory=dict)  # that reported, and the job
    defined: frozenset[str] | None = None  # all criteria of its class; None: unknown
    selected: frozenset[str] = frozenset()  # the defined criteria that were to run
    judged: set[str] = field(default_factory=set)  # kinds that a criterion judged
    unmeasured: set[str] = field(default_factory=set)  # kinds that a criterion could not judge
    sides: frozenset[str] = frozenset()  # where its ranks communicate: inside nodes, between them

    @property
    def reported(self) -> set[str]:
        """The criteria that reported a result."""
        return set(self.criteria) - {JOB}

    @property
    def all_reported(self) -> bool:
        """Whether every criterion reported; False if the criteria are unknown."""
        return self.defined is not None and self.defined <= self.reported

    @property
    def is_cut(self) -> bool:
        """Whether some criteria were not selected."""
        return bool((self.defined or frozenset()) - self.selected)

    @property
    def failed_criteria(self) -> list[str]:
        """The names of the criteria that failed."""
        return [name for name, criterion in self.criteria.items() if criterion.result == "failed"]

    @property
    def known(self) -> KnownFailure | None:
        """The entry that covers the failure of its job."""
        return self.criteria[JOB].known if JOB in self.criteria else None

    def known_failures(self) -> list[KnownFailure]:
        """Known failures: that of the job, otherwise those of criteria."""
        if self.known is not None:
            return [self.known]
        return [
            criterion.known for criterion in self.criteria.values() if criterion.known is not None
        ]

    def failure_words(self) -> str:
        """What failed, in words; empty if nothing did."""
        if self.outcome in ("failed", "cluster_failed") and self.known is None:
            return f"{self.name}: {self.outcome}"
        if self.failed_criteria and (self.outcome == "passed" or self.known is not None):
            return f"{self.name}: {', '.join(self.failed_criteria)}"
        return ""


@dataclass
class RunTally:
    """The counts of a run: everything its verdict depends on."""

    require: frozenset[str] = frozenset()  # kinds of criteria without which no phase is FIT
    phases: dict[str, PhaseTally] = field(default_factory=dict)  # those selected
    phases_of_cluster: list[str] = field(default_factory=list)
    selection: str = ""  # what was selected or changed, in words
    undefined: list[str] = field(default_factory=list)  # phases of the cluster that no test defines
    is_whole: bool = False  # all files were collected: a phase without a test has none anywhere
    skipped_files: list[str] = field(default_factory=list)  # at collection, with the reason
    other_failures: int = 0  # of tests outside the phases
    crashed: list[str] = field(default_factory=list)  # tests during which an xdist worker died
    interrupted: bool = False
    exitstatus: int = 0  # pytest's own

    def phase(self, name: str) -> PhaseTally:
        return self.phases.setdefault(name, PhaseTally(name))

    @property
    def ended_early(self) -> bool:
        """Whether pytest ended before all tests were done."""
        return self.exitstatus > 1

    def reported(self) -> tuple[int, int]:
        """How many criteria of the selected phases reported, and how many there are."""
        phases = [phase for phase in self.phases.values() if phase.defined is not None]
        reported = sum(len(phase.reported & (phase.defined or set())) for phase in phases)
        return reported, sum(len(phase.defined or ()) for phase in phases)

    def scope(self) -> str:
        """The part that the verdict covers; empty if it covers everything."""
        reported, every = self.reported()
        return self.selection or (f"{reported} of {every} criteria" if reported < every else "")


@dataclass
class ProofTally:
    """The results of a proof: lists of the faults whose gates were planned, proven and so on."""

    cluster: str
    date: str
    planned: list[str] = field(default_factory=list)
    proven: list[str] = field(default_factory=list)
    stayed_green: list[str] = field(default_factory=list)
    # Red, but in the wrong place or for another reason.
    wrong: list[str] = field(default_factory=list)
    not_staged: list[str] = field(default_factory=list)

    def unjudged(self) -> list[str]:
        judged = {*self.proven, *self.stayed_green, *self.wrong, *self.not_staged}
        return [name for name in self.planned if name not in judged]


@dataclass(frozen=True)
class RunVerdict:
    """The verdict of a run on its cluster, or of a proof on its gates."""

    name: str
    exit_status: int
    sentence: str  # the name with its scope and reasons
    scope: str  # the part that it covers; empty if it covers everything
    failed: list[str]
    missing: list[MissingMeasurement]
    known: list[KnownFailure]
    partial: str  # why the run is incomplete; empty if it is complete

    @property
    def not_measured(self) -> list[str]:
        """What was required and not measured, in words."""
        return [str(missing) for missing in self.missing]


def judge(run: RunTally) -> RunVerdict:
    """The verdict on the cluster."""
    failed, missing = _failed(run), _find_missing(run)
    known = [failure for phase in run.phases.values() for failure in phase.known_failures()]
    fit = any(phase.outcome for phase in run.phases.values()) and run.exitstatus == 0
    if failed:
        name, reasons = UNFIT, failed
    else:
        name = INCONCLUSIVE if missing or known or run.interrupted or not fit else FIT
        reasons = [
            *map(str, missing),
            *(f"{failure.what} is known to fail until {failure.until}" for failure in known),
        ]
    count = _count(run, name)
    unjudged = [phase.name for phase in run.phases.values() if not phase.criteria]
    return _verdict(run, name, count, reasons, failed, missing, known, unjudged)


def judge_proof(proof: ProofTally, run: RunTally) -> RunVerdict:
    """The verdict on the gates, which says nothing about the cluster."""
    unjudged = proof.unjudged()
    failed = _reasons({"stayed green": proof.stayed_green, "not as expected": proof.wrong})
    reasons = _reasons({"could not be staged": proof.not_staged, "not judged": unjudged})
    missing = [MissingMeasurement(reason) for reason in reasons]
    is_open = missing or run.interrupted or run.ended_early or not proof.planned
    name = NOT_PROVEN if failed else INCONCLUSIVE if is_open else PROVEN
    proven = f"{len(proof.proven)} of {len(proof.planned)} gates proven"
    count = f"{proven} on {proof.cluster}, {proof.date}"
    return _verdict(run, name, count, [*failed, *reasons], failed, missing, [], unjudged)


def _verdict(
    run: RunTally,
    name: str,
    count: str,
    reasons: list[str],
    failed: list[str],
    missing: list[MissingMeasurement],
    known: list[KnownFailure],
    unjudged: list[str],
) -> RunVerdict:
    if run.interrupted and not reasons:
        reasons = ["interrupted"]
    scope = f" for {run.selection}" if run.selection else ""
    why = f" ({'; '.join(reasons)})" if reasons else ""
    return RunVerdict(
        name=name,
        exit_status=run.exitstatus if run.ended_early else EXIT_STATUSES[name],
        sentence=f"{name}{scope}: {count}{why}{_unproven(run)}",
        scope=run.scope(),
        failed=failed,
        missing=missing,
        known=known,
        partial=_partial(run, unjudged),
    )


def _unproven(run: RunTally) -> str:
    """What could not be proven of the programs, by phase, for the end of the sentence."""
    by_kinds: dict[str, list[str]] = {}
    for phase in run.phases.values():
        kinds = ", ".join(kind for kind in OF_PROGRAM if kind in phase.unmeasured)
        by_kinds.setdefault(kinds, []).append(phase.name)
    by_kinds.pop("", None)
    listed = [f"{', '.join(phases)}: {kinds}" for kinds, phases in by_kinds.items()]
    return f"; not proven: {'; '.join(listed)}" if listed else ""


def _count(run: RunTally, verdict: str) -> str:
    """How many of the cluster's phases failed, passed or finished, in words."""
    phases = run.phases.values()
    if verdict == UNFIT:
        number, state = sum(bool(phase.failure_words()) for phase in phases), "failed"
    elif verdict == FIT:
        number, state = sum(phase.outcome == "passed" for phase in phases), "passed"
    else:
        ended = [phase for phase in phases if phase.outcome and phase.outcome not in NOT_MEASURED]
        number, state = len(ended), "finished"
    reported, every = run.reported()
    criteria = f", {reported} of {every} criteria reported" if reported < every else ""
    return f"{number} of {len(run.phases_of_cluster)} phases {state}{criteria}"


def _partial(run: RunTally, unjudged: list[str]) -> str:
    if run.interrupted:
        return "the run was interrupted"
    if run.ended_early:
        return f"pytest ended early with exit status {run.exitstatus}"
    return f"no result for {', '.join(unjudged)}" if unjudged else ""


def _reasons(names: dict[str, list[str]]) -> list[str]:
    return [f"{words}: {', '.join(listed)}" for words, listed in names.items() if listed]


def _failed(run: RunTally) -> list[str]:
    """Everything that failed, in words."""
    reasons = [words for phase in run.phases.values() if (words := phase.failure_words())]
    reasons += [f"a pytest-xdist worker died in {test}" for test in run.crashed]
    return reasons + (["tests outside the phases failed"] if run.other_failures else [])


def _find_missing(run: RunTally) -> list[MissingMeasurement]:
    """Everything required that was not measured."""
    phases = run.phases.values()
    passed = [phase for phase in phases if phase.outcome == "passed"]
    found = [
        MissingMeasurement(phase.outcome, phase.name)
        for phase in phases
        if phase.outcome in NOT_MEASURED and phase.known is None
    ]
    found += [MissingMeasurement("no result", phase.name) for phase in phases if not phase.outcome]
    found += [
        MissingMeasurement(f"{kind} not measured", phase.name, kind)
        for phase in phases
        for kind in sorted(phase.unmeasured & (run.require | ALWAYS_REQUIRED))
    ]
    found += _undefined_phases(run)
    for find_missing in (_uncovered_xfails, _unreported, _unjudged_kinds):
        found += [missing for phase in passed for missing in find_missing(phase, run)]
    known = any(phase.known_failures() for phase in phases)
    if run.exitstatus == 1 and not found and not known and not _failed(run):
        found.append(MissingMeasurement("pytest counts a failure that no test reported"))
    return found


def _undefined_phases(run: RunTally) -> list[MissingMeasurement]:
    """Phases of cluster.yaml that no test defines."""
    if run.undefined and run.skipped_files:  # they may define the phases
        files, absent = ", ".join(run.skipped_files), ", ".join(run.undefined)
        return [MissingMeasurement(f"{absent}: not collected; files skipped as a whole: {files}")]
    words = "listed in cluster.yaml, but no collected test defines it"
    return [MissingMeasurement(words, name) for name in run.undefined] if run.is_whole else []


def _uncovered_xfails(phase: PhaseTally, run: RunTally) -> Iterable[MissingMeasurement]:
    """Criteria marked xfail that no entry of `known` covers."""
    for name, criterion in phase.criteria.items():
        if criterion.result == "known" and criterion.known is None:
            words = "is marked xfail, and no entry of `known` covers it"
            yield MissingMeasurement(f"{name} {words}", phase.name)


def _unreported(phase: PhaseTally, run: RunTally) -> Iterable[MissingMeasurement]:
    """A phase without a judged criterion (all may be skipped), and selected criteria that reported
    nothing."""
    reported = phase.reported
    missing = sorted(phase.selected - reported)
    judged = [name for name in reported if phase.criteria[name].result != "skipped"]
    if not judged and reported | (phase.defined or set()):
        if not phase.unmeasured & (run.require | ALWAYS_REQUIRED):  # already reported
            yield MissingMeasurement("no criterion was judged", phase.name)
    elif missing and not run.interrupted:
        yield MissingMeasurement(f"no result from {', '.join(missing)}", phase.name)


def _unjudged_kinds(phase: PhaseTally, run: RunTally) -> Iterable[MissingMeasurement]:
    """Required kinds that no criterion judged; for transports, each side where ranks communicate.
    A phase with only some of its criteria selected is not checked."""
    if phase.is_cut or phase.failed_criteria:
        return
    for kind in sorted(run.require - phase.unmeasured):
        for part in sorted(phase.sides) if kind == "transports" else [kind]:
            if part not in phase.judged:
                yield MissingMeasurement(f"no criterion judged {part}", phase.name, kind)
