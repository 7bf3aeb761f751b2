"""Takes stacks and flight recorders of this node's ranks while they still hang.

A rank inside `Rank` handles SIGUSR2. The signal would kill any other process, so only processes
that catch it get it. If no stack comes this way (the rank hangs before its `Rank`, as in an import,
or a library replaced the handler), py-spy reads it from outside, if the node has it. As a last
resort, SIGABRT makes faulthandler write the stack to the rank's stderr. That kills the rank, but
the phase ends anyway.
"""

from __future__ import annotations

import contextlib
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from ..evidence.run_directory import read_json
from . import process_tree
from .node_job import NodeJob
from .rank_progress import RankWatch

# A stack takes milliseconds; a flight recorder with source lines up to three seconds, because torch
# imports its compiler.
OWN_DUMPS_S = 4.0
CHILDREN_S = 1.0  # forked workers of a data loader: stacks only
PY_SPY_S = 4.0  # for native frames it reads the symbols of torch's libraries: 1 s on CPU builds
ABORT_S = 1.0
POLL_S = 0.05
MAX_CHILDREN = 32  # per rank
FATAL = b"Fatal Python error"
TAIL_BYTES = 256 * 2**10


class DumpRequest(NamedTuple):
    """A rank's process, and the size of its stack file before the request."""

    rank: int
    process: psutil.Process
    before: int


def take(job: NodeJob, watch: RankWatch, started: Mapping[int, psutil.Process]) -> dict[str, Any]:
    """Make every live rank write its stacks and flight recorder, within bounded time.
    `started` are the ranks' processes that the launcher started here.

    Returns which ranks were asked in which way, for the node's events.
    """
    requests = [
        DumpRequest(rank, process, _size(job.dir.rank_stack(rank)))
        for rank, process in sorted(_live(watch, started).items())
    ]
    for request in requests:
        pid = request.process.pid
        _ask(job, request.rank, request.process, f"asked: rank {request.rank}, pid {pid}")
    _wait(OWN_DUMPS_S, lambda: [r for r in requests if _may_still_write(job, r)])
    failed = {state["rank"] for state in watch.states() if state["failed"]}
    silent = [r for r in requests if not _has_stack(job, r) and r.rank not in failed]
    spied = _py_spy(job, silent)
    left = [r for r in silent if r.rank not in spied]
    aborted = _abort(job, left) if _is_stalled(job) else []
    children = _ask_children(job, [r for r in requests if r not in silent])
    return {
        "ranks": [r.rank for r in requests],
        "incomplete": [r.rank for r in requests if not _complete(job, r)],
        "py_spy": spied,
        "aborted": aborted,
        "children": children,
    }


def catches(process: psutil.Process, signum: signal.Signals) -> bool:
    """Whether the process has a handler for this signal; without one, the signal would end it."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (int(signum) - 1) & 1)
    return False


def _live(watch: RankWatch, started: Mapping[int, psutil.Process]) -> dict[int, psutil.Process]:
    """Rank -> process, from the rank's own events or from the launcher."""
    processes = dict(started)
    for rank, pid, started_s in watch.live():
        process = process_tree.find_process(pid, started_s)
        if process is not None:
            processes[rank] = process
    unfinished = {state["rank"] for state in watch.states() if not state["done"]}
    return {rank: process for rank, process in processes.items() if rank in unfinished}


def _ask(job: NodeJob, rank: int, process: psutil.Process, header: str) -> None:
    if catches(process, signal.SIGUSR2):
        # The line says which process's stacks follow, and separates them from earlier ones.
        _append(job.dir.rank_stack(rank), f"== {header} ==\n")
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGUSR2)


def _append(path: Path, text: str) -> None:
    with contextlib.suppress(OSError), path.open("a", encoding="utf-8") as stream:
        stream.write(text)


def _wait(limit_s: float, left: Callable[[], Collection[object]]) -> None:
    """Wait until nothing is left, or until the limit."""
    deadline = time.monotonic() + limit_s
    while left() and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _is_stalled(job: NodeJob) -> bool:
    """Whether the phase ends because of a stall: only then is a stack worth killing a rank."""
    return (read_json(job.dir.abort) or {}).get("reason") in ("stalled", "timeout")


def _may_still_write(job: NodeJob, request: DumpRequest) -> bool:
    """Whether the rank may still write more."""
    return not _complete(job, request) and catches(request.process, signal.SIGUSR2)


def _complete(job: NodeJob, request: DumpRequest) -> bool:
    return _has_stack(job, request) and job.dir.rank_flight_recorder(request.rank).exists()


def _has_stack(job: NodeJob, request: DumpRequest) -> bool:
    """Whether the rank has written stacks since the request."""
    try:
        with job.dir.rank_stack(request.rank).open("rb") as stream:
            stream.seek(request.before)
            return b"\n  File " in stream.read(TAIL_BYTES)
    except OSError:
        return False


def _py_spy(job: NodeJob, silent: list[DumpRequest]) -> list[int]:
    """Run py-spy on these ranks at once, with native frames if that works; returns the ranks
    whose stacks it wrote."""
    command = shutil.which("py-spy")
    if command is None:
        return []
    left = silent
    for options in (["--native", "--full-filenames"], []):
        _run_all(job, [command, "dump", *options, "--pid"], left)
        left = [r for r in left if not _size(job.dir.rank_py_spy(r.rank))]
    return [r.rank for r in silent if r not in left]


def _run_all(job: NodeJob, command: list[str], requests: list[DumpRequest]) -> None:
    started = []
    for request in requests:
        with contextlib.suppress(OSError), job.dir.rank_py_spy(request.rank).open("wb") as output:
            started.append(
                subprocess.Popen(
                    [*command, str(request.process.pid)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.DEVNULL,
                )
            )
    deadline = time.monotonic() + PY_SPY_S / 2
    for process in started:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _abort(job: NodeJob, silent: list[DumpRequest]) -> list[int]:
    """Abort these ranks so that faulthandler writes their stacks to stderr, and copy the stacks."""
    aborted = []
    for request in silent:
        if not catches(request.process, signal.SIGABRT):
            continue
        with contextlib.suppress(psutil.Error, OSError, ValueError):
            request.process.rlimit(resource.RLIMIT_CORE, (0, 0))  # psutil's prlimit; no core file
            log = _stderr(job, request.rank)
            before = _size(log) if log else 0
            request.process.send_signal(signal.SIGABRT)
            aborted.append((request.rank, log, before))
    _wait(ABORT_S, lambda: [rank for rank, log, before in aborted if not _fatal(log, before)])
    written = []
    for rank, log, before in aborted:
        stack = _fatal(log, before)
        if stack:
            _append(job.dir.rank_stack(rank), f"== ended for its stacks: rank {rank} ==\n")
            _append(job.dir.rank_stack(rank), stack.decode(errors="replace"))
            written.append(rank)
    return written


def _stderr(job: NodeJob, rank: int) -> Path | None:
    return next(iter(job.dir.find_rank_logs(job.node_rank, rank % job.local_ranks)), None)


def _fatal(log: Path | None, before: int) -> bytes:
    """What faulthandler has written after the log's first `before` bytes; empty if nothing yet."""
    if log is None:
        return b""
    try:
        with log.open("rb") as stream:
            stream.seek(before)
            tail = stream.read(TAIL_BYTES)
    except OSError:
        return b""
    return tail[tail.find(FATAL) :] if FATAL in tail and b"\n  File " in tail else b""


def _ask_children(job: NodeJob, requests: list[DumpRequest]) -> dict[str, int]:
    """Make processes that ranks forked (data loader workers) write their stacks as well: they
    have inherited the handler and the file. Returns how many were asked for each rank."""
    counts: dict[str, int] = {}
    sizes = {}
    for request in requests:
        rank = request.rank
        with contextlib.suppress(psutil.Error):
            for child in request.process.children()[:MAX_CHILDREN]:
                if not catches(child, signal.SIGUSR2):
                    continue
                path = job.dir.rank_stack(rank)
                _ask(job, rank, child, f"asked: a child of rank {rank}, pid {child.pid}")
                sizes[path] = _size(path)
                counts[str(rank)] = counts.get(str(rank), 0) + 1
    _wait(CHILDREN_S, lambda: [path for path, size in sizes.items() if _size(path) <= size])
    return counts


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
