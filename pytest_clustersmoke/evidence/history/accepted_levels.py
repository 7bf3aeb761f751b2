"""Levels that a person accepted: nights before one are not compared with later nights."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from sqlite3 import Connection

from .history_database import open_for_writing
from .history_schema import WITH_ACCEPTED_LEVELS, read_version, shorten_line


@dataclass(frozen=True)
class AcceptedLevel:
    """Who accepted the level of a phase's metric, when (Unix seconds) and why; an empty metric
    stands for all metrics of the phase."""

    cluster: str
    phase: str
    metric: str
    accepted: float
    person: str
    reason: str

    def __str__(self) -> str:
        day = time.strftime("%Y-%m-%d", time.gmtime(self.accepted))
        return f"accepted on {day} by {self.person}: {self.reason}"


def store_accepted_level(level: AcceptedLevel, report_dir: Path) -> None:
    """Store an accepted level. Raises HistoryUnusable."""
    row = {
        name: shorten_line(value) if isinstance(value, str) else value
        for name, value in asdict(level).items()
    }
    with open_for_writing(report_dir) as connection:
        connection.execute(
            f"INSERT INTO accepted_levels ({', '.join(row)}) "
            f"VALUES ({', '.join(f':{name}' for name in row)})",
            row,
        )


def read_accepted_levels(
    connection: Connection, cluster: str, phase: str, before: float = math.inf
) -> list[AcceptedLevel]:
    """The levels of a phase that were accepted before a time, the newest first."""
    if (read_version(connection) or 0) < WITH_ACCEPTED_LEVELS:
        return []
    rows = connection.execute(
        f"SELECT {', '.join(AcceptedLevel.__dataclass_fields__)} FROM accepted_levels "
        "WHERE cluster = ? AND phase = ? AND accepted < ? ORDER BY accepted DESC, id DESC",
        (cluster, phase, before),
    )
    return [
        AcceptedLevel(str(cluster), str(phase), str(metric), float(accepted), str(who), str(why))
        for cluster, phase, metric, accepted, who, why in rows
    ]


def find_accepted_level(levels: Sequence[AcceptedLevel], metric: str) -> AcceptedLevel | None:
    """The newest level that was accepted for a metric; None if there is none."""
    return next((level for level in levels if level.metric in ("", metric)), None)
