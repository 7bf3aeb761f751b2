"""Which rank the others waited for: where a collective hangs or breaks, most ranks are victims."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..rundir import PhaseDir, read_json

if TYPE_CHECKING:
    from ..evidence import RankResult
    from ..result import PhaseResult

DEFAULT_GROUP = "0"


def absent_from_collective(result: PhaseResult) -> list[RankResult]:
    """The ranks whose flight recorder ends before the others': they never came to the collective
    that the others wait in. Empty where all came equally far, or fewer than two left a record."""
    came = {rank.rank: _last_collective(result.directory, rank.rank) for rank in result.ranks}
    known = [last for last in came.values() if last is not None]
    if len(known) < 2:
        return []
    furthest = max(known)
    behind = [rank for rank in result.ranks if (came[rank.rank] or furthest) < furthest]
    return [rank for rank in behind if came[rank.rank] == min(known)]


def left_before(result: PhaseResult, victims: Iterable[RankResult]) -> list[RankResult]:
    """The ranks that said they were done without having been through the stage in which a victim
    still was: they returned from their program early."""
    inside = {stage for victim in victims if (stage := _inside(victim))}
    return [rank for rank in result.ranks if rank.done and inside - _ended(rank)]


def stack_line(directory: PhaseDir, rank: int) -> tuple[int, str] | None:
    """Where the rank's main thread stood when it was dumped: line number in the file, and text."""
    try:
        lines = directory.rank_stack(rank).read_text(errors="replace").splitlines()
    except OSError:
        return None
    heads = [i for i, line in enumerate(lines) if line.startswith(("Current thread", "Thread "))]
    # faulthandler lists the newest thread first, and so the main thread last.
    if not heads or heads[-1] + 1 >= len(lines):
        return None
    return heads[-1] + 2, lines[heads[-1] + 1].strip()


def _last_collective(directory: PhaseDir, rank: int) -> int | None:
    """The number of the last collective over all ranks that this rank has begun."""
    record = read_json(directory.rank_flight_recorder(rank)) or {}
    entries = record.get("entries")
    numbers = [
        entry.get("collective_seq_id")
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict) and not entry.get("is_p2p") and _group(entry) == DEFAULT_GROUP
    ]
    return max((one for one in numbers if isinstance(one, int)), default=None)


def _group(entry: dict[str, Any]) -> str:
    name = entry.get("process_group")
    return str(name[0]) if isinstance(name, list) and name else ""


def _inside(rank: RankResult) -> str:
    stage = rank.events.last("stage") or {}
    return str(stage.get("name")) if stage.get("state") == "begin" else ""


def _ended(rank: RankResult) -> set[str]:
    return {
        str(record.get("name"))
        for record in rank.events.named("stage")
        if record.get("state") == "end"
    }
