"""Everything a failed phase left behind, each file parsed once for all judges of the failure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from ..config.marker import numbers_by_node
from ..evidence.finding import MAX_TEXT, Evidence, list_job_logs, read_head
from ..evidence.job_results import AbortFlag, NodeResult, RankError
from ..evidence.phase_result import PhaseResult
from ..evidence.run_directory import read_json
from ..evidence.telemetry import Events, parse_int, parse_rows, parse_text, read_events
from ..text import name_ranks, sanitize_line
from .flight_recorder import CollectiveCall, FlightRecord, read_flight_records
from .process_exits import RankExits
from .rank_positions import Stack, ranks_by_position, read_stacks, stacks_of_children
from .timeline import Timeline

# Errors of a rank that lost another rank: an echo, not a cause.
ECHO = re.compile(
    r"connection (reset|closed|refused)|broken pipe|socket timeout|timed out waiting|"
    r"to recv, got 0 bytes|ving ncclUniqueId|remote process exited|DistBackendError|"
    r"ncclRemoteError|NCCL communicator was aborted",
    re.I,
)
# Errors of a rank when a collective differs in size or kind between ranks.
MISMATCHED = re.compile(r"enforce fail|op\.preamble|mismatch|monitoredBarrier", re.I)
MAX_LINES = 8


class FailureEvidence:
    """What the nodes, ranks and scheduler left behind, read when a judge first needs it."""

    def __init__(self, result: PhaseResult) -> None:
        self.result = result
        self.directory = result.directory
        self.ranks = {rank.rank: rank for rank in result.ranks}
        self.world = [rank.rank for rank in result.ranks if not rank.done]

    @cached_property
    def errors(self) -> dict[int, RankError]:
        """Rank -> the exception that it raised."""
        return {rank.rank: rank.error for rank in self.result.ranks if rank.error is not None}

    @cached_property
    def records(self) -> dict[int, FlightRecord]:
        return read_flight_records(self.directory, self.ranks)

    @cached_property
    def stacks(self) -> dict[int, Stack]:
        return read_stacks(self.result)

    @cached_property
    def node_events(self) -> dict[int, Events]:
        numbers = [node.node_rank for node in self.result.nodes]
        return {number: read_events(self.directory.node_events(number)) for number in numbers}

    def has_begun(self, node: NodeResult) -> bool:
        """Whether the node began its part of the job."""
        return bool(node.result or self.node_events[node.node_rank].records)

    @property
    def slurm_job(self) -> str:
        """The id of the job in Slurm; empty if another backend ran it."""
        claims = [events.last("claim") or {} for events in self.node_events.values()]
        ids = (parse_text(claim.get("job_id")) for claim in claims)
        return next(filter(None, ids), "") if self.result.scheduler.job.text else ""

    @cached_property
    def abort_flag(self) -> AbortFlag:
        return AbortFlag.from_record(read_json(self.directory.abort) or {})

    @cached_property
    def timeline(self) -> Timeline:
        return Timeline.of(self.result, self.node_events, self.abort_flag)

    @cached_property
    def exits(self) -> RankExits:
        return RankExits.of(self.result, self.node_events)

    @cached_property
    def survivors(self) -> frozenset[int]:
        """The ranks that were done and whose process did not fail afterwards: they survived what
        they logged, such as an out-of-memory error that the program caught."""
        ended = self.exits.by_rank
        done = [rank.rank for rank in self.result.ranks if rank.done]
        return frozenset(rank for rank in done if rank not in ended or ended[rank].code == 0)

    @property
    def job_logs(self) -> list[Path]:
        """The output of the job's shell and launchers, by node."""
        return list_job_logs(self.directory, self.result.job_id)

    def search_job_logs(
        self, *words: re.Pattern[str], also: Iterable[Path] = ()
    ) -> Iterator[tuple[re.Match[str], Evidence]]:
        """The first lines of the job's own logs, and of others, that match one of these
        patterns."""
        for path in (*self.job_logs, *also):
            for number, line in read_head(path):
                match = next((hit for pattern in words if (hit := pattern.search(line))), None)
                if match:
                    yield match, Evidence(str(path), number, line[:MAX_TEXT])

    def hosts(self, ranks: Iterable[int]) -> tuple[str, ...]:
        hosts = []
        for rank in ranks:
            node = self.ranks[rank].node if rank in self.ranks else "unknown"
            if node == "unknown":  # it hangs before its Rank
                node = self._watched.get(rank, node)
            hosts.append(node)
        return tuple(dict.fromkeys(hosts))

    @cached_property
    def _watched(self) -> dict[int, str]:
        """Rank -> the name of the node whose watch followed it; or, if ranks are numbered by node,
        of the node that had to."""
        names = {node.node_rank: node.name for node in self.result.nodes}
        per_node = int(self.result.spec.get("ranks_per_node") or 1)
        by_number = {rank: names[rank // per_node] for rank in range(len(names) * per_node)}
        return (by_number if numbers_by_node(self.result.spec) else {}) | {
            rank: names[number]
            for number, events in self.node_events.items()
            for record in events.named("ranks")
            for state in parse_rows(record.get("states"))
            if (rank := parse_int(state.get("rank"))) is not None
        }

    def name_ranks(self, ranks: Collection[int]) -> str:
        """`rank 3 (n1)`, or `ranks 3, 5-7 (n1, n2)`."""
        hosts = ", ".join(self.hosts(sorted(ranks)))
        return f"{name_ranks(ranks)} ({hosts})"

    def position(self, rank: int) -> str:
        """Where a rank was, in words; empty without a stack."""
        stack = self.stacks.get(rank)
        if stack is None:
            return ""
        words = stack.line
        if stack.frames[0] != stack.program:
            words += f" (in {stack.frames[0]})"
        if stack.waits_for_loader:
            workers = [str(stack.program) for stack in stacks_of_children(self.directory, rank)]
            at = f", which is at {workers[0]}" if workers else ""
            words += f", waiting for a worker of its DataLoader{at}"
        return words

    def lines(self, ranks: Iterable[int]) -> dict[str, str]:
        """Rank -> the line of the program that it was on."""
        stacks = ((rank, self.stacks.get(rank)) for rank in list(ranks)[:MAX_LINES])
        return {str(rank): sanitize_line(stack.line) for rank, stack in stacks if stack}

    def evidence_of(self, ranks: Iterable[int]) -> list[Evidence]:
        """The stack and flight recorder of each rank, if it left them."""
        pieces = []
        for rank in list(ranks)[:MAX_LINES]:
            stack, record = self.stacks.get(rank), self.records.get(rank)
            if stack is not None:
                pieces.append(stack.evidence())
            if record is not None:
                last = {group: str(calls[max(calls)]) for group, calls in record.calls.items()}
                text = "; ".join(f"group {group}: {call}" for group, call in last.items())
                pieces.append(record.evidence(f"rank {rank}'s last collective by group: {text}"))
        return pieces

    def detail(self, **more: Any) -> dict[str, Any]:
        return {**more, "positions": ranks_by_position(self.result)}


def is_echo(error: RankError) -> bool:
    """Whether the error only reports the loss of another rank."""
    return bool(ECHO.search(error.message))


def is_consequence(error: RankError) -> bool:
    """Whether the error only reports the loss of another rank, or a collective that differs."""
    text = str(error)
    return bool(ECHO.search(text) or MISMATCHED.search(text))


def line_of(evidence: FailureEvidence, call: CollectiveCall, ranks: Collection[int]) -> str:
    """The line of the program that made the call: from the recorder, or from the stack of a rank
    that still waits in it."""
    if call.line:
        return call.line
    for rank in ranks:
        stack, record = evidence.stacks.get(rank), evidence.records.get(rank)
        if stack is None or record is None:
            continue
        if any(calls and max(calls) == call.number for calls in record.calls.values()):
            return stack.line
    return ""
