"""FIT, UNFIT or INCONCLUSIVE and its exit status: a pure function of what was counted in a run.

UNFIT: something failed. INCONCLUSIVE: nothing failed, but something required was not measured, or
failed and is known, or is expected to fail and nobody answers for it. UNFIT beats INCONCLUSIVE; a
verdict is never better than its evidence. A proof has a verdict of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ..evidence.job_results import NOT_MEASURED

JOB = "job"  # the job itself, beside the criteria of its phase

EXIT_INCONCLUSIVE = 6  # beside pytest's own 0 to 5
FIT, UNFIT, INCONCLUSIVE = "FIT", "UNFIT", "INCONCLUSIVE"
PROVEN, NOT_PROVEN = "PROVEN", "NOT PROVEN"  # of gates, by --cluster-prove
EXIT_STATUSES = {FIT: 0, PROVEN: 0, UNFIT: 1, NOT_PROVEN: 1, INCONCLUSIVE: EXIT_INCONCLUSIVE}


@dataclass(frozen=True)
class KnownFailure:
    """A failure that an entry of `known` in cluster.yaml answers for."""

    what: str
    reason: str
    until: str
    where: str

    @property
    def sentence(self) -> str:
        """Why, until when, and where that is written."""
        return f"{self.reason} (known until {self.until}, {self.where})"


@dataclass(frozen=True)
class CriterionResult:
    """What became of one criterion."""

    result: Literal["passed", "failed", "skipped", "known"]
    text: str = ""
    known: KnownFailure | None = None

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass
class PhaseTally:
    """What was counted of one phase that was chosen."""

    name: str
    outcome: str = ""  # of its job; empty until it is over
    criteria: dict[str, CriterionResult] = field(default_factory=dict)  # reported, with the job
    defined: frozenset[str] | None = None  # all criteria of its class; None: nobody knows
    selected: frozenset[str] = frozenset()  # those of them that were to run
    judged: set[str] = field(default_factory=set)  # kinds that a criterion judged
    unmeasured: set[str] = field(default_factory=set)  # kinds that a criterion could not judge
    sides: frozenset[str] = frozenset()  # where its ranks talk to each other

    @property
    def reported(self) -> set[str]:
        """The criteria that reported a result."""
        return set(self.criteria) - {JOB}

    @property
    def all_reported(self) -> bool:
        """Whether every criterion reported; where they are not known, nobody knows."""
        return self.defined is not None and self.defined <= self.reported

    @property
    def is_cut(self) -> bool:
        """Whether some criteria were not selected."""
        return bool((self.defined or frozenset()) - self.selected)

    @property
    def reds(self) -> list[str]:
        """What failed of it, by name."""
        return [name for name, one in self.criteria.items() if one.result == "failed"]

    @property
    def known(self) -> KnownFailure | None:
        """Who answers for its job's failure."""
        return self.criteria[JOB].known if JOB in self.criteria else None

    def known_failures(self) -> list[KnownFailure]:
        """The failures that are known: of the job, else of criteria."""
        if self.known is not None:
            return [self.known]
        return [one.known for one in self.criteria.values() if one.known is not None]

    def failed(self) -> str:
        """What failed, in words; empty where nothing did."""
        if self.outcome in ("failed", "cluster_failed") and self.known is None:
            return f"{self.name}: {self.outcome}"
        if self.reds and (self.outcome == "passed" or self.known is not None):
            return f"{self.name}: {', '.join(self.reds)}"
        return ""


@dataclass
class RunTally:
    """What was counted in a run: all that its verdict depends on."""

    require: frozenset[str] = frozenset()  # kinds of criteria without which no phase is FIT
    phases: dict[str, PhaseTally] = field(default_factory=dict)  # those that were chosen
    phases_of_cluster: list[str] = field(default_factory=list)
    selection: str = ""  # what was selected or changed, in words
    undefined: list[str] = field(default_factory=list)  # phases of the cluster that no test defines
    is_whole: bool = False  # nothing was left out: then what was not collected does not exist
    skipped_files: list[str] = field(default_factory=list)  # at collection, and why
    other_failures: int = 0  # of tests that belong to no phase
    crashed: list[str] = field(default_factory=list)  # tests during which a worker of xdist died
    interrupted: bool = False
    exitstatus: int = 0  # pytest's own

    def phase(self, name: str) -> PhaseTally:
        return self.phases.setdefault(name, PhaseTally(name))

    @property
    def ended_early(self) -> bool:
        """Whether pytest ended for another reason than that all tests were through."""
        return self.exitstatus > 1

    def reported(self) -> tuple[int, int]:
        """How many of the chosen phases' criteria reported, and how many there are."""
        known = [phase for phase in self.phases.values() if phase.defined is not None]
        reported = sum(len(phase.reported & (phase.defined or set())) for phase in known)
        return reported, sum(len(phase.defined or ()) for phase in known)

    def scope(self) -> str:
        """What the verdict holds for; empty only where it is everything."""
        reported, every = self.reported()
        return self.selection or (f"{reported} of {every} criteria" if reported < every else "")


@dataclass
class ProofTally:
    """What was counted in a proof: gates, by the names of their faults."""

    cluster: str
    date: str
    planned: list[str] = field(default_factory=list)
    proven: list[str] = field(default_factory=list)
    stayed_green: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)  # something else turned red
    not_staged: list[str] = field(default_factory=list)

    def unjudged(self) -> list[str]:
        judged = {*self.proven, *self.stayed_green, *self.wrong, *self.not_staged}
        return [name for name in self.planned if name not in judged]


@dataclass(frozen=True)
class RunVerdict:
    """What a run says of its cluster, or a proof of its gates."""

    name: str
    exit_status: int
    sentence: str  # the name with its scope and reasons
    scope: str  # what it holds for; empty where that is everything
    failed: list[str]
    not_measured: list[str]  # of what is required
    known: list[KnownFailure]
    partial: str  # why the run did not come to its end; empty where it did


def judge(run: RunTally) -> RunVerdict:
    """The verdict on the cluster."""
    failed, lacking = _failed(run), _not_measured(run)
    known = [one for phase in run.phases.values() for one in phase.known_failures()]
    fit = any(phase.outcome for phase in run.phases.values()) and run.exitstatus == 0
    if failed:
        name, reasons = UNFIT, failed
    else:
        name = INCONCLUSIVE if lacking or known or run.interrupted or not fit else FIT
        reasons = [*lacking, *(f"{one.what} is known until {one.until}" for one in known)]
    count = _count(run, name)
    unjudged = [phase.name for phase in run.phases.values() if not phase.criteria]
    return _verdict(run, name, count, reasons, failed, lacking, known, unjudged)


def judge_proof(proof: ProofTally, run: RunTally) -> RunVerdict:
    """The verdict on the gates; it says nothing of FIT or UNFIT."""
    unjudged = proof.unjudged()
    failed = _worded({"stayed green": proof.stayed_green, "not as expected": proof.wrong})
    lacking = _worded({"could not be staged": proof.not_staged, "not judged": unjudged})
    is_open = lacking or run.interrupted or run.ended_early or not proof.planned
    name = NOT_PROVEN if failed else INCONCLUSIVE if is_open else PROVEN
    proven = f"{len(proof.proven)} of {len(proof.planned)} gates proven"
    count = f"{proven} on {proof.cluster}, {proof.date}"
    return _verdict(run, name, count, [*failed, *lacking], failed, lacking, [], unjudged)


def _verdict(
    run: RunTally,
    name: str,
    count: str,
    reasons: list[str],
    failed: list[str],
    lacking: list[str],
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
        sentence=f"{name}{scope}: {count}{why}",
        scope=run.scope(),
        failed=failed,
        not_measured=lacking,
        known=known,
        partial=_partial(run, unjudged),
    )


def _count(run: RunTally, verdict: str) -> str:
    """How many of the cluster's phases the verdict is about, and what became of those."""
    phases = run.phases.values()
    if verdict == UNFIT:
        number, state = sum(bool(phase.failed()) for phase in phases), "failed"
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


def _worded(names: dict[str, list[str]]) -> list[str]:
    return [f"{words}: {', '.join(listed)}" for words, listed in names.items() if listed]


def _failed(run: RunTally) -> list[str]:
    """What failed, in words."""
    reasons = [words for phase in run.phases.values() if (words := phase.failed())]
    reasons += [f"a pytest-xdist worker died in {test}" for test in run.crashed]
    return reasons + (["tests outside the phases failed"] if run.other_failures else [])


def _not_measured(run: RunTally) -> list[str]:
    """What was required and not measured, in words."""
    phases = run.phases.values()
    passed = [phase for phase in phases if phase.outcome == "passed"]
    reasons = [
        f"{phase.name}: {phase.outcome}"
        for phase in phases
        if phase.outcome in NOT_MEASURED and phase.known is None
    ]
    reasons += [f"{phase.name}: no result" for phase in phases if not phase.outcome]
    for phase in phases:
        kinds = sorted(phase.unmeasured & run.require)
        reasons += [f"{phase.name}: {kind} not measured" for kind in kinds]
    reasons += _undefined(run)
    for lacking in (_unowned, _silent, _unjudged):
        reasons += [words for phase in passed for words in lacking(phase, run)]
    known = any(phase.known_failures() for phase in phases)
    if run.exitstatus == 1 and not reasons and not known and not _failed(run):
        reasons.append("pytest counts a failure that no test reported")
    return reasons


def _undefined(run: RunTally) -> list[str]:
    """Phases of the cluster that no test defines."""
    if run.undefined and run.skipped_files:  # any of them may be there
        files, absent = ", ".join(run.skipped_files), ", ".join(run.undefined)
        return [f"{absent}: not collected; files skipped as a whole: {files}"]
    words = "listed in cluster.yaml, but no collected test defines it"
    return [f"{name}: {words}" for name in run.undefined] if run.is_whole else []


def _unowned(phase: PhaseTally, run: RunTally) -> Iterable[str]:
    """Criteria that are expected to fail, and nobody says so in cluster.yaml."""
    for name, one in phase.criteria.items():
        if one.result == "known" and one.known is None:
            words = "is marked xfail, and no entry of `known` covers it"
            yield f"{phase.name}: {name} {words}"


def _silent(phase: PhaseTally, run: RunTally) -> Iterable[str]:
    """A phase of which no criterion was judged, be it that all were skipped; and criteria that were
    to run and reported nothing."""
    reported = phase.reported
    missing = sorted(phase.selected - reported)
    judged = [name for name in reported if phase.criteria[name].result != "skipped"]
    if not judged and reported | (phase.defined or set()):
        if not phase.unmeasured & run.require:  # which is said already
            yield f"{phase.name}: no criterion was judged"
    elif missing and not run.interrupted:
        yield f"{phase.name}: no result from {', '.join(missing)}"


def _unjudged(phase: PhaseTally, run: RunTally) -> Iterable[str]:
    """Required kinds that no criterion judged; of transports, on each side where there are ranks.
    Where criteria were selected singly, those that are missing were not asked."""
    if phase.is_cut or phase.reds:
        return
    for kind in sorted(run.require - phase.unmeasured):
        for one in sorted(phase.sides) if kind == "transports" else [kind]:
            if one not in phase.judged:
                yield f"{phase.name}: no criterion judged {one}"
