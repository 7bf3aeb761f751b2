"""Supervises this node's ranks: a rank that dies or stalls ends the phase on all nodes.

A launcher does not report a node's death to the other nodes, so they use a flag in the run
directory. A node that raises or sees the flag first takes dumps of its own ranks (stacks, flight
recorder), and only then ends them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import psutil

from ..config.marker import TORCHRUN
from ..evidence.job_results import STEP_DAEMON
from ..evidence.process_start import boot_clock_s, read_namespaces
from ..evidence.run_directory import read_json
from ..evidence.telemetry import EventWriter
from . import node_dumps, process_tree
from .abort_flag import raise_abort, visible
from .agent import Agent, start_agent
from .lost_time import CpuQueue, SuspensionClock
from .node_job import NodeJob
from .rank_progress import RankWatch, Trouble

TICK_S = 0.25  # between two looks, each a millisecond of a core; the end of a process needs none
# How messages name a launcher, if not by the key's value.
PROGRAMS = {"none": "the program", "torchrun-c10d": "torchrun", "srun": "srun's step"}
# The ranks' limits are longer by the time for which they wait for a CPU. Who watches from outside
# must know: a node that writes nothing for longer than a limit is lost.
QUEUED_S = 20.0
DUMP_POLL_S = 0.1
FLAG_POLL_S = 0.5  # so every node sees the flag within a second, with little load on a shared disk
# From TERM to KILL. If the launcher still runs, the phase is cut short: its dumps are already
# taken, and a controller that cancels does not wait much longer. Processes that outlived the
# launcher get more time.
CUT_SHORT_GRACE_S = 0.2
OUTLIVED_GRACE_S = 1.0
REAP_S = 5.0  # after KILL; a process still there after that is in uninterruptible sleep


def supervise_ranks(
    job: NodeJob, command: list[str], env: Mapping[str, str], events: EventWriter
) -> dict[str, Any]:
    """Run the launcher to its end, or end it. Returns the node's result as plain data."""
    started, begun_s = time.monotonic(), boot_clock_s()
    name = str(job.spec.get("launcher", TORCHRUN))
    process_tree.adopt_orphans()
    others = process_tree.children()
    agent = start_agent(job, command, env)
    suspension = SuspensionClock()  # starts a thread: from here on no preexec_fn is safe
    queue = CpuQueue(lambda: watch.working_pids())
    watch = RankWatch(job, suspension.seconds, agent, queue.seconds)
    try:
        pid = agent.pid
        started_s = process_tree.started_at(pid) if pid is not None else None
        events.write(
            "launcher_start", launcher=name, command=command, pid=pid, pid_started=started_s
        )
        trouble = _watch(job, agent, watch, events)
        seconds = time.monotonic() - started
        result = _judge_node(name, agent, watch, trouble)
        if not result["ok"]:
            events.write("trouble", **{key: result[key] for key in result if key != "ok"})
            if result["reason"] != "aborted":
                raise_abort(job, result["reason"], result["why"], result["rank"])
            with _held(agent, watch):
                taken = node_dumps.take(job, watch, agent.ranks())
                watch.await_exit_codes()
                job.dir.dumped(job.node_rank).touch()
            events.write("dumped", **taken)
            watch.read()
            events.write("ranks", states=watch.states(ended_by_us=taken["aborted"]))
            if agent.spans_nodes:  # with it, the other nodes' ranks end as well
                _await_other_dumps(job, float(job.spec["dump_wait_s"]))
    finally:
        _end(agent, watch, others)
        watch.close()
        suspension.close()
    if watch.paused_s:
        events.write("paused", seconds=round(watch.paused_s, 1))
    if not result["ok"]:
        _await_other_dumps(job, float(job.spec["dump_wait_s"]))
    events.write("launcher_end", returncode=agent.returncode, seconds=seconds)
    return result | {
        "launcher_s": seconds,
        "returncode": agent.returncode,
        "paused_s": watch.paused_s,
        "boot_begun_s": begun_s,
        "boot_ended_s": boot_clock_s(),
        "namespaces": read_namespaces(),
        "processes": watch.processes(),
    }


def _watch(job: NodeJob, agent: Agent, watch: RankWatch, events: EventWriter) -> Trouble | None:
    """Follow the ranks until the launcher ends (None) or something is wrong. A rank that ended with
    its launcher, or was it, still is a death."""
    next_flag, held, queued_s = 0.0, False, 0.0
    while True:
        returncode = agent.poll()
        watch.read()
        trouble = watch.trouble()
        if watch.queued_s - queued_s >= QUEUED_S:
            queued_s = watch.queued_s
            with contextlib.suppress(OSError):  # a full disk
                events.write("queued", seconds=round(queued_s, 1))
        if held != watch.has_dead_rank():
            # Before the launcher sees the exit and ends the other ranks, whose dumps are not taken.
            held = not held
            if held:
                agent.hold(watch.live_pids())
            else:
                agent.release()
        if trouble is not None:
            return trouble
        if job.daemon and os.getppid() != job.daemon:
            return _describe_orphan(job.daemon)
        if returncode is not None and not watch.has_dead_rank():
            return None
        now = time.monotonic()
        if now >= next_flag:
            next_flag = now + FLAG_POLL_S
            if visible(job.dir.abort):
                flag = read_json(job.dir.abort) or {}
                return Trouble("aborted", f"{flag.get('node')}: {flag.get('why')}", None)
        watch.wait(TICK_S)


def _describe_orphan(parent: int) -> Trouble:
    """Without slurmstepd nothing of Slurm's ends this node's processes, whose GPUs go to the next
    job."""
    who = f"slurmstepd (pid {parent} on host {socket.gethostname()})"
    why = f"{who} ended before the task that it had started: it was killed (SIGKILL), or crashed"
    return Trouble(STEP_DAEMON, why, None)


def _judge_node(
    name: str, agent: Agent, watch: RankWatch, trouble: Trouble | None
) -> dict[str, Any]:
    """Success needs both: exit status 0 of the launcher `name` and `done` from every local rank."""
    if trouble is not None:
        return {"ok": False, **trouble.as_fields()}
    unfinished = watch.unfinished()
    program = PROGRAMS.get(name, name)
    if agent.returncode == 0 and not unfinished:
        return {"ok": True, **watch.describe_stop()}
    if agent.returncode == 0 and not watch.is_numbered:
        why = f"{program} ended with status 0, and its ranks were never seen"
        return {"ok": False, "reason": "rank_ended_early", "why": why, "rank": None}
    if agent.returncode == 0 and watch.live():
        why = f"{program} ended with status 0 while its ranks still ran"
        return {"ok": False, "reason": "torchrun", "why": why, "rank": None}
    if agent.returncode == 0:
        why = f"{program} ended with status 0, but rank {unfinished[0]} never reported `done`"
        return {"ok": False, "reason": "rank_ended_early", "why": why, "rank": unfinished[0]}
    why = f"{program} ended with status {agent.returncode}"
    return {"ok": False, "reason": "torchrun", "why": why, "rank": None}


@contextlib.contextmanager
def _held(agent: Agent, watch: RankWatch) -> Iterator[None]:
    """Stop the launcher while the dumps are taken: it would end the ranks once one has failed."""
    agent.hold(watch.live_pids())
    try:
        yield
    finally:
        agent.release()


def _await_other_dumps(job: NodeJob, limit_s: float) -> None:
    """Give the other nodes time to write: the scheduler ends all nodes once a task fails."""
    deadline = time.monotonic() + limit_s
    excluded = {job.node_rank, (read_json(job.dir.abort) or {}).get("gone")}
    others = [node for node in range(job.nodes) if node not in excluded]
    while others and time.monotonic() < deadline:
        others = [
            node
            for node in others
            if visible(job.dir.node_events(node))
            and not visible(job.dir.dumped(node))
            and not visible(job.dir.node_result(node))
        ]
        time.sleep(DUMP_POLL_S)


def _end(agent: Agent, watch: RankWatch, others: Collection[psutil.Process]) -> None:
    """End the launcher and all processes that it and its ranks started, in whatever session; not
    the `others`, which were there before."""
    grace_s = CUT_SHORT_GRACE_S if agent.poll() is None else OUTLIVED_GRACE_S
    tried: set[psutil.Process] = set()
    # Repeat for processes that were started meanwhile, or adopted when their parent ended.
    while group := _running(agent, watch, others) - tried:
        process_tree.end(group, grace_s)
        tried |= group
    with contextlib.suppress(subprocess.TimeoutExpired):
        agent.wait(timeout=REAP_S)


def _running(
    agent: Agent, watch: RankWatch, others: Collection[psutil.Process]
) -> set[psutil.Process]:
    """All processes that run for this node's ranks; also ranks and their descendants that are no
    longer, or never were, below this process."""
    below = process_tree.descendants(besides=others)
    apart = watch.live_pids() - {process.pid for process in below}
    ranks = {process for pid in apart for process in process_tree.tree(pid)}
    return below | ranks | agent.processes()
