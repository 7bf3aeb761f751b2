"""Asks the scheduler about all phases of a run at once, before any is submitted, and within a
bounded time: what it does not answer is said so, and left to sbatch."""

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
from ..evidence.run_directory import PhaseDir, RunDir, write_whole
from ..jobs.backend import Backend
from ..jobs.slurm_client import SlurmClient, SlurmSilent, group_names, user_name
from ..jobs.slurm_jobs import TrialSubmission
from ..jobs.slurm_records import SlurmNode, SlurmPartition
from ..text import shorten
from . import account_limits, partition_fit
from .partition_fit import RequestedResources, Slurm
from .shared_paths import doubtful

# For one command, and for all of them together: a silent scheduler must not hold up the start.
ANSWER_S, ALL_S = 10.0, 30.0
MAX_LINES = 10

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Checked:
    """What the scheduler said: findings by phase, for those that it would not run; when the others
    might start, in Unix seconds; lines for people."""

    findings: Mapping[str, list[Finding]] = field(default_factory=dict)
    starts: Mapping[str, float] = field(default_factory=dict)
    lines: tuple[str, ...] = ()


class CheckNotes:
    """The phase's `preflight.txt`: the lines of Slurm's that findings point to."""

    def __init__(self, directory: PhaseDir) -> None:
        self._directory = directory
        self._lines: list[str] = []

    def note(self, text: str) -> Evidence:
        if text not in self._lines:
            self._lines.append(text)
        number = self._lines.index(text) + 1
        return Evidence(str(self._directory.preflight), number, text[:MAX_TEXT])

    def write(self) -> None:
        write_whole(self._directory.preflight, "".join(f"{line}\n" for line in self._lines))


class Aside(Generic[Answer]):
    """A call in a thread of its own, which never holds up the end of pytest."""

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
        except Exception as error:  # told to whoever waits for the answer
            self._error = error


class SlurmCheck:
    """The check of one cluster's Slurm."""

    def __init__(self, profile: Profile, backend: Backend, environ: Mapping[str, str]) -> None:
        self._profile, self._backend = profile, backend
        self._client = SlurmClient(environ, ANSWER_S)
        self._unasked: list[str] = []

    def __call__(self, phases: Iterable[Phase], run: RunDir) -> Checked:
        phases = list(phases)
        deadline = time.monotonic() + ALL_S
        slurm = self._ask()
        trials = self._try_out(phases, run, deadline)
        found = {}
        for phase in phases:
            trial = trials.get(phase.name, TrialSubmission(None, ""))
            record = CheckNotes(run.phase(phase.name))
            if trial.words:
                record.note(trial.words)
            findings = findings_of(phase, self._profile, slurm, trial, record)
            record.write()
            if findings:
                found[phase.name] = findings
        starts = {name: one.start for name, one in trials.items() if one.start is not None}
        runs = [phase for phase in phases if phase.name not in found]
        lines = [
            *doubtful(self._profile, phases, (slurm.nodes or {}).values()),
            *out_of_service(runs, slurm),
            *_starts(starts, found, trials),
            *(f"not checked: {words}" for words in self._unasked),
        ]
        return Checked(found, starts, tuple(lines))

    def _try_out(
        self, phases: Iterable[Phase], run: RunDir, deadline: float
    ) -> dict[str, TrialSubmission]:
        """sbatch's word on each phase; no more is asked once it has been silent for too long."""
        trials: dict[str, TrialSubmission] = {}
        for phase in phases:
            directory = run.phase(phase.name)
            write_whole(directory.batch_script, self._backend.script(phase, directory))
            left = min(ANSWER_S, deadline - time.monotonic())
            silent = any(one.silent for one in trials.values())
            if silent or left <= 0:
                self._unasked.append(f"sbatch --test-only of {phase.name}: Slurm was too slow")
                continue
            trials[phase.name] = self._client.test_only(directory.batch_script, left)
            if trials[phase.name].accepted is None:
                self._unasked.append(f"{phase.name}: {trials[phase.name].words}")
        return trials

    def _ask(self) -> Slurm:
        """All that is asked once for the whole run; the questions go out together."""
        client = self._client
        partitions = Aside(partial(self._answer, client.partitions))
        nodes = Aside(partial(self._answer, client.nodes))
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
        qos = Aside(partial(self._answer, client.qos))
        mine = self._answer(partial(client.associations, user, config.cluster)) if user else None
        return replace(slurm, qos=qos.result() or None, associations=mine)

    def _answer(self, ask: Callable[[], Answer]) -> Answer | None:
        try:
            return ask()
        except SlurmSilent as silence:
            self._unasked.append(str(silence))
            return None


def findings_of(
    phase: Phase, profile: Profile, slurm: Slurm, trial: TrialSubmission, record: CheckNotes
) -> list[Finding]:
    """All that keeps a phase from running; with several partitions, in each of them."""
    partitions, found = partition_fit.partition_of(phase, slurm, record.note)
    if trial.start is not None:
        # Rules of the site's own (job_submit plugins) may put a job into another partition than it
        # names, or than the default one: where Slurm would start it, it counts.
        partitions, found = _placed(partitions, slurm, trial), []
    asks = [RequestedResources(phase, profile, one, record.note) for one in partitions]
    each = [_in_partition(asked, slurm, trial) for asked in asks]
    if each and all(each):
        found += min(each, key=lambda one: len(list(one)))
    if trial.accepted is not False:
        return found
    explained = trial.causes & {one.id for one in found} if trial.causes else found
    if not explained and trial.no_nodes and slurm.nodes:
        for asked in asks:
            found += partition_fit.unavailable(asked, slurm.nodes, also_away=True)
    said = record.note(trial.words)
    if not found or (trial.causes and not explained):
        found.append(_refused(phase, trial))
    # Slurm names one cause, and in fewer words: ours stand, with its words.
    return [replace(found[0], evidence=(*found[0].evidence, said)), *found[1:]]


def _in_partition(asked: RequestedResources, slurm: Slurm, trial: TrialSubmission) -> list[Finding]:
    found = [
        one
        for one in partition_fit.of_partition(asked)
        if not account_limits.lifted(one, asked, slurm)
    ]
    if trial.accepted is False:  # who may do what sbatch knows best: here is why it says no
        found += account_limits.of_rights(asked, slurm, trial.causes)
    found += account_limits.of_limits(asked, slurm)
    if slurm.nodes is not None and trial.start is None:
        found += partition_fit.of_nodes(asked, slurm.nodes)
    elif slurm.nodes is not None and _on_bad_nodes(trial, slurm.nodes):
        found += partition_fit.unavailable(asked, slurm.nodes)
    return found


def _placed(
    partitions: list[SlurmPartition], slurm: Slurm, trial: TrialSubmission
) -> list[SlurmPartition]:
    """The partition of Slurm's estimate, where it is none of these."""
    there = (slurm.partitions or {}).get(trial.partition)
    return partitions if there is None or there in partitions else [there]


def _on_bad_nodes(trial: TrialSubmission, nodes: Mapping[str, SlurmNode]) -> bool:
    """Whether Slurm's estimate counts on nodes that take no jobs."""
    return any(name in nodes and nodes[name].gone for name in expand_hostlist(trial.nodes))


def _refused(phase: Phase, trial: TrialSubmission) -> Finding:
    """Slurm's own words for it, where nothing that it says of itself explains them."""
    identity = next(iter(sorted(trial.causes)), "submission-refused")
    return Finding(
        identity,
        f"sbatch refuses phase {phase.name}: {trial.words}",
        "read Slurm's message; account, partition, QOS and limits are set in cluster.yaml",
        evidence=partition_fit.written(phase.slurm.get("partition"), "partition"),
    )


def out_of_service(phases: Iterable[Phase], slurm: Slurm) -> list[str]:
    """Nodes that take no jobs, in the partitions of phases that can run all the same."""
    if slurm.nodes is None:
        return []
    lines = []
    names = {
        one.name
        for phase in phases
        for one in partition_fit.partition_of(phase, slurm, _nowhere)[0]
    }
    for partition in sorted(names):
        here = [node for node in slurm.nodes.values() if partition in node.partitions]
        bad = [node for node in here if node.gone or "NOT_RESPONDING" in node.states]
        if bad:
            verb = "takes" if len(bad) == 1 else "take"
            lines.append(
                f"{len(bad)} of the {len(here)} nodes of partition {partition} {verb} no jobs: "
                + shorten([node.words for node in bad], MAX_LINES, "; ")
            )
    return lines


def _nowhere(text: str) -> Evidence:
    return Evidence("", 0, text)


def _starts(
    starts: Mapping[str, float], found: Mapping[str, object], trials: Mapping[str, TrialSubmission]
) -> list[str]:
    """When a phase might start, where that is not at once."""
    now = time.time()
    return [
        f"Slurm estimates that {name} may start at "
        f"{time.strftime('%Y-%m-%d %H:%M', time.localtime(when))} on {trials[name].nodes}"
        for name, when in starts.items()
        if name not in found and when - now > 60
    ]
