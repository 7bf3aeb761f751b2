"""Tables, sparklines and times."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

from ..text import sanitize_line

NO_WIDTH = 4096  # without a terminal, so that nothing is cut or wrapped
BLOCKS = "▁▂▃▄▅▆▇█"


def moment(seconds: float) -> str:
    """A time in UTC, for people."""
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, OSError, ValueError):
        return "unknown"


def sparkline(values: Sequence[float | None], middle: float | None) -> str:
    """Bars, oldest first; missing values are gaps. The scale spans at least a tenth on each side of
    the middle, so that noise looks like noise. Empty if the terminal cannot show bars."""
    from sparklines import sparklines

    shown = [value if value is not None and math.isfinite(value) else None for value in values]
    finite = [value for value in shown if value is not None]
    if not finite or not _encodes(BLOCKS):
        return ""
    middle = finite[-1] if middle is None else middle
    around = abs(middle) / 10
    lines: list[str] = sparklines(
        shown, minimum=min(*finite, middle - around), maximum=max(*finite, middle + around)
    )
    return lines[0]


def _encodes(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table, as wide as the terminal, or as needed without one. A `#` before a title
    makes a right-aligned column of numbers; empty columns are left out. Respects
    https://no-color.org."""
    from rich.console import Console
    from rich.table import Table

    cells = [[sanitize_line(cell) for cell in row] for row in rows]
    filled = [i for i in range(len(columns)) if any(row[i] for row in cells)]
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for i in filled:
        title = columns[i].removeprefix("#")
        is_number = title != columns[i]
        grid.add_column(title, justify="right" if is_number else "left", overflow="fold")
    for row in cells:
        grid.add_row(*(row[i] for i in filled))
    console = Console(
        width=None if sys.stdout.isatty() else NO_WIDTH,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        markup=False,
        emoji=False,
        highlight=False,
    )
    with console.capture() as captured:
        console.print(grid)
    return [line.rstrip() for line in captured.get().splitlines()]
