"""The criterion: no GPU takes longer for its own step than it did in good runs of the past.

Peers hide a small loss, since healthy GPUs of one model differ by several percent. A GPU's own past
does not have that spread, only the noise from run to run. Eight runs are too few to estimate it
well, so the noise of the job's other GPUs is pooled in (a moderated t-test: G. K. Smyth, Stat.
Appl. Genet. Mol. Biol. 3 (2004) 3, doi:10.2202/1544-6115.1027). The chance of a false
name is shared among all GPUs of the job. On CPU a fixed factor decides, as among ranks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..evidence.fingerprint import fingerprint_of
from ..evidence.history.gpu_history import describe_gpu, read_gpu_past
from ..evidence.history.history_database import HistoryUnusable
from ..evidence.history.outlier_judge import MIN_RUNS, PastLevel, measure_level
from ..evidence.job_results import RankResult
from ..evidence.metric import Unmeasured, fail
from ..evidence.phase_result import PhaseResult
from ..evidence.telemetry import typical_s
from .peer_judge import CPU_FACTOR, FLOOR, student_quantile

KIND = "gpu past"
# How many runs the noise of the other GPUs counts for, beside the GPU's own runs.
RUNS_OF_OTHERS = 8
# The chance that a healthy job has any GPU named.
FALSE_NAMES = 0.001


@dataclass(frozen=True)
class GpuVerdict:
    """A GPU's own step in seconds, the level of its past, and the time above which it is slow."""

    own_s: float
    level: PastLevel
    bound_s: float

    @property
    def slow(self) -> bool:
        return self.own_s > self.bound_s

    @property
    def visible(self) -> float:
        """The slow-down that would have been named (0.05: 5 % longer)."""
        return self.bound_s / self.level.median - 1


def judge_gpus(
    times: Mapping[str, float],
    past: Mapping[str, Sequence[float]],
    floor: float = FLOOR,
    judgements: int = 1,
) -> dict[str, GpuVerdict]:
    """Judge GPUs by their past: GPU -> seconds, and GPU -> its past seconds, the newest first.
    GPUs with too few runs are left out. A loss below the floor is never named. So many `judgements`
    are made of them, which share the chance of a false name."""
    levels = {
        gpu: level
        for gpu in times
        if (level := measure_level(past.get(gpu, ()), least_spread=0.0)) and level.median > 0
    }
    freedom = sum(level.runs - 1 for level in levels.values())
    squares = sum(_variance(level) * (level.runs - 1) for level in levels.values())
    verdicts = {}
    for gpu, level in levels.items():
        own, own_variance = level.runs - 1, _variance(level)
        others = min(RUNS_OF_OTHERS, freedom - own)
        of_others = (squares - own_variance * own) / max(1, freedom - own)
        variance = max(0.0, (others * of_others + own * own_variance) / (others + own))
        quantile = student_quantile(FALSE_NAMES / len(levels) / judgements, others + own)
        far = quantile * math.sqrt(variance * (1 + 1 / level.runs))
        verdicts[gpu] = GpuVerdict(times[gpu], level, level.median * (1 + max(floor, far)))
    return verdicts


def check_gpus(phase: PhaseResult) -> None:
    """Fail, naming the GPUs that became slower; unmeasured without history, or if the profile only
    warns."""
    __tracebackhide__ = True
    if phase.past is None:
        raise Unmeasured(KIND, "there is no history to compare with")
    ranks = own_steps(phase)
    if not ranks:
        raise Unmeasured(KIND, "no rank measured its own step")
    times = {gpu: own_s for gpu, (_, own_s) in ranks.items()}
    past = _read_past(phase, times)
    on_cpu = not phase.on_gpus
    verdicts = judge_gpus(times, past, CPU_FACTOR - 1 if on_cpu else FLOOR)
    if not verdicts:
        most = max(map(len, past.values()), default=0)
        raise Unmeasured(KIND, f"{most} of {MIN_RUNS} runs")
    visible = _describe_visible(verdicts, len(ranks), on_cpu)
    slow = {gpu: verdict for gpu, verdict in verdicts.items() if verdict.slow}
    if slow and not phase.past.fails:
        words = _describe_slow(slow, ranks, visible)
        raise Unmeasured(KIND, f"{words} (history_check: warn)")
    phase.judged.add(KIND)
    if slow:
        fail(_describe_slow(slow, ranks, visible))
    phase.sensitivity.append(f"would have named {visible}")


def own_steps(phase: PhaseResult) -> dict[str, tuple[RankResult, float]]:
    """GPU -> its rank and the seconds of its own step; on CPU the CPU time. A GPU that several
    ranks share is left out, since its time depends on the others."""
    measured = {rank.rank: describe_gpu(rank) for rank in phase.ranks}
    sharing = Counter(measured.values())
    steps = {}
    for rank in phase.ranks:
        gpu, passes = measured[rank.rank], rank.own_passes_s(cpu=not phase.on_gpus)
        if gpu and sharing[gpu] == 1 and passes:
            own_s = typical_s([sum(parts) for parts in zip(*passes.values(), strict=True)])
            if 0 < own_s < math.inf:
                steps[gpu] = rank, own_s
    return steps


def _variance(level: PastLevel) -> float:
    """Of the noise from run to run, relative to the median."""
    return (level.spread / level.median) ** 2


def _read_past(phase: PhaseResult, gpus: Mapping[str, float]) -> dict[str, list[float]]:
    past, who = phase.past, fingerprint_of(phase)
    assert past is not None
    try:
        return read_gpu_past(
            past.report_dir, past.cluster, phase.name, who, set(gpus), before=past.begun
        )
    except HistoryUnusable as error:
        raise Unmeasured(KIND, str(error)) from None


def _describe_slow(
    slow: Mapping[str, GpuVerdict], ranks: Mapping[str, tuple[RankResult, float]], visible: str
) -> str:
    lines = []
    for gpu, verdict in sorted(slow.items(), key=lambda item: -item[1].own_s / item[1].bound_s):
        rank, level = ranks[gpu][0], verdict.level
        lines.append(
            f"{gpu} of {rank} on {rank.host} became slower: its own step takes "
            f"{verdict.own_s * 1e3:.3g} ms, {verdict.own_s / level.median - 1:.1%} more than the "
            f"median {level.median * 1e3:.3g} ms of {level.runs} good runs"
        )
    return "\n".join([*lines, f"{visible} is named"])


def _describe_visible(verdicts: Mapping[str, GpuVerdict], count: int, on_cpu: bool) -> str:
    percent = math.ceil(max(verdict.visible for verdict in verdicts.values()) * 100 - 1e-6)
    clock = "CPU time" if on_cpu else "time"
    some = f" ({len(verdicts)} of {count} have {MIN_RUNS} good runs)"
    return (
        f"a GPU whose own step takes {percent}% more {clock} than it did"
        f"{some if len(verdicts) < count else ''}"
    )
