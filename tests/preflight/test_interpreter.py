"""The place of the nodes' interpreter, from this machine's mounts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_clustersmoke.config.profile import Profile
from pytest_clustersmoke.jobs import slurm_records as records
from pytest_clustersmoke.preflight import shared_paths
from pytest_clustersmoke.preflight.mounts import Mount
from tests.preflight import slurm_texts as texts
from tests.support.evidence import make_profile

Check = Callable[[Profile], tuple[list[str], list[str]]]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """The usage errors and the lines about a profile.

    Of the folders here, `shared` is on NFS, `disk` on a disk and `memory` on a tmpfs; no node is
    this machine.
    """
    on = {"shared": "nfs4", "disk": "ext4", "memory": "tmpfs"}
    for folder in on:
        (tmp_path / folder).mkdir()
    mounts = [Mount(tmp_path / folder, kind, folder) for folder, kind in on.items()]
    monkeypatch.setattr(
        shared_paths, "read_mounts", lambda: [Mount(Path("/"), "overlay", "/"), *mounts]
    )
    nodes = records.parse_nodes(texts.node(host="elsewhere")).values()

    def check_profile(profile: Profile) -> tuple[list[str], list[str]]:
        problems = shared_paths.find_unshared(profile, [], {"PATH": str(tmp_path)})
        assert all(
            problem.where == profile.where("python") and problem.todo for problem in problems
        )
        return [problem.what for problem in problems], shared_paths.find_doubtful(
            profile, [], nodes
        )

    return check_profile


def profile_of(folder: Path, python: Path | str, **keys: object) -> Profile:
    """A Slurm cluster with this interpreter, whose run directory every node sees."""
    runs = str(folder / "shared" / "runs")
    return make_profile(folder, backend="slurm", shared_dir=runs, python=str(python), **keys)


def python_at(folder: Path, base: Path) -> Path:
    """An environment's interpreter in `folder`: a link, as venv makes it, to one in `base`."""
    for directory in (folder, base):
        directory.mkdir(parents=True, exist_ok=True)
    real, python = base / "python3.11", folder / "python"
    real.touch()
    python.symlink_to(real)
    return python


def test_environment_in_memory_is_refused(check: Check, tmp_path: Path) -> None:
    """Only this machine sees a tmpfs, wherever the environment's link points."""
    memory = tmp_path / "memory"
    own = python_at(memory / "own", memory / "own")
    shared_base = python_at(memory / "thin", tmp_path / "shared" / "py")
    of_system = memory / "python3"
    of_system.symlink_to("/usr/bin/env")
    for python in (own, shared_base, of_system):
        (error,), lines = check(profile_of(tmp_path, python))
        assert error.startswith(f"the interpreter, {python}, lies on {memory}, ")
        assert "(tmpfs)" in error and lines == []


def test_target_of_a_shared_environments_link_is_checked(check: Check, tmp_path: Path) -> None:
    """Nodes need the target of the interpreter's link, too."""
    python = python_at(tmp_path / "shared/env", tmp_path / "memory/py")
    (error,), lines = check(profile_of(tmp_path, python))
    assert error.startswith("the target of the interpreter's link, ") and lines == []
    assert str(tmp_path / "memory/py/python3.11") in error
    python = python_at(tmp_path / "shared/other", tmp_path / "disk/py")
    errors, (line,) = check(profile_of(tmp_path, python))
    assert errors == [] and line.startswith("the target of the interpreter's link (")
    assert "(ext4 on disk): nodes see it only if it is exported to them" in line


def test_environment_on_the_root_file_system_gives_a_remark(check: Check, tmp_path: Path) -> None:
    """A node's image may have it too, so it is one remark and not an error."""
    python = python_at(tmp_path / "env", tmp_path / "env")
    errors, (line,) = check(profile_of(tmp_path, python))
    assert errors == [] and line.startswith(f"the interpreter ({python}, ")
    assert "(overlay on /)" in line


def test_shared_environment_gives_no_remark(check: Check, tmp_path: Path) -> None:
    """Its interpreter may be its own or the system's."""
    own = python_at(tmp_path / "shared/env", tmp_path / "shared/py")
    of_system = tmp_path / "shared/env/python3"
    of_system.symlink_to("/usr/bin/env")
    for python in (own, of_system):
        assert check(profile_of(tmp_path, python)) == ([], [])


@pytest.mark.parametrize("python", ["python3", "/usr/bin/env python3", "{memory}/gone/python"])
def test_interpreter_of_the_nodes_gives_no_remark(
    check: Check, tmp_path: Path, python: str
) -> None:
    """Nothing is known of a command, the system's Python, or one that does not exist here."""
    profile = profile_of(tmp_path, python.format(memory=tmp_path / "memory"))
    assert check(profile) == ([], [])


def test_interpreter_under_node_local_is_reported_once(check: Check, tmp_path: Path) -> None:
    """The profile's `node_local` decides; the mount is not reported as well."""
    memory = tmp_path / "memory"
    profile = profile_of(tmp_path, python_at(memory, memory), node_local=[str(memory)])
    assert check(profile) == ([], [])
    assert len(list(shared_paths.find_node_local(profile, []))) == 1


def test_local_backend_sees_every_interpreter(check: Check, tmp_path: Path) -> None:
    """Virtual nodes are this machine."""
    memory = tmp_path / "memory"
    profile = make_profile(tmp_path, python=str(python_at(memory, memory)))
    assert check(profile)[0] == []
