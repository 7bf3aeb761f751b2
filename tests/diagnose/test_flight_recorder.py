"""Flight recorders of all versions of torch, and invalid files."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.diagnose.flight_recorder import (
    KEPT,
    Channel,
    FlightRecord,
    read_flight_record,
    read_torch_dump,
)
from pytest_clustersmoke.evidence.run_directory import PhaseDir, write_json
from tests.diagnose.recorders import call, calls, fake_dump

GLOO = Channel("0", "gloo")
FRAMES = [{"name": "step", "filename": "/p/train.py", "line": 57}]
NCCL: dict[str, Any] = {
    "profiling_name": "nccl:all_reduce",
    "input_sizes": [[3, 4]],
    "output_sizes": [[3, 4]],
    "state": "completed",
    "frames": FRAMES,
    "time_created_ns": 10**18,
}
VERSIONS = {
    "2.2": {"entries": [{**NCCL, "pg_id": 0, "seq_id": 1}]},
    "2.3": {"entries": [{**NCCL, "pg_id": 0, "pg_name": "0", "seq_id": 1, "op_id": 1}]},
    "2.4": {
        "version": "2.3",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "entries": [
            {
                **NCCL,
                "process_group": ["0", "default_pg"],
                "collective_seq_id": 1,
                "p2p_seq_id": 0,
                "is_p2p": False,
                "input_dtypes": ["Float"],
            }
        ],
    },
    "2.13": {"version": "2.10", "entries": [call(1, sizes=[[3, 4]], line=57)]},
}


def written(folder: Path, value: Any) -> FlightRecord | None:
    directory = PhaseDir(folder)
    directory.dumps.mkdir(parents=True)
    directory.rank_flight_recorder(0).write_text(
        value if isinstance(value, str) else json.dumps(value)
    )
    return read_flight_record(directory, 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_formats_of_all_versions(version: str, tmp_path: Path) -> None:
    """Group, number, kind, elements, line and end of a call, whatever the fields are called."""
    record = written(tmp_path, VERSIONS[version])
    assert record is not None
    channel = Channel("0", "gloo" if version == "2.13" else "nccl")
    made = record.calls[channel][1]
    assert (made.kind, made.elements, made.sizes) == ("all_reduce", 12, "[3, 4]")
    assert made.line == "/p/train.py:57 in step" and made.ended
    assert record.last(channel) == 1 and record.pending(channel) is None


def test_group_numbered_per_process_is_not_compared(tmp_path: Path) -> None:
    """torch 2.2: the same number is a different group on another rank."""
    assert written(tmp_path, {"entries": [{**NCCL, "pg_id": 1, "seq_id": 1}]}) is None


def test_members_are_ours_or_torchs(tmp_path: Path) -> None:
    """gloo's own list is empty."""
    config = {"7": {"ranks": "[0, 2]"}, "8": {"ranks": "[0, 3]"}, "": {"ranks": "[]"}}
    record = written(
        tmp_path, {"entries": calls(1), "pg_config": config, "groups": {"7": [2, 1], "9": "x"}}
    )
    assert record is not None and record.members == {"7": (1, 2), "8": (0, 3)}


def test_brief_record_replaces_a_missing_one(tmp_path: Path) -> None:
    """The rank was ended before the source lines were written."""
    directory = PhaseDir(tmp_path)
    write_json(directory.rank_flight_recorder_brief(0), {"entries": calls(3, ended=False)})
    record = read_flight_record(directory, 0)
    assert record is not None and record.path == directory.rank_flight_recorder_brief(0)
    pending = record.pending(GLOO)
    assert pending is not None and pending.number == 3


def test_last_calls_are_kept(tmp_path: Path) -> None:
    """The number kept is bounded, and the record knows that its beginning is gone."""
    record = written(tmp_path, {"entries": calls(2 * KEPT)[9:]})
    assert record is not None and not record.whole
    assert sorted(record.calls[GLOO]) == list(range(KEPT + 1, 2 * KEPT + 1))


HOSTILE: list[Any] = [
    "",
    "[]",
    "{",
    "null",
    "[" * 100_000,
    '{"entries": 5}',
    '{"entries": [1, null, {}, {"process_group": 3}, {"pg_id": 0}]}',
    '{"entries": [{"pg_id": 0, "seq_id": "x"}]}',
    '{"entries": [{"pg_id": 0, "seq_id": true}]}',
    '{"entries": [{"pg_id": 0, "seq_id": -4}]}',
    '{"entries": [{"pg_id": 0, "seq_id": 1e999}]}',
    '{"entries": [{"pg_id": 0, "seq_id": ' + "9" * 4000 + "}]}",
    '{"entries": [{"process_group": [1, 2], "collective_seq_id": 1}]}',
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: str(text)[:50])
def test_invalid_record_counts_as_missing(text: str, tmp_path: Path) -> None:
    """A job wrote it: whatever it contains, no rank is accused because of it."""
    assert written(tmp_path, text) is None


@pytest.mark.parametrize(
    "field",
    [
        {"input_sizes": [[2**60] * 1000]},
        {"input_sizes": [[-1]]},
        {"input_sizes": ["x", 7]},
        {"input_sizes": {}},
        {"input_dtypes": [7, None]},
        {"profiling_name": 7},
        {"profiling_name": "x" * 10**6},
        {"state": []},
        {"time_created_ns": "soon"},
        {"frames": [7, {"filename": 3}, {"filename": "a", "line": "b"}]},
        {"frames": "x"},
        {"retired": "no"},
    ],
)
def test_field_of_the_wrong_type_counts_as_missing(field: dict[str, Any], tmp_path: Path) -> None:
    """The call itself stays, and is short."""
    record = written(tmp_path, {"entries": [call(1) | field]})
    assert record is not None and len(str(next(iter(record.calls.values()))[1])) < 1500


def test_oversized_record_counts_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not read."""
    monkeypatch.setattr("pytest_clustersmoke.diagnose.flight_recorder.MAX_BYTES", 1000)
    assert written(tmp_path, {"entries": calls(9)}) is None


class Bad:
    """Would end this process if it were unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (3,)


@pytest.mark.parametrize(
    "raw",
    [
        pickle.dumps(fake_dump([], pg_status=Bad())),
        pickle.dumps(fake_dump(calls(3)))[:-40],
        b"\x80\x02cos\nsystem\n(S'pg_ entries'\ntR.",
        b"\x80\x02pg_",
        b'{"entries": 3, "version": "pg_"}',
        b'{"message": "pg_',
        b"",
    ],
)
def test_other_files_are_not_dumps(tmp_path: Path, raw: bytes) -> None:
    """Nothing in them is executed."""
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(raw)
    assert read_torch_dump(path) is None
