"""What a screen leaves for other programs and for the terminal: lists of nodes, and a table.

screen/passing.txt, failing.txt, not_screened.txt   one NodeName a line, for scripts; a node that
                                                    gave no answer is among the failing ones
screen/screen.tsv                                   every node with its state, reason and checks
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..evidence.screen_record import (
    FAILING,
    NO_ANSWER,
    NOT_SCREENED,
    PASSING,
    ScreenedNode,
    ScreenRecord,
)
from ..text import format_seconds, sanitize_line, shorten

FOLDER = "screen"
COLUMNS = ("node", "state", "slurm", "seconds", "reason")
TONES = {PASSING: "", FAILING: "red", NO_ANSWER: "yellow", NOT_SCREENED: ""}
MAX_ROWS, MAX_PASSING, MAX_REASON = 64, 8, 160


def render_lists(screen: ScreenRecord) -> dict[str, str]:
    """The files by their names in the report's directory."""
    states = {
        "passing": (PASSING,),
        "failing": (FAILING, NO_ANSWER),
        "not_screened": (NOT_SCREENED,),
    }
    lists = {
        f"{FOLDER}/{name}.txt": "".join(
            f"{node.node}\n" for node in screen.nodes if node.state in wanted
        )
        for name, wanted in states.items()
    }
    return {**lists, f"{FOLDER}/screen.tsv": _render_table(screen)}


def _render_table(screen: ScreenRecord) -> str:
    checks = list(dict.fromkeys(name for node in screen.nodes for name in node.checks))
    head = ["node", "state", "slurm_state", "group", "seconds", "cpu_s", "job_id", *checks]
    lines = [[*head, "reason"]]
    for node in screen.nodes:
        results = [node.checks[name].result if name in node.checks else "" for name in checks]
        numbers = ["" if value is None else f"{value:.3f}" for value in (node.seconds, node.cpu_s)]
        about = [node.node, node.state, node.slurm_state, node.group]
        lines.append([*about, *numbers, node.job_id, *results, node.reason])
    return "".join("\t".join(map(sanitize_line, line)) + "\n" for line in lines)


def screen_rows(screen: ScreenRecord) -> Iterator[tuple[Sequence[str], str]]:
    """The rows of the terminal's table with their colours: nodes to look at first; of those that
    pass only how many."""
    order = (FAILING, NO_ANSWER, NOT_SCREENED)
    nodes = [node for state in order for node in screen.of(state)]
    for node in nodes[:MAX_ROWS]:
        yield _row(node), TONES[node.state]
    if len(nodes) > MAX_ROWS:
        yield ("...", f"and {len(nodes) - MAX_ROWS:,} more in screen/screen.tsv", "", "", ""), ""
    passing = screen.of(PASSING)
    if passing:
        names = shorten([node.node for node in passing], MAX_PASSING)
        slowest = max((node.seconds or 0.0 for node in passing), default=0.0)
        count = f"{len(passing)} passing"
        yield (count, PASSING, "idle", f"<= {format_seconds(slowest)}", names), ""


def _row(node: ScreenedNode) -> Sequence[str]:
    reason = node.reason if len(node.reason) <= MAX_REASON else f"{node.reason[:MAX_REASON]} ..."
    return node.node, node.state, node.slurm_state, format_seconds(node.seconds), reason
