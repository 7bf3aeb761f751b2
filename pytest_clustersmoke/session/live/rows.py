"""The view's rows: a head that counts, then a row a phase; those that do not fit are folded into
the last one. Pure: states, marks and a clock in, lines of text out."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ...text import plural
from .board import DONE, ENDING, PENDING, RUNNING, WAITING, PhaseState
from .event_tail import Mark

STYLES = {RUNNING: "cyan", ENDING: "cyan", PENDING: "yellow", WAITING: "dim", "passed": "green"}
ORDER = (RUNNING, ENDING, PENDING, WAITING, DONE)
MIN_WIDTH, MIN_ROWS = 20, 1
DAY_S = 24 * 3600


def rows(
    title: str,
    states: Sequence[PhaseState],
    marks: Mapping[str, Mark],
    now: float,
    width: int,
    height: int,
) -> list[Text]:
    """At most `height` rows of at most `width` cells; `now` in Unix seconds. None where there is
    too little room for any, or every phase is done."""
    if width < MIN_WIDTH or height < MIN_ROWS or all(one.state == DONE for one in states):
        return []
    head = Text(f"{title}: {_counts(states)}", style="bold")
    room = height - 1
    shown = _most_telling(states, room if len(states) <= room else room - 1)
    hidden = [one for one in states if one not in shown]
    lines = [head, *_table(shown, marks, now, width)]
    if hidden and room:
        lines.append(Text(f"  and {len(hidden)} more: {_listed(hidden)}", style="dim"))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def ansi(lines: Iterable[Text], colour: bool) -> list[str]:
    """The rows as a terminal takes them, without line ends; plain where there is no colour."""
    console = Console(
        force_terminal=colour,
        color_system="standard" if colour else None,
        width=10_000,  # they are as short as they have to be
        legacy_windows=False,
    )
    told = []
    for line in lines:
        with console.capture() as capture:
            console.print(line, end="", soft_wrap=True, highlight=False)
        told.append(capture.get())
    return told


def _counts(states: Sequence[PhaseState]) -> str:
    """How many phases are in which state: "1 of 8 phases done, 2 running, 5 pending"."""
    count = Counter(one.state for one in states)
    count[RUNNING] += count.pop(ENDING, 0)
    others = [f"{count[name]} {name}" for name in (RUNNING, PENDING, WAITING) if count[name]]
    return ", ".join([f"{count[DONE]} of {plural(len(states), 'phase')} done", *others])


def _listed(states: Iterable[PhaseState]) -> str:
    count = Counter(one.outcome or one.state for one in states)
    return ", ".join(f"{number} {name}" for name, number in count.items())


def _most_telling(states: Sequence[PhaseState], room: int) -> list[PhaseState]:
    """As many as there is room for, in their own order: those that run before those that wait,
    and those before what is done (of which the last are shown)."""
    ranked = sorted(states, key=lambda one: ORDER.index(one.state))
    done = [one for one in ranked if one.state == DONE]
    ranked = [one for one in ranked if one.state != DONE] + done[::-1]
    kept = {one.phase for one in ranked[: max(0, room)]}
    return [one for one in states if one.phase in kept]


def _table(
    states: Sequence[PhaseState], marks: Mapping[str, Mark], now: float, width: int
) -> list[Text]:
    names = _column([one.phase for one in states], most=max(8, width // 3))
    words = _column([one.outcome or one.state for one in states])
    times = _column([_elapsed(one, now) for one in states], right=True)
    details = _details(states, marks, now)
    told = []
    for one, name, word, took, detail in zip(states, names, words, times, details, strict=True):
        line = Text("  ").append(name).append("  ")
        line.append(word, style=STYLES.get(one.outcome or one.state, "red"))
        line.append("  ").append(took)
        for number, part in enumerate(detail):
            if number and line.cell_len + 2 + cell_len(part) > width:
                break  # a figure is shown whole or not at all
            line.append("  ").append(part)
        line.rstrip()
        told.append(line)
    return told


def _details(
    states: Sequence[PhaseState], marks: Mapping[str, Mark], now: float
) -> list[list[str]]:
    """What else there is to say of each, the most telling first; the figures of running phases
    stand below each other."""
    running = [one for one in states if one.state == RUNNING]
    known = [marks.get(one.phase, Mark()) for one in running]
    stepping = [mark for mark in known if mark.step]
    most = [max((len(str(n)) for n in ns), default=0) for ns in _counters(stepping)]
    columns = [
        _column([_how_far(mark, most[0], most[1]) for mark in known]),
        _column([f"loss {mark.loss:.4g}" if mark.loss is not None else "" for mark in known]),
        _column([_rate(mark) for mark in known], right=True),
        _column([one.detail for one in running]),
        [_job(one) for one in running],
    ]
    figures = {
        one.phase: [part for part in parts if part]
        for one, *parts in zip(running, *columns, strict=True)
    }
    others = [[part for part in (_reason(one, now), _job(one)) if part] for one in states]
    return [figures.get(one.phase, other) for one, other in zip(states, others, strict=True)]


def _counters(marks: Sequence[Mark]) -> tuple[list[int], list[int]]:
    return [mark.step for mark in marks], [mark.steps for mark in marks]


def _how_far(mark: Mark, step_width: int, steps_width: int) -> str:
    if mark.step:
        return f"step {mark.step:>{step_width}} of {mark.steps:>{steps_width}}"
    return f"stage {mark.stage}" if mark.stage else "starting"


def _rate(mark: Mark) -> str:
    return f"{mark.steps_per_s:.3g} steps/s" if mark.steps_per_s is not None else ""


def _reason(one: PhaseState, now: float) -> str:
    if one.state == ENDING:
        return "ended; waiting for its results"
    if one.state == WAITING:
        return one.detail or "to be submitted"
    if one.state != PENDING:
        return ""
    return ", ".join(part for part in (one.detail, start(one.estimated_start, now)) if part)


def _job(one: PhaseState) -> str:
    """The job's id where a scheduler gave it, for its own commands."""
    return f"job {one.job_id}" if one.job_id.isdigit() and one.state != DONE else ""


def start(estimated: float | None, now: float) -> str:
    """When Slurm thinks that a job will start; empty where it does not say, or that has passed."""
    if estimated is None or estimated <= now:
        return ""
    same_day = time.localtime(estimated)[:3] == time.localtime(now)[:3]
    form = "%H:%M" if same_day else "%Y-%m-%d %H:%M"
    return f"estimated start {time.strftime(form, time.localtime(estimated))}"


def _elapsed(one: PhaseState, now: float) -> str:
    """How long it has run, or waited: in the queue, where it is there."""
    if one.state == DONE:
        return _clock(one.run_s)
    since = one.started if one.state in (RUNNING, ENDING) else one.submitted
    return _clock(now - since if since is not None else None)


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return ""
    whole = max(0, int(seconds))
    days, hours, minutes = whole // DAY_S, whole // 3600 % 24, whole // 60 % 60
    text = (
        f"{hours}:{minutes:02}:{whole % 60:02}" if days or hours else f"{minutes}:{whole % 60:02}"
    )
    return f"{days}d {text}" if days else text


def _column(cells: Sequence[str], most: int | None = None, right: bool = False) -> list[str]:
    """The cells, all of one width: that of the widest, or `most`."""
    width = min(max(map(cell_len, cells), default=0), most or 10_000)
    told = []
    for cell in cells:
        text = Text(cell)
        text.truncate(width, overflow="ellipsis")
        gap = " " * (width - text.cell_len)
        told.append(f"{gap}{text.plain}" if right else f"{text.plain}{gap}")
    return told
