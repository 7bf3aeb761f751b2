"""What a phase needs of an allocation, whether the allocation has it, and the nodes of its step."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from ..config.hostlist import expand_hostlist, read_host_option
from ..config.phase import Phase, Sourced, has_default_timeout
from ..config.profile import Profile
from ..text import plural, shorten
from .slurm_jobs import AllocatedNode, Allocation

MOST_NODES = 4  # named in a message


@dataclass(frozen=True)
class StepMisfit:
    """Why a phase does not fit an allocation: in words, the setting that says so, and what to do.
    `is_time`: the allocation is too short, not too small."""

    what: str
    name: str
    setting: Sourced
    todo: str
    is_time: bool = False


class StepRequest:
    """What one phase needs. What its `slurm` options say about jobs alone (partition, QOS, memory
    and the like) was decided when the allocation was made."""

    def __init__(self, phase: Phase, profile: Profile) -> None:
        self._phase = phase
        self.nodes = int(phase.nodes.value)
        self.gpus = int(phase.gpus_per_node.value) if profile.hardware.gpu != "none" else 0
        self.cpus = int(self._option("cpus_per_task") or 0)

    def choose_nodes(self, allocation: Allocation, busy: Collection[str]) -> tuple[str, ...]:
        """The nodes of the step, none of them busy; empty if too few are free."""
        usable, required = self._usable(allocation.nodes), self._hosts("nodelist")
        free = [node.name for node in usable if node.name not in busy]
        first = [name for name in free if name in required]
        if len(first) < len(required) or len(free) < self.nodes:
            return ()
        chosen = {*first, *[name for name in free if name not in required][: self._rest(required)]}
        return tuple(name for name in free if name in chosen)

    def find_misfit(self, allocation: Allocation, now: float) -> StepMisfit | None:
        """Why the phase cannot run in this allocation, even if nothing else runs there."""
        return self._find_small(allocation) or self._find_short(allocation, now)

    def _find_small(self, allocation: Allocation) -> StepMisfit | None:
        everything = allocation.nodes
        if len(everything) < self.nodes:
            return self._misfit(
                "nodes", plural(self.nodes, "node"), str(len(everything)), f"--nodes={self.nodes}"
            )
        for name, needed, count_of, unit in (
            ("gpus_per_node", self.gpus, _gpus_of, "GPU"),
            ("cpus_per_task", self.cpus, _cpus_of, "CPU"),
        ):
            small = [node for node in everything if not _has(count_of(node), needed)]
            if len(everything) - len(small) < self.nodes:
                least = min(count_of(node) or 0 for node in small)
                has = f"{least} on {_join(node.name for node in small)}"
                option = f"--{name.replace('_', '-')}={needed}"
                return self._misfit(name, f"{plural(needed, unit)} per node", has, option)
        return self._find_left_out(everything)

    def _find_left_out(self, everything: tuple[AllocatedNode, ...]) -> StepMisfit | None:
        """The options that choose nodes hold for steps, too."""
        for option in ("nodelist", "exclude"):
            try:
                self._hosts(option)
            except (OSError, ValueError) as error:
                words = f"the file of its `{option}` cannot be read: {error}"
                return StepMisfit(words, option, self._phase.slurm[option], "mend the path")
        usable = {node.name for node in self._usable(everything)}
        missing = [name for name in self._hosts("nodelist") if name not in usable]
        if missing:
            return self._misfit(
                "nodelist", _join(missing), "other nodes", f"--nodelist={','.join(missing)}"
            )
        if len(usable) < self.nodes:
            left_out = f"--exclude={self._option('exclude')}"
            needed = f"{plural(self.nodes, 'node')} that it may use"
            return self._misfit("exclude", needed, str(len(usable)), left_out)
        return None

    def _find_short(self, allocation: Allocation, now: float) -> StepMisfit | None:
        """The default limit of an hour, which nobody chose, is not compared."""
        limit = self._phase.timeout_s
        by_default = has_default_timeout(self._phase)
        if allocation.ends is None or by_default or limit.value <= allocation.ends - now:
            return None
        left = max(0.0, allocation.ends - now)
        return StepMisfit(
            f"it may take {limit.value:g} s, and the allocation ends in {left:.0f} s",
            "timeout_s",
            limit,
            f"ask for a longer allocation, or lower timeout_s "
            f"(--cluster-set {self._phase.name}.timeout_s=S)",
            is_time=True,
        )

    def _usable(self, nodes: Iterable[AllocatedNode]) -> list[AllocatedNode]:
        excluded = {*self._hosts("exclude")}
        return [
            node
            for node in nodes
            if node.name not in excluded
            and _has(node.gpus, self.gpus)
            and _has(node.cpus, self.cpus)
        ]

    def _rest(self, required: Collection[str]) -> int:
        return max(0, self.nodes - len(required))

    def _hosts(self, option: str) -> list[str]:
        """Raises OSError or ValueError if the option names a file that cannot be read."""
        return expand_hostlist(read_host_option(str(self._option(option) or "")))

    def _option(self, name: str) -> Any:
        setting = self._phase.slurm.get(name)
        return setting.value if setting is not None else None

    def _misfit(self, name: str, needed: str, has: str, option: str) -> StepMisfit:
        setting = self._phase.slurm.get(name) or getattr(self._phase, name)
        todo = f"ask for a larger allocation (salloc {option})"
        return StepMisfit(f"it needs {needed}, and the allocation has {has}", name, setting, todo)


def _has(count: int | None, needed: int) -> bool:
    """Whether a node has as many as needed; where Slurm does not say, srun will."""
    return count is None or count >= needed


def _gpus_of(node: AllocatedNode) -> int | None:
    return node.gpus


def _cpus_of(node: AllocatedNode) -> int | None:
    return node.cpus


def _join(names: Iterable[str]) -> str:
    return shorten(list(names), MOST_NODES)
