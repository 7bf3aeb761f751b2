"""Who wrote a line of a log and when; errors that a run survived, and what its processes print as
it ends, are not failures."""

from __future__ import annotations

import pytest

from pytest_clustersmoke.diagnose.log_lines import (
    Time,
    host_of_line,
    last_time_in,
    rank_of_line,
)
from tests.diagnose.logs import TRACEBACK, diagnosed, ids, primary

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
SUCCESS = ':::MLLOG {"key": "run_stop", "metadata": {"lineno": 957, "status": "success"}}\n'
HEARTBEAT = (
    "WARNING:torch.distributed.elastic.rendezvous.dynamic_rendezvous:The node 'n1_78_0' has failed "
    "to send a keep-alive heartbeat to the rendezvous '2092' due to an error of type "
    "RendezvousTimeoutError.\n"
)
NOTE = "slurmstepd: error: Exceeded job memory limit at some point.\n"
STEPS = "".join(f"step {number} loss 0.7\n" for number in range(3))


@pytest.mark.parametrize(
    ("line", "time"),
    [
        ("[2026-04-22 21:34:20] x", (4, 22, 21, 34, 20.0)),
        ("*** JOB 7 ON n CANCELLED AT 2026-01-02T03:04:05 DUE TO", (1, 2, 3, 4, 5.0)),
        ("2026-01-02T03:04:05.25Z stderr F x", (1, 2, 3, 4, 5.25)),
        ("[rank1]:[E626 06:24:44.5 ProcessGroupNCCL.cpp:616]", (6, 26, 6, 24, 44.5)),
        ("E0325 20:57:27.620000 2606 torch/x.py:869]", (3, 25, 20, 57, 27.62)),
        ("  time      : 2024-09-09_09:36:56", (9, 9, 9, 36, 56.0)),
        ("Nov 21 20:32:39 node7 kernel: NVRM", (11, 21, 20, 32, 39.0)),
        ("2026-13-01 10:00:00", None),
        ("no time 12:00", None),
    ],
)
def test_time_of_a_line(line: str, time: Time | None) -> None:
    """Every stamp that torch, NCCL, Slurm, Kubernetes and the kernel write."""
    assert last_time_in(line) == time


@pytest.mark.parametrize(
    ("line", "rank", "host"),
    [
        ("[rank12]: x", 12, None),
        ("[default0]:[rank3]: x", 3, None),
        ("[default0]: x", None, None),
        ("3: x", None, None),
        ("[Rank 3] Watchdog caught", None, None),
        ("[PG ID 0 PG GUID 0(default_pg) Rank 1] x", 1, None),
        ("[PG ID 1 PG GUID 7(mesh_tp) Rank 1] x", None, None),
        ("0: node-1:71:72 [0] init.cc:7 NCCL WARN x", None, "node-1"),
        ("node1:71:72 [0] x", None, None),
        ("Nov 21 20:32:39 node7 kernel: NVRM", None, "node7"),
    ],
)
def test_rank_and_host_of_a_line(line: str, rank: int | None, host: str | None) -> None:
    """Only what is certain: a label from srun, or from torchrun within a node, is not a rank."""
    assert (rank_of_line(line), host_of_line(line)) == (rank, host)


@pytest.mark.parametrize(
    "success",
    [
        SUCCESS,
        "Training complete. Model saved.\n",
        "training finished\n",
        "Finished training.\n",
        "{'train_runtime': 1204.1, 'train_loss': 0.71}\n",
        "  train_runtime            = 0:20:04.11\n",
        "`Trainer.fit` stopped: `max_epochs=3` reached.\n",
        "[2024-01-01 00:00:00,000] [INFO] [launch.py:347:main] Process 6781 exits successfully.\n",
        "# Out of bounds values : 0 OK\n",
    ],
)
def test_error_before_success_was_survived(success: str) -> None:
    """Whoever reports the success."""
    assert diagnosed(OOM + TRACEBACK.format("") + STEPS + success) == []


@pytest.mark.parametrize("end", [HEARTBEAT, "ConnectionResetError: [Errno 104] x\n"])
def test_noise_at_the_end_follows_only_from_failures(end: str) -> None:
    """After success it is nothing, also in another log of the job; otherwise it is reported."""
    assert diagnosed(SUCCESS + end) == []
    assert diagnosed(SUCCESS, end) == []
    assert len(diagnosed(STEPS + end)) == 1


@pytest.mark.parametrize("before", [STEPS, SUCCESS, "Epoch 3/3\n", "done\n"])
def test_memory_note_alone_is_not_a_failure(before: str) -> None:
    """Slurm also adds it to jobs that succeed; after nothing else it is all there is to report."""
    assert diagnosed(before + NOTE) == []
    assert primary(diagnosed(NOTE)) == ["slurm_memory_reached"]


def test_memory_note_is_the_cause_of_a_job_that_was_killed() -> None:
    """Slurm's older words name no process."""
    findings = diagnosed(STEPS + NOTE + "srun: error: n1: task 0: Killed\n")
    assert primary(findings) == ["slurm_memory_reached"]


@pytest.mark.parametrize(
    "after",
    [
        "srun: error: n1: task 3: Exited with exit code 1\n",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n",
        "OSError: [Errno 28] No space left on device\n",
        TRACEBACK.format(""),
        "mylib.SomeError: labels are 7, 9\n",
    ],
)
def test_failure_after_success_brings_everything_back(after: str) -> None:
    """One rank's success is not the job's."""
    assert "cuda_oom" in ids(diagnosed(OOM + STEPS + SUCCESS + after))


def test_launcher_that_reported_a_failure_is_never_silent() -> None:
    """A later step of the same job may succeed."""
    launcher = "mpirun noticed that process rank 3 with PID 9 on node n1 exited on signal 6 (A).\n"
    assert ids(diagnosed(launcher + STEPS + SUCCESS)) == ["torchrun_child_failed"]


@pytest.mark.parametrize(
    "word",
    [
        "OOM detected, reducing batch size to 8",
        "Trying micro batch size 16",
        "Skipping batch",
        "skipping this sample",
        "Ignored the error",
        "dropping a corrupt record",
        "continuing without it",
        "will try again at the next checkpoint",
    ],
)
def test_error_that_the_program_caught_was_survived(word: str) -> None:
    """If it goes on: the log need not reach its end."""
    assert diagnosed(f"{word}\n" + OOM + STEPS) == []
    assert primary(diagnosed(f"{word}\n" + OOM)) == ["cuda_oom"]
    assert primary(diagnosed(f"{word}\n" + OOM + STEPS + OOM)) == ["cuda_oom"]


def test_exception_that_the_program_caught_was_survived() -> None:
    """Also one that no signature knows."""
    caught = TRACEBACK.format("") + "Network error (ValueError), entering retry loop.\n"
    assert diagnosed(caught + STEPS) == []
    assert primary(diagnosed(caught)) == ["unknown"]


def test_progress_soon_after_an_error_proves_nothing() -> None:
    """The rank's stdout may have been written after its stderr; hundreds of lines later it is a
    program that went on."""
    assert primary(diagnosed(OOM + STEPS)) == ["cuda_oom"]
    assert diagnosed(OOM + STEPS * 300) == []


def steps(form: str, first: int, last: int) -> str:
    """Lines of progress, of which each names its step."""
    return "".join(form.format(n, n // 60, n % 60) for n in range(first, last))


CAUGHT = TRACEBACK.format("").replace("59, in <module>\n    main()", "59, in fit\n    load()")
CHAINED = (
    CAUGHT
    + "\nDuring handling of the above exception, another exception occurred:\n\n"
    + CAUGHT.replace("ValueError", "RuntimeError")
)
PLAIN = "step {0} loss 2.1\n"
STAMPED = "2026-11-02 10:{1:02d}:{2:02d},123 INFO train: epoch 1 batch {0}/900\n"
BAR = "\r {0}%| | {0}/100 [00:{2:02d}<01:00,  1.00it/s]"
LOGGED = "2026-11-02 10:00:30,001 ERROR train: cannot evaluate\n"


@pytest.mark.parametrize("error", [CAUGHT, CHAINED, CAUGHT[: CAUGHT.rindex("Value")] + OOM])
@pytest.mark.parametrize(
    ("form", "above"),
    [
        (PLAIN, ""),
        ("global_step={0} train_loss=2.1\n", ""),
        ("{{'loss': 2.1, 'epoch': 0.{0:02d}}}\n", ""),
        ("Epoch [1][{0}/900] lr: 0.1 loss: 2.1\n", ""),
        (" iteration {0:8d}/  500000 | lm loss: 2.1 |\n", ""),
        ("| epoch 001: {0} / 5000 loss=2.1\n", ""),
        (BAR, "\n"),
        (STAMPED, LOGGED),
    ],
)
def test_error_that_the_program_printed_and_went_on_after_was_survived(
    form: str, above: str, error: str
) -> None:
    """Its traceback begins in a function, not where the process does, and more steps follow."""
    before = "x" * 9000 + "\n" if form in (BAR, STAMPED) else ""
    before += steps(form, 1, 30) + above + error
    assert diagnosed(before + steps(form, 31, 36)) == []
    assert len(diagnosed(before + steps(form, 31, 33))) >= 1
    assert len(diagnosed(before)) >= 1


@pytest.mark.parametrize(
    "log",
    [
        steps(PLAIN, 1, 30) + TRACEBACK.format("") + steps(PLAIN, 30, 90),
        steps(PLAIN, 1, 900) + CAUGHT + steps(PLAIN, 900, 999),
        CAUGHT + steps(PLAIN, 1, 90),
        steps(BAR, 1, 30) + "\n" + CAUGHT + steps(PLAIN, 1, 30),
        steps(BAR, 1, 30) + "\n" + CAUGHT + steps(PLAIN, 100, 200),
        LOGGED + CAUGHT + steps(STAMPED, 1, 30),
        steps(PLAIN, 1, 30) + CHAINED.replace("fit", "<module>") + steps(PLAIN, 30, 90),
    ],
    ids=[
        "ended",
        "held-back",
        "all-held-back",
        "before-the-bar",
        "other-bar",
        "stamped-before",
        "chained",
    ],
)
def test_steps_that_may_have_come_before_the_error_prove_nothing(log: str) -> None:
    """A process that ends writes what its stdout still held back; so does one that printed the
    error and then gave up."""
    assert primary(diagnosed(log)) == ["unknown"]


def test_exception_after_one_that_was_survived_is_the_cause() -> None:
    """The first of a log is not the only one."""
    fatal = TRACEBACK.format("").replace("ValueError", "KeyError")
    survived = steps(PLAIN, 1, 30) + CAUGHT + steps(PLAIN, 30, 120)
    (finding,) = diagnosed(survived + fatal)
    assert "KeyError" in finding.cause
    words = TRACEBACK.format("") + "skipping this batch\n" + steps(PLAIN, 1, 90)
    assert diagnosed(words) == []
    (finding,) = diagnosed(words + fatal)
    assert "KeyError" in finding.cause
    assert primary(diagnosed(TRACEBACK.format("") + steps(PLAIN, 1, 700) + fatal)) == ["unknown"]
    slurm = "slurmstepd: error: no such plugin\n", "srun: error: n2: a task is gone\n"
    assert diagnosed(slurm[0] + SUCCESS) == []
    assert primary(diagnosed(slurm[0] + SUCCESS + slurm[1])) == ["unknown"]


@pytest.mark.parametrize(
    "head",
    [
        '  File "/usr/lib/python3.10/multiprocessing/util.py", line 300, in _run_finalizers\n',
        '  File "/usr/lib/python3.11/weakref.py", line 667, in _exitfunc\n',
    ],
)
def test_finalizer_is_not_a_cause(head: str) -> None:
    """Python prints its error and ends as it would have."""
    text = TRACEBACK.format("").splitlines(keepends=True)
    assert diagnosed(text[0] + head + "    finalizer()\n" + "".join(text[1:])) == []
    assert diagnosed("Error in atexit._run_exitfuncs:\n" + TRACEBACK.format("")) == []


@pytest.mark.parametrize("end", ["Training finished\n", "[rank1]: training finished\n", SUCCESS])
def test_success_of_others_is_not_that_of_the_rank_that_failed(end: str) -> None:
    """torch labels the traceback of an exception that ended its rank; whoever prints without a
    label is another one."""
    log = TRACEBACK.format("[rank0]: ") + "[rank1]: step 4 loss 2\n[rank1]: step 5 loss 2\n"
    assert primary(diagnosed(log + end)) == ["unknown"]
    oom = "[rank0]: " + OOM + "[rank1]: step 4 loss 2\n" * 600
    assert primary(diagnosed(oom + end)) == ["cuda_oom"]


@pytest.mark.parametrize(
    "end",
    [
        "[rank0]: training finished\n",
        "# Out of bounds values : 0 OK\n",
        "INFO:torch.distributed.elastic.agent.server.api:[default] worker group successfully "
        "finished. Waiting 300 seconds for other agents to finish.\n",
    ],
)
def test_success_of_the_rank_or_of_all_counts(end: str) -> None:
    """A program may label its own lines; a launcher speaks of all ranks."""
    assert diagnosed(TRACEBACK.format("[rank0]: ") + end) == []


def test_rank_that_goes_on_under_its_own_label_survived() -> None:
    """Each rank is judged by its own lines."""
    caught = TRACEBACK.format("[rank0]: ") + "[rank0]: skipping this batch\n"
    steps = "[rank{0}]: step 4 loss 2\n[rank{0}]: step 5 loss 2\n"
    assert diagnosed(caught + steps.format(0)) == []
    assert diagnosed(caught + STEPS) == []
    assert primary(diagnosed(caught + steps.format(1))) == ["unknown"]


def test_warning_of_torch_with_a_label_ends_no_rank() -> None:
    """torch also labels what it logs; the success that a program prints has no label."""
    log = "[rank0]:[E1121 20:20:27.1 x.cpp:1] " + OOM
    assert diagnosed(log + STEPS + "training finished\n") == []
    assert len(diagnosed(log + STEPS + "[rank1]: training finished\n")) == 1


PORT = "node1:71:72 [0] NCCL WARN NET/IB : {0} Got async event : port {1}\n"
FLAP = PORT.format("mlx5_0:1", "error") + PORT.format("mlx5_0:1", "active")


def test_port_that_came_back_is_not_a_failure() -> None:
    """If the job goes on after it, in the same log or as another one shows."""
    assert diagnosed(STEPS + FLAP + STEPS) == []
    assert diagnosed(FLAP, STEPS) == []
    assert diagnosed(FLAP + SUCCESS) == []


@pytest.mark.parametrize(
    "log",
    [
        STEPS + FLAP,
        FLAP + PORT.format("mlx5_0:1", "error") + STEPS,
        PORT.format("mlx5_0:1", "error") + PORT.format("mlx5_1:1", "active") + STEPS,
        FLAP.replace("node1", "node2", 1) + STEPS,
        PORT.format("mlx5_0:1", "error") + STEPS,
        FLAP + "node1:71:72 [0] NCCL WARN NET/IB : mlx5_0:1 async fatal event: CQ error\n" + STEPS,
    ],
)
def test_port_that_did_not_come_back_is_a_failure(log: str) -> None:
    """Nor if another port did, or the job does not go on."""
    assert primary(diagnosed(log)) == ["ib_port_error"]


def test_port_that_came_back_explains_what_failed_of_it() -> None:
    """But not an exception of the program."""
    completion = "node1:1:2 [0] NCCL WARN NET/IB : Got completion with error 12, opcode 0\n"
    assert ids(diagnosed(FLAP + STEPS + completion))[0] == "ib_port_error"
    assert ids(diagnosed(FLAP + STEPS + TRACEBACK.format(""))) == ["unknown"]
    assert ids(diagnosed(FLAP + STEPS + OOM)) == ["cuda_oom"]


def test_progress_shows_that_a_warning_was_one() -> None:
    """NCCL goes on over TCP if libfabric has no adapter."""
    warning = "node1:55:60 [0] NCCL WARN NET/OFI No eligible providers were found\n"
    assert diagnosed(warning + STEPS) == []
    assert primary(diagnosed(warning)) == ["ofi_no_provider"]
    folder = (
        "slurmstepd: error: couldn't chdir to `/root': Permission denied: going to /tmp instead\n"
    )
    assert diagnosed(folder + STEPS) == []
    assert primary(diagnosed(folder)) == ["job_directory_missing"]
    other = "node1:55:60 [0] misc/nvmlwrap.cc:183 NCCL WARN nvmlDeviceGetPciInfo() failed: x\n"
    affinity = "slurmstepd: error: task_g_set_affinity: Operation not permitted\n"
    assert diagnosed(other + STEPS) == diagnosed(affinity + STEPS) == []
    assert primary(diagnosed("srun: error: n2: a task is gone\n" + STEPS)) == ["unknown"]
    assert diagnosed(other + STEPS + SUCCESS + other) == []
    assert primary(diagnosed(other)) == primary(diagnosed(other + STEPS + other)) == ["unknown"]


def test_server_that_answers_again_is_not_a_failure() -> None:
    """If the job goes on; a job that still waits does so for that server."""
    stuck = "[  207.9] nfs: server 10.1.0.{} not responding, still trying\n"
    answers = "[  307.9] nfs: server 10.1.0.{} OK\n"
    assert diagnosed(stuck.format(1) + answers.format(1), STEPS) == []
    assert primary(diagnosed(stuck.format(1), STEPS)) == ["nfs_not_responding"]
    assert primary(diagnosed(stuck.format(1) + answers.format(2), STEPS)) == ["nfs_not_responding"]
    assert primary(diagnosed(stuck.format(1) + answers.format(1))) == ["nfs_not_responding"]


@pytest.mark.parametrize("end", ["a", "b"])
def test_many_faults_are_never_all_over(end: str) -> None:
    """What is not counted any more may still be wrong."""
    faults = "".join(PORT.format(f"mlx5_{number}:1", "error") for number in range(1200))
    back = "".join(PORT.format(f"mlx5_{number}:1", "active") for number in range(1200))
    log = faults + back + STEPS if end == "a" else (faults + back) * 2 + STEPS
    assert primary(diagnosed(log)) == ["ib_port_error"]
