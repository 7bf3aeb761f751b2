"""Texts that are similar to a signature's, and how each is classified."""

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
def test_both_precisions_are_named(text: str, cause: str) -> None:
    """The cause names both, whatever the operation calls them."""
    (finding,) = diagnosed(f"RuntimeError: {text}\n")
    assert finding.id == "dtype_mismatch_matmul" and cause in finding.cause


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
def test_labels_and_devices_are_not_a_precision_mismatch(text: str) -> None:
    """Integers instead of floats, and a tensor on another device, are other mistakes."""
    assert "dtype_mismatch_matmul" not in ids(diagnosed(f"RuntimeError: {text}\n"))


def test_missing_segment_is_not_a_full_dev_shm() -> None:
    """NCCL attaches to its peer's segment: if that is gone, /dev/shm still has room."""
    text = (
        "node1:71:72 [0] misc/shmutils.cc:129 NCCL WARN Error while attaching to shared memory "
        "segment /dev/shm/nccl-glnlGK (size 14156128), error: No such file or directory (2)\n"
    )
    assert "shm_no_space" not in ids(diagnosed(text))


@pytest.mark.parametrize("program", ["torchrun", "python", "python3.11", "accelerate", "srun"])
def test_missing_program_is_named(program: str) -> None:
    """In bash's message, with or without the script's line, and in other shells'."""
    for text in ("bash: {}: command not found", "job.sh: line 9: {}: command not found"):
        (finding,) = diagnosed(text.format(program) + "\n")
        assert finding.id == "program_missing" and f"program {program}" in finding.cause
    assert primary(diagnosed(f"sh: 1: /opt/env/bin/{program}: not found\n")) == ["program_missing"]


def test_unresolved_name_is_not_a_cause_next_to_a_known_one() -> None:
    """It is why the hub cannot be reached; alone it is the cause."""
    name = "socket.gaierror: [Errno -3] Temporary failure in name resolution\n"
    hub = "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and x.\n"
    assert primary(diagnosed(name + hub)) == ["hub_unreachable"]
    (finding,) = diagnosed(name)
    assert finding.id == "host_unknown" and "Temporary failure in name resolution" in finding.cause


def test_missing_device_of_a_peer_is_not_a_wrong_local_rank() -> None:
    """NCCL imports a peer's memory: the process does not see that GPU, or IMEX does not."""
    warn = "n1:9:9 [0] transport/p2p.cc:275 NCCL WARN Cuda failure 101 'invalid device ordinal'\n"
    last = "[rank0]: Last error:\n[rank0]: Cuda failure 101 'invalid device ordinal'\n"
    assert primary(diagnosed(warn + last)) == ["p2p_import"]
    fabric = "n1:9:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] via P2P/MNNVL\n"
    assert primary(diagnosed(fabric + warn + last)) == ["mnnvl_import"]
    short = warn.replace("transport/", "")
    assert primary(diagnosed(fabric + short + last)) == ["mnnvl_import"]
    assert primary(diagnosed("RuntimeError: CUDA error: invalid device ordinal\n")) == [
        "invalid_device_ordinal"
    ]


def test_port_of_slurmd_is_not_the_controller() -> None:
    """The node that did not answer is named."""
    timeout = "Socket timed out on send/recv operation\n"
    (finding,) = diagnosed(
        f"srun: error: slurm_receive_msgs: [[n7.example]:6818] failed: {timeout}"
    )
    assert finding.id == "slurmd_unreachable" and finding.hosts == ("n7.example",)
    closed = "slurm_receive_msgs: [[n7]:6818] failed: Zero Bytes were transmitted or received\n"
    assert ids(diagnosed(closed)) == ["slurmd_unreachable"]
    (finding,) = diagnosed(f"sbatch: error: Batch job submission failed: {timeout}")
    assert finding.id == "slurm_controller"


def test_name_that_ssh_cannot_resolve_is_not_a_key() -> None:
    """The next step is about the name."""
    (finding,) = diagnosed("ssh: Could not resolve hostname node9: Name or service not known\n")
    assert finding.id == "host_unknown" and "name node9" in finding.cause
    assert "getent hosts" in finding.fix


def test_name_that_mpirun_cannot_resolve_is_the_cause_of_its_lost_daemon() -> None:
    """mpirun starts its daemons over ssh."""
    ssh = "ssh: Could not resolve hostname n9: Temporary failure in name resolution\n"
    orte = "ORTE was unable to reliably start one or more daemons.\n"
    assert primary(diagnosed(ssh + orte)) == ["host_unknown"]
    assert primary(diagnosed(orte)) == ["mpi_daemon_lost"]


def test_network_below_mpi_that_cannot_be_opened_is_not_a_wrong_mpirun() -> None:
    """MPICH's error stack names the call of libfabric, below the call of MPI."""
    stack = "Fatal error in PMPI_Init: Other MPI error, error stack:\nMPID_Init(495)......:\n"
    call = "create_vni_context(1216)....: OFI EP enable failed (ofi_init.c:1216:x:No space left)\n"
    (finding,) = [each for each in diagnosed(stack + call) if each.primary]
    assert finding.id == "mpi_ofi_init" and "No space left" in finding.cause
    assert primary(diagnosed(stack)) == ["mpi_init_failed"]


def test_plugin_that_finds_no_adapter_is_the_cause_of_a_missing_network() -> None:
    """NCCL only says that no plugin could be initialised."""
    plugin = "n1:1:2 [0] init:2 NCCL WARN NET/OFI OFI fi_getinfo() call failed: No data available\n"
    nccl = "n1:1:2 [0] plugin/net.cc:338 NCCL WARN Failed to initialize any NET plugin\n"
    findings = diagnosed(plugin + nccl + "RuntimeError: NCCL error: internal error\n")
    assert findings[0].id == "ofi_no_provider"
    assert primary(diagnosed(nccl)) == ["nccl_net_missing"]


def test_rank_that_reached_a_barrier_is_not_the_culprit() -> None:
    """Rank 0 names the one that did not; the others only refer to rank 0."""
    reached = (
        "[rank1]: RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors "
        "while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.\n"
    )
    failed = "[rank0]: RuntimeError: [Rank 0]: Rank 2 failed to pass monitoredBarrier in 4000 ms\n"
    findings = diagnosed(reached, failed)
    assert primary(findings) == ["monitored_barrier"] and findings[0].ranks == (2,)
    assert [finding.id for finding in findings if not finding.primary] == [
        "monitored_barrier_given_up"
    ]


def test_limit_that_slurm_names_is_reported() -> None:
    """From its two lines, the one with the limit's name."""
    text = (
        "sbatch: error: QOSMaxSubmitJobPerUserLimit\n"
        "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy\n"
    )
    (finding,) = diagnosed(text)
    assert finding.id == "slurm_policy" and "limit QOSMaxSubmitJobPerUserLimit" in finding.cause


def test_failure_under_mnnvl_is_named_however_long_before_it_was_set_up() -> None:
    """A communicator says once that it uses NVLink between nodes; many channels follow."""
    comm = (
        "n1:8:8 [1] NCCL INFO comm 0x1 rank 1 nRanks 8 nNodes 2 localRanks 4 localRank 1 MNNVL {}\n"
    )
    channels = "n1:8:8 [1] NCCL INFO Channel 00/0 : 1[1] -> 2[2] via P2P/CUMEM\n" * 5000
    failed = "n1:8:8 [1] transport/p2p.cc:281 NCCL WARN Cuda failure 101 'invalid device ordinal'\n"
    assert primary(diagnosed(comm.format(1) + channels + failed)) == ["mnnvl_import"]
    assert primary(diagnosed(comm.format(0) + channels + failed)) == ["p2p_import"]
    assert primary(diagnosed(comm.format(1), failed)) == ["p2p_import"]


@pytest.mark.parametrize("name", ["mpirun", "mpiexec", "prterun", "orterun"])
@pytest.mark.parametrize(
    "words",
    [
        "{} noticed that process rank 2 with PID 9 on node n1 exited on signal 6 (Aborted).",
        "{} noticed that process rank 2 with PID 9 on node n1 exited on\nsignal 6 (Aborted).",
        "{} noticed that process rank 2 with PID 9 on node n1 exited \non signal 6 (Aborted).",
        "{} noticed that process rank 2 with PID 9 on node\nn1.example exited on signal 6 (A).",
        "{} has exited due to process rank 2 with PID 9 on node n1 exiting\nimproperly.",
        '{} has exited due to process rank 2 with PID 9 on\nnode n1 exiting without calling "f"',
        '{} has exited due to process rank 2 with PID 9 on node n1 calling\n"abort". This',
    ],
)
def test_mpi_launcher_reports_a_failed_rank_on_any_number_of_lines(name: str, words: str) -> None:
    """Its help texts are wrapped where the names end."""
    (finding,) = diagnosed(words.format(name) + "\n")
    assert finding.id == "torchrun_child_failed" and finding.ranks == (2,)
    assert finding.hosts[0].startswith("n1")


def test_consequences_in_an_error_file_are_not_causes() -> None:
    """torch's elastic agent also records the signal that ended a rank."""
    entry = '{{"message": {{"message": "{}", "extraInfo": {{}}}}}}\n'
    log = entry.format("SignalException: Process 12 got signal: 15")
    assert ids(diagnosed(log)) == ["rank_terminated"] and primary(diagnosed(log)) == []
    assert primary(diagnosed(log + entry.format("ValueError: x"))) == ["elastic_error"]


def test_aborted_communicator_is_a_consequence_unless_it_has_a_reason() -> None:
    """The reason may be one that no signature knows."""
    text = "[rank3]: torch.distributed.DistBackendError: NCCL communicator was aborted on rank 3."
    head = "[rank3]: Traceback (most recent call last):\n"
    assert primary(diagnosed(f"{head}{text}\n")) == []
    why = f"{head}{text} Original reason for failure was: the moon\n"
    assert primary(diagnosed(why)) == ["unknown"]


@pytest.mark.parametrize("line", ["the process was Killed", "Killed by user", "Hangup of modem 3"])
def test_word_of_a_shell_counts_only_as_a_whole_line(line: str) -> None:
    """`Killed` alone is what a shell prints."""
    assert diagnosed(f"step 3 loss 2\n{line}\n") == []


def test_monitor_that_a_script_ends_is_not_a_failure() -> None:
    """Healthy scripts terminate what they started."""
    line = "/var/spool/slurmd/job89/slurm_script: line 12:  4711 Terminated    nvidia-smi dmon\n"
    assert diagnosed(f"Training finished\n{line}") == []


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("python3 train.py", ["rank_killed"]),
        ("torchrun --nproc-per-node 8 train.py", ["rank_killed"]),
        ("nvidia-smi dmon -o DT > gpu.log", []),
        ("/usr/bin/nvidia-smi dmon", []),
        ("tail -f train.log", []),
    ],
)
@pytest.mark.parametrize("head", ["./run.sh: line 9:  4411", "bash:  4411", "bash: line 1: 4411"])
def test_shell_names_what_was_killed(head: str, command: str, found: list[str]) -> None:
    """A script ends its monitors by force, too."""
    assert ids(diagnosed(f"{head} Killed                  {command}\n")) == found


def test_line_between_others_counts_once() -> None:
    """Its neighbours may be of the same kind: each belongs to its own signature."""
    lines = "".join(f"n1: rank {rank} died from signal {9 + 2 * rank}\n" for rank in range(4))
    found = {finding.id: finding for finding in diagnosed(lines)}
    assert {name: finding.detail["lines"] for name, finding in found.items()} == {
        "rank_killed": 1,
        "rank_crashed": 1,
        "torchrun_child_failed": 2,
    }
    assert found["rank_crashed"].ranks == (1,)


def test_process_killed_at_the_limit_of_a_scheduler_is_a_consequence() -> None:
    """Of PBS and LSF as of Slurm."""
    killed = "run.sh: line 9: 4411 Killed                  python3 train.py\n"
    for text, name in [
        ("=>> PBS: job killed: walltime 3611 exceeded limit 3600\n", "batch_time_limit"),
        ("=>> PBS: job killed: vmem 33gb exceeded limit 32gb\n", "batch_memory_limit"),
        (
            "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\n",
            "batch_memory_limit",
        ),
    ]:
        assert primary(diagnosed(killed + text)) == [name]


STALL = (
    "[2021-02-02 21:19:07.345988: W horovod/common/stall_inspector.cc:105] One or more tensors "
    "were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for "
    "remainder of ranks for more than 60 seconds.\n"
)


@pytest.mark.parametrize(
    "ranks",
    [
        "Missing ranks:\n3: [allreduce.noname.12, allreduce.noname.13 ...]\n5: [broadcast.x]\n",
        "[1,0]<stderr>:Stalled ranks:\n[1,0]<stderr>:3!: [HorovodAllgather_0]\n"
        "[1,0]<stderr>:5: [HorovodAllreduce_grads_0]\n",
        "Stalled ops:HorovodAllreduce_gradients_AddN_1_0 [missing ranks: 3, 5]\n",
    ],
)
def test_log_that_ends_as_horovod_waits_is_a_hang(ranks: str) -> None:
    """Its ranks are those for which the others wait; if the job goes on, one was only slow."""
    steps = "".join(f"step {number} loss 2\n" for number in range(9))
    (finding,) = diagnosed(steps + STALL + ranks)
    assert (finding.id, finding.primary, finding.ranks) == ("horovod_stalled", True, (3, 5))
    assert diagnosed(steps + STALL + ranks + steps) == []
    shut = "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down.\n"
    assert ids(diagnosed(STALL + ranks + shut)) == ["horovod_stalled", "horovod_shut_down"]
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.\n"
    assert primary(diagnosed(oom + STALL + ranks)) == ["cuda_oom"]


def test_hint_of_torch_is_not_the_last_line() -> None:
    """An error of HIP or CUDA that no signature knows stands above it."""
    error = "RuntimeError: HIP error: the operation cannot be performed in the present state\n"
    hints = (
        "HIP kernel errors might be asynchronously reported at some other API call, so the "
        "stacktrace below might be incorrect.\n"
        "For debugging consider passing AMD_SERIALIZE_KERNEL=3\n"
        "Compile with `TORCH_USE_HIP_DSA` to enable device-side assertions.\n"
    )
    (finding,) = diagnosed(error + hints)
    assert (finding.id, finding.primary) == ("unknown", True)
    assert error.strip() in finding.cause
