"""Directories that this user cannot use, and those that others can."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from pytest_clustersmoke.preflight import access
from pytest_clustersmoke.text import Problem
from tests.support.evidence import make_profile


def test_directory_that_cannot_be_searched_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report directory cannot be written; the last visible directory is named."""
    closed, whole = tmp_path / "closed", Path.exists

    def there(path: Path) -> bool:
        if closed in path.parents:
            raise PermissionError(13, "Permission denied")
        return whole(path)

    closed.mkdir()
    monkeypatch.setattr(Path, "exists", there)
    monkeypatch.setattr(os, "access", lambda path, mode: path != closed)
    profile = make_profile(tmp_path)
    (problem,) = access.find_unusable_paths(profile, [], closed / "reports" / "mine")
    assert problem.what.endswith(f"{closed}/reports/mine, but {closed} cannot be written")


IS_ROOT = os.getuid() == 0  # only root can give a directory to another user
FOREIGN = [("foreign", "foreign/shared")] if IS_ROOT else []


def judge(folder: Path, shared: str, **keys: object) -> tuple[list[Problem], list[str]]:
    """The problems and the remarks of a profile whose `shared_dir` is this one."""
    profile = make_profile(folder, shared_dir=str(folder / shared), **keys)
    problems = access.find_unusable_paths(profile, [], folder / "reports")
    return problems, access.remark_on_access(profile)


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777, 0o1775])
def test_directory_that_is_ours_or_sticky_is_trusted(tmp_path: Path, mode: int) -> None:
    """Also below a sticky one, as /tmp is."""
    (tmp_path / "above").mkdir()
    (tmp_path / "above" / "shared").mkdir()
    for name in ("above", "above/shared"):
        (tmp_path / name).chmod(mode)
    assert judge(tmp_path, "above/shared") == ([], [])
    assert judge(tmp_path, "above/shared/missing/too") == ([], [])


@pytest.mark.parametrize(
    ("mode", "why"), [(0o777, "by every user"), (0o775, "by its group"), (0o2770, "by its group")]
)
def test_shared_directory_that_others_can_write_is_refused(
    tmp_path: Path, mode: int, why: str
) -> None:
    """The problem names path, owner and mode, and how to mend it."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    (problem,), remarks = judge(tmp_path, "shared")
    owner = pwd.getpwuid(os.getuid()).pw_name
    assert problem.what.startswith(
        f"{shared} can be written {why} (owner {owner}, mode {mode:04o})"
    )
    assert problem.where.startswith(f"{tmp_path}/cluster.yaml:")
    assert problem.expected == (
        "a directory that only this user or root can write, or a sticky one"
    )
    assert problem.todo == f"`chmod go-w {shared}`"
    assert remarks == []


def test_directory_that_everybody_can_write_is_refused_also_above(tmp_path: Path) -> None:
    """A group may write above the shared directory: that is a remark."""
    above = tmp_path / "above"
    (above / "shared").mkdir(parents=True)
    above.chmod(0o777)
    (problem,), remarks = judge(tmp_path, "above/shared")
    assert problem.what.startswith(f"{above} can be written by every user")
    assert remarks == []
    above.chmod(0o2775)
    problems, (remark,) = judge(tmp_path, "above/shared")
    assert problems == []
    assert remark.startswith("warning: ")
    assert f"{above} can be written by its group" in remark
    above.chmod(0o755)
    assert judge(tmp_path, "above/shared") == ([], [])


def test_directories_above_the_target_of_a_link_count(tmp_path: Path) -> None:
    """As those above the link do."""
    (tmp_path / "open" / "shared").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "open" / "shared")
    (tmp_path / "open").chmod(0o777)
    (problem,), _ = judge(tmp_path, "link")
    assert problem.what.startswith(f"{tmp_path}/open can be written by every user")


@pytest.mark.parametrize(("name", "shared"), FOREIGN)
def test_shared_directory_of_another_user_is_refused(
    tmp_path: Path, name: str, shared: str
) -> None:
    """One of our own below it is not."""
    (tmp_path / name).mkdir()
    os.chown(tmp_path / name, 65534, 65534)
    (problem,), _ = judge(tmp_path, name)
    assert f"{name} belongs to another user (owner nobody, mode 0755)" in problem.what
    assert f"mkdir -m 700 {tmp_path}/{name}/root" in problem.todo
    assert judge(tmp_path, shared) == ([], [])


def test_words_fit_clusters_without_a_scheduler(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir(mode=0o777)
    (tmp_path / "shared").chmod(0o777)
    (problem,), _ = judge(tmp_path, "shared", backend="ssh", hosts=["h1"])
    assert "the files that the hosts run" in problem.what


@pytest.mark.parametrize(
    ("path", "bad"),
    [
        ("/a/b", ""),
        ("/a b/ü", ""),
        ("/a%j", "a `%`"),
        ("/a\nb", "a newline"),
        ("/a\rb", "a carriage return"),
        ("/%\n", "a `%` and a newline"),
        ("/a\\b", "a backslash"),
        ("/a\tb", "a control character"),
        ("/a\x7f", "a control character"),
    ],
)
def test_paths_that_sbatch_would_misread(path: str, bad: str) -> None:
    """Each of the characters is named; other paths are fine."""
    problems = [str(problem) for problem in access.check_path(Path(path), "here", "move it")]
    assert problems == (
        [
            f"here: the path {path!r} contains {bad}, which sbatch would misread; "
            "expected a path without it; move it"
        ]
        if bad
        else []
    )
