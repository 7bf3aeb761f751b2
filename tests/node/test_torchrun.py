"""The environment of the ranks: what the profile says, and what may come from a login shell."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_clustersmoke.node.rendezvous import Meeting
from pytest_clustersmoke.node.torchrun import apply_environment, rank_environment
from tests.support.launched import make_job

MEETING = Meeting("127.0.0.1", 1, True)


def environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch, inherited: dict[str, str], **profile: str
) -> dict[str, str]:
    """The ranks' environment on a node with these variables, under a profile that sets others."""
    environ = {"PATH": "/usr/bin", **inherited}
    monkeypatch.setattr("os.environ", environ)
    job = make_job(folder, env_set=profile)
    apply_environment(profile, [])
    return rank_environment(job, MEETING)


def test_the_build_directory_is_the_runs_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that a login shell has set, with a stale lock in it perhaps, does not reach the ranks."""
    env = environment(tmp_path, monkeypatch, {"TORCH_EXTENSIONS_DIR": "/home/shared"})
    assert env["TORCH_EXTENSIONS_DIR"] == str(tmp_path / "build" / "0000")


def test_the_profiles_build_directory_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cluster.yaml sets was chosen for these runs."""
    inherited = {"TORCH_EXTENSIONS_DIR": "/home/shared"}
    env = environment(tmp_path, monkeypatch, inherited, TORCH_EXTENSIONS_DIR="/scratch/kernels")
    assert env["TORCH_EXTENSIONS_DIR"] == "/scratch/kernels"


def test_inherited_thread_counts_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OMP_NUM_THREADS is 1 only where nobody has chosen a number."""
    assert environment(tmp_path / "a", monkeypatch, {})["OMP_NUM_THREADS"] == "1"
    chosen = environment(tmp_path / "b", monkeypatch, {"OMP_NUM_THREADS": "8"})
    assert chosen["OMP_NUM_THREADS"] == "8"


@pytest.mark.parametrize(
    ("level", "kept"),
    [("INFO", "INFO"), ("trace", "trace"), ("WARN", "INFO"), ("VERSION", "INFO"), ("", "INFO")],
)
def test_nccl_says_at_least_its_transports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, kept: str
) -> None:
    """A profile may ask for more than INFO, and not for less."""
    env = environment(tmp_path, monkeypatch, {}, NCCL_DEBUG=level)
    assert env["NCCL_DEBUG"] == kept


def test_an_inherited_level_of_nccl_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login shell's TRACE, which is slow, is not the profile's choice."""
    env = environment(tmp_path, monkeypatch, {"NCCL_DEBUG": "TRACE"})
    assert env["NCCL_DEBUG"] == "INFO"
