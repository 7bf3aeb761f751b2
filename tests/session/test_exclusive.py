"""`--cluster-exclusive`: one run of a cluster at a time, told in one line to the next."""

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
    """The one line of a run that is refused at once; it leaves no run and no report."""
    reports, runs = suite.published(), kept(suite)
    result = suite.run_apart(*WORDS, *words)
    output = result.stdout.str() + result.stderr.str()
    assert result.ret == pytest.ExitCode.USAGE_ERROR, output
    assert "Traceback" not in output and "INTERNALERROR" not in output, output
    assert suite.published() == reports and kept(suite) == runs
    (line,) = [line for line in output.splitlines() if "--cluster-exclusive" in line]
    return line


def kept(suite: Suite) -> list[Path]:
    """The runs in the shared directory, without the lock's file."""
    return [path for path in suite.runs() if not path.name.startswith(".")]


@contextmanager
def holder(suite: Suite, *words: str) -> Iterator[RunningPytest]:
    """A pytest whose job waits until the file `go` is there; with the lock when this begins."""
    suite.phase(args={"wait_for": str(suite.path / "go")})
    with suite.started(*WORDS, *words) as running:
        try:
            running.wait_for_ranks()
            yield running
        finally:
            (suite.path / "go").touch()


@pytest.mark.parametrize("words", [(), ("-n", "1")])
def test_the_second_run_is_told_who_has_the_cluster(suite: Suite, words: tuple[str, ...]) -> None:
    """Status 4, one line with run, since, pid, user and host; the first goes on, and then the lock
    is free. Under xdist the controller alone takes it."""
    with holder(suite, *words) as first:
        line = refusal(suite)
        (run,) = kept(suite)
        assert re.search(
            rf"--cluster-exclusive: one is in use: run {run.name} has it since "
            rf"\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{{4}} "
            rf"\(pid {first.pid} of \S+ on {re.escape(socket.gethostname())}\); ",
            line,
        )
        assert line.endswith("wait until that run has ended, or leave --cluster-exclusive away")
        assert str(cluster_lock_path(suite.shared, "one")) in line
        (suite.path / "go").touch()
        assert first.wait(60).ret == 0
    assert suite.run_apart(*WORDS).ret == 0


def test_without_the_option_nobody_is_kept_waiting(suite: Suite) -> None:
    """A run that does not ask for it neither takes nor heeds the lock."""
    with holder(suite) as first:
        suite.path.joinpath("test_small.py").unlink()
        suite.phase(file="test_again.py")
        assert suite.run_apart().ret == 0
        assert first.process.poll() is None


def test_a_killed_holder_leaves_no_lock(suite: Suite) -> None:
    """After SIGKILL the file still names the dead run, and the next run has the lock."""
    with holder(suite) as first:
        os.killpg(first.pid, signal.SIGKILL)
        assert first.wait(30).ret == -signal.SIGKILL
        (suite.path / "go").touch()
        text = cluster_lock_path(suite.shared, "one").read_text()
        assert json.loads(text)["pid"] == first.pid
        assert suite.run_apart(*WORDS).ret == 0


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_holder_gives_it_back(suite: Suite, signum: signal.Signals) -> None:
    """Ctrl-C and SIGTERM: the lock is free when pytest has ended."""
    with holder(suite) as first:
        first.interrupt(signum)
        assert first.wait(60).ret == 2
    lock_cluster(suite.shared, "one", "after").release()


def test_a_usage_error_gives_it_back(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is refused after it took the lock does not keep it."""

    def refuse(*_: object) -> None:
        raise UsageProblems([Problem("no way")])

    suite.phase()
    suite.shared.mkdir()
    suite.shared.chmod(0o700)
    monkeypatch.setattr(preflight, "prepare", refuse)
    result = suite.run(*WORDS)
    assert result.ret == 4 and "no way" in result.stderr.str() + result.stdout.str()
    lock_cluster(suite.shared, "one", "after").release()


def test_a_dry_run_takes_no_lock(suite: Suite) -> None:
    """Nothing is submitted, so nothing is locked; nor by a collection alone."""
    suite.phase()
    assert suite.run(*WORDS, "--cluster-dry-run").ret == 0
    assert suite.run(*WORDS, "--collect-only").ret == 0
    assert not cluster_lock_path(suite.shared, "one").exists()


def test_the_option_needs_a_cluster(suite: Suite) -> None:
    """Without --cluster there is nothing to lock."""
    suite.phase()
    assert suite.refused(*WORDS, cluster="") == ["--cluster-exclusive needs --cluster NAME"]


def locked_by(path: Path, text: str) -> subprocess.Popen[str]:
    """Another process that holds the lock and has written this into its file."""
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
        ("", "one is in use: a run that has not said who it is has it; "),
        ("[1, 2]", "one is in use: a run that has not said who it is has it; "),
        ("[" * 5000, "one is in use: a run that has not said who it is has it; "),
        (
            json.dumps({"run_id": "\x1b[31mred\nand more", "host": "h" * 5000, "pid": [7]}),
            "one is in use: run \ufffd[31mred and more has it since None (pid [7] of None on "
            + "h" * 80
            + "); ",
        ),
    ],
)
def test_what_a_holder_wrote_is_hostile(tmp_path: Path, text: str, words: str) -> None:
    """Whatever the file says, the refusal is one clean line of bounded length."""
    process = locked_by(cluster_lock_path(tmp_path, "one"), text)
    try:
        with pytest.raises(UsageProblems) as refused:
            lock_cluster(tmp_path, "one", "mine")
    finally:
        process.communicate("")
    (problem,) = refused.value.problems
    assert problem.what.startswith(words) and "\n" not in str(problem)


def test_profiles_of_one_directory_do_not_share_a_lock(tmp_path: Path) -> None:
    """The lock is the cluster's, not the directory's."""
    process = locked_by(cluster_lock_path(tmp_path, "one"), "{}")
    try:
        held = lock_cluster(tmp_path, "two", "mine")
        assert "mine" in cluster_lock_path(tmp_path, "two").read_text()
        assert cluster_lock_path(tmp_path, "one").read_text() == "{}"
        held.release()
    finally:
        process.communicate("")


def test_places_that_have_no_lock(tmp_path: Path) -> None:
    """A link and a directory that cannot be made are refused with what is wrong."""
    cluster_lock_path(tmp_path, "link").symlink_to(tmp_path / "elsewhere")
    tmp_path.joinpath("file").touch()
    wanted = {
        (tmp_path, "link"): "cannot be taken (Too many levels of symbolic links)",
        (tmp_path / "file" / "runs", "one"): "cannot be taken (Not a directory)",
    }
    for (directory, cluster), why in wanted.items():
        with pytest.raises(UsageProblems) as refused:
            lock_cluster(directory, cluster, "mine")
        (problem,) = refused.value.problems
        assert problem.what == f"the lock {cluster_lock_path(directory, cluster)} {why}"
        assert "this user can write" in problem.expected and "`flock`" in problem.expected
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_system_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the kernel says that it has no locks (Lustre without `flock`), nothing is taken for
    granted."""

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
    """A directory in which every user may write."""
    if os.geteuid():
        pytest.skip("only root can act as two users")
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o1777)
        yield Path(made)


@contextmanager
def user(uid: int, directory: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process of this user that asks for the lock, and its answer; holds it until the end."""
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


def test_the_lock_is_no_user_s_own(common: Path) -> None:
    """Whatever the umask of its first user, the next user is told who has it, and then takes it;
    also in a directory with a sticky bit."""
    with user(1234, common) as (_, answer):
        assert answer == "held"
        assert cluster_lock_path(common, "one").stat().st_mode & 0o777 == 0o666
        with user(1235, common) as (_, answer):
            assert "one is in use: run run-of-1234 has it since" in answer
    with user(1235, common) as (_, answer):
        assert answer == "held"
    assert cluster_lock_path(common, "one").stat().st_uid == 1234


def test_a_lock_that_another_user_may_not_write_is_refused(common: Path) -> None:
    """A file that somebody else made for themselves: which one, and what is expected of it."""
    path = cluster_lock_path(common, "one")
    path.touch()
    os.chown(path, 1234, 1234)
    path.chmod(0o644)
    with user(1235, common) as (process, answer):
        assert process.wait(60) == 4
    assert f"the lock {path} cannot be taken (Permission denied); expected a file that" in answer
