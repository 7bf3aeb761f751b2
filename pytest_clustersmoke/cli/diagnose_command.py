"""`clustersmoke diagnose LOG...`: why a job failed, from its logs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..evidence.finding import Finding
from ..text import plural, sanitize_line, shorten
from .log_streams import ReadProgress, name_refused, open_stream
from .subcommand import add, add_logs, format_json, print_lines

if TYPE_CHECKING:
    from ..diagnose.call_order import TorchDumps
    from ..diagnose.signature_search import SignatureSearch
    from .diagnose_inputs import LogInputs
    from .subcommand import TextOutput

# At most this many hosts and ranks of a finding are listed.
MAX_PLACES = 16
# Below a directory, files with these suffixes are searched even if they look binary.
LOGS = (".log", ".out", ".err")
# The next step if all findings are consequences of a failure elsewhere.
FETCH = (
    "read the outputs of all ranks and nodes (torchrun --log-dir DIR --tee 3, srun "
    "--output=%j-%t.out), what the scheduler says (sacct -j ID -o State,ExitCode,NodeList), and "
    "those nodes' kernel logs of the same minutes (dmesg), and give them all to this command"
)
DESCRIPTION = """\
Reads the logs of a failed job (of torch, NCCL, gloo, DeepSpeed, Slurm, the kernel) and torch's
flight recorders, and reports why it failed: first the causes, each with its log lines and the next
step, then their consequences. All logs must be of one job.
"""
EXAMPLES = """\
examples:
  clustersmoke diagnose slurm-4711.out slurm-4711.err
  clustersmoke diagnose logs/                     all files below it
  clustersmoke diagnose --json logs/ | jq '.[0]'
  clustersmoke diagnose job.log /tmp/nccl_trace_rank_*
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
    diagnose.set_defaults(run=_run_command)


def _run_command(parsed: argparse.Namespace) -> int:
    from ..diagnose.call_order import TorchDumps, rank_findings
    from ..diagnose.signature_file import shipped_signatures
    from ..diagnose.signature_findings import order_findings
    from ..diagnose.signature_search import SignatureSearch
    from .diagnose_inputs import LogInputs
    from .subcommand import TextOutput

    logs, search = LogInputs.of(parsed.logs), SignatureSearch(shipped_signatures())
    dumps = TorchDumps()
    read, refused = _read_inputs(search, dumps, logs)
    if not read and not refused:
        refused = [(", ".join(parsed.logs), "contains no text")]
    vague = {signature.id for signature in shipped_signatures() if signature.general}
    findings = rank_findings(order_findings(search), dumps.findings(), vague)
    if read:
        out = TextOutput.of(sys.stdout)
        print_lines(_json_lines(findings) if parsed.json else text(findings, read, out))
    name_refused(refused)
    return 2 if refused else int(bool(findings))


def _read_inputs(
    search: SignatureSearch, dumps: TorchDumps, logs: LogInputs
) -> tuple[int, list[tuple[str, str]]]:
    """Read the flight recorders among all inputs, and search the others. Returns how many were
    read, and which could not be, with the reason."""
    from ..diagnose.signature_search import SignatureSearch
    from ..evidence.nccl.log_reader import Unreadable

    read, refused = 0, list(logs.inputs.refused)
    with ReadProgress(sys.stderr, logs.inputs.size) as progress:
        for source in logs.named():
            # A pipe can be read only once.
            if source.path is not None and source.path.is_file() and dumps.add(source.path):
                read += 1
                continue
            try:
                with open_stream(source.path, progress) as stream:
                    # Errors that a rank survived are not failures.
                    target = SignatureSearch(()) if source.survived else search
                    insist = source.asked_for or source.name.endswith(LOGS)
                    target.stream(stream, source.name, source.host, source.rank, insist=insist)
                read += 1
            except Unreadable as error:
                if source.asked_for or " is compressed" in str(error):
                    why = str(error).removeprefix(source.name).strip()
                    refused.append((source.name, why))
            except OSError as error:
                refused.append((source.name, f"cannot be read: {error.strerror or error}"))
    return read, refused


def _json_lines(findings: list[Finding]) -> list[str]:
    """The lines of a JSON list."""
    keys = ("id", "cause", "fix", "primary", "evidence", "hosts", "ranks")
    records = [finding.as_dict() for finding in findings]
    return format_json([{key: record[key] for key in keys} for record in records])


def text(findings: list[Finding], read: int, out: TextOutput) -> Iterator[str]:
    """Findings for people: the causes, each with its evidence and next step, then one line for each
    finding that follows from them."""
    if not findings:
        yield f"no known failure and no exception found in {plural(read, 'file')}"
        return
    causes = [finding for finding in findings if finding.primary]
    if not causes:
        logs = "this log" if read == 1 else "these logs"
        yield out.bold(f"the cause is not in {logs}, only its consequences are")
        yield from out.wrap(FETCH, "   next: ", "     ")
        yield ""
    shown = causes or findings[:1]
    for index, finding in enumerate(shown, 1):
        if index > 1:
            yield ""
        yield from _cause(finding, f"{index}. " if len(causes) > 1 else "", out)
    follow_on = [finding for finding in findings if finding not in shown]
    if follow_on:
        yield ""
        follows = "follows from it:" if len(causes) == 1 else "follows from these:"
        yield out.bold(follows if causes else "other consequences:")
        for finding in follow_on:
            first = finding.evidence[0]
            line = f"{finding.id}: {finding.cause} ({_count(finding)}; {first.file}:{first.line})"
            yield from out.wrap(sanitize_line(line), "  ", "    ")


def _cause(finding: Finding, number: str, out: TextOutput) -> Iterator[str]:
    for line in out.wrap(sanitize_line(f"{number}{finding.cause} [{finding.id}]"), rest="   "):
        yield out.bold(line)
    where = _where(finding)
    if where:
        yield from out.wrap(sanitize_line(where), "   where: ", "     ")
    for evidence in finding.evidence:
        line = f"{evidence.file}:{evidence.line}: {evidence.text}"
        yield from out.wrap(sanitize_line(line), "   ", "     ")
    if finding.detail["lines"] > len(finding.evidence):
        yield f"   ... {_count(finding)} in total"
    yield from out.wrap(sanitize_line(finding.fix), "   next: ", "     ")


def _where(finding: Finding) -> str:
    ranks, hosts = [str(rank) for rank in finding.ranks], list(finding.hosts)
    places = [f"rank {shorten(ranks, MAX_PLACES)}"] if ranks else []
    places += [f"on {shorten(hosts, MAX_PLACES)}"] if hosts else []
    return " ".join(places)


def _count(finding: Finding) -> str:
    lines = finding.detail["lines"]
    least = "at least " if finding.detail["more"] else ""
    return f"{least}{plural(lines, 'line')}"
