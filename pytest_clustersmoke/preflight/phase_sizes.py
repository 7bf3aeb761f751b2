"""Find phases with more nodes or GPUs than their cluster has, or too few to show anything, or with
too little time to do a step."""

from __future__ import annotations

from collections.abc import Iterator

from ..config.phase import SIGNAL_EARLY_S, Phase
from ..config.profile import Profile
from ..config.sbatch_options import parse_time_limit
from ..text import Problem, plural


def find_unfit_sizes(phase: Phase, profile: Profile) -> Iterator[Problem]:
    """Sizes that exceed the cluster's hardware, and those below what the phase's criteria need: a
    healthy cluster would fail them."""
    yield from _find_excess(phase, profile)
    yield from _find_shortage(phase)
    if profile.backend == "slurm" and phase.resume.value:
        yield from _find_lack_of_time(phase, profile)


def _find_lack_of_time(phase: Phase, profile: Profile) -> Iterator[Problem]:
    """A job that is asked to stop as soon as it starts, start after start."""
    time, notice_s = phase.slurm.get("time"), profile.limits.stop_before_s + SIGNAL_EARLY_S
    if time and time.value and parse_time_limit(time.value) < notice_s:
        yield Problem(
            f"the job of phase `{phase.name}` may be asked to stop {notice_s:g} s before its time "
            f"limit (`slurm.time`), which is {parse_time_limit(time.value):g} s",
            time.source,
            f"more than {notice_s:g} s, since the phase has `resume`",
            "raise `slurm.time`, or lower `limits.stop_before_s`",
        )


def _find_excess(phase: Phase, profile: Profile) -> Iterator[Problem]:
    has, wants = profile.hardware.gpus_per_node, phase.gpus_per_node
    if wants.value > has:
        yield Problem(
            f"phase `{phase.name}` asks for {wants.value} GPUs per node",
            wants.source,
            f"at most {has} (`hardware.gpus_per_node` of {profile.name}, "
            f"{profile.where('hardware', 'gpus_per_node')})",
            "change the phase's `gpus_per_node`, or remove the phase from `phases`",
        )
    most = profile.most_nodes
    if most is not None and phase.nodes.value > most:
        key = "hardware.nodes" if most == profile.hardware.nodes else "hosts"
        yield Problem(
            f"phase `{phase.name}` asks for {phase.nodes.value} nodes",
            phase.nodes.source,
            f"at most {most} (`{key}` of {profile.name})",
        )


def _find_shortage(phase: Phase) -> Iterator[Problem]:
    if phase.nodes.value < phase.min_nodes:
        yield Problem(
            f"phase `{phase.name}` has {plural(phase.nodes.value, 'node')}",
            phase.nodes.source,
            f"at least {phase.min_nodes}: its criteria compare nodes (`needs` at {phase.where})",
            "set its `nodes`, or remove it from `phases`",
        )
    elif phase.world_size < phase.min_ranks:
        set_nodes = phase.gpus_per_node.source == phase.where  # the marker's own
        yield Problem(
            f"phase `{phase.name}` has {plural(phase.world_size, 'rank')} (`nodes` times "
            "`gpus_per_node`)",
            (phase.nodes if set_nodes else phase.gpus_per_node).source,
            f"at least {phase.min_ranks}: its criteria compare ranks (`needs` at {phase.where})",
            "set its `nodes` or `gpus_per_node`, or remove it from `phases`",
        )
