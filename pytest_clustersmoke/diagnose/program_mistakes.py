"""Mistakes in how a phase's program uses this package: no Rank, ranks that do not know each other.

Nothing is wrong with the cluster then, so these findings come before what follows from them: a
program that ends early, ranks that wait for each other, event files of two writers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..evidence.finding import Evidence, Finding
from ..evidence.job_results import RankResult
from ..evidence.run_directory import job_name
from ..evidence.telemetry import parse_int, read_events
from ..text import plural
from .failure_evidence import FailureEvidence

HOW_TO_ADAPT = "docs/how-to/adapt-a-ddp-script.md of pytest-clustersmoke"


def find_unused_rank(evidence: FailureEvidence) -> list[Finding]:
    """A program that ran to its end without a Rank: torchrun succeeded, and no rank wrote."""
    result = evidence.result
    ended = [node for node in result.nodes if node.reason == "rank_ended_early"]
    others = {node.reason for node in result.nodes} - {"rank_ended_early", "aborted"}
    wrote = any(rank.start or rank.events.records or rank.events.foreign for rank in result.ranks)
    if not ended or others or wrote:
        return []
    path = result.directory.node_result(ended[0].node_rank)
    return [
        Finding(
            "rank-api-unused",
            f"{result.spec.get('script')} ended with exit status 0 and never started a Rank "
            "(pytest_clustersmoke.rank), so nothing of it can be judged: not its ranks and steps, "
            "losses, gradients, checkpoint or speed; and a hang is noticed only at timeout_s",
            f"add `Rank.start` and `rank.steps` to the program: {HOW_TO_ADAPT} shows the changes; "
            "if it has them, find out why it ended before them",
            evidence=(Evidence(str(path), 1, ended[0].why),),
            hosts=tuple(node.name for node in ended),
        )
    ]


def find_wrong_world(evidence: FailureEvidence) -> list[Finding]:
    """Processes that started as ranks of a job of another size; most often, each as rank 0 of 1."""
    result = evidence.result
    starts = [found for rank in result.ranks for found in _starts_elsewhere(rank, evidence)]
    if not starts:
        return []
    _, first = starts[0]
    return [
        Finding(
            "world-size-mismatch",
            f"{plural(len(starts), 'process', 'processes')} started as rank {first.get('rank')} of "
            f"{first.get('world_size')}; expected {result.world_size} ranks that know each other "
            f"(WORLD_SIZE={result.world_size}), as torchrun set them",
            "find what changes RANK or WORLD_SIZE in the program, or what starts it again without "
            "them (`python` in place of torchrun, in a wrapper or a subprocess)",
            evidence=tuple(shown for shown, _ in starts[:2]),
            hosts=tuple(dict.fromkeys(str(record.get("node")) for _, record in starts)),
        )
    ]


def _starts_elsewhere(
    rank: RankResult, evidence: FailureEvidence
) -> Iterator[tuple[Evidence, dict[str, Any]]]:
    """The `start` events in a rank's file that are of this job, but not of its world size. The
    file is read again, since events of several processes in one file count as foreign."""
    result = evidence.result
    events = read_events(rank.events.path, all_marks=False) if rank.events.foreign else rank.events
    for record in events.named("start"):
        size = parse_int(record.get("world_size"))
        is_ours = record.get("job") == job_name(result.spec) if rank.events.foreign else True
        if is_ours and size not in (None, result.world_size):
            words = f"started as rank {record.get('rank')} of {size}"
            yield Evidence(str(events.path), events.line_of(record), words), record
