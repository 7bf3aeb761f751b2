"""What the nodes' checks before torchrun say of each host.

The checks are judged anew from the facts that the nodes wrote, as the nodes did it (launch/checks):
no word of theirs decides, and one that could not finish its own is judged all the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..findings import Evidence, Finding, numbered_lines
from ..launch import checks
from ..rundir import read_json
from ..telemetry import number

if TYPE_CHECKING:
    from ..evidence import NodeResult
    from ..result import PhaseResult

# Files that a node wrote so much later than another gave up waiting came too late; else the other
# never saw them. Clocks of healthy nodes differ by less.
LATE_S = 2.0
# In the order of how much each explains: a node without its driver has no GPUs.
FIRST = ("gpu-driver-failed", "gpus-missing")


def node_checks(result: PhaseResult) -> list[Finding]:
    """The failures among the nodes' checks, by host; the nodes that others never saw."""
    found = [one for one in _failed(result) if one.severity == checks.FAILURE]
    found.sort(key=lambda one: FIRST.index(one.id) if one.id in FIRST else len(FIRST))
    return [_finding(one, result) for one in found] or _unseen(result)


def warnings(result: PhaseResult) -> list[Finding]:
    """The warnings among the nodes' checks: they decide nothing, whatever the outcome."""
    return [_finding(one, result) for one in _failed(result) if one.severity == checks.WARNING]


def _failed(result: PhaseResult) -> list[checks.Check]:
    facts = [node.facts for node in result.nodes]
    words = [read_json(result.directory.node_meeting(node.node_rank)) for node in result.nodes]
    found = [*checks.failed(facts, result.spec), *checks.meeting.checks(facts, words)]
    return checks.merged(found)


def _finding(check: checks.Check, result: PhaseResult) -> Finding:
    """Nodes of which the same holds are told together, each with the fact that shows it."""
    hosts = tuple(result.nodes[rank].name for rank in check.nodes)
    return Finding(
        check.id,
        f"{checks.listed(hosts)}: {check.what}",
        check.fix,
        primary=check.severity == checks.FAILURE,
        evidence=tuple(_evidence(check, rank, result) for rank in check.nodes[: checks.MANY]),
        hosts=hosts,
        detail=check.detail,
        severity=check.severity,
    )


def _evidence(check: checks.Check, rank: int, result: PhaseResult) -> Evidence:
    """The line of the node's facts, or of what it wrote of the meeting."""
    of_facts = check.file == checks.FACTS
    directory = result.directory
    path = directory.node_facts(rank) if of_facts else directory.node_meeting(rank)
    wanted = f' "{check.fact}":'  # the top of the file alone has one space before a key
    for line, text in numbered_lines(path):
        if text.startswith(wanted):
            return Evidence(str(path), line, text.strip())
    return Evidence(str(path), 1, check.what)


def _unseen(result: PhaseResult) -> list[Finding]:
    """Nodes that waited for files of others, and never saw them: told apart by whether these
    were ever written, as far as they can be seen here."""
    waiting: dict[tuple[int, ...], list[NodeResult]] = defaultdict(list)
    for node in result.nodes:
        if node.result.get("reason") == "unseen":
            waiting[_ranks(node.result.get("nodes"), len(result.nodes))].append(node)
    found = []
    for missing, nodes in waiting.items():
        by_cause: dict[str, list[int]] = defaultdict(list)
        for rank in missing:
            by_cause[_cause(rank, nodes, result)].append(rank)
        found += [_unseen_finding(c, ranks, nodes, result) for c, ranks in by_cause.items()]
    return found


def _ranks(value: Any, count: int) -> tuple[int, ...]:
    ranks = value if isinstance(value, list) else []
    return tuple(sorted({one for one in ranks if type(one) is int and 0 <= one < count}))


# What can be seen here of a node that others did not see -> what happened, what to do.
CAUSES = {
    "never": (
        "never wrote a word that can be seen here either: it did not start, or its shared "
        "directory is another",
        "see whether the node runs (sinfo, its slurmd's log), and whether it has the shared "
        "directory mounted (findmnt -T, on the node)",
    ),
    "stopped": (
        "started and did not come as far as its facts: something hangs there (a driver, a file "
        "system), or it ended",
        "read the node's log in the run directory, and look at the node",
    ),
    "late": (
        "wrote its facts only after the others had given up waiting",
        "find out what is slow there (the driver's start, a file system), or raise "
        "stage_limits_s.init",
    ),
    "not-seen": (
        "wrote its files, which can be seen here, and the others never saw them: the directory is "
        "not one and the same file system on all nodes, or shows files of other nodes late",
        "compare `findmnt -T` of the shared directory on these nodes; it must be one file system, "
        "whose caches show other nodes' files within seconds",
    ),
}


def _cause(rank: int, nodes: Sequence[NodeResult], result: PhaseResult) -> str:
    node = result.nodes[rank]
    if node.facts:
        wrote = number(node.facts.get("time"))
        ended = [one for n in nodes if (one := number(n.result.get("ended"))) is not None]
        late = wrote is not None and ended and wrote > max(ended) + LATE_S
        return "late" if late else "not-seen"
    started = result.directory.claim(rank).exists() or node.result
    return "stopped" if started else "never"


def _unseen_finding(
    cause: str, missing: list[int], nodes: Sequence[NodeResult], result: PhaseResult
) -> Finding:
    what, fix = CAUSES[cause]
    names = [result.nodes[rank].name for rank in missing]
    waited = [node.name for node in nodes]
    path = result.directory.node_result(nodes[0].node_rank)
    return Finding(
        "shared-directory-not-seen",
        f"{checks.listed(waited)} waited in vain for {checks.listed(names)}, which {what}",
        fix,
        evidence=(Evidence(str(path), 1, str(nodes[0].result.get("why"))),),
        hosts=(*names, *(waited if cause == "not-seen" else ())),
        detail={"cause": cause, "missing": names, "waited": waited},
    )
