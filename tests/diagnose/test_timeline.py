"""Events are shown in chronological order; stamped log lines decide nothing in it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.diagnose import diagnose
from pytest_clustersmoke.diagnose.failure_evidence import FailureEvidence
from pytest_clustersmoke.evidence.finding import Finding
from pytest_clustersmoke.evidence.run_directory import write_json
from pytest_clustersmoke.jobs.outcome import Judgement
from tests.support.evidence import Evidence

ECHO = "Connection closed by peer [127.0.0.1]:1"


class Job(Evidence):
    """Evidence with times of our choice, in seconds from the job's beginning."""

    def written(self, path: Path, time: float, event: str, **fields: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {"event": event, "time": 1000.0 + time, "mono": 1000.0 + time, **fields}
        with path.open("a") as stream:
            stream.write(json.dumps(record) + "\n")

    def event(self, rank: int, time: float, event: str, /, **fields: Any) -> None:
        self.written(self.dir.rank_events(rank), time, event, **fields)

    def saw(self, node: int, time: float, event: str, /, **fields: Any) -> None:
        self.written(self.dir.node_events(node), time, event, **fields)

    def run(self, clocks: Mapping[int, float]) -> Job:
        """All ranks train; `clocks`: node -> seconds that its clock is ahead."""
        for node, ahead in clocks.items():
            write_json(self.dir.node_facts(node), {"node": f"n{node}", "time": 1000.0 + ahead})
            self.dir.claim.touch()
            self.saw(node, 1.0 + ahead, "rendezvous")
        for rank in range(self.world):
            node = rank // self.per_node
            ahead = clocks[node]
            start = {"rank": rank, "node_rank": node, "node": f"n{node}", "pid": 100 + rank}
            self.event(rank, 2.0 + ahead, "start", **start)
            self.event(rank, 3.0 + ahead, "stage", name="train", state="begin")
        return self

    def fails(
        self, rank: int, time: float, message: str = "boom", kind: str = "ValueError"
    ) -> None:
        self.event(rank, time, "error", type=kind, message=message, traceback="tb")

    def dies(self, rank: int, time: float, reason: str = "rank_died") -> None:
        """The rank dies; its node sees it within half a second."""
        node = rank // self.per_node
        self.saw(node, time + 0.4, "trouble", reason=reason, why=f"rank {rank} ended")
        self.saw(node, time + 0.5, "ranks", states=[{"rank": rank, "alive": False}])

    def ends(self, node: int, time: float) -> None:
        flag = {"node_rank": node, "node": f"n{node}", "time": 1000.0 + time, "reason": "rank_died"}
        write_json(self.dir.abort, flag)


def diagnosed(job: Evidence) -> list[Finding]:
    return diagnose(job.result(), Judgement("failed", "the reason"))


def ranks(findings: list[Finding], primary: bool) -> list[int]:
    return [rank for finding in findings if finding.primary is primary for rank in finding.ranks]


@pytest.mark.parametrize("ahead", [-90.0, 0.0, 90.0])
def test_first_cause_is_first_despite_wrong_clocks(tmp_path: Path, ahead: float) -> None:
    """Node 1's clock is wrong by 90 s; its rank failed a second later, when the node already knew
    that the phase was ending."""
    job = Job(tmp_path, 2, 1).run({0: 0.0, 1: ahead})
    job.fails(0, 10.0, "labels are 7")
    job.saw(0, 10.1, "trouble", reason="rank_error", why="rank 0: labels are 7")
    job.ends(0, 10.1)
    job.saw(1, 10.6 + ahead, "trouble", reason="aborted", why="n0: labels are 7")
    job.fails(1, 11.0 + ahead, "another thing", "KeyError")
    findings = diagnosed(job)
    assert (ranks(findings, True), ranks(findings, False)) == ([0], [1])
    after = findings[1].detail["after_s"]
    assert after == pytest.approx(1.0, abs=0.6)
    assert f", {after:.1f} s after rank 0 (n0)" in findings[1].cause


def test_plausible_clocks_are_left_alone(tmp_path: Path) -> None:
    """The nodes' records are already in order."""
    job = Job(tmp_path, 2, 1).run({0: 0.0, 1: 0.2})
    job.saw(1, 1.5, "trouble", reason="aborted", why="x")
    job.ends(0, 1.4)
    assert FailureEvidence(job.result()).timeline.moved == {0: 0.0, 1: 0.0}


@pytest.mark.parametrize("ahead", [-90.0, 90.0])
def test_clock_is_corrected_by_necessary_order(tmp_path: Path, ahead: float) -> None:
    """Every node reads the others' facts before the rendezvous, which bounds it both ways."""
    moved = FailureEvidence(Job(tmp_path, 2, 1).run({0: 0.0, 1: ahead}).result()).timeline.moved
    assert moved[1] == pytest.approx(-ahead, abs=1.1)


@pytest.mark.parametrize(
    ("clock", "moved"),
    [
        ({"offset_s": 3.5, "error_s": 0.001}, -3.5),
        ({"offset_s": 0.04, "error_s": 0.05}, 0.0),
        ({"offset_s": 3.5}, 0.0),
        ({"offset_s": "nan", "error_s": 0.001}, 0.0),
        (7, 0.0),
        ({}, 0.0),
    ],
)
def test_measured_clock_is_corrected_by_its_offset(
    tmp_path: Path, clock: object, moved: float
) -> None:
    """As measured at the rendezvous; an offset within its error is ignored."""
    job = Job(tmp_path, 2, 1).run({0: 0.0, 1: 0.0})
    write_json(job.dir.node_meeting(1), {"ok": True, "clock": clock})
    assert FailureEvidence(job.result()).timeline.moved[1] == moved


def test_two_ranks_that_die_independently_are_both_reported(tmp_path: Path) -> None:
    """On two nodes, each seen by its own node before the flag: neither follows from the other."""
    job = Job(tmp_path, 2, 2).run({0: 0.0, 1: 0.0})
    job.dies(1, 10.0)
    job.dies(2, 10.1)
    job.ends(0, 10.4)
    job.fails(0, 10.2, ECHO)
    findings = diagnosed(job)
    assert (ranks(findings, True), ranks(findings, False)) == ([1, 2], [0])
    assert [finding.id for finding in findings] == ["rank-died", "rank-died", "rank-error"]


def test_exception_after_another_ranks_death_is_reported_too(tmp_path: Path) -> None:
    """It lost no peer, and its node did not yet know of the death."""
    job = Job(tmp_path, 2, 1).run({0: 0.0, 1: 0.0})
    job.dies(0, 10.0)
    job.fails(1, 10.1, "No space left on device", "OSError")
    job.saw(1, 10.2, "trouble", reason="rank_error", why="rank 1: OSError")
    findings = diagnosed(job)
    assert ranks(findings, True) == [0, 1] and findings[1].detail["signature"] == "disk_full"


def test_ranks_that_fail_with_the_same_message_are_one_cause(tmp_path: Path) -> None:
    """Numbers aside: a mistake in the program fails on every rank."""
    job = Job(tmp_path, 1, 3).run({0: 0.0})
    for rank in (2, 0, 1):
        job.fails(rank, 10.0 + 0.1 * (3 - rank), f"rank {rank} has no labels")
    findings = diagnosed(job)
    assert (ranks(findings, True), ranks(findings, False)) == ([2], [1, 0])


def test_victims_alone_are_in_order_of_time(tmp_path: Path) -> None:
    """If no error is a cause, the first rank that lost a peer is the one to look at."""
    job = Job(tmp_path, 1, 3).run({0: 0.0})
    for rank, at in ((0, 12.0), (1, 11.0), (2, 13.0)):
        job.fails(rank, at, ECHO)
    findings = diagnosed(job)
    assert (ranks(findings, True), ranks(findings, False)) == ([1], [0, 2])


def test_finding_has_a_timeline(tmp_path: Path) -> None:
    """A few moments on all nodes and ranks, with the seconds from the cause."""
    job = Job(tmp_path, 2, 1).run({0: 0.0, 1: 0.0})
    job.event(0, 9.0, "step", step=4, steps=9)
    job.fails(0, 10.0)
    job.fails(1, 10.5, ECHO)
    job.saw(1, 10.7, "trouble", reason="rank_error", why="rank 1")
    lines = diagnosed(job)[0].detail["timeline"]
    assert [line.split("s  ")[0].strip() for line in lines] == [
        "-7.000",
        "-1.000",
        "+0.000",
        "+0.500",
        "+0.700",
    ]
    assert "rank 0 (n0) completes step 4, its last mark" in lines[1] and "boom" in lines[2]
    assert lines[4].endswith("n1: sees: rank 1")


@pytest.mark.parametrize(
    "value",
    [None, "x", float("nan"), float("inf"), 10**400, -1, [], True],
    ids=lambda value: str(value)[:9],
)
def test_hostile_times_are_ignored(tmp_path: Path, value: object) -> None:
    """A value that is not a time counts as missing; nothing raises."""
    job = Job(tmp_path, 2, 1).run({0: 0.0, 1: 0.0})
    text = json.dumps(value)
    job.dir.node_facts(1).write_text(f'{{"node": "n1", "time": {text}}}')
    job.dir.abort.write_text(f'{{"reason": "x", "node_rank": {text}, "time": 1}}')
    job.event(0, 10.0, "step", step=None if value != value else value)
    with job.dir.rank_events(1).open("a") as stream:
        stream.write(f'{{"event": "error", "time": {text}, "mono": 1}}\n')
    assert diagnosed(job)


# The job begins 1000 s after the epoch, so rank 0 fails at 00:16:50 UTC and its log ends with it.
FAILED = 10.0
WRITTEN = 1010.2


@pytest.fixture(params=["UTC", "Asia/Tokyo", "America/St_Johns"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """This machine's zone; a node's logs are in UTC all the same."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def failing_job(folder: Path, ahead: float = 0.0) -> Job:
    made = Job(folder, 2, 1).run({0: 0.0, 1: ahead})
    for rank, node in ((0, 0), (1, 1)):
        made.event(rank, 9.0, "step", step=4, steps=9, local_rank=0, node_rank=node)
    made.fails(0, FAILED)
    return made


def write_stderr(made: Job, text: str, written: float = WRITTEN) -> None:
    log = made.dir.rank_logs(0) / "x" / "attempt_0" / "None" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text(text)
    os.utime(log, (written, written))


def timeline_of(made: Job) -> list[str]:
    lines: list[str] = diagnosed(made)[0].detail["timeline"]
    return lines


@pytest.mark.parametrize(
    "stamp",
    [
        "1970-01-01 00:16:48,500 root WARNING ",
        "[1970-01-01T00:16:48.500Z] ",
        "1970-01-01T09:16:48.5+09:00 stderr F ",
        "E0101 00:16:48.500000 77 x.cc:7] ",
        "[rank0]:[W101 00:16:48.500000000 x.cpp:7] ",
        "[1970-01-01_00:16:48.500] ",
    ],
)
def test_stamped_line_is_placed_by_its_time(tmp_path: Path, zone: str, stamp: str) -> None:
    """Between the events, in order of time, whatever zone this machine is in."""
    made = failing_job(tmp_path)
    write_stderr(made, f"no stamp\n{stamp}the disk is slow\n1970-01-01 00:16:50.1 the end\n")
    lines = [line for line in timeline_of(made) if "slow" in line]
    assert len(lines) == 1 and lines[0].startswith("  -1.500 s  rank 0 (n0) logs: "), timeline_of(
        made
    )
    order = [float(line.split(" s ")[0]) for line in timeline_of(made)]
    assert order == sorted(order) and len(order) > 3


def test_syslog_has_whole_seconds(tmp_path: Path, zone: str) -> None:
    """And no year: the event's year is used."""
    made = failing_job(tmp_path)
    write_stderr(made, "Jan  1 00:16:48 n0 kernel: NVRM: Xid 79\n")
    assert "  -2.000 s  rank 0 (n0) logs: Jan  1 00:16:48 n0 kernel: NVRM: Xid 79" in timeline_of(
        made
    )


def test_severe_lines_are_preferred_and_few(tmp_path: Path) -> None:
    """A program that logs every step hides no warning, and no event."""
    made = failing_job(tmp_path)
    steps = [f"1970-01-01 00:16:{second:02} INFO step {second}\n" for second in range(1, 50)]
    steps[7] = "1970-01-01 00:16:08 ERROR the disk is slow\n"
    write_stderr(made, "".join(steps))
    lines = [line for line in timeline_of(made) if " logs: " in line]
    assert len(lines) == 4 and "the disk is slow" in lines[0]
    assert [line.split()[-1] for line in lines[1:]] == ["47", "48", "49"]
    assert any("completes step 4, its last mark" in line for line in timeline_of(made))
    assert any("raises ValueError: boom" in line for line in timeline_of(made))


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("2038-01-19 03:14:08 ERROR words\n", WRITTEN),
        ("0000-00-00 00:00:00 ERROR words\n", WRITTEN),
        ("9999-12-31 23:59:59 ERROR words\n", 1e12),
        ("1970-01-01 00:16:49+99:99 ERROR words\n", WRITTEN),
        ("1970-02-31 00:16:49 ERROR words\n", WRITTEN),
        ("E9999 99:99:99.9 words ERROR\n", WRITTEN),
        ("1970-01-01 00:16:49 ERROR words\n", 900.0),
        (
            "reads the checkpoint that another run has written before, at 1970-01-01 00:16:49\n",
            WRITTEN,
        ),
        ("1970-01-01 00:30:00 later\n1970-01-01 00:16:49 ERROR words\n", 1810.0),
        ("1969-12-30 00:16:49 ERROR words\n", WRITTEN),
    ],
)
def test_impossible_stamp_is_left_out(tmp_path: Path, text: str, written: float) -> None:
    """Absurd, after the file's own time, inside the text, backwards, or from another day."""
    made = failing_job(tmp_path)
    before = timeline_of(made)
    write_stderr(made, text, written)
    assert timeline_of(made) == before


@pytest.mark.parametrize(
    "stamp", ["1970-01-01 00:00:00", "1970-01-01 00:16:41", "2038-01-19 00:00:00"]
)
def test_log_stamps_do_not_order_causes(tmp_path: Path, stamp: str) -> None:
    """Events do: rank 1, which failed later, stays second, whatever it logs."""
    made = failing_job(tmp_path)
    made.fails(1, FAILED + 0.5, "another thing", "KeyError")
    log = made.dir.rank_logs(1) / "x" / "attempt_0" / "None" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"{stamp} CRITICAL I was first\n" * 50)
    findings = diagnosed(made)
    assert ranks(findings, True) == [0, 1] and "boom" in findings[0].cause


def test_log_of_a_node_with_a_wrong_clock(tmp_path: Path) -> None:
    """It is corrected with the node's clock."""
    made = Job(tmp_path, 2, 1).run({0: 0.0, 1: 30.0})
    made.fails(1, FAILED + 30.0)
    log = made.dir.launcher_log(1)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("E0101 00:17:19.000000 7 api.py:869] failed (exitcode: 1)\n")
    os.utime(log, (WRITTEN + 30, WRITTEN + 30))
    (lines,) = [line for line in timeline_of(made) if "launcher logs" in line]
    assert float(lines.split(" s ")[0]) == pytest.approx(-1.0, abs=0.01)


def test_hostile_text_is_sanitized(tmp_path: Path) -> None:
    """One line each, without control characters, short enough to show."""
    made = failing_job(tmp_path)
    write_stderr(made, "1970-01-01 00:16:49 ERROR \x1b[31m\x07" + "x" * 5000 + "\n")
    (lines,) = [line for line in timeline_of(made) if " logs: " in line]
    assert lines.isprintable() and len(lines) < 200
