"""The files that a command's arguments mean, and the inputs that are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_clustersmoke.cli.log_inputs import Inputs
from pytest_clustersmoke.evidence.run_directory import PhaseDir, RunDir


def names(*words: Path | str) -> list[str]:
    return [source.name for source in Inputs.of([str(word) for word in words]).found]


def refusal(word: Path | str) -> str:
    """Why the only argument is refused."""
    inputs = Inputs.of([str(word)])
    assert not inputs.found
    ((name, why),) = inputs.refused
    return f"{name} {why}"


def write(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("text\n")
    return path


def phase(root: Path, *hosts: str) -> PhaseDir:
    """A phase of a run, with a node and its log for each host."""
    directory = PhaseDir(root)
    write(directory.spec)
    (directory.root / "nccl").mkdir()
    for node, host in enumerate(hosts):
        write(directory.nccl_logs(node) / f"{host}.7.log")
    return directory


def test_files_are_read_once_in_the_order_given(tmp_path: Path) -> None:
    """A file named twice, or also by its directory, is read once."""
    second, first = write(tmp_path / "b.log"), write(tmp_path / "a.log")
    (tmp_path / "same.log").symlink_to(first)
    assert names(second, first, tmp_path, "-", "-") == [str(second), str(first), "<stdin>"]


def test_directory_means_all_files_below_it(tmp_path: Path) -> None:
    """In order of their names, without hidden files, FIFOs and sockets."""
    paths = [write(tmp_path / name) for name in ("a.log", "b/c.log", "b/d/e")]
    write(tmp_path / ".hidden")
    write(tmp_path / ".git" / "config")
    os.mkfifo(tmp_path / "fifo")
    assert names(tmp_path) == [str(path) for path in paths]


def test_only_nccl_logs_of_a_phase_are_read(tmp_path: Path) -> None:
    """The directory of a node distinguishes nodes of one host name."""
    directory = phase(tmp_path / "small", "h", "h")
    write(directory.output / "checkpoint")
    for word in (directory.root, directory.root / "nccl"):
        sources = Inputs.of([str(word)]).found
        assert [source.scope for source in sources] == ["0000", "0001"]
    (source,) = Inputs.of([str(directory.nccl_logs(1) / "h.7.log")]).found
    assert source.scope == "0001"


def test_logs_of_the_last_attempt_are_read(tmp_path: Path) -> None:
    """Each start of the ranks opens the same communicators anew."""
    first = phase(tmp_path / "small", "h")
    last = write(PhaseDir(first.root, attempt=1).nccl_logs(0) / "h.9.log")
    (source,) = Inputs.of([str(first.root)]).found
    assert (source.path, source.scope) == (last, "0000")


def test_directories_of_other_tools_name_no_nodes(tmp_path: Path) -> None:
    """Without a spec.json next to it, `nccl/0000` may be a rank's directory, not a node's."""
    write(tmp_path / "nccl" / "0000" / "h.7.log")
    (source,) = Inputs.of([str(tmp_path / "nccl")]).found
    assert source.scope == ""


def test_run_with_one_logged_phase_means_that_phase(tmp_path: Path) -> None:
    """Phases under gloo do not count, since they write no NCCL logs."""
    run = RunDir(tmp_path)
    phase(run.phase("gloo").root)
    directory = phase(run.phase("zero1").root, "h")
    assert names(tmp_path) == [str(directory.nccl_logs(0) / "h.7.log")]


def test_run_with_several_jobs_is_refused(tmp_path: Path) -> None:
    """The error names the phases to choose from."""
    for name in ("one", "two"):
        phase(RunDir(tmp_path).phase(name).root, "h")
    message = refusal(tmp_path)
    assert "2 jobs" in message
    assert str(tmp_path / "phases" / "two") in message


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "contains no files; expected NCCL logs"),
        (lambda path: path.symlink_to("gone"), "is a broken link"),
        (os.mkfifo, "is a FIFO, which may never end; expected a file (cat FIFO | "),
        (phase, "contains no NCCL logs (phases under gloo write none)"),
    ],
    ids=["missing", "empty", "dangling", "fifo", "gloo"],
)
def test_unreadable_input_is_refused(tmp_path: Path, make: object, words: str) -> None:
    """The refusal has the path, the reason and what to do."""
    path = tmp_path / "job.log"
    assert callable(make)
    make(path)
    assert refusal(path).startswith(f"{path} {words}")


def test_misspelt_name_gets_a_near_match(tmp_path: Path) -> None:
    """The suggestion is a name in the same directory."""
    write(tmp_path / "k023.4411.log")
    assert refusal(tmp_path / "k023.4412.log").endswith("did you mean `k023.4411.log`?")
    assert "nor does" in refusal(tmp_path / "no" / "such.log")


def test_devices_except_dev_null_are_refused() -> None:
    """/dev/zero never ends; /dev/null is an empty log."""
    assert "is a device" in refusal("/dev/zero")
    assert names(os.devnull) == [os.devnull]


def test_unlistable_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may list everything, so the error is faked; it is reported once."""
    listed = os.scandir

    def refuse(path: str | Path) -> object:
        if Path(path) == tmp_path:
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", refuse)
    message = refusal(tmp_path)
    assert "Permission denied; read it as its owner" in message


def test_total_size_is_known_for_files_only(tmp_path: Path) -> None:
    """With standard input among the inputs, progress has no total."""
    path = str(write(tmp_path / "a.log"))
    assert Inputs.of([path]).size == 5
    assert Inputs.of([path, "-"]).size is None
