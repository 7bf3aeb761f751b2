"""The rows of the live view: a head with counts, then a row per phase; the last row counts the
phases that do not fit. All functions are pure: states, progress marks and the time go in."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ...evidence.history.usual_times import UsualTimes
from ...text import outcome_words, plural
from .board import DONE, ENDING, PENDING, RUNNING, WAITING, PhaseState
from .event_tail import Mark

STYLES = {RUNNING: "cyan", ENDING: "cyan", PENDING: "yellow", WAITING: "dim", "passed": "green"}
ORDER = (RUNNING, ENDING, PENDING, WAITING, DONE)
MIN_WIDTH, MIN_ROWS = 20, 1
DAY_S = 24 * 3600
NOTHING_USUAL = UsualTimes()


def rows(
    title: str,
    states: Sequence[PhaseState],
    marks: Mapping[str, Mark],
    now: float,
    width: int,
    height: int,
    usual: UsualTimes = NOTHING_USUAL,
) -> list[Text]:
    """At most `height` rows of at most `width` cells; `now` is in Unix seconds. Empty if there is
    too little room, or every phase is done. `usual` says when they should end."""
    if width < MIN_WIDTH or height < MIN_ROWS or all(state.state == DONE for state in states):
        return []
    goes_on = any(state.state not in (ENDING, DONE) for state in states)
    end = _show_end(usual.end, now) if goes_on else ""
    head = Text(f"{title}: {', '.join(filter(None, (_count_states(states), end)))}", style="bold")
    room = height - 1
    shown = _most_important(states, room if len(states) <= room else room - 1)
    hidden = [state for state in states if state not in shown]
    lines = [head, *_table(shown, marks, now, width, usual)]
    if hidden and room:
        lines.append(Text(f"  and {len(hidden)} more: {_count_outcomes(hidden)}", style="dim"))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def ansi(lines: Iterable[Text], colour: bool) -> list[str]:
    """The rows as strings for a terminal, without line ends; plain text unless `colour`."""
    console = Console(
        force_terminal=colour,
        color_system="standard" if colour else None,
        width=10_000,  # the rows are cut already
        legacy_windows=False,
    )
    strings = []
    for line in lines:
        with console.capture() as capture:
            console.print(line, end="", soft_wrap=True, highlight=False)
        strings.append(capture.get())
    return strings


def _count_states(states: Sequence[PhaseState]) -> str:
    """The number of phases in each state: "1 of 8 phases done, 2 running, 5 pending"."""
    count = Counter(state.state for state in states)
    others = [f"{count[name]} {name}" for name in ORDER if count[name] and name != DONE]
    return ", ".join([f"{count[DONE]} of {plural(len(states), 'phase')} done", *others])


def _count_outcomes(states: Iterable[PhaseState]) -> str:
    count = Counter(outcome_words(state.outcome or state.state) for state in states)
    return ", ".join(f"{number} {name}" for name, number in count.items())


def _most_important(states: Sequence[PhaseState], room: int) -> list[PhaseState]:
    """As many states as there is room for, in their given order. Running phases are kept first,
    then waiting ones, then the last of those that are done."""
    ranked = sorted(states, key=lambda state: ORDER.index(state.state))
    done = [state for state in ranked if state.state == DONE]
    ranked = [state for state in ranked if state.state != DONE] + done[::-1]
    kept = {state.phase for state in ranked[: max(0, room)]}
    return [state for state in states if state.phase in kept]


def _table(
    states: Sequence[PhaseState],
    marks: Mapping[str, Mark],
    now: float,
    width: int,
    usual: UsualTimes,
) -> list[Text]:
    names = _align([state.phase for state in states], most=max(8, width // 3))
    words = _align([outcome_words(state.outcome or state.state) for state in states])
    times = _align([_show_elapsed(state, now) for state in states], right=True)
    details = _details(states, marks, now, usual)
    lines = []
    for state, name, word, clock, detail in zip(states, names, words, times, details, strict=True):
        line = Text("  ").append(name).append("  ")
        line.append(word, style=STYLES.get(state.outcome or state.state, "red"))
        line.append("  ").append(clock)
        for number, part in enumerate(detail):
            if number and line.cell_len + 2 + cell_len(part) > width:
                break  # a figure is shown whole or left out
            line.append("  ").append(part)
        line.rstrip()
        lines.append(line)
    return lines


def _details(
    states: Sequence[PhaseState], marks: Mapping[str, Mark], now: float, usual: UsualTimes
) -> list[list[str]]:
    """Further details of each phase, the most important first; the figures of running phases
    are aligned."""
    running = [state for state in states if state.state == RUNNING]
    progress = [marks.get(state.phase, Mark()) for state in running]
    stepping = [mark for mark in progress if mark.step]
    widths = [max((len(str(n)) for n in ns), default=0) for ns in _counters(stepping)]
    columns = [
        _align([_show_progress(mark, widths[0], widths[1]) for mark in progress]),
        _align([f"loss {mark.loss:.4g}" if mark.loss is not None else "" for mark in progress]),
        _align([_show_rate(mark) for mark in progress], right=True),
        _align([_show_end(expected_end(state, usual), now) for state in running]),
        _align([state.detail for state in running]),
        [_show_job(state) for state in running],
    ]
    figures = {
        state.phase: [part for part in parts if part]
        for state, *parts in zip(running, *columns, strict=True)
    }
    others = [
        [part for part in (_waiting_reason(state, now), _show_job(state)) if part]
        for state in states
    ]
    return [figures.get(state.phase, other) for state, other in zip(states, others, strict=True)]


def _counters(marks: Sequence[Mark]) -> tuple[list[int], list[int]]:
    return [mark.step for mark in marks], [mark.steps for mark in marks]


def _show_progress(mark: Mark, step_width: int, steps_width: int) -> str:
    if mark.step:
        return f"step {mark.step:>{step_width}} of {mark.steps:>{steps_width}}"
    return f"stage {mark.stage}" if mark.stage else "starting"


def _show_rate(mark: Mark) -> str:
    return f"{mark.steps_per_s:.3g} steps/s" if mark.steps_per_s is not None else ""


def _waiting_reason(state: PhaseState, now: float) -> str:
    if state.state == ENDING:
        return "awaiting its result"
    if state.state == WAITING:
        return state.detail or "to be submitted"
    if state.state != PENDING:
        return ""
    return ", ".join(part for part in (state.detail, start(state.estimated_start, now)) if part)


def _show_job(state: PhaseState) -> str:
    """The job's id for the scheduler's commands; empty for a local job."""
    return f"job {state.job_id}" if state.job_id[:1].isdigit() and state.state != DONE else ""


def start(estimated: float | None, now: float) -> str:
    """Slurm's estimate of a job's start; empty if there is none, or the time has passed."""
    if estimated is None or estimated <= now:
        return ""
    return f"estimated start {_show_clock(estimated, now)}"


def expected_end(state: PhaseState, usual: UsualTimes) -> float | None:
    """When a running phase should end, in Unix seconds; None if that is not known."""
    return usual.phase_end(state.phase, state.started) if state.state == RUNNING else None


def _show_end(expected: float | None, now: float) -> str:
    """The expected end, and how long ago that was."""
    if expected is None:
        return ""
    late = f" ({_show_duration(now - expected)} ago)" if expected < now else ""
    return f"expected end {_show_clock(expected, now)}{late}"


def _show_clock(seconds: float, now: float) -> str:
    """A time by this machine's clock; with its day, unless that is today."""
    same_day = time.localtime(seconds)[:3] == time.localtime(now)[:3]
    return time.strftime("%H:%M" if same_day else "%Y-%m-%d %H:%M", time.localtime(seconds))


def _show_elapsed(state: PhaseState, now: float) -> str:
    """How long the phase has been running, or else in the queue."""
    if state.state == DONE:
        return _show_duration(state.run_s)
    since = state.started if state.state in (RUNNING, ENDING) else state.submitted
    return _show_duration(now - since if since is not None else None)


def _show_duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    whole = max(0, int(seconds))
    days, hours, minutes = whole // DAY_S, whole // 3600 % 24, whole // 60 % 60
    text = (
        f"{hours}:{minutes:02}:{whole % 60:02}" if days or hours else f"{minutes}:{whole % 60:02}"
    )
    return f"{days}d {text}" if days else text


def _align(cells: Sequence[str], most: int | None = None, right: bool = False) -> list[str]:
    """The cells padded to one width: that of the widest, or at most `most`."""
    width = min(max(map(cell_len, cells), default=0), most or 10_000)
    aligned = []
    for cell in cells:
        text = Text(cell)
        text.truncate(width, overflow="ellipsis")
        gap = " " * (width - text.cell_len)
        aligned.append(f"{gap}{text.plain}" if right else f"{text.plain}{gap}")
    return aligned
