"""The files of a new cluster are written all or not at all, and replace others only on request."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_clustersmoke.cli.suite_files import shipped_phases, suite_files, write_files
from pytest_clustersmoke.config.cluster_file import load_cluster_file
from pytest_clustersmoke.text import UsageProblems
from tests.cli.recorded_slurm import REPOSITORY, Slurm, run_apart

Init = Callable[..., "subprocess.CompletedProcess[str]"]
FILES = {"a/one.py": b"1", "a/b/two.py": b"2", "three": b"3"}


def tree(directory: Path) -> dict[str, bytes]:
    """Every file below a directory, hidden ones included."""
    paths = directory.rglob("*")
    return {str(p.relative_to(directory)): p.read_bytes() for p in paths if p.is_file()}


def test_new_directory_has_all_files(tmp_path: Path) -> None:
    """Parent directories are created; nothing else is."""
    new = tmp_path / "x" / "y"
    assert write_files(new, FILES, force=False) == list(FILES)
    assert tree(tmp_path) == {f"x/y/{name}": data for name, data in FILES.items()}
    umask = os.umask(0o22)
    os.umask(umask)
    assert (new / "three").stat().st_mode & 0o777 == 0o666 & ~umask
    assert (new / "a").stat().st_mode & 0o777 == 0o777 & ~umask


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    """In an existing directory only the files of the set are new."""
    tmp_path.joinpath("a").mkdir()
    tmp_path.joinpath("a/mine.py").write_bytes(b"mine")
    write_files(tmp_path, FILES, force=False)
    assert tree(tmp_path) == {**FILES, "a/mine.py": b"mine"}


def test_existing_files_with_the_same_content_are_accepted(tmp_path: Path) -> None:
    """So an interrupted call can be repeated."""
    write_files(tmp_path, FILES, force=False)
    (tmp_path / "three").unlink()
    assert write_files(tmp_path, FILES, force=False) == ["three"]
    assert write_files(tmp_path, FILES, force=False) == []


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    """Files with other content, directories in place of files, and files in place of directories;
    nothing is written. --force allows the first only."""
    tmp_path.joinpath("a").mkdir()
    tmp_path.joinpath("a/one.py").write_bytes(b"other")
    tmp_path.joinpath("a/b").write_bytes(b"a file")
    tmp_path.joinpath("three").mkdir()
    before = tree(tmp_path)
    with pytest.raises(UsageProblems) as refused:
        write_files(tmp_path, FILES, force=False)
    assert [problem.what for problem in refused.value.problems] == [
        f"{tmp_path}/a/one.py already exists",
        f"{tmp_path}/a/b is not a directory",
        f"{tmp_path}/three is a directory",
    ]
    assert "--force" in refused.value.problems[0].todo
    with pytest.raises(UsageProblems) as refused:
        write_files(tmp_path, FILES, force=True)
    assert len(refused.value.problems) == 2
    assert tree(tmp_path) == before


def test_force_replaces_files_and_links(tmp_path: Path) -> None:
    """A link is replaced; its target is not."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"kept")
    new = tmp_path / "new"
    new.mkdir()
    new.joinpath("three").symlink_to(elsewhere)
    write_files(new, FILES, force=True)
    assert tree(new) == FILES and elsewhere.read_bytes() == b"kept"


def test_directory_below_a_file_is_refused(tmp_path: Path) -> None:
    """It is refused before anything is created."""
    tmp_path.joinpath("file").touch()
    with pytest.raises(UsageProblems, match=r"file is not a directory; expected a directory"):
        write_files(tmp_path / "file" / "new", FILES, force=False)


def test_command_reports_all_problems_at_once(init: Init, tmp_path: Path) -> None:
    """A second cluster in the same directory: each file that differs is named, and nothing is
    written. --force writes it. Invalid options are also reported together."""
    assert init().returncode == 0
    new = tmp_path / "new"
    (new / "smoke_tests" / "test_mlp.py").write_text("mine")
    before = tree(new)
    refused = init("--cluster", "other")
    assert refused.returncode == 2 and refused.stdout == "" and tree(new) == before
    assert [line.split(";")[0] for line in refused.stderr.splitlines()] == [
        f"clustersmoke: DIRECTORY: {new}/smoke_tests/test_mlp.py already exists",
        f"clustersmoke: DIRECTORY: {new}/cluster.yaml already exists",
    ]
    done = init("--cluster", "other", "--force")
    assert "wrote cluster.yaml, smoke_tests/ (1 files) in" in done.stdout
    refused = init("--cluster", "no name", "--shared-dir", "/a%b", "--partition", "gqu")
    assert refused.returncode == 2
    for words in ("`no name` is not the name", "contains a `%`", "no partition `gqu`"):
        assert words in refused.stderr


def test_missing_home_directory_is_refused(init: Init, tmp_path: Path) -> None:
    """Nothing is written."""
    refused = init("--shared-dir", "~no_such_user_here/x")
    assert refused.returncode == 2 and not (tmp_path / "new").exists()
    assert "--shared-dir: no home directory `~no_such_user_here`" in refused.stderr


@pytest.mark.parametrize("encoding", ["ascii", pytest.param("latin-1", marks=pytest.mark.slow)])
def test_output_in_any_encoding(slurm: Slurm, tmp_path: Path, encoding: str) -> None:
    """Characters that it lacks are escaped, and the files are written."""
    place = tmp_path / "cluster\u2026"
    done = run_apart(slurm, place, cwd=tmp_path, PYTHONIOENCODING=encoding)
    assert done.returncode == 0 and done.stderr == ""
    assert "cluster\\u2026" in done.stdout and (place / "cluster.yaml").is_file()


def test_closed_output_is_accepted(slurm: Slurm, tmp_path: Path) -> None:
    """With `>&-` the files are written, and nothing is printed."""
    command = f"exec {shlex.quote(sys.executable)} -m pytest_clustersmoke.cli init new >&-"
    env = {**os.environ, "PATH": f"{slurm.bin}:/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        ["/bin/sh", "-c", command], cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True
    )
    assert done.returncode == 0 and done.stderr == ""
    assert (tmp_path / "new" / "cluster.yaml").is_file()


@pytest.mark.parametrize(
    ("name", "text", "own"),
    [
        ("pyproject.toml", "[project]\nname = 'x'\n", True),
        ("pyproject.toml", "[tool.pytest.ini_options]\n", False),
        ("pyproject.toml", "[tool.pytest]\n", False),
        ("tox.ini", "[tox]\n", True),
        ("tox.ini", "[pytest]\n", False),
        ("setup.cfg", "[tool:pytest]\n", False),
        ("pytest.ini", "", False),
    ],
)
def test_pytest_ini_is_written_if_needed(
    init: Init, tmp_path: Path, name: str, text: str, own: bool
) -> None:
    """It is not written next to other settings of pytest; the printed command fits either case."""
    new = tmp_path / "new"
    new.mkdir()
    (new / name).write_text(text)
    output = init("--cluster", "mine").stdout
    assert (
        (new / "pytest.ini").exists() and "smoke_tests" in (new / "pytest.ini").read_text()
    ) is own
    paths = "" if own else "smoke_tests "
    assert f"  pytest {paths}--cluster mine --cluster-dry-run" in output
    assert (new / name).read_text() == text


def test_suite_is_that_of_the_repository() -> None:
    """It has the programs, their tests and their data, but no caches and no hidden files."""
    root = Path(__file__).parents[2]
    listed = subprocess.run(
        ["git", "ls-files", "smoke_tests"], cwd=root, capture_output=True, text=True
    )
    names = set(suite_files())
    assert {"smoke_tests/train_mlp.py", "smoke_tests/data/instructions.jsonl"} <= names
    if listed.returncode == 0:  # a copy without its history has no list to compare with
        assert names == set(listed.stdout.split())


def test_shipped_profiles_repeat_the_sizes_of_the_suite() -> None:
    """A profile that states what a phase writes states what its marker does."""
    file = load_cluster_file(REPOSITORY / "cluster.yaml", {"HOME": "/home/me", "USER": "me"})
    needs = {phase.name: phase.needs for phase in shipped_phases()}
    for name in file.names:
        for phase, settings in file.profile(name).phases.items():
            assert settings.writes_gib in (None, needs[phase].writes_gib), (name, phase)
