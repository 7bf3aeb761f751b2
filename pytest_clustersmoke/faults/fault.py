"""What a fault is: where it can be staged, what it does, what must come of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

JOB = "job"  # in the place of a criterion: the phase's job itself
ALONE, AMONG = "alone", "among"  # whom a finding blames
# What a rank makes its hook with: see `rank/hook.py`.
HOOK = "pytest_clustersmoke.faults.staged:make_staging"
NOTHING = "nothing"  # the small phase as it is: what the criteria say where no fault is staged


@dataclass(frozen=True)
class Fault:
    """A fault that needs no special rights, and the gates that must stop it.

    `red` are the criteria that must fail; with {JOB} the job fails, its primary finding is one of
    `findings`, and the criteria only point to it. `follows` may fail, too, as they judge the same
    damage from another side. All others must say what they say where nothing is staged.

    `by` is who stages it: "rank" (the last one), "ranks" (all of them), or "job" (its settings).
    A fault of one rank is blamed on it, in the finding or in the criterion's words, with its host:
    on it "alone", or "among" the ranks that it differs from, where they may be told apart only by
    being fewer.
    """

    name: str
    what: str
    by: str
    red: frozenset[str]
    follows: frozenset[str] = frozenset()
    findings: tuple[str, ...] = ()
    signatures: tuple[str, ...] = ()  # of which the finding names one, where any is given
    outcome: str = "failed"  # the job's, with {JOB}
    blames: str = ""
    # What a phase must have to stage it in.
    ranks: int = 1
    nodes: int = 1
    trains: bool = False
    mark: str = ""
    backend: str = ""
    transports: str = ""  # "inside" nodes or "between" them: NCCL, and what must not be expected
    unexpected: tuple[str, ...] = ()  # transports one of which the ranks fall back to
    # What changes in the job.
    env: Mapping[str, str] = field(default_factory=dict)
    slurm: Mapping[str, Any] = field(default_factory=dict)
    stage_limits_s: Mapping[str, float] = field(default_factory=dict)
    timeout_s: float | None = None
    setup: tuple[str, ...] = ()
    python_flags: str = ""
    slower_than_alone: bool = False  # compared with the phase where nothing is staged

    @property
    def of_criteria(self) -> bool:
        """Whether the job passes and its criteria must tell."""
        return JOB not in self.red
