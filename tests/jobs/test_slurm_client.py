"""How Slurm's commands are called, and how their answers are read (Slurm is a fake here)."""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path

import pytest

from pytest_clustersmoke.jobs import slurm_client, slurm_jobs
from pytest_clustersmoke.jobs.backend import Unanswered
from pytest_clustersmoke.jobs.slurm_client import SlurmClient
from tests.fakes.slurm import FakeSlurm
from tests.support.waiting import PATIENCE_S

JOB = "7|{}|None|n[1-2]|2026-01-02T03:04:05|2026-01-02T03:05:05|ours|run=r"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm(tmp_path)
    monkeypatch.setenv("PATH", fake.environ["PATH"])
    return fake


@pytest.fixture
def client(slurm: FakeSlurm) -> SlurmClient:
    return SlurmClient(slurm.environ)


def test_one_squeue_for_all_jobs(slurm: FakeSlurm, client: SlurmClient) -> None:
    """One squeue covers all jobs; no other command runs."""
    slurm.answers("squeue", JOB.format("RUNNING") + "\n8|PENDING|Priority||x|N/A|other|\n")
    states = client.job_states(["7", "8"])
    assert slurm.calls() == ["squeue -h -a -t all -r -o %i|%T|%r|%N|%V|%S|%j|%k -j 7,8"]
    assert states["7"].kind == "running" and states["7"].nodes == "n[1-2]"
    assert states["7"].reason == ""
    assert (states["7"].name, states["7"].comment) == ("ours", "run=r")
    assert states["7"].started == datetime(2026, 1, 2, 3, 5, 5).timestamp()
    assert (states["8"].kind, states["8"].reason, states["8"].started) == (
        "pending",
        "Priority",
        None,
    )


def test_no_jobs_no_query(slurm: FakeSlurm, client: SlurmClient) -> None:
    """Without jobs no command runs."""
    assert client.job_states([]) == {} and slurm.calls() == []


def test_states_of_nodes(slurm: FakeSlurm, client: SlurmClient) -> None:
    """Each node once, although sinfo lists it for every partition."""
    slurm.answers("sinfo", "node0 idle\nnode1 down*\nnode0 idle\n\n")
    assert client.node_states() == {"node0": "idle", "node1": "down*"}
    assert slurm.calls() == ["sinfo -h -N -o %N %T"]


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        ("PENDING", "pending"),
        ("CONFIGURING", "pending"),
        ("RUNNING", "running"),
        ("COMPLETING", "running"),
        ("SUSPENDED", "running"),
        ("COMPLETED", "ended"),
        ("FAILED", "ended"),
        ("TIMEOUT", "ended"),
        ("NODE_FAIL", "ended"),
        ("PREEMPTED", "ended"),
        ("OUT_OF_MEMORY", "ended"),
        ("A_STATE_OF_TOMORROW", "running"),
    ],
)
def test_kinds_of_job_states(slurm: FakeSlurm, client: SlurmClient, raw: str, kind: str) -> None:
    """Each of Slurm's states is pending, running or ended."""
    slurm.answers("squeue", JOB.format(raw))
    state = client.job_states(["7"])["7"]
    assert (state.kind, state.raw) == (kind, raw)


def test_task_of_an_array_is_known_by_its_own_id(slurm: FakeSlurm, client: SlurmClient) -> None:
    """In squeue with a line for each task, and in sacct, whose raw id is another number."""
    slurm.answers("squeue", JOB.replace("7|", "7_0|").format("RUNNING") + "\n")
    slurm.answers("sacct", JOB.replace("7|", "7_1|").format("NODE_FAIL") + "\n")
    states = client.job_states(["7_0", "7_1"])
    assert (states["7_0"].raw, states["7_1"].raw) == ("RUNNING", "NODE_FAIL")
    assert " --array -j 7_1 -o JobID," in slurm.calls()[-1]


@pytest.mark.parametrize(
    ("prints", "said", "refused_so_far"),
    [
        ("", "", False),
        ("the project is over its budget", " (it printed 'the project is over its budget')", False),
        *(
            (f"sbatch: error: {words}", f" (it printed 'sbatch: error: {words}')", True)
            for words in (  # of sbatch 22.05, which asks again by itself
                "Slurm temporarily unable to accept job, sleeping and retrying",
                "Slurm job queue full, sleeping and retrying",
                "Job creation temporarily disabled, retrying",
            )
        ),
    ],
)
def test_sbatch_that_times_out_may_have_submitted_the_job(
    tmp_path: Path, prints: str, said: str, refused_so_far: bool
) -> None:
    """Nobody knows. What it printed until then says why it took so long."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sbatch").write_text(f"#!/bin/sh\nprintf %s '{prints}' >&2\nexec sleep 60\n")
    (folder / "sbatch").chmod(0o755)
    client = SlurmClient({"PATH": f"{folder}:{os.environ['PATH']}"}, timeout_s=1)
    with pytest.raises(Unanswered) as silence:
        client.submit(tmp_path / "x.sh")
    assert str(silence.value) == f"sbatch did not answer within 1 s{said}"
    assert silence.value.refused_so_far == refused_so_far


@pytest.mark.parametrize(
    ("listed", "found"),
    [
        ("7|run=r phase=p\n7|run=r phase=p\n", "7"),  # an array's tasks have its id
        ("7|run=r phase=q\n", ""),  # somebody's job of the same name
        ("7|run=r phase=p\n8|run=r phase=p\n", ""),
        ("", ""),
    ],
)
def test_job_is_ours_by_its_name_and_comment(
    slurm: FakeSlurm, client: SlurmClient, listed: str, found: str
) -> None:
    """One job, or none."""
    slurm.answers("squeue", listed)
    assert client.find_job("clustersmoke-r-p", "run=r phase=p") == found
    # Another user may have given a job our name and comment.
    assert f" -t all -u {os.getuid()} -n clustersmoke-r-p " in slurm.calls()[-1]


def test_sacct_is_asked_if_squeue_does_not_know_a_job(
    slurm: FakeSlurm, client: SlurmClient
) -> None:
    """If squeue says `Invalid job id`, accounting may still know the job."""
    slurm.answers("squeue", err="slurm_load_jobs error: Invalid job id specified", rc=1)
    slurm.answers("sacct", JOB.format("CANCELLED by 1000"))
    state = client.job_states(["7"])["7"]
    assert (state.kind, state.raw) == ("ended", "CANCELLED")
    assert slurm.commands() == ["squeue", "sacct"]


def test_disabled_accounting_is_asked_once(slurm: FakeSlurm, client: SlurmClient) -> None:
    """If accounting is disabled, scontrol is asked, and sacct is not called again."""
    slurm.answers("sacct", err="Slurm accounting storage is disabled", rc=1)
    slurm.answers(
        "scontrol",
        "JobId=7 JobName=x JobState=COMPLETED Reason=None NodeList=n1 "
        "SubmitTime=2026-01-02T03:04:05 StartTime=2026-01-02T03:05:05",
    )
    for _ in range(2):
        state = client.job_states(["7"])["7"]
        assert (state.kind, state.raw, state.nodes) == ("ended", "COMPLETED", "n1")
    assert slurm.commands() == ["squeue", "sacct", "scontrol", "squeue", "scontrol"]


def test_accounting_and_scontrol_name_the_job(slurm: FakeSlurm, client: SlurmClient) -> None:
    """As squeue does, so that a job of another name is not taken for ours; sacct has a comment only
    where the site stores it."""
    slurm.answers("sacct", JOB.format("FAILED").replace("run=r", ""))
    state = client.job_states(["7"])["7"]
    assert (state.name, state.comment) == ("ours", "")
    assert slurm.calls()[-1].endswith("Submit,Start,JobName,Comment")
    slurm.answers("sacct", "")
    shown = "JobId=7 JobName=ours JobState=FAILED NodeList=n1 Comment=clustersmoke run=r phase=p"
    for text in (shown, f"{shown} Power="):
        slurm.answers("scontrol", text)
        state = client.job_states(["7"])["7"]
        assert (state.name, state.comment) == ("ours", "clustersmoke run=r phase=p")


OURS = ("clustersmoke-r-p", "clustersmoke run=r phase=p token=a")


@pytest.mark.parametrize(
    ("name", "comment", "is_ours"),
    [
        (OURS[0], OURS[1], True),
        (OURS[0], "", True),  # most sites' accounting has no comments
        ("train-llm", "", False),
        (OURS[0], OURS[1].replace("token=a", "token=b"), False),
    ],
)
def test_record_of_another_job_in_accounting_is_not_how_ours_ended(
    name: str, comment: str, is_ours: bool, slurm: FakeSlurm, client: SlurmClient
) -> None:
    """A Slurm that was set up anew, with its old database, gives the ids of old jobs again; of ours
    there is no record yet, and scontrol is asked."""
    slurm.answers("sacct", f"7|FAILED|None|n1|2020-01-02T03:04:05|Unknown|{name}|{comment}\n")
    shown = "JobId=7 JobName={} JobState=COMPLETED NodeList=n2 Comment={}"
    slurm.answers("scontrol", shown.format(*OURS))
    state = client.job_states(["7"], {"7": OURS})["7"]
    assert state.raw == ("FAILED" if is_ours else "COMPLETED")


def test_job_that_no_command_knows_is_unknown(slurm: FakeSlurm, client: SlurmClient) -> None:
    """A job that squeue, sacct and scontrol do not know is unknown."""
    slurm.answers("scontrol", err="slurm_load_jobs error: Invalid job id specified", rc=1)
    assert client.job_states(["7"])["7"].kind == "unknown"


def test_task_that_was_cancelled_before_it_started_is_unknown(
    slurm: FakeSlurm, client: SlurmClient
) -> None:
    """scontrol then finds no such task, in words of its own and on stdout."""
    slurm.answers("scontrol", "Job 7_1 not found\n", rc=1)
    assert client.job_states(["7_1"])["7_1"].kind == "unknown"


def test_one_scontrol_for_all_tasks_of_an_array_that_squeue_does_not_list(
    slurm: FakeSlurm, client: SlurmClient
) -> None:
    """After Ctrl-C these are all that had not started: a call for each took a second. The record
    of the array itself has no number of a task, but one that stands for none."""
    line = "JobId={} ArrayJobId=7 ArrayTaskId={} JobState=CANCELLED JobName=a Comment=c\n"
    slurm.answers("scontrol", line.format(7, 4294967294) + line.format(9, 1))
    states = client.job_states(["7_0", "7_1", "7_2"])
    assert [states[f"7_{task}"].kind for task in range(3)] == ["unknown", "ended", "unknown"]
    assert [call for call in slurm.calls() if "scontrol" in call] == ["scontrol -o show job 7"]


def test_tasks_are_asked_for_one_by_one_where_slurm_shows_several_on_one_line(
    slurm: FakeSlurm, client: SlurmClient
) -> None:
    """It may cut such a list short."""
    slurm.answers("scontrol", "JobId=7 ArrayJobId=7 ArrayTaskId=1-2%4 JobState=PENDING\n")
    assert {state.kind for state in client.job_states(["7_1", "7_2"]).values()} == {"pending"}
    asked = [call.split()[-1] for call in slurm.calls() if "scontrol" in call]
    assert asked == ["7", "7_1", "7_2"]


def test_silence_about_one_job_hides_no_other(slurm: FakeSlurm, client: SlurmClient) -> None:
    """squeue has answered, and scontrol does not."""
    slurm.answers("squeue", "7|RUNNING|None|n1|N/A|N/A|a|c\n")
    slurm.answers("scontrol", err="Unable to contact slurm controller", rc=1)
    assert [*client.job_states(["7", "8"])] == ["7"]


def test_jobs_of_a_run_are_listed_task_by_task(slurm: FakeSlurm, client: SlurmClient) -> None:
    """Those of an array that wait are one line of squeue otherwise, whose id is no job's."""
    lines = [f"7_{task}|clustersmoke-r-array-t|clustersmoke run=r array" for task in range(2)]
    slurm.answers("squeue", "\n".join([*lines, "8|x|a | b"]))
    listed = client.list_jobs()
    assert [*listed] == ["7_0", "7_1", "8"] and listed["8"] == ("x", "a | b")
    assert " -r " in slurm.calls()[-1]


STARTING = "Requested node configuration is not available"


@pytest.mark.parametrize("is_submitted", [False, True])
def test_controller_that_came_back_just_before_its_refusal_is_asked_again(
    slurm: FakeSlurm, client: SlurmClient, tmp_path: Path, is_submitted: bool
) -> None:
    """It may know its nodes now, and may have known none of them when it refused."""
    slurm.folder.joinpath("sbatch.answer").write_text(
        f"""if [ $(grep -c '^sbatch' "$FAKE_SLURM/calls") = 1 ]; then
              echo 'sbatch: error: Batch job submission failed: {STARTING}' >&2
              echo 1 > "$FAKE_SLURM/sbatch.rc"
            else echo 0 > "$FAKE_SLURM/sbatch.rc"; echo 7; fi\n"""
    )
    slurm.answers("scontrol", "NodeName=n1 State=IDLE CPUTot=8 Partitions=main\n")
    if is_submitted:
        assert client.submit(tmp_path / "batch.sh") == "7"
    else:
        assert client.test_only(tmp_path / "batch.sh", 10).accepted
    assert slurm.commands() == ["sbatch", "scontrol", "sbatch"]


@pytest.mark.parametrize("answer", ["UNKNOWN", ""])
def test_trial_submission_to_a_controller_that_is_starting_says_nothing(
    slurm: FakeSlurm, client: SlurmClient, tmp_path: Path, answer: str
) -> None:
    """It refuses whatever needs a node until it has heard of its nodes, or is away again."""
    slurm.answers("sbatch", err=f"sbatch: error: {STARTING}", rc=1)
    nodes = f"NodeName=n1 State={answer} CPUTot=8 Partitions=main\n"
    slurm.answers("scontrol", nodes if answer else "", rc=0 if answer else 1)
    trial = client.test_only(tmp_path / "batch.sh", 10)
    assert trial.accepted is None and trial.message.startswith("slurmctld has just started")


@pytest.mark.parametrize("command", ["squeue", "scontrol"])
def test_unreachable_controller_says_nothing_about_a_job(
    slurm: FakeSlurm, client: SlurmClient, command: str
) -> None:
    """An unreachable controller does not make a job unknown."""
    slurm.answers(command, err="Unable to contact slurm controller (connect failure)", rc=1)
    assert client.job_states(["7"]) == {}


def test_missing_command_says_nothing_about_a_job(tmp_path: Path) -> None:
    """Slurm's commands missing from PATH do not make a job unknown."""
    assert SlurmClient({"PATH": str(tmp_path)}).job_states(["7"]) == {}


@pytest.mark.parametrize("line", ["", "garbage", "7|RUNNING", "|||||", "x" * 10_000])
def test_malformed_lines_are_ignored(slurm: FakeSlurm, client: SlurmClient, line: str) -> None:
    """A warning in squeue's output does not hide the job's line."""
    slurm.answers("squeue", f"{line}\n{JOB.format('RUNNING')}\n")
    assert client.job_states(["7"])["7"].kind == "running"


def test_variables_of_an_outer_job_are_removed() -> None:
    """Variables of an enclosing allocation do not reach our jobs; SLURM_CONF does."""
    environ = {
        "SLURM_CONF": "/c",
        "SLURM_JOB_ID": "1",
        "SLURM_NTASKS": "9",
        "SBATCH_PARTITION": "p",
        "SRUN_CPUS_PER_TASK": "3",
        "SALLOC_X": "1",
        "PMI_RANK": "0",
        "PMIX_RANK": "0",
        "SUBMITIT_EXECUTOR": "slurm",
        "HOME": "/h",
        "MY_SLURM_THING": "kept",
    }
    assert slurm_client.clean_environ(environ) == {
        "SLURM_CONF": "/c",
        "HOME": "/h",
        "MY_SLURM_THING": "kept",
    }


def test_commands_run_in_their_own_session(slurm: FakeSlurm) -> None:
    """A Ctrl-C at the terminal cannot interrupt them."""
    SlurmClient(slurm.environ).cancel("7")
    assert int((slurm.folder / "scancel.sid").read_text()) != os.getsid(0)


def test_hanging_command_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that never answers is given up after a timeout."""
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!/bin/sh\nexec sleep {PATIENCE_S}\n")
    squeue.chmod(0o755)
    monkeypatch.setattr(slurm_client, "COMMAND_TIMEOUT_S", 0.2)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    begun = time.monotonic()
    assert SlurmClient(dict(os.environ)).job_states(["7"]) == {}
    assert time.monotonic() - begun < PATIENCE_S


@pytest.mark.parametrize("reason", sorted(slurm_jobs.HELD))
def test_job_requeued_after_a_failed_launch_is_held(
    reason: str, slurm: FakeSlurm, client: SlurmClient
) -> None:
    """It is in the queue but will not start by itself."""
    slurm.answers("squeue", f"7|PENDING|{reason}||2026-01-02T03:04:05|2026-01-02T03:06:05|ours|\n")
    state = client.job_states(["7"])["7"]
    assert (state.kind, state.raw, state.started) == ("held", "PENDING", None)


def test_completing_job_with_a_failed_node_has_ended(slurm: FakeSlurm, client: SlurmClient) -> None:
    """Its remaining processes on other nodes may take long to end. A COMPLETING job without a
    failed node is still running."""
    slurm.answers("squeue", JOB.format("COMPLETING").replace("None", "NodeDown"))
    state = client.job_states(["7"])["7"]
    assert (state.kind, state.raw) == ("ended", "NODE_FAIL")
    slurm.answers("squeue", JOB.format("COMPLETING"))
    assert client.job_states(["7"])["7"].kind == "running"
