"""Mistakes in how a phase and its program fit together: arguments that the program refuses, no
Rank, ranks that do not know each other.

Nothing is wrong with the cluster then, so these findings come before what follows from them: a
program that ends early, ranks that wait for each other, event files of two writers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..config.phase import flag_of
from ..evidence.finding import Evidence, Finding, read_tail
from ..evidence.job_results import RankResult
from ..evidence.run_directory import job_name
from ..evidence.telemetry import parse_int, read_events
from ..text import near, plural
from .failure_evidence import FailureEvidence

HOW_TO_ADAPT = (
    "docs/how-to/adapt-a-ddp-script.md of pytest-clustersmoke (adapt-a-trainer-script.md for one "
    "with the Trainer of transformers)"
)
FIX_ARGUMENTS = (
    "correct the phase's `args`, or the program; its options are in the lines above the evidence"
)
# argparse prints its usage and then `PROGRAM: error: ...`, jsonargparse `error: ...`, click
# `Error: ...`; typer and tyro draw a box. absl and fire need no usage before.
USAGE = ("usage: ", "Usage: ")
AFTER_USAGE = re.compile(r"(?:.{1,200}?: )?error: (.{1,2000})|Error: (.{1,2000})")
REFUSAL = re.compile(
    r"(?:FATAL Flags parsing error: |ERROR: (?=Could not consume arg))(.{1,2000})|"
    r"│ ((?:No such option|Invalid value for|Missing option|Got unexpected extra argument|"
    r"Unrecognized options|Error parsing --).{1,2000}?) *│$"
)
# What follows such a line and belongs to it.
FOOTER = re.compile(r"[│╰]|  |Usage: |For detailed information|Pass --helpshort")
MAX_LOGS = 8  # of a node: all its ranks got the same arguments
FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]{0,99}")


class _UsageError(NamedTuple):
    """The message of a program's argument parser, with the options that its usage lists."""

    message: str
    line: Evidence
    options: frozenset[str]


def find_refused_argument(evidence: FailureEvidence) -> list[Finding]:
    """An argument of the phase that the program's own parser refused, and where it was set."""
    result = evidence.result
    exited = any(error.type == "SystemExit" for error in evidence.errors.values())
    if any(rank.start for rank in result.ranks) and not exited:
        return []
    for node in result.nodes:
        logs = evidence.directory.find_rank_logs(node.node_rank)
        for path in logs[:MAX_LOGS]:
            if error := _read_usage_error(path):
                return [_describe_refusal(error, evidence, node.name)]
    return []


def _read_usage_error(path: Path) -> _UsageError | None:
    """The usage error at the end of a rank's stderr."""
    block: list[str] = []  # the usage, and what follows the error
    error: tuple[str, Evidence] | None = None
    for number, line in read_tail(path):
        match = REFUSAL.match(line) or (AFTER_USAGE.match(line) if block else None)
        if line.startswith(USAGE[: 1 if error else 2]):
            block, error = [line], None
        elif match and not error:
            error = match[match.lastindex or 0], Evidence(str(path), number, line)
        elif error and line.strip() and not FOOTER.match(line):
            block, error = [], None
        elif block or error:
            block.append(line)
    return _UsageError(*error, frozenset(FLAG.findall("\n".join(block)))) if error else None


def _describe_refusal(error: _UsageError, evidence: FailureEvidence, node: str) -> Finding:
    spec = evidence.result.spec
    sources = spec.get("args_from") or {}  # a run of an older version has none
    set_here = {flag_of(name): f"`{name}` ({where})" for name, where in sources.items()}
    quoted = re.findall(r"flag '([\w-]{1,100})'", error.message)  # absl names it without dashes
    flags = dict.fromkeys([*FLAG.findall(error.message), *(f"--{name}" for name in quoted)])
    refused = [flag for flag in flags if flag in set_here]
    hints = [near(flag, error.options) for flag in refused if flag not in error.options]
    names = ", ".join(set_here[flag] for flag in refused)
    what = f"the argument {names}" if refused else "the arguments"
    return Finding(
        "argument-refused",
        f"{spec.get('script')} refuses {what} of phase {evidence.result.name}: {error.message}",
        " ".join([*filter(None, hints), FIX_ARGUMENTS]),
        evidence=(error.line,),
        hosts=(node,),
    )


def find_unused_rank(evidence: FailureEvidence) -> list[Finding]:
    """A program that ran to its end without a Rank: the launcher succeeded, and no rank wrote."""
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
            f"(WORLD_SIZE={result.world_size}), as the launcher set them",
            "find what changes RANK or WORLD_SIZE in the program, or what starts it again without "
            "them (`python` in place of the launcher, in a wrapper or a subprocess)",
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
