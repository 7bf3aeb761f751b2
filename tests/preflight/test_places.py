"""File systems of this machine, and the space on them."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_clustersmoke.jobs import slurm_records as records
from pytest_clustersmoke.preflight import access, disk_space, mounts, shared_paths
from tests.preflight import slurm_texts as texts
from tests.support.evidence import make_phase, make_profile

TABLE = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
25 24 0:23 / /dev/shm rw,relatime - tmpfs tmpfs rw,size=24684092k
30 27 0:45 / /home rw,relatime shared:12 - nfs4 server:/export/home rw,vers=4.2
31 30 0:46 / {folder}/with\\040space rw - lustre 10.0.0.1@o2ib:/work rw
32 30 0:47 / {folder}/over rw - tmpfs tmpfs rw
33 30 0:47 / {folder}/over rw - overlay overlay rw
nonsense
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of mounts in place of this machine's."""
    path = tmp_path / "mountinfo"
    path.write_text(TABLE.format(folder=tmp_path))
    monkeypatch.setattr(shared_paths, "read_mounts", lambda: mounts.read_mounts(path))
    monkeypatch.setattr(mounts, "EXPORTS", tmp_path / "exports")
    for name in ("with space", "over"):
        (tmp_path / name).mkdir()
    return path


@pytest.mark.parametrize(
    ("below", "kind"), [("with space/a/b", "lustre"), ("over/new", "overlay"), ("plain", "ext4")]
)
def test_mount_of_a_path_is_found(table: Path, tmp_path: Path, below: str, kind: str) -> None:
    """The deepest mount, the last of several; for a missing path, that of its parent."""
    mount = mounts.find_mount(tmp_path / below, mounts.read_mounts(table))
    assert mount is not None and mount.kind == kind


def test_mount_table_of_this_machine_is_read() -> None:
    """Something is mounted at the root."""
    mount = mounts.find_mount(Path("/"), mounts.read_mounts())
    assert mount is not None and mount.point == Path("/") and mount.kind


def no_slurm(path: Path) -> dict[str, str]:
    return {"PATH": str(path)}


def test_run_directory_that_no_node_sees_is_refused(table: Path, tmp_path: Path) -> None:
    """Run directory and script on an overlay, which only this machine sees, each with its line."""
    profile = make_profile(tmp_path, backend="slurm", shared_dir=str(tmp_path / "over" / "runs"))
    phase = make_phase(profile, script=tmp_path / "over" / "train.py")
    first, second = shared_paths.find_unshared(profile, [phase, phase], no_slurm(tmp_path))
    assert "the run directory" in first.what and "(overlay)" in first.what
    assert first.where == profile.where("shared_dir") and second.where == "test_x.py:1"


def test_shared_file_systems_are_accepted(table: Path, tmp_path: Path) -> None:
    """Network file systems, disks (which may be exported), and everything on `backend: local`."""
    for backend, below in (("slurm", "with space"), ("slurm", "plain"), ("local", "over")):
        profile = make_profile(tmp_path, backend=backend, shared_dir=str(tmp_path / below))
        phases = [make_phase(profile, script=tmp_path / below / "x.py")]
        assert shared_paths.find_unshared(profile, phases, no_slurm(tmp_path)) == []


@pytest.mark.parametrize(("host", "refused"), [(os.uname().nodename, 0), ("elsewhere", 1)])
def test_slurm_of_this_machine_alone_sees_every_path(
    table: Path, tmp_path: Path, host: str, refused: int
) -> None:
    """If every node is this machine, every node sees its paths."""
    bin = tmp_path / "bin"
    bin.mkdir()
    answer = tmp_path / "nodes"
    answer.write_text(texts.node(host=host) + "\n")
    (bin / "scontrol").write_text(f'#!/bin/sh\nwhile read line; do echo "$line"; done < {answer}\n')
    (bin / "scontrol").chmod(0o755)
    profile = make_profile(tmp_path, backend="slurm", shared_dir=str(tmp_path / "over"))
    environ = {"PATH": f"{bin}{os.pathsep}{os.environ['PATH']}"}
    assert len(shared_paths.find_unshared(profile, [], environ)) == refused


def test_disk_of_this_machine_gives_a_remark(table: Path, tmp_path: Path) -> None:
    """One line for all paths on it; none if it is exported or the nodes are this machine."""
    plain = str(tmp_path / "plain")
    profile = make_profile(tmp_path, backend="slurm", shared_dir=plain, python="python3")
    phases = [make_phase(profile, script=tmp_path / "plain" / "x.py")]
    others = records.parse_nodes(texts.node(host="elsewhere")).values()
    (line,) = shared_paths.find_doubtful(profile, phases, others)
    assert "ext4 on /dev/vda" in line and "only if it is exported" in line
    for text, silent in (
        (f"# {tmp_path} *(rw)\n/srv *(rw)\n", False),
        (f"/srv \\\n  {tmp_path}(rw)\n", False),
        (f'/srv *(rw)\n"{tmp_path}" \\\n  10.0.0.0/8(rw,sync)\n', True),
        (f"{tmp_path}/plain\t@nodes(rw)\n", True),
    ):
        (tmp_path / "exports").write_text(text)
        assert (shared_paths.find_doubtful(profile, phases, others) == []) is silent
    own = records.parse_nodes(texts.node(host=os.uname().nodename)).values()
    assert (
        shared_paths.find_doubtful(profile, phases, own)
        == []
        == shared_paths.find_doubtful(profile, phases, [])
    )


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


def sizes(**keys: int) -> SimpleNamespace:
    """An answer of statvfs; by default, 100 GiB and a million files are free."""
    known = {"f_bavail": 25 * 2**20, "f_frsize": 4096, "f_files": 2_000_000, "f_favail": 1_000_000}
    return SimpleNamespace(**(known | keys))


@pytest.mark.parametrize(
    ("free", "words"),
    [
        (sizes(), ""),
        (sizes(f_bavail=5 * 2**18), "has 5.0 GiB free"),
        (sizes(f_favail=20), "has room for 20 more files"),
        (sizes(f_files=0, f_favail=0), ""),  # no fixed number of inodes
        (sizes(f_bavail=0), "has 0 MiB free"),
    ],
)
def test_space_for_checkpoints_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: SimpleNamespace, words: str
) -> None:
    """Space and files for the phases that run at the same time, from `writes_gib`."""
    monkeypatch.setattr(os, "statvfs", lambda path: free)
    profile = make_profile(
        tmp_path,
        phases={"a": {"writes_gib": 14}, "b": {"writes_gib": 10}, "c": None},
        limits={"max_jobs": 1},
    )
    phases = [make_phase(profile, name) for name in "abc"]
    problems = list(disk_space.find_lack_of_space(profile, phases))
    assert len(problems) == bool(words) and all(words in problem.what for problem in problems)
    need = disk_space.estimate_need(profile, phases)
    assert need.bytes == disk_space.LEAST_BYTES + 14 * 2**30 and "a 14 GiB" in need.words
    assert "b 10 GiB" not in need.words  # one job at a time
