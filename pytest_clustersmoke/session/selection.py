"""What of a cluster's phases and criteria a run was asked for: a verdict holds for that alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from ..text import sanitize_line
from .items import JobItem, PhaseClass, phase_class

# Options that leave tests out, and leave nothing out where all of them are to run.
MAYBE = {"lf": "--last-failed", "stepwise": "--stepwise"}


def scope_words(config: pytest.Config, is_cut: bool, part: Iterable[str] = ()) -> str:
    """What was selected and changed; empty where all runs as it stands.

    `is_cut`: some criteria of the phases that run are left out. `part`: the phases that run, where
    these are not all of the cluster's.
    """
    words = _selecting(config, is_cut) or list(filter(None, [", ".join(part)]))
    if len(words) > 1:
        words = [f"({word})" if " or " in word else word for word in words]
    how = _changed(config)
    return " ".join(filter(None, [" and ".join(words) or (how and "all"), how]))


def _selecting(config: pytest.Config, is_cut: bool) -> list[str]:
    """The words that select tests."""
    nodes = [word for word in config.args if "::" in word]
    words = [config.getoption("markexpr", ""), config.getoption("keyword", ""), *nodes]
    if is_cut:
        words += [f"--deselect {one}" for one in config.getoption("deselect", None) or ()]
        words += [word for name, word in MAYBE.items() if config.getoption(name, False)]
    return [word for word in words if word]


def is_whole(config: pytest.Config) -> bool:
    """Whether nothing was said that leaves out a file or a test: then what was not collected is not
    there. The suite is where pytest's own settings say (`testpaths`, else the root directory)."""
    suite = [config.rootpath / one for one in config.getini("testpaths")] or [config.rootpath]
    asked = [(config.invocation_params.dir / word).resolve() for word in config.args]
    options = ("markexpr", "keyword", "deselect", "ignore", "ignore_glob", *MAYBE)
    return all(
        any(one.resolve().is_relative_to(place) for place in asked) for one in suite
    ) and not any(config.getoption(name, None) for name in options)


def _changed(config: pytest.Config) -> str:
    """What --cluster-set changed of the phases; empty where it changed nothing."""
    words = [sanitize_line(word) for word in config.getoption("--cluster-set", None) or ()]
    return f"with --cluster-set {', '.join(words)}" if words else ""


def criterion_of(nodeid: str) -> str:
    """The name of a criterion, with its parameters: these may hold any character."""
    path, _, rest = nodeid.partition("::")
    name, bracket, parameters = rest.partition("[")
    return (name or path).rpartition("::")[2] + bracket + parameters


def criteria(names: Mapping[PhaseClass, str], items: Iterable[pytest.Item]) -> dict[str, list[str]]:
    """The criteria among these items, by the names of their phases."""
    found: dict[str, list[str]] = {name: [] for name in names.values()}
    for item in items:
        cls = phase_class(item)
        if cls is not None and cls in names and not isinstance(item, JobItem):
            found[names[cls]].append(criterion_of(item.nodeid))
    return found


def collected(
    names: Mapping[PhaseClass, str], items: Iterable[pytest.Item], args: Iterable[str]
) -> dict[str, list[str]]:
    """All criteria of these phases. A class collects all of its own, whatever node ids ask for;
    what a class inside it holds is known of the items alone, so that class counts as one more
    criterion, which nobody hears, where node ids ask for a part."""
    found, words = criteria(names, items), list(args)
    for cls, name in names.items():
        single = any(f"::{cls.name}::" in word for word in words)
        for one in cls.criteria:
            if isinstance(one, pytest.Item) or single:
                found[name].append(criterion_of(one.nodeid))
    return found
