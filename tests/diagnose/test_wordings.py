"""Texts that are close to a signature's, and what each of them is taken for."""

from __future__ import annotations

import pytest

from tests.diagnose.logs import diagnosed, ids, primary


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            "expected m1 and m2 to have the same dtype, but got: float != c10::BFloat16",
            "float != c10::BFloat16",
        ),
        ("expected scalar type Float but found BFloat16", "Float but found BFloat16"),
        (
            "Input type (float) and bias type (c10::BFloat16) should be the same",
            "got float, for weights of c10::BFloat16",
        ),
        (
            "Input type (torch.cuda.FloatTensor) and weight type (torch.cuda.HalfTensor) should be "
            "the same",
            "got torch.cuda.FloatTensor, for weights of torch.cuda.HalfTensor",
        ),
    ],
)
def test_two_precisions_are_named(text: str, cause: str) -> None:
    """The cause says which met which, whatever the operation calls them."""
    (found,) = diagnosed(f"RuntimeError: {text}\n")
    assert found.id == "dtype_mismatch_matmul" and cause in found.cause


@pytest.mark.parametrize(
    "text",
    [
        "expected scalar type Long but found Float",
        "expected scalar type Int but found Long",
        "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the "
        "same",
        "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the "
        "same",
    ],
)
def test_labels_and_devices_are_no_precision(text: str) -> None:
    """Integers where floats were meant, and a tensor on another device, are other mistakes."""
    assert "dtype_mismatch_matmul" not in ids(diagnosed(f"RuntimeError: {text}\n"))


def test_a_segment_that_is_not_there_is_no_full_memory() -> None:
    """NCCL attaches to what its peer made: where that has gone, /dev/shm has room."""
    text = (
        "node1:71:72 [0] misc/shmutils.cc:129 NCCL WARN Error while attaching to shared memory "
        "segment /dev/shm/nccl-glnlGK (size 14156128), error: No such file or directory (2)\n"
    )
    assert "shm_no_space" not in ids(diagnosed(text))


@pytest.mark.parametrize("program", ["torchrun", "python", "python3.11", "accelerate", "srun"])
def test_a_program_that_is_missing_is_named(program: str) -> None:
    """In bash's words, which have the script's line or not, as in those of other shells."""
    for text in ("bash: {}: command not found", "job.sh: line 9: {}: command not found"):
        (found,) = diagnosed(text.format(program) + "\n")
        assert found.id == "program_missing" and f"program {program}" in found.cause
    assert primary(diagnosed(f"sh: 1: /opt/env/bin/{program}: not found\n")) == ["program_missing"]


def test_a_name_that_is_not_resolved_explains_no_known_cause() -> None:
    """It is what lies behind a hub that cannot be reached; alone it is the cause."""
    name = "socket.gaierror: [Errno -3] Temporary failure in name resolution\n"
    hub = "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and x.\n"
    assert primary(diagnosed(name + hub)) == ["hub_unreachable"]
    (found,) = diagnosed(name)
    assert found.id == "host_unknown" and "Temporary failure in name resolution" in found.cause


def test_a_rank_that_came_to_a_barrier_is_no_culprit() -> None:
    """Rank 0 names the one that did not; the others only tell of rank 0."""
    came = (
        "[rank1]: RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors "
        "while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.\n"
    )
    told = "[rank0]: RuntimeError: [Rank 0]: Rank 2 failed to pass monitoredBarrier in 4000 ms\n"
    found = diagnosed(came, told)
    assert primary(found) == ["monitored_barrier"] and found[0].ranks == (2,)
    assert [one.id for one in found if not one.primary] == ["monitored_barrier_given_up"]


def test_a_limit_that_slurm_names_is_told() -> None:
    """Of its two lines, the one with the limit's name."""
    text = (
        "sbatch: error: QOSMaxSubmitJobPerUserLimit\n"
        "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy\n"
    )
    (found,) = diagnosed(text)
    assert found.id == "slurm_policy" and "limit QOSMaxSubmitJobPerUserLimit" in found.cause
