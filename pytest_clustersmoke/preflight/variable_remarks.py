"""What is to be said of the variables that a phase's nodes will see, and of those they saw.

Remarks never change a verdict. What the profile itself gets certainly wrong is a usage error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..config.phase import Phase
from ..config.profile import Profile
from ..evidence.variable_names import judge_name, of_families, shown
from ..evidence.variable_values import slip, subsystems_slip
from ..node.torchrun import NEVER_INHERITED, TELLING_LEVELS
from ..text import Problem
from .transport_variables import Contradiction, Expected, contradictions

NOTE, WARNING = "note", "warning"
SHELL = "this shell"
# The levels of NCCL_DEBUG that NCCL knows, in any case.
LEVELS = ("VERSION", "WARN", "ABORT", *TELLING_LEVELS)
# What the launcher sets for the ranks, whatever a shell has: torchrun.launcher_environment.
LAUNCHER_SETS = ("NCCL_DEBUG", "NCCL_DEBUG_FILE")
LAUNCHER_SETS_LOCALLY = ("NCCL_HOSTID",)


@dataclass(frozen=True)
class Remark:
    """One thing to know of a variable. `severity`: `note` or `warning`; `source`: who set it, as
    file:line where a file did."""

    name: str
    severity: str
    source: str
    text: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.source}: {self.text}"


@dataclass(frozen=True)
class Scene:
    """A phase on its cluster, as far as its variables can be judged by it. `ran_gloo`: it is
    known to have run, on `device: auto` say, without NCCL."""

    phase: Phase
    profile: Profile
    ran_gloo: bool = False

    @property
    def runs_nccl(self) -> bool:
        return self.profile.hardware.device != "cpu" and not self.ran_gloo

    @property
    def expected(self) -> Expected | None:
        """What NCCL is expected to use; None where nothing is, or no NCCL runs."""
        expect = self.profile.expect.get(self.phase.name)
        if expect is None or not self.runs_nccl:
            return None
        nodes, ranks = int(self.phase.nodes.value), int(self.phase.gpus_per_node.value)
        return Expected(expect, inside=ranks > 1, between=nodes > 1)

    @property
    def own(self) -> dict[str, str]:
        """The profile's variables of these families."""
        return of_families({key: str(one.value) for key, one in self.phase.env_set.items()})

    @property
    def launchers(self) -> tuple[str, ...]:
        """The names that the launcher sets for the ranks, whatever a shell has."""
        local = LAUNCHER_SETS_LOCALLY if self.profile.backend == "local" else ()
        return (*LAUNCHER_SETS, *local)

    def inherited(self, environ: Mapping[str, str]) -> dict[str, str]:
        """What the ranks inherit of the shell that pytest runs in: sbatch, srun and local jobs
        pass on every variable that neither the profile nor the launcher sets or unsets."""
        decided = {*self.phase.env_set, *self.phase.env_unset, *self.launchers, *NEVER_INHERITED}
        return {name: one for name, one in of_families(environ).items() if name not in decided}

    def remark(self, name: str, severity: str, source: str, text: str) -> Remark:
        """A remark; of NCCL where none runs it is no more than a note."""
        if not self.runs_nccl and name.startswith(("NCCL_", "TORCH_NCCL_")):
            severity = NOTE
        return Remark(name, severity, source, text)


def problems(phase: Phase, profile: Profile) -> list[Problem]:
    """Where the profile's own variables contradict what it expects of the phase."""
    scene = Scene(phase, profile)
    if scene.expected is None:
        return []
    return [
        _problem(scene, contradiction)
        for contradiction in contradictions(scene.own, scene.expected)
    ]


def planned(phase: Phase, profile: Profile, environ: Mapping[str, str]) -> list[Remark]:
    """What can be said before the job: of the profile's variables, and of those that the shell
    of pytest, `environ`, would leak into it."""
    scene = Scene(phase, profile)
    inherited = scene.inherited(environ)
    found = of_profile(scene)
    for name, value in inherited.items():
        if is_read(name):
            text = (
                f"{name}={shown(value)} reaches the nodes unless `setup` unsets it, but the "
                f"profile does not set it; `env.common.unset: [{name}]` keeps it out"
            )
            found.append(scene.remark(name, WARNING, SHELL, text))
        found += of_variable(scene, name, value, SHELL)
    return found + list(contradicted(scene, inherited, SHELL))


def of_profile(scene: Scene) -> list[Remark]:
    """What can be said of the variables that the profile sets."""
    return [
        remark
        for name, value in scene.own.items()
        for remark in of_variable(scene, name, value, scene.phase.env_set[name].source)
    ]


def is_read(name: str) -> bool:
    """Whether anything may read the variable, so that it matters who sets it."""
    verdict = judge_name(name)
    return verdict is None or verdict.is_read


def of_variable(scene: Scene, name: str, value: str, source: str) -> Iterator[Remark]:
    """What can be said of one variable by its name and value."""
    verdict = judge_name(name)
    if verdict is not None:
        yield scene.remark(name, verdict.severity, source, verdict.text)
    written = f"{name}={shown(value)}"
    words = slip(name, value)
    if words:
        yield scene.remark(name, WARNING, source, f"{written}: {words}")
    expected = scene.expected
    if name == "NCCL_DEBUG" and value.upper() not in TELLING_LEVELS:
        known = (
            "hides the transports" if value.upper() in LEVELS else "is not a level that NCCL knows"
        )
        yield scene.remark(name, NOTE, source, f"{written} {known}; the launcher sets INFO instead")
    if name == "NCCL_DEBUG_SUBSYS" and value and expected and expected.of_transports:
        words = subsystems_slip(value)
        if words:
            text = f"{written} {words}: the transports cannot be judged; add INIT"
            yield scene.remark(name, WARNING, source, text)


def contradicted(scene: Scene, others: Mapping[str, str], source: str) -> Iterator[Remark]:
    """Contradictions with what is expected in which a variable of others than the profile has a
    part: warnings, since a set-up line may still change it."""
    if scene.expected is None:
        return
    for one in contradictions({**others, **scene.own}, scene.expected):
        foreign = [name for name in one.names if name not in scene.own]
        if foreign:
            values = " and ".join(
                f"{name}={shown({**others, **scene.own}[name])}" for name in one.names
            )
            verb = "rules" if len(one.names) == 1 else "rule"
            where = scene.profile.where("expect", scene.phase.name, one.key)
            text = f"{values} {verb} out everything that is expected: {one.expected} ({where})"
            yield scene.remark(foreign[0], WARNING, source, text)


def _problem(scene: Scene, one: Contradiction) -> Problem:
    first, *more = one.names
    variables = scene.phase.env_set
    also = "".join(
        f" with {name}={shown(str(variables[name].value))} ({variables[name].source})"
        for name in more
    )
    name = scene.phase.name
    todo = f"change {' or '.join(one.names)}, or `expect.{name}.{one.key}`"
    if first == "NCCL_IB_DISABLE":
        todo += "; a plugin's InfiniBand has its own name, such as `NET/IBext*`"
    return Problem(
        f"{first}={shown(str(variables[first].value))}{also} rules out everything that is expected "
        f"of phase `{name}`",
        variables[first].source,
        f"{one.expected} ({scene.profile.where('expect', name, one.key)})",
        todo,
    )


def grouped(by_phase: Mapping[str, Iterable[Remark]]) -> list[tuple[Remark, list[str]]]:
    """Equal remarks once, with the phases they are of; warnings first."""
    found: dict[Remark, list[str]] = {}
    for phase, remarks in by_phase.items():
        for remark in dict.fromkeys(remarks):
            found.setdefault(remark, []).append(phase)
    return sorted(found.items(), key=lambda pair: pair[0].severity != WARNING)


def lines(groups: Iterable[tuple[Remark, list[str]]]) -> list[str]:
    """A line for each remark, with its phases; of many phases only their number."""
    return [
        f"environment: {remark} ({', '.join(names) if len(names) < 4 else f'{len(names)} phases'})"
        for remark, names in groups
    ]
