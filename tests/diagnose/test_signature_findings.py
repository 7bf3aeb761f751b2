"""Causes come before their consequences, and an unknown cause is not guessed."""

from __future__ import annotations

import io

import pytest

from pytest_clustersmoke.diagnose import signature_search
from pytest_clustersmoke.diagnose.signature_file import shipped_signatures
from pytest_clustersmoke.diagnose.signature_findings import order_findings
from pytest_clustersmoke.diagnose.signature_search import SignatureSearch
from tests.diagnose.logs import KILLED, REMOTE, TRACEBACK, WATCHDOG, diagnosed, ids, primary

OOM = "[rank{0}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def test_killed_rank_comes_before_ranks_that_lost_it() -> None:
    """Although they logged first: the kill is the cause, with its rank and host."""
    findings = diagnosed(a=REMOTE.format(1, "20") + REMOTE.format(3, "21"), b=KILLED)
    assert primary(findings) == ["rank_killed"] and findings[0].id == "rank_killed"
    assert findings[0].ranks == (5,) and findings[0].hosts == ("node2",)
    assert set(ids(findings)[1:]) == {
        "nccl_peer_closed",
        "nccl_remote_error",
        "torchrun_child_failed",
    }
    lost = next(finding for finding in findings if finding.id == "nccl_peer_closed")
    assert lost.hosts == ("node1", "node3") and lost.evidence[0].file == "a.log"


def test_out_of_memory_kill_explains_the_killed_rank() -> None:
    """Slurm's message is the cause, wherever it is."""
    slurm = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks\n"
    assert primary(diagnosed(KILLED + slurm)) == ["slurm_oom"]
    assert primary(diagnosed(KILLED)) == ["rank_killed"]


def test_causes_are_ordered_by_time() -> None:
    """Across files by their stamps; a line without one takes that of the lines around it."""
    early = "[2026-11-21 20:00:00] step 1\n" + OOM.format(3)
    late = "Nov 21 21:00:00 node7 kernel: NVRM: Xid (PCI:0000:44:00): 79, off the bus\n"
    assert primary(diagnosed(a=late, b=early)) == ["cuda_oom", "gpu_ecc_xid"]
    assert primary(diagnosed(a=early, b=late)) == ["cuda_oom", "gpu_ecc_xid"]
    # Before a line of its own file that has one.
    assert primary(diagnosed(OOM.format(3) + late)) == ["cuda_oom", "gpu_ecc_xid"]


def test_without_times_files_and_lines_give_the_order() -> None:
    """As they were given."""
    full = "OSError: [Errno 28] No space left on device\n"
    assert primary(diagnosed(OOM.format(0) + full)) == ["cuda_oom", "disk_full"]
    assert primary(diagnosed(full, OOM.format(0))) == ["disk_full", "cuda_oom"]


def test_general_cause_counts_if_nothing_is_more_exact() -> None:
    """A watchdog's timeout is a cause by itself, but not next to an exact one."""
    assert primary(diagnosed(WATCHDOG.format(1, "10"))) == ["torch_watchdog_timeout"]
    findings = diagnosed(WATCHDOG.format(1, "10") + OOM.format(2))
    assert primary(findings) == ["cuda_oom"] and ids(findings) == [
        "cuda_oom",
        "torch_watchdog_timeout",
    ]


def test_interleaved_ranks_are_distinguished() -> None:
    """One finding for all ranks with the same error, each named once."""
    lines = [OOM.format(rank) for rank in (3, 0, 3, 7)] + [WATCHDOG.format(1, "59")]
    findings = diagnosed("".join(lines))
    assert [finding.ranks for finding in findings] == [(0, 3, 7), (1,)]
    assert findings[0].detail["lines"] == 4 and len(findings[0].evidence) == 4


def test_interleaved_tracebacks_are_separated_by_rank() -> None:
    """Lines of another rank inside a traceback do not belong to it."""
    mine = TRACEBACK.format("[rank4]: ").splitlines(keepends=True)
    other = TRACEBACK.replace("labels", "other").format("[rank2]: ").splitlines(keepends=True)
    mixed = [line for pair in zip(mine, other, strict=True) for line in pair]
    (finding,) = diagnosed("".join(mixed))
    assert finding.id == "unknown" and finding.ranks == (4,)
    assert "ValueError: labels are 7, 9 (/work/train.py:23, in main)" in finding.cause
    assert finding.evidence[0].line == len(mixed) - 1


@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "5: ", "[default1]:[rank3]: "])
def test_unknown_exception_is_quoted(prefix: str) -> None:
    """No guess: the first error, its place in the program and in the log."""
    findings = diagnosed("hello\n" + TRACEBACK.format(prefix))
    assert ids(findings) == ["unknown"] and findings[0].primary
    assert findings[0].cause.startswith(
        "unknown cause; the first error: ValueError: labels are 7, 9"
    )
    assert (findings[0].evidence[0].line, findings[0].evidence[0].file) == (7, "0.log")
    assert findings[0].ranks == ((3,) if "rank3" in prefix else ())


@pytest.mark.parametrize(
    "line",
    [
        "node1:71:72 [0] foo.cc:7 NCCL WARN something that nobody knows yet",
        "srun: error: something new",
        "slurmstepd: error: something new",
        "sbatch: error: Batch job submission failed: Something new",
    ],
)
def test_unknown_error_of_another_program(line: str) -> None:
    """A warning from NCCL or an error from Slurm is reported if nothing says more."""
    (finding,) = diagnosed(line + "\n")
    assert finding.id == "unknown" and line in finding.cause
    both = diagnosed(line + "\n" + TRACEBACK.format(""))
    assert ids(both) == ["unknown"] and "ValueError" in both[0].cause


def test_unknown_exception_comes_before_its_consequences() -> None:
    """The ranks that lost the one that raised are secondary, and so is a watchdog."""
    log = REMOTE.format(1, "20") + TRACEBACK.format("[rank4]: ") + WATCHDOG.format(1, "40")
    findings = diagnosed(log)
    assert primary(findings) == ["unknown"] and findings[0].ranks == (4,)
    assert "torch_watchdog_timeout" in ids(findings)[1:]


def test_first_unknown_error_is_from_the_first_rank_that_failed() -> None:
    """By time, across the logs of ranks."""
    stamp = "[2026-11-21 20:{0}:00] step 7\n"
    findings = diagnosed(
        a=stamp.format(30) + TRACEBACK.replace("labels", "late").format("[rank0]: "),
        b=stamp.format(10) + TRACEBACK.format("[rank1]: "),
    )
    assert ids(findings) == ["unknown"] and findings[0].ranks == (1,)


def test_known_exception_is_not_unknown() -> None:
    """The traceback of a known error, or of its wrapper, is not another cause."""
    head = 'Traceback (most recent call last):\n  File "t.py", line 1, in f\n'
    assert ids(diagnosed(head + OOM.format(1).removeprefix("[rank1]: "))) == ["cuda_oom"]
    nccl = (
        "torch.distributed.DistBackendError: NCCL error in: ../NCCLUtils.hpp:275, a new word\n"
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 10\n"
    )
    assert primary(diagnosed(head + nccl)) == ["duplicate_gpu"]


def test_next_line_does_not_make_an_exception_known() -> None:
    """torchrun's lines after a traceback do not make its exception a known one."""
    ended = "E1 torch/api.py:869] failed (exitcode: 1) local_rank: 5 (pid: 2) of binary: python\n"
    findings = diagnosed(TRACEBACK.format("") + ended)
    assert ids(findings) == ["unknown", "torchrun_child_failed"]


def test_many_lines_are_counted_up_to_a_bound() -> None:
    """A log that repeats a line a million times costs no memory, and the finding says so."""
    (finding,) = diagnosed(OOM.format(1) * 5000)
    assert finding.detail == {"lines": signature_search.MAX_COUNTED, "more": True}
    assert len(finding.evidence) == signature_search.MAX_KEPT
    assert [line.line for line in finding.evidence] == list(range(1, signature_search.MAX_KEPT + 1))


def test_exception_that_python_ignores_is_not_a_failure() -> None:
    """It comes from a finalizer; one after it counts."""
    ignored = "Exception ignored in: <function Pool.__del__ at 0x7f>\n" + TRACEBACK.format("")
    assert diagnosed(ignored) == []
    assert ids(diagnosed(ignored + TRACEBACK.format(""))) == ["unknown"]


def test_traceback_after_time_stamps() -> None:
    """Kubernetes puts its own stamp before each line."""
    lines = TRACEBACK.format("[rank6]: ").splitlines()
    log = "".join(
        f"2026-11-21T20:00:0{number}.123456789Z stderr F {line}\n"
        for number, line in enumerate(lines)
    )
    (finding,) = diagnosed(log)
    assert (
        finding.ranks == (6,) and "ValueError: labels are 7, 9 (/work/train.py:23" in finding.cause
    )


ENDED = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-21T{0}:00{1} ***\n"
LIMIT = " DUE TO TIME LIMIT"
CONNECT = (
    "torch.distributed.DistNetworkError: The client socket has timed out after 1800s while trying "
    "to connect to (10.0.0.1, 29500).\n"
)
IB = (
    "[2026-11-21 20:00:00] node1:71:72 [0] NCCL WARN NET/IB : Got completion from peer "
    "10.0.0.2<4711> with status=12 opcode=0 len=0 vendor err 129 (Recv)\n"
)


@pytest.mark.parametrize("late", [ENDED.format("23:40", LIMIT), CONNECT, IB])
def test_late_signature_is_not_a_cause_next_to_a_rank_failure(late: str) -> None:
    """The other ranks wait until a time limit, whatever stamps the lines have."""
    for logs in (late, TRACEBACK.format("[rank3]: ")), (TRACEBACK.format(""), late):
        findings = diagnosed(*logs)
        assert primary(findings) == ["unknown"] and "ValueError: labels" in findings[0].cause
        assert len(findings) == 2
    assert primary(diagnosed(late, OOM.format(3))) == ["cuda_oom"]
    # An exception after it is its consequence: the program raises it while it is ended.
    assert primary(diagnosed(late + TRACEBACK.format(""))) == primary(diagnosed(late))
    # Alone it is a cause, and a more exact one than a general signature.
    assert len(primary(diagnosed(late))) == 1
    assert primary(diagnosed(late + WATCHDOG.format(1, "10"))) == primary(diagnosed(late))
    assert primary(diagnosed(late + "srun: error: something new\n")) == primary(diagnosed(late))


def test_end_of_a_job_explains_only_kills_at_that_time() -> None:
    """A rank killed hours before somebody cancelled the job died by itself."""
    signal = " DUE to SIGNAL Terminated"  # as newer versions write
    for why, name in (
        (LIMIT, "slurm_time_limit"),
        ("", "slurm_cancelled"),
        (signal, "slurm_cancelled"),
    ):
        together = diagnosed(KILLED + ENDED.format("20:20", why))
        assert primary(together) == [name] and "rank_killed" in ids(together)
        assert primary(diagnosed(KILLED + ENDED.format("23:40", why))) == ["rank_killed"]


def test_traceback_after_a_progress_bar() -> None:
    """The bar has no line end; the text before the traceback is not a label of its lines."""
    bar = "\r  0%|      | 0/9 [00:00<?, ?it/s]\r 33%|###   | 3/9 [00:01<00:02, 3.0it/s]"
    (finding,) = diagnosed(bar + TRACEBACK.format(""))
    assert (
        finding.id == "unknown"
        and "ValueError: labels are 7, 9 (/work/train.py:23" in finding.cause
    )
    (finding,) = diagnosed("^C" + TRACEBACK.format(""))
    assert finding.id == "unknown"


@pytest.mark.parametrize("label", ["[rank0]: ", "3: ", "[default0]:[rank0]: "])
def test_labelled_traceback_after_a_progress_bar(label: str) -> None:
    """torch and srun label the lines, but not the bar that is still open."""
    bar = "\r  0%|      | 0/9 [00:00<?, ?it/s]"
    (finding,) = diagnosed(bar + TRACEBACK.format(label))
    assert "ValueError: labels are 7, 9 (/work/train.py:23" in finding.cause


@pytest.mark.parametrize("label", ["", "3: ", "node1: "])
def test_error_below_a_traceback_in_a_box(label: str) -> None:
    """As rich draws it, for accelerate and typer; srun labels each line."""
    box = (
        "\u256d\u2500\u2500 Traceback (most recent call last) \u2500\u2500\u256e\n"
        "\u2502 /work/train.py:23 in main   \u2502\n"
        "\u2570\u2500\u2500\u2500\u2500\u2500\u2500\u256f\n"
        "ValueError: labels are 7, 9\n"
        "E1101 12:00:00 launch failed\n"
    )
    (finding,) = diagnosed("".join(f"{label}{line}\n" for line in box.splitlines()))
    assert finding.id == "unknown" and "ValueError: labels are 7, 9" in finding.cause


def test_line_that_catches_an_error_is_not_that_error() -> None:
    """torch before 2.5 has no such name."""
    text = TRACEBACK.format("").replace(
        "ValueError: labels are 7, 9",
        "    except torch.OutOfMemoryError:\n"
        "AttributeError: module 'torch' has no attribute 'OutOfMemoryError'",
    )
    (finding,) = diagnosed(text)
    assert finding.id == "unknown" and "AttributeError" in finding.cause


def test_server_that_cannot_be_reached_is_no_node() -> None:
    """A firewall rejects what compute nodes ask of a hub."""
    text = (
        "OSError: [Errno 113] No route to host\n"
        "(MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Max retries "
        "exceeded with url: /x (Caused by NewConnectionError('<urllib3.connection.HTTPSConnection>"
        ": Failed to establish a new connection: [Errno 113] No route to host'))\"), '(Request)')\n"
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files\n"
    )
    assert primary(diagnosed(text)) == ["hub_unreachable"]


@pytest.mark.parametrize(
    "line",
    [
        'sample 17: "How do I fix CUDA out of memory in PyTorch?"',
        '{"text": "my laptop says out of memory and No space left on device"}',
        "Checking for EADDRINUSE on port 29500: free",
        "ECC Errors: aggregate uncorrectable ECC error encountered: 0",
        "WARNING: ModuleNotFoundError: No module named 'apex', using torch.nn.LayerNorm",
        "INFO: DUE TO TIME LIMIT handling enabled, will checkpoint at 03:55:00",
        "text: he said: MemoryError",
        'prompt: what does "Permission denied (publickey)" mean?',
        'The paper "No route to host: networks"',
        "Namespace(timeout=1800, backend='nccl', handle_oom=True)",
        "NCCL INFO GPU Direct RDMA Disabled for GPU 0 / HCA 1 (distance 9 > 5), read 0",
    ],
)
def test_mentions_of_failures_are_not_failures(line: str) -> None:
    """Datasets, settings and advice mention failures; a healthy job prints them."""
    assert diagnosed(line + "\n") == []


def test_name_missing_in_the_users_own_module_is_not_a_version_problem() -> None:
    """Only a module among the installed packages is."""
    message = "ImportError: cannot import name 'build' from 'utils' ({0}/utils.py)\n"
    head = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n'
    assert ids(diagnosed(head + message.format("/home/u"))) == ["unknown"]
    installed = message.format("/opt/lib/python3.11/site-packages")
    assert ids(diagnosed(head + installed)) == ["packages_do_not_fit"]


@pytest.mark.parametrize(
    "message",
    [
        "KeyboardInterrupt",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "torch.distributed.DistStoreError: Socket Timeout",
        "RuntimeError: Connection reset by peer",
    ],
)
def test_exceptions_of_victims_are_not_the_cause(message: str) -> None:
    """Although they were logged first: the exception of the rank that failed by itself counts."""
    victim = TRACEBACK.format("[rank0]: ").rsplit("ValueError", 1)[0] + message + "\n"
    findings = diagnosed(victim, TRACEBACK.format("[rank3]: "))
    assert primary(findings) == ["unknown"] and findings[0].ranks == (3,)
    assert len(findings) == 2


FULL = "[rank{0}]: OSError: [Errno 28] No space left on device\n"


def test_unknown_exception_is_not_hidden_by_a_later_cause() -> None:
    """What the same rank logs later may be a consequence: both are reported, by time."""
    findings = diagnosed(TRACEBACK.format("[rank3]: ") + FULL.format(3))
    assert primary(findings) == ["unknown", "disk_full"]
    assert findings[0].ranks == (3,) and "ValueError: labels are 7, 9" in findings[0].cause
    # In a log of that rank alone, its lines need no label.
    alone = SignatureSearch(shipped_signatures())
    text = TRACEBACK.format("") + FULL.format(3).removeprefix("[rank3]: ")
    alone.stream(io.BytesIO(text.encode()), "stderr.log", "n1", 3)
    assert primary(order_findings(alone)) == ["unknown", "disk_full"]


@pytest.mark.parametrize(
    "log",
    [
        FULL.format(3) + TRACEBACK.format("[rank3]: "),
        TRACEBACK.format("[rank3]: ") + FULL.format(4),
        TRACEBACK.format("") + FULL.format(3),
        FULL.format(3) + TRACEBACK.format("[rank3]: ") + FULL.format(3),
        TRACEBACK.format("[rank3]: ") + "[rank3]: step\n" * 600 + FULL.format(3),
        "2026-11-21 20:00:00,1 x\n"
        + TRACEBACK.format("[rank3]: ")
        + "2026-11-21 21:00:00,1 x\n"
        + FULL.format(3),
        TRACEBACK.format("[rank3]: ")
        + "[rank3]: \n[rank3]: During handling of the above exception, another exception "
        "occurred:\n" + FULL.format(3),
    ],
    ids=["behind", "other rank", "whose", "between", "went on", "an hour later", "handled"],
)
def test_exception_that_did_not_come_first_is_not_a_cause(log: str) -> None:
    """After a known cause, from another or an unknown rank, survived or handled."""
    assert primary(diagnosed(log)) == ["disk_full"]


@pytest.mark.parametrize(
    "line",
    [
        "mylib.DecodeError: frame 7 is cut short",
        "[rank3]: mylib.DecodeError: frame 7 is cut short",
        "3: mylib.DecodeError: frame 7 is cut short",
        "train.py: error: unrecognized arguments: --sede 7",
        "error: no configuration was given",
        "Error: no configuration was given",
    ],
)
@pytest.mark.parametrize(
    "behind", ["", "\n\n", "srun: error: node7: task 3: Exited with exit code 2\n"]
)
def test_error_without_a_traceback_is_reported(line: str, behind: str) -> None:
    """As the last line of a log, apart from lines about the end itself."""
    findings = diagnosed("step 1\nusage: train.py [-h]\n" + line + "\n" + behind)
    (cause,) = [finding for finding in findings if finding.primary]
    assert cause.id == "unknown" and cause.cause.endswith(line.split(": ", 1)[-1])
    assert (cause.evidence[0].line, cause.ranks) == (3, (3,) if "rank3" in line else ())


@pytest.mark.parametrize(
    "log",
    [
        "mylib.DecodeError: frame 7 is cut short\nstep 8\n",
        "ReconstructionError: 0.0173\n",
        "test error: 1.7e-3\n",
        "validation error: 3.1 %\n",
        "he said: mylib.DecodeError: frame 7\n",
        "step 9 error: 0.2 loss: 0.3\n",
    ],
)
def test_last_line_of_a_healthy_log_is_not_an_error(log: str) -> None:
    """Metrics, and errors after which the program continued."""
    assert diagnosed(log) == []


def test_last_line_counts_only_if_nothing_else_is_a_cause() -> None:
    """Neither next to a known cause nor next to a general one."""
    last = "mylib.DecodeError: frame 7 is cut short\n"
    assert primary(diagnosed(OOM.format(1), last)) == ["cuda_oom"]
    assert primary(diagnosed(WATCHDOG.format(1, "10"), last)) == ["torch_watchdog_timeout"]
    (finding, *_) = diagnosed(TRACEBACK.format(""), last)
    assert "labels are 7" in finding.cause
    assert primary(diagnosed(REMOTE.format(1, "20"), last)) == ["unknown"]


def test_last_line_of_a_large_log_has_its_number() -> None:
    """However much comes before it."""
    (finding,) = diagnosed("step\n" * 300_000 + "error: no more data\n")
    assert finding.evidence[0].line == 300_001


# The server whose port was taken

FRAMES = (
    "Traceback (most recent call last):\n"
    '  File "/work/train.py", line 19, in <module>\n'
    "    serve()\n"
    '  File "{0}", line 7, in serve\n'
    "    self.socket.bind(self.server_address)\n"
    "OSError: [Errno 98] Address already in use\n"
)


@pytest.mark.parametrize(
    ("log", "name", "words"),
    [
        ("RuntimeError: Address already in use\n", "addr_in_use", "the master port"),
        (
            "[W socket.cpp:464] [c10d] The server socket has failed to bind to [::]:29500 "
            "(errno: 98 - Address already in use).\n",
            "addr_in_use",
            "port 29500",
        ),
        (
            FRAMES.format("/opt/lib/python3.11/site-packages/tensorboard/program.py"),
            "server_addr_in_use",
            "server tensorboard",
        ),
        (
            FRAMES.format("/opt/lib/python3.11/site-packages/wandb/sdk/service.py"),
            "server_addr_in_use",
            "server wandb",
        ),
        (FRAMES.format("/usr/lib/python3.11/http/server.py"), "server_addr_in_use", "server http"),
        (
            "ERROR: [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): "
            "address already in use\n",
            "server_addr_in_use",
            "port 8000",
        ),
        (FRAMES.format("/work/mine.py"), "port_in_use", "the log does not show"),
        ("bind [127.0.0.1]:8888: Address already in use\n", "port_in_use", "port 8888"),
    ],
)
def test_port_in_use_names_what_tried_to_bind_it(log: str, name: str, words: str) -> None:
    """The rendezvous, another server, or unknown: only the first is the master port."""
    (finding,) = diagnosed("step 1\n" + log)
    assert (finding.id, finding.primary) == (name, True) and words in finding.cause
    assert ("master port" in finding.cause) is (name == "addr_in_use")


def test_port_of_another_server_is_not_a_cause_next_to_an_exact_one() -> None:
    """A dashboard that did not start did not end the training."""
    board = "TensorBoard could not bind to port 6006, it was already in use\n"
    assert primary(diagnosed(board + OOM.format(3))) == ["cuda_oom"]
    rendezvous = "RuntimeError: Address already in use\n"
    assert primary(diagnosed(board + "x\n" * 20 + rendezvous)) == ["addr_in_use"]
