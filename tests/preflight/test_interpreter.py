"""Where the nodes' interpreter lies, as this machine's mounts show it."""

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

Told = Callable[[Profile], tuple[list[str], list[str]]]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    """The usage errors and the lines about a profile. Of the folders here `shared` is on NFS,
    `disk` on a disk and `memory` on a tmpfs; no node is this machine."""
    on = {"shared": "nfs4", "disk": "ext4", "memory": "tmpfs"}
    for folder in on:
        (tmp_path / folder).mkdir()
    mounts = [Mount(tmp_path / folder, kind, folder) for folder, kind in on.items()]
    monkeypatch.setattr(
        shared_paths, "read_mounts", lambda: [Mount(Path("/"), "overlay", "/"), *mounts]
    )
    nodes = records.parse_nodes(texts.node(host="elsewhere")).values()

    def asked(profile: Profile) -> tuple[list[str], list[str]]:
        problems = shared_paths.find_unshared(profile, [], {"PATH": str(tmp_path)})
        assert all(one.where == profile.where("python") and one.todo for one in problems)
        return [one.what for one in problems], shared_paths.find_doubtful(profile, [], nodes)

    return asked


def profile_of(folder: Path, python: Path | str, **keys: object) -> Profile:
    """A Slurm cluster of this interpreter, whose run directory every node sees."""
    runs = str(folder / "shared" / "runs")
    return make_profile(folder, backend="slurm", shared_dir=runs, python=str(python), **keys)


def python_at(folder: Path, base: Path) -> Path:
    """An environment's interpreter in `folder`: a link, as venv makes it, to one in `base`."""
    for one in (folder, base):
        one.mkdir(parents=True, exist_ok=True)
    real, python = base / "python3.11", folder / "python"
    real.touch()
    python.symlink_to(real)
    return python


def test_an_environment_that_no_node_sees(told: Told, tmp_path: Path) -> None:
    """A tmpfs never leaves this machine, wherever the environment's link leads to."""
    memory = tmp_path / "memory"
    own = python_at(memory / "own", memory / "own")
    shared_base = python_at(memory / "thin", tmp_path / "shared" / "py")
    of_system = memory / "python3"
    of_system.symlink_to("/usr/bin/env")
    for python in (own, shared_base, of_system):
        (error,), lines = told(profile_of(tmp_path, python))
        assert error.startswith(f"the interpreter, {python}, lies on {memory}, ")
        assert "(tmpfs)" in error and lines == []


def test_an_interpreter_behind_a_shared_environment(told: Told, tmp_path: Path) -> None:
    """The environment alone is not enough: what it is a link to has to be there as well."""
    python = python_at(tmp_path / "shared/env", tmp_path / "memory/py")
    (error,), lines = told(profile_of(tmp_path, python))
    assert error.startswith("the target of the interpreter's link, ") and lines == []
    assert str(tmp_path / "memory/py/python3.11") in error
    python = python_at(tmp_path / "shared/other", tmp_path / "disk/py")
    errors, (line,) = told(profile_of(tmp_path, python))
    assert errors == [] and line.startswith("the target of the interpreter's link (")
    assert "(ext4 on disk): nodes see it only if it is exported to them" in line


def test_an_environment_on_the_root_file_system_is_doubtful(told: Told, tmp_path: Path) -> None:
    """A node's image may have it, too, so it is a line and no error; once, though it is a link."""
    python = python_at(tmp_path / "env", tmp_path / "env")
    errors, (line,) = told(profile_of(tmp_path, python))
    assert errors == [] and line.startswith(f"the interpreter ({python}, ")
    assert "(overlay on /)" in line


def test_an_environment_that_all_nodes_share_is_silent(told: Told, tmp_path: Path) -> None:
    """Its interpreter may be of its own, or the system's."""
    own = python_at(tmp_path / "shared/env", tmp_path / "shared/py")
    of_system = tmp_path / "shared/env/python3"
    of_system.symlink_to("/usr/bin/env")
    for python in (own, of_system):
        assert told(profile_of(tmp_path, python)) == ([], [])


@pytest.mark.parametrize("python", ["python3", "/usr/bin/env python3", "{memory}/gone/python"])
def test_an_interpreter_of_the_nodes_own(told: Told, tmp_path: Path, python: str) -> None:
    """Of a command, of the system's own and of one that is not here nothing is known before."""
    profile = profile_of(tmp_path, python.format(memory=tmp_path / "memory"))
    assert told(profile) == ([], [])


def test_an_interpreter_under_node_local_is_told_once(told: Told, tmp_path: Path) -> None:
    """By the profile's own words, and not by the mount as well."""
    memory = tmp_path / "memory"
    profile = profile_of(tmp_path, python_at(memory, memory), node_local=[str(memory)])
    assert told(profile) == ([], [])
    assert len(list(shared_paths.find_node_local(profile, []))) == 1


def test_on_this_machine_every_interpreter_is_there(told: Told, tmp_path: Path) -> None:
    """Virtual nodes are this machine."""
    memory = tmp_path / "memory"
    profile = make_profile(tmp_path, python=str(python_at(memory, memory)))
    assert told(profile)[0] == []
