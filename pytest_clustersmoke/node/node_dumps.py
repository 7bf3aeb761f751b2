"""What this node's ranks are asked for while they still hang: stacks and flight recorders.

A rank that runs inside `Rank` answers SIGUSR1. Any other process would be killed by it, so nobody
gets it who does not catch it. Where no stack came so (the rank hangs before its `Rank`, as in an
import, or a library took the handler away), py-spy looks from outside, if this node has it; and
where that gives nothing, SIGABRT has faulthandler write the stack to the rank's stderr, which is
its end: the phase ends in any case.
"""

from __future__ import annotations

import contextlib
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from ..evidence.run_directory import read_json
from . import process_tree
from .node_job import NodeJob
from .rank_progress import RankWatch

# A stack takes milliseconds; a flight recorder with its source lines up to three seconds, in which
# torch imports its compiler.
OWN_DUMPS_S = 4.0
CHILDREN_S = 1.0  # forked workers of a data loader: stacks only
PY_SPY_S = 4.0  # with native frames it reads the symbols of torch's libraries: 1 s on CPU builds
ABORT_S = 1.0
POLL_S = 0.05
MAX_CHILDREN = 32  # of a rank
FATAL = b"Fatal Python error"
TAIL_BYTES = 256 * 2**10


class DumpRequest(NamedTuple):
    """A rank's process, and how long its file of stacks was before."""

    rank: int
    process: psutil.Process
    before: int


def take(job: NodeJob, watch: RankWatch, agent_pid: int) -> dict[str, Any]:
    """Have every live rank's stacks and flight recorder written, as far as can be in bounded time;
    what was asked of whom, for the node's events."""
    asked = [
        DumpRequest(rank, process, _size(job.dir.rank_stack(rank)))
        for rank, process in sorted(_live(job, watch, agent_pid).items())
    ]
    for one in asked:
        _ask(job, one.rank, one.process, f"asked: rank {one.rank}, pid {one.process.pid}")
    _wait(OWN_DUMPS_S, lambda: [one for one in asked if _lacks(job, one)])
    leaving = {state["rank"] for state in watch.states() if state["failed"]}
    silent = [one for one in asked if not _has_stack(job, one) and one.rank not in leaving]
    spied = _py_spy(job, silent)
    left = [one for one in silent if one.rank not in spied]
    aborted = _abort(job, left) if _stands_still(job) else []
    children = _ask_children(job, [one for one in asked if one not in silent])
    return {
        "ranks": [one.rank for one in asked],
        "incomplete": [one.rank for one in asked if not _complete(job, one)],
        "py_spy": spied,
        "aborted": aborted,
        "children": children,
    }


def catches(process: psutil.Process, signum: signal.Signals) -> bool:
    """Whether the process has a handler for this signal; without one the signal would end it."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (int(signum) - 1) & 1)
    return False


def _live(job: NodeJob, watch: RankWatch, agent_pid: int) -> dict[int, psutil.Process]:
    """Rank -> process: as the rank itself said, else as torchrun started it."""
    found = _started(agent_pid)
    for rank, pid, started in watch.live():
        process = process_tree.find(pid, started)
        if process is not None:
            found[rank] = process
    ours = {state["rank"] for state in watch.states() if not state["done"]}
    return {rank: process for rank, process in found.items() if rank in ours}


def _started(agent_pid: int) -> dict[int, psutil.Process]:
    """torchrun's children that were given a rank."""
    found = {}
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(agent_pid).children():
            with contextlib.suppress(psutil.Error, KeyError, ValueError):
                rank = int(child.environ()["RANK"])
                if process_tree.running(child):
                    found[rank] = child
    return found


def _ask(job: NodeJob, rank: int, process: psutil.Process, what: str) -> None:
    if catches(process, signal.SIGUSR1):
        # The line tells whose stacks follow, and that these are of now.
        _note(job.dir.rank_stack(rank), f"== {what} ==\n")
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGUSR1)


def _note(path: Path, text: str) -> None:
    with contextlib.suppress(OSError), path.open("a", encoding="utf-8") as stream:
        stream.write(text)


def _wait(limit_s: float, left: Callable[[], Collection[object]]) -> None:
    """Until nothing is left, or the limit."""
    deadline = time.monotonic() + limit_s
    while left() and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _stands_still(job: NodeJob) -> bool:
    """Whether the phase ends because somebody stood still: then a stack is worth a rank's end."""
    return (read_json(job.dir.abort) or {}).get("reason") in ("stalled", "timeout")


def _lacks(job: NodeJob, one: DumpRequest) -> bool:
    """Whether more may still come from it."""
    return not _complete(job, one) and catches(one.process, signal.SIGUSR1)


def _complete(job: NodeJob, one: DumpRequest) -> bool:
    return _has_stack(job, one) and job.dir.rank_flight_recorder(one.rank).exists()


def _has_stack(job: NodeJob, one: DumpRequest) -> bool:
    """Whether stacks were written since it was asked."""
    try:
        with job.dir.rank_stack(one.rank).open("rb") as stream:
            stream.seek(one.before)
            return b"\n  File " in stream.read(TAIL_BYTES)
    except OSError:
        return False


def _py_spy(job: NodeJob, silent: list[DumpRequest]) -> list[int]:
    """The ranks whose stacks py-spy wrote, all at once; with native frames where that works."""
    command = shutil.which("py-spy")
    if command is None:
        return []
    left = silent
    for words in (["--native", "--full-filenames"], []):
        _run_all(job, [command, "dump", *words, "--pid"], left)
        left = [one for one in left if not _size(job.dir.rank_py_spy(one.rank))]
    return [one.rank for one in silent if one not in left]


def _run_all(job: NodeJob, command: list[str], asked: list[DumpRequest]) -> None:
    started = []
    for one in asked:
        with contextlib.suppress(OSError), job.dir.rank_py_spy(one.rank).open("wb") as output:
            started.append(
                subprocess.Popen(
                    [*command, str(one.process.pid)],
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
    """End these ranks so that faulthandler writes their stacks to stderr, and copy them."""
    told = []
    for one in silent:
        if not catches(one.process, signal.SIGABRT):
            continue
        with contextlib.suppress(psutil.Error, OSError, ValueError):
            one.process.rlimit(resource.RLIMIT_CORE, (0, 0))  # psutil's prlimit; no core file
            log = _stderr(job, one.rank)
            before = _size(log) if log else 0
            one.process.send_signal(signal.SIGABRT)
            told.append((one, log, before))
    _wait(ABORT_S, lambda: [1 for one, log, before in told if not _fatal(log, before)])
    written = []
    for one, log, before in told:
        stack = _fatal(log, before)
        if stack:
            _note(job.dir.rank_stack(one.rank), f"== ended for its stacks: rank {one.rank} ==\n")
            _note(job.dir.rank_stack(one.rank), stack.decode(errors="replace"))
            written.append(one.rank)
    return written


def _stderr(job: NodeJob, rank: int) -> Path | None:
    local = rank - job.ranks.start
    return next(iter(job.dir.rank_logs(job.node_rank).glob(f"**/{local}/stderr.log")), None)


def _fatal(log: Path | None, before: int) -> bytes:
    """What faulthandler has written behind the log's first `before` bytes; empty if nothing yet."""
    if log is None:
        return b""
    try:
        with log.open("rb") as stream:
            stream.seek(before)
            said = stream.read(TAIL_BYTES)
    except OSError:
        return b""
    return said[said.find(FATAL) :] if FATAL in said and b"\n  File " in said else b""


def _ask_children(job: NodeJob, asked: list[DumpRequest]) -> dict[str, int]:
    """Have the processes that ranks forked (workers of data loaders) write their stacks, too: they
    inherited the handler and the file. Rank -> how many were asked."""
    counts: dict[str, int] = {}
    sizes = {}
    for one in asked:
        with contextlib.suppress(psutil.Error):
            for child in one.process.children()[:MAX_CHILDREN]:
                if not catches(child, signal.SIGUSR1):
                    continue
                path = job.dir.rank_stack(one.rank)
                _ask(job, one.rank, child, f"asked: a child of rank {one.rank}, pid {child.pid}")
                sizes[path] = _size(path)
                counts[str(one.rank)] = counts.get(str(one.rank), 0) + 1
    _wait(CHILDREN_S, lambda: [path for path, size in sizes.items() if _size(path) <= size])
    return counts


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
