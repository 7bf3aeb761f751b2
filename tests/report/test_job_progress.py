"""How far a job got that did not pass: the ends of its ranks, their stages and their marks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.finding import UNDECIDED
from pytest_clustersmoke.evidence.phase_result import collect_phase
from pytest_clustersmoke.evidence.progress_record import LaneRecord, ProgressRecord
from pytest_clustersmoke.evidence.run_directory import write_json
from pytest_clustersmoke.report import job_progress
from pytest_clustersmoke.report.job_progress import MAX_LANES, merge_lanes, progress_record
from tests.report.staged import lane
from tests.support import records
from tests.support.evidence import Evidence

BEGUN = 1000.0


def stage(name: str, state: str, at: float) -> tuple[str, dict[str, Any]]:
    return "stage", {"name": name, "state": state, "time": BEGUN + at, "mono": at}


def step(number: int, at: float, **fields: Any) -> tuple[str, dict[str, Any]]:
    return "step", {"step": number, "steps": 400, "time": BEGUN + at, "mono": at, **fields}


def start(rank: int, at: float = 0.0) -> tuple[str, dict[str, Any]]:
    place = {"rank": rank, "node_rank": rank // 2, "node": f"n{rank // 2}", "host": "h"}
    return "start", {**place, "time": BEGUN + at, "mono": at}


def killed(folder: Path, outcome: str = "failed", **finding: Any) -> ProgressRecord | None:
    """Two nodes of two ranks: rank 1 was killed, rank 0 raised, rank 2 is done, rank 3 wrote
    nothing."""
    evidence = Evidence(folder, 2, 2)
    trains = [stage("init", "begin", 0.1), stage("init", "end", 2.0), stage("train", "begin", 2.0)]
    error = {"type": "RuntimeError", "message": "reset", "time": BEGUN + 9.5, "mono": 9.5}
    marks = [step(10 * at, 2.0 + at, loss=1.0 / at, steps_per_s=5.0) for at in range(1, 7)]
    evidence.rank(0, start(0, 0.5), *trains, *marks, ("error", error))
    evidence.rank(1, start(1), *trains, *marks[:4], step(40, 6.5), step(41, 8.0, loss="nan"))
    evidence.rank(2, start(2), *trains, stage("train", "end", 9.0), ("done", {}))
    found = records.finding(**{"ranks": [1], "hosts": ["n0"], "cause": "rank 1 died", **finding})
    write_json(evidence.dir.result, {"outcome": outcome, "findings": [found]})
    return progress_record(collect_phase(evidence.dir))


def states(progress: ProgressRecord | None) -> list[str]:
    assert progress is not None
    return [one.state for one in progress.lanes]


def test_each_rank_ends_in_its_own_way(tmp_path: Path) -> None:
    """The rank that a finding names, one that raised, one that is done, one that wrote nothing."""
    progress = killed(tmp_path)
    assert progress is not None and states(progress) == ["failed", "named", "done", "silent"]
    raised, named, _, silent = progress.lanes
    assert (named.note, named.step, named.nodes) == ("rank 1 died", 41, ["n0"])
    assert raised.note == "raised RuntimeError" and (raised.step, raised.last_s) == (60, 9.5)
    assert (silent.stages, silent.last_s, silent.step, silent.ranks) == ([], None, None, [3])
    assert (progress.steps, progress.step, progress.mark_every_s) == (400, 60, 0.5)


def test_stages_are_in_seconds_since_the_first_rank_started(tmp_path: Path) -> None:
    """One that did not end has no end."""
    progress = killed(tmp_path)
    assert progress is not None
    bars = [(bar.name, bar.begun_s, bar.ended_s) for bar in progress.lanes[1].stages]
    assert bars == [("init", pytest.approx(0.1), 2.0), ("train", 2.0, None)]
    assert progress.lanes[2].stages[1].ended_s == 9.0


def test_marks_have_the_rate_from_mark_to_mark(tmp_path: Path) -> None:
    """Of the named rank and the first of the others; a mark that only says that the rank lives
    counts for none, and a loss that is not a number stays one."""
    progress = killed(tmp_path)
    assert progress is not None and [track.rank for track in progress.tracks] == [0, 1]
    marks = progress.tracks[1].marks
    assert [mark.step for mark in marks] == [10, 20, 30, 40, 41]
    assert [mark.steps_per_s for mark in marks] == [5.0, 10.0, 10.0, 10.0, 0.5]
    assert (marks[0].loss, marks[-1].loss, marks[-1].at_s) == (1.0, "nan", 8.0)


def test_long_job_is_thinned_to_its_last_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every so many marks are kept, with the rate between those, and the last always."""
    monkeypatch.setattr(job_progress, "MAX_MARKS", 3)
    progress = killed(tmp_path)
    assert progress is not None
    assert [mark.step for mark in progress.tracks[0].marks] == [20, 40, 60]
    assert progress.tracks[0].marks[-1].steps_per_s == 10.0


def test_program_that_marks_each_step_is_not_called_throttled(tmp_path: Path) -> None:
    """Its marks have no rate of their own: the first has none, the others that between them."""
    evidence = Evidence(tmp_path).rank(0, start(0), step(1, 2.0), step(2, 4.0))
    write_json(evidence.dir.result, {"outcome": "failed"})
    progress = progress_record(collect_phase(evidence.dir))
    assert progress is not None and progress.mark_every_s is None
    assert [mark.steps_per_s for mark in progress.tracks[0].marks] == [None, 0.5]


def test_senseless_times_and_steps_break_nothing(tmp_path: Path) -> None:
    """Whatever a job writes: the record stays JSON."""
    found = records.finding(ranks=[0, 7])
    far = ("stage", {"name": "init", "state": "begin", "time": 1e308, "mono": 1.0})
    evidence = Evidence(tmp_path, 1, 2)
    evidence.rank(0, ("start", {"time": -1e308, "mono": 0.0}), far, step(10**400, 1.0))
    evidence.rank(
        1, start(1), step(1, 1.0), step(2, 1.0), step(3, -5.0), ("stage", {"state": "end"})
    )
    write_json(evidence.dir.result, {"outcome": "lost", "findings": [found]})
    progress = progress_record(collect_phase(evidence.dir))
    assert progress is not None
    json.dumps(progress.model_dump(), allow_nan=False)
    marks = {track.rank: track.marks for track in progress.tracks}
    assert marks[0] == [] and [mark.steps_per_s for mark in marks[1]] == [None, None, None]


def test_finding_of_a_node_names_its_ranks(tmp_path: Path) -> None:
    """Unless it names all nodes; a finding that follows from a cause names nobody."""
    assert states(killed(tmp_path / "a", ranks=[], hosts=["n0"]))[:2] == ["named", "named"]
    assert "named" not in states(killed(tmp_path / "b", ranks=[], hosts=["n0", "n1"]))
    assert "named" not in states(killed(tmp_path / "c", primary=False))


@pytest.mark.parametrize("where", [{"ranks": [0, 1]}, {"ranks": [], "hosts": ["n0"]}])
def test_cause_that_leaves_open_which_rank_is_wrong_names_none(
    where: dict[str, Any], tmp_path: Path
) -> None:
    """As of two halves that called different collectives; each rank is shown as it ended."""
    progress = killed(tmp_path, detail={UNDECIDED: True}, **where)
    assert states(progress) == ["failed", "unfinished", "done", "silent"]


def test_job_that_passed_has_no_record_of_it(tmp_path: Path) -> None:
    """Nor one of which no rank wrote anything."""
    assert killed(tmp_path / "a", outcome="passed") is None
    silent = Evidence(tmp_path / "b", 1, 2)
    write_json(silent.dir.result, {"outcome": "failed"})
    assert progress_record(collect_phase(silent.dir)) is None


def lanes_of(made: dict[int, records.Record], count: int = 512) -> list[LaneRecord]:
    """Ranks that ended in their training, except for those `made`."""
    each = [made.get(rank, lane([rank], "unfinished", "in train", rank)) for rank in range(count)]
    return [LaneRecord.model_validate(one) for one in each]


def test_many_ranks_that_ended_alike_share_a_lane() -> None:
    """The named one has its own, and comes first; no rank is lost."""
    odd = {341: lane([341], "named", "killed"), 9: lane([9], "failed", "raised X")}
    odd |= {rank: lane([rank], "silent", "wrote nothing") for rank in range(64, 72)}
    merged = merge_lanes(lanes_of(odd))
    assert [(one.state, len(one.ranks)) for one in merged] == [
        ("named", 1),
        ("silent", 8),
        ("failed", 1),
        ("unfinished", 502),
    ]
    assert sorted(rank for one in merged for rank in one.ranks) == list(range(512))
    assert merged[-1].nodes == ["node0, node1, node2, node3 and 59 more"]
    assert merged[-1].step == 0 and merged[-1].stages[0].begun_s == 0.1


def test_lanes_are_bounded_however_ranks_end() -> None:
    """512 ranks that each raised something else, 40 of them named."""
    odd = {rank: lane([rank], "failed", f"raised X{rank}") for rank in range(512)}
    odd |= {rank: lane([rank], "named", "killed") for rank in range(40)}
    merged = merge_lanes(lanes_of(odd))
    assert len(merged) == MAX_LANES
    assert sorted(rank for one in merged for rank in one.ranks) == list(range(512))
    assert sum(one.state == "named" for one in merged) == job_progress.MAX_NAMED + 1
    assert merged[-1].note == "ended in other ways"


def test_few_ranks_have_a_lane_each() -> None:
    """In their own order."""
    merged = merge_lanes(lanes_of({3: lane([3], "named", "killed")}, MAX_LANES))
    assert [one.ranks for one in merged] == [[rank] for rank in range(MAX_LANES)]
