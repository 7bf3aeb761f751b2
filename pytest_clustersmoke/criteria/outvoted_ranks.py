"""Judges the passes that three ranks had each: the one that is alone against two is outvoted.

A device that is wrong in the same way each time agrees with itself. At proven steps two other ranks
repeat each rank's pass as well (`rank/cross_replay.py`). A rank is named if it was outvoted by two
ranks that were never outvoted themselves. Otherwise the records have several explanations, such as
two halves of the cluster that compute differently: then the ranks that differ are listed, and none
is accused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from ..evidence.metric import Unmeasured, fail
from ..evidence.phase_result import PhaseResult
from ..evidence.telemetry import parse_int, parse_ints, parse_text, parse_texts
from ..text import ranges
from .finite_values import find_first_step
from .repeated_passes import NEVER_REPEATS, never_repeat
from .training_proofs import NO_PROOF, identify_device, list_proofs, require_all_ranks

KIND = "cross_replay"
RANKS = 3  # that have the same pass
NO_PEERS = "the program's `Proof` has no `peer_loss`"


@dataclass(frozen=True)
class Vote:
    """The results of three ranks for the pass of the first of them."""

    step: int
    members: tuple[int, ...]
    alone: int | None  # the rank that differs from two equal ones
    compared: int
    differing: Sequence[str]
    differing_count: int
    kernels: Sequence[str]  # that may add in any order

    @property
    def witnesses(self) -> list[int]:
        """The others, if one is alone."""
        return [rank for rank in self.members if rank != self.alone]

    def describe_pass(self, rank: int | None = None) -> str:
        own = "its own pass" if rank == self.members[0] else f"the pass of rank {self.members[0]}"
        return f"{own} at step {self.step}"


def check_cross_replay(phase: PhaseResult) -> None:
    """Fail, naming each rank that two others outvoted, and listing those that differ where nothing
    shows which is right; unmeasured if the program lets no rank repeat another's pass."""
    __tracebackhide__ = True
    if phase.world_size < RANKS:
        pytest.skip(f"a majority needs {RANKS} ranks; this phase has {phase.world_size}")
    reasons: list[str] = []
    votes = list(_read_votes(phase, reasons))
    if never_repeat(list_proofs(phase), phase.world_size):
        raise Unmeasured(KIND, NEVER_REPEATS)
    outvoted = find_outvoted(votes)
    lines = [_describe_outvoted(phase, rank, votes, outvoted[rank]) for rank in sorted(outvoted)]
    lines += _describe_open(votes, set(outvoted))
    if lines:
        fail("\n".join(lines), wrong_ranks=outvoted)
    if not votes:
        raise Unmeasured(KIND, reasons[0] if reasons else NO_PROOF)


def find_outvoted(votes: Sequence[Vote]) -> dict[int, list[Vote]]:
    """The ranks that were outvoted by two ranks that never were, with the votes against them."""
    alone = {vote.alone for vote in votes}
    outvoted: dict[int, list[Vote]] = defaultdict(list)
    for vote in votes:
        if vote.alone is not None and alone.isdisjoint(vote.witnesses):
            outvoted[vote.alone].append(vote)
    return dict(outvoted)


def _read_votes(phase: PhaseResult, reasons: list[str]) -> Iterator[Vote]:
    """The votes of all proven steps; `reasons` gets why a step has none.

    Fails if a rank recorded none where others did, or one that cannot be read.
    """
    __tracebackhide__ = True
    finite_before = find_first_step(phase)
    for step, records in list_proofs(phase).items():
        require_all_ranks(phase, records, f"the proof of step {step}")
        found = [reason for record in records.values() if (reason := _find_reason(record))]
        if step >= finite_before:
            found.append(f"not every number is finite from step {finite_before:g} on")
        if found or not any(record.get("cross") for record in records.values()):
            reasons += found or [NO_PEERS]
            continue
        for rank, record in records.items():
            vote = read_vote(phase.world_size, rank, step, record.get("cross"))
            if vote is None:
                fail(f"{phase.ranks[rank]} recorded no readable cross replay of step {step}")
            elif vote.differing_count and vote.kernels:
                reasons.append(f"not deterministic: {vote.kernels[0]}")
            else:
                yield vote


def _find_reason(record: Mapping[str, Any]) -> str:
    """Why the step of this proof was not compared; empty if it was."""
    cross = record.get("cross")
    own = parse_text(cross.get("not_measured")) if isinstance(cross, dict) else None
    return own or parse_text(record.get("not_measured")) or ""


def read_vote(world_size: int, rank: int, step: int, cross: Any) -> Vote | None:
    """The vote on a rank's pass; None if it makes no sense."""
    if not isinstance(cross, dict):
        return None
    members = (rank, *parse_ints(cross.get("checkers")))
    alone = cross.get("alone")
    compared, differing = parse_int(cross.get("compared")), parse_int(cross.get("differing_count"))
    valid = len(set(members)) == len(members) == RANKS and set(members) <= set(range(world_size))
    if not valid or not compared or differing is None or not 0 <= differing <= compared:
        return None
    if alone is not None and (type(alone) is not int or alone not in members or not differing):
        return None
    return Vote(
        step,
        members,
        alone,
        compared,
        parse_texts(cross.get("differing")),
        differing,
        parse_texts(cross.get("nondeterministic")),
    )


def _describe_outvoted(
    phase: PhaseResult, rank: int, votes: Sequence[Vote], against: Sequence[Vote]
) -> str:
    first = against[0]
    passes = sum(rank in vote.members for vote in votes)
    return (
        f"{identify_device(phase.ranks[rank])} is outvoted by ranks {ranges(first.witnesses)}: for "
        f"{first.describe_pass(rank)} it computed other gradients than both, of "
        f"{first.differing_count} of {first.compared} parameters ({', '.join(first.differing)}); "
        f"expected the same bits. It is alone in {len(against)} of the {passes} passes that it "
        "shared. Its device or its memory computes wrongly in the same way each time: take it out "
        "of service and test it (dcgmi diag -r 3)"
    )


def _describe_open(votes: Sequence[Vote], named: set[int]) -> list[str]:
    """The ranks that differ without a majority that shows which is right, in one line, if any."""
    unclear = [
        (vote, left)
        for vote in votes
        if vote.differing_count and vote.alone not in named
        if len(left := set(vote.members) - named) > 1
    ]
    if not unclear:
        return []
    ranks = sorted(set[int]().union(*(left for _, left in unclear)))
    return [
        f"ranks {ranges(ranks)} compute different gradients for the same passes (first for "
        f"{unclear[0][0].describe_pass()}), and nothing shows which is right; expected the same "
        "bits. If all ranks differ, peer_loss(index, rank) may compute another loss than "
        "local_loss(index) does on that rank"
    ]
