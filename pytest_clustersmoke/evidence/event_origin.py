"""Whether a rank's events are those of the process that its node started.

A file of events can be left over, copied from another run, or written by a stranger. So a node
gives its ranks a word, and records when it ran them and which process was behind each `start`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .process_start import identity
from .telemetry import SCHEMA, Events, parse_finite, parse_int, parse_rows, parse_text

# Start times are cut to ticks of the kernel's clock, mostly 0.01 s.
TICKS_S = 0.1


class RankProcess(NamedTuple):
    """The process that a rank's `start` named when the node read it. `is_own` is whether the node
    had started it; None if the node could not see, mostly because it had already ended."""

    pid: int
    started_s: float
    is_own: bool | None


@dataclass(frozen=True)
class Launch:
    """What a node recorded about the ranks that it started; None or empty: not recorded.

    The ranks ran between `begun_s` and `ended_s`, in seconds since boot.
    """

    nonce: str = ""
    begun_s: float | None = None
    ended_s: float | None = None
    namespaces: str = ""
    processes: Mapping[int, RankProcess] = field(default_factory=dict)

    @classmethod
    def from_record(cls, result: Mapping[str, Any]) -> Launch:
        """The launch in a node's result; anything in it of the wrong type counts as missing."""
        return cls(
            parse_text(result.get("nonce")) or "",
            parse_finite(result.get("boot_begun_s")),
            parse_finite(result.get("boot_ended_s")),
            parse_text(result.get("namespaces")) or "",
            {
                rank: RankProcess(*process, is_own if isinstance(is_own, bool) else None)
                for record in parse_rows(result.get("processes"))
                if (rank := parse_int(record.get("rank"))) is not None
                and (process := identity(record)) is not None
                for is_own in [record.get("is_own")]
            },
        )


def keep_own_events(events: Events, job: str, rank: int, launch: Launch) -> Events:
    """The events, if the rank's process wrote them. Otherwise none of them counts, and `foreign`
    says why: a `start` that names another job or rank, that lacks the node's word, that names a
    process which the node did not start; two `start` events, or a `done` without one."""
    starts = list(events.named("start"))
    if not starts and events.last("done") is None:
        return events
    foreign = _find_contradiction(starts, job, rank) or _find_stranger(starts[0], rank, launch)
    if not foreign:
        return events
    return Events(events.path, unreadable_lines=events.unreadable_lines, foreign=foreign)


def _find_contradiction(starts: list[dict[str, Any]], job: str, rank: int) -> str:
    """How the `start` events contradict the file that they are in; empty if they do not."""
    if len(starts) != 1:
        return f"there are {len(starts)} `start` events; expected one"
    names = {name: starts[0].get(name) for name in ("schema", "job", "rank")}
    if names == {"schema": SCHEMA, "job": job, "rank": rank} and type(names["rank"]) is int:
        return ""
    found = ", ".join(f"{name} {str(value)[:200]!r}" for name, value in names.items())
    return f"their `start` names {found}; expected schema {SCHEMA}, job {job!r}, rank {rank}"


def _find_stranger(start: Mapping[str, Any], rank: int, launch: Launch) -> str:
    """Why the `start` is not of a process that the node started; empty if nothing speaks against
    it. A process that had ended when the node looked is judged by word and time alone."""
    if launch.nonce and start.get("nonce") != launch.nonce:
        return "their `start` lacks the word of the node that started the ranks"
    if launch.begun_s is None or launch.ended_s is None:
        return ""
    process = identity(start)
    if process is None:
        return "their `start` names no process"
    named = f"their `start` names {_describe_process(*process)}"
    seen = launch.processes.get(rank)
    if seen is not None and seen[:2] != process:
        return f"{named}; the node saw {_describe_process(*seen[:2])} as this rank"
    if seen is not None and seen.is_own is False:
        return f"{named}; the node saw it run, but had not started it"
    if start.get("namespaces", launch.namespaces) != launch.namespaces:
        return ""  # its clock may be another one
    if launch.begun_s - TICKS_S <= process[1] <= launch.ended_s + TICKS_S:
        return ""
    ran = f"from {launch.begun_s:.2f} s to {launch.ended_s:.2f} s"
    return f"{named}; the node ran this rank {ran} after boot"


def _describe_process(pid: int, started_s: float) -> str:
    return f"process {pid}, started {started_s:.2f} s after boot"
