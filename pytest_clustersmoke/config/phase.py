"""A phase: what the marker asks for, what the cluster's profile and the command line make of it.

Precedence, lowest first: marker (its `args`, over them its `small` where the profile has
`sizes: small`), cluster, cluster.phases.<name>, --cluster-set. Each value keeps the place it came
from, for the dry run and for errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..text import Problem, near
from .marker import Marked, size_mark
from .profile import EnvBlock, Profile

SET_KEYS = ("nodes", "gpus_per_node", "timeout_s", "args.X", "slurm.X", "env.X", "stage_limits_s.X")


# What a job needs to take dumps, end its ranks and write its results, with a margin.
LAST_WORDS_S = 60.0
# Phase, key, the name inside the key (empty where it has none), value.
Setting = tuple[str, str, str, Any]


@dataclass(frozen=True)
class Sourced:
    """A value and where it was written."""

    value: Any
    source: str


@dataclass(frozen=True)
class Staged:
    """The fault that is staged in a phase. `base` is the phase it was made from, `rank` the rank
    that a fault of one rank is staged on, `hook` the `module:function` that stages it in a rank."""

    fault: str
    base: str
    rank: int
    hook: str
    setup: tuple[str, ...] = ()
    python_flags: str = ""

    def as_spec(self) -> dict[str, Any]:
        """As the phase's spec carries it to its ranks."""
        return {"name": self.fault, "base": self.base, "rank": self.rank, "hook": self.hook}


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
    staged: Staged | None = None  # a fault, which --cluster-prove alone puts here

    @property
    def world_size(self) -> int:
        return int(self.nodes.value) * int(self.gpus_per_node.value)

    @property
    def size_mark(self) -> str:
        return size_mark(self.nodes.value, self.gpus_per_node.value)

    def argv(self) -> list[str]:
        """The rank program's arguments: `steps: 5` is `--steps 5`; true is the bare flag, false
        and null leave it out; a list repeats its values after one flag."""
        words: list[str] = []
        for name, sourced in self.args.items():
            flag, value = "--" + name.replace("_", "-"), sourced.value
            if value is None or value is False:
                continue
            words.append(flag)
            if value is not True:
                values = value if isinstance(value, list | tuple) else [value]
                words += [str(one) for one in values]
        return words


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
    accepted = {one.split(".")[0]: one.endswith(".X") for one in SET_KEYS}
    if key not in accepted:
        hint = near(key, accepted) or f"write an option of its program as {phase}.args.{key}={raw}"
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
        inner = inner.replace("-", "_")  # as in the file: one form for `hidden-size`
    return phase, key, inner or "", value


def _setting_problems(setting: Setting, profile: Profile) -> list[Problem]:
    """What the file's own validators say of a setting, as if it stood in the file."""
    from pydantic import ValidationError

    from .field_types import context
    from .profile import PhaseSettings
    from .validation_problems import problems

    target, key, inner, value = setting
    # A list of arguments, which only the command line and the marker can give.
    values = value if key == "args" and isinstance(value, tuple) else (value,)
    where = context({"backend": profile.backend}, expanded=True)
    found: list[Problem] = []
    for value in values:
        section = {inner: value} if inner else value
        try:
            PhaseSettings.model_validate(
                {key: {"set": section} if key == "env" else section}, context=where
            )
        except ValidationError as error:
            found += problems(error, target, lambda route: "--cluster-set")
    return found


def resolve(marked: Marked, profile: Profile, settings: Iterable[Setting]) -> Phase:
    """The phase as `profile` and the `--cluster-set` settings make it."""
    name, chosen = marked.name, profile.phases[marked.name]
    here = ("phases", name)
    args = {key: Sourced(value, marked.where) for key, value in marked.args.items()}
    small = {key: Sourced(value, f"{marked.where}: small") for key, value in marked.small.items()}
    phase = Phase(
        name=name,
        where=marked.where,
        script=marked.script,
        nodes=Sourced(marked.nodes, marked.where),
        gpus_per_node=Sourced(marked.gpus_per_node, marked.where),
        timeout_s=Sourced(marked.timeout_s, marked.where),
        args={**args, **small} if profile.sizes == "small" else args,
        small=small,
        slurm=_sourced(profile, ("slurm",), profile.slurm),
        stage_limits_s=_sourced(profile, ("stage_limits_s",), dict(profile.stage_limits_s)),
    )
    for key in ("nodes", "gpus_per_node", "timeout_s"):
        value = getattr(chosen, key)
        if value is not None:
            phase = _changed(phase, key, Sourced(value, profile.where(*here, key)))
    for key in ("args", "slurm", "stage_limits_s"):
        written = _sourced(profile, (*here, key), dict(getattr(chosen, key) or {}))
        phase = _changed(phase, key, {**getattr(phase, key), **written})
    settings = list(settings)
    for target, key, inner, value in settings:
        if target == name and key != "env":
            phase = _override(phase, key, inner, value)
    nodes_block = "multi_node" if phase.nodes.value > 1 else "single_node"
    for path, block in (
        (("env", "common"), profile.env.common),
        (("env", nodes_block), getattr(profile.env, nodes_block)),
        ((*here, "env"), chosen.env),
    ):
        phase = _with_env(phase, profile, path, block)
    for target, key, inner, value in settings:
        if target == name and key == "env":
            phase = _override(phase, "env_set", inner, value)
            kept = {name: one for name, one in phase.env_unset.items() if name != inner}
            phase = replace(phase, env_unset=kept)
    return _within_job(phase)


def _within_job(phase: Phase) -> Phase:
    """Our own limit comes before the scheduler's, which would kill the evidence with the job."""
    from .sbatch_options import seconds

    time = phase.slurm.get("time")
    if time is None or time.value is None or time.value is False:  # as an option is dropped
        return phase
    limit_s = seconds(time.value) - LAST_WORDS_S
    if limit_s <= LAST_WORDS_S or phase.timeout_s.value <= limit_s:
        return phase
    source = f"{LAST_WORDS_S:g} s less than slurm.time ({time.source})"
    return replace(phase, timeout_s=Sourced(limit_s, source))


def _sourced(
    profile: Profile, path: tuple[str, ...], values: Mapping[str, Any]
) -> dict[str, Sourced]:
    """Values of one mapping of the profile; what its file does not hold is the tool's default."""

    def source(key: str) -> str:
        default = path == ("stage_limits_s",) and not profile.wrote(*path, key)
        return "default" if default else profile.where(*path, key)

    return {key: Sourced(value, source(key)) for key, value in values.items()}


def _override(phase: Phase, key: str, inner: str, value: Any) -> Phase:
    sourced = Sourced(value, "--cluster-set")
    value = {**getattr(phase, key), inner: sourced} if inner else sourced
    return _changed(phase, key, value)


def _changed(phase: Phase, key: str, value: Any) -> Phase:
    changes: dict[str, Any] = {key: value}
    return replace(phase, **changes)


def _with_env(
    phase: Phase, profile: Profile, path: tuple[str, ...], block: EnvBlock | None
) -> Phase:
    """A later block wins: what it sets is no longer unset, what it unsets no longer set."""
    if block is None:
        return phase
    written = _sourced(profile, (*path, "set"), dict(block.set))
    unset = {name: Sourced(None, profile.where(*path, "unset")) for name in block.unset}
    kept_set = {key: value for key, value in phase.env_set.items() if key not in unset}
    kept_unset = {key: value for key, value in phase.env_unset.items() if key not in written}
    return replace(phase, env_set={**kept_set, **written}, env_unset={**kept_unset, **unset})


def absence(marked: Marked, profile: Profile) -> str:
    """Why a phase that the profile does not list is not on this cluster, in one sentence."""
    has = profile.hardware.gpus_per_node
    if marked.gpus_per_node > has:
        why = f"it needs {marked.gpus_per_node} GPUs per node, and {profile.name} has {has}"
    elif profile.hardware.nodes is not None and marked.nodes > profile.hardware.nodes:
        why = f"it needs {marked.nodes} nodes, and {profile.name} has {profile.hardware.nodes}"
    else:
        why = "its profile does not list it under `phases`"
    return f"{marked.name} does not run on {profile.name}: {why}"


def undefined(marked: Iterable[Marked], profile: Profile) -> list[str]:
    """Of the phases that the profile lists those that no test defines, each in one sentence."""
    names = {one.name for one in marked}
    return [
        f"{profile.name} lists the phase {name}, but no collected test defines it"
        + (f"; {hint}" if (hint := near(name, names - profile.phases.keys())) else "")
        for name in profile.phases
        if name not in names
    ]


def misfits(phase: Phase, profile: Profile) -> list[Problem]:
    """Sizes that the cluster's hardware does not have."""
    problems = []
    has, wants = profile.hardware.gpus_per_node, phase.gpus_per_node
    if wants.value > has:
        problems.append(
            Problem(
                f"phase `{phase.name}` asks for {wants.value} GPUs per node",
                wants.source,
                f"at most {has} (`hardware.gpus_per_node` of {profile.name}, "
                f"{profile.where('hardware', 'gpus_per_node')})",
                "change the phase's `gpus_per_node`, or remove the phase from `phases`",
            )
        )
    most = profile.hardware.nodes
    if most is not None and phase.nodes.value > most:
        problems.append(
            Problem(
                f"phase `{phase.name}` asks for {phase.nodes.value} nodes",
                phase.nodes.source,
                f"at most {most} (`hardware.nodes` of {profile.name})",
            )
        )
    return problems


def resolve_all(
    marked: Iterable[Marked], profile: Profile, texts: Iterable[str]
) -> tuple[dict[str, Phase], list[Problem]]:
    """The phases of `marked` that `profile` lists, by name, and everything wrong with them.

    `texts` are the `--cluster-set` settings as the user wrote them.
    """
    problems: list[Problem] = []
    settings = []
    for text in texts:
        try:
            settings.append(parse_setting(text))
        except ValueError as error:
            problems.append(Problem(str(error), "--cluster-set"))
    listed = {one.name: one for one in marked if one.name in profile.phases}
    for target, *_ in settings:
        if target not in listed:
            what = f"no collected phase `{target}` runs on {profile.name}"
            expected = f"one of {', '.join(listed) or 'none'}"
            problems.append(Problem(what, "--cluster-set", expected, near(target, listed)))
    sound = []
    for setting in settings:
        wrong = _setting_problems(setting, profile)
        problems += wrong
        sound += [] if wrong else [setting]
    phases = {name: resolve(one, profile, sound) for name, one in listed.items()}
    return phases, problems
