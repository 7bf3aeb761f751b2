"""Process trees, identified by pid and start time, and ended without reaping."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import psutil
import pytest

from pytest_clustersmoke.node import process_tree

STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); input()"
)


@pytest.fixture
def stubborn() -> Iterator[subprocess.Popen[bytes]]:
    """A process that ignores TERM."""
    command = [sys.executable, "-c", STUBBORN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


@pytest.mark.parametrize("pid", [0, -1, 2**70])
def test_impossible_pid_is_not_a_process(pid: int) -> None:
    """It is not found, and sending it a signal does nothing."""
    assert process_tree.find_process(pid, 1.0) is None
    process_tree.send(pid, 1.0, signal.SIGTERM)


def test_ended_process_keeps_its_exit_status(stubborn: subprocess.Popen[bytes]) -> None:
    """It gets TERM, then KILL; its parent can still read its exit status."""
    assert process_tree.end(process_tree.tree(stubborn.pid), grace_s=0.05) == []
    assert stubborn.wait() == -signal.SIGKILL


def test_descendants_leave_out_given_children(
    stubborn: subprocess.Popen[bytes],
) -> None:
    """A child is found, unless it is in `besides`."""
    before = process_tree.children()
    assert stubborn.pid in {process.pid for process in process_tree.descendants()}
    assert stubborn.pid not in {process.pid for process in process_tree.descendants(besides=before)}


FAMILY = """
import json, subprocess, sys, threading
import psutil
from pytest_clustersmoke.node import process_tree
process_tree.LISTS_CHILDREN = process_tree.LISTS_CHILDREN and sys.argv[1] == "lists"
process_tree.adopt_orphans()
bystander = subprocess.Popen(["sh", "-c", "sleep 600 & echo; wait"], stdout=subprocess.PIPE)
bystander.stdout.readline()
others = process_tree.children()
line = "(setsid sleep 600 & echo $!); setsid sh -c 'sleep 600 & echo $!; wait' & echo $!; wait"
started = []
thread = threading.Thread(  # its children are another thread's once it has ended
    target=lambda: started.append(subprocess.Popen(["sh", "-c", line], stdout=subprocess.PIPE))
)
thread.start()
thread.join()
(family,) = started
pids = {family.pid, *(int(family.stdout.readline()) for _ in range(3))}
found = {process.pid for process in process_tree.descendants(besides=others)}
for grace_s in (0.1, 0.1):
    process_tree.end(process_tree.descendants(), grace_s)
left = process_tree.descendants()
print(json.dumps([sorted(pids), sorted(found), [process.pid for process in left]]))
"""


@pytest.mark.parametrize("way", ["lists", "scan"])
def test_orphans_and_children_of_threads_are_descendants(
    way: str, leftovers: tuple[str, Callable[[], list[str]]]
) -> None:
    """By the kernel's lists of children as by a look at all processes: also those in sessions of
    their own. What was there before, with its children, is not among them."""
    marker, running = leftovers
    command = [sys.executable, "-c", FAMILY, way]
    environ = {**os.environ, marker: "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    pids, found, left = json.loads(done.stdout)
    assert len(pids) == 4 and found == pids and left == [] and running() == []


@pytest.mark.skipif(not process_tree.LISTS_CHILDREN, reason="this kernel has no such lists")
def test_descendants_are_found_without_a_look_at_other_processes(
    stubborn: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred jobs that end at a time on one machine would each look at all processes of all."""
    looks: list[object] = []

    def look() -> dict[int, int]:
        looks.append("at every process")
        return {}

    monkeypatch.setattr("psutil.pids", look)
    monkeypatch.setattr("psutil._ppid_map", look)
    assert stubborn.pid in {process.pid for process in process_tree.descendants()}
    assert looks == []
    psutil.Process().children(recursive=True)
    assert looks != []


def test_children_of_a_reused_pid_are_no_descendants(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child ends before its own children are listed, and a stranger has its pid then: whoever
    ends the descendants must not end the stranger's."""
    child, strangers = subprocess.Popen(["sleep", "60"]), [psutil.Process(1)]

    def list_children(pid: int) -> list[psutil.Process]:
        if pid == os.getpid():
            return [psutil.Process(child.pid)] if child.returncode is None else []
        child.kill()
        child.wait()
        return strangers

    monkeypatch.setattr(process_tree, "LISTS_CHILDREN", True)
    monkeypatch.setattr(process_tree, "_list_children", list_children)
    found = process_tree.descendants()
    assert child.returncode is not None and not found & {*strangers}


@pytest.mark.parametrize(("end", "code"), [("exit 3", 3), ("exit 0", 0), ("kill -9 $$", -9)])
def test_exit_code_is_known_before_the_process_is_reaped(end: str, code: int) -> None:
    """It is the exit status or the signal; None while it runs. Its parent can still read it."""
    with subprocess.Popen(["sh", "-c", f"read go; {end}"], stdin=subprocess.PIPE) as process:
        started = process_tree.started_at(process.pid)
        assert process_tree.exit_code(process.pid, started) is None
        assert process.stdin is not None
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process_tree.exit_code(process.pid, started) == code
        assert process_tree.exit_code(process.pid, started - 60) is None
        assert process.wait() == code
    assert process_tree.exit_code(process.pid, started) is None


def test_process_is_found_after_the_clock_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Correcting a node's clock while a job runs loses no rank."""
    this = (os.getpid(), process_tree.started_at(os.getpid()))
    booted = psutil.boot_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: booted + 3600)
    assert process_tree.alive(*this)
    assert not process_tree.alive(this[0], this[1] - 0.01)


def test_own_processes_are_not_strangers(stubborn: subprocess.Popen[bytes]) -> None:
    """Descendants are own, also adopted ones, and so is a process with the word; one that has
    ended is unknown."""
    own = (stubborn.pid, process_tree.started_at(stubborn.pid))
    assert process_tree.started_here(*own, "the word") is True
    assert process_tree.started_here(own[0], own[1] - 0.01, "the word") is None
    this = os.getpid()
    seen = (
        "import os; from pytest_clustersmoke.node.process_tree import *\n"
        f"print(started_here({this}, started_at({this}), 'no such word'))\n"
        f"print(started_here({this}, started_at({this}), os.environ['PATH']))\n"
    )
    done = subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
