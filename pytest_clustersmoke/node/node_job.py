"""On the node: environment, facts, rendezvous, torchrun, the watch over its ranks.

run_node       what submitit ships: one call a node, plain data in and out
facts.py       what the node is, without importing torch; gpus.py, scratch.py: parts of it
checks/        what facts of nodes say against running there; preflight.py: and so ends the job
flag.py        the flag that ends a phase on every node
rendezvous.py  the nodes see each other; node 0 publishes an address and a port
reach.py       every node connects to it there, before torchrun does
torchrun.py    torchrun's command line and the environment of its ranks
supervise.py   torchrun from start to end
dumps.py       stacks and flight recorders of its ranks before they are ended
pauses.py      for how long the job was stopped, as one that is suspended
progress.py    what each rank says; a rank that dies, fails or stands still
processes.py   process trees, ended by pid and start time
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..evidence.run_directory import PhaseDir, read_json, write_json, write_whole
from ..evidence.telemetry import EventWriter
from .abort_flag import Aborted, NodeFailed, raise_abort

__all__ = ["NodeFailed", "NodeJob", "run_node"]


class Terminated(BaseException):
    """SIGTERM: the scheduler, or the controller, ends the job. No `except Exception` may eat it."""


@dataclass(frozen=True)
class NodeJob:
    """The job's spec as this node runs it."""

    spec: dict[str, Any]
    node_rank: int
    node_name: str

    @property
    def dir(self) -> PhaseDir:
        return PhaseDir(Path(self.spec["phase_dir"]))

    @property
    def nodes(self) -> int:
        return int(self.spec["nodes"])

    @property
    def local_ranks(self) -> int:
        return int(self.spec["ranks_per_node"])

    @property
    def ranks(self) -> range:
        """Global ranks of this node: static rendezvous numbers them by node rank."""
        return range(self.node_rank * self.local_ranks, (self.node_rank + 1) * self.local_ranks)


def run_node(spec_path: str, node_rank: int | None = None) -> dict[str, Any]:
    """Run this node's part of the job described by the file `spec_path`; returns its result.

    `node_rank` is given for local virtual nodes; under Slurm it is SLURM_NODEID. Raises NodeFailed,
    so that the task exits non-zero, where the part did not succeed; the same words are in the
    node's `result.json`, which is what the controller reads.
    """
    _reset_signals()
    spec = read_json(Path(spec_path))
    if spec is None:
        raise NodeFailed(
            f"{socket.gethostname()} cannot read the job's spec {spec_path}; check that this "
            "directory is shared with the node"
        )
    rank = int(os.environ.get("SLURM_NODEID", "0")) if node_rank is None else node_rank
    name = os.environ.get("SLURMD_NODENAME") or (
        f"local{rank}" if spec["backend"] == "local" else socket.gethostname()
    )
    job = NodeJob(spec, rank, name)
    _claim(job)
    events = EventWriter(job.dir.node_events(rank), node_rank=rank, node=name)
    started, result = time.time(), _Result(job)
    try:
        events.write("claim", pid=os.getpid(), host=socket.gethostname(), job_id=_job_id())
        result.ended(_run(job, events))
    except Terminated:
        result.ended({"ok": False, "reason": "terminated", "why": "SIGTERM"})
    except Aborted as abort:
        result.ended({"ok": False, "reason": "aborted", "why": str(abort)})
    except NodeFailed as error:
        result.ended({"ok": False, "why": str(error), **_reason(error)})
    except Exception as error:  # whatever it was, the controller must read it, and others must end
        result.ended({"ok": False, "reason": "launcher", "why": f"{type(error).__name__}: {error}"})
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the result is written, whatever comes
        result.write(started, events)
    return result.value_or_raise()


class _Result:
    """The node's result: written once, whole, last."""

    def __init__(self, job: NodeJob) -> None:
        self._job = job
        self._value: dict[str, Any] = {"ok": False, "reason": "launcher", "why": "interrupted"}

    def ended(self, value: dict[str, Any]) -> None:
        self._value = value

    def write(self, started: float, events: EventWriter) -> None:
        job = self._job
        if not self._value["ok"] and self._value["reason"] != "aborted":
            try:
                raise_abort(job, self._value["reason"], self._value.get("why", ""))
            except OSError as error:  # the result matters more; the scheduler ends the other nodes
                self._value["flag"] = f"could not raise the flag that ends the other nodes: {error}"
        self._value |= {
            "node_rank": job.node_rank,
            "node": job.node_name,
            "host": socket.gethostname(),
            "job_id": _job_id(),
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


def _run(job: NodeJob, events: EventWriter) -> dict[str, Any]:
    from . import checks, node_facts, rendezvous, supervisor, torchrun

    spec = job.spec
    torchrun.apply_environment(spec["env_set"], spec["env_unset"])
    own = node_facts.gather_node_facts(job.node_rank, job.node_name, spec["device"])
    write_json(job.dir.node_facts(job.node_rank), own)
    events.write("facts")
    deadline = time.monotonic() + float(spec["stage_limits_s"]["init"])
    known = rendezvous.facts_of_all(job, deadline)
    checks.judge(job, known)
    meeting = rendezvous.meet(job, known, deadline)
    events.write(
        "rendezvous", address=meeting.address, port=meeting.port, one_host=meeting.one_host
    )
    command = torchrun.command(job, meeting)
    environment = torchrun.rank_environment(job, meeting)
    return supervisor.supervise_ranks(job, command, environment, events)


def _reason(error: NodeFailed) -> dict[str, Any]:
    """Why a node failed, as its result has it."""
    from .checks import PreflightFailed
    from .rendezvous import NotSeen

    if isinstance(error, PreflightFailed):
        return {"reason": "preflight", "checks": [one.as_dict() for one in error.checks]}
    if isinstance(error, NotSeen):
        return {"reason": "unseen", "nodes": error.nodes}
    return {"reason": "node"}


def _claim(job: NodeJob) -> None:
    """A phase runs at most once: a requeued job finds the claim of its first start, and ends."""
    try:
        with job.dir.claim(job.node_rank).open("x") as stream:
            stream.write(f"{job.node_name} {os.getpid()} {_job_id()} {time.time()}\n")
    except FileExistsError:
        write_whole(job.dir.started_again, f"{job.node_name} {_job_id()} {time.time()}\n")
        raise NodeFailed(
            f"phase {job.spec['phase']} was already started on node rank {job.node_rank} (was the "
            "job requeued?); a phase runs at most once"
        ) from None


def _job_id() -> str:
    return os.environ.get("SLURM_JOB_ID") or os.environ.get("SUBMITIT_LOCAL_JOB_ID", "")


def _reset_signals() -> None:
    """submitit handles USR2 by requeueing and passes over TERM; we want the plain meanings."""

    def terminate(_signum: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough; let the clean-up finish
        raise Terminated

    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.signal(signal.SIGCONT, signal.SIG_DFL)
    signal.signal(signal.SIGINT, terminate)
    signal.signal(signal.SIGTERM, terminate)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
