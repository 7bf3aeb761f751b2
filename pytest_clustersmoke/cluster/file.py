"""The file as a whole: finding it, checking all of it, and giving out one profile."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_clustersmoke.cluster import acknowledged, checks, messages
from pytest_clustersmoke.cluster.checks import Fault
from pytest_clustersmoke.cluster.expand import MalformedVariableError, expand, lookup, parse
from pytest_clustersmoke.cluster.schema import READING, Profile
from pytest_clustersmoke.cluster.source import Route, Source, read
from pytest_clustersmoke.errors import Problem, UsageProblems, near

CONFIG_NAME = "cluster.yaml"
_CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
# What the node's shell expands, and what is for the reader alone.
_NOT_EXPANDED = ("setup", "description", "references", "known")
_PATHS = ("shared_dir", "node_local")


def find_config(rootdir: Path, explicit: str | None) -> Path:
    """The file that `--cluster-config` names, else `cluster.yaml` in pytest's root directory."""
    if explicit is not None:
        path = Path(explicit)
        if not path.exists():
            raise UsageProblems(
                [Problem(f"no such file: {explicit}", "--cluster-config", "a file of profiles")]
            )
        return path
    path = rootdir / CONFIG_NAME
    if not path.exists():
        raise UsageProblems(
            [
                Problem(
                    f"no {CONFIG_NAME} in {rootdir}",
                    expected="a file of profiles there",
                    todo=_other_root(rootdir)
                    or "write one (`clustersmoke init`), or name one with --cluster-config",
                )
            ]
        )
    return path


def _other_root(rootdir: Path) -> str:
    """What to do where the file is here and pytest's root is not: before it knows our options,
    pytest takes the word behind one for a path, and any that exists for a part of the suite."""
    here = Path.cwd()
    if rootdir.resolve() == here or not (here / CONFIG_NAME).exists():
        return ""
    return (
        f"there is one in {here}, but pytest took {rootdir} for its root: write paths behind "
        "options with `=` (--cluster-report-dir=DIR), or add --rootdir=."
    )


class ClusterFile:
    """A file that holds no mistakes but those that only the environment can show."""

    def __init__(self, path: Path, source: Source, environ: Mapping[str, str]) -> None:
        self.path = path
        self._source = source
        self._environ = environ
        self._clusters: Mapping[str, Any] = source.values["clusters"]

    @property
    def names(self) -> tuple[str, ...]:
        """The profiles' names, in the order of the file."""
        return tuple(self._clusters)

    def description(self, name: str) -> str:
        """A profile's line for `--cluster-list`."""
        return str(self._clusters[name].get("description", ""))

    def profile(self, name: str) -> Profile:
        """One profile with its variables filled in; raises `UsageProblems`."""
        if name not in self._clusters:
            listed = ", ".join(f"`{known}`" for known in self.names)
            raise UsageProblems(
                [
                    Problem(
                        f"no profile `{name}` in {self._source.file}",
                        "--cluster",
                        f"one of {listed}",
                        near(name, self.names),
                    )
                ]
            )
        values = self._clusters[name]
        faults = list(_unset_variables(values, self._environ))
        if faults:
            raise UsageProblems(_problems(self._source, name, faults))
        profile, faults = _validate(_expanded(values, (), self._environ), expanded=True)
        if profile is None:
            raise UsageProblems(_problems(self._source, name, faults))
        profile._name = name
        profile._source = self._source
        return profile


def load(path: Path, environ: Mapping[str, str]) -> ClusterFile:
    """Read and check a file of profiles; raises `UsageProblems` with all that is wrong."""
    source = read(path, READING)
    problems = list(source.problems)
    problems += _top_level(source)
    clusters = source.values.get("clusters") if isinstance(source.values, dict) else None
    for name, values in clusters.items() if isinstance(clusters, dict) else ():
        problems += _problems(source, name, _static_faults(name, values))
    if problems:
        raise UsageProblems(sorted(dict.fromkeys(problems), key=_line))
    return ClusterFile(path, source, environ)


def _line(problem: Problem) -> int:
    line = problem.where.rpartition(":")[2]
    return int(line) if line.isdigit() else 0


def _top_level(source: Source) -> Iterator[Problem]:
    expected = "a mapping with the key `clusters`"
    values = source.values
    if values is None:
        yield Problem("is empty", source.file, expected)
        return
    if not isinstance(values, dict):
        yield Problem("is no mapping", source.file, expected)
        return
    for key in values:
        if key != "clusters" and not key.startswith("x-"):
            yield Problem(
                f"unknown key `{key}` at the top",
                source.where((key,)),
                "`clusters`, or a key that starts with `x-` (for anchors)",
                near(key, ["clusters"]),
            )
    if "clusters" not in values:
        yield Problem("has no `clusters`", source.file, expected)
    elif not isinstance(values["clusters"], dict) or not values["clusters"]:
        yield Problem(
            "`clusters` lists no profile", source.where(("clusters",)), "profiles by their names"
        )


def _static_faults(name: str, values: Any) -> Iterator[Fault]:
    """What is wrong with a profile whatever the environment is."""
    if not _CLUSTER_NAME.fullmatch(name):
        yield Fault((), f"`{name}` is no name of a profile", "letters, digits, `_` and `-`")
    if isinstance(values, dict):
        yield from _malformed_variables(values)
    yield from _validate(values, expanded=False)[1]


def _validate(values: Any, expanded: bool) -> tuple[Profile | None, list[Fault]]:
    faults: list[Fault] = []
    profile = None
    try:
        profile = Profile.model_validate(values, context={"expanded": expanded})
    except ValidationError as error:
        faults += messages.faults(error)
    if isinstance(values, dict):
        faults += checks.check(values, lambda text: not expanded and "$" in text)
        faults += acknowledged.check(values)
    return (None if faults else profile), faults


def _problems(source: Source, name: str, faults: Iterator[Fault] | list[Fault]) -> list[Problem]:
    return [
        Problem(
            fault.what.replace("{at}", _section_name(name, fault)),
            source.where(("clusters", name, *fault.route)),
            fault.expected,
            fault.todo,
        )
        for fault in faults
    ]


def _section_name(name: str, fault: Fault) -> str:
    """The section's name as in `clusters.lab.slurm`, list positions as `[0]`."""
    text = f"clusters.{name}"
    for part in fault.route[:-1]:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text


def _texts(values: Any, route: Route) -> Iterator[tuple[Route, str]]:
    """Every text of a profile in which variables are filled in."""
    if isinstance(values, str):
        yield route, values
    elif isinstance(values, tuple):
        for index, value in enumerate(values):
            yield from _texts(value, (*route, index))
    elif isinstance(values, dict):
        for key, value in values.items():
            if route or key not in _NOT_EXPANDED:
                yield from _texts(value, (*route, key))


def _malformed_variables(values: dict[str, Any]) -> Iterator[Fault]:
    for route, text in _texts(values, ()):
        try:
            parse(text)
        except MalformedVariableError as error:
            yield Fault(
                route,
                f"{error} in {{at}}.{route[-1]}",
                "`$NAME`, `${NAME}` or `${NAME:-default}`",
                "write `$$` for a dollar sign",
            )


def _unset_variables(values: Any, environ: Mapping[str, str]) -> Iterator[Fault]:
    for route, text in _texts(values, ()):
        unset: list[str] = []
        expand(parse(text), environ, unset)
        for name in dict.fromkeys(unset):
            yield Fault(
                route,
                f"the variable {name} in {{at}}.{route[-1]} is not set",
                "a value, or a default as in `${" + name + ":-default}`",
                f"export {name}, or give the default",
            )


def _expanded(values: Any, route: Route, environ: Mapping[str, str]) -> Any:
    if isinstance(values, str):
        text = expand(parse(values), environ, [])
        return _home(text, environ) if route[0] in _PATHS else text
    if isinstance(values, tuple):
        return tuple(_expanded(value, (*route, i), environ) for i, value in enumerate(values))
    if isinstance(values, dict):
        return {
            key: value
            if not route and key in _NOT_EXPANDED
            else _expanded(value, (*route, key), environ)
            for key, value in values.items()
        }
    return values


def _home(path: str, environ: Mapping[str, str]) -> str:
    """The path with `~` at its start replaced, where a home directory is known."""
    if path == "~" or path.startswith("~/"):
        return (lookup("HOME", environ) or "~") + path[1:]
    return path
