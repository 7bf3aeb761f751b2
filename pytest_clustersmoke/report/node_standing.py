"""Where each node of a cluster stands after a run, by the ledger of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..evidence.history.history_database import NAME, is_private, open_for_reading
from ..evidence.history.node_history import DAY_S, read_observations
from ..evidence.node_observation import NodeState, PastObservation
from ..evidence.run_record import RunRecord
from ..evidence.run_request import user_name
from .node_ledger import DAYS, ByNode, NodeLedger
from .page_view import natural
from .redaction import Redactor

MAX_NODES = 256  # of which there are gauges; the worst come first
STATES: tuple[NodeState, ...] = ("bad", "unknown", "good")  # the worst first
# Evidence counts for DAYS, and a node that died did not say which parts it had.
SPAN_S = 2 * DAYS * DAY_S


@dataclass(frozen=True)
class NodeStanding:
    """A node: what the newest run that had it saw of it, in how many runs of the last DAYS it was
    bad, and whether the evidence is enough to leave it out."""

    node: str
    state: NodeState
    named_runs: int
    is_left_out: bool


def read_standings(
    record: RunRecord, report_dir: Path, redactor: Redactor | None = None
) -> list[NodeStanding]:
    """Those of the run's cluster when the run was reported, the worst first, with the names that
    may be published. Raises HistoryUnusable, and OSError."""
    with open_for_reading(report_dir) as connection:
        if connection is None:
            return []
        seen = read_observations(connection, record.cluster, record.written - SPAN_S)
        redactor = redactor or choose_history_redactor(report_dir)
    before = {
        node: [each for each in history if each.seen <= record.begun]
        for node, history in seen.items()
    }
    return hide_names(judge_nodes(before, record.written), redactor)


def choose_history_redactor(report_dir: Path) -> Redactor | None:
    """What names of nodes from the history must go through: it is private if it has what must not
    be published. Raises OSError."""
    return Redactor(user_name()) if is_private(report_dir / NAME) else None


def judge_nodes(by_node: ByNode, now: float) -> list[NodeStanding]:
    """The nodes that runs of the last DAYS had, the worst first. `by_node` is what was observed of
    each in the SPAN_S before, the newest first."""
    left_out = {entry.node for entry in NodeLedger(by_node, now).left_out()}
    since = now - DAYS * DAY_S
    standings = [
        _judge_node(node, recent, node in left_out)
        for node, history in by_node.items()
        if (recent := [seen for seen in history if seen.seen >= since])
    ]
    return sorted(standings, key=_order)


def _judge_node(node: str, recent: Sequence[PastObservation], is_left_out: bool) -> NodeStanding:
    newest = [seen.state for seen in recent if seen.run_id == recent[0].run_id]
    named = {seen.run_id for seen in recent if seen.state == "bad"}
    return NodeStanding(node, min(newest, key=STATES.index), len(named), is_left_out)


def _order(standing: NodeStanding) -> tuple[object, ...]:
    state = STATES.index(standing.state)
    return (not standing.is_left_out, state, -standing.named_runs, natural(standing.node))


def hide_names(standings: Iterable[NodeStanding], redactor: Redactor | None) -> list[NodeStanding]:
    """The standings with the names that may be published; of nodes that then have one name, the
    worst."""
    shown: dict[str, NodeStanding] = {}
    for each in standings:
        name = redactor.hide(each.node) if redactor else each.node
        shown.setdefault(name, replace(each, node=name))
    return list(shown.values())
