"""Dumps of hanging ranks: no process gets a signal that it does not catch."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from pytest_clustersmoke.diagnose.rank_positions import stack_of_rank
from pytest_clustersmoke.evidence.run_directory import write_json
from pytest_clustersmoke.node import node_dumps, process_tree
from pytest_clustersmoke.node.node_job import NodeJob
from pytest_clustersmoke.node.rank_progress import RankWatch
from tests.support.launched import make_job
from tests.support.waiting import PATIENCE_S, wait_for

# In place of torchrun: starts one rank with its stderr redirected, and waits.
AGENT = """
import subprocess, sys
with open(sys.argv[1], "wb") as log:
    subprocess.Popen([sys.executable, "-X", "faulthandler", "-c", sys.argv[2]], stderr=log,
                     env={**__import__("os").environ, "RANK": "0"}).wait()
"""
HANGS = """
import threading
from pathlib import Path
{before}
def stands_here():
    Path({ready!r}).touch()
    threading.Event().wait()
stands_here()
"""
CATCHES = "import signal; signal.signal(signal.SIGUSR2, lambda *_: None)"


@contextmanager
def hanging(job: NodeJob, before: str = "") -> Iterator[int]:
    """A rank that hangs outside `Rank`, under an agent; yields the agent's pid."""
    ready = job.dir.root / "ready"
    log = job.dir.rank_logs(0) / "x" / "attempt_0" / "0" / "stderr.log"
    log.parent.mkdir(parents=True)
    job.dir.dumps.mkdir()
    text = HANGS.format(before=before, ready=str(ready))
    agent = subprocess.Popen([sys.executable, "-c", AGENT, str(log), text])
    try:
        wait_for("the rank", ready.exists)
        yield agent.pid
    finally:
        left = [psutil.Process(agent.pid), *psutil.Process(agent.pid).children(recursive=True)]
        process_tree.end(left, 0.0)
        agent.wait()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeJob:
    monkeypatch.setattr(node_dumps, "OWN_DUMPS_S", 0.5)
    for name in ("ABORT_S", "PY_SPY_S"):  # both end as soon as the stack is there
        monkeypatch.setattr(node_dumps, name, PATIENCE_S)
    made = make_job(tmp_path)
    write_json(made.dir.abort, {"reason": "stalled", "why": "rank 0 has made no progress"})
    return made


def rank_of(agent: int) -> psutil.Process:
    (rank,) = psutil.Process(agent).children()
    return rank


@pytest.mark.parametrize("before", ["", CATCHES])
def test_silent_rank_is_aborted_for_its_stack(
    before: str, job: NodeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing handles the signal before `Rank`, or if a library has replaced the handler."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with hanging(job, before) as agent:
        taken = node_dumps.take(job, RankWatch(job), {0: rank_of(agent)})
    assert (taken["ranks"], taken["aborted"], taken["py_spy"]) == ([0], [0], [])
    stack = stack_of_rank(job.dir, 0)
    assert stack is not None and any("stands_here" in frame.name for frame in stack.frames)


def test_silent_rank_is_not_aborted_without_a_stall(
    job: NodeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another rank died, aborting this one would look like a second death."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    job.dir.abort.write_text(json.dumps({"reason": "rank_died", "why": "x"}))
    with hanging(job) as agent:
        taken = node_dumps.take(job, RankWatch(job), {0: rank_of(agent)})
        assert process_tree.is_running(rank_of(agent))
    assert (taken["aborted"], taken["incomplete"]) == ([], [0])


def py_spy() -> str | None:
    """The path of py-spy: beside the interpreter, or on PATH."""
    beside = str(Path(sys.executable).parent)
    return shutil.which("py-spy", path=os.pathsep.join([beside, os.environ.get("PATH", "")]))


@pytest.mark.skipif(py_spy() is None, reason="py-spy is not installed")
def test_py_spy_reads_the_stack_of_a_silent_rank(
    job: NodeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the kernel allows it, the rank lives on, and its stack has native frames."""
    command = py_spy() or ""
    monkeypatch.setattr(shutil, "which", lambda _: command)
    with hanging(job) as agent:
        rank = rank_of(agent)
        words = [command, "dump", "--pid", str(rank.pid)]
        if subprocess.run(words, capture_output=True).returncode:
            pytest.skip("the kernel does not let py-spy look into another process")
        taken = node_dumps.take(job, RankWatch(job), {0: rank_of(agent)})
        assert process_tree.is_running(rank)
    assert (taken["py_spy"], taken["aborted"]) == ([0], [])
    stack = stack_of_rank(job.dir, 0)
    assert stack is not None and any("stands_here" in frame.name for frame in stack.frames)
    assert any(frame.line == 0 for frame in stack.frames)


def test_process_without_a_handler_is_detected() -> None:
    """The kernel's table says which signals a process catches."""
    code = f"{CATCHES}; print('ready', flush=True); input()"
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        process = psutil.Process(child.pid)
        assert node_dumps.catches(process, signal.SIGUSR2)
        assert not node_dumps.catches(process, signal.SIGABRT)
        child.communicate()
    assert not node_dumps.catches(process, signal.SIGUSR2)
