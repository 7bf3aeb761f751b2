"""The sizes of a phase stand with its marker, and its program has none of its own."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("peft")
pytest.importorskip("transformers")

SUITES = ("mlp", "ddp", "zero", "lora_sft", "allreduce")


def markers() -> Iterator[pytest.Mark]:
    """The phase markers of the suite that ships."""
    for name in SUITES:
        module = importlib.import_module(f"smoke_tests.test_{name}")
        for _, found in inspect.getmembers(module, inspect.isclass):
            yield from (mark for mark in getattr(found, "pytestmark", ()) if mark.name == "phase")


def parse(marker: pytest.Mark, args: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the phase's program makes of these arguments."""
    program = importlib.import_module(marker.kwargs["script"].removesuffix(".py"))
    words = [f"--{name.replace('_', '-')}={value}" for name, value in args.items()]
    monkeypatch.setattr("sys.argv", ["program", *words])
    return vars(program.parse_args())


@pytest.mark.parametrize("marker", list(markers()), ids=lambda marker: marker.args[0])
def test_a_program_takes_the_sizes_of_its_phase(
    marker: pytest.Mark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parser knows each argument of the marker, full and small, with its type."""
    full = marker.kwargs["args"]
    for args in (full, full | marker.kwargs["small"]):
        assert args.items() <= parse(marker, args, monkeypatch).items()


@pytest.mark.parametrize("marker", list(markers()), ids=lambda marker: marker.args[0])
def test_a_program_has_no_sizes_of_its_own(
    marker: pytest.Mark, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without one of the marker's arguments it ends, and names the one that is missing."""
    full = marker.kwargs["args"]
    for name in full:
        with pytest.raises(SystemExit):
            parse(marker, {key: full[key] for key in full if key != name}, monkeypatch)
        assert f"required: --{name.replace('_', '-')}" in capsys.readouterr().err
