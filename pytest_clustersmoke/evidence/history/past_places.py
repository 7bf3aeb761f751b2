"""Where phases ran in earlier runs, and how often their nodes were bad."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from itertools import filterfalse
from sqlite3 import Connection

from ..node_naming import PlacesRecord
from .history_schema import WITH_NODES, read_version

MAX_RUNS = 200  # the newest runs of a phase that are read
MAX_TONIGHT, MAX_OTHERS = 64, 8  # nodes whose counts are kept


def read_places(
    connection: Connection, cluster: str, phase: str, nodes: Iterable[str], before: float
) -> PlacesRecord | None:
    """Where a phase that ran on these nodes ran before; None if these are not known, or those of no
    earlier run. A name with a space stands for a node that is not known."""
    rows = connection.execute(
        "SELECT nodes FROM phases WHERE cluster = ? AND phase = ? AND begun < ? "
        "AND (nodes <> '[]' OR outcome <> 'never_ran') ORDER BY begun DESC, id DESC LIMIT ?",
        (cluster, phase, before, MAX_RUNS + 1),
    ).fetchall()
    past = [{str(name) for name in json.loads(row[0])} for row in rows]
    is_whole = all(names and not any(map(_is_unknown, names)) for names in past)
    known = [some for names in past[:MAX_RUNS] if (some := {*filterfalse(_is_unknown, names)})]
    tonight = [*filterfalse(_is_unknown, dict.fromkeys(nodes))]
    if not tonight or (past and not known):
        return None
    counts = Counter(name for names in known for name in names)
    others = [pair for pair in counts.most_common() if pair[0] not in tonight][:MAX_OTHERS]
    return PlacesRecord(
        runs=len(known),
        is_all=is_whole and len(rows) <= MAX_RUNS,
        nodes={**{name: counts[name] for name in tonight[:MAX_TONIGHT]}, **dict(others)},
        first=[name for name in tonight if not counts[name]] if known else [],
    )


def _is_unknown(name: str) -> bool:
    return " " in name


def count_bad_runs(
    connection: Connection, cluster: str, node: str, before: float
) -> tuple[int, int] | None:
    """In how many earlier runs a node was seen, and in how many of them it was bad; None if the
    history does not say."""
    if (read_version(connection) or 0) < WITH_NODES:
        return None
    seen, bad = connection.execute(
        "SELECT count(DISTINCT o.run), count(DISTINCT CASE WHEN o.state = 'bad' THEN o.run END) "
        "FROM node_observations o JOIN nodes n ON n.id = o.node "
        "WHERE n.cluster = ? AND n.name = ? AND o.seen < ?",
        (cluster, node, before),
    ).fetchone()
    return int(seen), int(bad)
