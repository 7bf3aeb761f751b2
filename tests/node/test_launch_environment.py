"""The environment of the ranks: from the profile, and not from a login shell."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_clustersmoke.node.launch_environment import apply_environment, rank_environment
from pytest_clustersmoke.node.rendezvous import Endpoint
from tests.support.launched import make_job

ENDPOINT = Endpoint("127.0.0.1", 1, True)


def environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch, inherited: dict[str, str], **profile: str
) -> dict[str, str]:
    """The ranks' environment on a node with `inherited` variables and those of the profile."""
    environ = {"PATH": "/usr/bin", **inherited}
    monkeypatch.setattr("os.environ", environ)
    job = make_job(folder, env_set=profile)
    apply_environment(profile, [])
    return rank_environment(job, ENDPOINT)


def test_each_run_has_its_own_build_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login shell's directory, which may hold a stale lock, does not reach the ranks."""
    env = environment(tmp_path, monkeypatch, {"TORCH_EXTENSIONS_DIR": "/home/shared"})
    assert env["TORCH_EXTENSIONS_DIR"] == str(tmp_path / "build" / "0000")


def test_build_directory_of_the_profile_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cluster.yaml's choice is meant for these runs."""
    inherited = {"TORCH_EXTENSIONS_DIR": "/home/shared"}
    env = environment(tmp_path, monkeypatch, inherited, TORCH_EXTENSIONS_DIR="/scratch/kernels")
    assert env["TORCH_EXTENSIONS_DIR"] == "/scratch/kernels"


def test_inherited_thread_counts_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OMP_NUM_THREADS is 1 only if it is not set."""
    assert environment(tmp_path / "a", monkeypatch, {})["OMP_NUM_THREADS"] == "1"
    chosen = environment(tmp_path / "b", monkeypatch, {"OMP_NUM_THREADS": "8"})
    assert chosen["OMP_NUM_THREADS"] == "8"


def test_cublas_repeats_its_results_in_any_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in one that opens cuBLAS before its Rank; a choice of the profile stays."""
    name = "CUBLAS_WORKSPACE_CONFIG"
    assert environment(tmp_path / "a", monkeypatch, {})[name] == ":4096:8"
    assert environment(tmp_path / "b", monkeypatch, {}, **{name: ":16:8"})[name] == ":16:8"


@pytest.mark.parametrize(
    ("level", "kept"),
    [("INFO", "INFO"), ("trace", "trace"), ("WARN", "INFO"), ("VERSION", "INFO"), ("", "INFO")],
)
def test_nccl_logs_at_least_its_transports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, kept: str
) -> None:
    """A profile may ask for a higher level than INFO, but not for a lower one."""
    env = environment(tmp_path, monkeypatch, {}, NCCL_DEBUG=level)
    assert env["NCCL_DEBUG"] == kept


def test_inherited_nccl_level_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login shell's TRACE is slow, and not the profile's choice."""
    env = environment(tmp_path, monkeypatch, {"NCCL_DEBUG": "TRACE"})
    assert env["NCCL_DEBUG"] == "INFO"
