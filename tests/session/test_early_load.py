"""What judges jobs and writes the report is loaded once a job was submitted, and holds none up."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue

import jinja2
import pytest

from pytest_clustersmoke.jobs.outcome import Judgement
from pytest_clustersmoke.report import page
from pytest_clustersmoke.session.early_load import prepare_end
from pytest_clustersmoke.session.live.board import Board
from tests.support.waiting import PATIENCE_S


@pytest.mark.parametrize("is_submitted", [True, False])
def test_templates_are_compiled_once_a_phase_was_submitted_or_ended(
    is_submitted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before; and of a run that submits nothing, no thread is left."""
    loaded, board = threading.Event(), Board(["a", "b"])
    conditions: SimpleQueue[Callable[[], object]] = SimpleQueue()
    wait_for = board._changed.wait_for

    def note(holds: Callable[[], object]) -> object:
        conditions.put(holds)
        return wait_for(holds)

    monkeypatch.setattr(board._changed, "wait_for", note)
    monkeypatch.setattr(page, "load_templates", loaded.set)
    prepare_end(board)
    holds = conditions.get(timeout=PATIENCE_S)  # what the thread waits for
    board.post("a", "waits")
    assert not holds() and not loaded.is_set()
    if is_submitted:
        board.set_submitted("a", "7", 0.0, None)
    else:
        board.finish("a", Judgement("never_ran", "refused"), None)
    assert loaded.wait(PATIENCE_S)


STARTS = """
import sys
from pytest_clustersmoke import preflight
from pytest_clustersmoke.jobs import slurm_backend
from pytest_clustersmoke.session import dead_runs, early_load, job_session, suite

def loaded():
    return [f"pytest_clustersmoke.{name}" in sys.modules for name in ("criteria", "diagnose")]

print(loaded())
early_load._import_end()
print(loaded())
"""


def test_what_judges_jobs_is_loaded_after_the_first_submission() -> None:
    """Nothing that a run imports before it needs that."""
    done = subprocess.run(
        [sys.executable, "-c", STARTS], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.stdout.splitlines() == ["[False, False]", "[True, True]"], done.stderr


LEAVES = """
import atexit, gc
from pytest_clustersmoke.session.early_load import prepare_end
from pytest_clustersmoke.session.live.board import Board
atexit.register(lambda: print(gc.get_freeze_count() > 0))  # the first one is called last
prepare_end(Board(["a"]))
print(gc.get_freeze_count() > 0)
"""


def test_interpreter_that_ends_searches_no_garbage() -> None:
    """That of the run was searched by pytest before."""
    done = subprocess.run(
        [sys.executable, "-c", LEAVES], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["False", "True"], done.stderr


LOADS = """
import gc, threading, weakref
from pytest_clustersmoke.session.early_load import prepare_end
from pytest_clustersmoke.session.live.board import Board

class Garbage:
    def __init__(self):
        self.me = self

def load():
    board = Board(["a"])
    board.set_submitted("a", "7", 0.0, None)
    prepare_end(board)
    for thread in threading.enumerate():
        if thread.name == "clustersmoke-load":
            thread.join()
    return gc.get_freeze_count()

gc.disable()
garbage = weakref.ref(Garbage())
before = len(gc.get_objects())
frozen = load()
print(frozen > before, len(gc.get_objects()) < before / 10, garbage() is None)
kept = [[] for _ in range(1000)]
print(load() <= frozen)
"""


def test_what_was_there_before_the_tests_is_searched_for_garbage_while_jobs_run() -> None:
    """pytest searches five times at its end, for the garbage of the tests. A second run in one
    process sets nothing more aside: that is never freed."""
    done = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True"] * 4, done.stderr


def test_no_template_is_left_to_be_compiled_for_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling all takes longer than to fill them in."""
    page.load_templates()
    monkeypatch.setattr(jinja2.Environment, "compile", lambda *_: pytest.fail("compiled"))
    names = {path.name for path in page.HERE.glob("*.j2")}
    assert {page._environment().get_template(name).name for name in names} == names
