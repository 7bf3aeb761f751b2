"""Runs each phase on hosts of the profile, without a scheduler: one node of the job on each.

A phase gets the first hosts that no other phase of the run uses, and waits until there are enough.
Its nodes run in sessions of their own and never depend on a connection: where one is lost, or this
process is killed, they go on, and end by themselves or at their time limit. A host that does not
answer for a while is lost, and ends the phase on the others.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..config.hosts import name_hosts
from ..config.phase import SETUP_S, WIND_UP_S, Phase
from ..config.profile import Profile
from ..evidence.finding import MAX_TEXT
from ..evidence.run_directory import PhaseDir, write_atomically
from ..evidence.scheduler_record import JobState, NodeStatus, SchedulerRecord
from ..node import abort_flag
from . import batch_script, host_script
from .backend import Submission
from .host_script import GONE, REBOOTED, RESULT, HostProcess, NodeTag
from .outcome import HOST_LOST, HOSTS_SILENT
from .slurm_client import clean_environ
from .ssh_client import HostUnavailable, SocketFolder, SshHost, ask_hosts

# For a script on a host; on one that did not answer before; and on such a one that is connected.
ANSWER_S, SILENT_S, BUSY_S = 10.0, 4.0, 30.0
CANCEL_GRACE_S = 1.5
# A host without an answer for this long is lost; sooner if another node of its phase has failed,
# later if its SSH server still talks to us, as that of a host does which is only busy.
LOST_S, LOST_WITH_FAILURE_S, LOST_CONNECTED_S = 30.0, 10.0, 120.0
START_S = 15.0
SURVIVORS_S = 30.0  # for the other nodes to end by themselves, then by force
OVER = (RESULT, GONE, REBOOTED)


@dataclass
class _Node:
    """A node of a job on its host; `state` is the last answer, empty before the first."""

    rank: int
    host: SshHost
    tag: str
    process: HostProcess | None = None
    state: str = ""
    starting: bool = False
    ended: bool = False  # after a cancellation
    leftovers: str = ""
    shell_output: str = ""  # instead of an answer

    @property
    def is_over(self) -> bool:
        return self.ended or self.state in OVER


@dataclass
class _Job:
    submission: Submission
    submitted: float
    nodes: list[_Node] = field(default_factory=list)
    started: float | None = None
    waits_for: str = ""
    cancelled: bool = False
    failed_since: float | None = None
    lost: tuple[str, ...] = ()  # the hosts whose loss ended it
    end: JobState | None = None

    @property
    def phase(self) -> Phase:
        return self.submission.phase

    @property
    def directory(self) -> PhaseDir:
        return self.submission.directory

    @property
    def waits(self) -> bool:
        return not self.nodes and self.end is None and not self.cancelled

    @property
    def runs(self) -> bool:
        return any(not node.is_over for node in self.nodes)

    def state(self, kind: str, raw: str, reason: str = "") -> JobState:
        names = ",".join(node.host.name for node in self.nodes)
        left = [node.leftovers for node in self.nodes if node.leftovers]
        left += [
            f"{node.host.name} does not answer, and its processes may still run"
            for node in self.nodes
            if self.cancelled and not node.is_over
        ]
        return JobState(
            kind, raw, reason, names, self.submitted, self.started, left="; ".join(left)
        )


class SshBackend:
    """Runs phases on the hosts of the profile."""

    ranks_at_once: int | None = None
    chains = False
    avoids = False

    def __init__(self, profile: Profile, environ: Mapping[str, str]) -> None:
        self._profile = profile
        self._sockets = SocketFolder(clean_environ(environ))
        self.hosts = {
            name: SshHost(name, host, profile, self._sockets)
            for name, host in name_hosts(profile.hosts).items()
        }
        self._left_out: set[str] = set()
        self._jobs: dict[str, _Job] = {}
        self._answered: dict[str, float] = {}
        self._errors: dict[str, str] = {}
        self._changing = threading.Lock()  # a job that was cancelled gets no hosts, and no start

    def leave_out(self, hosts: Iterable[str]) -> None:
        """Run nothing on these hosts."""
        self._left_out = set(hosts)

    def submit(self, job: Submission, after: str = "") -> str:
        batch_script.write_call(job)
        write_atomically(job.directory.batch_script, self.script(job))
        job_id = f"ssh-{job.directory.run.run_id}-{job.phase.name}"
        self._jobs[job_id] = _Job(job, time.time())
        return job_id

    def adopt(self, job: Submission, job_id: str) -> None:
        raise NotImplementedError("runs of this backend cannot be attached; the suite refuses it")

    def states(self, job_ids: Iterable[str]) -> dict[str, JobState]:
        self._choose_hosts()
        by_host = self._nodes_by_host()
        if any(self._silent_s(host) >= LOST_WITH_FAILURE_S for host in by_host):
            by_host |= {host: [] for host in self._usable() if host not in by_host}
        self._ask(by_host)
        for job in self._jobs.values():
            if job.end is None:
                self._judge(job)
        return {job_id: self._state(self._jobs[job_id]) for job_id in job_ids}

    def details(self, job_id: str, state: JobState, nodes: str) -> SchedulerRecord | None:
        """What kept hosts of the job from answering."""
        names = self._jobs[job_id].lost
        if state.raw not in (HOST_LOST, HOSTS_SILENT) or not names:
            return None
        why = state.reason
        return SchedulerRecord(
            nodes=tuple(
                NodeStatus(name, "down", down=True, reason=why, text=why[:MAX_TEXT])
                for name in names
            )
        )

    def cancel(self, job_ids: Iterable[str]) -> bool:
        """End these jobs on all their hosts at once; return whether every host confirmed it."""
        with self._changing:
            jobs = [self._jobs[job_id] for job_id in job_ids if job_id in self._jobs]
            for job in jobs:
                job.cancelled = True
            running: dict[SshHost, list[tuple[_Job, _Node]]] = {}
            for job in jobs:
                for node in job.nodes:
                    if not node.is_over:
                        running.setdefault(node.host, []).append((job, node))
        self._ask(running, CANCEL_GRACE_S)
        return all(node.is_over for job in jobs for node in job.nodes)

    def start_now(self, job_id: str) -> None:
        """Nothing to do: nothing is requeued."""

    def cancel_named(self, job: Submission) -> None:
        """Nothing to do: the id of a job is known before it starts."""

    def close(self) -> None:
        for host in self.hosts.values():
            host.close()
        self._sockets.remove()

    def script(self, job: Submission) -> str:
        phase, script = job.phase, job.directory.batch_script
        comments = [
            f"Run over ssh on {phase.nodes.value} hosts that are free when it starts, each in a",
            "session of its own, by the following command, from a directory that was checked.",
            f"SUBMITIT_EXECUTOR=local SUBMITIT_LOCAL_JOB_ID={phase.name}.$NODE_RANK \\",
            f"  setsid timeout --foreground -k {host_script.KILL_AFTER_S} "
            f"{self._limit_s(phase):.0f} bash {script.name}",
        ]
        return batch_script.make_script(job, self._profile, comments)

    def _limit_s(self, phase: Phase) -> float:
        """The time limit of a node's process: if the controller is killed, the node must still end
        by itself."""
        return float(phase.timeout_s.value) + WIND_UP_S + SETUP_S

    def _usable(self) -> list[SshHost]:
        return [host for name, host in self.hosts.items() if name not in self._left_out]

    def _silent_s(self, host: SshHost) -> float:
        """How long a host has not answered; 0 if it did when it was last asked."""
        if host.name not in self._errors:
            return 0.0
        return time.monotonic() - self._answered.get(host.name, 0.0)

    def _answer_s(self, host: SshHost) -> float:
        if not self._silent_s(host):
            return ANSWER_S
        return BUSY_S if host.is_connected else SILENT_S

    def _is_lost(self, host: SshHost, limit_s: float) -> bool:
        return self._silent_s(host) >= (LOST_CONNECTED_S if host.is_connected else limit_s)

    # Which hosts a phase gets

    def _choose_hosts(self) -> None:
        """Give hosts to the phases whose turn it is, in the order of submission."""
        busy = {
            node.host
            for job in self._jobs.values()
            for node in job.nodes
            if job.end is None or not node.is_over
        }
        for job in [job for job in self._jobs.values() if job.waits]:
            count, usable = job.phase.nodes.value, self._usable()
            free = [host for host in usable if host not in busy]
            answering = [host for host in free if not self._silent_s(host)]
            if len(answering) < count:
                silent = [host for host in usable if self._silent_s(host)]
                job.waits_for = "too few hosts are free"
                if len(usable) - len(silent) < count:
                    self._wait_for_silent(job, silent)
                return
            with self._changing:
                if job.cancelled:
                    continue
                chosen = answering[:count]
                word = f"{job.directory.run.run_id}/{job.phase.name}"
                job.nodes = [
                    _Node(rank, host, str(NodeTag(word, rank, host.name)))
                    for rank, host in enumerate(chosen)
                ]
            busy |= set(chosen)
            job.started = time.time()
            for node in job.nodes:
                self._answered.setdefault(node.host.name, time.monotonic())

    def _wait_for_silent(self, job: _Job, silent: list[SshHost]) -> None:
        """Give up a phase that has too few hosts, once the silent ones are lost."""
        names = ", ".join(host.name for host in silent)
        job.waits_for = f"too few hosts answer (not {names})"
        self._ask({host: [] for host in silent})
        lost = [host for host in silent if self._is_lost(host, LOST_S)]
        if len(self._usable()) - len(lost) < job.phase.nodes.value:
            whys = {host.name: self._why_silent(host) for host in lost}
            job.end = self._lost_state(job, whys, "before the phase started")

    # What the hosts say

    def _nodes_by_host(self) -> dict[SshHost, list[tuple[_Job, _Node]]]:
        by_host: dict[SshHost, list[tuple[_Job, _Node]]] = {}
        for job in self._jobs.values():
            for node in job.nodes:
                # Nodes on a lost host that comes back end by themselves; asking it would only cost
                # time.
                if not node.is_over and not (job.end and self._silent_s(node.host)):
                    by_host.setdefault(node.host, []).append((job, node))
        return by_host

    def _ask(
        self, by_host: Mapping[SshHost, list[tuple[_Job, _Node]]], grace_s: float = 0.0
    ) -> None:
        """Run one script on each host, for all its nodes, and note what it answers."""
        scripts = {host: self._make_script(nodes, grace_s) for host, nodes in by_host.items()}
        for host in scripts:
            self._answered.setdefault(host.name, time.monotonic())
        asked = ask_hosts(
            scripts,
            lambda host: host.run(scripts[host], self._answer_s(host)),
        )
        for host, lines in asked.items():
            nodes = {node.tag: (job, node) for job, node in by_host[host]}
            if isinstance(lines, HostUnavailable):
                self._errors[host.name] = str(lines)
                for _, node in nodes.values():
                    node.starting = False
                continue
            self._answered[host.name] = time.monotonic()
            self._errors.pop(host.name, None)
            for answer in host_script.parse_answers(lines):
                if answer.tag in nodes:
                    self._note(nodes[answer.tag][1], answer)
            for _, node in nodes.values():
                node.shell_output = "" if node.process else host_script.find_error(lines)

    def _make_script(self, nodes: list[tuple[_Job, _Node]], grace_s: float) -> str:
        calls = []
        for job, node in nodes:
            with self._changing:
                if job.cancelled or self._ends_survivors(job):
                    call = host_script.cancel_call(grace_s, node.tag, node.process)
                elif node.process is None:
                    node.starting = True
                    variables = batch_script.node_variables(job.phase, node.rank, node.host.name)
                    words = [f"{name}={value}" for name, value in variables.items()]
                    command = ["env", *words, *batch_script.guarded_command(job.submission)]
                    call = host_script.start_call(
                        job.directory,
                        node.rank,
                        self._limit_s(job.phase),
                        node.tag,
                        variables["SUBMITIT_LOCAL_JOB_ID"],
                        command,
                    )
                else:
                    call = host_script.look_call(job.directory, node.rank, node.tag, node.process)
            calls.append(call)
        return host_script.make_script(calls)

    @staticmethod
    def _note(node: _Node, answer: host_script.HostAnswer) -> None:
        """Note an answer. A node that was being started while it was cancelled has not ended."""
        if answer.what == "started":
            node.process, node.starting = answer.process or node.process, False
        elif answer.what == host_script.ENDED:
            node.ended = not node.starting
        elif answer.what == host_script.LEFT:
            node.leftovers = f"{node.host.name} still runs {' '.join(answer.fields)}"
        else:
            node.state = answer.what

    # How a job ends

    @staticmethod
    def _ends_survivors(job: _Job) -> bool:
        """Whether the time that the other nodes have to end by themselves is over."""
        since = job.failed_since
        return since is not None and time.monotonic() - since > SURVIVORS_S

    def _judge(self, job: _Job) -> None:
        """Note the end of a job; end it on all nodes once it has failed on one."""
        if job.cancelled and not job.runs:
            job.end = job.state("ended", "CANCELLED")
        if not job.nodes or job.end is not None or job.cancelled:
            return
        failed = [node for node in job.nodes if node.state in (GONE, REBOOTED)]
        fails = bool(failed) or abort_flag.visible(job.directory.newest.abort)
        limit_s = LOST_WITH_FAILURE_S if fails else LOST_S
        lost = {
            node.host.name: why
            for node in job.nodes
            if not node.is_over and (why := self._why_lost(job, node, limit_s))
        }
        for node in job.nodes:
            if node in failed or node.host.name in lost:
                self._end_others(job, node)
        if any(not node.is_over and node.host.name not in lost for node in job.nodes):
            return
        restarted = [node.host.name for node in failed if node.state == REBOOTED]
        lost |= {name: f"{name} was restarted" for name in restarted}
        if lost:
            job.end = self._lost_state(job, lost, "while the phase ran")
        elif any(node.state == GONE or node.ended for node in job.nodes):
            job.end = job.state("ended", "FAILED")
        else:
            job.end = job.state("ended", "COMPLETED")

    def _why_lost(self, job: _Job, node: _Node, limit_s: float) -> str:
        """Why a node that has not ended counts as lost; empty if it does not."""
        if self._is_lost(node.host, limit_s):
            return self._why_silent(node.host)
        waited_s = time.time() - (job.started or 0.0)
        if node.process is None and waited_s > START_S and not self._silent_s(node.host):
            why = node.shell_output or "no reason given"
            return f"{node.host.name} did not start the phase: {why}"
        return ""

    def _why_silent(self, host: SshHost) -> str:
        why = self._errors[host.name]
        return f"{host.name} did not answer for {self._silent_s(host):.0f} s: {why}"

    def _lost_state(self, job: _Job, lost: Mapping[str, str], when: str) -> JobState:
        """The end of a job that lost these hosts, each with the reason. If no host answers, this
        machine may be at fault."""
        job.lost, why = (*lost,), "; ".join(lost.values())
        if all(self._silent_s(host) for host in self._usable()):
            reason = f"no host of the profile answers any more ({why})"
            return job.state("ended", HOSTS_SILENT, reason)
        return job.state("ended", HOST_LOST, f"{why}, {when}")

    @staticmethod
    def _end_others(job: _Job, node: _Node) -> None:
        """Have the other nodes end, as `srun --kill-on-bad-exit` does."""
        if job.failed_since is not None:
            return
        job.failed_since = time.monotonic()
        gone = node.state == GONE
        why = "the node's launcher ended and left no result" if gone else "the host was lost"
        cause = {"reason": "launcher", "why": why, "rank": None, "gone": node.rank}
        with contextlib.suppress(OSError):
            abort_flag.raise_flag(job.directory.newest, node.rank, node.host.name, cause)

    def _state(self, job: _Job) -> JobState:
        if job.end is not None:
            return job.end
        if not job.nodes:
            return job.state("pending", "PENDING", job.waits_for)
        return job.state("running", "RUNNING")
