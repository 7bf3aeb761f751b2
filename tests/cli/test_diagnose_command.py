"""`clustersmoke diagnose`: what it prints, for people and programs, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.cli import parser
from pytest_clustersmoke.evidence.run_directory import PhaseDir, write_json
from pytest_clustersmoke.evidence.telemetry import SCHEMA, EventWriter
from tests.diagnose.logs import KILLED, REMOTE, TRACEBACK

OOM = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
COMMAND = [sys.executable, "-m", "pytest_clustersmoke.cli", "diagnose"]


@pytest.fixture
def run(run_command: Callable[..., Any]) -> Any:
    """Run the subcommand in this process."""
    return partial(run_command, list, "diagnose")


def test_pipe_of_the_shell_is_read_from_its_beginning(tmp_path: Path) -> None:
    """`<(zcat LOG.gz)` is a pipe under /dev/fd: nobody can look at it twice."""
    log = tmp_path / "job.log"
    log.write_text(OOM)
    script = f'{" ".join(COMMAND)} --json <(cat "$1")'
    done = subprocess.run(["bash", "-c", script, "bash", str(log)], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    (finding,) = json.loads(done.stdout)
    assert finding["id"] == "cuda_oom" and finding["evidence"][0]["line"] == 1


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "job.log"
    path.write_text("step 1\n" + OOM + REMOTE.format(1, "20"))
    return path


def test_json_is_a_list_with_every_key(run: Any, log: Path) -> None:
    """The first cause comes first, each with its place."""
    result = run("--json", log)
    assert result.status == 1
    first, *consequences = result.json
    assert first == {
        "id": "cuda_oom",
        "cause": "the GPU is out of memory (asked for 2.00 GiB)",
        "fix": first["fix"],
        "primary": True,
        "evidence": [{"file": str(log), "line": 2, "text": OOM.strip()}],
        "hosts": [],
        "ranks": [3],
    }
    assert {finding["id"] for finding in consequences} == {"nccl_peer_closed", "nccl_remote_error"}
    assert not any(finding["primary"] for finding in consequences)


def test_text_has_cause_place_evidence_and_next_step(run: Any, log: Path) -> None:
    """Each consequence has one line."""
    result = run(log)
    lines = result.out.splitlines()
    assert result.status == 1 and result.err == ""
    assert lines[0] == "the GPU is out of memory (asked for 2.00 GiB) [cuda_oom]"
    assert lines[1] == "   where: rank 3"
    assert lines[2] == f"   {log}:2: {OOM.strip()}"
    assert lines[3].startswith("   next: use a smaller batch")
    assert lines[5] == "follows from it:" and len(lines) == 8
    assert f"(1 line; {log}:3)" in result.out


def test_several_causes_are_numbered(run: Any, tmp_path: Path) -> None:
    """Causes are in order of time, and each counts its lines."""
    log = tmp_path / "a.log"
    log.write_text("OSError: [Errno 28] No space left on device\n" * 9 + OOM)
    out = run(log).out
    assert out.index("1. a file system is full") < out.index("2. the GPU is out of memory")
    assert "   ... 9 lines in total\n" in out


LAUNCHERS = (
    "mpirun noticed that process rank 3 with PID 7 on node n1 exited on signal 6 (Aborted).",
    "prterun noticed that process rank 0 with PID 0 on node n1 exited on signal 15 (Terminated).",
    "prterun detected that one or more processes exited with non-zero status, thus causing",
    "HorovodInternalError: Horovod has been shut down. This was caused by an exception on one of",
    "*** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,",
    "[n1:5283 :0:5704] Caught signal 6 (Aborted: tkill(2) or tgkill(2))",
    "[n1:5283 :0:5704] Caught signal 11 (Segmentation fault: address not mapped to object)",
    '{"name": "torchelastic.worker.status.FAILED", "source": "WORKER", "metadata": {}}',
    "[launch.py:321:sigkill_handler] ['python', 'train.py'] exits with return code = -9",
)


@pytest.mark.parametrize("line", LAUNCHERS)
def test_failure_that_a_launcher_reports_is_never_silent(
    run: Any, tmp_path: Path, line: str
) -> None:
    """Whatever else the log says."""
    log = tmp_path / "a.log"
    log.write_text(f"step 1 loss 0.7\n{line}\nTraining complete\n")
    assert run(log).status == 1


def test_log_of_consequences_says_what_to_fetch(run: Any, tmp_path: Path) -> None:
    """The cause is elsewhere, so the first line does not name one."""
    log = tmp_path / "a.log"
    log.write_text(LAUNCHERS[3] + "\n" + LAUNCHERS[2] + "\n")
    lines = run(log).out.splitlines()
    assert lines[0] == "the cause is not in this log, only its consequences are"
    assert lines[1].startswith("   next: read the outputs of all ranks and nodes")
    assert lines[3].endswith("[horovod_shut_down]")
    assert lines[-2] == "other consequences:" and "torchrun_child_failed: " in lines[-1]


@pytest.mark.parametrize("word", ["--json", None])
def test_healthy_log_gives_no_findings(run: Any, tmp_path: Path, word: str | None) -> None:
    """An empty list, or a line with the number of files; status 0."""
    log = tmp_path / "fine.log"
    log.write_text("FutureWarning: The pynvml package is deprecated\nPASSED\n")
    result = run(*filter(None, [word]), log)
    assert result.status == 0
    nothing = "no known failure and no exception found in 1 file\n"
    assert result.json == [] if word else result.out == nothing


def test_standard_input(log: Path) -> None:
    """`-` is read to the end, and its lines are numbered."""
    with log.open() as stream:
        done = subprocess.run([*COMMAND, "--json", "-"], stdin=stream, capture_output=True)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)[0]["evidence"][0]["file"] == "<stdin>"


def test_unknown_exception_is_reported(run: Any, tmp_path: Path) -> None:
    """The finding has the exception and its place."""
    log = tmp_path / "a.log"
    log.write_text(TRACEBACK.format("[rank2]: "))
    result = run(log)
    assert result.status == 1
    assert result.out.startswith("unknown cause; the first error: ValueError: labels are 7, 9")
    assert "   where: rank 2\n" in result.out


def test_unreadable_files_are_named_after_the_findings(run: Any, log: Path) -> None:
    """Status 2, each file with the reason; the findings of the others are printed."""
    gone, packed = log.with_name("job.lgo"), log.with_name("packed.gz")
    packed.write_bytes(b"\x1f\x8b\x08\0")
    result = run("--json", log, gone, packed)
    assert result.status == 2 and result.json[0]["id"] == "cuda_oom"
    assert f"{gone} does not exist; did you mean `job.log`?" in result.err
    assert f"{packed} is compressed" in result.err


def test_fifo_is_refused(run: Any, tmp_path: Path) -> None:
    """It may never end."""
    os.mkfifo(tmp_path / "pipe")
    result = run(tmp_path / "pipe")
    assert result.status == 2 and result.out == ""
    assert "clustersmoke diagnose -" in result.err


def test_directory_means_all_text_files_below_it(run: Any, log: Path) -> None:
    """Files that are not text are skipped; compressed ones are named."""
    (log.parent / "deep").mkdir()
    (log.parent / "deep" / "b.err").write_text("RuntimeError: No CUDA GPUs are available\n")
    (log.parent / "model.pt").write_bytes(b"PK\3\4\0\0\0\0")
    result = run("--json", log.parent)
    assert result.status == 1
    assert {finding["id"] for finding in result.json if finding["primary"]} == {
        "no_gpu",
        "cuda_oom",
    }
    (log.parent / "old.log.gz").write_bytes(b"\x1f\x8b\x08\0")
    assert run(log.parent).status == 2


def phase(root: Path, name: str = "small") -> PhaseDir:
    directory = PhaseDir(root / "phases" / name)
    write_json(directory.spec, {"phase": name, "nodes": 2, "ranks_per_node": 2})
    write_json(directory.node_facts(1), {"node": "n1", "host": "h"})
    logs = directory.rank_logs(1) / "run_x" / "attempt_0" / "1"
    logs.mkdir(parents=True)
    (logs / "stderr.log").write_text("torch.OutOfMemoryError: CUDA out of memory\n")
    directory.launcher_log(1).write_text(KILLED.replace("node2", "h"))
    (directory.root / "output").mkdir()
    (directory.root / "output" / "x.txt").write_text("OSError: No space left on device\n")
    return directory


def test_path_of_a_log_gives_rank_and_node(run: Any, tmp_path: Path) -> None:
    """Node 1's second rank is rank 3; files of the program itself are not logs."""
    directory = phase(tmp_path)
    for word in (directory.root, tmp_path):
        findings = {finding["id"]: finding for finding in run("--json", word).json}
        assert set(findings) == {"cuda_oom", "rank_killed", "torchrun_child_failed"}
        assert (findings["cuda_oom"]["ranks"], findings["cuda_oom"]["hosts"]) == ([3], ["n1"])
        assert (findings["rank_killed"]["ranks"], findings["rank_killed"]["hosts"]) == ([5], ["n1"])


def test_last_attempt_is_diagnosed(run: Any, tmp_path: Path) -> None:
    """What an attempt before it logged is read if its directory is named."""
    first = phase(tmp_path)
    last = PhaseDir(first.root, attempt=10)
    logs = last.rank_logs(0) / "run_x" / "attempt_0" / "1"
    logs.mkdir(parents=True)
    (logs / "stderr.log").write_text("OSError: [Errno 28] No space left on device\n")
    (finding,) = run("--json", first.root).json
    assert (finding["id"], finding["ranks"]) == ("disk_full", [1])
    assert run("--json", last.start).json == [finding]
    before = run("--json", first.rank_logs(1)).json
    assert [(each["id"], each["ranks"]) for each in before] == [("cuda_oom", [3])]


@pytest.mark.parametrize("done", [True, False])
def test_error_that_a_rank_survived_is_not_a_finding(run: Any, tmp_path: Path, done: bool) -> None:
    """The rank caught an out-of-memory error and finished; otherwise the error counts."""
    directory = phase(tmp_path)
    directory.launcher_log(1).write_text("all is well\n")
    writer = EventWriter(directory.rank_events(3))
    writer.write("start", schema=SCHEMA, job="", rank=3, local_rank=1, node_rank=1, pid=7)
    if done:
        writer.write("done", seconds=1.0)
    writer.close()
    result = run(directory.root)
    assert result.status == (0 if done else 1)
    assert ("no known failure and no exception found in 2 files" in result.out) is done


@pytest.mark.parametrize("spec", [{}, {"nodes": 10**9}, {"nodes": "x"}, {"nodes": True}])
def test_phase_with_an_unusable_record_is_read_as_logs(
    run: Any, tmp_path: Path, spec: dict[str, Any]
) -> None:
    """No error counts as survived, whatever the record contains."""
    directory = phase(tmp_path)
    write_json(directory.spec, {"ranks_per_node": 2, **spec})
    assert run("--json", directory.root).status == 1


def test_logs_of_several_jobs_are_refused(run: Any, tmp_path: Path) -> None:
    """Causes of two jobs have no common order."""
    phase(tmp_path, "one")
    phase(tmp_path, "two")
    result = run(tmp_path)
    assert result.status == 2 and result.out == ""
    assert "contains the logs of 2 jobs; name the directory of one: " in result.err


def test_empty_directory_is_not_a_healthy_job(run: Any, tmp_path: Path) -> None:
    """Nothing was read, so nothing is reported as healthy."""
    result = run(tmp_path)
    assert (result.status, result.out) == (2, "") and "contains no logs" in result.err


def test_log_that_begins_with_zeros_is_read(run: Any, tmp_path: Path) -> None:
    """Zeros replace lost output of a node; the text after them counts. Zeros are not a log."""
    log = tmp_path / "holed.log"
    log.write_bytes(bytes(5000) + OOM.encode())
    assert run(log).status == 1
    log.write_bytes(bytes(5000))
    result = run(log)
    assert result.status == 2 and "is binary" in result.err


def test_garbage_after_a_cause_does_not_hide_it(run: Any, tmp_path: Path) -> None:
    """A named file, or one with a log's suffix, is searched to the end; other binary files below
    a directory are taken for checkpoints."""
    raw = OOM.encode() + bytes(range(256)) * 40
    torn, model = tmp_path / "torn.out", tmp_path / "model.pt"
    torn.write_bytes(raw)
    for word in (torn, tmp_path):
        result = run("--json", word)
        assert (result.status, result.err) == (1, "")
        assert result.json[0]["id"] == "cuda_oom" and result.json[0]["ranks"] == [3]
    torn.rename(model)
    result = run("--json", tmp_path)
    assert (result.status, result.out) == (2, "") and f"{tmp_path} contains no text" in result.err
    tmp_path.joinpath("job.log").write_text("step 1\n")
    assert run("--json", tmp_path).json == []


def test_hostile_text_is_sanitised(run: Any, tmp_path: Path) -> None:
    """Control characters of a log and its name never reach the terminal."""
    log = tmp_path / "a\x1b]0;x\x07.log"
    log.write_bytes(b"\x1b[2J\x9b RuntimeError: CUDA out of memory \x07\x08\xe2\x80\xae\xff\n")
    result = run(log)
    assert result.status == 1
    assert all(line.isprintable() for line in result.out.splitlines())
    assert run("--json", log).json[0]["id"] == "cuda_oom"


def test_output_in_any_encoding(log: Path) -> None:
    """The output is written, whatever its encoding."""
    log.write_text("RuntimeError: CUDA out of memory \u4f60\u597d\n")
    done = subprocess.run(
        [*COMMAND, str(log)],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )
    assert done.returncode == 1 and b"\\u4f60" in done.stdout


def test_many_ranks_are_shortened(run: Any, tmp_path: Path) -> None:
    """In text; JSON has all ranks."""
    log = tmp_path / "a.log"
    log.write_text("".join(OOM.replace("rank3", f"rank{rank}") for rank in range(40)))
    assert "14, 15 and 24 more\n" in run(log).out
    assert run("--json", log).json[0]["ranks"] == list(range(40))


def test_closed_standard_input_is_an_error(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to read, so no job is reported as healthy."""
    monkeypatch.setattr(sys, "stdin", None)
    result = run("-")
    assert result.status == 2 and "standard input is closed" in result.err


def test_help_has_examples_and_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    """The help has both."""
    with pytest.raises(SystemExit):
        parser().parse_args(["diagnose", "--help"])
    result = capsys.readouterr().out
    assert "exit status: 0 no known failure and no exception, 1 findings, 2" in result
