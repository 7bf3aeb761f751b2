"""Ask Slurm about all phases of a run before any is submitted, within a bounded time.

Questions that it does not answer are reported and left to the submission itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, TypeVar

from ..config.hostlist import expand_hostlist
from ..config.phase import Phase
from ..config.profile import Profile
from ..evidence.finding import MAX_TEXT, Evidence, Finding
from ..evidence.run_directory import PhaseDir, RunDir, write_atomically
from ..evidence.run_request import user_name
from ..jobs import batch_script
from ..jobs.backend import Backend, Submission
from ..jobs.slurm_client import SlurmClient, SlurmUnavailable, group_names
from ..jobs.slurm_jobs import TrialSubmission
from ..jobs.slurm_records import SlurmNode, SlurmPartition
from ..text import format_here, shorten
from . import account_limits, partition_fit
from .partition_fit import RequestedResources, Slurm
from .shared_paths import find_doubtful

# For one command, and for all together: a scheduler that hangs must not delay the start.
ANSWER_S, ALL_S = 10.0, 30.0
MAX_LINES = 10

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class CheckResult:
    """Slurm's answers: the findings about each phase that it would not run; when the other phases
    might start, in Unix seconds; lines for people."""

    findings: Mapping[str, list[Finding]] = field(default_factory=dict)
    starts: Mapping[str, float] = field(default_factory=dict)
    lines: tuple[str, ...] = ()


class CheckNotes:
    """The phase's `preflight.txt`: Slurm's lines to which findings point."""

    def __init__(self, directory: PhaseDir) -> None:
        self._directory = directory
        self._lines: list[str] = []

    def note(self, text: str) -> Evidence:
        if text not in self._lines:
            self._lines.append(text)
        number = self._lines.index(text) + 1
        return Evidence(str(self._directory.preflight), number, text[:MAX_TEXT])

    def write(self) -> None:
        write_atomically(self._directory.preflight, "".join(f"{line}\n" for line in self._lines))


class BackgroundCall(Generic[Answer]):
    """A call in a daemon thread, so that it never delays the end of pytest."""

    def __init__(self, call: Callable[[], Answer]) -> None:
        self._call = call
        self._answers: list[Answer] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def result(self) -> Answer:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._answers[0]

    def _work(self) -> None:
        try:
            self._answers.append(self._call())
        except Exception as error:  # result() raises it
            self._error = error


class SlurmCheck:
    """Checks phases against one cluster's Slurm."""

    def __init__(self, profile: Profile, backend: Backend, environ: Mapping[str, str]) -> None:
        self._profile, self._backend = profile, backend
        self._client = SlurmClient(environ, ANSWER_S)
        self._unasked: list[str] = []

    def __call__(self, phases: Iterable[Phase], run: RunDir) -> CheckResult:
        phases = list(phases)
        deadline = time.monotonic() + ALL_S
        slurm = self._ask_slurm()
        trials = self._test_submissions(phases, run, deadline)
        findings_by_phase = {}
        for phase in phases:
            trial = trials.get(phase.name, TrialSubmission(None, ""))
            record = CheckNotes(run.phase(phase.name))
            if trial.message:
                record.note(trial.message)
            findings = check_phase(phase, self._profile, slurm, trial, record)
            record.write()
            if findings:
                findings_by_phase[phase.name] = findings
        starts = {name: trial.start for name, trial in trials.items() if trial.start is not None}
        runs = [phase for phase in phases if phase.name not in findings_by_phase]
        lines = [
            *find_doubtful(self._profile, phases, (slurm.nodes or {}).values()),
            *report_unavailable_nodes(runs, slurm),
            *_report_starts(starts, findings_by_phase, trials),
            *(f"not checked: {words}" for words in self._unasked),
        ]
        return CheckResult(findings_by_phase, starts, tuple(lines))

    def _test_submissions(
        self, phases: Iterable[Phase], run: RunDir, deadline: float
    ) -> dict[str, TrialSubmission]:
        """Test-submit one of the phases that have the same options of sbatch: its answer holds for
        each of them. Stop once sbatch has timed out."""
        alike: dict[tuple[str, ...], list[str]] = {}
        for phase in phases:
            directory = run.phase(phase.name)
            write_atomically(
                directory.batch_script, self._backend.script(Submission(phase, directory))
            )
            script = batch_script.nameless_script(phase, self._backend)
            alike.setdefault(batch_script.sbatch_options(script), []).append(phase.name)
        trials: dict[str, TrialSubmission] = {}
        for names in alike.values():
            seconds = min(ANSWER_S, deadline - time.monotonic())
            timed_out = any(trial.timed_out for trial in trials.values())
            shown = shorten(names, MAX_LINES)
            if timed_out or seconds <= 0:
                self._unasked.append(f"sbatch --test-only of {shown}: Slurm was too slow")
                continue
            trial = self._client.test_only(run.phase(names[0]).batch_script, seconds)
            trials |= dict.fromkeys(names, trial)
            if trial.accepted is None:
                self._unasked.append(f"{shown}: {trial.message}")
        return trials

    def _ask_slurm(self) -> Slurm:
        """Ask what is needed once per run; the questions run at the same time."""
        client = self._client
        partitions = BackgroundCall(partial(self._answer, client.partitions))
        nodes = BackgroundCall(partial(self._answer, client.nodes))
        config = self._answer(client.config)
        slurm = Slurm(
            partitions=partitions.result() or None,
            nodes=nodes.result() or None,
            enforced=config.enforced if config else frozenset(),
            groups=group_names(),
        )
        user = user_name()
        if config is None or not config.accounting:
            return slurm
        qos = BackgroundCall(partial(self._answer, client.qos))
        mine = self._answer(partial(client.associations, user, config.cluster)) if user else None
        return replace(slurm, qos=qos.result() or None, associations=mine)

    def _answer(self, ask: Callable[[], Answer]) -> Answer | None:
        try:
            return ask()
        except SlurmUnavailable as error:
            self._unasked.append(str(error))
            return None


def check_phase(
    phase: Phase, profile: Profile, slurm: Slurm, trial: TrialSubmission, record: CheckNotes
) -> list[Finding]:
    """Everything that keeps a phase from running. If it may use several partitions, the one with
    the fewest findings counts."""
    partitions, findings = partition_fit.find_partitions(phase, slurm, record.note)
    if trial.start is not None:
        # A site's job_submit plugin may move a job to a partition other than the one it names, or
        # the default one: the partition in which Slurm would start it counts.
        partitions, findings = _estimated_partition(partitions, slurm, trial), []
    requests = [
        RequestedResources(phase, profile, partition, record.note) for partition in partitions
    ]
    by_partition = [_check_in_partition(request, slurm, trial) for request in requests]
    if by_partition and all(by_partition):
        fewest: list[Finding] = min(by_partition, key=len)
        findings += fewest
    if trial.accepted is not False or (trial.no_nodes and slurm.has_just_started):
        return findings
    explained = trial.causes & {finding.id for finding in findings} if trial.causes else findings
    if not explained and trial.no_nodes and slurm.nodes:
        for request in requests:
            findings += partition_fit.check_availability(request, slurm.nodes, also_away=True)
    evidence = record.note(trial.message)
    if not findings or (trial.causes and not explained):
        findings.append(_report_refusal(phase, trial))
    # Slurm names only one cause, and briefly: our findings stand, with its message as evidence.
    return [replace(findings[0], evidence=(*findings[0].evidence, evidence)), *findings[1:]]


def _check_in_partition(
    request: RequestedResources, slurm: Slurm, trial: TrialSubmission
) -> list[Finding]:
    starts = trial.start is not None
    findings = [
        finding
        for finding in partition_fit.check_partition(request)
        if not account_limits.is_lifted(finding, request, slurm, starts)
    ]
    if trial.accepted is False:  # sbatch knows the user's rights best; explain its refusal
        findings += account_limits.check_rights(request, slurm, trial.causes)
    findings += account_limits.check_limits(request, slurm, starts)
    if slurm.nodes is not None and trial.start is None:
        findings += partition_fit.check_nodes(request, slurm.nodes)
    elif slurm.nodes is not None and _uses_unavailable_nodes(trial, slurm.nodes):
        findings += partition_fit.check_availability(request, slurm.nodes)
    return findings


def _estimated_partition(
    partitions: list[SlurmPartition], slurm: Slurm, trial: TrialSubmission
) -> list[SlurmPartition]:
    """The partition of Slurm's estimate, if it is not one of these."""
    estimated = (slurm.partitions or {}).get(trial.partition)
    if estimated is None or estimated in partitions:
        return partitions
    return [estimated]


def _uses_unavailable_nodes(trial: TrialSubmission, nodes: Mapping[str, SlurmNode]) -> bool:
    """Whether Slurm's estimate relies on nodes that take no jobs."""
    return any(name in nodes and nodes[name].gone for name in expand_hostlist(trial.nodes))


def _report_refusal(phase: Phase, trial: TrialSubmission) -> Finding:
    """A finding with Slurm's own message, if nothing else explains the refusal."""
    finding_id = next(iter(sorted(trial.causes)), "submission-refused")
    return Finding(
        finding_id,
        f"sbatch refuses phase {phase.name}: {trial.message}",
        "read Slurm's message; account, partition, QOS and limits are set in cluster.yaml",
        evidence=partition_fit.setting_evidence(phase.slurm.get("partition"), "partition"),
    )


def report_unavailable_nodes(phases: Iterable[Phase], slurm: Slurm) -> list[str]:
    """Report nodes that take no jobs, in partitions of phases that can run anyway."""
    if slurm.nodes is None:
        return []
    lines = []
    names = {
        partition.name
        for phase in phases
        for partition in partition_fit.find_partitions(phase, slurm, _discard)[0]
    }
    for partition in sorted(names):
        here = [node for node in slurm.nodes.values() if partition in node.partitions]
        bad = [node for node in here if node.gone or "NOT_RESPONDING" in node.states]
        if bad:
            verb = "takes" if len(bad) == 1 else "take"
            lines.append(
                f"{len(bad)} of the {len(here)} nodes of partition {partition} {verb} no jobs: "
                + shorten([node.description for node in bad], MAX_LINES, "; ")
            )
    return lines


def _discard(text: str) -> Evidence:
    return Evidence("", 0, text)


def _report_starts(
    starts: Mapping[str, float],
    refused: Mapping[str, object],
    trials: Mapping[str, TrialSubmission],
) -> list[str]:
    """Report when phases might start, if that is not at once."""
    now = time.time()
    return [
        f"Slurm estimates that {name} may start at {format_here(when)} on {trials[name].nodes}"
        for name, when in starts.items()
        if name not in refused and when - now > 60
    ]
