"""Turns the matches in a job's logs into findings, the first cause first."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ..evidence.finding import Evidence, Finding
from .log_lines import LogLine, Time
from .signature_search import SignatureMatch, SignatureSearch
from .unknown_errors import LAST, TRACEBACK, WEIGHTS, UnknownAt, UnknownError

UNKNOWN = "unknown"
UNKNOWN_FIX = (
    "read the log around that line; set NCCL_DEBUG=INFO and TORCH_DISTRIBUTED_DEBUG=DETAIL to log "
    "more in the next run"
)
UNKNOWN_CAUSE = "unknown cause; the first error: "
# An error on a log's last line counts only if nothing else is a cause.
STARTED = WEIGHTS.keys() - {LAST}
# A rank that logged this many more lines had continued.
GOES_ON_LINES = 500
# What ranks log within so many lines may be of one failure.
EPISODE_LINES = 20
Key = tuple[bool, Time, int, int]
# Slurm reports an end and ends the ranks within this time, its KillWait (30 s) included.
TOGETHER_S = 120
NEVER: Time = (0, 0, 0, 0, 0.0)


def order_findings(search: SignatureSearch) -> list[Finding]:
    """Causes before their consequences; each group by time, or by file and line. What the run
    survived is left out."""
    search.drop_survived()
    matches = search.matches
    raised = [line for error, line, _, _ in search.unknown.errors if error.kind == TRACEBACK]
    unmatched = [line for _, line, _, _ in search.unknown.errors]
    clock = _Clock([*unmatched, *(line for match in matches.values() for line in match.lines)])
    exact = {
        name
        for name, match in matches.items()
        if match.signature.primary and not match.signature.general
        if not _explained(match, search, clock)
    }
    late = {name for name in exact if matches[name].signature.late}
    others = [line for name in exact - late for line in matches[name].lines] + raised
    exact -= {
        name
        for name in late
        if not all(clock.surely_before(matches[name].lines[0], line) for line in others)
    }
    unknown = _first_on_its_rank(search, exact, clock) if exact else _unknown(search, STARTED)
    findings = [(clock.first([unknown[1]]), _unknown_finding(*unknown))] if unknown else []
    for match in matches.values():
        primary = match.signature.id in exact
        if match.signature.general:
            explained = _explained(match, search, clock)
            primary = not exact and unknown is None and not explained
        findings.append((clock.first(match.lines), _finding(match, primary)))
    if not any(finding.primary for _, finding in findings) and (last := _unknown(search, {LAST})):
        findings.append(((False, NEVER, 0, 0), _unknown_finding(*last)))
    return [
        finding for _, finding in sorted(findings, key=lambda pair: (not pair[1].primary, pair[0]))
    ]


def _explained(match: SignatureMatch, search: SignatureSearch, clock: _Clock) -> bool:
    """Whether a signature that explains this match was found. An end of the job long after it
    explains nothing: the remaining ranks only waited."""
    others = [search.matches[name] for name in match.signature.follows if name in search.matches]
    return any(
        not (other.signature.late or other.signature.general)
        or not clock.long_before(match.lines, other.lines)
        for other in others
    )


def _finding(match: SignatureMatch, primary: bool) -> Finding:
    named = ", ".join(f"{words} {value}" for words, value in match.names.items())
    return Finding(
        match.signature.id,
        match.signature.cause + (f" ({named})" if named else ""),
        match.signature.fix,
        primary,
        tuple(Evidence(line.file, line.number, line.text) for line in match.lines),
        tuple(match.hosts),
        tuple(sorted(match.ranks)),
        {"lines": match.count, "more": match.capped},
    )


def _unknown(search: SignatureSearch, kinds: Collection[str]) -> UnknownAt | None:
    """The first error of these kinds that no signature knows. If the program caught it, and later
    one of the same kind that it did not catch, that one."""
    errors = [error for error in search.unknown.errors if error[0].kind in kinds]
    if not errors:
        return None
    clock = _Clock(line for _, line, _, _ in errors)
    errors.sort(key=lambda error: (WEIGHTS[error[0].kind], clock.first([error[1]])))
    first = errors[0][1]
    if not first.is_caught:
        return errors[0]
    later = (
        error
        for error in errors
        if error[0].kind == errors[0][0].kind and not error[1].is_caught
        if error[1].source == first.source and error[1].number > first.number + EPISODE_LINES
    )
    return next(later, errors[0])


def _first_on_its_rank(
    search: SignatureSearch, exact: Collection[str], clock: _Clock
) -> UnknownAt | None:
    """The first unknown exception after which the same rank logged a known cause, which may be its
    consequence. An exception that the program handled or survived does not count."""
    known = [line for name in exact for line in search.matches[name].lines]
    candidates = []
    for candidate in search.unknown.errors:
        error, line = candidate[0], candidate[1]
        mine = [other for other in known if _same_writer(line, other)]
        behind = [other for other in mine if other.number > line.number]
        if error.kind != TRACEBACK or error.handled or not behind or len(behind) < len(mine):
            continue
        soon = min(other.number for other in behind) - line.number <= GOES_ON_LINES
        if soon and not clock.long_before([line], behind):
            candidates.append(candidate)
    return min(candidates, key=lambda candidate: clock.first([candidate[1]]), default=None)


def _same_writer(line: LogLine, other: LogLine) -> bool:
    return line.source == other.source and line.rank is not None and line.rank == other.rank


def _unknown_finding(
    error: UnknownError, line: LogLine, hosts: list[str], ranks: list[int]
) -> Finding:
    where = f" ({error.where})" if error.where else ""
    return Finding(
        UNKNOWN,
        f"{UNKNOWN_CAUSE}{line.text}{where}",
        UNKNOWN_FIX,
        True,
        (Evidence(line.file, line.number, line.text),),
        tuple(hosts),
        tuple(ranks),
        {"lines": 1, "more": False, "where": error.where},
    )


class _Clock:
    """When lines were written. A line without a time was written before the lines below it in its
    file, so it takes the time of the next line that has one."""

    def __init__(self, lines: Iterable[LogLine]) -> None:
        self._times: dict[tuple[int, int], Time | None] = {}
        later: dict[int, Time] = {}
        for line in sorted(lines, key=lambda line: (line.source, -line.number)):
            if line.time is not None:
                later[line.source] = line.time
            self._times[line.source, line.number] = later.get(line.source)

    def first(self, lines: list[LogLine]) -> Key:
        return min(self._key(line) for line in lines)

    def surely_before(self, line: LogLine, other: LogLine) -> bool:
        """Whether a line was written before another: in one file, or by the times of both."""
        if line.source == other.source:
            return line.number < other.number
        mine, others = self._key(line), self._key(other)
        return not mine[0] and not others[0] and mine[1] < others[1]

    def long_before(self, lines: list[LogLine], others: list[LogLine]) -> bool:
        """Whether the first of these lines was written well before the first of the others."""
        mine, other = self.first(lines)[1], self.first(others)[1]
        return NEVER not in (mine, other) and _seconds(mine) + TOGETHER_S < _seconds(other)

    def _key(self, line: LogLine) -> Key:
        time = self._times[line.source, line.number]
        return time is None, time or NEVER, line.source, line.number


def _seconds(time: Time) -> float:
    """For differences only: a month counts as 31 days, which is exact within a month."""
    month, day, hour, minute, second = time
    return (((month * 31 + day) * 24 + hour) * 60 + minute) * 60 + second
