"""The description of a fault: where it can be staged, what it changes, what must detect it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

JOB = "job"  # in place of a criterion's name: the phase's job itself
ALONE, AMONG = "alone", "among"  # whether a finding names only the rank of the fault, or others too
# Makes the hook of a rank; see `rank/hook.py`.
HOOK = "pytest_clustersmoke.faults.staged:make_staging"
NOTHING = "nothing"  # the small phase without a fault, as the baseline of the criteria


@dataclass(frozen=True)
class Fault:
    """A fault that needs no special rights, and what must detect it.

    `red` are the criteria that must fail. With {JOB} the job must fail, with one of `findings` as
    its primary finding. The criteria in `follows` may fail too, or be skipped, since they see the
    same damage. All other criteria must have the same result as without the fault. The registry
    names only criteria of `criteria/`; a suite adds its own with the mark `detects`.

    `by` says what stages it: "rank" (the last one), "ranks" (all of them) or "job" (its settings).
    The finding or the criterion's message must name the rank of a fault of one rank, with its host:
    "alone", or "among" the ranks it disagrees with, where nothing shows which of them is wrong.
    """

    name: str
    description: str
    by: str
    red: frozenset[str]
    follows: frozenset[str] = frozenset()
    findings: tuple[str, ...] = ()
    signatures: tuple[str, ...] = ()  # the finding must name one of them, if there are any
    outcome: str = "failed"  # of the job, with {JOB}
    blames: str = ""
    # What a phase must have.
    ranks: int = 1
    nodes: int = 1
    trains: bool = False
    mark: str = ""
    backend: str = ""
    transports: str = ""  # "inside" or "between" nodes: needs NCCL
    unexpected: tuple[str, ...] = ()  # what the ranks may fall back to; `expect` must not accept it
    # What it changes in the job.
    env: Mapping[str, str] = field(default_factory=dict)
    slurm: Mapping[str, Any] = field(default_factory=dict)
    stage_limits_s: Mapping[str, float] = field(default_factory=dict)
    timeout_s: float | None = None
    proof: str = ""  # in place of the phase's
    peaks: bool = False  # its ranks measure what their devices can do; without it they do not
    setup: tuple[str, ...] = ()
    python_flags: str = ""
    compares_times: bool = False  # nothing shows it where ranks share a GPU
    slower_than_baseline: bool = False  # its reference is the throughput without the fault

    @property
    def fails_criteria(self) -> bool:
        """Whether the job must pass and criteria must fail."""
        return JOB not in self.red
