"""Finds and ends process trees by pid and start time, since the kernel reuses pids."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import psutil

from ..evidence.process_start import start_s

KILLED_WITHIN_S = 1.0
POLL_S = 0.02
LIST_READS = 8  # a thread may end between the list of threads and its own
ANCESTRY_READS = 3  # a parent may end between two steps of the way up
PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36
# Whether the kernel lists the children of a thread (CONFIG_PROC_CHILDREN, proc(5)).
LISTS_CHILDREN = Path("/proc/thread-self/children").exists()
PRCTL = ctypes.CDLL(None).prctl  # looked up here: after a fork nothing may be loaded


def alive(pid: int, started: float | None = None) -> bool:
    """Whether exactly that process runs; a zombie has ended."""
    return find_process(pid, started) is not None


def find_process(pid: int, started: float | None = None) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
        if started is not None and start_s(pid) != started:
            return None
        return None if process.status() == psutil.STATUS_ZOMBIE else process
    except (psutil.Error, OSError, ValueError):  # a pid below 1 is a ValueError to psutil
        return None


def started_here(pid: int, started: float, word: str) -> bool | None:
    """Whether this process started exactly that one: it is a descendant, or has the `word` in its
    environment, as behind a daemon that starts containers. None if it has ended or hides its
    environment."""
    process = find_process(pid, started)
    if process is None:
        return None
    try:
        for _ in range(ANCESTRY_READS):
            if os.getpid() in {pid, *(parent.pid for parent in process.parents())}:
                return True
        environ = process.environ()
    except (psutil.Error, OSError, ValueError):
        return None
    return word in environ.values() if environ else None


def is_running(process: psutil.Process) -> bool:
    """Whether the process still runs; a zombie has ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def tree(pid: int) -> list[psutil.Process]:
    """The process and all its current descendants."""
    try:
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    except psutil.Error:
        return []


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends. Otherwise init would
    adopt them, and they could no longer be found."""
    PRCTL(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> list[psutil.Process]:
    """This process's own children, adopted ones included, also those that ended and were not
    reaped."""
    return _list_children(os.getpid()) if LISTS_CHILDREN else psutil.Process().children()


def descendants(besides: Collection[psutil.Process] = ()) -> set[psutil.Process]:
    """The running descendants of this process, except the children `besides` and theirs.

    Where orphans are adopted, none is missed if the answer is empty: each process is listed again
    until it has no new child, and what a process leaves is adopted before that one is a zombie.
    This costs nothing for the other processes of the machine, which may be many."""
    if not LISTS_CHILDREN:
        chosen = [child for child in children() if child not in besides]
        return {process for child in chosen for process in tree(child.pid) if is_running(process)}
    parents, seen, found = [psutil.Process()] * 2, {*besides}, set[psutil.Process]()
    while parents:
        new = {*_list_children(parents[-1].pid)} - seen
        if not new or not parents[-1].is_running():  # its pid may be a stranger's by now
            parents.pop()
            continue
        seen |= new
        found |= {process for process in new if is_running(process)}
        parents += new
    return found


def _list_children(pid: int) -> list[psutil.Process]:
    """The children of a process, by the kernel's own list of each of its threads."""
    for _ in range(LIST_READS):
        try:
            lists = [thread / "children" for thread in Path(f"/proc/{pid:d}/task").iterdir()]
            pids = [int(child) for listed in lists for child in listed.read_text().split()]
        except OSError:  # the process has ended, or one of its threads
            continue
        return [*_find_children(pid, pids)]
    return []


def _find_children(pid: int, pids: Iterable[int]) -> Iterator[psutil.Process]:
    """Those of these processes that are still children of that one, or adopted by this one: any
    other has the pid of a child that has ended."""
    for child in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(child)
            if process.ppid() in (pid, os.getpid()):
                yield process


def end(processes: Iterable[psutil.Process], grace_s: float) -> list[psutil.Process]:
    """Send TERM, and KILL after `grace_s`. Returns processes in uninterruptible sleep.

    Nothing is reaped: an exit status can be read only once, by the process's parent.
    """
    left = list(processes)
    for stop, within_s in (
        (psutil.Process.terminate, grace_s),
        (psutil.Process.kill, KILLED_WITHIN_S),
    ):
        for process in left:
            with contextlib.suppress(psutil.Error):
                stop(process)
        left = _left(left, within_s)
    return left


def _left(processes: list[psutil.Process], within_s: float) -> list[psutil.Process]:
    """Wait for these processes to end; returns those that still run after this time."""
    deadline = time.monotonic() + within_s
    while (left := [p for p in processes if is_running(p)]) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return left


def end_with_parent() -> None:
    """Have the kernel send this process SIGTERM when its parent ends, even if the parent is killed.
    A child calls this before its exec; so a killed launcher leaves no torchrun behind, and torchrun
    ends its ranks."""
    PRCTL(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


def ignore_stop_signal() -> None:
    """Ignore the signal by which Slurm says that it will end the job soon. It goes to every process
    of a step, would end torchrun, and is for the node's own task alone. Children inherit this."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def prepare_child() -> None:
    """What a child that starts ranks calls before its exec."""
    end_with_parent()
    ignore_stop_signal()


def send(pid: int, started: float | None, signum: signal.Signals) -> None:
    """Send a signal to exactly that process; do nothing if it has ended."""
    process = find_process(pid, started)
    if process is not None:
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            os.kill(process.pid, signum)


def exit_code(pid: int, started: float) -> int | None:
    """How that process ended, as torchrun counts: its exit status, or minus the signal's number.
    None if it runs, if its parent has already reaped it, or if the kernel does not say."""
    try:
        if start_s(pid) != started or psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            return None
        status = int(Path(f"/proc/{pid}/stat").read_text().rpartition(" ")[2])  # proc(5): the last
    except (psutil.Error, OSError, ValueError):
        return None
    return os.waitstatus_to_exitcode(status)


def started_at(pid: int) -> float:
    """When the process started, in seconds since boot; 0.0 if it has already ended."""
    try:
        return start_s(pid)
    except (OSError, ValueError):
        return 0.0
