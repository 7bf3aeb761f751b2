"""The flight recorders of this process, of which torch has one for NCCL and one for gloo."""

from __future__ import annotations

import json
import pickle
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_clustersmoke.rank.recorder_dump import flight_recorder_json

HEADER = {"version": "2.10", "pg_config": {}}
NCCL = {"version": "2.10", "pg_config": {"0": {"ranks": "[0, 1]"}}}


def recorded(monkeypatch: pytest.MonkeyPatch, **dumps: Any) -> dict[str, Any]:
    functions = {name: lambda dump=dump: pickle.dumps(dump) for name, dump in dumps.items()}
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", SimpleNamespace(**functions))
    found: dict[str, Any] = json.loads(flight_recorder_json())
    found.pop("groups")
    return found


def test_calls_of_nccl_are_found_beside_an_empty_recorder_of_gloo(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch with CUDA has both, and says nothing of NCCL in the one that CPU builds have, too."""
    calls = NCCL | {"entries": [{"profiling_name": "nccl:all_reduce"}]}
    assert recorded(monkeypatch, _dump_fr_trace=HEADER, _dump_nccl_trace=calls) == calls
    mixed = HEADER | {"entries": [{"profiling_name": "gloo:barrier"}]}
    both = recorded(monkeypatch, _dump_fr_trace=mixed, _dump_nccl_trace=calls)
    assert both == NCCL | {"entries": [*mixed["entries"], *calls["entries"]]}


def test_calls_of_gloo_are_found_beside_an_unused_recorder_of_nccl(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = HEADER | {"entries": [{"profiling_name": "gloo:barrier"}]}
    assert recorded(monkeypatch, _dump_fr_trace=calls, _dump_nccl_trace=NCCL) == calls


def test_recorders_of_old_and_of_missing_versions_have_the_same_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch 2.2 returns bare entries, of NCCL alone."""
    assert recorded(monkeypatch, _dump_nccl_trace=[{"a": 1}]) == {"entries": [{"a": 1}]}
    assert recorded(monkeypatch) == {"entries": []}
