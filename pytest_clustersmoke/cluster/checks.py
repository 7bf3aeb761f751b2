"""What keys of a profile mean together: what its kinds alone do not show to be wrong.

The checks read the plain values, so that they find what they can where other values are of the
wrong kind; those are left to `schema.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from pytest_clustersmoke.cluster import sbatch
from pytest_clustersmoke.cluster.schema import CRITERIA_KINDS, STAGE_LIMITS_S, VERSION_NAMES
from pytest_clustersmoke.cluster.source import Route
from pytest_clustersmoke.errors import near
from pytest_clustersmoke.telemetry import METRICS

TRANSPORT_FAMILIES = ("P2P", "SHM", "NET", "NVLS", "COLLNET")

_PHASE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_ARGUMENT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_OPTION_NAME = re.compile(r"[a-z][a-z0-9_]+")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GLOB_START = re.compile(r"[*?\[]")
# Set by torchrun or by the launcher for each rank or process.
_LAUNCHER_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "NODE_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NCCL_DEBUG_FILE",
)


@dataclass(frozen=True)
class Fault:
    """Something wrong at a route inside a profile. `{at}` in `what` is the section's full name."""

    route: Route
    what: str
    expected: str = ""
    todo: str = ""


Raw = Mapping[str, Any]


def check(profile: Raw, is_open: Callable[[str], bool]) -> Iterator[Fault]:
    """Every fault that can be seen; `is_open` says whether a text still has variables to fill."""
    slurm_sections = [
        ("slurm",),
        *(("phases", name, "slurm") for name in _section(profile, "phases")),
    ]
    if profile.get("backend") == "local":
        yield from _local(profile, slurm_sections)
    else:
        for route in slurm_sections:
            yield from _slurm(route, _section(profile, *route), is_open)
    yield from _directories(profile, is_open)
    yield from _hardware(profile)
    yield from _environment(profile)
    yield from _phase_keys(profile)
    yield from _references(profile)
    yield from _expectations(profile)


def _section(values: Any, *route: str) -> Raw:
    """The mapping at a route; an empty one where there is none."""
    for key in route:
        values = values.get(key) if isinstance(values, Mapping) else None
    return values if isinstance(values, Mapping) else {}


def _unknown(route: Route, what: str, known: Iterable[str]) -> Fault:
    known = tuple(known)
    name = str(route[-1])
    return Fault(route, f"{what} `{name}` in {{at}}", f"one of {_listed(known)}", near(name, known))


def _listed(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _local(profile: Raw, slurm_sections: Iterable[tuple[str, ...]]) -> Iterator[Fault]:
    for route in slurm_sections:
        if _section(profile, *route):
            yield Fault(
                route,
                "sbatch options in {at} of a profile whose backend is `local`",
                "none, since nothing is given to sbatch",
                "take them out, or set `backend: slurm`",
            )
    if profile.get("lab") is True:
        yield Fault(
            ("lab",),
            "`lab: true` in {at} of a profile whose backend is `local`",
            "`backend: slurm`, since the lab is a Slurm",
        )


def _slurm(route: Route, options: Raw, is_open: Callable[[str], bool]) -> Iterator[Fault]:
    for key, value in options.items():
        at = (*route, key)
        if todo := sbatch.OWNED.get(key):
            yield Fault(at, f"`{key}` in {{at}} belongs to the tool", todo=todo)
        elif not _OPTION_NAME.fullmatch(key):
            yield Fault(
                at, f"`{key}` in {{at}} is no option", "a long name, without leading dashes"
            )
        elif slip := sbatch.slip_of(key):
            yield Fault(
                at,
                f"unknown key `{key}` in {{at}}",
                "an option of sbatch by its long name",
                f"did you mean `{slip}`?",
            )
        elif not isinstance(value, str | int) or (isinstance(value, str) and is_open(value)):
            continue
        elif sbatch.asks_for_gpus(key, value):
            yield Fault(at, f"`gres: {value}` in {{at}} asks for GPUs", todo=sbatch.OWNED["gpus"])
        elif form := sbatch.expected_form(key, value):
            shown = str(value).lower() if isinstance(value, bool) else value
            yield Fault(at, f"{{at}}.{key} is `{shown}`", form)


def _directories(profile: Raw, is_open: Callable[[str], bool]) -> Iterator[Fault]:
    shared = profile.get("shared_dir")
    local = profile.get("node_local")
    if not isinstance(shared, str) or not isinstance(local, tuple) or is_open(shared):
        return
    for path in local:
        if isinstance(path, str) and path and PurePosixPath(shared).is_relative_to(path):
            yield Fault(
                ("shared_dir",),
                f"`shared_dir` in {{at}} is {shared}, below {path}, which nodes do not share",
                "a directory that every node sees under the same path",
            )


def _hardware(profile: Raw) -> Iterator[Fault]:
    hardware = _section(profile, "hardware")
    if hardware.get("gpu") == "none" and hardware.get("device", "cuda") != "cpu":
        yield Fault(
            ("hardware", "gpu"),
            "`gpu: none` in {at}, whose device is not `cpu`",
            "the GPU's name, or `device: cpu`",
        )
    for name in _section(profile, "phases"):
        settings = _section(profile, "phases", name)
        for key, thing in (("gpus_per_node", "GPUs a node"), ("nodes", "nodes")):
            asked, there = settings.get(key), hardware.get(key)
            if isinstance(asked, int) and isinstance(there, int) and asked > there:
                yield Fault(
                    ("phases", name, key),
                    f"{{at}} asks for {asked} {thing}, the hardware has {there}",
                    f"at most {there}",
                )


def _environment(profile: Raw) -> Iterator[Fault]:
    routes: list[tuple[str, ...]] = [
        ("env", part) for part in ("common", "single_node", "multi_node")
    ]
    routes += [("phases", name, "env") for name in _section(profile, "phases")]
    for route in routes:
        block = _section(profile, *route)
        unset = block.get("unset")
        listed = unset if isinstance(unset, tuple) else ()
        for name in _section(block, "set"):
            yield from _variable((*route, "set", name), name, name in listed)
        for index, name in enumerate(listed):
            if isinstance(name, str):
                yield from _variable((*route, "unset", index), name, False)


def _variable(route: Route, name: str, twice: bool) -> Iterator[Fault]:
    if not _VARIABLE_NAME.fullmatch(name):
        yield Fault(
            route,
            f"`{name}` in {{at}} is no name of a variable",
            "letters, digits and `_`, not starting with a digit",
        )
    elif name in _LAUNCHER_VARIABLES:
        yield Fault(
            route,
            f"`{name}` in {{at}} belongs to the tool, which sets it for each process",
            todo="take it out",
        )
    elif twice:
        yield Fault(route, f"`{name}` in {{at}} is under `set` and under `unset`", "one of the two")


def _phase_keys(profile: Raw) -> Iterator[Fault]:
    phases = profile.get("phases")
    if isinstance(phases, Mapping) and not phases:
        yield Fault(
            ("phases",), "{at}.phases lists no phase", "the phases that run on this cluster"
        )
    for name in _section(profile, "phases"):
        if not _PHASE_NAME.fullmatch(name):
            yield Fault(
                ("phases", name),
                f"`{name}` in {{at}} is no name of a phase",
                "letters, digits, `_` and `-`",
            )
        for key in _section(profile, "phases", name, "args"):
            if not _ARGUMENT_NAME.fullmatch(key):
                yield Fault(
                    ("phases", name, "args", key),
                    f"`{key}` in {{at}} is no name of an argument",
                    "letters, digits and `_`, starting with a letter",
                )
    routes: list[tuple[str, ...]] = [("stage_limits_s",)]
    routes += [("phases", name, "stage_limits_s") for name in _section(profile, "phases")]
    for route in routes:
        for stage in _section(profile, *route):
            if stage not in STAGE_LIMITS_S:
                yield _unknown((*route, stage), "unknown stage", STAGE_LIMITS_S)
    require = profile.get("require")
    for index, kind in enumerate(require if isinstance(require, tuple) else ()):
        if kind not in CRITERIA_KINDS:
            yield Fault(
                ("require", index),
                f"unknown kind of criteria `{kind}` in {{at}}",
                f"one of {_listed(CRITERIA_KINDS)}",
                near(str(kind), CRITERIA_KINDS),
            )


def _unlisted(profile: Raw, section: str) -> Iterator[Fault]:
    phases = _section(profile, "phases")
    for phase in _section(profile, section):
        if phases and phase not in phases:
            yield Fault(
                (section, phase),
                f"`{phase}` in {{at}} is not listed under `phases`",
                f"one of {_listed(phases)}",
                near(phase, phases),
            )


def _references(profile: Raw) -> Iterator[Fault]:
    yield from _unlisted(profile, "references")
    for phase in _section(profile, "references"):
        for metric in _section(profile, "references", phase):
            route = ("references", phase, metric)
            if metric not in METRICS:
                yield _unknown(route, "unknown metric", METRICS)
                continue
            reference = _section(profile, *route)
            unit = reference.get("unit")
            if isinstance(unit, str) and unit != METRICS[metric].unit:
                yield Fault(
                    (*route, "unit"),
                    f"{{at}}.unit is `{unit}`",
                    f"`{METRICS[metric].unit}`, the unit of {metric}",
                    "convert the value where it was measured in another",
                )
            if reference and not {"lower", "upper"} & reference.keys():
                yield Fault(
                    route,
                    f"`{metric}` in {{at}} has no bound, and so nothing to fail on",
                    "`lower` or `upper`, such as `lower: -10 %`",
                )


def _expectations(profile: Raw) -> Iterator[Fault]:
    yield from _unlisted(profile, "expect")
    for phase in _section(profile, "expect"):
        expectation = _section(profile, "expect", phase)
        for key in ("intra_node", "inter_node", "forbid"):
            globs = expectation.get(key)
            for index, glob in enumerate(globs if isinstance(globs, tuple) else ()):
                if isinstance(glob, str) and "$" not in glob and not _names_transport(glob):
                    start = _GLOB_START.split(glob)[0].split("/")[0]
                    yield Fault(
                        ("expect", phase, key, index),
                        f"`{glob}` in {{at}} matches no transport",
                        "a glob over NCCL's names, such as `P2P/*`, `SHM*`, `NET/IB*`",
                        near(start.upper(), TRANSPORT_FAMILIES),
                    )
        for name in _section(expectation, "versions"):
            if name not in VERSION_NAMES:
                yield _unknown(("expect", phase, "versions", name), "unknown name", VERSION_NAMES)


def _names_transport(glob: str) -> bool:
    """Whether a glob can match a name that starts with one of the families."""
    before_glob = _GLOB_START.split(glob)[0]
    if before_glob != glob and "/" not in before_glob:
        return any(
            family.startswith(before_glob) or before_glob.startswith(family)
            for family in TRANSPORT_FAMILIES
        )
    return before_glob.split("/")[0] in TRANSPORT_FAMILIES
