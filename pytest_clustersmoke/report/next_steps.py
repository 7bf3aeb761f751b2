"""What to do next about a verdict that is not FIT."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..evidence.finding import ISOLATION_FINDING
from ..evidence.history.outlier_judge import MIN_RUNS
from ..evidence.job_results import NOT_MEASURED
from ..evidence.metric import BETWEEN
from ..evidence.run_counts import TRAINING_PROOFS
from ..evidence.run_record import FindingRecord, PhaseRecord, RunRecord
from ..text import clip, plural, shorten
from .verdict import INCONCLUSIVE, UNFIT

MAX_NAMES, MAX_REASON = 4, 160
AGAIN = "run again"  # the advice of a finding that the command to do so replaces
# The kinds of criteria that compare a phase with a level, and those that one node or link can fail.
LEVELS = frozenset({"references", "history"})
BETWEEN_NODES = frozenset({BETWEEN, "stragglers"})


def list_next_steps(record: RunRecord) -> list[str]:
    """The next steps, each once, the most important first; none if the cluster is fit."""
    if not record.is_of_cluster or record.verdict not in (UNFIT, INCONCLUSIVE):
        return []
    steps = _list_fixes(record) if record.verdict == UNFIT else _complete(record)
    return list(dict.fromkeys(steps))


def _list_fixes(record: RunRecord) -> Iterator[str]:
    """What the findings of the failed phases advise; then what to do about red criteria, which have
    no finding."""
    for phase in record.phases:
        if phase.outcome not in ("passed", *NOT_MEASURED) and phase.known is None:
            yield from (f"{phase.phase}: {finding.fix}" for finding in _causes(phase))
    for phase in record.phases:
        steps = [*_list_checks(record, phase)] if phase.outcome == "passed" else []
        if steps:
            yield f"{phase.phase}: {'; '.join(steps)}"


def _list_checks(record: RunRecord, phase: PhaseRecord) -> Iterator[str]:
    """How to find out why a phase that trained to its end has red criteria."""
    results = phase.criteria.values()
    red = {kind for each in results if each.result == "failed" for kind in each.judged}
    on, is_slurm = f"--cluster {record.cluster}", record.backend == "slurm"
    isolated = any(finding.id == ISOLATION_FINDING for finding in phase.findings)
    if red & BETWEEN_NODES and is_slurm and len(phase.nodes) > 1 and not isolated:
        yield f"find the node or link by `pytest {on} -k {phase.phase} --cluster-isolate`"
    if red & LEVELS and phase.last_good:
        compare = f"clustersmoke compare {phase.last_good} {record.run_id}"
        yield f"find what changed by `{compare}`"
    if "references" in red and is_slurm:
        yield f"look for a slow node by `pytest {on} --cluster-screen`"
    if "references" in red:
        place = f"`references.{phase.phase}` of cluster {record.cluster}"
        yield f"if the reference is wrong, correct {place} in cluster.yaml"
    if "history" in red:
        accept = f"clustersmoke references accept {on} --phase {phase.phase} --reason TEXT"
        yield f"if the new level is right, `{accept}`"


def _causes(phase: PhaseRecord) -> list[FindingRecord]:
    """The causes with a fix; what --cluster-isolate found comes first."""
    causes = [finding for finding in phase.findings if finding.primary and finding.fix]
    return sorted(causes, key=lambda finding: finding.id != ISOLATION_FINDING)


def _complete(record: RunRecord) -> Iterator[str]:
    """How to measure what was not measured."""
    open_phases = [
        phase
        for phase in record.phases
        if phase.known is None and (phase.outcome in NOT_MEASURED or not phase.counts.has_ended)
    ]
    for phase in open_phases:
        fixes = [finding.fix for finding in _causes(phase)[:1]]
        yield from (f"{phase.phase}: {fix}" for fix in fixes if fix != AGAIN)
    if open_phases or record.interrupted:
        yield f"run it again: `{_command(record, [phase.phase for phase in open_phases])}`"
    yield from _measure_kinds(record)
    if record.counts.undefined_phases and record.counts.is_whole:
        names = shorten(record.counts.undefined_phases, MAX_NAMES)
        yield f"write a test for {names}, or take it from `phases` of {record.cluster}"
    if record.known:
        places = shorten([*dict.fromkeys(known.where for known in record.known)], MAX_NAMES)
        yield f"repair what is known to fail, then remove its entry under `known` ({places})"


def _command(record: RunRecord, names: Sequence[str]) -> str:
    """The command that runs these phases, or all if there are many."""
    few = 0 < len(names) <= MAX_NAMES
    return f"pytest --cluster {record.cluster}" + (f" -k '{' or '.join(names)}'" if few else "")


def _measure_kinds(record: RunRecord) -> Iterator[str]:
    """How to measure each kind of criteria that is required and missing."""
    by_name = {phase.phase: phase for phase in record.phases}
    by_kind: dict[str, list[PhaseRecord]] = {}
    yield from _prove(record)
    for missing in record.missing:
        if missing.kind and missing.phase in by_name and not missing.is_unjudged_proof:
            by_kind.setdefault(missing.kind, []).append(by_name[missing.phase])
    for kind, phases in by_kind.items():
        if kind == "references":
            yield _propose(record, phases)
        elif kind == "history":
            young = [phase for phase in phases if _count_good([phase]) < MIN_RUNS]
            old = [phase for phase in phases if phase not in young]
            if young:
                yield f"run it on more nights: {_count_nights(young)}"
            if old:
                yield f"measure {kind}: {old[0].phase}: {_find_reason(old[0], kind)}"
        else:
            yield f"measure {kind}: {phases[0].phase}: {_find_reason(phases[0], kind)}"


def _prove(record: RunRecord) -> Iterator[str]:
    """How to have the proofs of training judged that no criterion judged."""
    unjudged = [missing for missing in record.missing if missing.is_unjudged_proof]
    if unjudged:
        names = shorten([*dict.fromkeys(each.phase for each in unjudged)], MAX_NAMES)
        kinds = {each.kind for each in unjudged}
        calls = [f"phase.{call}()" for kind, call in TRAINING_PROOFS.items() if kind in kinds]
        yield (
            f"{names}: let the class inherit `Trained` and neither override nor skip its criteria, "
            f"or add criteria that call {', '.join(calls)}"
        )


def _propose(record: RunRecord, phases: Sequence[PhaseRecord]) -> str:
    if all(any(metric.reference for metric in phase.metrics.values()) for phase in phases):
        return "run it at the sizes of its references, without --cluster-set"
    command = f"`clustersmoke references propose --cluster {record.cluster}`"
    if _count_good(phases) < MIN_RUNS:
        return f"after {MIN_RUNS} good runs, {command} prints references; {_count_nights(phases)}"
    return f"{command} prints references from the good runs; put them into cluster.yaml"


def _count_good(phases: Sequence[PhaseRecord]) -> int:
    """How many past runs of these versions the metrics are compared with, in the phase that has the
    fewest."""
    pasts = [[m.past for m in phase.metrics.values() if m.past] for phase in phases]
    counts = ([past["runs"] for past in some if not past.get("other_versions")] for some in pasts)
    return min((max(runs, default=0) for runs in counts), default=0)


def _count_nights(phases: Sequence[PhaseRecord]) -> str:
    names = shorten([phase.phase for phase in phases], MAX_NAMES)
    good = plural(_count_good(phases), "good run")
    return f"{names}: {good} before this one on this hardware and these versions, of {MIN_RUNS}"


def _find_reason(phase: PhaseRecord, kind: str) -> str:
    """Why a kind was not measured, as its criterion says."""
    begin = f"not measured ({kind}): "
    texts = (each.text for each in phase.criteria.values() if each.text.startswith(begin))
    return clip(next(texts, "no criterion judged it").removeprefix(begin), MAX_REASON)
