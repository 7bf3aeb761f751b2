"""Errors that a run survived, and what its processes print as it ends, are not failures."""

from __future__ import annotations

import pytest

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
    "success",
    [
        SUCCESS,
        "Training complete. Model saved.\n",
        "training finished\n",
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


@pytest.mark.parametrize("word", ["OOM detected, reducing batch size to 8", "Skipping batch"])
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
