"""Adds to the findings from structured evidence the cause that the logs show.

A finding keeps its id, host and rank. If a primary signature matches what the rank raised, its
stderr or its node's logs, in this order, the finding gets that signature's cause and fix. If none
does, it says so, with the first error that no signature knows. Where nothing of its ranks' stderr
is quoted by then, the end of the first one that is not empty is.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from ..evidence.finding import Evidence, Finding, count_lines_before, find_end, find_last_line
from ..evidence.job_results import RankResult
from ..evidence.nccl.log_reader import Unreadable
from ..evidence.telemetry import open_regular
from ..text import sanitize_lines
from .failure_evidence import FailureEvidence
from .signature_file import shipped_signatures
from .signature_findings import UNKNOWN as UNKNOWN_ID
from .signature_findings import UNKNOWN_CAUSE, order_findings
from .signature_search import SignatureSearch

# Findings that say what happened, but not why.
EXPLAINED = {
    "rank-error",
    "rank-died",
    "hang",
    "torchrun-failed",
    "node-failed",
    "launcher-failed",
    "node-result-unreadable",
    "job-failed",
    "job-lost",
}
# Their cause is unknown unless a log shows it.
UNKNOWN = {
    "rank-error",
    "rank-died",
    "torchrun-failed",
    "launcher-failed",
    "job-failed",
    "job-lost",
}
# How a process ended, which is already known if its exit status is.
ENDS = {"rank_killed", "rank_crashed", "rank_bus_error"}
# What the victims of a hang log.
WAITED = {"gloo_timeout", "store_timeout", "torch_watchdog_timeout"}
# A launcher whose ranks have started had met the others; it loses them as they end.
MET = {"rdzv_timeout"}
# A phase of a thousand ranks may fail on every rank; the first ones are enough to explain it.
MAX_EXPLAINED, MAX_FILES, MAX_ENDS = 8, 64, 4
MAX_LOG_BYTES = 128 * 2**20


def explain_findings(findings: list[Finding], evidence: FailureEvidence) -> list[Finding]:
    """The findings, with the known cause added to the primary ones where there is one."""
    first = [finding for finding in findings if finding.primary and finding.id in EXPLAINED][
        :MAX_EXPLAINED
    ]
    return [
        _with_end(_explained(finding, evidence), evidence) if finding in first else finding
        for finding in findings
    ]


def _with_end(finding: Finding, evidence: FailureEvidence) -> Finding:
    """With the last lines that one of its ranks wrote to stderr. Not of a rank that recorded its
    exception: that is what it wrote."""
    if finding.id == "rank-error":
        return finding
    logs = [*_stderr_of(finding, evidence)]
    quoted = {shown.file for shown in finding.evidence}
    if not quoted.isdisjoint(map(str, logs)):
        return finding
    end = next((end for path in logs[:MAX_ENDS] if (end := find_end(path))), ())
    return replace(finding, evidence=(*finding.evidence, *end))


def _explained(finding: Finding, evidence: FailureEvidence) -> Finding:
    cause, unknown = _cause(finding, evidence)
    if cause is not None and unknown is not None and finding.id != "rank-error":
        return _with_both(finding, cause, unknown)
    if cause is not None:
        return _with_cause(finding, cause)
    code = finding.detail.get("exitcode")
    if finding.id not in UNKNOWN or (code is not None and code <= 0):
        return finding
    if code is not None and unknown is None:
        return _with_last_line(finding, evidence)
    if unknown is None:
        suffix = "; unknown cause" if finding.id in ("rank-error", "rank-died") else ""
        return replace(finding, cause=f"{finding.cause}{suffix}")
    shown = _join_evidence(finding, unknown)
    if finding.id == "rank-error" or shown == finding.evidence:  # the error is quoted already
        where = f", raised at {unknown.detail['where']}" if unknown.detail["where"] else ""
        return replace(finding, cause=f"{finding.cause}; unknown cause{where}")
    return replace(finding, cause=f"{finding.cause}; {unknown.cause}", evidence=shown)


def _join_evidence(finding: Finding, cause: Finding) -> tuple[Evidence, ...]:
    """That of the finding, with the first line of the cause's, unless that is quoted already."""
    quoted = {(shown.file, shown.line): shown.text for shown in finding.evidence}
    first = [
        shown
        for shown in cause.evidence[:1]
        if shown.text not in quoted.get((shown.file, shown.line), "")
    ]
    return (*finding.evidence, *first)


def _with_cause(finding: Finding, cause: Finding) -> Finding:
    return replace(
        finding,
        cause=f"{finding.cause}; cause: {cause.cause}",
        fix=cause.fix,
        evidence=_join_evidence(finding, cause),
        detail={**finding.detail, "signature": cause.id},
    )


def _with_last_line(finding: Finding, evidence: FailureEvidence) -> Finding:
    """A rank that exited with a status of its own may have given the reason, in any form, as the
    last line of its stderr: `raise SystemExit("...")`."""
    last: list[Evidence] = []
    for path in _stderr_of(finding, evidence):
        last += find_last_line(path)
    if not last:
        return finding
    cause = f"{finding.cause}; unknown cause; the last line of its stderr: {last[0].text}"
    return replace(finding, cause=cause, evidence=(*finding.evidence, last[0]))


def _with_both(finding: Finding, cause: Finding, before: Finding) -> Finding:
    """A known cause, and the unknown exception before it, of which it may be a consequence."""
    known = _with_cause(finding, cause)
    error = before.cause.removeprefix(UNKNOWN_CAUSE)
    return replace(
        known,
        cause=f"{known.cause}; before that, it raised an error that no signature knows: {error}",
        evidence=_join_evidence(known, before),
    )


def _cause(finding: Finding, evidence: FailureEvidence) -> tuple[Finding | None, Finding | None]:
    """The most exact known cause, from the first place that has one, and the unknown error before
    it, if any. Without a known cause, the first unknown error."""
    known = shipped_signatures()
    general = {signature.id for signature in known if signature.general}
    rough: Finding | None = None
    unknown: Finding | None = None
    ends = ENDS if "exitcode" in finding.detail else set()
    ends = ends | WAITED if finding.id == "hang" else ends
    ends = ends | MET if any(rank.start for rank in evidence.result.ranks) else ends
    for tier in (_search_exceptions, _search_stderr, _search_node_logs):
        # A node's own logs show no progress: what a program can go on without, its ranks show.
        is_over = tier is _search_node_logs and any(map(_has_progressed, evidence.result.ranks))
        search = SignatureSearch([each for each in known if not (is_over and each.warning)])
        tier(search, finding, evidence)
        before: Finding | None = None
        for match in order_findings(search):
            elsewhere = match.ranks and finding.ranks and not set(match.ranks) & set(finding.ranks)
            if not match.primary or elsewhere or match.id in ends:
                continue
            if match.id == UNKNOWN_ID:
                unknown, before = unknown or match, match
            elif match.id not in general:
                return match, before
            else:
                rough = rough or match
    return rough, unknown


def _has_progressed(rank: RankResult) -> bool:
    """Whether a rank has ended a stage, or marked a step."""
    stages = rank.events.named("stage")
    ended = any(stage.get("state") == "end" for stage in stages)
    return ended or rank.events.last("step") is not None


def _search_exceptions(
    search: SignatureSearch, finding: Finding, evidence: FailureEvidence
) -> None:
    """The exceptions that the finding's ranks recorded."""
    for rank in evidence.result.ranks:
        error = rank.error
        if rank.rank not in finding.ranks or error is None:
            continue
        text = f"{error}\n{error.traceback}\n"
        stream = io.BytesIO(sanitize_lines(text).encode())
        search.stream(stream, str(rank.events.path), rank.node, rank.rank)
        _put_on_line(search, str(rank.events.path), error.line)


def _put_on_line(search: SignatureSearch, file: str, number: int) -> None:
    """Let all matches in this file cite the line of the event, since an event is one line of its
    file however many lines its text has."""
    for match in search.matches.values():
        match.lines = [
            line._replace(number=number) if line.file == file else line for line in match.lines
        ]


def _search_stderr(search: SignatureSearch, finding: Finding, evidence: FailureEvidence) -> None:
    """The stderr of the finding's ranks; if it names none, of all ranks of its nodes. A rank that
    ended well survived whatever it logged: it may have caught the error and retried."""
    files: list[tuple[Path, str, int | None]] = []
    well = {_place(evidence.result.ranks[rank]) for rank in evidence.survivors}
    if finding.ranks:
        names = {rank.rank: rank.node for rank in evidence.result.ranks}
        files += [(path, names[rank], rank) for path, rank in _stderr_of(finding, evidence).items()]
    else:
        for number, name in _nodes(finding, evidence):
            logs = evidence.directory.find_rank_logs(number)
            failed = [path for path in logs if (number, path.parent.name) not in well]
            files += [(path, name, None) for path in failed]
    _search_files(search, files)


def _stderr_of(finding: Finding, evidence: FailureEvidence) -> dict[Path, int]:
    """The stderr logs of the finding's ranks, each with its rank."""
    rank_of_log: dict[Path, int] = {}
    for rank in evidence.result.ranks:
        if rank.rank in finding.ranks and rank.node_rank is not None:
            logs = evidence.directory.find_rank_logs(rank.node_rank, rank.local_rank)
            rank_of_log |= dict.fromkeys(logs, rank.rank)
    return rank_of_log


def _place(rank: RankResult) -> tuple[int | None, str]:
    """The number of a rank's node, and the name of the rank's log folder there."""
    return rank.node_rank, str(rank.local_rank)


def _search_node_logs(search: SignatureSearch, finding: Finding, evidence: FailureEvidence) -> None:
    """The logs of NCCL and the launcher on the finding's nodes, and the job's own logs."""
    files: list[tuple[Path, str, int | None]] = []
    for number, name in _nodes(finding, evidence):
        nccl = evidence.directory.nccl_logs(number).glob("*.log")
        files += [(path, name, None) for path in (*nccl, evidence.directory.launcher_log(number))]
    files += [(path, "", None) for path in evidence.job_logs]
    _search_files(search, files)


def _nodes(finding: Finding, evidence: FailureEvidence) -> Iterator[tuple[int, str]]:
    for node in evidence.result.nodes:
        if not finding.hosts or node.name in finding.hosts:
            yield node.node_rank, node.name


def find_log_cause(path: Path) -> str:
    """What a log by itself shows to be the cause, or else its last line; empty without a log."""
    search = SignatureSearch(shipped_signatures())
    _search_files(search, [(path, "", None)])
    causes = (found.cause for found in order_findings(search) if found.primary)
    return next(causes, "") or "".join(last.text for last in find_last_line(path))


def _search_files(search: SignatureSearch, files: Iterable[tuple[Path, str, int | None]]) -> None:
    for path, host, rank in sorted(files)[:MAX_FILES]:
        # A log that does not exist or is not text: the finding stands without it.
        with contextlib.suppress(OSError):
            for stream, line in _parts(path):
                with contextlib.suppress(Unreadable):
                    search.stream(stream, str(path), host, rank, line)


def _parts(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """A log and the number of its first line; for a huge log its beginning and its end, where
    failures are found."""
    with contextlib.suppress(OSError), open_regular(path) as stream:
        if stream.seek(0, os.SEEK_END) <= MAX_LOG_BYTES:
            stream.seek(0)
            yield stream, 1
            return
        stream.seek(0)
        yield io.BytesIO(stream.read(MAX_LOG_BYTES // 8)), 1
        end = stream.seek(-MAX_LOG_BYTES // 2, os.SEEK_END)
        yield stream, count_lines_before(stream, end) + 1
