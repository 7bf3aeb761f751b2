"""The live view on a real terminal: phases are shown while pytest waits, and nothing is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.session.live.terminal import Terminal
from tests.support.harness import Suite, pytest_command
from tests.support.load import load_factor

PYTEST = pytest_command()
# Only the view writes these.
OURS = ("cluster one: ", "step 3 of 40", "to be submitted", "starting", "stage ", " more: ")
LOADED = 2  # limits in seconds are for an idle machine; the tests share theirs


@pytest.fixture
def waiting(suite: Suite) -> Iterator[Suite]:
    """Two phases, the first of which waits after step 3 of 40 for the file `go`."""
    suite.cluster(phases=dict.fromkeys(["held", "wide"]))
    go = str(suite.path / "go")
    suite.phase("held", args={"steps": 40, "before": 3, "wait_for": go})
    suite.phase("wide", nodes=2)
    yield suite
    suite.path.joinpath("go").touch()


def squeezed(lines: list[str]) -> list[str]:
    return [" ".join(line.split()) for line in lines]


def results(terminal: Terminal) -> list[str]:
    """The lines between the collection and junit.xml."""
    lines = squeezed(terminal.text())
    first = next(n for n, line in enumerate(lines) if " items" in line or line.startswith("...."))
    last = next(
        n
        for n, line in enumerate(lines)
        if "generated xml" in line or (", run " in line and n > first)
    )
    return [line for line in lines[first:last] if line and "passed in" not in line]


def remains(terminal: Terminal) -> list[str]:
    """Lines on the terminal that contain a part of the view."""
    return [line for line in terminal.text() if any(word in line for word in OURS[1:])]


@pytest.mark.parametrize(
    ("words", "want"),
    [
        ((), ["collected 6 items", "test_held.py ... [ 50%]", "test_wide.py ... [100%]"]),
        pytest.param(
            ("-s",),
            ["collected 6 items", "test_held.py ..said by a test", ".", "test_wide.py ..."],
            marks=pytest.mark.slow,
        ),
        pytest.param(("-q",), ["...... [100%]"], marks=pytest.mark.slow),
        pytest.param(
            ("-v", "--color=no"),
            [
                "collected 6 items",
                "test_held.py::TestHeld::job PASSED [ 16%]",
                "test_held.py::TestHeld::test_all_done PASSED [ 33%]",
                "test_held.py::TestHeld::test_says PASSED [ 50%]",
                "test_wide.py::TestWide::job PASSED [ 66%]",
                "test_wide.py::TestWide::test_all_done PASSED [ 83%]",
                "test_wide.py::TestWide::test_says PASSED [100%]",
            ],
            marks=pytest.mark.slow,
        ),
        (("-n", "2"), ["2 workers [6 items]", "...... [100%]"]),
    ],
    ids=["plain", "s", "q", "v", "xdist"],
)
def test_view_is_shown_and_leaves_nothing(
    waiting: Suite, words: tuple[str, ...], want: list[str]
) -> None:
    """While pytest waits, each phase has a row with step n of N; at the end only pytest's own
    lines are left, in order."""
    says = "def test_all_done(self, phase): assert phase.ranks_done\ndef test_says(self, phase): {}"
    go = str(waiting.path / "go")
    args = {"steps": 40, "before": 3, "wait_for": go}
    waiting.phase("held", args=args, body=says.format("print('said by a test')"))
    waiting.phase("wide", nodes=2, body=says.format("pass"))
    with Terminal([*PYTEST, *words], waiting.path) as terminal:
        terminal.until(lambda: terminal.shows("step 3 of 40"))
        lines = squeezed(terminal.rows())
        head = next(
            n for n, row in enumerate(lines) if row.startswith("cluster one: 0 of 2 phases")
        )
        assert lines[head] == "cluster one: 0 of 2 phases done, 1 running, 1 waiting"
        held_row = lines[head + 1].split()
        assert held_row[:2] == ["held", "running"] and ":" in held_row[2]
        assert " ".join(held_row[3:]) == "step 3 of 40 loss 0.8333 10 steps/s local0"
        assert lines[head + 2] == "wide waiting to be submitted"
        assert not any(lines[head + 3 :])
        plain = "--color=no" in words
        assert terminal.style("held", "running") == ("default" if plain else "cyan", False)
        waiting.path.joinpath("go").touch()
        assert terminal.ended() == 0
        assert remains(terminal) == [] and not terminal.cursor_hidden
        assert results(terminal) == want
        assert terminal.text()[-1] == "FIT: 2 of 2 phases passed"


def test_view_fits_a_small_terminal(suite: Suite) -> None:
    """On 60 x 10 the last row counts what does not fit; the verdict is intact."""
    names = [f"phase_of_a_long_name_{n}" for n in range(12)]
    suite.cluster(phases=dict.fromkeys(names), limits={"poll_s": 0.2, "max_jobs": 1})
    for name in names:
        suite.phase(name, args={"steps": 4, "before": 3, "wait_for": str(suite.path / "never")})
    with Terminal(PYTEST, suite.path, columns=60, lines=10) as terminal:
        terminal.until(lambda: terminal.shows("step 3 of 4"))
        lines = terminal.rows()
        assert lines[1].startswith("test_phase_of_a_long_name_0.py")
        assert lines[2] == "cluster one: 0 of 12 phases done, 1 running, 11 waiting"
        assert lines[3].split()[:2] == ["phase_of_a_long_na…", "running"]
        assert lines[3].endswith("  step 3 of 4")
        assert [row.split()[1] for row in lines[4:9]] == ["waiting"] * 5
        assert lines[9] == "  and 6 more: 6 waiting"
        terminal.type("\x03")
        assert terminal.ended() == 2
        assert remains(terminal) == []
        text = terminal.text()
        assert text[0].startswith("====")
        assert any(line.startswith("INCONCLUSIVE: 0 of 12 phases finished") for line in text)


def test_lines_that_scroll_away_are_intact(waiting: Suite) -> None:
    """At the bottom of a terminal, lines scroll up to make room for the view, and none is lost."""
    with Terminal(PYTEST, waiting.path, columns=60, lines=6) as terminal:
        terminal.until(lambda: terminal.shows("step 3 of 40"))
        assert [row.split()[0] for row in terminal.rows()[1:6] if row] == [
            "test_held.py",
            "cluster",
            "held",
            "wide",
        ]
        waiting.path.joinpath("go").touch()
        assert terminal.ended() == 0
        assert remains(terminal) == []
        assert results(terminal) == [
            "collected 4 items",
            "test_held.py .. [ 50%]",
            "test_wide.py .. [100%]",
        ]


def test_typing_and_resizing_leave_nothing(waiting: Suite) -> None:
    """After typing, and after a change of the terminal's size, the view is redrawn to fit, and
    is gone at the end."""
    with Terminal(PYTEST, waiting.path) as terminal:
        terminal.until(lambda: terminal.shows("loss 0.8333  10 steps/s  local0"))
        terminal.type("\r\rabc")
        terminal.until(lambda: terminal.shows("abc"))
        terminal.until(lambda: not terminal.shows("abc"))  # drawn over within a second
        assert sum("step 3 of 40" in row for row in terminal.rows()) == 1
        terminal.resize(40, 30)
        terminal.until(lambda: terminal.shows("step 3 of 40") and not terminal.shows("loss"))
        assert sum("step 3 of 40" in row for row in terminal.rows()) == 1
        terminal.resize(120, 40)
        terminal.until(lambda: terminal.shows("loss 0.8333  10 steps/s  local0"))
        waiting.path.joinpath("go").touch()
        assert terminal.ended() == 0
        assert remains(terminal) == []
        assert "test_wide.py .. [100%]" in squeezed(terminal.text())


@pytest.mark.parametrize(
    "words", [pytest.param((), marks=pytest.mark.slow), ("-n", "2")], ids=["alone", "xdist"]
)
def test_ctrl_c_cancels_jobs_and_erases_the_view(waiting: Suite, words: tuple[str, ...]) -> None:
    """The jobs are cancelled at once, and the terminal is clean."""
    with Terminal([*PYTEST, *words], waiting.path) as terminal:
        terminal.until(lambda: terminal.shows("step 3 of 40"))
        factor, begun = load_factor(), time.monotonic()
        terminal.type("\x03")
        terminal.until(lambda: terminal.shows("KeyboardInterrupt"))
        assert remains(terminal) == []  # not only at the end
        assert terminal.ended() == 2
        seconds = time.monotonic() - begun
        assert seconds < 5 * max(LOADED, factor, load_factor())
        assert remains(terminal) == [] and not terminal.cursor_hidden
        verdict = "INCONCLUSIVE: 0 of 2 phases finished, 0 of 2 criteria reported (held: cancelled"
        assert terminal.text()[-1].startswith(verdict)
    assert [record["event"] for record in waiting.journal()].count("cancelled") == 1


def test_stopped_pytest_leaves_the_terminal_clean(waiting: Suite) -> None:
    """After Ctrl-Z the shell has a clean terminal; after `fg` the view returns."""
    shell = ["bash", "-c", 'set -m; "$@"; echo it stopped; read -r; fg > /dev/null', "shell"]
    with Terminal([*shell, *PYTEST], waiting.path) as terminal:
        terminal.until(lambda: terminal.shows("step 3 of 40"))
        terminal.type("\x1a")
        terminal.until(lambda: terminal.shows("it stopped"))
        assert remains(terminal) == []
        terminal.type("\r")
        terminal.until(lambda: terminal.shows("step 3 of 40"))
        waiting.path.joinpath("go").touch()
        assert terminal.ended() == 0
        assert remains(terminal) == [] and terminal.shows("it stopped")


def test_pytest_in_the_background_draws_nothing(waiting: Suite) -> None:
    """It must not draw over what the user does in the foreground."""
    shell = ["bash", "-c", 'set -m; "$@" & read -r; fg > /dev/null', "shell"]
    with Terminal([*shell, *PYTEST], waiting.path) as terminal:

        def trains() -> bool:
            events = waiting.shared.glob("*/phases/held/ranks/00000.jsonl")
            return any('"step": 3' in path.read_text() for path in events)

        terminal.until(trains)
        terminal.until(lambda: terminal.shows("test_held.py"))
        assert remains(terminal) == []
        terminal.type("\r")
        terminal.until(lambda: terminal.shows("step 3 of 40"))
        waiting.path.joinpath("go").touch()
        assert terminal.ended() == 0
        assert remains(terminal) == []


BROKEN = """\
import pytest_clustersmoke.session.live.rows as rows
def broken(*given):
    raise ValueError("no such\\x1b[2J width")
rows.rows = broken
"""


def test_error_in_the_view_does_not_fail_the_run(waiting: Suite) -> None:
    """Lines take the view's place, the reason is printed once, and the run passes."""
    waiting.path.joinpath("conftest.py").write_text(BROKEN)
    waiting.path.joinpath("go").touch()
    with Terminal(PYTEST, waiting.path) as terminal:
        assert terminal.ended() == 0
        text = terminal.text()
    warnings = [line for line in text if "ValueError" in line]
    assert warnings == ["  live view not shown: ValueError: no such\ufffd[2J width"]
    assert "  wide: submitted as job" in "\n".join(text[text.index(warnings[0]) :])


def test_killed_pytest_leaves_the_cursor_visible(waiting: Suite) -> None:
    """After SIGKILL the cursor is where pytest last wrote, and visible."""
    with Terminal(PYTEST, waiting.path) as terminal:
        terminal.until(lambda: terminal.shows("step 3 of 40"))
        os.kill(terminal.process.pid, signal.SIGKILL)
        terminal.ended()
        assert not terminal.cursor_hidden
        assert b"\x1b[?25l" not in terminal.raw
