"""Ranks that died, left early or raised."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..findings import MAX_TEXT, Evidence, Finding
from ..rundir import read_json
from ..telemetry import read_events
from . import suspects
from .nodes import NODE_REASONS

if TYPE_CHECKING:
    from ..evidence import RankResult
    from ..result import PhaseResult

# What a rank says when another rank went away: an echo, not a cause.
ECHO = re.compile(
    r"connection (reset|closed|refused)|broken pipe|socket timeout|timed out waiting|"
    r"remote process exited|DistBackendError|ncclRemoteError|NCCL communicator was aborted",
    re.I,
)


def rank_deaths(result: PhaseResult) -> list[Finding]:
    """Ranks that ended without an exception and without being done: killed, or left early."""
    findings = []
    for rank in result.ranks:
        if not rank.start or rank.done or rank.events.last("error") is not None:
            continue
        node = _node_events(result, rank)
        if not any(
            state.get("rank") == rank.rank and state.get("alive") is False
            for record in node
            if record["event"] == "ranks"
            for state in _dicts(record.get("states"))
        ):
            continue
        stage, step = _position(rank)
        path = rank.events.path
        findings.append(
            Finding(
                "rank-died",
                f"{rank} ended in stage {stage}{f' at step {step}' if step else ''} without "
                "an exception and without being done: killed by a signal, or it left early",
                "look at the rank's stderr and, on the node, at the kernel's log (out of memory?)",
                evidence=(Evidence(str(path), rank.events.lines[-1], "its last event"),),
                hosts=(rank.node,),
                ranks=(rank.rank,),
            )
        )
    return findings


def early_leavers(result: PhaseResult) -> list[Finding]:
    """Ranks that were done too early, where all that the others say is that they lost a peer."""
    errors = _errors(result)
    victims = [rank for rank, _ in errors]
    if not victims or not all(_is_echo(error) for _, error in errors):
        return []
    return [
        Finding(
            "rank-left-early",
            f"{rank} was done while {victims[0]} was still in stage {_position(victims[0])[0]}",
            "find out why the program left its Rank early on that rank",
            evidence=(Evidence(str(rank.events.path), rank.events.lines[-1], "its last event"),),
            hosts=(rank.node,),
            ranks=(rank.rank,),
        )
        for rank in suspects.left_before(result, victims)
    ]


def rank_errors(result: PhaseResult) -> list[Finding]:
    known = sorted(_errors(result), key=lambda pair: (_is_echo(pair[1]), pair[1]["time"]))
    return [
        Finding(
            "rank-error",
            f"{rank} failed: {error.get('type')}: {error.get('message')}"[:MAX_TEXT],
            "read the traceback in the rank's events and its stderr",
            primary=not index,
            evidence=(
                Evidence(
                    str(rank.events.path),
                    rank.events.line_of(error),
                    str(error.get("traceback", ""))[-MAX_TEXT:],
                ),
            ),
            hosts=(rank.node,),
            ranks=(rank.rank,),
        )
        for index, (rank, error) in enumerate(known)
    ]


def _errors(result: PhaseResult) -> list[tuple[RankResult, dict[str, Any]]]:
    """Each rank's exception. Where a node's watch ended the phase for a reason of its own (a hang),
    what ranks then say of lost peers is only that end."""
    ended = (read_json(result.directory.abort) or {}).get("reason") in NODE_REASONS
    said = [(rank, rank.events.last("error")) for rank in result.ranks]
    return [(rank, error) for rank, error in said if error and not (ended and _is_echo(error))]


def _is_echo(error: Mapping[str, Any]) -> bool:
    return bool(ECHO.search(str(error.get("message"))))


def _node_events(result: PhaseResult, rank: RankResult) -> list[dict[str, Any]]:
    node_rank = rank.start.get("node_rank")
    if not isinstance(node_rank, int):
        return []
    return read_events(result.directory.node_events(node_rank)).records


def _position(rank: RankResult) -> tuple[str, int]:
    stage, step = rank.events.last("stage") or {}, rank.events.last("step") or {}
    inside = stage.get("name") == "train" and stage.get("state") == "begin"
    done = step.get("step")
    return str(stage.get("name", "init")), done if inside and isinstance(done, int) else 0


def _dicts(value: object) -> list[dict[str, Any]]:
    """The objects of a list that a job wrote; whatever else it wrote there counts as missing."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
