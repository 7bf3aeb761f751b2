"""Runs one node's part of a job: environment, facts, checks, rendezvous, launcher, result."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from ..evidence.job_results import NodeResult, StartClaim, read_claim, read_node_result
from ..evidence.process_start import parent_of_task
from ..evidence.run_directory import (
    PhaseDir,
    create_once,
    create_phase,
    is_job_root,
    write_atomically,
    write_json,
)
from ..evidence.telemetry import EventWriter
from .abort_flag import Aborted, NodeFailed, raise_abort, visible

# Where no Slurm sets SLURM_NODEID and SLURMD_NODENAME.
RANK_VARIABLE, NAME_VARIABLE = "CLUSTERSMOKE_NODE_RANK", "CLUSTERSMOKE_NODE_NAME"
OTHERS_S = 30.0  # for the results of the other nodes, before a requeue
COMMAND_S = 30.0
REQUEUE_S, REQUEUE_PAUSE_S = 60.0, 5.0  # Slurm is asked so long to requeue the job, with pauses
REQUEUED_S = 60.0  # until Slurm ends this task
POLL_S = 0.2
CLAIM_POLL_S = 0.05
ENDING = {signal.SIGTERM, signal.SIGINT}

__all__ = ["NodeFailed", "NodeJob", "run_node"]


class Terminated(BaseException):
    """SIGTERM: the scheduler or the controller ends the job. Not an Exception, so that no
    `except Exception` swallows it."""


@dataclass(frozen=True)
class NodeJob:
    """The job's spec, with this node's rank and name, and a nonce that only the ranks of this start
    know: evidence without it comes from another start."""

    spec: Mapping[str, Any]
    node_rank: int
    node_name: str
    attempt: int = 0
    used_s: float = 0.0  # of the phase's time, by attempts before in this start of the job
    nonce: str = field(default_factory=secrets.token_hex)
    daemon: int = 0  # the pid of the slurmstepd that started this process, 0 if none did

    @property
    def dir(self) -> PhaseDir:
        root = Path(self.spec["phase_dir"])
        is_own = is_job_root(root, str(self.spec.get("phase", "")))
        return PhaseDir(root, self.attempt, root.parent if is_own else None)

    @property
    def nodes(self) -> int:
        return int(self.spec["nodes"])

    @property
    def left_s(self) -> float:
        """What is left of the phase's time."""
        return max(0.0, float(self.spec["timeout_s"]) - self.used_s)

    @property
    def init_limit_s(self) -> float:
        """How long the nodes may take to meet."""
        return float(self.spec["stage_limits_s"]["init"])

    @property
    def token(self) -> str:
        """Of the submission whose job this is."""
        return str(self.spec.get("token", ""))

    @property
    def local_ranks(self) -> int:
        return int(self.spec["ranks_per_node"])

    @property
    def ranks(self) -> range:
        """Global ranks of this node. Launchers number them by node; but where the nodes meet in
        torchrun's own store, only `RankWatch` finds out."""
        return range(self.node_rank * self.local_ranks, (self.node_rank + 1) * self.local_ranks)


def run_node(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Run this node's part of the job that `spec` describes; returns its result.

    The environment has the node's rank and name. Raises NodeFailed on failure, so that the task
    exits non-zero; the same reason is in the node's `result.json`, which the controller reads.
    """
    stop = _StopRequest()
    _reset_signals()
    os.environ.pop("SUBMITIT_FOLDER", None)  # a descriptor of this process, which ranks lack
    rank = int(os.environ.get(RANK_VARIABLE) or os.environ.get("SLURM_NODEID", "0"))
    names = (os.environ.get(variable) for variable in (NAME_VARIABLE, "SLURMD_NODENAME"))
    name = next(filter(None, names), socket.gethostname())
    # Now: later it may have ended, and this process have another parent.
    job = NodeJob(spec, rank, name, daemon=parent_of_task())
    if spec.get("resume") and (attempt := _find_attempt(job)):
        job = replace(job, attempt=attempt)
        create_phase(job.dir, job.nodes)
    stop.write_to(job.dir.stop_asked(rank))
    result = _run_attempt(job)
    goes_on = bool(spec.get("resume")) and result.record.stopped and _all_stopped(job)
    if goes_on and not result.record.requeues and job.attempt == 0:
        job = _next_attempt(job, result)
        result = _run_attempt(job)
        goes_on = result.record.stopped and _all_stopped(job)
    if goes_on and result.record.requeues:
        _requeue(job, result)
    return result.value_or_raise()


def _find_attempt(job: NodeJob) -> int:
    """Which attempt of the job this start runs first: the one that all nodes asked for in the start
    before. After a requeue that they did not ask for, a node may have failed: it is 0 again, which
    the claim refuses, as it does without `resume`."""
    own = (job.token, _task_id() or _job_id())
    before = [
        place
        for place in job.dir.attempts()
        if (claim := read_claim(place))
        and (claim.token, claim.job_id) == own
        and claim.start != _start()
    ]
    if not before:
        return 0
    last = before[-1]
    asked = all(
        visible(last.node_result(node)) and read_node_result(last, node).requeues
        for node in range(job.nodes)
    )
    return last.restarted(last.restarts + 1).attempt if asked else 0


def _all_stopped(job: NodeJob) -> bool:
    """Whether the ranks of all nodes stopped to go on in another attempt, as soon as all nodes have
    written their results. Otherwise the job ends here, and the other node's result says why."""
    deadline = time.monotonic() + OTHERS_S
    paths = [job.dir.node_result(node) for node in range(job.nodes)]
    while not all(map(visible, paths)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return all(read_node_result(job.dir, node).stopped for node in range(job.nodes))


def _next_attempt(job: NodeJob, before: _Result) -> NodeJob:
    """The job's next attempt, which has what is left of the phase's time."""
    after = replace(
        job,
        attempt=job.attempt + 1,
        used_s=job.used_s + before.seconds,
        nonce=secrets.token_hex(),
    )
    try:
        create_phase(after.dir, after.nodes)
    except OSError as error:
        before.fail(f"the next attempt has no directory: {error}")
    return after


def _requeue(job: NodeJob, result: _Result) -> None:
    """Put the job back into the queue, for another attempt to go on. Node 0 does, and waits for
    Slurm to end it. If Slurm refuses for a minute, the job ends here, and the result says why."""
    if job.node_rank != 0:
        return
    deadline = time.monotonic() + REQUEUE_S
    while words := _request_requeue():
        # SIGTERM is blocked. Slurm ends the job: it may have requeued it without an answer to us.
        if signal.sigtimedwait(ENDING, REQUEUE_PAUSE_S):
            return
        if time.monotonic() > deadline:
            result.fail(f"Slurm did not requeue the job: {words}")
    time.sleep(REQUEUED_S)


def _request_requeue() -> str:
    """Ask Slurm to requeue the job; returns why it did not, empty if it did."""
    command = ["scontrol", "requeue", _task_id() or _job_id()]
    options: dict[str, Any] = {"capture_output": True, "text": True, "errors": "replace"}
    try:
        answer = subprocess.run(command, timeout=COMMAND_S, check=False, **options)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    words = " ".join((answer.stderr or answer.stdout).split())
    return (words or f"scontrol ended with status {answer.returncode}") if answer.returncode else ""


class _StopRequest:
    """SIGUSR1: the scheduler will end the job soon. The ranks see it in a file of this node."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._came = False
        signal.signal(signal.SIGUSR1, self._note)
        # Blocked since this process began (`jobs/slurm_backend.py`): one may have come meanwhile.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})

    def write_to(self, path: Path) -> None:
        """Write the file at the signal, or now if it came before."""
        self._path = path
        if self._came:
            path.touch()

    def _note(self, _signum: int, _frame: object) -> None:
        self._came = True
        if self._path is not None:
            with contextlib.suppress(OSError):  # a full disk: the job ends at its limit
                self._path.touch()


def _run_attempt(job: NodeJob) -> _Result:
    """Start the launcher once, and write this node's result."""
    deadline = time.monotonic() + job.init_limit_s
    was_ended = not _await_claim(job, deadline)
    rank, name = job.node_rank, job.node_name
    events = EventWriter(job.dir.node_events(rank), node_rank=rank, node=name)
    started, result = time.time(), _Result(job)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        if was_ended:
            raise Terminated
        events.write("claim", pid=os.getpid(), host=socket.gethostname(), job_id=_job_id())
        result.ended(_run_launcher(job, events, deadline))
    except Terminated:
        result.ended({"ok": False, "reason": "terminated", "why": "SIGTERM"})
    except Aborted as abort:
        result.ended({"ok": False, "reason": "aborted", "why": str(abort)})
    except NodeFailed as error:
        result.ended({"ok": False, "why": str(error), **_reason(error)})
    except Exception as error:  # the controller must read the reason, and the other nodes must end
        result.ended({"ok": False, "reason": "launcher", "why": f"{type(error).__name__}: {error}"})
    finally:
        # Nothing may stop the result's writing. A signal that comes now reaches the next attempt.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        result.write(started, events)
    return result


class _Result:
    """The node's result: written once, whole, as the last file."""

    def __init__(self, job: NodeJob) -> None:
        self._job = job
        self._value: dict[str, Any] = {"ok": False, "reason": "launcher", "why": "interrupted"}
        self._began, self.seconds = time.monotonic(), 0.0  # without suspensions

    @property
    def record(self) -> NodeResult:
        """The result as its readers see it."""
        return NodeResult(self._job.node_rank, {}, self._value)

    def ended(self, value: dict[str, Any]) -> None:
        self._value = value

    def fail(self, why: str) -> NoReturn:
        """Say in the result that was written why the job cannot go on. Raises NodeFailed."""
        self._value |= {"ok": False, "stopped": False, "reason": "launcher", "why": why}
        write_json(self._job.dir.node_result(self._job.node_rank), self._value)
        raise NodeFailed(why)

    def write(self, started: float, events: EventWriter) -> None:
        job = self._job
        self.seconds = time.monotonic() - self._began - self.record.paused_s
        if not self._value["ok"] and self._value["reason"] != "aborted":
            try:
                raise_abort(job, self._value["reason"], self._value.get("why", ""))
            except OSError as error:  # still write the result; the scheduler ends the other nodes
                self._value["flag"] = f"could not raise the flag that ends the other nodes: {error}"
        self._value |= {
            "node_rank": job.node_rank,
            "node": job.node_name,
            "host": socket.gethostname(),
            "job_id": _job_id(),
            "nonce": job.nonce,
            "started": started,
            "ended": time.time(),
        }
        write_json(job.dir.node_result(job.node_rank), self._value)
        events.write("node_end", ok=self._value["ok"], reason=self._value.get("reason", ""))
        events.close()

    def value_or_raise(self) -> dict[str, Any]:
        if not self._value["ok"]:
            raise NodeFailed(f"{self._value['reason']}: {self._value.get('why', '')}")
        return self._value


def _run_launcher(job: NodeJob, events: EventWriter, deadline: float) -> dict[str, Any]:
    from . import (
        checks,
        health_readings,
        launch_environment,
        launchers,
        node_facts,
        rendezvous,
        supervisor,
    )

    spec = job.spec
    launch_environment.apply_environment(spec["env_set"], spec["env_unset"])
    own = node_facts.gather_node_facts(job.node_rank, job.node_name, spec["device"])
    write_json(job.dir.node_facts(job.node_rank), own)
    events.write("facts")
    facts = rendezvous.wait_for_facts(job, deadline)
    checks.refuse_unfit_nodes(job.spec, facts)
    endpoint = rendezvous.agree_on_endpoint(job, facts, deadline)
    events.write(
        "rendezvous", address=endpoint.address, port=endpoint.port, one_host=endpoint.one_host
    )
    launcher, launch = launchers.find_launcher(spec), launchers.launch_of(job, endpoint)
    try:
        env = launcher.prepare(launch, launch_environment.rank_environment(job, endpoint))
        command = [*launcher.command(), *launcher.arguments(launch)]
        with health_readings.watched_health(job):
            return supervisor.supervise_ranks(job, command, env, events)
    finally:
        # It may hold a token, and only the ranks' start needs it.
        with contextlib.suppress(OSError):
            job.dir.node_environment(job.node_rank).unlink(missing_ok=True)


def _reason(error: NodeFailed) -> dict[str, Any]:
    """The fields of a node's result that say why it failed."""
    from .checks import PreflightFailed
    from .rendezvous import NotSeen

    if isinstance(error, PreflightFailed):
        return {"reason": "preflight", "findings": [found.as_dict() for found in error.findings]}
    if isinstance(error, NotSeen):
        return {"reason": "unseen", "nodes": error.nodes}
    return {"reason": "node"}


def _await_claim(job: NodeJob, deadline: float) -> bool:
    """Claim the attempt; return False if the job was ended meanwhile, and no other start has it.
    Raises NodeFailed as `_claim` does."""
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        _claim(job, deadline)
    except Terminated:
        _refuse_other_start(job, read_claim(job.dir))
        return False
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    return True


def _claim(job: NodeJob, deadline: float) -> None:
    """Claim the attempt for this start of the job; on the other nodes, wait for node 0 to do so.
    Where node 0 does not by the deadline, the meeting of the nodes says so.

    Raises NodeFailed, before anything is written, if another start has it: a requeued job finds the
    claim of its first start, and a phase runs at most once. So it does if the controller gave the
    submission up.
    """
    _refuse_withdrawn(job)
    if job.node_rank == 0:
        process = {"node": job.node_name, "host": socket.gethostname(), "pid": os.getpid()}
        identity = {"token": job.token, "job_id": _task_id() or _job_id(), "start": _start()}
        if not create_once(job.dir.claim, {**identity, **process, "time": time.time()}):
            _refuse_second_start(job)
    pause_s = CLAIM_POLL_S
    while (claim := read_claim(job.dir)) is None and time.monotonic() < deadline:
        if visible(job.dir.abort):
            return  # the meeting of the nodes says why
        _refuse_withdrawn(job)  # node 0 may have taken its claim back
        time.sleep(pause_s)
        pause_s = min(1.0, pause_s * 1.2)
    # Again: the controller looks for a claim after it gives the job up, and one of us sees it.
    _refuse_other_start(job, claim)


def _refuse_other_start(job: NodeJob, claim: StartClaim | None) -> None:
    """Raise NodeFailed if the attempt is not this start's, and never will be."""
    if claim is not None and (claim.token, claim.start) != (job.token, _start()):
        _refuse_second_start(job)
    _refuse_withdrawn(job)


def _start() -> str:
    """What differs between the starts of a job that is requeued."""
    return f"{_job_id()}.{os.environ.get('SLURM_RESTART_COUNT', '0')}" if _in_slurm() else ""


def _refuse_second_start(job: NodeJob) -> NoReturn:
    """Raise NodeFailed, and leave a mark: any node does, since srun ends the others then."""
    write_atomically(job.dir.started_again, f"{job.node_name} {_job_id()} {time.time()}\n")
    claim = read_claim(job.dir)
    where = f"on {claim.node}, by job {claim.job_id}" if claim else "by another job"
    raise NodeFailed(
        f"phase {job.spec['phase']} was already started {where} (was the job requeued?); a phase "
        "runs at most once"
    )


def _refuse_withdrawn(job: NodeJob) -> None:
    """Raise NodeFailed if the job was given up, also where only another node of it saw that: a dead
    run's jobs are kept after all if one of them starts just then."""
    declined = job.dir.declined(job.token)
    if visible(job.dir.withdrawn(job.token)) or visible(declined):
        with contextlib.suppress(OSError):  # a full disk: the job's log says it
            declined.touch()
        claim = read_claim(job.dir)
        if job.node_rank == 0 and claim and (claim.token, claim.start) == (job.token, _start()):
            with contextlib.suppress(OSError):  # another submission may run the phase
                job.dir.claim.unlink()
        raise NodeFailed(f"phase {job.spec['phase']} was given up before this job started")


def _in_slurm() -> bool:
    return "SLURM_JOB_ID" in os.environ


def _job_id() -> str:
    return os.environ.get("SLURM_JOB_ID") or os.environ.get("SUBMITIT_LOCAL_JOB_ID", "")


def _task_id() -> str:
    """The job as a task of its array; empty if it is none. The last task of an array has the
    array's own job id, and requeueing that would requeue every task."""
    array, task = (os.environ.get(f"SLURM_ARRAY_{name}_ID", "") for name in ("JOB", "TASK"))
    return f"{array}_{task}" if array and task else ""


def _reset_signals() -> None:
    """Undo submitit's handlers: it requeues the job on USR2 and ignores TERM."""

    def terminate(_signum: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second TERM must not stop the clean-up
        raise Terminated

    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.signal(signal.SIGCONT, signal.SIG_DFL)
    signal.signal(signal.SIGINT, terminate)
    signal.signal(signal.SIGTERM, terminate)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
