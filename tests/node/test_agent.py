"""Which processes are a launcher's, and which are ranks; the tasks of a step on another node."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pytest_clustersmoke.evidence.process_start import start_s
from pytest_clustersmoke.evidence.run_directory import write_json
from pytest_clustersmoke.node.agent import Agent, LauncherProcess, StepTasks, start_agent
from pytest_clustersmoke.node.node_job import NodeJob
from pytest_clustersmoke.node.process_tree import started_at
from tests.support.launched import make_job
from tests.support.waiting import PATIENCE_S, wait_for

# As DeepSpeed's: a process that starts another, which starts the ranks; a rank has a child, and
# another has overwritten its environment.
LAUNCHER = """
bash -c 'RANK=4 bash -c "sleep 600 & wait" & RANK=5 sleep 600 & sleep 601 & wait' & wait
"""


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Agent]:
    agent = start_agent(make_job(tmp_path), ["bash", "-c", LAUNCHER], os.environ)
    assert agent.pid is not None
    tree = psutil.Process(agent.pid)
    wait_for("both ranks and the child of one", lambda: count_sleepers(tree) == 3)
    yield agent
    for process in [*tree.children(recursive=True), tree]:
        process.kill()
    agent.wait(PATIENCE_S)


def count_sleepers(tree: psutil.Process) -> int:
    """How many programs `sleep` run there. A process has the name and the environment of its parent
    until it runs a program, and no environment for a moment after."""
    children = tree.children(recursive=True)
    return sum(child.name() == "sleep" and bool(child.environ()) for child in children)


def is_stopped(process: psutil.Process) -> bool:
    return process.status() == psutil.STATUS_STOPPED


def test_ranks_are_found_below_the_launcher(launched: Agent) -> None:
    """By their number in the environment, at any depth."""
    assert sorted(launched.ranks()) == [4, 5]


def test_pids_are_those_of_the_launcher_and_the_ranks(launched: Agent) -> None:
    """What a rank has started is not among them."""
    assert launched.pid is not None
    (inner,) = psutil.Process(launched.pid).children()
    ranks = launched.ranks()
    assert {launched.pid, inner.pid, ranks[4].pid, ranks[5].pid} <= launched.pids()
    assert not {child.pid for child in ranks[4].children()} & launched.pids()


def test_only_the_launcher_is_held(launched: Agent) -> None:
    """Its processes cannot end the ranks then, and the ranks can still write their dumps."""
    assert launched.pid is not None
    top = psutil.Process(launched.pid)
    (inner,) = top.children()
    (bare,) = [child for child in inner.children() if "601" in child.cmdline()]
    launched.hold([bare.pid])
    wait_for("the launcher to stop", lambda: is_stopped(top) and is_stopped(inner))
    assert not any(is_stopped(rank) for rank in [*launched.ranks().values(), bare])
    launched.release()
    wait_for("the launcher to go on", lambda: not is_stopped(top) and not is_stopped(inner))


def test_end_of_a_plain_task_is_that_of_its_rank(tmp_path: Path) -> None:
    """Nothing but this process reaps it."""
    env = {**os.environ, "RANK": "0"}
    agent = start_agent(make_job(tmp_path), ["bash", "-c", "kill -9 $$"], env)
    assert isinstance(agent, LauncherProcess)
    agent.wait(PATIENCE_S)
    assert agent.exit_code(0, agent.pid, started_at(agent.pid)) == agent.returncode == -9


@pytest.fixture
def step(tmp_path: Path) -> NodeJob:
    """Node 1 of a job with two ranks on each node, which node 0's srun starts."""
    return make_job(tmp_path, 1, nodes=2, ranks_per_node=2, launcher="srun")


def test_other_nodes_start_no_launcher(step: NodeJob) -> None:
    """Their ranks are tasks of node 0's step."""
    agent = start_agent(step, ["bash", "-c", "echo started > no"], os.environ)
    assert agent.pid is None and not step.dir.launcher_log(1).exists()


def test_node_of_a_step_ends_with_its_tasks(step: NodeJob) -> None:
    """Once each has written how its rank ended: 0, or the first that is not."""
    agent = StepTasks(step, None)
    process = {"pid": 1, "pid_started": 0.5, "task_pid": 1, "task_pid_started": 0.5}
    write_json(step.dir.rank_process(0), {**process, "code": 3})  # node 0's
    write_json(step.dir.rank_process(2), {**process, "code": 0})
    write_json(step.dir.rank_process(3), process)
    assert agent.poll() is None
    write_json(step.dir.rank_process(3), {**process, "code": -9})
    assert wait_for("the node's end", agent.poll) == agent.returncode == -9
    assert (agent.exit_code(2, 1, 0.5), agent.exit_code(3, 1, 0.5)) == (0, -9)


def test_failed_task_ends_its_node_at_once(step: NodeJob) -> None:
    """srun waits for the other tasks; the ranks that would wait for this one are no reason to."""
    zero = make_job(step.dir.root / "zero", nodes=2, ranks_per_node=2, launcher="srun")
    for job, rank in ((step, 3), (zero, 1)):
        srun = subprocess.Popen(["sleep", "600"]) if job is zero else None
        agent = StepTasks(job, srun)
        assert agent.poll() is None
        write_json(job.dir.rank_process(rank), {"task_pid": 1, "code": 7})
        assert wait_for("the node's end", agent.poll) == agent.returncode == 7
        if srun is not None:
            srun.kill()
            srun.wait()


def test_environment_is_deleted_once_all_tasks_have_read_it(step: NodeJob) -> None:
    """It may hold a token."""
    agent, path = StepTasks(step, None), step.dir.node_environment(1)
    write_json(path, {"HF_TOKEN": "secret"})
    write_json(step.dir.rank_process(2), {"task_pid": 1})
    agent._read_ends()
    assert path.exists()
    write_json(step.dir.rank_process(3), {"task_pid": 1})
    agent._read_ends()
    assert not path.exists()


@pytest.mark.parametrize(("job", "found"), [("6", []), ("7", [2])])
def test_task_of_another_job_is_not_ended(
    step: NodeJob, monkeypatch: pytest.MonkeyPatch, job: str, found: list[int]
) -> None:
    """The record may be an old one, and its pid another's."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    env, pipe = {"SLURM_JOB_ID": job}, subprocess.PIPE
    with subprocess.Popen(["cat"], env=env, stdin=pipe, stdout=pipe, bufsize=0) as task:
        assert task.stdin and task.stdout
        task.stdin.write(b"\n")
        assert task.stdout.read(1)  # before, its environment may not be there yet
        pid, started = task.pid, start_s(task.pid)
        record = {"pid": pid, "pid_started": started, "task_pid": pid, "task_pid_started": started}
        write_json(step.dir.rank_process(2), record)
        agent = StepTasks(step, None)
        assert sorted(agent.ranks()) == found
        assert {process.pid for process in agent.processes()} == ({pid} if found else set())
        write_json(step.dir.rank_process(2), {**record, "code": 0})  # about to end by itself
        assert agent.processes() == set()


def test_task_will_report_the_end_of_its_rank_while_it_lives(
    step: NodeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before it has started, nor once it has reported, nor if its pid is another process's."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(psutil.Process, "environ", lambda _: {"SLURM_JOB_ID": "7"})
    agent, path = StepTasks(step, None), step.dir.rank_process(2)
    assert not agent.will_report(2)
    task = {"task_pid": os.getpid(), "task_pid_started": start_s(os.getpid())}
    write_json(path, task)
    assert agent.will_report(2) and not agent.will_report(3)
    write_json(path, {**task, "task_pid_started": 1.0})
    assert not agent.will_report(2)
    write_json(path, {**task, "code": 3})
    assert not agent.will_report(2) and agent.exit_code(2, 1, 1.0) == 3


def test_records_of_tasks_may_hold_anything(step: NodeJob) -> None:
    """The directory is shared: a broken record is no process and no end."""
    agent = StepTasks(step, None)
    for text in (
        "",
        "[]",
        '{"code": true, "pid": "x"}',
        '{"task_pid": -1, "task_pid_started": 1.0}',
    ):
        step.dir.rank_process(2).write_text(text)
        assert (agent.ranks(), agent.processes(), agent.exit_code(2, 1, 1.0)) == ({}, set(), None)
