"""Remarks about environment variables, before the job.

A remark is a problem of severity `note` or `warning`: it never changes a verdict. A mistake in the
profile itself, if it is certain, is a usage error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..config.phase import Phase
from ..config.profile import Profile
from ..evidence.transport_rule import TransportRule
from ..evidence.variable_names import filter_variables, is_read, judge_name, show_value
from ..evidence.variable_values import find_hidden_subsystems, find_mistake
from ..node.launch_environment import NEVER_INHERITED, TRANSPORT_LEVELS
from ..text import NOTE, WARNING, Problem
from .transport_variables import Contradiction, find_contradictions

SHELL = "this shell"
# The levels of NCCL_DEBUG that NCCL knows; it ignores case.
LEVELS = ("VERSION", "WARN", "ABORT", *TRANSPORT_LEVELS)
# Variables that every launcher sets for the ranks: see node/launch_environment.py.
LAUNCHER_SETS = ("NCCL_DEBUG", "NCCL_DEBUG_FILE")
LAUNCHER_SETS_LOCALLY = ("NCCL_HOSTID",)


@dataclass(frozen=True)
class PhaseContext:
    """What is needed to judge a phase's variables. `ran_gloo`: the phase is known to have run
    without NCCL, for example on `device: auto`."""

    phase: Phase
    profile: Profile
    ran_gloo: bool = False

    @property
    def runs_nccl(self) -> bool:
        return self.profile.hardware.device != "cpu" and not self.ran_gloo

    @property
    def rules(self) -> list[TransportRule]:
        """What NCCL is expected to use, inside nodes and between them, where ranks have peers;
        empty if nothing is expected or NCCL does not run."""
        expect = self.profile.expect.get(self.phase.entry)
        if expect is None or not self.runs_nccl:
            return []
        nodes, ranks = int(self.phase.nodes.value), int(self.phase.gpus_per_node.value)
        sides = [*([True] if ranks > 1 else []), *([False] if nodes > 1 else [])]
        return [TransportRule.of(expect, inside=inside) for inside in sides]

    @property
    def own(self) -> dict[str, str]:
        """The profile's variables of the families that are checked."""
        return filter_variables(
            {name: str(value.value) for name, value in self.phase.env_set.items()}
        )

    @property
    def launchers(self) -> tuple[str, ...]:
        """Names of the variables that the launcher always sets for the ranks."""
        local = LAUNCHER_SETS_LOCALLY if self.profile.backend == "local" else ()
        return (*LAUNCHER_SETS, *local)

    def inherited(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Variables of pytest's shell that reach the ranks: sbatch, srun and local jobs pass on
        every variable that neither the profile nor the launcher sets or unsets."""
        decided = {*self.phase.env_set, *self.phase.env_unset, *self.launchers, *NEVER_INHERITED}
        return {
            name: value for name, value in filter_variables(environ).items() if name not in decided
        }

    def remark(self, name: str, severity: str, source: str, what: str, todo: str = "") -> Problem:
        """A remark; if NCCL does not run, one about its variables is only a note."""
        if not self.runs_nccl and name.startswith(("NCCL_", "TORCH_NCCL_")):
            severity = NOTE
        return Problem(what, source, todo=todo, name=name, severity=severity)


def find_contradictory_settings(phase: Phase, profile: Profile) -> list[Problem]:
    """Find variables of the profile that contradict its expectation for the phase."""
    context = PhaseContext(phase, profile)
    return [
        _to_problem(context, contradiction)
        for contradiction in find_contradictions(context.own, context.rules)
    ]


def remark_on_plan(phase: Phase, profile: Profile, environ: Mapping[str, str]) -> list[Problem]:
    """Remarks before the job: about the profile's variables, and about those of pytest's shell
    (`environ`) that would leak into it."""
    context = PhaseContext(phase, profile)
    inherited = context.inherited(environ)
    remarks = remark_on_profile(context)
    for name, value in inherited.items():
        if is_read(name):
            what = (
                f"{name}={show_value(value)} reaches the nodes unless `setup` unsets it, but the "
                "profile does not set it"
            )
            remarks.append(context.remark(name, WARNING, SHELL, what, keep_out(name)))
        remarks += remark_on_variable(context, name, value, SHELL)
    return remarks + list(remark_on_contradictions(context, inherited, SHELL))


def keep_out(name: str) -> str:
    """How the profile keeps a variable out of its jobs."""
    return f"`env.common.unset: [{name}]` keeps it out"


def remark_on_profile(context: PhaseContext) -> list[Problem]:
    """Remarks about the variables that the profile sets."""
    return [
        remark
        for name, value in context.own.items()
        for remark in remark_on_variable(context, name, value, context.phase.env_set[name].source)
    ]


def remark_on_variable(
    context: PhaseContext, name: str, value: str, source: str
) -> Iterator[Problem]:
    """Remarks about one variable, from its name and value."""
    remark = judge_name(name)
    if remark is not None:
        yield context.remark(name, remark.severity, source, remark.what, remark.todo)
    written = f"{name}={show_value(value)}"
    words = find_mistake(name, value)
    if words:
        yield context.remark(name, WARNING, source, f"{written}: {words}")
    if name == "NCCL_DEBUG" and value.upper() not in TRANSPORT_LEVELS:
        known = (
            "hides the transports" if value.upper() in LEVELS else "is not a level that NCCL knows"
        )
        yield context.remark(
            name, NOTE, source, f"{written} {known}; the launcher sets INFO instead"
        )
    if name == "NCCL_DEBUG_SUBSYS" and value and not all(rule.is_empty for rule in context.rules):
        words = find_hidden_subsystems(value)
        if words:
            what = f"{written} {words}: the transports cannot be judged"
            yield context.remark(name, WARNING, source, what, "add INIT")


def remark_on_contradictions(
    context: PhaseContext, others: Mapping[str, str], source: str
) -> Iterator[Problem]:
    """Contradictions of the expectation that need a variable from outside the profile.

    They are warnings, since a setup line may still change that variable.
    """
    for contradiction in find_contradictions({**others, **context.own}, context.rules):
        foreign = [name for name in contradiction.names if name not in context.own]
        if foreign:
            values = " and ".join(
                f"{name}={show_value({**others, **context.own}[name])}"
                for name in contradiction.names
            )
            verb = "rules" if len(contradiction.names) == 1 else "rule"
            where = context.profile.where("expect", context.phase.entry, contradiction.key)
            text = (
                f"{values} {verb} out everything that is expected: {contradiction.expected} "
                f"({where})"
            )
            yield context.remark(foreign[0], WARNING, source, text)


def _to_problem(context: PhaseContext, contradiction: Contradiction) -> Problem:
    first, *more = contradiction.names
    variables = context.phase.env_set
    also = "".join(
        f" with {name}={show_value(str(variables[name].value))} ({variables[name].source})"
        for name in more
    )
    name = context.phase.entry
    todo = f"change {' or '.join(contradiction.names)}, or `expect.{name}.{contradiction.key}`"
    if first == "NCCL_IB_DISABLE":
        todo += "; a plugin's InfiniBand has its own name, such as `NET/IBext*`"
    return Problem(
        f"{first}={show_value(str(variables[first].value))}{also} rules out everything that is "
        f"expected of phase `{name}`",
        variables[first].source,
        f"{contradiction.expected} ({context.profile.where('expect', name, contradiction.key)})",
        todo,
    )


def group_remarks(by_phase: Mapping[str, Iterable[Problem]]) -> list[tuple[Problem, list[str]]]:
    """Each distinct remark with its phases; warnings first."""
    phases_of: dict[Problem, list[str]] = {}
    for phase, remarks in by_phase.items():
        for remark in dict.fromkeys(remarks):
            phases_of.setdefault(remark, []).append(phase)
    return sorted(phases_of.items(), key=lambda pair: pair[0].severity != WARNING)


def format_remarks(groups: Iterable[tuple[Problem, list[str]]]) -> list[str]:
    """One line per remark, with its phases, or their number if there are many."""
    return [
        f"environment: {remark} ({', '.join(names) if len(names) < 4 else f'{len(names)} phases'})"
        for remark, names in groups
    ]
