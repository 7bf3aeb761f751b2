"""What happened to a phase, by structured evidence -> why, where the texts around it tell that.

A finding keeps its id, host and rank. Where a known primary failure stands in what the rank raised,
in its own words, or in its node's logs, in this order, that one's cause and fix are told. Where
none does, the finding says so, with the first error that no signature knows.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from .. import clean
from ..findings import Finding, job_logs, lines_before

if TYPE_CHECKING:
    from ..result import PhaseResult
    from ..signatures.search import Search

# Findings that say what happened and not why.
EXPLAINED = {
    "rank-error",
    "rank-died",
    "hang",
    "torchrun-failed",
    "node-failed",
    "launcher-failed",
    "job-failed",
    "job-lost",
}
# Of these nobody knows why they happened, unless a text tells it.
UNKNOWN = {
    "rank-error",
    "rank-died",
    "torchrun-failed",
    "launcher-failed",
    "job-failed",
    "job-lost",
}
# How a process ended, which is known already where its exit status is.
ENDS = {"rank_killed", "rank_crashed"}
# What the victims of a hang say.
WAITED = {"gloo_timeout", "store_timeout", "torch_watchdog_timeout"}
# A phase of a thousand ranks may fail on each of them; the first tell why.
MAX_EXPLAINED, MAX_FILES = 8, 64
MAX_LOG_BYTES = 128 * 2**20


def explained(found: list[Finding], result: PhaseResult) -> list[Finding]:
    """The findings, the primary ones with the known cause behind them, where there is one."""
    first = [one for one in found if one.primary and one.id in EXPLAINED][:MAX_EXPLAINED]
    return [_explained(one, result) if one in first else one for one in found]


def _explained(finding: Finding, result: PhaseResult) -> Finding:
    cause, unknown = _cause(finding, result)
    if cause is not None:
        return _with(finding, cause)
    if finding.id not in UNKNOWN or "exitcode" in finding.detail:
        return finding
    if unknown is None or finding.id == "rank-error":
        said = "; unknown cause" if finding.id in ("rank-error", "rank-died") else ""
        return replace(finding, cause=f"{finding.cause}{said}")
    return replace(
        finding,
        cause=f"{finding.cause}; {unknown.cause}",
        evidence=(*finding.evidence, *unknown.evidence[:1]),
    )


def _with(finding: Finding, cause: Finding) -> Finding:
    return replace(
        finding,
        cause=f"{finding.cause}; that is: {cause.cause}",
        fix=cause.fix,
        evidence=(*finding.evidence, *cause.evidence[:1]),
        detail={**finding.detail, "signature": cause.id},
    )


def _cause(finding: Finding, result: PhaseResult) -> tuple[Finding | None, Finding | None]:
    """The most exact of the known causes: of the first place that has one. Without any, the first
    error that is not known."""
    from ..signatures import order, schema
    from ..signatures.search import Search

    known = schema.known()
    general = {one.id for one in known if one.general}
    rough: Finding | None = None
    unknown: Finding | None = None
    ends = ENDS if "exitcode" in finding.detail else set()
    ends = ends | WAITED if finding.id == "hang" else ends
    for tier in (_raised, _said, _node_logs):
        search = Search(known)
        tier(search, finding, result)
        for one in order.findings(search):
            elsewhere = one.ranks and finding.ranks and not set(one.ranks) & set(finding.ranks)
            if not one.primary or elsewhere or one.id in ends:
                continue
            if one.id == order.UNKNOWN:
                unknown = unknown or one
            elif one.id not in general:
                return one, None
            else:
                rough = rough or one
    return rough, unknown


def _raised(search: Search, finding: Finding, result: PhaseResult) -> None:
    """The exceptions that the finding's ranks wrote down."""
    for rank in result.ranks:
        error = rank.events.last("error")
        if rank.rank not in finding.ranks or error is None:
            continue
        raised = f"{error.get('type')}: {error.get('message')}\n{error.get('traceback')}\n"
        stream = io.BytesIO(clean.lines(raised).encode())
        search.stream(stream, str(rank.events.path), rank.node, rank.rank)
        _put_on_line(search, str(rank.events.path), rank.events.line_of(error))


def _put_on_line(search: Search, file: str, line: int) -> None:
    """An event is one line of its file, whatever lines its text has."""
    for match in search.matches.values():
        match.lines = [
            one._replace(number=line) if one.file == file else one for one in match.lines
        ]


def _said(search: Search, finding: Finding, result: PhaseResult) -> None:
    """The standard error of the finding's ranks; of all ranks of its nodes, where it names none."""
    files: list[tuple[Path, str, int | None]] = []
    if finding.ranks:
        for rank in result.ranks:
            node = rank.start.get("node_rank")
            if rank.rank in finding.ranks and isinstance(node, int):
                logs = result.directory.rank_logs(node).glob(f"**/{rank.local_rank}/stderr.log")
                files += [(path, rank.node, rank.rank) for path in logs]
    else:
        for number, name in _nodes(finding, result):
            logs = result.directory.rank_logs(number).glob("**/stderr.log")
            files += [(path, name, None) for path in logs]
    _search(search, files)


def _node_logs(search: Search, finding: Finding, result: PhaseResult) -> None:
    """What NCCL and torchrun say on the finding's nodes, and what the job's own shell printed."""
    files: list[tuple[Path, str, int | None]] = []
    for number, name in _nodes(finding, result):
        nccl = result.directory.nccl_logs(number).glob("*.log")
        files += [(path, name, None) for path in (*nccl, result.directory.torchrun_log(number))]
    files += [(path, "", None) for path in job_logs(result.directory)]
    _search(search, files)


def _nodes(finding: Finding, result: PhaseResult) -> Iterator[tuple[int, str]]:
    for node in result.nodes:
        if not finding.hosts or node.name in finding.hosts:
            yield node.node_rank, node.name


def _search(search: Search, files: Iterable[tuple[Path, str, int | None]]) -> None:
    from ..nccl.reader import Unreadable

    for path, host, rank in sorted(files)[:MAX_FILES]:
        # What was never written, or is no text: the finding stands without it.
        with contextlib.suppress(OSError):
            for stream, line in _parts(path):
                with contextlib.suppress(Unreadable):
                    search.stream(stream, str(path), host, rank, line)


def _parts(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """A log, and the number of its first line; of one of gigabytes its beginning and its end, where
    a failure stands."""
    with path.open("rb") as stream:
        if stream.seek(0, os.SEEK_END) <= MAX_LOG_BYTES:
            stream.seek(0)
            yield stream, 1
            return
        stream.seek(0)
        yield io.BytesIO(stream.read(MAX_LOG_BYTES // 8)), 1
        end = stream.seek(-MAX_LOG_BYTES // 2, os.SEEK_END)
        yield stream, lines_before(stream, end) + 1
