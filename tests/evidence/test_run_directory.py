"""A run's directory is private and its files are written whole; paths that sbatch would misread."""

from __future__ import annotations

import ast
import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_clustersmoke.evidence import run_directory
from pytest_clustersmoke.evidence.run_directory import (
    PhaseDir,
    RunDir,
    create_once,
    read_json,
    write_atomically,
    write_json,
)
from pytest_clustersmoke.evidence.run_ownership import create_run
from pytest_clustersmoke.evidence.telemetry import read_events, read_start
from pytest_clustersmoke.text import UsageProblems


def test_a_run_is_private(tmp_path: Path) -> None:
    """The run's directory has mode 0700 with any umask, and others can never write its parents."""
    for umask, parents in ((0o000, 0o775), (0o002, 0o775), (0o022, 0o755), (0o077, 0o700)):
        shared = tmp_path / f"{umask:o}" / "a" / "b"
        old = os.umask(umask)
        try:
            run = create_run(shared, "r")
        finally:
            os.umask(old)
        assert run.root.stat().st_mode & 0o777 == 0o700
        assert shared.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in shared.parents[:2]} == {parents}


def test_the_run_of_a_phase_is_the_one_that_created_it(tmp_path: Path) -> None:
    """Also from a later attempt."""
    run = create_run(tmp_path, "20260101-020000-abcdef")
    assert run.run_id == "20260101-020000-abcdef"
    assert run.phase("p").run == run.phase("p").restarted(1).run == run


def test_existing_run_directory_is_refused(tmp_path: Path) -> None:
    """An existing directory with the run's name is refused, even if it is writable."""
    tmp_path.joinpath("r").mkdir()
    with pytest.raises(UsageProblems, match=r"r cannot be created \(File exists\)"):
        create_run(tmp_path, "r")


def test_link_as_run_directory_is_refused(tmp_path: Path) -> None:
    """A symbolic link to elsewhere, dangling or not, is not followed."""
    tmp_path.joinpath("elsewhere").mkdir()
    tmp_path.joinpath("r").symlink_to("elsewhere")
    tmp_path.joinpath("s").symlink_to("nowhere")
    for name in ("r", "s"):
        with pytest.raises(UsageProblems, match="cannot be created"):
            create_run(tmp_path, name)
    assert list(tmp_path.joinpath("elsewhere").iterdir()) == []


def test_run_directory_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory whose owner is another user is refused."""
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(UsageProblems, match="this user alone can open"):
        create_run(tmp_path, "r")


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """A write that fails leaves the old content, and no draft beside it."""
    path = tmp_path / "f.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"a": float("nan")})
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")
    assert read_json(path) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["f.json"]


def test_files_have_their_mode_from_the_start(tmp_path: Path) -> None:
    """0600 by default."""
    write_json(tmp_path / "a", {})
    write_json(tmp_path / "b", {}, mode=0o644)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff", b"[" * 100_000, b"null"])
def test_invalid_json_object_is_none(tmp_path: Path, content: bytes) -> None:
    """Torn and hostile files count as missing."""
    tmp_path.joinpath("f").write_bytes(content)
    assert read_json(tmp_path / "f") is None
    assert read_json(tmp_path / "none") is None


def joined_names(source: Path) -> Iterator[str]:
    """The literal names that a module appends to a path."""
    for node in ast.walk(ast.parse(source.read_text())):
        match node:
            case ast.BinOp(op=ast.Div(), right=ast.Constant(value=str(name))):
                yield name


def test_names_of_a_runs_files_stand_in_one_module() -> None:
    """All other modules ask for the path of a file."""
    own = Path(run_directory.__file__)
    names = {*joined_names(own)}
    assert {"batch.sh", "progress", "token", "seen", "process"} <= names
    entries = ["evidence", "rank", "node", "jobs", "preflight", "diagnose", "report", "session"]
    elsewhere = [
        f"{source}: {name}"
        for entry in entries
        for source in sorted((own.parents[1] / entry).rglob("*.py"))
        if source != own
        for name in sorted({*joined_names(source)} & names)
    ]
    assert elsewhere == []


def paths_of(phase: PhaseDir) -> list[Path]:
    """Every path of an attempt that a property or a method with a rank gives."""
    properties = {name for name, value in vars(PhaseDir).items() if isinstance(value, property)}
    names = sorted(properties - {"phase"})  # that directory itself
    paths = [path for name in names if isinstance(path := getattr(phase, name), Path)]
    methods = {name: method for name, method in vars(PhaseDir).items() if callable(method)}
    other = {"attempts", "restarted", "jobs", "job", "rank_log", "find_rank_logs"}
    return paths + [m(phase, 0) for n, m in methods.items() if n[0] != "_" and n not in other]


def test_every_path_lies_in_the_phase_directory() -> None:
    """No two files of a phase share a path, and none lies outside."""
    phase = PhaseDir(Path("/run/phases/p"))
    paths = paths_of(phase)
    assert len(set(paths)) == len(paths) > 15
    assert all(path.is_relative_to(phase.root) for path in paths)


def test_later_attempt_shares_only_what_belongs_to_the_job() -> None:
    """What a start of the launcher writes lies in its own directory."""
    first, later = PhaseDir(Path("/run/phases/p")), PhaseDir(Path("/run/phases/p"), 1)
    shared = {path.name for path in {*paths_of(first)} & {*paths_of(later)}}
    job = {"seen", "spec.json", "preflight.txt", "batch.sh", "submitit", "array", "setup_failed"}
    job |= {"result.json", "attempt.json", "withdrawn.0", "declined.0", "0.pkl"}
    job |= {"past.json", "output", "started_again", "incomplete", "scheduler.jsonl", "stop.0.0"}
    job |= {"isolation.json"}
    assert shared == job


def test_jobs_of_a_retried_phase_share_its_results_alone(tmp_path: Path) -> None:
    """Claim, token, events and all else lie in the directory of each job."""
    phase = PhaseDir(tmp_path / "run" / "phases" / "p")
    first, second = phase.job(1), phase.job(2)
    assert {path.name for path in {*paths_of(first)} & {*paths_of(second)}} == {
        "result.json",
        "past.json",
        "isolation.json",
    }
    assert (first.name, first.number, first.run.root) == ("p", 1, tmp_path / "run")
    assert phase.jobs() == [] and phase.last_job == phase
    for number in (10, 2):
        phase.job(number).root.mkdir(parents=True)
    assert phase.jobs() == [phase.job(2), phase.job(10)]
    assert phase.last_job == phase.newest == phase.job(10)
    assert second.last_job == second


def test_tests_of_an_isolation_lie_below_their_phase(tmp_path: Path) -> None:
    """Each has the paths of a phase, under its own name, in the same run."""
    run = RunDir(tmp_path / "run")
    test = run.phase("p.isolate7")
    assert test.root == run.phase("p").isolation.parent / "p.isolate7"
    assert (test.name, test.run) == ("p.isolate7", run)
    assert run.phase("isolation").run == run


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_sparse(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(10 * 2**30)


@pytest.mark.parametrize(
    "make",
    [
        make_fifo,
        make_sparse,
        Path.mkdir,
        lambda path: path.write_text("[1]"),
        lambda path: path.write_text('{"ok": tr'),
        lambda path: path.write_bytes(bytes(range(256))),
    ],
    ids=["fifo", "10 GB of zeros", "directory", "list", "torn", "garbage"],
)
def test_what_is_no_record_counts_as_missing_at_once(
    make: Callable[[Path], object], tmp_path: Path
) -> None:
    """Whatever lies in its place: a FIFO has no writer, and 10 GB fit no memory."""
    path = tmp_path / "run.json"
    make(path)
    tracemalloc.start()
    try:
        assert read_json(path) is None
        assert read_events(path).records == []
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()


def test_small_file_takes_little_memory_whatever_the_limit(tmp_path: Path) -> None:
    """A read allocates what it is asked for before it knows how much there is."""
    write_json(tmp_path / "small.json", {"a": 1})
    tracemalloc.start()
    try:
        assert read_json(tmp_path / "small.json", 64 * 2**20) == {"a": 1}
        assert read_start(tmp_path / "small.json", 64 * 2**20).startswith(b"{")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("error", [FileExistsError, TimeoutError])
def test_link_whose_answer_was_lost_is_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    """NFS sends a link again, and then says that the file exists, or gives up."""
    link = os.link

    def link_without_answer(source: Path, target: Path) -> None:
        link(source, target)
        raise error

    monkeypatch.setattr(os, "link", link_without_answer)
    assert create_once(tmp_path / "claim.json", {"mine": 1})
    assert not create_once(tmp_path / "claim.json", {"mine": 2})
    assert read_json(tmp_path / "claim.json") == {"mine": 1}


def test_run_directory_that_stays_open_to_others_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On file systems that hand down access lists, and on those without modes."""
    chmod = Path.chmod
    monkeypatch.setattr(Path, "chmod", lambda path, mode: chmod(path, 0o770))
    with pytest.raises(UsageProblems, match="is not a directory that this user alone can open"):
        create_run(tmp_path, "run1")
