"""The wheel contains what `init` needs to write a suite that pytest plans, and that runs on a
real Slurm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_clustersmoke import lab
from pytest_clustersmoke.cli import suite_files
from tests.cli.recorded_slurm import REPOSITORY
from tests.support.needs import need_lab

# Package data for reports: a schema, a template and a script.
REPORTS = {"report.schema.json", "html/page.html.j2", "html/vendor/plot.umd.min.js"}
BUILD = "import sys, hatchling.build; print(hatchling.build.build_{}(sys.argv[1]))"


def build(kind: str, directory: Path) -> Path:
    """Build a wheel of this kind with the build backend itself."""
    directory.mkdir()
    command = [sys.executable, "-c", BUILD.format(kind), str(directory)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return directory / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel") / "dist")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables with which Python imports the wheel's package, not the repository's."""
    target = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(target), str(wheel)], check=True, capture_output=True)
    env = {**os.environ, "PYTHONPATH": str(target)}
    command = [sys.executable, "-c", "import pytest_clustersmoke as p; print(p.__file__)"]
    done = subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(target))
    return env


def run_module(
    env: dict[str, str], cwd: Path, *words: str, status: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run a Python module as a command, which must end with this status."""
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=cwd, env=env, capture_output=True, text=True
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def package_data() -> dict[str, bytes]:
    """The package's files that are not modules."""
    paths = (REPOSITORY / "pytest_clustersmoke").rglob("*")
    data = [path for path in paths if path.is_file() and path.suffix != ".py"]
    data = [path for path in data if path.parent.name != "__pycache__"]
    return {path.relative_to(REPOSITORY).as_posix(): path.read_bytes() for path in data}


def test_wheel_contains_the_suite(wheel: Path) -> None:
    """It has exactly the suite's files, byte for byte, and also cluster.yaml and the package's
    data."""
    files = {}
    data = package_data()
    assert {f"pytest_clustersmoke/report/{name}" for name in REPORTS} <= data.keys()
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if "/_smoke_tests/" in name:
                files[f"smoke_tests/{name.partition('/_smoke_tests/')[2]}"] = archive.read(name)
        assert data.keys() - set(archive.namelist()) == set()
        assert {name: archive.read(name) for name in data} == data
        config = archive.read("pytest_clustersmoke/_cluster.yaml")
    assert files == suite_files.suite_files()
    assert config == (REPOSITORY / "cluster.yaml").read_bytes()


def test_editable_install_points_to_the_repository(tmp_path: Path) -> None:
    """It copies nothing, so that `init` finds the suite that is being edited."""
    with zipfile.ZipFile(build("editable", tmp_path / "dist")) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        assert names == ["_pytest_clustersmoke.pth"]
        assert Path(archive.read(names[0]).decode().strip()) == REPOSITORY
    assert suite_files.shipped_suite() == REPOSITORY / "smoke_tests"


@pytest.mark.slow
def test_init_from_the_wheel_and_dry_run(installed: dict[str, str], tmp_path: Path) -> None:
    """Without Slurm: the profile `local`, and a plan of all its phases."""
    env = {**installed, "PATH": "/nowhere"}
    output = run_module(env, tmp_path, "pytest_clustersmoke.cli", "init", "new").stdout
    assert "no Slurm found" in output and "wrote pytest.ini, cluster.yaml, smoke_tests/" in output
    words = ("-p", "no:cacheprovider", "--cluster", "local", "--cluster-dry-run")
    plan = run_module(env, tmp_path / "new", "pytest", *words).stdout
    assert "train_zero.py" in plan and str(REPOSITORY / "smoke_tests") not in plan
    names = [phase.name for phase in suite_files.shipped_phases()]
    assert all(f"\n{name}" in plan or f" {name}" in plan for name in names)


@pytest.fixture
def own_lab() -> Iterator[lab.Lab]:
    """A Slurm with two nodes, on which phases of four nodes do not fit."""
    need_lab()
    running = lab.start_lab(lab.LabSettings(name=f"init-{os.getpid()}", nodes=2))
    yield running
    lab.stop_lab(running.name)


@pytest.mark.slow
@pytest.mark.lab
def test_init_from_the_wheel_and_real_run(installed: dict[str, str], own_lab: lab.Lab) -> None:
    """On a real Slurm: a dry run, then a phase on two nodes; phases that are too large are left
    out."""
    folder = Path(tempfile.mkdtemp(prefix="csm-", dir="/var/tmp"))
    try:
        env = {**installed, "SLURM_CONF": str(own_lab.slurm_conf)}
        words = ("init", "--cluster", "mine", "new")
        output = run_module(env, folder, "pytest_clustersmoke.cli", *words).stdout
        assert "partition main (the default): 2 nodes of 2 x fake" in output
        assert "zero1_4node: needs 4 nodes, a job can have 2" in output
        new = folder / "new"
        run = ("pytest", "-p", "no:cacheprovider", "--cluster", "mine")
        plan = run_module(env, new, *run, "--cluster-dry-run").stdout
        assert "#SBATCH --partition=main" in plan and "#SBATCH --nodes=2" in plan
        done = run_module(env, new, *run, "-k", "allreduce_over or AllReduceOverNodes").stdout
        assert done.splitlines()[-1].startswith("FIT"), done
        record = json.loads((new / "reports/latest/report.json").read_text())
        (phase,) = record["phases"]
        assert phase["phase"] == "allreduce_multinode" and phase["outcome"] == "passed"
        assert len(phase["nodes"]) == 2
        assert record["run_id"] in (new / "reports/latest/index.html").read_text()
    finally:
        shutil.rmtree(folder)
