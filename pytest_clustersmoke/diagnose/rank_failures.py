"""Ranks that died, left early or raised: causes before what follows from them, in order of time.

A rank that lost a peer, ran into a timeout or was ended by torchrun is a victim. Anything else that
ends a rank is a cause of its own if the rank's node did not yet know that the phase was ending, and
if no rank before it failed with the same message; so two ranks that die on two nodes are both
reported. Slurm reports which ranks the kernel killed for lack of host memory.
"""

from __future__ import annotations

import json
import re
import signal
from dataclasses import dataclass, replace

from ..evidence.finding import MAX_TEXT, Evidence, Finding
from ..evidence.job_results import RankError, RankResult
from ..evidence.scheduler_record import OUT_OF_MEMORY
from ..evidence.telemetry import MARK_EVERY_S, parse_int, parse_rows
from ..jobs.outcome import Judgement
from .failure_evidence import FailureEvidence, is_echo
from .node_findings import NODE_REASONS
from .process_exits import UNKNOWN, RankExit
from .rank_positions import left_before
from .timeline import read_log_moments

NUMBERS = re.compile(r"\d+")
# The watch looks four times a second, and once more 0.3 s after a process has ended: a rank died up
# to this long before its node reported it (node/rank_progress.py).
SEEN_WITHIN_S = 0.6


@dataclass(frozen=True)
class _Failure:
    """One rank's end: when, whether something else ended it, and the text that identifies it."""

    rank: RankResult
    time: float
    victim: bool
    words: str
    finding: Finding


def find_rank_failures(evidence: FailureEvidence) -> list[Finding]:
    """Every rank that died or raised, the first cause first; if all of them are victims, the ranks
    that left early."""
    timeline = evidence.timeline
    failures = sorted(
        [*_deaths(evidence), *_raised(evidence)],
        key=lambda failure: (failure.victim, failure.time),
    )
    closed = evidence.exits.closed
    are_ended = all(failure.victim or failure.rank.rank in closed for failure in failures)
    if failures and are_ended and (silent := _find_silent_nodes(evidence)):
        return silent
    if failures and all(failure.victim for failure in failures):
        leavers = early_leavers(evidence)
        if leavers:
            return leavers
    findings: list[Finding] = []
    seen: set[str] = set()
    around: list[str] = []
    if failures:
        first = failures[0]
        logs = read_log_moments(evidence.result, first.rank, first.time, timeline)
        around = timeline.around(first.time, logs)
    for failure in failures:
        node = failure.rank.node_rank
        end = timeline.ends_seen.get(node) if node is not None else None
        before_the_end = end is None or failure.time <= end
        primary = not findings or (
            not failure.victim and before_the_end and failure.words not in seen
        )
        seen.add(failure.words)
        findings.append(_add_context(failure, failures[0], primary, around))
    return sorted(findings, key=lambda finding: not finding.primary)


def find_memory_kill(evidence: FailureEvidence, judgement: Judgement) -> list[Finding]:
    """The killed ranks; the job, if Slurm reports a kill but no rank is known to be dead."""
    record = evidence.result.scheduler
    messages = record.logged(OUT_OF_MEMORY)
    if not messages and judgement.ended_by != "OUT_OF_MEMORY":
        return []
    named = {message.node for message in messages if message.node}
    logged = tuple(message.evidence for message in messages[:2])
    shown = record.evidence(record.job)
    dead = [death for death in _deaths(evidence) if not named or death.rank.node in named]
    # Slurm's message may lack the node, and ranks that lost the one that was killed die as well.
    dead = [death for death in dead if _was_killed(death)] or dead
    memory = record.job.memory_per_node or record.job.memory_per_cpu
    unit = "node" if record.job.memory_per_node else "CPU"
    limit = f" ({memory} per {unit})" if memory not in ("", "0") else ""
    fix = (
        "raise slurm.mem of the phase (0 is all of a node's memory), or use less host memory: "
        "fewer data loader workers, no second copy of the dataset or of the model"
    )
    why = f"the kernel killed it: the job used more host memory than it was allocated{limit}"
    if not dead:
        hosts = tuple(sorted(named))
        where = f" on {', '.join(hosts)}" if hosts else ""
        cause = f"the job used more host memory than it was allocated{limit}{where}, and was killed"
        return [Finding("out-of-memory", cause, fix, evidence=(*logged, *shown), hosts=hosts)]
    return [
        Finding(
            "out-of-memory",
            f"{death.rank} ended; {why}",
            fix,
            primary=not index,
            evidence=(*logged, *death.finding.evidence, *shown),
            hosts=death.finding.hosts,
            ranks=death.finding.ranks,
        )
        for index, death in enumerate(dead)
    ]


def _was_killed(death: _Failure) -> bool:
    """Whether the kernel may have: by SIGKILL, which no launcher sent."""
    return death.finding.detail.get("exitcode") == -signal.SIGKILL and not death.victim


def find_dead_ranks(evidence: FailureEvidence) -> set[int]:
    """Ranks that ended without an exception before they were done: killed, or exited early."""
    return {death.rank.rank for death in _deaths(evidence)}


def early_leavers(evidence: FailureEvidence) -> list[Finding]:
    """Ranks that finished too early, if the others only report that they lost a peer."""
    victims = [rank for rank, error in _errors(evidence) if is_echo(error)]
    if not victims:
        return []
    return [
        Finding(
            "rank-left-early",
            f"{rank} finished while {victims[0]} was still in stage {_position(victims[0])[0]}",
            "find out why the program left its Rank early on that rank",
            evidence=(_last_event(rank),),
            hosts=(rank.node,),
            ranks=(rank.rank,),
        )
        for rank in left_before(evidence.result, victims)
    ]


def _find_silent_nodes(evidence: FailureEvidence) -> list[Finding]:
    """The nodes that started and left no result, if torchrun on the others ended their ranks: it
    does so once it has lost the store on node 0."""
    result = evidence.result
    silent = [node for node in result.nodes if not node.result and evidence.has_begun(node)]
    if not silent or not evidence.exits.closed:
        return []
    return [
        Finding(
            "launcher-failed",
            f"{node.name} left no result: the process that ran its part of the job is gone, and "
            "the launcher on the other nodes lost it and ended their ranks",
            f"find out what ended it on {node.name}: the kernel's log (`dmesg -T`: out of memory?) "
            "and, under Slurm, the node's slurmd log",
            primary=not index,
            evidence=(
                Evidence(str(result.directory.node_events(node.node_rank)), 1, "its events"),
            ),
            hosts=(node.name,),
        )
        for index, node in enumerate(silent)
    ]


def _add_context(failure: _Failure, first: _Failure, primary: bool, around: list[str]) -> Finding:
    """The finding with its timeline or, after the first, with its delay behind the first one."""
    if failure is first:
        detail = {**failure.finding.detail, "timeline": around}
        return replace(failure.finding, primary=True, detail=detail)
    after = failure.time - first.time
    when = f", {after:.1f} s after {first.rank}" if after > 0 else ""
    detail = {**failure.finding.detail, "after_s": round(after, 3), "victim": failure.victim}
    cause = f"{failure.finding.cause}{when}"
    return replace(failure.finding, cause=cause, primary=primary, detail=detail)


def _deaths(evidence: FailureEvidence) -> list[_Failure]:
    known, by_torchrun, timeline = evidence.exits.by_rank, evidence.exits.closed, evidence.timeline
    raised = {rank.node_rank for rank, error in _errors(evidence) if not is_echo(error)}
    deaths = []
    for rank in evidence.result.ranks:
        if not rank.start or rank.done or rank.error is not None:
            continue
        if not _seen_dead(evidence, rank):
            continue
        node, ended = rank.node_rank, known.get(rank.rank)
        end = timeline.ends_seen.get(node) if node is not None else None
        last = timeline.at(node, float(rank.events.records[-1]["time"]))
        time = last if end is None else max(last, end - SEEN_WITHIN_S)
        # torchrun ends all ranks of a node where one has raised.
        victim = not ended.own if ended is not None and ended.signal else node in raised
        if ended is not None and not ended.signal:
            victim = False
        victim = victim or (ended is None and rank.rank in by_torchrun)
        words = f"died {ended.code if ended else ''} {rank.rank}"
        deaths.append(_Failure(rank, time, victim, words, _death(rank, ended, evidence.slurm_job)))
    if deaths and all(death.victim for death in deaths) and not raised:
        # As far as the evidence goes, no other rank can have ended them.
        free = [death for death in deaths if death.rank.rank not in by_torchrun] or deaths
        deaths = [replace(death, victim=death not in free) for death in deaths]
    return deaths


def _seen_dead(evidence: FailureEvidence, rank: RankResult) -> bool:
    """Whether the node's watch found the process dead before torchrun could have ended it."""
    node = rank.node_rank
    if node not in evidence.node_events:
        return False
    return any(
        state.get("rank") == rank.rank and state.get("alive") is False
        for record in evidence.node_events[node].named("ranks")
        for state in parse_rows(record.get("states"))
    )


def _last_event(rank: RankResult) -> Evidence:
    text = json.dumps(rank.events.records[-1])[:MAX_TEXT]
    return Evidence(str(rank.events.path), rank.events.lines[-1], text)


def _death(rank: RankResult, ended: RankExit | None, slurm_job: str) -> Finding:
    stage, step = _position(rank)
    marks = f"(steps are marked at most every {MARK_EVERY_S:g} s)"
    after = f", after step {step} or later {marks}" if step else ""
    how = str(ended) if ended else "killed by a signal, or it exited early"
    last = _last_event(rank)
    return Finding(
        "rank-died",
        f"{rank} ended in stage {stage}{after} without an exception and before it was done: {how}",
        ended.fix(rank.node, slurm_job) if ended else UNKNOWN,
        evidence=(last, ended.evidence) if ended else (last,),
        hosts=(rank.node,),
        ranks=(rank.rank,),
        detail={"exitcode": ended.code} if ended else {},
    )


def _raised(evidence: FailureEvidence) -> list[_Failure]:
    return [
        _Failure(
            rank,
            evidence.timeline.at(rank.node_rank, error.time),
            is_echo(error),
            NUMBERS.sub("0", str(error)),
            _describe_error(rank, error),
        )
        for rank, error in _errors(evidence)
    ]


def _describe_error(rank: RankResult, error: RankError) -> Finding:
    return Finding(
        "rank-error",
        f"{rank} failed: {error}"[:MAX_TEXT],
        "read the traceback in the rank's events and its stderr",
        evidence=(Evidence(str(rank.events.path), error.line, error.traceback[-MAX_TEXT:]),),
        hosts=(rank.node,),
        ranks=(rank.rank,),
    )


def _errors(evidence: FailureEvidence) -> list[tuple[RankResult, RankError]]:
    """Each rank's exception. If a node's watch ended the phase for a reason of its own (a hang),
    errors about lost peers only reflect that end and are left out."""
    ended = evidence.abort_flag.reason in NODE_REASONS
    errors = [(rank, rank.error) for rank in evidence.result.ranks]
    return [(rank, error) for rank, error in errors if error and not (ended and is_echo(error))]


def _position(rank: RankResult) -> tuple[str, int]:
    """Its last stage, and the last step that it is known to have done if it is still in training:
    one that it marked, or the one before a step that it proved."""
    if not rank.stages:
        return "init", 0
    stage = rank.stages[-1]
    if stage.name != "train" or stage.ended:
        return stage.name, 0
    proven = [parse_int(record.get("step")) or 0 for record in rank.events.named("proof")]
    return stage.name, max([rank.steps_done or 0, *(step - 1 for step in proven)])
