"""Tables, sparklines and times, as the commands on the history print them."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

from .. import clean

MIN_WIDTH = 60
NO_WIDTH = 4096  # of what is no terminal: nothing there is cut or wrapped
BLOCKS = "▁▂▃▄▅▆▇█"


def moment(seconds: float) -> str:
    """A time as people read it, in UTC."""
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, OSError, ValueError):
        return "unknown"


def sparkline(values: Sequence[float | None], middle: float | None) -> str:
    """Bars, the oldest first, with gaps. The scale spans a tenth to each side of the middle at
    least, so that noise looks like noise; empty where the terminal cannot show bars."""
    from sparklines import sparklines

    finite = [one if one is not None and math.isfinite(one) else None for one in values]
    known = [one for one in finite if one is not None]
    if not known or not _shows(BLOCKS):
        return ""
    middle = known[-1] if middle is None else middle
    around = abs(middle) / 10
    lines: list[str] = sparklines(
        finite, minimum=min(*known, middle - around), maximum=max(*known, middle + around)
    )
    return lines[0]


def _shows(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table, by rich; as wide as the terminal, or as it needs to be where there is
    none. Columns of numbers, to the right, have a `#` before their title; those without any content
    are left out. https://no-color.org is heeded."""
    from rich.console import Console
    from rich.table import Table

    made = [[clean.line(cell) for cell in row] for row in rows]
    kept = [i for i in range(len(columns)) if any(row[i] for row in made)]
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for i in kept:
        number = columns[i].startswith("#")
        title = columns[i].removeprefix("#")
        grid.add_column(title, justify="right" if number else "left", overflow="fold")
    for row in made:
        grid.add_row(*(row[i] for i in kept))
    terminal = sys.stdout.isatty()
    plain = not terminal or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    console = Console(
        width=max(MIN_WIDTH, shutil.get_terminal_size().columns) if terminal else NO_WIDTH,
        color_system=None if plain else "standard",
        force_terminal=not plain,
        markup=False,
        emoji=False,
        highlight=False,
    )
    with console.capture() as captured:
        console.print(grid)
    return [line.rstrip() for line in captured.get().splitlines()]
