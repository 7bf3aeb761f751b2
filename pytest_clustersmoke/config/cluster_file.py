"""Find cluster.yaml, check it as a whole, and load one profile from it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..text import Problem, UsageProblems, near, quote_names
from .expansion import expand_profile, lookup_variable
from .field_types import NAME, NAME_FORM, validation_context
from .profile import READING, Profile
from .validation_problems import describe_errors
from .yaml_source import Source, read_yaml

CONFIG_NAME = "cluster.yaml"


def find_config(rootdir: Path, explicit: str | None) -> Path:
    """The file that `--cluster-config` names, or `cluster.yaml` in pytest's root directory."""
    if explicit is not None:
        path = Path(explicit)
        if not path.exists():
            what = f"no such file: {explicit}"
            raise UsageProblems([Problem(what, "--cluster-config", "a file of profiles")])
        return path
    path = rootdir / CONFIG_NAME
    if not path.exists():
        todo = "write one (`clustersmoke init`), or name one with --cluster-config"
        what, expected = f"no {CONFIG_NAME} in {rootdir}", "a file of profiles there"
        raise UsageProblems([Problem(what, "", expected, todo)])
    return path


class ClusterFile:
    """A checked file. Only mistakes that depend on environment variables can be left in it."""

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
            what, expected = f"no profile `{name}` in {self._source.file}", quote_names(self.names)
            hint = near(name, self.names)
            raise UsageProblems([Problem(what, "--cluster", f"one of {expected}", hint)])
        problems: list[Problem] = []
        with _collect_problems(problems, name, self._source):
            values = expand_profile(
                self._clusters[name], lambda key: lookup_variable(key, self._environ)
            )
            profile = Profile.model_validate(
                values, context=validation_context(values, expanded=True)
            )
        if problems:
            raise UsageProblems(problems)
        profile._name = name
        profile._source = self._source
        return profile


def load_cluster_file(path: Path, environ: Mapping[str, str]) -> ClusterFile:
    """Read and check a file of profiles; raises `UsageProblems` with every mistake."""
    source = read_yaml(path, READING)
    problems = [*source.problems, *_check_top_level(source)]
    clusters = source.values.get("clusters") if isinstance(source.values, dict) else None
    for name, values in clusters.items() if isinstance(clusters, dict) else ():
        problems += _check_profile(name, values, source)
    if problems:
        raise UsageProblems(sorted(dict.fromkeys(problems), key=_line_number))
    return ClusterFile(path, source, environ)


def _check_profile(name: str, values: Any, source: Source) -> list[Problem]:
    """The problems of a profile that do not depend on the environment."""
    problems = []
    if not re.fullmatch(NAME, name):
        where = source.where(("clusters", name))
        problems.append(Problem(f"`{name}` is not a valid name for a profile", where, NAME_FORM))
    with _collect_problems(problems, name, source):
        expand_profile(values, lambda key: "")
    with _collect_problems(problems, name, source):
        Profile.model_validate(values, context=validation_context(values, expanded=False))
    return problems


@contextmanager
def _collect_problems(problems: list[Problem], name: str, source: Source) -> Iterator[None]:
    """Add the errors raised inside the block to `found`."""
    try:
        yield
    except ValidationError as error:
        top = ("clusters", name)
        problems += describe_errors(
            error, ".".join(top), lambda route: source.where((*top, *route))
        )


def _line_number(problem: Problem) -> int:
    line = problem.where.rpartition(":")[2]
    return int(line) if line.isdigit() else 0


def _check_top_level(source: Source) -> Iterator[Problem]:
    expected = "a mapping with the key `clusters`"
    values = source.values
    if not isinstance(values, dict):
        yield Problem(
            "the file is empty" if values is None else "the file is not a mapping",
            source.file,
            expected,
        )
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
        yield Problem("the file has no `clusters`", source.file, expected)
    elif not isinstance(values["clusters"], dict) or not values["clusters"]:
        yield Problem(
            "`clusters` lists no profile",
            source.where(("clusters",)),
            "profiles, each under its name",
        )
