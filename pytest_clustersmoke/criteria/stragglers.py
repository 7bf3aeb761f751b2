"""Ranks that fall behind the others, judged by what each does before it waits for the others.

Synchronous training makes all ranks equally slow, so the time of a step does not show which rank is
slow. The time of a rank's own part (its batch, its forward pass) does: from the step's beginning,
where all ranks have just synchronised, to `Step.local_done`.

A rank falls behind if all of this holds for its steps after warm-up:

- its performance score, the others' median time divided by its own, is below 0.75: the bound of
  NVIDIA's resiliency extension (`Report.identify_stragglers`);
- it costs the job more than a tenth of its step time, the bound for a straggling job in
  "Understanding Stragglers in Large Model Training Using What-if Analysis" (arXiv:2505.05713);
- it is late by more than the scheduling of cores or kernel launches can explain;
- this holds in three of four steps, not only now and then.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from ..evidence.job_results import RankResult
from ..evidence.metric import Unmeasured, fail
from ..evidence.phase_result import PhaseResult
from ..text import plural

LEAST_SCORE = 0.75
MOST_SHARE = 0.1
# Ranks that share cores wait for each other's time slices, 3 to 6 ms each under Linux. Kernel
# launches on a GPU are late by microseconds, work on its host by some hundred microseconds.
LATE_S = {"cpu": 0.020, "cuda": 0.001}
FEWEST_STEPS = 5


@dataclass(frozen=True)
class Straggler:
    """A rank that falls behind: median seconds of its own part, of the others', and of the step."""

    rank: RankResult
    own_s: float
    others_s: float
    step_s: float

    def __str__(self) -> str:
        return (
            f"{self.rank} on {self.rank.host} falls behind: its own part of a step takes "
            f"{self.own_s * 1e3:.3g} ms, that of the others {self.others_s * 1e3:.3g} ms; "
            f"a whole step takes {self.step_s * 1e3:.3g} ms"
        )


def check(phase: PhaseResult) -> None:
    """Fail, naming the ranks that fall behind; unmeasured if a rank did not time its own part."""
    __tracebackhide__ = True
    stragglers = find_stragglers(phase)
    phase.judged.add("stragglers")
    if stragglers:
        fail("\n".join(map(str, stragglers)))


def find_stragglers(phase: PhaseResult) -> list[Straggler]:
    """The ranks that fall behind, the slowest first."""
    if phase.world_size < 2:
        raise Unmeasured("stragglers", "there is no other rank to compare with")
    ranks = [_require_times(rank) for rank in phase.ranks]
    on_cuda = all(rank.device.startswith("cuda") for rank in phase.ranks)
    late_s = LATE_S["cuda" if on_cuda else "cpu"]
    medians = [statistics.median(rank.own_times_s) for rank in ranks]
    stragglers = []
    for index, rank in enumerate(ranks):
        others_s = statistics.median(medians[:index] + medians[index + 1 :])
        step_s = statistics.median(rank.step_times_s)
        # Its faster steps, the lower quartile, must show it as well.
        for own_s in (medians[index], statistics.quantiles(rank.own_times_s, n=4)[0]):
            late = own_s - others_s
            if own_s * LEAST_SCORE <= others_s or late <= max(late_s, MOST_SHARE * step_s):
                break
        else:
            stragglers.append(Straggler(rank, medians[index], others_s, step_s))
    return sorted(stragglers, key=lambda straggler: -straggler.own_s)


def _require_times(rank: RankResult) -> RankResult:
    """The rank, if it timed its own part of enough steps; raises Unmeasured if not."""
    own = len(rank.own_times_s)
    if own < FEWEST_STEPS or not rank.step_times_s:
        raise Unmeasured(
            "stragglers",
            f"{rank} timed its own part (step.local_done()) in {plural(own, 'step')} after "
            f"warm-up; expected all of them, and at least {FEWEST_STEPS}",
        )
    return rank
