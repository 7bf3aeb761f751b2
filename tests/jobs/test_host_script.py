"""The scripts that run on a host, run by this machine's own shell."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_clustersmoke.evidence.process_start import start_s
from pytest_clustersmoke.evidence.run_directory import PhaseDir, create_phase
from pytest_clustersmoke.jobs import host_script
from pytest_clustersmoke.jobs.host_script import HostAnswer, HostProcess, NodeTag
from pytest_clustersmoke.node.job_entry import MISSING, REFUSAL
from tests.support.waiting import PATIENCE_S, wait_for

# A job's processes are found by its tag, so each process that runs these tests has its own.
TAG = f"run-{os.getpid()}/small/0@host"
LIMIT_S = 60.0


@pytest.fixture
def phase(tmp_path: Path, leftovers: tuple[str, Callable[[], list[str]]]) -> PhaseDir:
    """A phase whose node only waits, in a session of its own besides."""
    directory = PhaseDir(tmp_path / "run" / "phases" / "small")
    create_phase(directory, 1)
    directory.run.root.chmod(0o700)
    directory.submitit.mkdir()
    lines = [f"export {leftovers[0]}=1", "setsid sleep 600 & echo $! > $0.child", "sleep 600"]
    directory.batch_script.write_text("\n".join(lines) + "\n")
    return directory


def ask(*calls: str) -> list[HostAnswer]:
    script = host_script.make_script(list(calls))
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stderr == ""
    return host_script.parse_answers(done.stdout.splitlines())


def start_call(phase: PhaseDir, limit_s: float = LIMIT_S) -> str:
    command = ["bash", str(phase.batch_script)]
    return host_script.start_call(phase, 0, limit_s, TAG, "small.0", command)


def start(phase: PhaseDir) -> HostProcess:
    (answer,) = ask(start_call(phase))
    assert answer.process is not None
    wait_for("the node's other session", Path(f"{phase.batch_script}.child").exists)
    return answer.process


def look(phase: PhaseDir, process: HostProcess) -> str:
    (answer,) = ask(host_script.look_call(phase, 0, TAG, process))
    assert answer.tag == TAG
    return answer.what


def cancel(process: HostProcess | None) -> str:
    (answer,) = ask(host_script.cancel_call(1.0, TAG, process))
    return answer.what


@pytest.mark.parametrize("host", ["n0", "10.0.0.1", "user@n0", "n0/1@n1"])
def test_tag_is_read_as_it_was_written(host: str) -> None:
    tag = NodeTag("20260101-020000-abcdef/small", 3, host)
    assert NodeTag.parse(str(tag)) == tag


@pytest.mark.parametrize("text", ["", "small", "run/small@n0", "run/small/x@n0", "run/small/0@"])
def test_other_texts_are_no_tag(text: str) -> None:
    """The variable may have any value in a process of somebody else."""
    assert NodeTag.parse(text) is None


def test_node_is_started_once_and_recorded(phase: PhaseDir) -> None:
    """A start whose answer was lost is asked for again, and finds the first one."""
    first, again = start(phase), start(phase)
    assert first == again
    assert int(first.start) / os.sysconf("SC_CLK_TCK") == start_s(int(first.pid))
    record = phase.node_process(0)
    assert record.read_text().split() == [first.pid, first.start, first.boot]
    assert os.getsid(int(first.pid)) == int(first.pid)
    assert look(phase, first) == host_script.RUNS
    assert cancel(first) == host_script.ENDED


def test_reason_of_a_node_that_was_not_started_is_shown(phase: PhaseDir) -> None:
    """The host's own words, and not our answer, which names no process then."""
    lines = ["Last login: today", f"started {TAG} 1 2 boot", "looks 3", f"runs {TAG}", ""]
    assert host_script.find_error(lines) == "looks 3" and host_script.find_error(lines[3:]) == ""
    phase.node_process(0).parent.parent.rmdir()
    phase.node_process(0).parent.parent.write_text("")
    script = host_script.make_script([start_call(phase)])
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=PATIENCE_S)
    lines = done.stdout.splitlines()
    (answer,) = host_script.parse_answers(lines)
    assert (answer.what, answer.tag, answer.process) == ("started", TAG, None)
    assert host_script.find_error(lines).endswith(": Not a directory"), done


def test_cancel_ends_every_session_of_the_node(
    phase: PhaseDir, leftovers: tuple[str, Callable[[], list[str]]]
) -> None:
    process = start(phase)
    wait_for("a process in each session", lambda: len(leftovers[1]()) >= 2)
    assert cancel(process) == host_script.ENDED
    assert leftovers[1]() == []
    assert look(phase, process) == host_script.GONE


def test_cancel_without_a_known_process_finds_the_node_by_its_word(
    phase: PhaseDir, leftovers: tuple[str, Callable[[], list[str]]]
) -> None:
    start(phase)
    assert cancel(None) == host_script.ENDED
    assert leftovers[1]() == []


@pytest.mark.parametrize("other", [{"start": "1"}, {"boot": "another"}])
def test_reused_pid_is_never_ended(other: dict[str, str]) -> None:
    """A process with the pid, but of another start or boot, is a stranger."""
    with subprocess.Popen(["sleep", "600"]) as stranger:
        ticks = Path(f"/proc/{stranger.pid}/stat").read_text().rpartition(")")[2].split()[19]
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        own = HostProcess(str(stranger.pid), ticks, boot)
        process = HostProcess(own.pid, other.get("start", ticks), other.get("boot", boot))
        assert cancel(process) == host_script.ENDED
        assert stranger.poll() is None
        assert cancel(own) == host_script.ENDED  # the same with its own start does end it
        assert stranger.wait(PATIENCE_S) != 0


def test_what_a_killed_node_left_is_ended(
    phase: PhaseDir, leftovers: tuple[str, Callable[[], list[str]]]
) -> None:
    """Its ranks run in sessions of their own; a look ends them once the node is gone."""
    process = start(phase)
    os.kill(int(process.pid), 9)
    wait_for("the node's end", lambda: look(phase, process) == host_script.GONE)
    assert leftovers[1]() == []


def test_node_with_a_result_has_ended_well(phase: PhaseDir) -> None:
    process = start(phase)
    phase.node_result(0).write_text("{}")
    assert look(phase, process) == host_script.RUNS
    cancel(process)
    assert look(phase, process) == host_script.RESULT
    assert look(phase, HostProcess(process.pid, process.start, "another")) == host_script.RESULT


def test_result_of_an_earlier_attempt_is_not_that_of_the_node(phase: PhaseDir) -> None:
    """A phase with `resume` stopped as planned, and its next attempt was killed."""
    process = start(phase)
    phase.node_result(0).write_text('{"stopped": true}')
    later = replace(phase, attempt=1)
    later.node_result(0).parent.mkdir(parents=True)
    cancel(process)
    assert look(phase, process) == host_script.GONE
    later.node_result(0).write_text("{}")
    assert look(phase, process) == host_script.RESULT


def test_restarted_host_is_told_from_an_ended_node(phase: PhaseDir) -> None:
    assert look(phase, HostProcess("1", "1", "another")) == host_script.REBOOTED


def test_node_ends_at_its_time_limit(
    phase: PhaseDir, leftovers: tuple[str, Callable[[], list[str]]]
) -> None:
    """Without any client: here after one second, as TERM ends its shell."""
    (answer,) = ask(start_call(phase, limit_s=1.0))
    process = answer.process
    assert process is not None
    wait_for("the limit", lambda: look(phase, process) == host_script.GONE)


@pytest.mark.parametrize("how", ["missing", "link", "open"])
def test_node_is_not_started_in_a_directory_that_is_not_the_runs(phase: PhaseDir, how: str) -> None:
    """No process is named, and nothing is written there."""
    root = phase.run.root
    moved = root.rename(root.with_name("moved"))
    if how == "link":
        root.symlink_to(moved)
    elif how == "open":
        moved.rename(root).chmod(0o777)
    script = host_script.make_script([start_call(phase)])
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    assert host_script.parse_answers(done.stdout.splitlines()) == []
    why = MISSING if how == "missing" else "is not a directory of this user's alone"
    assert done.stderr == f"{REFUSAL}{root} {why}\n"
    assert not list(root.rglob("start")) and not list(moved.rglob("start"))
