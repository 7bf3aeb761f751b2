"""Combine a phase's marker, the cluster's profile and the command line into a `Phase`.

Precedence, lowest first: marker (`args`, then `small` if the profile has `sizes: small`), cluster,
cluster.phases.<name>, --cluster-set. Each value keeps its source, for the dry run and for errors.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..text import Problem, name_ranks, near, plural
from .marker import DEFAULT_TIMEOUT_S, SET_KEYS, SIMPLE_KEYS, TORCHRUN, PhaseMarker, size_mark
from .metrics import PROOF
from .profile import EnvBlock, Profile

DEFAULT = "default"  # the source of a value that no file states
COMMAND_LINE = "--cluster-set"
# Time for a job to take dumps, end its ranks and write its results, with a margin.
WIND_UP_S = 60.0
SETUP_S = 600.0  # what `setup` may take beyond the phase's own time
SIGNAL_EARLY_S = 60.0  # Slurm may ask a job to stop so much before it should (man sbatch, --signal)
# Phase, key, the name inside the key (empty if it has none), value.
Setting = tuple[str, str, str, Any]


@dataclass(frozen=True)
class Sourced:
    """A value and where it was written."""

    value: Any
    source: str


@dataclass(frozen=True)
class Staged:
    """The fault that is staged in a phase.

    `base` is the phase that it was made from, `rank` the rank that a single-rank fault is staged
    on, `hook` the `module:function` that stages it there.
    """

    fault: str
    base: str
    rank: int
    hook: str
    setup: tuple[str, ...] = ()
    python_flags: str = ""

    def as_spec(self) -> dict[str, Any]:
        """The fault as written in the phase's spec, for its ranks."""
        return {"name": self.fault, "base": self.base, "rank": self.rank, "hook": self.hook}


@dataclass(frozen=True)
class Trace:
    """What --cluster-trace asks for: the first and last step, from 1 (None: the rank chooses
    the last that are not proven), on which ranks, in order."""

    first: int | None
    last: int | None
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        steps = f"steps {self.first}-{self.last}" if self.first else "the last unproven steps"
        return f"{steps}, {name_ranks(self.ranks)}"

    def as_spec(self) -> dict[str, Any]:
        return {"first": self.first, "last": self.last, "ranks": list(self.ranks)}


@dataclass(frozen=True)
class Phase:
    """One training job as this cluster will run it. Resources are per node; times in seconds."""

    name: str
    where: str
    script: Path
    nodes: Sourced
    gpus_per_node: Sourced
    timeout_s: Sourced
    args: Mapping[str, Sourced] = field(default_factory=dict)
    slurm: Mapping[str, Sourced] = field(default_factory=dict)
    env_set: Mapping[str, Sourced] = field(default_factory=dict)
    env_unset: Mapping[str, Sourced] = field(default_factory=dict)
    stage_limits_s: Mapping[str, Sourced] = field(default_factory=dict)
    small: Mapping[str, Sourced] = field(default_factory=dict)  # arguments that train in seconds
    launcher: Sourced = Sourced(TORCHRUN, DEFAULT)
    after: Sourced = Sourced("", DEFAULT)  # the phase whose job must have passed before
    resume: Sourced = Sourced(0, DEFAULT)  # steps before it stops; True: where Slurm asks it to
    proof: Sourced = Sourced("sampled", DEFAULT)
    proof_steps: Sourced = Sourced(3, DEFAULT)  # besides the first step and the last
    nodes_fixed: bool = False  # its program runs on this number of nodes only
    peaks: Sourced = Sourced("once", DEFAULT)  # when to measure what its devices can do
    writes_gib: float = 0.0  # its checkpoint
    min_nodes: int = 0  # the fewest that its criteria can hold on
    min_ranks: int = 0
    base: str = ""  # the phase of whose sweep this one is a point
    point: Mapping[str, Any] = field(default_factory=dict)  # arguments that differ from the phase's
    staged: Staged | None = None  # set only by --cluster-prove
    trace: Trace | None = None  # set only by --cluster-trace

    @property
    def world_size(self) -> int:
        return int(self.nodes.value) * int(self.gpus_per_node.value)

    @property
    def entry(self) -> str:
        """The name under which a profile has it."""
        return self.base or self.name

    @property
    def resized(self) -> tuple[str, ...]:
        """What --cluster-set or a sweep changed of what a step does: no reference holds for it."""
        sizes = {"nodes": self.nodes, "gpus_per_node": self.gpus_per_node, "resume": self.resume}
        sizes |= {f"args.{name}": value for name, value in self.args.items()}
        sizes |= {f"{PROOF}{self.proof.value}": self.proof}
        changed = [name for name, value in sizes.items() if value.source == COMMAND_LINE]
        return (*changed, *(f"args.{name}" for name in self.point))

    @property
    def size_mark(self) -> str:
        return size_mark(self.nodes.value, self.gpus_per_node.value)

    def argv(self) -> list[str]:
        """The rank program's arguments.

        `steps: 5` becomes `--steps 5`; true is the bare flag; false and null omit it; the values of
        a list follow one flag.
        """
        words: list[str] = []
        for name, sourced in self.args.items():
            flag, value = flag_of(name), sourced.value
            if value is None or value is False:
                continue
            words.append(flag)
            if value is not True:
                values = value if isinstance(value, list | tuple) else [value]
                words += [str(item) for item in values]
        return words


def flag_of(name: str) -> str:
    """The option of the rank program for an argument of the phase."""
    return "--" + name.replace("_", "-")


def parse_setting(text: str) -> Setting:
    """`PHASE.KEY=VALUE` -> (phase, key, name inside the key, value), the value read as YAML.

    Raises ValueError with the accepted form.
    """
    from .yaml_source import read_value

    match = re.fullmatch(r"([A-Za-z0-9_-]+)\.([a-z_]+)(?:\.([^=]+))?=(.*)", text, re.DOTALL)
    form = f"PHASE.KEY=VALUE with KEY one of {', '.join(SET_KEYS)}"
    if not match:
        raise ValueError(f"cannot read {text!r}; expected {form}")
    phase, key, inner, raw = match.groups()
    accepted = {name.split(".")[0]: name.endswith(".X") for name in SET_KEYS}
    if key not in accepted:
        hint = f"write an option of its program as {phase}.args.{key}={raw}"
        if close := near(key, accepted):
            hint = f"{close} if not, {hint}"
        raise ValueError(f"unknown key `{key}` in {text!r}; expected {form}; {hint}")
    if accepted[key] != (inner is not None):
        raise ValueError(f"cannot read {text!r}; expected {form}")
    try:
        value = read_value(raw)
    except ValueError as error:
        raise ValueError(f"the value of {text!r} is not valid YAML") from error
    if key == "env":
        value = raw
    if key in ("args", "slurm"):
        inner = inner.replace("-", "_")  # `hidden-size` and `hidden_size` are one argument
    return phase, key, inner or "", value


def _check_setting(setting: Setting, profile: Profile) -> list[Problem]:
    """Check a setting with the validators of cluster.yaml, as if it were written there."""
    from pydantic import ValidationError

    from .field_types import validation_context
    from .profile import PhaseSettings
    from .validation_problems import describe_errors

    target, key, inner, value = setting
    # Only the command line and the marker can pass a list as an argument.
    values = value if key == "args" and isinstance(value, tuple) else (value,)
    where = validation_context({"backend": profile.backend}, expanded=True)
    problems: list[Problem] = []
    for value in values:
        section = {inner: value} if inner else value
        try:
            PhaseSettings.model_validate(
                {key: {"set": section} if key == "env" else section}, context=where
            )
        except ValidationError as error:
            problems += describe_errors(error, target, lambda route: COMMAND_LINE)
    return problems


def resolve(marked: PhaseMarker, profile: Profile, settings: Iterable[Setting]) -> Phase:
    """The phase with the profile and the `--cluster-set` settings applied."""
    chosen, here = profile.phases[marked.entry], ("phases", marked.entry)
    args = {key: Sourced(value, marked.where) for key, value in marked.args.items()}
    small = {key: Sourced(value, f"{marked.where}: small") for key, value in marked.small.items()}
    phase = Phase(
        name=marked.name,
        base=marked.base,
        where=marked.where,
        script=marked.script,
        nodes=Sourced(marked.nodes, marked.where),
        gpus_per_node=Sourced(marked.gpus_per_node, marked.where),
        timeout_s=Sourced(marked.timeout_s, marked.where),
        launcher=Sourced(marked.launcher, DEFAULT if marked.launcher == TORCHRUN else marked.where),
        after=Sourced(marked.after, marked.where if marked.after else DEFAULT),
        resume=Sourced(marked.resume, marked.where if marked.resume else DEFAULT),
        nodes_fixed=marked.nodes_fixed,
        peaks=_with_sources(profile, (), {"peaks": profile.peaks})["peaks"],
        args={**args, **small} if profile.sizes == "small" else args,
        small=small,
        writes_gib=0.0 if profile.sizes == "small" else marked.needs.writes_gib,
        min_nodes=marked.needs.min_nodes,
        min_ranks=marked.needs.min_ranks,
        slurm=_with_sources(profile, ("slurm",), profile.slurm),
        stage_limits_s=_with_sources(profile, ("stage_limits_s",), dict(profile.stage_limits_s)),
    )
    for key in SIMPLE_KEYS:
        value = getattr(chosen, key)
        if value is not None:
            phase = _replace_value(phase, key, Sourced(value, profile.where(*here, key)))
    for key in ("args", "slurm", "stage_limits_s"):
        written = _with_sources(profile, (*here, key), dict(getattr(chosen, key) or {}))
        phase = _replace_value(phase, key, {**getattr(phase, key), **written})
    if chosen.nodes_fixed is not None:
        phase = replace(phase, nodes_fixed=chosen.nodes_fixed)
    if chosen.writes_gib is not None:
        phase = replace(phase, writes_gib=chosen.writes_gib)
    settings = list(settings)
    for target, key, inner, value in settings:
        if target == marked.entry and key != "env":
            phase = _override(phase, key, inner, value)
    nodes_block = "multi_node" if phase.nodes.value > 1 else "single_node"
    for path, block in (
        (("env", "common"), profile.env.common),
        (("env", nodes_block), getattr(profile.env, nodes_block)),
        ((*here, "env"), chosen.env),
    ):
        phase = _with_env(phase, profile, path, block)
    for target, key, inner, value in settings:
        if target == marked.entry and key == "env":
            phase = _override(phase, "env_set", inner, value)
            kept = {key: value for key, value in phase.env_unset.items() if key != inner}
            phase = replace(phase, env_unset=kept)
    return _end_before_job(_at_point(phase, marked, profile))


def _at_point(phase: Phase, marked: PhaseMarker, profile: Profile) -> Phase:
    """The phase with the arguments of its point; `point` keeps those that it did not have."""
    in_profile = profile.phases[marked.entry].sweep is not None
    source = profile.where("phases", marked.entry, "sweep") if in_profile else marked.where
    args = {name: Sourced(value, f"{source}: sweep") for name, value in marked.point.items()}
    written = {name: repr(setting.value) for name, setting in phase.args.items()}
    point = {key: value for key, value in marked.point.items() if written.get(key) != repr(value)}
    return replace(phase, args={**phase.args, **args}, point=point)


def has_default_timeout(phase: Phase) -> bool:
    """Whether nobody chose the phase's time limit."""
    return phase.timeout_s.value == DEFAULT_TIMEOUT_S and phase.timeout_s.source == phase.where


def _end_before_job(phase: Phase) -> Phase:
    """End the phase before Slurm ends the job, so that its evidence can still be written. A phase
    with `resume` is asked to stop before, and needs the rest to save its progress."""
    from .sbatch_options import parse_time_limit

    time = phase.slurm.get("time")
    if phase.resume.value:
        return phase
    if time is None or time.value is None or time.value is False:  # the option is dropped
        return phase
    limit_s = parse_time_limit(time.value) - WIND_UP_S
    if limit_s <= WIND_UP_S or phase.timeout_s.value <= limit_s:
        return phase
    source = f"{WIND_UP_S:g} s less than slurm.time ({time.source})"
    return replace(phase, timeout_s=Sourced(limit_s, source))


def _with_sources(
    profile: Profile, path: tuple[str, ...], values: Mapping[str, Any]
) -> dict[str, Sourced]:
    """The values of a mapping of the profile, with their sources; values that are not in the file
    are the tool's defaults."""

    def source(key: str) -> str:
        default = path in ((), ("stage_limits_s",)) and not profile.has_key(*path, key)
        return "default" if default else profile.where(*path, key)

    return {key: Sourced(value, source(key)) for key, value in values.items()}


def _override(phase: Phase, key: str, inner: str, value: Any) -> Phase:
    sourced = Sourced(value, COMMAND_LINE)
    value = {**getattr(phase, key), inner: sourced} if inner else sourced
    return _replace_value(phase, key, value)


def _replace_value(phase: Phase, key: str, value: Any) -> Phase:
    return replace(phase, **{key: value})


def _with_env(
    phase: Phase, profile: Profile, path: tuple[str, ...], block: EnvBlock | None
) -> Phase:
    """Apply an `env` block over earlier ones: of `set` and `unset` the later one wins."""
    if block is None:
        return phase
    written = _with_sources(profile, (*path, "set"), dict(block.set))
    unset = {name: Sourced(None, profile.where(*path, "unset")) for name in block.unset}
    kept_set = {key: value for key, value in phase.env_set.items() if key not in unset}
    kept_unset = {key: value for key, value in phase.env_unset.items() if key not in written}
    return replace(phase, env_set={**kept_set, **written}, env_unset={**kept_unset, **unset})


def explain_absence(marked: PhaseMarker, profile: Profile) -> str:
    """Say in one sentence why a phase that the profile does not list does not run there."""
    has = profile.hardware.gpus_per_node
    if marked.gpus_per_node > has:
        why = f"it needs {marked.gpus_per_node} GPUs per node, and {profile.name} has {has}"
    elif profile.most_nodes is not None and marked.nodes > profile.most_nodes:
        why = f"it needs {marked.nodes} nodes, and {profile.name} has {profile.most_nodes}"
    else:
        why = "its profile does not list it under `phases`"
    return f"{marked.entry} does not run on {profile.name}: {why}"


def find_undefined(marked: Iterable[PhaseMarker], profile: Profile) -> list[str]:
    """Phases that the profile lists but no test defines, each in one sentence."""
    names = {marker.entry for marker in marked}
    return [
        f"{profile.name} lists the phase {name}, but no collected test defines it"
        + (f"; {hint}" if (hint := near(name, names - profile.phases.keys())) else "")
        for name in profile.phases
        if name not in names
    ]


def check_order(phases: Iterable[Phase], names: Collection[str]) -> list[Problem]:
    """Find phases that could never start: after one that is in none of the known `names`, or after
    themselves, by whatever way."""
    by_name = {phase.name: phase for phase in phases}
    problems = []
    for phase in by_name.values():
        order = [phase.name]
        while (before := by_name.get(order[-1])) and before.after.value not in ("", *order):
            order.append(before.after.value)
        if phase.after.value and phase.after.value not in names:
            what = f"phase `{phase.name}` runs after `{phase.after.value}`, which no test defines"
            hint = near(phase.after.value, names)
            problems.append(Problem(what, phase.after.source, "the name of a phase", hint))
        elif before and before.after.value == phase.name:
            what = f"phase `{phase.name}` would run after itself: {' after '.join(order)}"
            what += f" after {phase.name}"
            problems.append(Problem(what, phase.after.source, "an order that has a first phase"))
    return problems


def check_traces(
    wanted: Iterable[str], selected: Iterable[Phase], names: Collection[str], cluster: str
) -> tuple[list[Problem], list[str]]:
    """Find traces that nobody could write: of a phase that is in none of the known `names`, or of a
    rank that it does not have. Also returns a remark for each phase that is not selected."""
    by_name = {phase.name: phase for phase in selected}
    problems, remarks = [], []
    for name in dict.fromkeys(wanted):
        if name not in names:
            what = f"no collected phase `{name}` runs on {cluster}"
            expected = f"one of {', '.join(sorted(names)) or 'none'}"
            problems.append(Problem(what, "--cluster-trace", expected, near(name, names)))
        elif (phase := by_name.get(name)) is None:
            remarks.append(f"{name} is not traced, since it is not selected")
        elif phase.trace is not None and phase.trace.ranks[-1] >= phase.world_size:
            what = f"phase `{name}` has {plural(phase.world_size, 'rank')}, and rank "
            what += f"{phase.trace.ranks[-1]} was to be traced"
            expected = f"ranks from 0 to {phase.world_size - 1}"
            problems.append(Problem(what, "--cluster-trace-ranks", expected))
    return problems, remarks


def resolve_all(
    marked: Iterable[PhaseMarker],
    profile: Profile,
    texts: Iterable[str],
    uncollected: Iterable[str] = (),
) -> tuple[dict[str, Phase], dict[str, list[Problem]]]:
    """The phases of `marked` that `profile` lists, by name, and the problems of the settings by
    the phase that they are for; "" has those for no phase.

    `texts` are the `--cluster-set` settings as the user wrote them; they may also be for the phases
    named in `uncollected`.
    """
    problems: dict[str, list[Problem]] = defaultdict(list)
    listed = [marker for marker in marked if marker.entry in profile.phases]
    swept = {marker.entry: marker.point for marker in listed}
    names = {*swept, *uncollected}
    settings = []
    for text in texts:
        try:
            setting = parse_setting(text)
        except ValueError as error:
            problems[""].append(Problem(str(error), COMMAND_LINE))
            continue
        target = setting[0]
        if target not in names:
            what = f"no collected phase `{target}` runs on {profile.name}"
            expected = f"one of {', '.join(swept) or 'none'}"
            problems[""].append(Problem(what, COMMAND_LINE, expected, near(target, names)))
        mistakes = _check_setting(setting, profile)
        if setting[1] == "args" and setting[2] in swept.get(target, ()):
            what = f"{text!r} sets an argument that phase `{target}` sweeps"
            mistakes.append(Problem(what, COMMAND_LINE, "an argument that it does not sweep"))
        problems[target if target in names else ""] += mistakes
        settings += [] if mistakes else [setting]
    phases = {marker.name: resolve(marker, profile, settings) for marker in listed}
    return phases, problems
