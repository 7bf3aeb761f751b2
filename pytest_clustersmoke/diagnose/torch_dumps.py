"""Flight recorders as torch itself dumps them, one file per rank (`nccl_trace_rank_3`), and which
ranks they show to be missing.

torch writes them when a watchdog fires (TORCH_NCCL_DUMP_ON_TIMEOUT, TORCH_FR_DUMP_TEMP_FILE). They
are pickles of plain values; anything else in one is refused, so reading them executes nothing. A
dump without entries is evidence, too: that rank enqueued nothing.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any

from ..evidence.finding import Evidence, Finding
from ..text import name_ranks, sanitize_line
from .call_order import Absence, Mismatch, find_absences, find_first_mismatch, pending_calls
from .flight_recorder import DEFAULT_GROUP, FlightRecord, parse_flight_record

# A pickle of one byte can make an object of 56: this bounds the memory.
MAX_BYTES = 16 * 2**20
MAX_ENTRIES = 4096
MAX_RANKS = 2**17
MAX_NAMED = 8
# PROTO 2 (c10's pickler) to 5; or a JSON object.
STARTS = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"{")
RANK = re.compile(r"rank_?(\d{1,6})(?!\d)|(?<!\d)(\d{1,6})(?:\.(?:json|pkl|pickle))?\Z")
FIX = (
    "read the logs of these ranks and take their stacks (py-spy dump): each has died, hangs "
    "outside collectives, or skipped the call, for example under `if rank == 0`"
)
ALIKE = (
    "make every rank call the same collectives in the same order, with equal shapes and types; "
    "check these lines for anything that depends on the rank or on its data"
)


@dataclass
class TorchDumps:
    """The dumps of a job's ranks."""

    records: dict[int, FlightRecord] = field(default_factory=dict)
    world_size: int = 0

    def add(self, path: Path) -> bool:
        """Read a dump; False if the file is not one, or its name has no rank."""
        match = RANK.search(path.name)
        raw = _read_dump(path)
        rank = int(match[1] or match[2]) if match else MAX_RANKS
        if raw is None or rank >= MAX_RANKS:
            return False
        entries = raw["entries"][-MAX_ENTRIES:]
        record = parse_flight_record(rank, path, {**raw, "groups": {}}, entries)
        record.enqueued = dict(_enqueued(raw.get("pg_status"), entries))
        sizes = [max(ranks) + 1 for ranks in _member_lists(raw.get("pg_config"))]
        self.records[rank] = record
        self.world_size = max(self.world_size, rank + 1, *sizes)
        return True

    def findings(self) -> list[Finding]:
        """What the dumps show: a call that differs, or the ranks that others wait for."""
        mismatch = find_first_mismatch(self.records, self.world_size)
        if mismatch is not None:
            return [self._differing(mismatch)]
        absences = find_absences(self.records, self.world_size)
        found = [self._absent(absence) for absence in absences]
        if not found and (silent := self._silent()):
            found = [self._finding(silent, f"{name_ranks(silent)} enqueued no collective", silent)]
        missing = self._without_dump()
        if not found and missing and pending_calls(self.records):
            found = [self._finding(missing, self._waits_text(), list(self.records))]
        return found

    def _silent(self) -> list[int]:
        """The ranks that enqueued nothing, where others did."""
        silent = [rank for rank, record in sorted(self.records.items()) if not record.has_calls]
        return silent if len(silent) < len(self.records) else []

    def _without_dump(self) -> list[int]:
        return [rank for rank in range(self.world_size) if rank not in self.records]

    def _absent(self, absence: Absence) -> Finding:
        at = f" at {absence.call.line}" if absence.call.line else ""
        cause = (
            f"{name_ranks(absence.absent)} never reached {absence.call.kind} {absence.number} of "
            f"group {absence.group}, in which {name_ranks(absence.waiters)} "
            f"{'wait' if len(absence.waiters) > 1 else 'waits'}{at}"
        )
        return self._finding(absence.absent, cause, [*absence.absent, *absence.waiters])

    def _waits_text(self) -> str:
        rank, (group, call) = next(iter(pending_calls(self.records).items()))
        return (
            f"{name_ranks(self._without_dump())} left no dump, while rank {rank} and others wait "
            f"in {call.kind} {call.number} of group {group}"
        )

    def _finding(self, ranks: Collection[int], cause: str, shown: Collection[int]) -> Finding:
        missing = self._without_dump()
        if missing and set(missing) != set(ranks):
            cause += f"; no dump from {name_ranks(missing)}"
        evidence = tuple(self._evidence(rank) for rank in shown if rank in self.records)
        detail = {"lines": len(evidence), "more": False}
        return Finding(
            "hang", sanitize_line(cause), FIX, True, evidence[:MAX_NAMED], (), tuple(ranks), detail
        )

    def _evidence(self, rank: int) -> Evidence:
        """The last call of a rank, and whether it has ended."""
        record = self.records[rank]
        if not record.has_calls:
            return record.evidence(f"rank {rank}: no entries; it enqueued no collective")
        group = min(record.calls or record.p2p or record.enqueued)
        last = record.last(group)
        call = record.calls.get(group, {}).get(last)
        state = "" if call is None else ", ended" if call.ended else ", has not ended"
        what = f"{call}{state}" if call is not None else "known only by its number"
        return record.evidence(f"rank {rank}: last call {last} of group {group}: {what}")

    def _differing(self, mismatch: Mismatch) -> Finding:
        sides = [f"{name_ranks(ranks)}: {call}" for call, ranks in mismatch.sides[:3]]
        cause = f"call {mismatch.number} of group {mismatch.group} differs: {'; '.join(sides)}"
        shown = [rank for _, ranks in mismatch.sides for rank in ranks]
        finding = self._finding(mismatch.culprits, cause, shown)
        return replace(finding, id="collective-mismatch", fix=ALIKE)


def rank_findings(
    findings: list[Finding], dumps: list[Finding], vague: Collection[str]
) -> list[Finding]:
    """Findings of logs and of dumps: an exact cause in a log comes first, since ranks wait for one
    that failed; `vague` are the ids of causes that the dumps make more exact."""
    exact = [finding for finding in findings if finding.primary and finding.id not in vague]
    rest = [finding for finding in findings if finding not in exact]
    hangs = [replace(finding, primary=not exact) for finding in dumps]
    if dumps:
        rest = [replace(finding, primary=False) for finding in rest]
    return [*exact, *hangs, *rest]


class _PlainValues(pickle.Unpickler):
    """Unpickles dicts, lists, texts and numbers; a pickle that names any class or function is
    refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is not a plain value")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("a persistent id is not a plain value")


def _read_dump(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as stream:
            if not (head := stream.read(2)).startswith(STARTS):
                return None
            raw = head + stream.read(MAX_BYTES)
    except OSError:
        return None
    if len(raw) > MAX_BYTES or b"pg_" not in raw:
        return None
    try:
        value = json.loads(raw) if raw[:1] == b"{" else _PlainValues(BytesIO(raw)).load()
    except Exception:  # damaged pickles raise exceptions of many types
        return None
    if isinstance(value, list):  # torch 2.2
        return {"entries": value} if b"profiling_name" in raw else None
    whole = isinstance(value, dict) and isinstance(value.get("entries"), list)
    return value if whole and "version" in value else None


def _member_lists(config: Any) -> Iterator[list[int]]:
    """The ranks of each group, which torch writes as text."""
    for settings in list(config.values())[:MAX_ENTRIES] if isinstance(config, dict) else ():
        text = settings.get("ranks") if isinstance(settings, dict) else None
        ranks = (
            [int(word) for word in re.findall(r"\d{1,6}", text)] if isinstance(text, str) else []
        )
        if ranks and max(ranks) < MAX_RANKS:
            yield ranks


def _enqueued(status: Any, entries: list[Any]) -> Iterator[tuple[str, int]]:
    """Group -> the number of its last call, which outlives the entries. `pg_status` has a process's
    own numbers of groups, of which only 0 is the same on all ranks."""
    names = {DEFAULT_GROUP: DEFAULT_GROUP}
    for entry in entries:
        name = entry.get("process_group") if isinstance(entry, dict) else None
        if isinstance(name, (list, tuple)) and name and isinstance(name[0], str):
            names[str(entry.get("pg_id"))[:20]] = name[0][:100]
    for key, counts in list(status.items())[:MAX_ENTRIES] if isinstance(status, dict) else ():
        last = counts.get("last_enqueued_collective") if isinstance(counts, Mapping) else None
        number = int(last) if isinstance(last, str) and last.isdigit() else last
        if str(key) in names and type(number) is int and 0 < number < 2**63:
            yield names[str(key)], number
