"""What each node did in the runs of the past: stored with a run, read for the ledger of nodes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from sqlite3 import Connection
from typing import Any

from ..node_observation import NodeObservation, NodeState, PastObservation
from .history_schema import WITH_NODES, read_version, shorten_line

DAY_S = 86_400.0
# What is older is deleted when its node is seen again.
KEPT_DAYS = 180.0
MAX_NODE, MAX_REASON, MAX_PARTS, MAX_CLEARED = 255, 300, 4000, 1000  # characters
# Of one run: 64 phases on 1,024 nodes.
MAX_OBSERVATIONS = 2**16
MAX_READ = 4096  # observations of one node: 8 phases in 500 runs
_WEIGHTS = {"unknown": 0, "good": 1, "bad": 2}


class RowNumbers:
    """The ids of rows of a table, by the columns that identify a row. A new row is inserted."""

    def __init__(self, connection: Connection, table: str, columns: Sequence[str]) -> None:
        self._connection = connection
        places = ", ".join("?" * len(columns))
        self._insert = f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({places})"
        same = " AND ".join(f"{column} = ?" for column in columns)
        self._select = f"SELECT id FROM {table} WHERE {same}"
        self._found: dict[tuple[str | int, ...], int] = {}

    def find(self, *key: str | int) -> int:
        if key not in self._found:
            self._connection.execute(self._insert, key)
            self._found[key] = int(self._connection.execute(self._select, key).fetchone()[0])
        return self._found[key]


def insert_observations(
    connection: Connection,
    run: int,
    cluster: str,
    seen: float,
    observations: Iterable[NodeObservation],
) -> None:
    """Store what nodes did in a run, whose row is `run`: for each node and source the worst that
    was seen. Replaces what was stored of the run before, and deletes what is too old of the same
    nodes."""
    connection.execute("DELETE FROM node_observations WHERE run = ?", (run,))
    worst: dict[tuple[str, str], NodeObservation] = {}
    for made in observations:
        key = shorten_line(made.node, MAX_NODE), shorten_line(made.source)
        if key[0] and (key not in worst or _weigh(made) > _weigh(worst[key])):
            worst[key] = made
    nodes = RowNumbers(connection, "nodes", ("cluster", "name"))
    boots = RowNumbers(connection, "boots", ("node", "boot_id", "parts"))
    rows = {}
    for (name, source), made in islice(worst.items(), MAX_OBSERVATIONS):
        node = nodes.find(cluster, name)
        boot = boots.find(node, shorten_line(made.boot_id, MAX_NODE), _format_parts(made.parts))
        reason = shorten_line(made.reason, MAX_REASON)
        cleared = shorten_line(" ".join(sorted(made.cleared)), MAX_CLEARED)
        rows[source, node] = (seen, boot, made.state, int(made.definite), reason, cleared)
    connection.executemany(
        "INSERT INTO node_observations "
        "(run, source, node, seen, boot, state, definite, reason, cleared) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [(run, *key, *row) for key, row in rows.items()],
    )
    _prune(connection, {node for _, node in rows}, seen - KEPT_DAYS * DAY_S)


def _weigh(observation: NodeObservation) -> tuple[int, bool]:
    return _WEIGHTS[observation.state], observation.definite


def _format_parts(parts: Mapping[str, str]) -> str:
    words = json.dumps({shorten_line(kind): shorten_line(parts[kind]) for kind in sorted(parts)})
    return words if len(words) <= MAX_PARTS else "{}"


def _prune(connection: Connection, nodes: Iterable[int], before: float) -> None:
    """Delete what these nodes did before a time, and boots that nothing refers to any more."""
    for node in nodes:
        deleted = connection.execute(
            "DELETE FROM node_observations WHERE node = ? AND seen < ?", (node, before)
        )
        if deleted.rowcount:
            connection.execute(
                "DELETE FROM boots WHERE node = ? "
                "AND id NOT IN (SELECT boot FROM node_observations WHERE node = ?)",
                (node, node),
            )


def read_observations(
    connection: Connection, cluster: str, since: float = -math.inf
) -> dict[str, list[PastObservation]]:
    """By node, what was seen of it since a time, the newest first, at most MAX_READ. The nodes are
    in the order of their names."""
    if (read_version(connection) or 0) < WITH_NODES:
        return {}
    by_node: dict[str, list[PastObservation]] = {}
    for node, name in list_nodes(connection, cluster):
        rows = connection.execute(
            "SELECT o.source, o.state, o.reason, o.definite, o.cleared, b.boot_id, b.parts, "
            "r.run_id, o.seen, r.written FROM node_observations o "
            "JOIN boots b ON b.id = o.boot JOIN runs r ON r.id = o.run "
            "WHERE o.node = ? AND o.seen >= ? ORDER BY o.seen DESC, o.run DESC, o.source LIMIT ?",
            (node, since, MAX_READ),
        )
        if seen := [_parse_observation(name, *row) for row in rows]:
            by_node[name] = seen
    return by_node


def list_nodes(connection: Connection, cluster: str) -> list[tuple[int, str]]:
    """The rows and names of a cluster's nodes, by name."""
    rows = connection.execute("SELECT id, name FROM nodes WHERE cluster = ?", (cluster,))
    return sorted(((int(node), str(name)) for node, name in rows), key=lambda pair: pair[1])


def _parse_observation(name: str, *row: Any) -> PastObservation:
    source, state, reason, definite, cleared, boot_id, parts, run_id, seen, written = row
    return PastObservation(
        node=name,
        source=str(source),
        state=_parse_state(state),
        reason=str(reason),
        definite=bool(definite),
        boot_id=str(boot_id),
        parts=_parse_parts(str(parts)),
        cleared=frozenset(str(cleared).split()),
        run_id=str(run_id),
        seen=float(seen),
        written=float(written),
    )


@dataclass(frozen=True)
class NodeCount:
    """How often a node was in a state in a phase, or in its screen, and what was found then: the id
    of a finding or check, empty for none."""

    node: str
    source: str
    state: NodeState
    kind: str
    count: int


def count_node_states(
    connection: Connection, cluster: str, since: float = -math.inf
) -> list[NodeCount]:
    """Count what was seen of each node since a time."""
    if (read_version(connection) or 0) < WITH_NODES:
        return []
    kind = "trim(substr(o.reason, 1, instr(o.reason || ':', ':') - 1))"
    rows = connection.execute(
        f"SELECT n.name, o.source, o.state, {kind}, count(*) "
        "FROM nodes n JOIN node_observations o ON o.node = n.id "
        f"WHERE n.cluster = ? AND o.seen >= ? GROUP BY n.name, o.source, o.state, {kind}",
        (cluster, since),
    )
    return [
        NodeCount(str(node), str(source), _parse_state(state), str(found), int(count))
        for node, source, state, found, count in rows
    ]


def _parse_state(value: object) -> NodeState:
    if value == "good":
        return "good"
    return "bad" if value == "bad" else "unknown"


def _parse_parts(words: str) -> Mapping[str, str]:
    return {str(kind): str(parts) for kind, parts in dict(json.loads(words)).items()}
