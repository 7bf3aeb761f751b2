"""What logs said with a time stamp stands beside the events of a finding, and decides nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .test_timeline import Job, findings, ranks

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


def job(folder: Path, ahead: float = 0.0) -> Job:
    made = Job(folder, 2, 1).run({0: 0.0, 1: ahead})
    for rank, node in ((0, 0), (1, 1)):
        made.said(rank, 9.0, "step", step=4, steps=9, local_rank=0, node_rank=node)
    made.fails(0, FAILED)
    return made


def stderr(made: Job, text: str, written: float = WRITTEN) -> None:
    log = made.dir.rank_logs(0) / "x" / "attempt_0" / "None" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text(text)
    os.utime(log, (written, written))


def lines(made: Job) -> list[str]:
    told: list[str] = findings(made)[0].detail["timeline"]
    return told


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
def test_a_stamped_line_stands_where_it_was_said(tmp_path: Path, zone: str, stamp: str) -> None:
    """Between the events, in the order of time, in whatever zone this machine is."""
    made = job(tmp_path)
    stderr(made, f"no stamp\n{stamp}the disk is slow\n1970-01-01 00:16:50.1 the end\n")
    told = [line for line in lines(made) if "slow" in line]
    assert len(told) == 1 and told[0].startswith("  -1.500 s  rank 0 (n0) logs: "), lines(made)
    order = [float(line.split(" s ")[0]) for line in lines(made)]
    assert order == sorted(order) and len(order) > 3


def test_syslog_has_whole_seconds(tmp_path: Path, zone: str) -> None:
    """And no year: that of the event is taken."""
    made = job(tmp_path)
    stderr(made, "Jan  1 00:16:48 n0 kernel: NVRM: Xid 79\n")
    assert "  -2.000 s  rank 0 (n0) logs: Jan  1 00:16:48 n0 kernel: NVRM: Xid 79" in lines(made)


def test_severe_lines_are_told_first_and_few(tmp_path: Path) -> None:
    """A program that logs every step hides no warning, and no event."""
    made = job(tmp_path)
    steps = [f"1970-01-01 00:16:{second:02} INFO step {second}\n" for second in range(1, 50)]
    steps[7] = "1970-01-01 00:16:08 ERROR the disk is slow\n"
    stderr(made, "".join(steps))
    told = [line for line in lines(made) if " logs: " in line]
    assert len(told) == 4 and "the disk is slow" in told[0]
    assert [line.split()[-1] for line in told[1:]] == ["47", "48", "49"]
    assert any("has done step 4, its last" in line for line in lines(made))
    assert any("raises ValueError: boom" in line for line in lines(made))


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
def test_a_stamp_that_cannot_be_true_is_left_out(tmp_path: Path, text: str, written: float) -> None:
    """Absurd, behind the file's own time, talked of, backwards, or of another day."""
    made = job(tmp_path)
    before = lines(made)
    stderr(made, text, written)
    assert lines(made) == before


@pytest.mark.parametrize(
    "stamp", ["1970-01-01 00:00:00", "1970-01-01 00:16:41", "2038-01-19 00:00:00"]
)
def test_stamps_of_logs_put_no_cause_before_another(tmp_path: Path, stamp: str) -> None:
    """Causes are ordered by events: rank 1, which failed later, stays behind, whatever it logs."""
    made = job(tmp_path)
    made.fails(1, FAILED + 0.5, "another thing", "KeyError")
    log = made.dir.rank_logs(1) / "x" / "attempt_0" / "None" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"{stamp} CRITICAL I was first\n" * 50)
    found = findings(made)
    assert ranks(found, True) == [0, 1] and "boom" in found[0].cause


def test_a_log_of_a_node_whose_clock_is_wrong(tmp_path: Path) -> None:
    """Is put right with the node's clock."""
    made = Job(tmp_path, 2, 1).run({0: 0.0, 1: 30.0})
    made.fails(1, FAILED + 30.0)
    log = made.dir.torchrun_log(1)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("E0101 00:17:19.000000 7 api.py:869] failed (exitcode: 1)\n")
    os.utime(log, (WRITTEN + 30, WRITTEN + 30))
    (told,) = [line for line in lines(made) if "torchrun logs" in line]
    assert float(told.split(" s ")[0]) == pytest.approx(-1.0, abs=0.01)


def test_hostile_words_are_cleaned(tmp_path: Path) -> None:
    """One line each, without control characters, of a length that can be shown."""
    made = job(tmp_path)
    stderr(made, "1970-01-01 00:16:49 ERROR \x1b[31m\x07" + "x" * 5000 + "\n")
    (told,) = [line for line in lines(made) if " logs: " in line]
    assert told.isprintable() and len(told) < 200
