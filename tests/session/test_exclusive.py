"""`--cluster-exclusive`: one run of a cluster at a time; the next is refused in one line."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_clustersmoke import preflight
from pytest_clustersmoke.evidence.locks import cluster_lock_path, lock_cluster
from pytest_clustersmoke.text import Problem, UsageProblems
from tests.support.harness import RunningPytest, Suite

WORDS = ("--cluster-exclusive",)


def refusal(suite: Suite, *words: str) -> str:
    """The error line of a refused run, which leaves no run and no report."""
    reports, runs = suite.published(), list_runs(suite)
    result = suite.run_apart(*WORDS, *words)
    output = result.stdout.str() + result.stderr.str()
    assert result.ret == pytest.ExitCode.USAGE_ERROR, output
    assert "Traceback" not in output and "INTERNALERROR" not in output, output
    assert suite.published() == reports and list_runs(suite) == runs
    (line,) = [line for line in output.splitlines() if "--cluster-exclusive" in line]
    return line


def list_runs(suite: Suite) -> list[Path]:
    """The runs in the shared directory, without the lock file."""
    return [path for path in suite.runs() if not path.name.startswith(".")]


@contextmanager
def holder(suite: Suite, *words: str) -> Iterator[RunningPytest]:
    """A pytest that holds the lock, and whose job waits for the file `go`."""
    suite.phase(args={"wait_for": str(suite.path / "go")})
    with suite.started(*WORDS, *words) as running:
        try:
            running.wait_for_ranks()
            yield running
        finally:
            (suite.path / "go").touch()


@pytest.mark.parametrize("words", [(), pytest.param(("-n", "1"), marks=pytest.mark.slow)])
def test_second_run_is_refused_with_the_holder(suite: Suite, words: tuple[str, ...]) -> None:
    """Status 4, one line with run, time, pid, user and host. The first run continues, and frees
    the lock at its end. Under xdist only the controller takes it."""
    with holder(suite, *words) as first:
        line = refusal(suite)
        (run,) = list_runs(suite)
        assert re.search(
            rf"--cluster-exclusive: one is in use: held by run {run.name} since "
            rf"\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{{4}} "
            rf"\(pid {first.pid} of \S+ on {re.escape(socket.gethostname())}\); ",
            line,
        )
        assert line.endswith("wait for that run to end, or omit --cluster-exclusive")
        assert str(cluster_lock_path(suite.shared, "one")) in line
        (suite.path / "go").touch()
        assert first.wait().ret == 0
    assert suite.run_apart(*WORDS).ret == 0


def test_run_without_the_option_ignores_the_lock(suite: Suite) -> None:
    """It neither takes nor respects the lock."""
    with holder(suite) as first:
        suite.path.joinpath("test_small.py").unlink()
        suite.phase(file="test_again.py")
        assert suite.run_apart().ret == 0
        assert first.process.poll() is None


def test_killed_holder_leaves_no_lock(suite: Suite) -> None:
    """After SIGKILL the file still names the dead run, but the next run gets the lock."""
    with holder(suite) as first:
        os.killpg(first.pid, signal.SIGKILL)
        assert first.wait().ret == -signal.SIGKILL
        (suite.path / "go").touch()
        text = cluster_lock_path(suite.shared, "one").read_text()
        assert json.loads(text)["pid"] == first.pid
        assert suite.run_apart(*WORDS).ret == 0


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_holder_releases_the_lock(suite: Suite, signum: signal.Signals) -> None:
    """After Ctrl-C or SIGTERM the lock is free when pytest has ended."""
    with holder(suite) as first:
        first.interrupt(signum)
        assert first.wait().ret == 2
    lock_cluster(suite.shared, "one", "after").release()


def test_usage_error_releases_the_lock(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is refused after it took the lock releases it."""

    def refuse(*_: object) -> None:
        raise UsageProblems([Problem("no way")])

    suite.phase()
    suite.shared.mkdir()
    suite.shared.chmod(0o700)
    monkeypatch.setattr(preflight, "prepare_run", refuse)
    result = suite.run(*WORDS)
    assert result.ret == 4 and "no way" in result.stderr.str() + result.stdout.str()
    lock_cluster(suite.shared, "one", "after").release()


def test_dry_run_takes_no_lock(suite: Suite) -> None:
    """Nothing is submitted, so nothing is locked; the same holds for --collect-only."""
    suite.phase()
    assert suite.run(*WORDS, "--cluster-dry-run").ret == 0
    assert suite.run(*WORDS, "--collect-only").ret == 0
    assert not cluster_lock_path(suite.shared, "one").exists()


def test_option_needs_a_cluster(suite: Suite) -> None:
    """Without --cluster there is nothing to lock."""
    suite.phase()
    assert suite.refused(*WORDS, cluster="") == ["--cluster-exclusive needs --cluster NAME"]


def locked_by(path: Path, text: str) -> subprocess.Popen[str]:
    """Another process that holds the lock and wrote this text to its file."""
    code = (
        "import fcntl, sys\n"
        "stream = open(sys.argv[1], 'w'); fcntl.flock(stream, fcntl.LOCK_EX)\n"
        "stream.write(sys.argv[2]); stream.flush(); print('held', flush=True); sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path), text],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "one is in use: held by a run that did not record its name; "),
        ("[1, 2]", "one is in use: held by a run that did not record its name; "),
        ("[" * 5000, "one is in use: held by a run that did not record its name; "),
        (
            json.dumps({"run_id": "\x1b[31mred\nand more", "host": "h" * 5000, "pid": [7]}),
            "one is in use: held by run \ufffd[31mred and more since None (pid [7] of None on "
            + "h" * 80
            + "); ",
        ),
    ],
)
def test_hostile_lock_file_gives_one_clean_line(tmp_path: Path, text: str, words: str) -> None:
    """Whatever the file contains, the error is one line of bounded length."""
    process = locked_by(cluster_lock_path(tmp_path, "one"), text)
    try:
        with pytest.raises(UsageProblems) as refused:
            lock_cluster(tmp_path, "one", "mine")
    finally:
        process.communicate("")
    (problem,) = refused.value.problems
    assert problem.what.startswith(words) and "\n" not in str(problem)


def test_clusters_in_one_directory_do_not_share_a_lock(tmp_path: Path) -> None:
    """The lock is per cluster, not per directory."""
    process = locked_by(cluster_lock_path(tmp_path, "one"), "{}")
    try:
        lock = lock_cluster(tmp_path, "two", "mine")
        assert "mine" in cluster_lock_path(tmp_path, "two").read_text()
        assert cluster_lock_path(tmp_path, "one").read_text() == "{}"
        lock.release()
    finally:
        process.communicate("")


def test_path_that_cannot_be_locked_is_refused(tmp_path: Path) -> None:
    """A link, and a directory that cannot be created: the error has the reason."""
    cluster_lock_path(tmp_path, "link").symlink_to(tmp_path / "elsewhere")
    tmp_path.joinpath("file").touch()
    expected = {
        (tmp_path, "link"): "cannot be taken (Too many levels of symbolic links)",
        (tmp_path / "file" / "runs", "one"): "cannot be taken (Not a directory)",
    }
    for (directory, cluster), why in expected.items():
        with pytest.raises(UsageProblems) as refused:
            lock_cluster(directory, cluster, "mine")
        (problem,) = refused.value.problems
        assert problem.what == f"the lock {cluster_lock_path(directory, cluster)} {why}"
        assert "this user can write" in problem.expected and "`flock`" in problem.expected
    assert not (tmp_path / "elsewhere").exists()


def test_file_system_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel refuses locks, as on Lustre without `flock`."""

    def none(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", none)
    with pytest.raises(UsageProblems, match=r"cannot be taken \(Function not implemented\)"):
        lock_cluster(tmp_path, "one", "mine")


AS_ANOTHER = """
import os, sys
from pathlib import Path
import filelock, psutil, pwd  # as this user, who can read them
from pytest_clustersmoke.evidence.locks import lock_cluster
os.umask(0o077)
os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
try:
    held = lock_cluster(Path(sys.argv[2]), "one", "run-of-" + sys.argv[1])
except Exception as error:
    print(error); sys.exit(4)
print("held", flush=True)
sys.stdin.read()
held.release()
"""


@pytest.fixture
def common() -> Iterator[Path]:
    """A directory that every user may write to."""
    if os.geteuid():
        pytest.skip("only root can act as two users")
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o1777)
        yield Path(made)


@contextmanager
def user(uid: int, directory: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process of this user that takes the lock until the end, and its answer."""
    process = subprocess.Popen(
        [sys.executable, "-c", AS_ANOTHER, str(uid), str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().rstrip("\n")
    finally:
        process.communicate("", timeout=60)


def test_lock_works_across_users(common: Path) -> None:
    """Whatever the umask of the first user, the next one is refused with the holder, and gets the
    lock later; also in a directory with a sticky bit."""
    with user(1234, common) as (_, answer):
        assert answer == "held"
        assert cluster_lock_path(common, "one").stat().st_mode & 0o777 == 0o666
        with user(1235, common) as (_, answer):
            assert "one is in use: held by run run-of-1234 since" in answer
    with user(1235, common) as (_, answer):
        assert answer == "held"
    assert cluster_lock_path(common, "one").stat().st_uid == 1234


def test_lock_file_without_write_permission_is_refused(common: Path) -> None:
    """The error names the file and what is expected of it."""
    path = cluster_lock_path(common, "one")
    path.touch()
    os.chown(path, 1234, 1234)
    path.chmod(0o644)
    with user(1235, common) as (process, answer):
        assert process.wait(60) == 4
    assert f"the lock {path} cannot be taken (Permission denied); expected a file that" in answer
