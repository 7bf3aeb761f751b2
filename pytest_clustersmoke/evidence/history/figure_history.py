"""What devices reached in the runs of the past: stored with a run, read to compare with."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from pathlib import Path
from sqlite3 import Connection
from typing import NamedTuple

from ..fingerprint import Fingerprint
from ..node_observation import DeviceFigure, PastFigure
from .accepted_levels import AcceptedLevel, find_accepted_level, read_accepted_levels
from .history_database import open_for_reading
from .history_schema import (
    WITH_FIGURES_BY_PHASE,
    WITH_MODELS,
    WITH_NODES,
    Setup,
    read_version,
    shorten_line,
)
from .node_history import DAY_S, KEPT_DAYS, MAX_NODE, RowNumbers, list_nodes
from .outlier_judge import WINDOW

MAX_DEVICE = 100  # characters; a UUID has 40
# Of one run: 1,024 nodes with eight GPUs, eight network cards and some ten figures of each.
MAX_FIGURES = 2**18
MAX_READ = 2**14  # of one node: 16 devices with ten figures in 100 runs

# A figure of a device: the name of the device, or of the node if it is about the node itself; and
# the figure's name.
FigureKey = tuple[str, str]


def key_of(figure: DeviceFigure) -> FigureKey:
    """Under what the past of a figure is found."""
    device, node = _name_device(figure)
    return device or node, shorten_line(figure.name)


def _name_device(figure: DeviceFigure) -> tuple[str, str]:
    """The name of the device, or else that of its node; the other one is empty."""
    device = shorten_line(figure.device, MAX_DEVICE)
    return device, "" if device else shorten_line(figure.node, MAX_NODE)


def _name_figure(figure: DeviceFigure) -> tuple[str, str, int]:
    return shorten_line(figure.name), shorten_line(figure.unit), int(figure.higher_is_better)


def insert_figures(
    connection: Connection, run: int, cluster: str, seen: float, figures: Iterable[DeviceFigure]
) -> None:
    """Store what devices reached in a run, whose row is `run`. Replaces what was stored of the run
    before, and deletes what is too old of the same devices."""
    connection.execute("DELETE FROM device_figures WHERE run = ?", (run,))
    nodes = RowNumbers(connection, "nodes", ("cluster", "name"))
    devices = RowNumbers(connection, "devices", ("cluster", "name", "node"))
    names = RowNumbers(connection, "figures", ("name", "unit", "higher_is_better"))
    phases = dict(connection.execute("SELECT phase, id FROM phases WHERE run = ?", (run,)))
    values, models = {}, {}
    for made in islice(figures, MAX_FIGURES):
        if made.node and math.isfinite(made.value):
            device = devices.find(cluster, *_name_device(made))
            node = nodes.find(cluster, shorten_line(made.node, MAX_NODE))
            key = (device, names.find(*_name_figure(made)), node)
            values[key] = (float(made.value), phases.get(made.phase))
            if made.model:
                models[device] = shorten_line(made.model)
    connection.executemany(
        "INSERT INTO device_figures (device, figure, node, seen, run, value, phase) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(*key, seen, run, *value) for key, value in values.items()],
    )
    connection.executemany(
        "UPDATE devices SET model = ? WHERE id = ?",
        [(model, device) for device, model in models.items()],
    )
    connection.executemany(
        "DELETE FROM device_figures WHERE device = ? AND figure = ? AND seen < ?",
        [(device, name, seen - KEPT_DAYS * DAY_S) for device, name, _ in values],
    )


def read_figure_past(
    report_dir: Path,
    cluster: str,
    phase: str,
    who: Fingerprint,
    figures: Collection[DeviceFigure],
    before: float = math.inf,
) -> dict[FigureKey, list[float]]:
    """`key_of` each figure -> its values in good runs of a phase of the same setup, the newest
    first, at most WINDOW, in the same unit. Runs before an accepted level do not count. Raises
    HistoryUnusable."""
    with open_for_reading(report_dir) as connection:
        if connection is None or (read_version(connection) or 0) < WITH_FIGURES_BY_PHASE:
            return {}
        levels = read_accepted_levels(connection, cluster, phase, before)
        runs = _GoodRuns(cluster, phase, Setup.of(who.hardware, who.shape, who.versions), before)
        return {key_of(figure): runs.read_values(connection, figure, levels) for figure in figures}


class _GoodRuns(NamedTuple):
    """The runs of a phase that a figure is compared with."""

    cluster: str
    phase: str
    setup: Setup
    before: float

    def read_values(
        self, connection: Connection, figure: DeviceFigure, levels: Sequence[AcceptedLevel]
    ) -> list[float]:
        level = find_accepted_level(levels, shorten_line(figure.name))
        since = -math.inf if level is None else level.accepted
        same = " AND ".join(f"{name} = ?" for name in Setup._fields)
        rows = connection.execute(
            "SELECT v.value FROM device_figures v JOIN phases p ON p.id = v.phase "
            "WHERE v.device = (SELECT id FROM devices WHERE cluster = ? AND name = ? AND node = ?) "
            "AND v.figure = (SELECT id FROM figures WHERE name = ? AND unit = ? "
            "AND higher_is_better = ?) AND v.seen < ? AND v.seen >= ? "
            "AND p.run = v.run AND p.phase = ? AND p.good = 1 "
            f"AND p.setup = (SELECT id FROM setups WHERE {same}) "
            "ORDER BY v.seen DESC, v.run DESC LIMIT ?",
            (
                *(self.cluster, *_name_device(figure), *_name_figure(figure)),
                *(self.before, since, self.phase, *self.setup, WINDOW),
            ),
        )
        return [float(value) for (value,) in rows]


def read_figure_names(connection: Connection, cluster: str, phase: str) -> set[str]:
    """The names of what devices reached in the runs of a phase."""
    if (read_version(connection) or 0) < WITH_FIGURES_BY_PHASE:
        return set()
    rows = connection.execute(
        "SELECT DISTINCT f.name FROM phases p JOIN device_figures v ON v.phase = p.id "
        "JOIN figures f ON f.id = v.figure WHERE p.cluster = ? AND p.phase = ?",
        (cluster, phase),
    )
    return {str(name) for (name,) in rows}


def read_figures(
    connection: Connection, cluster: str, since: float = -math.inf
) -> dict[str, list[PastFigure]]:
    """By node, what its devices reached since a time, the newest first, at most MAX_READ."""
    if (version := read_version(connection) or 0) < WITH_NODES:
        return {}
    column = "d.model" if version >= WITH_MODELS else "''"
    by_node: dict[str, list[PastFigure]] = {}
    for node, name in list_nodes(connection, cluster):
        rows = connection.execute(
            "SELECT d.name, f.name, v.value, f.unit, f.higher_is_better, r.run_id, v.seen, "
            f"{column} "
            "FROM device_figures v JOIN devices d ON d.id = v.device "
            "JOIN figures f ON f.id = v.figure JOIN runs r ON r.id = v.run "
            "WHERE v.node = ? AND v.seen >= ? "
            "ORDER BY v.seen DESC, v.run DESC, f.name, d.name LIMIT ?",
            (node, since, MAX_READ),
        )
        if figures := [
            PastFigure(
                *(name, str(device), str(figure), float(value), str(unit), bool(higher)),
                model=str(model),
                run_id=str(run_id),
                seen=float(seen),
            )
            for device, figure, value, unit, higher, run_id, seen, model in rows
        ]:
            by_node[name] = figures
    return by_node
