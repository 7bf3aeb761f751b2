"""A rank's events count only if they are of the process that its node started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.event_origin import Launch, keep_own_events
from pytest_clustersmoke.evidence.phase_result import collect_phase
from pytest_clustersmoke.evidence.run_directory import PhaseDir, write_json
from pytest_clustersmoke.evidence.telemetry import SCHEMA, Events, EventWriter, read_events

START = {"schema": SCHEMA, "job": "run/phase", "rank": 0, "pid": 70, "pid_started": 105.5}
SEEN = {"rank": 0, "pid": 70, "pid_started": 105.5, "is_own": True}
RESULT = {
    "nonce": "abc",
    "boot_begun_s": 100.0,
    "boot_ended_s": 200.0,
    "namespaces": "pid:[1] time:[2]",
    "processes": [SEEN],
}


def judged(folder: Path, start: dict[str, Any], **result: Any) -> Events:
    """The events of a rank with this `start`, judged by the result of its node."""
    writer = EventWriter(folder / "e")
    writer.write("start", **{**START, **start})
    writer.write("done", seconds=1.0)
    writer.close()
    return keep_own_events(read_events(folder / "e"), "run/phase", 0, Launch.from_record(result))


@pytest.mark.parametrize(
    ("start", "nonce", "words"),
    [
        ({"nonce": "abc"}, "abc", ""),
        ({"nonce": "abc"}, "", ""),  # the node wrote no result, so its word is not known
        ({"nonce": "of an earlier run"}, "abc", "lacks the word of the node"),
        ({}, "abc", "lacks the word of the node"),
        ({"nonce": "abc", "job": "run/other"}, "abc", "job 'run/other', rank '0'; expected"),
    ],
)
def test_events_without_the_word_of_the_node_do_not_count(
    tmp_path: Path, start: dict[str, Any], nonce: str, words: str
) -> None:
    """Nor do those of another job. What is wrong is said."""
    events = judged(tmp_path, start, nonce=nonce)
    assert words in events.foreign and bool(words) is bool(events.foreign)
    assert (events.last("done") is None) is bool(words)


@pytest.mark.parametrize(
    ("start", "result", "words"),
    [
        ({}, {}, ""),
        ({"pid": None}, {}, "their `start` names no process"),
        (  # copied after the node had seen the rank
            {"pid": 71},
            {},
            "names process 71, started 105.50 s after boot; the node saw process 70, started "
            "105.50 s after boot as this rank",
        ),
        ({"pid_started": 106.0}, {}, "started 106.00 s after boot; the node saw process 70"),
        (
            {},
            {"is_own": False},
            "process 70, started 105.50 s after boot; the node saw it run, but",
        ),
        ({}, {"is_own": None}, ""),  # it had ended before the node looked
        ({}, {"processes": []}, ""),
        ({}, {"processes": [{**SEEN, "rank": 1, "pid": 99}]}, ""),
        (  # copied from an earlier run
            {"pid_started": 99.0},
            {"processes": []},
            "started 99.00 s after boot; the node ran this rank from 100.00 s to 200.00 s after",
        ),
        ({"pid_started": 201.0}, {"processes": []}, "from 100.00 s to 200.00 s after boot"),
        ({"pid_started": 99.99}, {"processes": []}, ""),  # a start time is cut to a tick
        # In a container with a clock of its own, only the word counts.
        ({"pid_started": 1.0, "namespaces": "pid:[3] time:[4]"}, {"processes": []}, ""),
        ({"namespaces": "pid:[1] time:[2]"}, {}, ""),
        # The node was killed, or is of a version that recorded no process.
        ({"pid_started": 1.0}, {"boot_begun_s": None, "processes": []}, ""),
        ({"pid_started": 1.0}, {"boot_ended_s": "soon", "processes": []}, ""),
    ],
)
def test_events_of_a_process_that_the_node_did_not_start_do_not_count(
    tmp_path: Path, start: dict[str, Any], result: dict[str, Any], words: str
) -> None:
    """Even with the node's word. The process of the file and that of the node are named."""
    if "is_own" in result:
        result = {"processes": [{**SEEN, **result}]}
    events = judged(tmp_path, {"nonce": "abc", **start}, **{**RESULT, **result})
    assert words in events.foreign and bool(words) is bool(events.foreign)
    assert (events.last("done") is None) is bool(words)


@pytest.mark.parametrize(
    "processes",
    [None, 7, [7], [{}], [{"rank": True, "pid": 1}], [{"rank": 0, "pid": "1", "pid_started": {}}]],
)
def test_malformed_record_of_processes_counts_as_missing(tmp_path: Path, processes: Any) -> None:
    """The word and the time are judged all the same."""
    events = judged(tmp_path, {"nonce": "abc"}, **{**RESULT, "processes": processes})
    assert not events.foreign


@pytest.mark.parametrize(("launcher", "accepted"), [("torchrun", False), ("torchrun-c10d", True)])
def test_rank_is_judged_by_the_node_that_started_it(
    tmp_path: Path, launcher: str, accepted: bool
) -> None:
    """In torchrun's own store the second node may get rank 0; otherwise it cannot have it."""
    directory = PhaseDir(tmp_path / "run" / "phases" / "phase")
    spec = {"run_id": "run", "phase": "phase", "nodes": 2, "ranks_per_node": 1}
    write_json(directory.spec, {**spec, "launcher": launcher})
    write_json(directory.node_result(0), {**RESULT, "nonce": "other", "processes": []})
    write_json(directory.node_result(1), RESULT)
    writer = EventWriter(directory.rank_events(0))
    writer.write("start", **START, nonce="abc")
    writer.write("done", seconds=1.0)
    writer.close()
    rank = collect_phase(directory).ranks[0]
    assert (rank.done, bool(rank.events.foreign)) == (accepted, not accepted)
