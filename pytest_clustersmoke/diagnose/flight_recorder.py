"""The flight recorders of ranks: which collectives each rank called, in which process group.

The ranks of a phase write them as JSON (rank/recorder_dump.py). torch itself dumps one file per
rank (`nccl_trace_rank_3`) when a watchdog fires (TORCH_NCCL_DUMP_ON_TIMEOUT,
TORCH_FR_DUMP_TEMP_FILE): a pickle of plain values, or JSON. A pickle with anything else is refused,
so reading it executes nothing.

torch's own analyzer fails on gloo's records, so they are parsed here. The format depends on torch's
version: 2.2 numbers calls by `seq_id` and groups by `pg_id`, which each process counts for itself
(only 0, the default group, is the same on all ranks); 2.3 has `pg_name`; 2.4 and later have
`process_group` (name, description), `collective_seq_id` and `p2p_seq_id`. gloo, recorded since 2.6,
leaves `state` at "scheduled": `retired` shows that a call has ended. The recorder is a ring buffer:
the first calls may be gone. A group with several backends (`cpu:gloo,cuda:nccl`) has calls in both
recorders, and each backend numbers its own from 1.
"""

from __future__ import annotations

import json
import math
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from ..evidence.finding import MAX_TEXT, Evidence
from ..evidence.run_directory import PhaseDir
from ..evidence.telemetry import read_start
from .rank_positions import LIBRARY

# 2,000 calls with 20 frames each are 5 MB.
MAX_BYTES = 32 * 2**20
# How many calls to keep per group and rank; calls that all ranks got past explain nothing.
KEPT = 256
MAX_DIMENSIONS = 64
MAX_TENSORS, MAX_FRAMES = 4096, 200
# Of torch's dumps. A pickle of one byte can make an object of 56: this bounds the memory.
MAX_DUMP_BYTES = 16 * 2**20
MAX_ENTRIES = 4096
MAX_RANKS = 2**17
# PROTO 2 (c10's pickler) to 5; or a JSON object.
DUMP_STARTS = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"{")
DUMP_RANK = re.compile(r"rank_?(\d{1,6})(?!\d)|(?<!\d)(\d{1,6})(?:\.(?:json|pkl|pickle))?\Z")
DEFAULT_GROUP = "0"
# Calls whose roots or sizes differ between ranks by design: only their kind is compared.
UNEVEN = re.compile(r"gather$|scatter$|all_?to_?all|reduce$|_oop$|coalesced|send|recv|monitored")
# These match by the end of their name, but are even.
EVEN = frozenset({"all_reduce", "all_gather", "reduce_scatter", "allreduce", "allgather"})
P2P = re.compile(r"(send|recv) (\d{1,9})(?:->|<-)(\d{1,9})$")


class Channel(NamedTuple):
    """A process group on one of its backends: what calls are numbered in."""

    group: str
    backend: str = ""  # empty if torch does not say


@dataclass(frozen=True)
class CollectiveCall:
    """One collective as one rank called it."""

    number: int
    kind: str
    sizes: str = ""
    elements: int | None = None
    dtype: str = ""
    line: str = ""  # of the program: FILE:LINE in FUNCTION, called at FILE:LINE in FUNCTION
    ended: bool = False
    state: str = ""
    created_s: float | None = None  # Unix

    @property
    def agrees_on(self) -> tuple[str, int | None, str]:
        """The properties that must be the same on all ranks of the group."""
        if self.kind not in EVEN and UNEVEN.search(self.kind):
            return self.kind, None, ""
        return self.kind, self.elements, self.dtype

    def __str__(self) -> str:
        tensors = f" of {self.sizes} {self.dtype}".rstrip() if self.sizes else ""
        return f"{self.kind}{tensors}" + (f" at {self.line}" if self.line else "")


@dataclass
class FlightRecord:
    """One rank's flight recorder, by group and backend."""

    rank: int
    path: Path
    calls: dict[Channel, dict[int, CollectiveCall]] = field(default_factory=dict)
    p2p: dict[Channel, list[CollectiveCall]] = field(default_factory=dict)
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    descriptions: dict[str, str] = field(default_factory=dict)
    enqueued: dict[str, int] = field(default_factory=dict)  # the last number, if torch counts it
    whole: bool = True  # nothing was overwritten

    @property
    def has_calls(self) -> bool:
        return bool(self.calls or self.p2p or self.enqueued)

    def last(self, channel: Channel) -> int:
        """The number of the last call; 0 if there is none."""
        return max(self.calls.get(channel, {}), default=self.enqueued.get(channel.group, 0))

    def pending(self, channel: Channel) -> CollectiveCall | None:
        """The first call that has not ended."""
        calls = self.calls.get(channel, {})
        return next((calls[number] for number in sorted(calls) if not calls[number].ended), None)

    def evidence(self, text: str) -> Evidence:
        return Evidence(str(self.path), 1, text[:MAX_TEXT])


def read_flight_records(directory: PhaseDir, ranks: Iterable[int]) -> dict[int, FlightRecord]:
    """Rank -> its record, if it left one with at least one call."""
    records = ((rank, read_flight_record(directory, rank)) for rank in ranks)
    return {rank: record for rank, record in records if record is not None}


def read_flight_record(directory: PhaseDir, rank: int) -> FlightRecord | None:
    """One rank's record: the full one if it exists, otherwise the one without lines."""
    whole, brief = directory.rank_flight_recorder(rank), directory.rank_flight_recorder_brief(rank)
    for path in (whole, brief):
        raw = _read_json(path)
        entries = raw.get("entries")
        if isinstance(entries, list) and entries:
            record = parse_flight_record(rank, path, raw, entries)
            return record if record.calls or record.p2p else None
    return None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        text = read_start(path, MAX_BYTES + 1)
        value = json.loads(text) if len(text) <= MAX_BYTES else None
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def parse_flight_record(
    rank: int, path: Path, raw: dict[str, Any], entries: list[Any]
) -> FlightRecord:
    """A rank's record from torch's dump and its entries."""
    record = FlightRecord(rank, path)
    for entry in entries:
        if isinstance(entry, dict):
            _add_call(record, entry)
    for channel, calls in record.calls.items():
        record.calls[channel] = {number: calls[number] for number in sorted(calls)[-KEPT:]}
    _add_members(record, raw)
    record.whole = _is_whole([e.get("record_id") for e in entries if isinstance(e, dict)])
    return record


def _is_whole(ids: Sequence[Any]) -> bool:
    """Whether nothing was overwritten, in any of the recorders: each numbers its calls from 0."""
    numbers = [number for number in ids if type(number) is int]
    jumps = (number for before, number in pairwise(numbers) if number != before + 1)
    return not any((*numbers[:1], *jumps))


def _add_call(record: FlightRecord, entry: dict[str, Any]) -> None:
    group, description = _group(entry)
    number = entry.get("collective_seq_id", entry.get("seq_id"))
    if group is None or type(number) is not int or not 0 <= number < 2**63:
        return
    backend, call = _call(number, entry)
    channel = Channel(group, backend)
    record.descriptions.setdefault(group, description)
    if entry.get("is_p2p") is True or P2P.search(call.kind):
        record.p2p.setdefault(channel, []).append(call)
    elif number > 0:
        # The first of several calls that were coalesced into one number represents it.
        record.calls.setdefault(channel, {}).setdefault(number, call)


def _group(entry: dict[str, Any]) -> tuple[str | None, str]:
    name = entry.get("process_group", entry.get("pg_name"))
    if isinstance(name, (list, tuple)) and name and all(isinstance(part, str) for part in name[:2]):
        description = name[1] if len(name) > 1 and name[1] != "undefined" else ""
        return name[0][:100], description[:100]
    if isinstance(name, str):
        return name[:100], ""
    return (DEFAULT_GROUP, "") if entry.get("pg_id") in (0, DEFAULT_GROUP) else (None, "")


def _call(number: int, entry: dict[str, Any]) -> tuple[str, CollectiveCall]:
    """The backend of a call, and the call."""
    kind = entry.get("profiling_name")
    text = kind[:100] if isinstance(kind, str) else "?"
    backend, _, name = text.partition(":") if ":" in text[:-1] else ("", "", text)
    sizes, state = entry.get("input_sizes"), entry.get("state")
    created = entry.get("time_created_ns")
    ended = entry.get("retired") is True or state == "completed"
    return backend, CollectiveCall(
        number,
        name.lstrip("_"),
        _sizes(sizes),
        _elements(sizes),
        _dtype(entry.get("input_dtypes")),
        _line(entry.get("frames")),
        ended,
        state if state in ("scheduled", "started", "completed") else "",
        created / 1e9 if type(created) is int and 0 < created < 1e20 else None,
    )


def _shapes(sizes: Any) -> list[list[int]] | None:
    """The shapes of a call's tensors, as torch writes them."""
    if not isinstance(sizes, list) or len(sizes) > MAX_TENSORS:
        return None
    shapes = [shape for shape in sizes if isinstance(shape, list)]
    sound = all(
        len(shape) <= MAX_DIMENSIONS and all(type(n) is int and 0 <= n < 2**48 for n in shape)
        for shape in shapes
    )
    return shapes if sound and len(shapes) == len(sizes) else None


def _sizes(sizes: Any) -> str:
    shapes = _shapes(sizes)
    if not shapes:
        return ""
    text = ", ".join(str(shape) if shape else "a scalar" for shape in shapes[:3])
    return f"{text}, ... ({len(shapes)} tensors)" if len(shapes) > 3 else text


def _elements(sizes: Any) -> int | None:
    shapes = _shapes(sizes)
    return None if shapes is None else sum(math.prod(shape) for shape in shapes)


def _dtype(dtypes: Any) -> str:
    names = (
        {name for name in dtypes if isinstance(name, str)} if isinstance(dtypes, list) else set()
    )
    return ", ".join(sorted(names))[:100]


def _line(frames: Any) -> str:
    """The innermost line of the program itself, and the line of the program that called it."""
    places: list[str] = []
    for frame in frames[:MAX_FRAMES] if isinstance(frames, list) else ():
        if not isinstance(frame, dict):
            continue
        file, line, name = frame.get("filename"), frame.get("line"), frame.get("name")
        if not isinstance(file, str) or type(line) is not int or LIBRARY.search(file):
            continue
        if not places or name != "<module>":
            places.append(f"{file[:1000]}:{line} in {str(name)[:100]}")
    return ", called at ".join(places[:2])


def _add_members(record: FlightRecord, raw: dict[str, Any]) -> None:
    """The members of each group: from the rank's own list, or from torch's (gloo has none)."""
    groups, config = raw.get("groups"), raw.get("pg_config")
    for name, ranks in groups.items() if isinstance(groups, dict) else ():
        _set_members(record, name, ranks)
    for name, settings in config.items() if isinstance(config, dict) else ():
        ranks = settings.get("ranks") if isinstance(settings, dict) else None
        if name and name not in record.members and isinstance(ranks, str):
            try:
                _set_members(record, name, json.loads(ranks[: MAX_TEXT * 100]))
            except (ValueError, RecursionError):
                continue


def _set_members(record: FlightRecord, name: str, ranks: Any) -> None:
    if isinstance(ranks, list) and ranks and all(type(rank) is int and rank >= 0 for rank in ranks):
        record.members[name[:100]] = tuple(sorted(set(ranks)))


# -- Dumps of torch itself -------------------------------------------------------------------------


def read_torch_dump(path: Path) -> tuple[FlightRecord, int] | None:
    """The record in a dump of torch, and the least size of the world that it shows; None if the
    file is not one, or its name has no rank. A dump without entries is evidence, too: that rank
    enqueued nothing."""
    match = DUMP_RANK.search(path.name)
    raw = _read_dump(path)
    rank = int(match[1] or match[2]) if match else MAX_RANKS
    if raw is None or rank >= MAX_RANKS:
        return None
    entries = raw["entries"][-MAX_ENTRIES:]
    record = parse_flight_record(rank, path, {**raw, "groups": {}}, entries)
    record.enqueued = dict(_enqueued(raw.get("pg_status"), entries))
    sizes = [max(ranks) + 1 for ranks in _member_lists(raw.get("pg_config"))]
    return record, max([rank + 1, *sizes])


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
            if not (head := stream.read(2)).startswith(DUMP_STARTS):
                return None
            raw = head + stream.read(MAX_DUMP_BYTES)
    except OSError:
        return None
    if len(raw) > MAX_DUMP_BYTES or b"pg_" not in raw:
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
