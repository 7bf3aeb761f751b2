"""The own step of each GPU in the runs of the past: stored with a run, read to compare with.

A GPU is its UUID, and a CPU its host and local rank. Both come from jobs and are cut to one line.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from sqlite3 import Connection

from ..fingerprint import Fingerprint
from ..job_results import RankResult
from .accepted_levels import find_accepted_level, read_accepted_levels
from .history_database import open_for_reading
from .history_schema import MAX_NAMES, WITH_GPUS, Setup, read_version, shorten_line
from .outlier_judge import WINDOW

METRIC = "own_step_s"
MAX_GPU = 100  # characters; a UUID has 40
# Jobs run on other nodes every night: of so many of the newest runs, a GPU is looked for.
MAX_RUNS = 8 * WINDOW


def describe_gpu(rank: RankResult) -> str:
    """`GPU-5b1c...`, or on CPU `host/node:0`; empty if it is unknown."""
    if rank.device.startswith("cuda"):
        return shorten_line(rank.gpu_uuid or "", MAX_GPU)
    if rank.local_rank is None:
        return ""
    return shorten_line(f"{rank.host}/{rank.node}:{rank.local_rank}", MAX_GPU)


def insert_gpu_steps(connection: Connection, phase: int, steps: Mapping[str, float]) -> None:
    """Store the seconds of each GPU's own step; those of at most MAX_NAMES GPUs."""
    connection.execute("DELETE FROM gpu_steps WHERE phase = ?", (phase,))
    kept = {
        shorten_line(gpu, MAX_GPU): own_s
        for gpu, own_s in steps.items()
        if gpu and 0 < own_s < math.inf
    }
    rows = list(kept.items())[:MAX_NAMES]
    connection.executemany(
        "INSERT OR IGNORE INTO gpus (name) VALUES (?)", [(gpu,) for gpu, _ in rows]
    )
    connection.executemany(
        "INSERT INTO gpu_steps SELECT ?, id, ? FROM gpus WHERE name = ?",
        [(phase, own_s, gpu) for gpu, own_s in rows],
    )


def prune_gpus(connection: Connection, phase: int) -> None:
    """Delete what no run will be compared with: the steps of runs before the MAX_RUNS newest good
    ones of this phase's setup, and then GPUs that are in no run any more."""
    same = "(cluster, phase, setup) = (SELECT cluster, phase, setup FROM phases WHERE id = :id)"
    oldest = (
        f"SELECT begun FROM phases WHERE {same} AND good = 1 "
        "ORDER BY begun DESC, id DESC LIMIT 1 OFFSET :newer"
    )
    deleted = connection.execute(
        "DELETE FROM gpu_steps WHERE phase IN "
        f"(SELECT id FROM phases WHERE {same} AND begun < ({oldest}))",
        {"id": phase, "newer": MAX_RUNS - 1},
    )
    if deleted.rowcount:
        connection.execute("DELETE FROM gpus WHERE id NOT IN (SELECT gpu FROM gpu_steps)")


def read_gpu_past(
    report_dir: Path,
    cluster: str,
    phase: str,
    who: Fingerprint,
    gpus: Collection[str],
    before: float = math.inf,
) -> dict[str, list[float]]:
    """GPU -> seconds of its own step in good runs of the same setup, the newest first; at most
    WINDOW. Runs before an accepted level do not count. Raises HistoryUnusable."""
    with open_for_reading(report_dir) as connection:
        if connection is None or (read_version(connection) or 0) < WITH_GPUS:
            return {}
        levels = read_accepted_levels(connection, cluster, phase, before)
        level = find_accepted_level(levels, METRIC)
        since = -math.inf if level is None else level.accepted
        setup = Setup.of(who.hardware, who.shape, who.versions)
        runs = _find_good_runs(connection, cluster, phase, setup, before, since)
        return _collect_steps(connection, runs, gpus)


def _find_good_runs(
    connection: Connection, cluster: str, phase: str, setup: Setup, before: float, since: float
) -> list[int]:
    """Rows of phases, the newest first."""
    same = " AND ".join(f"{name} = ?" for name in Setup._fields)
    rows = connection.execute(
        "SELECT id FROM phases WHERE cluster = ? AND phase = ? AND good = 1 "
        f"AND setup = (SELECT id FROM setups WHERE {same}) AND begun < ? AND begun >= ? "
        "ORDER BY begun DESC, id DESC LIMIT ?",
        (cluster, phase, *setup, before, since, MAX_RUNS),
    )
    return [int(row[0]) for row in rows]


def _collect_steps(
    connection: Connection, runs: Iterable[int], gpus: Collection[str]
) -> dict[str, list[float]]:
    steps: dict[str, list[float]] = {gpu: [] for gpu in gpus}
    wanted = set(gpus)
    for run in runs:
        if not wanted:
            break
        for gpu, own_s in connection.execute(
            "SELECT g.name, s.own_step_s FROM gpu_steps s JOIN gpus g ON g.id = s.gpu "
            "WHERE s.phase = ?",
            (run,),
        ):
            if gpu in wanted:
                steps[gpu].append(float(own_s))
                if len(steps[gpu]) == WINDOW:
                    wanted.remove(gpu)
    return steps
