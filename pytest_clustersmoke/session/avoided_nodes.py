"""The nodes that `--cluster-avoid` keeps phases off, as the ledger of nodes judges them.

What reads the ledger is imported only with that option: collection must be fast.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ..config.profile import Profile
from ..text import sanitize_line, shorten

OPTION = "--cluster-avoid"
MOST_SHOWN = 8
MAX_REASON = 200  # characters


@dataclass(frozen=True)
class AvoidedNodes:
    """The nodes that no job gets, each with the reason; `remark` says why none is avoided, if that
    was asked for."""

    reasons: Mapping[str, str] = field(default_factory=dict)
    remark: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.reasons)

    def header(self) -> list[str]:
        """A line for each node, with the reason, for the terminal."""
        if self.remark:
            return [sanitize_line(f"{OPTION}: no node is avoided: {self.remark}")]
        return [
            sanitize_line(f"avoiding {node}: {reason[:MAX_REASON]}")
            for node, reason in self.reasons.items()
        ]


def refuse_backend(profile: Profile, here: bool) -> None:
    """Raise UsageError where no job can be kept off a node."""
    if profile.backend != "slurm" or here:
        found = "--cluster-here" if here else f"`backend: {profile.backend}` of {profile.name}"
        raise pytest.UsageError(
            f"{OPTION} with {found}: a job cannot be kept off a node there; expected a cluster "
            f"with `backend: slurm` and jobs of its own; leave {OPTION} out"
        )


def find_avoided_nodes(
    profile: Profile, report_dir: Path, environ: Mapping[str, str]
) -> AvoidedNodes:
    """The nodes to avoid on this cluster, by the history in the report directory."""
    from ..evidence.history.history_database import HistoryUnusable, open_for_reading
    from ..evidence.history.node_history import DAY_S, read_observations
    from ..jobs.slurm_client import SlurmClient, SlurmUnavailable
    from ..report.node_ledger import DAYS, NodeLedger

    now = time.time()
    try:
        with open_for_reading(report_dir) as connection:
            if connection is None:
                return AvoidedNodes(remark=f"there is no history in {report_dir} yet")
            histories = read_observations(connection, profile.name, now - 2 * DAYS * DAY_S)
    except HistoryUnusable as error:
        return AvoidedNodes(remark=str(error))
    entries = NodeLedger(histories, now).left_out()
    if not entries:
        return AvoidedNodes(remark="nothing in the history speaks against one")
    try:
        nodes = _list_nodes(profile, SlurmClient(environ).node_partitions())
    except SlurmUnavailable as error:
        return AvoidedNodes(remark=f"Slurm does not say which nodes it has: {error}")
    reasons = {entry.node: entry.reason for entry in entries if entry.node in nodes}
    return _choose(reasons, nodes, histories)


def _choose(
    reasons: Mapping[str, str], nodes: Mapping[str, frozenset[str]], known: Collection[str]
) -> AvoidedNodes:
    """Avoid these nodes of all, unless they are none or too many."""
    from ..report.node_ledger import find_too_many, most_left_out

    if not reasons:
        remark = "the history speaks only against nodes that sinfo does not list here"
        return AvoidedNodes(remark=remark)
    too_many = find_too_many(reasons, nodes, known)
    if too_many is None:
        return AvoidedNodes(reasons)
    listed = shorten([f"{node} ({reason})" for node, reason in reasons.items()], MOST_SHOWN)
    return AvoidedNodes(
        remark=f"the history speaks against {too_many}, more than the "
        f"{most_left_out(too_many.nodes)} that may be avoided, so a test or setting may be to "
        f"blame: {listed}"
    )


def _list_nodes(
    profile: Profile, partitions: Mapping[str, frozenset[str]]
) -> dict[str, frozenset[str]]:
    """The nodes of the profile's partitions, each with those of them that have it; all nodes if it
    names none."""
    named = profile.slurm.get("partition")
    wanted = set(named.split(",")) if isinstance(named, str) else set()
    if not wanted:
        return dict(partitions)
    return {node: own & wanted for node, own in partitions.items() if wanted & own}
