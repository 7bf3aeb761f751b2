"""Events are read back as written; other lines are counted and never raise."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_clustersmoke.config.metrics import METRICS
from pytest_clustersmoke.evidence.telemetry import (
    EventWriter,
    parse_finite,
    parse_ints,
    parse_number,
    parse_numbers,
    parse_rows,
    parse_texts,
    read_events,
    typical_s,
)

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def test_an_event_is_read_back(tmp_path: Path) -> None:
    """Fields, common fields and both clocks come back as they were written."""
    writer = EventWriter(tmp_path / "deep" / "e.jsonl", rank=3)
    writer.write("step", step=1, loss=0.5)
    writer.close()
    (record,) = read_events(tmp_path / "deep" / "e.jsonl").records
    assert (record["event"], record["rank"], record["step"], record["loss"]) == ("step", 3, 1, 0.5)
    assert record["time"] > 1e9 and record["mono"] > 0


def test_an_event_is_on_disk_when_write_returns(tmp_path: Path) -> None:
    """The event of a process that is killed right after the write is there."""
    child = os.fork()
    if not child:
        EventWriter(tmp_path / "e").write("last")
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    assert read_events(tmp_path / "e").last("last")


def test_events_are_private(tmp_path: Path) -> None:
    """The file is 0600."""
    EventWriter(tmp_path / "e").write("x")
    assert (tmp_path / "e").stat().st_mode & 0o777 == 0o600


@settings(derandomize=True, suppress_health_check=list(HealthCheck), deadline=None, max_examples=60)
@given(PLAIN)
def test_any_value_is_one_line_of_json(tmp_path: Path, value: Any) -> None:
    """Any plain value makes one line that is strict JSON."""
    path = tmp_path / "e"
    path.unlink(missing_ok=True)
    writer = EventWriter(path)
    writer.write("x", value=value)
    writer.close()
    (line,) = path.read_text().split("\n")[:-1]
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert len(read_events(path).records) == 1


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"no json",
        b"[1]",
        b"null",
        b'"text"',
        b'{"event": 1, "time": 1, "mono": 1}',
        b'{"event": "x"}',
        b'{"event": "x", "time": "now", "mono": 1}',
        b'{"event": "x", "time": true, "mono": 1}',
        b'{"event": "x", "time": 1, "mono"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"event": "x", "time": 1, "mono": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda line: repr(line[:12]),
)
def test_invalid_line_is_counted(tmp_path: Path, line: bytes) -> None:
    """A torn, foreign or hostile line is counted; the events around it are read."""
    good = b'{"event": "x", "time": 1, "mono": 2}\n'
    path = tmp_path / "e"
    path.write_bytes(good + line + b"\n" + good)
    events = read_events(path)
    assert len(events.records) == 2 and events.unreadable_lines == 1


@given(st.binary(max_size=300))
@settings(derandomize=True, suppress_health_check=list(HealthCheck), deadline=None, max_examples=60)
def test_any_bytes_can_be_read(tmp_path: Path, content: bytes) -> None:
    """No content of a file makes reading it fail."""
    path = tmp_path / "e"
    path.write_bytes(content)
    events = read_events(path)
    lines = content.removesuffix(b"\n").count(b"\n") + bool(content)
    assert len(events.records) + events.unreadable_lines == lines


def test_a_writer_waits_for_no_reader(tmp_path: Path) -> None:
    """A FIFO lies in the place of the journal of an old run, which the next run closes. Nobody
    reads it, so opening it to write would never return."""
    os.mkfifo(tmp_path / "journal.jsonl")
    with pytest.raises(OSError, match=r"journal\.jsonl"):
        EventWriter(tmp_path / "journal.jsonl")
    with pytest.raises(OSError, match="not a regular file"):
        reader = os.open(tmp_path / "journal.jsonl", os.O_RDONLY | os.O_NONBLOCK)
        try:
            EventWriter(tmp_path / "journal.jsonl")
        finally:
            os.close(reader)


def test_a_missing_file_has_no_events(tmp_path: Path) -> None:
    """A missing file, or a directory instead of a file, has no events."""
    assert read_events(tmp_path / "none").records == []
    assert read_events(tmp_path).records == []


def test_last_is_the_newest(tmp_path: Path) -> None:
    """Of several events with the same name the last one counts."""
    writer = EventWriter(tmp_path / "e")
    for step in (1, 2):
        writer.write("step", step=step)
    last = read_events(tmp_path / "e").last("step")
    assert last is not None and last["step"] == 2
    assert read_events(tmp_path / "e").last("done") is None


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (1, 1.0),
        (0.5, 0.5),
        ("inf", math.inf),
        ("-inf", -math.inf),
        (True, None),
        ("1", None),
        (None, None),
        ([1], None),
        ({}, None),
        pytest.param(10**400, None, id="huge"),
    ],
)
def test_numbers(value: Any, read: float | None) -> None:
    """Anything but a number is None; infinities are written as strings."""
    assert parse_number(value) == read


@pytest.mark.parametrize("value", [None, {}, "x", 7, True])
def test_lists_of_a_wrong_type_are_empty(value: Any) -> None:
    """A job may write anything in a list's place."""
    assert parse_numbers(value) == [] and parse_ints(value) == []
    assert parse_texts(value) == [] and parse_rows(value) == []


def test_lists_keep_what_has_the_right_type() -> None:
    """A list of numbers keeps its length, and a value that is not a number becomes NaN."""
    mixed = [1, 2.5, "inf", True, None, "x", {"a": 1}, [3]]
    numbers = parse_numbers(mixed)
    assert numbers[:3] == [1.0, 2.5, math.inf] and all(map(math.isnan, numbers[3:]))
    assert len(numbers) == len(mixed)
    assert parse_ints(mixed) == [1] and parse_texts(mixed) == ["inf", "x"]
    assert parse_rows(mixed) == [{"a": 1}]
    assert [parse_finite(item) for item in mixed[:4]] == [1.0, 2.5, None, None]


def test_nan_is_kept() -> None:
    """NaN is read back as NaN, so that a criterion sees it."""
    assert math.isnan(parse_number("nan") or 0.0) and math.isnan(parse_number(math.nan) or 0.0)


def test_every_metric_has_a_unit_and_a_meaning() -> None:
    """Each metric has a unit and an explanation."""
    assert all(kind.unit and kind.meaning for kind in METRICS.values())
    assert (
        METRICS["peak_memory_gib"].unit == "GiB" and not METRICS["peak_memory_gib"].higher_is_better
    )


def test_without_marks_only_the_last_step_is_read(tmp_path: Path) -> None:
    """Of the steps only the last complete one is read; other events are read as always."""
    path = tmp_path / "events.jsonl"
    writer = EventWriter(path)
    writer.write("start", rank=0)
    for step in range(50):
        writer.write("step", step=step)
        if step == 20:
            writer.write("stage", name="train")
    writer.close()
    with path.open("a") as stream:
        stream.write('{"event": "step", "time": 1.0, "mo')
    every, few = read_events(path), read_events(path, all_marks=False)
    assert few.last("step") == every.last("step") and len(list(few.named("step"))) == 1
    others = [record for record in every.records if record["event"] != "step"]
    assert [record for record in few.records if record["event"] != "step"] == others
    assert [few.line_of(record) for record in few.records] == [1, 23, 52]
    assert every.line_of(every.records[-1]) == 52


def test_disturbed_passes_do_not_count() -> None:
    """Two of ten passes may take any time."""
    assert typical_s([1.0] * 8 + [9.0, 0.1]) == 1.0


def test_writer_begins_a_new_line_after_one_that_another_left_torn(tmp_path: Path) -> None:
    """A controller was killed as it wrote: the first line of the next one counts."""
    path = tmp_path / "journal.jsonl"
    for event in ("intent", "attached", "closed"):
        writer = EventWriter(path)
        writer.write(event)
        writer.close()
        if event == "intent":
            path.write_text(path.read_text() + '{"event": "subm')
    events = read_events(path)
    assert [record["event"] for record in events.records] == ["intent", "attached", "closed"]
    assert events.unreadable_lines == 1
