"""The programs' own defaults are the full sizes, those of their documents where they have one."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

SMOKE_TESTS = Path(__file__).resolve().parents[1] / "smoke_tests"


@pytest.mark.parametrize(
    ("program", "defaults"),
    [
        ("train_mlp", {"hidden_size": 1024, "batch_size": 32, "steps": 100}),
        ("train_ddp", {"hidden_size": 2048, "batch_size": 64, "steps": 100}),
        ("train_zero", {"hidden_size": 4096, "layers": 6, "micro_batch": 32, "steps": 100}),
        ("train_allreduce", {"max_bytes": 2**30, "factor": 2, "iterations": 20, "repeats": 5}),
    ],
)
def test_defaults_are_the_full_sizes(
    program: str, defaults: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program run by hand without options has the sizes of its phase on a cluster."""
    monkeypatch.syspath_prepend(str(SMOKE_TESTS))
    module = importlib.import_module(program)
    monkeypatch.setattr("sys.argv", [program])
    given = vars(module.parse_args())
    assert {name: given[name] for name in defaults} == defaults
