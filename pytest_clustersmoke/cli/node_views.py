"""The output of `clustersmoke nodes`: text and JSON."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..config.metrics import show
from ..evidence.node_observation import PastFigure, PastObservation
from ..report.node_ledger import NodeSummary
from ..text import plural, shorten
from .subcommand import format_json
from .tables import moment, table

MOST_NAMED = 3  # kinds of failures, and changes, of one node
COLUMNS = (
    *("node", "last good (UTC)", "in", "last bad (UTC)", "in", "#bad runs", "named for"),
    *("#reboots", "changed", "least to peers", "least to past"),
)


@dataclass(frozen=True)
class ComparedFigure:
    """The newest value of a device's figure, with the median of the newest values of all other
    devices of its model, and of its own earlier ones; None if there are none."""

    figure: PastFigure
    peers: float | None
    past: float | None

    def loss(self, other: float | None) -> float | None:
        """How much worse it is than another value, as a share of that; negative if better."""
        if not other:
            return None
        change = (self.figure.value - other) / abs(other)
        return -change if self.figure.higher_is_better else change


Compared = Mapping[str, Sequence[ComparedFigure]]


def compare_figures(by_node: Mapping[str, Sequence[PastFigure]]) -> dict[str, list[ComparedFigure]]:
    """The newest figures of each node, compared with those of its peers and of its past; `by_node`
    has the newest first."""
    from statistics import median  # other commands do not load it

    series: dict[tuple[str, str, str, str], list[PastFigure]] = {}
    for node, figures in by_node.items():
        for figure in figures:
            series.setdefault((node, figure.device, figure.name, figure.unit), []).append(figure)
    newest: dict[tuple[str, str, str], list[float]] = {}
    for (*_, name, unit), values in series.items():
        newest.setdefault((name, unit, values[0].model), []).append(values[0].value)
    for values_of_all in newest.values():
        values_of_all.sort()
    compared: dict[str, list[ComparedFigure]] = {}
    for (node, _, name, unit), values in series.items():
        peers = _median_without(newest[name, unit, values[0].model], values[0].value)
        past = median(seen.value for seen in values[1:]) if len(values) > 1 else None
        compared.setdefault(node, []).append(ComparedFigure(values[0], peers, past))
    return compared


def _median_without(ordered: Sequence[float], value: float) -> float | None:
    """The median of the sorted values without one of this value; None if there is no other."""
    count, gap = len(ordered) - 1, bisect_left(ordered, value)
    if count < 1:
        return None
    low, high = ((at if at < gap else at + 1) for at in ((count - 1) // 2, count // 2))
    return (ordered[low] + ordered[high]) / 2


def node_text_lines(
    cluster: str, days: float, nodes: Sequence[NodeSummary], figures: Compared
) -> Iterator[str]:
    """One line per node."""
    named = sum(node.last_bad is not None for node in nodes)
    yield f"{plural(len(nodes), 'node')} on {cluster} in the last {days:g} days, {named} named bad"
    if nodes:
        yield ""
        yield from table(COLUMNS, (_row(node, figures.get(node.node, ())) for node in nodes))


def _row(node: NodeSummary, figures: Sequence[ComparedFigure]) -> list[str]:
    good, bad = node.last_good, node.last_bad
    changes = [f"{what} on {moment(when)[:10]}" for when, what in node.describe_changes()]
    return [
        node.node,
        *((moment(good.seen), good.source) if good else ("-", "")),
        *((moment(bad.seen), bad.source) if bad else ("-", "")),
        str(node.failures or ""),
        shorten(list(node.describe_failures()), MOST_NAMED),
        str(node.reboots or ""),
        shorten(changes, MOST_NAMED, "; "),
        _describe_worst([(made, made.loss(made.peers)) for made in figures]),
        _describe_worst([(made, made.loss(made.past)) for made in figures]),
    ]


def _describe_worst(losses: Sequence[tuple[ComparedFigure, float | None]]) -> str:
    """`gemm_tflops 650, 8.1 % worse`: the figure that is furthest on the bad side, if any is."""
    known = [(loss, made.figure) for made, loss in losses if loss is not None and loss > 0]
    if not known:
        return ""
    loss, figure = max(known, key=lambda pair: pair[0])
    return f"{figure.name} {show(figure.value)} {figure.unit}, {loss * 100:.1f} % worse"


def node_json_lines(
    cluster: str, days: float, nodes: Sequence[NodeSummary], figures: Compared
) -> list[str]:
    listed = [_describe_node(node, figures.get(node.node, ())) for node in nodes]
    return format_json({"cluster": cluster, "days": days, "nodes": listed})


def _describe_node(node: NodeSummary, figures: Sequence[ComparedFigure]) -> dict[str, Any]:
    return {
        "node": node.node,
        "last_good": describe_observation(node.last_good),
        "last_bad": describe_observation(node.last_bad),
        "bad_runs": node.failures,
        "named_for": list(node.describe_failures()),
        "phases": [{"phase": name, **node.count_states(name)} for name in node.phases],
        "reboots": node.reboots,
        "changes": [{"seen": when, "what": what} for when, what in node.describe_changes()],
        "figures": [
            {
                "device": made.figure.device,
                "model": made.figure.model,
                "name": made.figure.name,
                "value": made.figure.value,
                "unit": made.figure.unit,
                "higher_is_better": made.figure.higher_is_better,
                "seen": made.figure.seen,
                "median_of_peers": made.peers,
                "median_of_past": made.past,
            }
            for made in figures
        ],
    }


def describe_observation(seen: PastObservation | None) -> dict[str, Any] | None:
    """A past observation as JSON."""
    if seen is None:
        return None
    return {
        "run_id": seen.run_id,
        "seen": seen.seen,
        "phase": seen.source,
        "reason": seen.reason,
        "definite": seen.definite,
    }
