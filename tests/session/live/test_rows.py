"""The rows of the live view: aligned, folded, and cut to the terminal."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pytest_clustersmoke.evidence.history.usual_times import UsualTimes
from pytest_clustersmoke.session.live.board import PhaseState
from pytest_clustersmoke.session.live.event_tail import Mark
from pytest_clustersmoke.session.live.rows import ansi, rows

NOW = time.mktime((2026, 3, 4, 12, 0, 0, 0, 0, -1))
PHASES = [
    PhaseState("ddp_1node", "done", outcome="passed", run_s=41.4),
    PhaseState("zero1_4node", "running", "n[1-4]", "71", NOW - 300, NOW - 62),
    PhaseState("lora_2node", "running", "n[5-6]", "72", NOW - 90, NOW - 3),
    PhaseState("allreduce", "pending", "Priority", "73", NOW - 4000, None, NOW + 3600),
    PhaseState("bad", "done", outcome="failed", run_s=7.0),
    PhaseState("last"),
]
MARKS = {
    "zero1_4node": Mark("train", 99, 1000, 2.34567, 4.2),
    "lora_2node": Mark("model"),
}


def drawn(
    width: int = 100, height: int = 20, phases: Any = PHASES, marks: Any = MARKS
) -> list[str]:
    return ansi(rows("cluster one", phases, marks, NOW, width, height), colour=False)


def test_each_phase_has_a_row() -> None:
    """States, times and details are aligned."""
    assert drawn() == [
        "cluster one: 2 of 6 phases done, 2 running, 1 pending, 1 waiting",
        "  ddp_1node    passed      0:41",
        "  zero1_4node  running     1:02  step 99 of 1000  loss 2.346  4.2 steps/s  n[1-4]  job 71",
        "  lora_2node   running     0:03  stage model                               n[5-6]  job 72",
        "  allreduce    pending  1:06:40  Priority, estimated start 13:00  job 73",
        "  bad          failed      0:07",
        "  last         waiting           to be submitted",
    ]


@pytest.mark.parametrize("width", [20, 40, 60, 79])
def test_rows_are_not_wider_than_the_terminal(width: int) -> None:
    """Figures that do not fit are left out; a row that is cut shows an ellipsis."""
    lines = drawn(width)
    assert max(map(len, lines)) <= width
    (row,) = [row for row in lines if "4no" in row or "zero1" in row]
    assert "loss 2.346" in row or "loss" not in row


def test_nothing_is_drawn_without_room() -> None:
    """Nothing is drawn in too little room, or when every phase is done."""
    assert drawn(width=19) == drawn(height=0) == drawn(phases=PHASES[:1]) == []
    assert len(drawn(height=1)) == 1


def test_running_phases_are_folded_last() -> None:
    """With more phases than rows, running phases are kept first, then pending ones."""
    assert [row.split()[0] for row in drawn(height=4)] == [
        "cluster",
        "zero1_4node",
        "lora_2node",
        "and",
    ]
    assert drawn(height=4)[-1] == "  and 4 more: 1 passed, 1 pending, 1 failed, 1 waiting"
    five = drawn(height=6)
    assert [row.split()[0] for row in five[1:5]] == [
        "zero1_4node",
        "lora_2node",
        "allreduce",
        "last",
    ]
    assert five[-1] == "  and 2 more: 1 passed, 1 failed"
    assert len(drawn(height=7)) == 7 and "more" not in "".join(drawn(height=7))


@pytest.mark.parametrize(
    ("estimated", "text"),
    [
        (NOW + 60, "estimated start 12:01"),
        (NOW + 24 * 3600, "estimated start 2026-03-05 12:00"),
        (NOW - 60, ""),
        (None, ""),
    ],
)
def test_estimated_start(estimated: float | None, text: str) -> None:
    """The time, with the date on another day; nothing once it has passed."""
    waits = PhaseState("a", "pending", "", "7", NOW, None, estimated)
    assert (
        drawn(phases=[waits])[1].split(maxsplit=3)[3]
        == " ".join(filter(None, [text, " job 7"])).strip()
    )


def test_wide_characters_keep_the_columns() -> None:
    """Columns are counted in cells of the terminal, not in characters."""
    state = PhaseState("相位", "running", "n1", "", NOW, NOW)
    two = PhaseState("long", "running", "n2", "", NOW, NOW)
    assert drawn(phases=[state, two], marks={})[1:] == [
        "  相位  running  0:00  starting  n1",
        "  long  running  0:00  starting  n2",
    ]


def test_colour_only_if_wanted() -> None:
    """The colours are among the sixteen of a terminal's theme."""
    lines = rows("c", PHASES, MARKS, NOW, 80, 20)
    assert "\x1b" not in "".join(ansi(lines, colour=False))
    assert "\x1b[32mpassed" in ansi(lines, colour=True)[1] and "38;" not in "".join(
        ansi(lines, True)
    )


def test_loss_of_nan_is_shown() -> None:
    """The user must see it."""
    mark = {"zero1_4node": Mark("train", 1, 2, float("nan"))}
    assert "step 1 of 2  loss nan" in drawn(marks=mark)[2]


def test_long_waits_are_shown_in_days() -> None:
    """Not in hours."""
    waits = PhaseState("a", "pending", "Priority", "7", NOW - 180_000)
    assert drawn(phases=[waits])[1] == "  a  pending  2d 2:00:00  Priority  job 7"


def test_expected_end_of_the_run_and_of_running_phases() -> None:
    """From past runs; one that has passed says how long ago. Others have none."""
    usual = UsualTimes(NOW - 300, 900.0, 5, {"zero1_4node": 50.0, "lora_2node": 600.0, "last": 9.0})
    lines = ansi(rows("cluster one", PHASES, MARKS, NOW, 140, 20, usual), colour=False)
    assert lines[0].endswith(", 1 waiting, expected end 12:10")
    (late,) = [line for line in lines if "zero1_4node" in line]
    (soon,) = [line for line in lines if "lora_2node" in line]
    assert "expected end 11:59 (0:12 ago)" in late and "expected end 12:09 " in soon
    assert sum("expected end" in line for line in lines) == 3
