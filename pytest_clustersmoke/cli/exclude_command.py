"""`clustersmoke exclude`: the nodes that jobs should leave out, as a word for sbatch.

Only names that sinfo lists are printed: those in the history come from jobs.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from ..evidence.history.node_history import DAY_S, read_observations
from ..report.node_ledger import (
    DAYS,
    LeftOut,
    NodeLedger,
    TooMany,
    find_too_many,
    most_left_out,
)
from ..text import near, sanitize_line, shorten
from . import history_arguments as arguments
from .node_views import describe_observation
from .nodes_command import add_days
from .subcommand import add, format_json, print_lines
from .tables import moment

DESCRIPTION = """\
Prints one word, --exclude=NODE,NODE, for sbatch, srun and salloc; nothing if no node is to be left
out. A node is listed on one definite piece of evidence (it died, uncorrectable memory errors of a
GPU, a link that is down) or on two independent ones, for 14 days, or until a later clean screen of
the node that looks for it, or until a part of it has changed. Only names that sinfo lists are
printed, and never more than 20 % of a partition, or of the nodes that the history knows (at least
one): then a test is to blame.
"""
EXAMPLES = """\
examples:
  sbatch $(clustersmoke exclude --cluster gilbreth) job.sh
  clustersmoke exclude --cluster gilbreth --why
  clustersmoke exclude --cluster gilbreth --partition a100 --format json
  clustersmoke exclude --cluster gilbreth --drain       the lines for an administrator; runs none

exit status: 0 done, also if there is nothing to print; 1 too many nodes, nothing is printed;
2 unusable history or arguments, or Slurm does not answer; nothing is printed
"""
MAX_REASON = 200  # characters of a reason for Slurm
MOST_SHOWN, MOST_SOURCES = 8, 3


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    help = "print the nodes that jobs should leave out"
    exclude = add(subparsers, "exclude", help, DESCRIPTION, EXAMPLES)
    exclude.add_argument("--cluster", metavar="C", required=True, help="the cluster (required)")
    exclude.add_argument(
        "--partition", metavar="P", help="only nodes of this partition (default: all nodes)"
    )
    add_days(exclude, DAYS, "how long evidence against a node counts")
    arguments.add_report_dir(exclude)
    exclude.add_argument(
        "--why", action="store_true", help="print the evidence on standard error as well"
    )
    form = exclude.add_mutually_exclusive_group()
    form.add_argument(
        "--format",
        choices=FORMS,
        default="sbatch",
        help="sbatch: the option (default); hostlist: the names; tsv; json",
    )
    form.add_argument(
        "--drain", action="store_true", help="print the scontrol lines that would drain the nodes"
    )
    exclude.set_defaults(run=_run_command)


def _run_command(parsed: argparse.Namespace) -> int:
    now = time.time()
    with arguments.open_history(parsed.report_dir) as connection:
        arguments.require_cluster(connection, parsed.cluster)
        # Twice as long, since a node that died did not say which parts it had.
        since = now - 2 * parsed.days * DAY_S
        histories = read_observations(connection, parsed.cluster, since)
    everything = NodeLedger(histories, now, parsed.days).left_out()
    nodes = _ask_for_nodes(parsed.partition) if everything else {}
    left_out = [entry for entry in everything if entry.node in nodes]
    if parsed.why:
        _print_evidence(left_out, [entry for entry in everything if entry.node not in nodes])
    if too_many := find_too_many([entry.node for entry in left_out], nodes, histories):
        _refuse_list(left_out, too_many)
        return 1
    form = _drain_lines if parsed.drain else FORMS[parsed.format]
    print_lines(form(left_out))
    return 0


def _ask_for_nodes(partition: str | None) -> dict[str, frozenset[str]]:
    """The nodes that sinfo lists in the partition, or in all, each with the partitions that count.
    Raises UsageProblems."""
    from ..jobs.slurm_client import SlurmClient, SlurmUnavailable  # loads pydantic

    try:
        partitions = SlurmClient(os.environ).node_partitions()
    except SlurmUnavailable as error:
        arguments.refuse(
            f"nothing is printed, since Slurm does not say which nodes it has: {error}",
            "",
            "a machine on which sinfo works, such as a login node of the cluster",
        )
    if partition is None:
        return partitions
    names = sorted(set().union(*partitions.values()))
    if partition not in names:
        words = f"Slurm has no partition `{partition}`"
        arguments.refuse(words, "--partition", arguments.one_of(names), near(partition, names))
    return {node: frozenset({partition}) for node, own in partitions.items() if partition in own}


def _print_evidence(left_out: Sequence[LeftOut], unknown: Sequence[LeftOut]) -> None:
    for entry in left_out:
        print(f"{entry.node}, until {moment(entry.until)} UTC:", file=sys.stderr)
        sources: dict[tuple[str, str], list[str]] = {}
        for seen in entry.evidence:
            sort = "definite: " if seen.definite else ""
            line = f"of {seen.run_id}: {sort}{seen.reason}"
            sources.setdefault((moment(seen.seen), line), []).append(seen.source)
        for (when, line), names in sources.items():
            words = f"  {when} {shorten(names, MOST_SOURCES)} {line}"
            print(sanitize_line(words), file=sys.stderr)
    if unknown:
        listed = shorten([repr(entry.node) for entry in unknown], MOST_SHOWN)
        words = f"left off, since sinfo does not list them here: {listed}"
        print(sanitize_line(words), file=sys.stderr)


def _refuse_list(left_out: Sequence[LeftOut], too_many: TooMany) -> None:
    listed = shorten([f"{entry.node} ({entry.reason})" for entry in left_out], MOST_SHOWN)
    print(
        sanitize_line(
            f"clustersmoke: {too_many} would be left out; expected at most "
            f"{most_left_out(too_many.nodes)}, since so many point to a bad test or setting; "
            f"nothing is printed; look at what named them: {listed}"
        ),
        file=sys.stderr,
    )


def _sbatch_lines(left_out: Sequence[LeftOut]) -> Iterable[str]:
    return [f"--exclude={names}" for names in _hostlist_lines(left_out)]


def _hostlist_lines(left_out: Sequence[LeftOut]) -> Iterable[str]:
    return [",".join(entry.node for entry in left_out)] if left_out else []


def _tsv_lines(left_out: Sequence[LeftOut]) -> Iterable[str]:
    """A line for each piece of evidence. No cell has a tab: reasons are sanitized when stored."""
    for entry in left_out:
        for seen in entry.evidence:
            sort = "definite" if seen.definite else "independent"
            cells = (entry.node, moment(entry.until), sort, seen.run_id, seen.source, seen.reason)
            yield "\t".join(sanitize_line(cell.replace("\t", " ")) for cell in cells)


def _json_lines(left_out: Sequence[LeftOut]) -> Iterable[str]:
    return format_json(
        {
            "exclude": [
                {
                    "node": entry.node,
                    "until": entry.until,
                    "reason": entry.reason,
                    "evidence": [describe_observation(seen) for seen in entry.evidence],
                }
                for entry in left_out
            ]
        }
    )


def _drain_lines(left_out: Sequence[LeftOut]) -> Iterable[str]:
    for entry in left_out:
        reason = f"clustersmoke: {entry.reason}"[:MAX_REASON]
        words = (f"NodeName={entry.node}", "State=DRAIN", f"Reason={reason}")
        yield shlex.join(["scontrol", "update", *words])


FORMS: dict[str, Callable[[Sequence[LeftOut]], Iterable[str]]] = {
    "sbatch": _sbatch_lines,
    "hostlist": _hostlist_lines,
    "tsv": _tsv_lines,
    "json": _json_lines,
}
