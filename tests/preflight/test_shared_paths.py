"""Which file systems the nodes share, and paths that they do not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_clustersmoke.jobs import slurm_records as records
from pytest_clustersmoke.preflight import mounts, shared_paths
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


def test_paths_under_node_local_are_refused(tmp_path: Path) -> None:
    """The interpreter; for phases of several nodes, outputs and DeepSpeed's configuration."""
    profile = make_profile(
        tmp_path, backend="slurm", node_local=["/scratch-local"], python="/scratch-local/bin/python"
    )
    args = {"output_dir": "/scratch-local/x", "cache_dir": "/scratch-local/hf"}
    args["deepspeed_config"] = "/scratch-local/ds.json"
    two, single = (make_phase(profile, args=args, nodes=nodes) for nodes in (2, 1))
    first, second, third = shared_paths.find_node_local(profile, [two, single])
    assert "the interpreter of the nodes" in first.what and first.where == profile.where("python")
    assert "output_dir=/scratch-local/x" in second.what
    assert "deepspeed_config=/scratch-local/ds.json" in third.what
    plain = make_profile(
        tmp_path, backend="slurm", node_local=["/scratch-local"], python="python3 -X dev"
    )
    assert list(shared_paths.find_node_local(plain, [single])) == []
