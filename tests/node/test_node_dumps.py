"""What ranks are asked for while they hang: who would be killed by a signal is not sent it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
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

WITHIN_S = 60.0
# torchrun's part: it starts one rank, its stderr redirected as torchrun's is, and waits.
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
CATCHES = "import signal; signal.signal(signal.SIGUSR1, lambda *_: None)"


def wait_for(look: Callable[[], object]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def hanging(job: NodeJob, before: str = "") -> Iterator[int]:
    """A rank that hangs outside of any Rank, under an agent whose pid is given."""
    ready = job.dir.root / "ready"
    log = job.dir.rank_logs(0) / "x" / "attempt_0" / "0" / "stderr.log"
    log.parent.mkdir(parents=True)
    job.dir.dumps.mkdir()
    text = HANGS.format(before=before, ready=str(ready))
    agent = subprocess.Popen([sys.executable, "-c", AGENT, str(log), text])
    try:
        wait_for(ready.exists)
        yield agent.pid
    finally:
        left = [psutil.Process(agent.pid), *psutil.Process(agent.pid).children(recursive=True)]
        process_tree.end(left, 0.0)
        agent.wait()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeJob:
    monkeypatch.setattr(node_dumps, "OWN_DUMPS_S", 0.5)
    monkeypatch.setattr(node_dumps, "ABORT_S", WITHIN_S)  # ends as soon as the stack is there
    made = make_job(tmp_path)
    write_json(made.dir.abort, {"reason": "stalled", "why": "rank 0 has made no progress"})
    return made


def rank_of(agent: int) -> psutil.Process:
    (rank,) = psutil.Process(agent).children()
    return rank


@pytest.mark.parametrize("before", ["", CATCHES])
def test_a_rank_that_does_not_answer_is_ended_for_its_stack(
    before: str, job: NodeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its Rank nothing answers the signal; nor where a library has taken the handler."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with hanging(job, before) as agent:
        taken = node_dumps.take(job, RankWatch(job), agent)
    assert (taken["ranks"], taken["aborted"], taken["py_spy"]) == ([0], [0], [])
    stack = stack_of_rank(job.dir, 0)
    assert stack is not None and any("stands_here" in one.name for one in stack.frames)


def test_a_rank_that_does_not_answer_lives_where_nobody_stood_still(
    job: NodeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end would look like a death where another rank died."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    job.dir.abort.write_text(json.dumps({"reason": "rank_died", "why": "x"}))
    with hanging(job) as agent:
        taken = node_dumps.take(job, RankWatch(job), agent)
        assert process_tree.running(rank_of(agent))
    assert (taken["aborted"], taken["incomplete"]) == ([], [0])


def py_spy() -> str | None:
    """Where it is: beside the interpreter, or anywhere on PATH."""
    beside = str(Path(sys.executable).parent)
    return shutil.which("py-spy", path=os.pathsep.join([beside, os.environ.get("PATH", "")]))


@pytest.mark.skipif(py_spy() is None, reason="py-spy is not installed")
def test_py_spy_looks_from_outside(job: NodeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it may look into a process, the rank lives on, and its stack has native frames."""
    command = py_spy() or ""
    monkeypatch.setattr(shutil, "which", lambda _: command)
    with hanging(job) as agent:
        rank = rank_of(agent)
        words = [command, "dump", "--pid", str(rank.pid)]
        if subprocess.run(words, capture_output=True).returncode:
            pytest.skip("the kernel does not let py-spy look into another process")
        taken = node_dumps.take(job, RankWatch(job), agent)
        assert process_tree.running(rank)
    assert (taken["py_spy"], taken["aborted"]) == ([0], [])
    stack = stack_of_rank(job.dir, 0)
    assert stack is not None and any("stands_here" in one.name for one in stack.frames)
    assert any(one.line == 0 for one in stack.frames)


def test_whoever_has_no_handler_is_known() -> None:
    """From the kernel's own table."""
    code = f"{CATCHES}; print('ready', flush=True); input()"
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        process = psutil.Process(child.pid)
        assert node_dumps.catches(process, signal.SIGUSR1)
        assert not node_dumps.catches(process, signal.SIGABRT)
        child.communicate()
    assert not node_dumps.catches(process, signal.SIGUSR1)
