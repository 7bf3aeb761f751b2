"""`clustersmoke diagnose LOG...`: why a job failed, by what its logs say."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..evidence.finding import Finding
from ..text import plural, sanitize_line
from .log_streams import ReadProgress, name_refused, open_stream
from .subcommand import add, add_logs, print_lines

if TYPE_CHECKING:
    from ..diagnose.signature_search import SignatureSearch
    from .diagnose_inputs import LogInputs
    from .subcommand import TextOutput

# So many hosts and ranks of one finding are listed.
MAX_PLACES = 16
# Below a directory these are searched though they look binary: a log may hold garbage.
LOGS = (".log", ".out", ".err")
DESCRIPTION = """\
Reads the logs of a failed job (of torch, NCCL, gloo, DeepSpeed, Slurm, the kernel), and reports
why it failed: first the causes, each with its log lines and the next step, then what follows from
them. All logs must be of one job.
"""
EXAMPLES = """\
examples:
  clustersmoke diagnose slurm-4711.out slurm-4711.err
  clustersmoke diagnose logs/                     all files below it
  clustersmoke diagnose --json logs/ | jq '.[0]'
  clustersmoke diagnose reports/latest/phases/zero1_4node
  dmesg | clustersmoke diagnose job.log -

exit status: 0 no known failure and no exception, 1 findings, 2 some input could not be read (the
findings of the rest are printed first)
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    diagnose = add(
        subparsers, "diagnose", "find out why a job failed, from its logs", DESCRIPTION, EXAMPLES
    )
    add_logs(diagnose)
    diagnose.add_argument("--json", action="store_true", help="print the findings as a JSON list")
    diagnose.set_defaults(run=_run)


def _run(words: argparse.Namespace) -> int:
    from ..diagnose.signature_file import shipped_signatures
    from ..diagnose.signature_findings import order_findings
    from ..diagnose.signature_search import SignatureSearch
    from .diagnose_inputs import LogInputs
    from .subcommand import TextOutput

    inputs, search = LogInputs.of(words.logs), SignatureSearch(shipped_signatures())
    read, refused = _read(search, inputs)
    if not read and not refused:
        refused = [(", ".join(words.logs), "contains no text")]
    found = order_findings(search)
    if read:
        paper = TextOutput.of(sys.stdout)
        print_lines(_json_lines(found) if words.json else text(found, read, paper))
    name_refused(refused)
    return 2 if refused else int(bool(found))


def _read(search: SignatureSearch, inputs: LogInputs) -> tuple[int, list[tuple[str, str]]]:
    """Search all there is. Gives how many inputs were read, and what could not be, and why."""
    from ..diagnose.signature_search import SignatureSearch
    from ..evidence.nccl.log_reader import Unreadable

    read, refused = 0, list(inputs.refused)
    with ReadProgress(sys.stderr, inputs.size) as progress:
        for one in inputs.named():
            try:
                with open_stream(one.path, progress) as stream:
                    # What a rank survived is no failure.
                    found = SignatureSearch(()) if one.survived else search
                    insist = one.asked_for or one.name.endswith(LOGS)
                    found.stream(stream, one.name, one.host, one.rank, insist=insist)
                read += 1
            except Unreadable as error:
                if one.asked_for or " is compressed" in str(error):
                    why = str(error).removeprefix(one.name).strip()
                    refused.append((one.name, why))
            except OSError as error:
                refused.append((one.name, f"cannot be read: {error.strerror or error}"))
    return read, refused


def _json_lines(found: list[Finding]) -> Iterator[str]:
    """A list, one finding a line."""
    yield "["
    for index, one in enumerate(found, 1):
        whole = one.as_dict()
        kept = ("id", "cause", "fix", "primary", "evidence", "hosts", "ranks")
        line = json.dumps({key: whole[key] for key in kept}, ensure_ascii=True)
        yield f" {line}{',' * (index < len(found))}"
    yield "]"


def text(found: list[Finding], read: int, paper: TextOutput) -> Iterator[str]:
    """Findings for people: causes with their evidence and next step, then what follows from them
    in a line each."""
    if not found:
        yield f"no known failure and no exception found in {plural(read, 'file')}"
        return
    causes = [one for one in found if one.primary]
    for index, one in enumerate(causes or found[:1], 1):
        if index > 1:
            yield ""
        yield from _cause(one, f"{index}. " if len(causes) > 1 else "", paper)
    follow_on = [one for one in found if not one.primary][0 if causes else 1 :]
    if follow_on:
        yield ""
        yield paper.bold("follows from it:" if len(causes) < 2 else "follows from these:")
        for one in follow_on:
            first = one.evidence[0]
            told = f"{one.id}: {one.cause} ({_count(one)}; {first.file}:{first.line})"
            yield from paper.wrap(sanitize_line(told), "  ", "    ")


def _cause(one: Finding, number: str, paper: TextOutput) -> Iterator[str]:
    for line in paper.wrap(sanitize_line(f"{number}{one.cause} [{one.id}]"), rest="   "):
        yield paper.bold(line)
    where = _where(one)
    if where:
        yield from paper.wrap(sanitize_line(where), "   where: ", "     ")
    for evidence in one.evidence:
        told = f"{evidence.file}:{evidence.line}: {evidence.text}"
        yield from paper.wrap(sanitize_line(told), "   ", "     ")
    if one.detail["lines"] > len(one.evidence):
        yield f"   ... {_count(one)} in total"
    yield from paper.wrap(sanitize_line(one.fix), "   next: ", "     ")


def _where(one: Finding) -> str:
    ranks = [f"rank {', '.join(_some([str(rank) for rank in one.ranks]))}"] if one.ranks else []
    hosts = [f"on {', '.join(_some(list(one.hosts)))}"] if one.hosts else []
    return " ".join(ranks + hosts)


def _some(words: list[str]) -> list[str]:
    more = len(words) - MAX_PLACES
    return words if more <= 0 else [*words[:MAX_PLACES], f"and {more} more"]


def _count(one: Finding) -> str:
    lines = one.detail["lines"]
    least = "at least " if one.detail["more"] else ""
    return f"{least}{plural(lines, 'line')}"
