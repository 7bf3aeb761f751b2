"""FIT, UNFIT or INCONCLUSIVE with its exit status: a pure function of a run's record.

It depends on the outcomes of the jobs, on the results of their criteria, and on `counts`; never on
what was measured. UNFIT: something failed. INCONCLUSIVE: nothing failed, but something required was
not measured, or a failure is known, or a test is marked xfail and no entry under `known` covers it.
UNFIT beats INCONCLUSIVE; a verdict is never better than its evidence. A proof of gates and a
screen of nodes are judged by what they have in place of phases.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..config.marker import JOB
from ..evidence.job_results import NOT_MEASURED
from ..evidence.measured_peaks import MEASURED_IN, measured_in
from ..evidence.metric import RESULT
from ..evidence.run_counts import (
    TRAINING_PROOFS,
    UNJUDGED,
    UNPROVABLE_GATE,
    UNSTAGED_GATE,
    WRONG_GATE,
    KnownRecord,
    MissingRecord,
    ProofRecord,
    describe_missing,
)
from ..evidence.run_record import PhaseRecord, RunRecord
from ..evidence.screen_record import FAILING, NO_ANSWER, PASSING, ScreenRecord
from ..text import clip, outcome_words, plural, shorten

# A phase that checks one of these and cannot judge it is never FIT, whatever its cluster requires:
# the proofs that training is correct, and the result itself (`twin` only where the phase asks for
# it). A phase that trains must check the first three, where they apply (`counts.proofs`). The
# verdict's line ends with those of OF_PROGRAM that could not be judged.
ALWAYS_REQUIRED = frozenset({*TRAINING_PROOFS, "twin", RESULT})
OF_PROGRAM = (
    "replay",
    "cross_replay",
    "twin",
    "replicas",
    "samples",
    "precision",
    "data",
    "gradients",
    "checkpoint",
)
MAX_NAMES, MAX_AVOIDED = 3, 8
MAX_PART = 160  # characters of a part of the sentence; the lists have everything
EXIT_INCONCLUSIVE = 6  # pytest itself uses 0 to 5
FIT, UNFIT, INCONCLUSIVE = "FIT", "UNFIT", "INCONCLUSIVE"
PROVEN, NOT_PROVEN = "PROVEN", "NOT PROVEN"  # verdicts on gates, of --cluster-prove
EXIT_STATUSES = {FIT: 0, PROVEN: 0, UNFIT: 1, NOT_PROVEN: 1, INCONCLUSIVE: EXIT_INCONCLUSIVE}


@dataclass(frozen=True)
class RunVerdict:
    """The verdict of a run on its cluster, or of a proof on its gates."""

    name: str
    exit_status: int
    sentence: str  # one line: the name, reasons, and what was selected; each part is cut
    scope: str  # the part that it covers; empty if it covers everything
    failed: list[str]
    missing: list[MissingRecord]
    known: list[KnownRecord]
    partial: str  # why the run is incomplete; empty if it is complete

    @property
    def not_measured(self) -> list[str]:
        """What was required and not measured, in words."""
        return [str(missing) for missing in self.missing]


def judge_record(record: RunRecord) -> RunVerdict:
    """The verdict on the cluster; of a proof, that on the gates, which says nothing about it."""
    if record.proof is not None:
        return _judge_gates(record, record.proof)
    if record.screen is not None:
        return _judge_nodes(record, record.screen)
    failed, missing = _list_failed(record), _find_missing(record)
    known = [failure for phase in record.phases for failure in _known_failures(phase)]
    fit = any(phase.counts.has_ended for phase in record.phases) and record.counts.exit_status == 0
    if failed:
        name, reasons = UNFIT, failed
    else:
        name = INCONCLUSIVE if missing or known or record.interrupted or not fit else FIT
        reasons = [
            *describe_missing(missing),
            *(f"{failure.what} is known to fail until {failure.until}" for failure in known),
        ]
    unjudged = [phase.phase for phase in record.phases if not phase.criteria]
    verdict = _make_verdict(record, name, _count_phases(record, name), reasons, unjudged)
    return replace(verdict, failed=failed, missing=missing, known=known)


def _judge_gates(record: RunRecord, proof: ProofRecord) -> RunVerdict:
    by_status = {
        status: [gate.fault for gate in proof.gates if gate.status == status]
        for status in (WRONG_GATE, UNSTAGED_GATE, UNPROVABLE_GATE)
    }
    judged = {gate.fault for gate in proof.gates}
    unjudged = [name for name in proof.planned if name not in judged]
    failed = _list_reasons(
        {"stayed green": proof.stayed_green, "not as expected": by_status[WRONG_GATE]}
    )
    reasons = _list_reasons(
        {
            "could not be staged": by_status[UNSTAGED_GATE],
            "not proven here": by_status[UNPROVABLE_GATE],
            "not judged": unjudged,
        }
    )
    missing = [MissingRecord(phase="", kind="", reason=reason) for reason in reasons]
    is_open = missing or record.interrupted or _ended_early(record) or not proof.planned
    name = NOT_PROVEN if failed else INCONCLUSIVE if is_open else PROVEN
    proven = f"{len(proof.proven)} of {len(proof.planned)} gates proven"
    count = f"{proven} on {proof.cluster}, {proof.date}"
    verdict = _make_verdict(record, name, count, [*failed, *reasons], unjudged)
    return replace(verdict, failed=failed, missing=missing)


def _judge_nodes(record: RunRecord, screen: ScreenRecord) -> RunVerdict:
    """UNFIT where a screened node failed; INCONCLUSIVE where an idle one gave no answer, none was
    screened, too few passed, or the devices of one that passed were not measured."""
    passing, failing, silent = map(screen.of, (PASSING, FAILING, NO_ANSWER))
    failed = [f"{node.node}: {node.reason}" for node in failing]
    reasons = [f"{node.node}: {node.reason}" for node in silent]
    if not (passing or failing or silent):
        reasons.append("no node was screened")
    elif len(passing) < screen.fewest:
        reasons.append(f"at least {screen.minimum:.0%} of the nodes must pass")
    if unmeasured := [node for node in passing if node.unmeasured]:
        of = plural(len(unmeasured), "node")
        reasons.append(f"the devices of {of} were {unmeasured[0].unmeasured}")
    is_open = bool(reasons) or record.interrupted or _ended_early(record)
    name = UNFIT if failed else INCONCLUSIVE if is_open else FIT
    counts = [
        f"{len(passing)} of {screen.size} passed",
        f"{len(failing)} failed" if failing else "",
        f"{len(silent)} gave no answer" if silent else "",
        screen.left_out,
    ]
    words = shorten([*failed, *reasons], MAX_NAMES, "; ")
    if len(words) > MAX_PART:  # then what is wrong with each node in brief
        named = [f"{node.node}: {node.reason.partition(':')[0]}" for node in failing]
        named += [f"{node.node}: {NO_ANSWER}" for node in silent]
        words = shorten([*named, *reasons[len(silent) :]], MAX_NAMES, "; ")
    verdict = _make_verdict(record, name, "; ".join(filter(None, counts)), [words], [])
    if name == FIT and not record.counts.selection:
        left = f"; {screen.left_out}" if screen.left_out else ""
        verdict = replace(verdict, sentence=f"FIT for {len(passing)} of {screen.size}{left}")
    missing = [MissingRecord(phase="", kind="", reason=reason) for reason in reasons]
    return replace(verdict, failed=failed, missing=missing)


def _list_reasons(names: dict[str, list[str]]) -> list[str]:
    return [f"{words}: {', '.join(listed)}" for words, listed in names.items() if listed]


def _make_verdict(
    record: RunRecord, name: str, count: str, reasons: list[str], unjudged: list[str]
) -> RunVerdict:
    """The verdict of this name and reasons, without their lists."""
    selection = record.counts.selection
    if record.interrupted and (record.counts.signal or not any(reasons)):
        reasons = [_describe_interrupt(record), *reasons]
    named = [*filter(None, reasons)]
    why = f" ({clip(shorten(named, MAX_NAMES, '; '), MAX_PART)})" if named else ""
    ends = (_describe_retried(record), _describe_unproven(record, name))
    selected = _add_avoided(record, selection)
    scope = f"; selected: {clip(selected, MAX_PART)}{_count_chosen(record)}" if selected else ""
    reported, every = _count_criteria(record)
    return RunVerdict(
        name=name,
        exit_status=record.counts.exit_status if _ended_early(record) else EXIT_STATUSES[name],
        sentence=f"{name}: {count}{why}{''.join(clip(end, MAX_PART) for end in ends)}{scope}",
        scope=selection or (f"{reported} of {every} criteria" if reported < every else ""),
        failed=[],
        missing=[],
        known=[],
        partial=_describe_end(record, unjudged),
    )


def _add_avoided(record: RunRecord, selection: str) -> str:
    """What was selected, in words, without the nodes that no job got. These do not make it a run of
    a part, which has no place among the nights of its cluster."""
    if not (avoided := record.counts.avoided):
        return selection
    return f"{selection or 'all'} without {shorten(avoided, MAX_AVOIDED)} (--cluster-avoid)"


def _describe_interrupt(record: RunRecord) -> str:
    return f"interrupted by {record.counts.signal}" if record.counts.signal else "interrupted"


def _ended_early(record: RunRecord) -> bool:
    """Whether pytest ended before all tests were done."""
    return record.counts.exit_status > 1


def _describe_end(record: RunRecord, unjudged: list[str]) -> str:
    """Why the run is incomplete; empty if it is complete."""
    if record.counts.cut_off:
        return record.counts.cut_off
    if record.interrupted:
        return f"the run was {_describe_interrupt(record)}"
    if _ended_early(record):
        return f"pytest ended early with exit status {record.counts.exit_status}"
    return f"no result for {', '.join(unjudged)}" if unjudged else ""


def _describe_retried(record: RunRecord) -> str:
    """Which phases passed only because they were tried again, for the end of the sentence."""
    words = []
    for phase in record.phases:
        before = phase.attempts[:-1] if phase.outcome == "passed" else []
        failed = [node for attempt in before for node in attempt.failed_nodes]
        why = f"after a failure of {shorten(failed, MAX_NAMES)}" if failed else "after a preemption"
        words += [f"{phase.phase} {why}"] if before else []
    return f"; passed on a later attempt: {', '.join(words)}" if words else ""


def _describe_unproven(record: RunRecord, verdict: str) -> str:
    """What could not be proven of the programs, by phase, for the end of the sentence; not what is
    required, since the reasons name it, unless they are failures."""
    named: frozenset[str] = frozenset() if verdict == UNFIT else _required(record)
    by_kinds: dict[str, list[str]] = {}
    for phase in record.phases:
        found = {*phase.not_measured, *_list_unjudged_proofs(phase)} - named
        kinds = ", ".join(kind for kind in OF_PROGRAM if kind in found)
        by_kinds.setdefault(kinds, []).append(phase.phase)
    by_kinds.pop("", None)
    listed = [f"{', '.join(phases)}: {kinds}" for kinds, phases in by_kinds.items()]
    return f"; not proven: {'; '.join(listed)}" if listed else ""


def _list_unjudged_proofs(phase: PhaseRecord) -> list[str]:
    """The proofs of training that it must have and no criterion judged: its class has none for
    them, or overrides or skips them. Not if a criterion failed, which may be the one (as a known
    failure or one marked xfail; the run is not FIT then), or if one was not selected or has no
    result."""
    held = {"failed", "known"}.isdisjoint(each.result for each in phase.criteria.values())
    reported = {*phase.counts.selected} <= _reported(phase)
    if phase.outcome != "passed" or phase.counts.is_cut or not (held and reported):
        return []
    answered = {*phase.counts.judged, *phase.not_measured}
    return [kind for kind in phase.counts.proofs if kind not in answered]


def _count_phases(record: RunRecord, verdict: str) -> str:
    """How many of the phases that were to run failed, passed or finished, in words."""
    if verdict == UNFIT:
        number, state = sum(bool(_describe_failure(phase)) for phase in record.phases), "failed"
    elif verdict == FIT:
        number, state = sum(phase.outcome == "passed" for phase in record.phases), "passed"
    else:
        number, state = (
            sum(phase.outcome not in NOT_MEASURED for phase in record.phases),
            "finished",
        )
    reported, every = _count_criteria(record)
    criteria = f", {reported} of {every} criteria reported" if reported < every else ""
    return f"{number} of {len(record.phases)} phases {state}{criteria}"


def _count_chosen(record: RunRecord) -> str:
    """How many of the cluster's phases were to run, where that is not all of them."""
    chosen, every = len(record.phases), len(record.phases_of_cluster)
    of_phases = record.proof is None and record.screen is None
    return f" ({chosen} of {every} phases)" if of_phases and chosen < every else ""


def _count_criteria(record: RunRecord) -> tuple[int, int]:
    """How many criteria of the selected phases reported, and how many there are."""
    defined = [(phase, {*(phase.counts.defined or ())}) for phase in record.phases]
    reported = sum(len(criteria & _reported(phase)) for phase, criteria in defined)
    return reported, sum(len(criteria) for _, criteria in defined)


def _reported(phase: PhaseRecord) -> set[str]:
    """The criteria that reported a result."""
    return {*phase.criteria} - {JOB}


# What failed, and what is missing


def _list_failed(record: RunRecord) -> list[str]:
    """Everything that failed, in words."""
    reasons = [words for phase in record.phases if (words := _describe_failure(phase))]
    reasons += [f"a pytest-xdist worker died in {test}" for test in record.counts.crashed_tests]
    return reasons + ([_describe_others(record)] if record.counts.other_failures else [])


def _describe_others(record: RunRecord) -> str:
    """Which tests of no phase failed, or had an error in a fixture."""
    names = record.counts.failed_tests
    count = plural(len(names) or record.counts.other_failures, "other test")
    listed = f": {shorten(names, MAX_NAMES)}" if names else ""
    return f"{count} failed or had errors{listed}"


def _describe_failure(phase: PhaseRecord) -> str:
    """What failed, in words; empty if nothing did."""
    if phase.outcome in ("failed", "cluster_failed") and phase.known is None:
        return f"{phase.phase}: {outcome_words(phase.outcome)}"
    failed = _failed_criteria(phase)
    if failed and (phase.outcome == "passed" or phase.known is not None):
        return f"{phase.phase}: {', '.join(failed)}"
    return ""


def _failed_criteria(phase: PhaseRecord) -> list[str]:
    return [name for name, criterion in phase.criteria.items() if criterion.result == "failed"]


def _known_failures(phase: PhaseRecord) -> list[KnownRecord]:
    """Known failures: that of the job, otherwise those of criteria."""
    if phase.known is not None:
        return [phase.known]
    return [criterion.known for criterion in phase.criteria.values() if criterion.known is not None]


def _find_missing(record: RunRecord) -> list[MissingRecord]:
    """Everything required that was not measured."""
    found = [
        _missing(phase, outcome_words(phase.outcome))
        for phase in record.phases
        if phase.counts.has_ended and phase.outcome in NOT_MEASURED and phase.known is None
    ]
    found += [_missing(phase, "no result") for phase in record.phases if not phase.counts.has_ended]
    found += [
        _missing(phase, f"{kind} not measured", kind)
        for phase in record.phases
        for kind in phase.not_measured
        if kind in _required(record)
    ]
    found += _find_undefined(record)
    passed = [phase for phase in record.phases if phase.outcome == "passed"]
    for find_missing in (
        _find_uncovered_xfails,
        _find_unreported,
        _find_unjudged_kinds,
        _find_unjudged_proofs,
    ):
        found += [missing for phase in passed for missing in find_missing(phase, record)]
    known = any(_known_failures(phase) for phase in record.phases)
    if record.counts.exit_status == 1 and not found and not known and not _list_failed(record):
        words = "pytest counts a failure that no test reported"
        found.append(MissingRecord(phase="", kind="", reason=words))
    return found


def _missing(phase: PhaseRecord, reason: str, kind: str = "") -> MissingRecord:
    return MissingRecord(phase=phase.phase, kind=kind, reason=reason)


def _required(record: RunRecord) -> frozenset[str]:
    """The kinds that must not be left unmeasured."""
    return ALWAYS_REQUIRED.union(record.counts.require)


def _find_undefined(record: RunRecord) -> list[MissingRecord]:
    """Phases of cluster.yaml that no test defines."""
    counts = record.counts
    if counts.undefined_phases and counts.skipped_files:  # they may define the phases
        files, absent = ", ".join(counts.skipped_files), ", ".join(counts.undefined_phases)
        words = f"{absent}: not collected; files skipped as a whole: {files}"
        return [MissingRecord(phase="", kind="", reason=words)]
    if not counts.is_whole:
        return []
    words = "listed in cluster.yaml, but no collected test defines it"
    return [
        MissingRecord(phase=name, kind="", reason=f"{words}{_find_near_match(record, name)}")
        for name in counts.undefined_phases
    ]


def _find_near_match(record: RunRecord, name: str) -> str:
    """The phase that may be meant, as collection found it."""
    _, near, match = next(iter(_lines_on(record, name)), "").partition("; ")
    return f"{near}{match}"


def _lines_on(record: RunRecord, name: str) -> list[str]:
    """What collection said of a phase that no test defines."""
    return [line for line in record.absent_phases if f" lists the phase {name}, " in line]


def list_absent(record: RunRecord, said: str) -> list[str]:
    """Why phases did not run here; not of those that no test defines and that `said` names, so
    that each is named once."""
    missing = [each for each in record.missing if str(each) in said]
    named = [line for each in missing for line in _lines_on(record, each.phase)]
    return [line for line in record.absent_phases if line not in named]


def _find_uncovered_xfails(phase: PhaseRecord, record: RunRecord) -> Iterator[MissingRecord]:
    """Criteria marked xfail that no entry of `known` covers."""
    for name, criterion in phase.criteria.items():
        if criterion.result == "known" and criterion.known is None:
            yield _missing(phase, f"{name} is marked xfail, and no entry of `known` covers it")


def _find_unreported(phase: PhaseRecord, record: RunRecord) -> Iterator[MissingRecord]:
    """A phase without a judged criterion (all may be skipped), and selected criteria that reported
    nothing."""
    reported = _reported(phase)
    missing = sorted({*phase.counts.selected} - reported)
    judged = [name for name in reported if phase.criteria[name].result != "skipped"]
    if not judged and (reported or phase.counts.defined is not None):
        if _required(record).isdisjoint(phase.not_measured):  # otherwise already reported
            yield _missing(phase, "no criterion was judged")
    elif missing and not record.interrupted:
        yield _missing(phase, f"no result from {', '.join(missing)}")


def _is_judged(kind: str, phase: PhaseRecord, record: RunRecord) -> bool:
    """Whether a criterion of the phase judged the kind, or one of the phases that measured its
    devices earlier in the run."""
    judged = phase.counts.judged
    if kind != "peaks" or kind in judged:
        return kind in judged
    elsewhere = {name for name in judged if name.startswith(MEASURED_IN)}
    by_run = {measured_in(made.phase) for made in record.phases if kind in made.counts.judged}
    return bool(elsewhere) and elsewhere <= by_run


def _find_unjudged_kinds(phase: PhaseRecord, record: RunRecord) -> Iterator[MissingRecord]:
    """Required kinds that no criterion judged; for transports, each side where ranks communicate.
    A phase with only some of its criteria selected is not checked."""
    if phase.counts.is_cut or _failed_criteria(phase):
        return
    for kind in sorted({*record.counts.require, *phase.counts.require} - {*phase.not_measured}):
        for part in phase.counts.sides if kind == "transports" else [kind]:
            if not _is_judged(part, phase, record):
                yield _missing(phase, f"{UNJUDGED} {part}", kind)


def _find_unjudged_proofs(phase: PhaseRecord, record: RunRecord) -> Iterator[MissingRecord]:
    """Proofs of training that no criterion judged; what the profile requires is found already."""
    for kind in _list_unjudged_proofs(phase):
        if kind not in record.counts.require:
            yield _missing(phase, f"{UNJUDGED} {kind}", kind)
