"""The sizes of a phase are in its marker, and its program has no defaults for them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.needs import has_packages, need_packages

need_packages("peft", "transformers")

# `make test-oldest` has no Megatron, and a torch without `fully_shard`.
MEGATRON = ("megatron",) if has_packages("megatron-core") else ()
FSDP = ("fsdp",) if has_packages("torch>=2.6") else ()
SUITES = ("mlp", "ddp", "epochs", "zero", "lora_sft", *FSDP, *MEGATRON, "allreduce")
HOW = {"precision", "offload"}  # how a phase trains, and no size


def markers() -> Iterator[pytest.Mark]:
    """The phase markers of the shipped suite."""
    for name in SUITES:
        module = importlib.import_module(f"smoke_tests.test_{name}")
        for _, criteria in inspect.getmembers(module, inspect.isclass):
            yield from (
                mark for mark in getattr(criteria, "pytestmark", ()) if mark.name == "phase"
            )


def parse(marker: pytest.Mark, args: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The arguments as the phase's program parses them."""
    program = importlib.import_module(marker.kwargs["script"].removesuffix(".py"))
    words = [f"--{name.replace('_', '-')}={value}" for name, value in args.items()]
    monkeypatch.setattr("sys.argv", ["program", *words])
    return vars(program.parse_args())


@pytest.mark.parametrize("marker", list(markers()), ids=lambda marker: marker.args[0])
def test_program_accepts_the_sizes_of_its_phase(
    marker: pytest.Mark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parser has each argument of the marker, full and small, with its type."""
    full = marker.kwargs["args"]
    for args in (full, full | marker.kwargs["small"]):
        assert args.items() <= parse(marker, args, monkeypatch).items()


@pytest.mark.parametrize("marker", list(markers()), ids=lambda marker: marker.args[0])
def test_program_has_no_default_sizes(
    marker: pytest.Mark, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without one of the marker's arguments it exits, and names the missing one."""
    full = marker.kwargs["args"]
    for name in full.keys() - HOW:
        with pytest.raises(SystemExit):
            parse(marker, {key: full[key] for key in full if key != name}, monkeypatch)
        assert f"required: --{name.replace('_', '-')}" in capsys.readouterr().err
