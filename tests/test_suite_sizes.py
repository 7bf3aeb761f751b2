"""The suite's models at their documented sizes, on the meta device: nothing is allocated."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

SMOKE_TESTS = Path(__file__).resolve().parents[1] / "smoke_tests"


@pytest.mark.parametrize(
    ("program", "sizes", "parameters"),
    [
        ("train_mlp", (1024,), 25_175_040),
        ("train_ddp", (2048,), 100_681_728),
        ("train_zero", (4096, 6), 805_429_248),
        ("train_zero", (4096, 8), 1_073_905_664),
    ],
)
def test_parameter_counts(
    program: str, sizes: tuple[int, ...], parameters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each program's model has as many parameters as its document says, at the defaults too."""
    import torch

    monkeypatch.syspath_prepend(str(SMOKE_TESTS))
    module = importlib.import_module(program)
    with torch.device("meta"):
        model = module.build_model(*sizes)
    assert sum(one.numel() for one in model.parameters()) == parameters
    assert all(one.is_meta for one in model.parameters())


@pytest.mark.parametrize(
    ("program", "defaults"),
    [
        ("train_mlp", {"hidden_size": 1024, "batch_size": 32, "steps": 100}),
        ("train_ddp", {"hidden_size": 2048, "batch_size": 64, "steps": 100}),
        ("train_zero", {"hidden_size": 4096, "layers": 6, "micro_batch": 32, "steps": 100}),
    ],
)
def test_defaults_are_the_documents(
    program: str, defaults: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program run by hand without options has the sizes of its document."""
    monkeypatch.syspath_prepend(str(SMOKE_TESTS))
    module = importlib.import_module(program)
    monkeypatch.setattr("sys.argv", [program])
    given = vars(module.parse_args())
    assert {name: given[name] for name in defaults} == defaults
