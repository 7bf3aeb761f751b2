"""The allocation that the tests of --cluster-isolate run in (Slurm's commands are fakes here)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_clustersmoke.evidence.locks import ControllerFence, Superseded
from pytest_clustersmoke.evidence.run_directory import PhaseDir, RunDir, create_phase
from pytest_clustersmoke.jobs import node_hold
from pytest_clustersmoke.jobs.node_hold import WAIT, NodeHold
from pytest_clustersmoke.jobs.slurm_client import SlurmClient
from tests.fakes.slurm import FakeSlurm
from tests.support.evidence import make_phase, make_profile
from tests.support.waiting import PATIENCE_S, wait_for

RUNNING = "JobId=7 UserId=ann(1001) JobState={} Reason={} NodeList=n[0-3] EndTime=Unknown"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """On a slow machine it is slow to answer."""
    monkeypatch.setattr(node_hold, "CANCEL_S", PATIENCE_S)
    return FakeSlurm(tmp_path)


def make_hold(tmp_path: Path, slurm: FakeSlurm) -> NodeHold:
    options = {"partition": "p", "cpus_per_task": 4, "mem": 0, "time_min": "5"}
    profile = make_profile(tmp_path, backend="slurm", slurm=options)
    phase = make_phase(profile, nodes=4, gpus_per_node=2)
    directory = PhaseDir(tmp_path / "run1" / "phases" / "small")
    create_phase(directory, 4)
    nodes = [f"n{number}" for number in range(4)]
    fence = ControllerFence(directory.run)
    return NodeHold(SlurmClient(slurm.environ), phase, profile, nodes, directory, fence)


def test_job_asks_for_the_nodes_with_the_phases_own_options(
    tmp_path: Path, slurm: FakeSlurm
) -> None:
    """A node that goes down does not end it, and the run's name is in its words."""
    lines = make_hold(tmp_path, slurm).script(61).splitlines()
    for line in (
        *("--nodes=4", "--nodelist=n0,n1,n2,n3", "--no-kill", "--no-requeue", "--time=61"),
        *("--partition=p", "--cpus-per-task=4", "--mem=0", "--gpus-per-node=2"),
        "--comment='clustersmoke run=run1 phase=small'",
    ):
        assert f"#SBATCH {line}" in lines, line
    assert not [line for line in lines if "time-min" in line]
    assert subprocess.run(["bash", "-n"], input="\n".join(lines), text=True).returncode == 0


def test_granted_allocation_is_held_until_it_is_given_back(
    tmp_path: Path, slurm: FakeSlurm
) -> None:
    slurm.answers("sbatch", "7\n")
    slurm.answers("scontrol", RUNNING.format("RUNNING", "None"))
    hold = make_hold(tmp_path, slurm)
    assert hold.ask(60, 3600) == "" and hold.job_id == "7"
    assert hold.has(("n1", "n3")) and not hold.has(("n1", "other"))
    assert not hold.is_lost
    slurm.answers("scontrol", RUNNING.format("NODE_FAIL", "None"))
    assert hold.is_lost
    hold.release()
    assert "scancel 7" in slurm.calls()


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        ("PENDING", "Resources", "did not start within 0 s (Resources)"),
        ("PENDING", "PartitionTimeLimit", "waits for a limit of this user's (PartitionTimeLimit)"),
        ("FAILED", "None", "ended before it had nodes (FAILED)"),
    ],
)
def test_allocation_that_is_not_granted_says_why(
    tmp_path: Path, slurm: FakeSlurm, state: str, reason: str, words: str
) -> None:
    slurm.answers("sbatch", "7\n")
    slurm.answers("scontrol", RUNNING.format(state, reason))
    assert make_hold(tmp_path, slurm).ask(0, 3600) == f"job 7 {words}"


def test_slurm_is_asked_ever_more_rarely_whether_the_allocation_runs(
    tmp_path: Path, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may wait in the queue for half an hour."""
    slept: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append)
    slurm.answers("sbatch", "7\n")
    slurm.answers("scontrol", RUNNING.format("PENDING", "Resources"))
    hold = make_hold(tmp_path, slurm)
    monkeypatch.setattr(node_hold, "time", clock)
    assert hold.ask(60, 3600) == "job 7 did not start within 60 s (Resources)"
    assert slept[0] < slept[1] < max(slept) == node_hold.MOST_ASK_S
    assert sum(slept) == pytest.approx(60) and slurm.commands().count("scontrol") < 20


def test_process_without_its_run_waits_for_no_allocation(tmp_path: Path, slurm: FakeSlurm) -> None:
    """Another one has taken the run over meanwhile; the job ends by itself."""
    slurm.answers("sbatch", "7\n")
    slurm.answers("scontrol", RUNNING.format("PENDING", "Resources"))
    hold = make_hold(tmp_path, slurm)
    successor = RunDir(tmp_path / "run1").controller(2)
    slurm.folder.joinpath("scontrol.answer").write_text(f"echo '{{}}' > '{successor}'\n")
    with pytest.raises(Superseded):
        hold.ask(600, 3600)
    assert slurm.commands() == ["sbatch", "scontrol"]


def test_allocation_whose_submission_is_unanswered_is_cancelled_by_its_name(
    tmp_path: Path, slurm: FakeSlurm
) -> None:
    """Nothing is cancelled that was never asked for."""
    hold = make_hold(tmp_path, slurm)
    hold.release()
    assert slurm.calls() == []
    slurm.answers("sbatch", err="sbatch: error: Socket timed out on send/recv operation", rc=1)
    assert hold.ask(60, 3600).startswith("sbatch: ")
    hold.release()
    assert "scancel --name=clustersmoke-run1-small.isolate" in slurm.calls()


def test_scancel_goes_on_where_slurm_answers_late(
    tmp_path: Path, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that still waits for its nodes would be left in the queue."""
    monkeypatch.setattr(node_hold, "CANCEL_S", 0.05)
    slurm.answers("sbatch", "7\n")
    slurm.answers("scontrol", RUNNING.format("PENDING", "Resources"))
    gate, done = tmp_path / "gate", tmp_path / "done"
    os.mkfifo(gate)
    answer = os.open(gate, os.O_RDWR)  # what is written waits there for who reads
    slurm.folder.joinpath("scancel.answer").write_text(f"read word < '{gate}'; : > '{done}'\n")
    hold = make_hold(tmp_path, slurm)
    hold.ask(0, 3600)
    left = hold.release()
    assert left.startswith("not confirmed that job 7 is cancelled; if it starts, it ends")
    os.write(answer, b"go\n")
    wait_for("scancel's end", done.exists)
    os.close(answer)


def test_end_of_the_allocation_that_slurm_confirms_needs_no_words(
    tmp_path: Path, slurm: FakeSlurm
) -> None:
    slurm.answers("sbatch", "7\n")
    slurm.answers("scontrol", RUNNING.format("PENDING", "Resources"))
    hold = make_hold(tmp_path, slurm)
    hold.ask(0, 3600)
    assert hold.release() == ""


# Instead of a sleep, the Nth look makes a change; a sign of life is another time of the file.
LOOKS = """sleep() {
    looks=$((looks + 1))
    [ "$looks" -gt "$BEATS" ] || touch -d "@$looks" beat
    [ "$looks" != "$ENDS" ] || touch "$FILE"
}
"""


@pytest.mark.parametrize(
    ("beats", "file", "ends", "looks"),
    [
        (3, "none", 0, 6),  # the third sign of life is the last, and then it is silent for 4 s
        (99, "released", 7, 7),
        (99, "successor", 9, 9),
    ],
    ids=["no sign of life", "given back", "another controller"],
)
def test_job_ends_by_itself(tmp_path: Path, beats: int, file: str, ends: int, looks: int) -> None:
    (tmp_path / "beat").touch()
    environ = {"PATH": "/usr/bin:/bin", "BEATS": str(beats), "FILE": file, "ENDS": str(ends)}
    program = f"{LOOKS}\n{WAIT}\nhold beat successor released 4 2; echo $looks"
    done = subprocess.run(
        ["bash", "-c", program], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert (done.stdout.strip(), done.stderr) == (str(looks), "")


def test_job_ends_where_the_run_is_gone(tmp_path: Path) -> None:
    program = f"sleep() {{ :; }}\n{WAIT}\nhold beat successor released 4 2; echo ended"
    done = subprocess.run(
        ["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout.strip(), done.stderr) == ("ended", "")
