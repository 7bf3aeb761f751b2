"""The part of a run's record that has its screen: every node of the partition, and its checks."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import Literal

from pydantic import Field

from ..text import plural
from .run_counts import RecordModel

PASSING, FAILING, NO_ANSWER, NOT_SCREENED = "passing", "failing", "no answer", "not screened"
OTHER_FEATURES, EXCLUDED = "other features", "excluded by the profile"  # no phase gets such a node
ANSWER = "answer"  # the check that a node starts and answers in time
FEWEST_SCREENED = 3  # nodes, of which most can be told from one


class ScreenCheckRecord(RecordModel):
    """What one check says of a node."""

    result: Literal["passed", "failed", "skipped"]
    text: str = Field(description="why it failed or was skipped; warnings of one that passed")
    finding: str = Field(default="", description="the finding's id, of one that failed")
    severity: str = Field(
        default="", description="of that finding in a job: failure, or warning if jobs cope with it"
    )


class ScreenedNode(RecordModel):
    """A node of the partition."""

    node: str = Field(description="Slurm's NodeName")
    state: Literal["passing", "failing", "no answer", "not screened"]
    group: str = Field(default="", description="why it was not screened, in a word such as busy")
    reason: str = Field(
        description="why it is not passing: the id of a finding or a check, a colon, and the cause"
    )
    slurm_state: str = Field(description="before the screen")
    job_id: str = Field(description="empty if nothing was submitted")
    seconds: float | None = Field(description="from the start of its job to its answer")
    cpu_s: float | None = Field(default=None, description="CPU time that the screen took of it")
    boot_id: str = Field(default="", description="of the kernel that ran; empty if unknown")
    checks: dict[str, ScreenCheckRecord] = Field(description="by name; none of other nodes")
    unmeasured: str = Field(
        default="",
        description="why it is not known what its devices reach, though the profile asks for that",
    )
    cleared: list[str] = Field(
        default_factory=list,
        description="the ids of findings that its checks looked for and did not find",
    )

    @property
    def rank(self) -> int:
        """Its place in a list that begins with what to look at."""
        return [FAILING, NO_ANSWER, NOT_SCREENED, PASSING].index(self.state)


class ScreenRecord(RecordModel):
    """The result of --cluster-screen."""

    partition: str
    minimum: float = Field(description="the share of the nodes that phases may get that must pass")
    limit_s: float = Field(description="seconds that each node had")
    nodes: list[ScreenedNode] = Field(description="in Slurm's order")

    def of(self, state: str) -> list[ScreenedNode]:
        """The nodes in this state."""
        return [node for node in self.nodes if node.state == state]

    @property
    def _unfit(self) -> list[ScreenedNode]:
        return [node for node in self.nodes if node.state in (FAILING, NO_ANSWER)]

    @property
    def exclude(self) -> str:
        """The word for sbatch that leaves out what is not fit; empty if there is nothing, or if
        most nodes are not for the same reason."""
        names = ",".join(node.node for node in self._unfit)
        return f"--exclude={names}" if names and not self.doubt else ""

    @property
    def doubt(self) -> str:
        """Why most nodes are hardly all bad: they are not fit for one reason, so what they share is
        looked at first. Empty where fewer are, or too few were screened."""
        screened = len(self.nodes) - len(self.of(NOT_SCREENED))
        reasons = Counter(node.reason.partition(":")[0] for node in self._unfit)
        reason, alike = next(iter(reasons.most_common(1)), ("", 0))
        if screened < FEWEST_SCREENED or 2 * alike <= screened:
            return ""
        return (
            f"{alike} of {screened} nodes are not fit for one reason ({reason}): look first at "
            "what they share (`setup`, the profile, the shared directory)"
        )

    @property
    def left_out(self) -> str:
        """How many nodes were not screened, and why: `24 not screened: 20 busy, 4 drained`."""
        groups = Counter(node.group for node in self.of(NOT_SCREENED))
        counted = ", ".join(f"{count} {group}" for group, count in groups.most_common())
        return f"{groups.total()} not screened: {counted}" if groups else ""

    @property
    def fewest(self) -> int:
        """How many nodes must pass, of those that phases may get. In decimals, as it was asked for:
        0.55 * 100 is more than 55."""
        barred = sum(node.group in (OTHER_FEATURES, EXCLUDED) for node in self.nodes)
        return math.ceil(Fraction(str(self.minimum)) * (len(self.nodes) - barred))

    @property
    def size(self) -> str:
        return plural(len(self.nodes), "node")
