"""How far a run is, by the files that it wrote."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.history.usual_times import UsualTimes
from pytest_clustersmoke.evidence.run_directory import RunDir, write_json
from pytest_clustersmoke.evidence.telemetry import EventWriter
from pytest_clustersmoke.session.run_status import RunStatus, list_open_runs, read_status

RUN_ID = "20261101-020000-00000a"
TOKEN = "0123456789abcdef"
MANGLED: list[Any] = [None, 7, [], {}, "\x1b[31m", "x" * 200, "../../etc", 1e300]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run of six phases, each in another state, whose controller was seen just now."""
    made = RunDir(tmp_path / RUN_ID)
    made.root.mkdir(mode=0o700)
    names = ["done", "ending", "trains", "queued", "unanswered", "later"]
    about = {"run_id": RUN_ID, "cluster": "one", "host": socket.gethostname(), "pid": os.getpid()}
    write_json(made.run, {**about, "phases_chosen": names, "locks": True, "begun": time.time()})
    journal = EventWriter(made.journal)
    for number, name in enumerate(names[:5]):
        made.phase(name).root.mkdir(parents=True)
        journal.write("intent", phase=name, token=TOKEN)
        if name != "unanswered":
            journal.write("submitted", phase=name, job_id=str(40 + number))
    journal.close()
    write_json(made.phase("done").result, {"outcome": "passed", "run_s": 12.5})
    for name in ("ending", "trains"):
        claim = {"token": TOKEN, "job_id": "41", "node": "n1", "time": time.time() - 60}
        write_json(made.phase(name).claim, claim)
    made.phase("ending").node_result(0).parent.mkdir(parents=True)
    write_json(made.phase("ending").node_result(0), {"ok": True})
    train(made, step=3)
    return made


def train(run: RunDir, step: int) -> None:
    events = EventWriter(run.phase("trains").rank_events(0))
    events.write("start", schema=1, job=f"{RUN_ID}/trains", rank=0)
    events.write("stage", name="train", state="begin")
    events.write("step", step=step, steps=40, loss=0.5, steps_per_s=2.0)
    events.close()


def states(status: RunStatus) -> dict[str, tuple[str, str]]:
    return {state.phase: (state.state, state.outcome) for state in status.states}


def test_each_phase_has_its_state(run: RunDir) -> None:
    """By its result, the journal, and what its nodes wrote; with the step of rank 0."""
    status = read_status(run)
    assert states(status) == {
        "done": ("done", "passed"),
        "ending": ("ending", ""),
        "trains": ("running", ""),
        "queued": ("pending", ""),
        "unanswered": ("waiting", ""),
        "later": ("waiting", ""),
    }
    assert (status.marks["trains"].step, status.marks["trains"].steps) == (3, 40)
    assert status.states[3].job_id == "43"
    controller = f"pid {os.getpid()} on {socket.gethostname()}"
    assert (status.controller, status.is_over) == (controller, False)


def test_controller_that_was_killed_just_now_is_gone(run: RunDir) -> None:
    """At once if it was a process of this host; one of another host may still run."""
    with subprocess.Popen(["true"]) as ended:
        pass
    about = {**json.loads(run.run.read_text()), "pid": ended.pid}
    write_json(run.run, about)
    assert read_status(run).controller == ""
    write_json(run.run, {**about, "host": "elsewhere"})
    assert read_status(run).controller == f"pid {ended.pid} on elsewhere"


def test_phase_of_several_nodes_says_how_many(run: RunDir) -> None:
    """The node that claimed its start, and the number of the others; a phase of one node has none.
    A phase that is done keeps the id of its job."""
    details = {state.phase: state.detail for state in read_status(run).states}
    assert details["trains"] == "n1"
    write_json(run.phase("trains").spec, {"nodes": 4})
    status = read_status(run)
    assert {state.phase: state.detail for state in status.states}["trains"] == "n1 and 3 more"
    assert status.states[0].job_id == "40"


def test_silent_run_without_a_lock_holder_has_no_controller(run: RunDir) -> None:
    """Its process has ended, and nobody else watches the jobs."""
    os.utime(run.run, (0, 0))
    assert read_status(run).controller == ""


def test_runs_of_other_users_are_not_listed(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """They share the directory, and see to their own."""
    own = os.getuid()
    assert [found.run_id for found, _ in list_open_runs(run.root.parent)] == [RUN_ID]
    monkeypatch.setattr(os, "getuid", lambda: own + 1)
    assert [*list_open_runs(run.root.parent)] == []


def test_closed_and_foreign_directories_are_no_open_runs(run: RunDir) -> None:
    """A closed run is left out; one that others may write, and a torn one, come with the reason."""
    shared = run.root.parent
    for name, mode in (("20261102-020000-00000b", 0o777), ("20261103-020000-00000c", 0o700)):
        (shared / name).mkdir()
        (shared / name).chmod(mode)
    (shared / "20261104-020000-00000d").symlink_to(run.root)
    (shared / "other").mkdir()
    listed = {found.run_id: why for found, why in list_open_runs(shared)}
    assert listed[RUN_ID] == ""
    assert listed["20261102-020000-00000b"].startswith("it is open to other users")
    assert listed["20261103-020000-00000c"] == "its run.json is missing or torn"
    assert listed["20261104-020000-00000d"] == "it is not a directory"
    assert len(listed) == 4
    journal = EventWriter(run.journal)
    journal.write("closed")
    journal.close()
    assert RUN_ID not in {found.run_id for found, _ in list_open_runs(shared)}


@pytest.mark.parametrize("value", MANGLED)
def test_hostile_files_are_read_without_harm(run: RunDir, value: Any) -> None:
    """Whatever stands in run.json, the journal, a claim and a result: no error, no control
    character, and no path outside the run."""
    about = json.loads(run.run.read_text())
    hostile = {
        "cluster": value,
        "selection": value,
        "host": value,
        "pid": value,
        "begun": value,
        "screen": value,
    }
    write_json(run.run, {**about, **hostile, "phases_chosen": ["trains", value]})
    journal = EventWriter(run.journal)
    journal.write("intent", phase=value, token=value)
    journal.write("submitted", phase="trains", job_id=value)
    journal.close()
    write_json(run.phase("trains").claim, {"time": value, "node": value, "token": value})
    write_json(run.phase("done").result, {"outcome": value, "run_s": value})
    status = read_status(run)
    assert {state.phase for state in status.states} >= {"trains", "queued"}
    words = [status.cluster, status.selection, status.controller, status.screen]
    words += [f"{state.job_id}{state.detail}{state.phase}" for state in status.states]
    assert all(map(str.isprintable, words))
    assert not any("/" in state.phase for state in status.states)


def test_report_whose_path_has_a_nul_costs_the_expected_end_alone(run: RunDir) -> None:
    """No file system has such a path."""
    write_json(run.run, {**json.loads(run.run.read_text()), "report": "/reports\0/x"})
    assert read_status(run).usual == UsualTimes(read_status(run).usual.begun)
    assert len(read_status(run).states) == 6


def test_run_without_phases_is_not_over(run: RunDir) -> None:
    """In its first second, or as a screen, of which the nodes that answered are counted once."""
    about = json.loads(run.run.read_text())
    write_json(run.run, {**about, "phases_chosen": []})
    run.journal.unlink()
    status = read_status(run)
    assert (status.states, status.is_over, status.screen) == ([], False, "")
    write_json(run.run, {**about, "phases_chosen": [], "screen": "gpu"})
    journal = EventWriter(run.journal)
    for node, end in (("n1", "answered"), ("n2", "not screened"), ("n1", "answered"), (7, "x")):
        journal.write("screened", node=node, job_id="7", end=end, why="")
    journal.close()
    status = read_status(run)
    assert (status.is_over, status.screen, status.answered) == (False, "gpu", 1)


def test_torn_files_are_read_without_harm(run: RunDir) -> None:
    """A journal, a result and events that end in the middle of a line."""
    for path in (run.journal, run.phase("done").result, run.phase("trains").rank_events(0)):
        path.write_bytes(path.read_bytes()[:-7])
    assert states(read_status(run))["done"][0] == "pending"
