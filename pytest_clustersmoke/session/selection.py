"""Which of a cluster's phases and criteria a run selects; its verdict holds for those only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from ..text import sanitize_line
from .items import JobItem, PhaseClass, phase_class

# Options that may leave tests out, but do not always.
CACHE_OPTIONS = {"lf": "--last-failed", "stepwise": "--stepwise"}


def describe_selection(config: pytest.Config, is_cut: bool, part: Iterable[str] = ()) -> str:
    """What was selected and changed; empty if everything runs unchanged.

    `is_cut`: some criteria of the running phases are left out. `part`: the phases that run, if
    these are not all of the cluster's.
    """
    words = _selecting_words(config, is_cut) or list(filter(None, [", ".join(part)]))
    if len(words) > 1:
        words = [f"({word})" if " or " in word else word for word in words]
    changes = _describe_changes(config)
    return " ".join(filter(None, [" and ".join(words) or (changes and "all"), changes]))


def _selecting_words(config: pytest.Config, is_cut: bool) -> list[str]:
    """The words of the command line that select tests."""
    nodes = [word for word in config.args if "::" in word]
    words = [config.getoption("markexpr", ""), config.getoption("keyword", ""), *nodes]
    if is_cut:
        words += [f"--deselect {prefix}" for prefix in config.getoption("deselect", None) or ()]
        words += [word for name, word in CACHE_OPTIONS.items() if config.getoption(name, False)]
    return [word for word in words if word]


def is_whole(config: pytest.Config) -> bool:
    """Whether no option leaves out a file or a test, so that a phase that was not collected does
    not exist. The suite is at pytest's `testpaths`, or in the root directory."""
    suite = [config.rootpath / path for path in config.getini("testpaths")] or [config.rootpath]
    places = [(config.invocation_params.dir / word).resolve() for word in config.args]
    options = ("markexpr", "keyword", "deselect", "ignore", "ignore_glob", *CACHE_OPTIONS)
    return all(
        any(path.resolve().is_relative_to(place) for place in places) for path in suite
    ) and not any(config.getoption(name, None) for name in options)


def _describe_changes(config: pytest.Config) -> str:
    """What --cluster-set changed; empty if nothing."""
    words = [sanitize_line(word) for word in config.getoption("--cluster-set", None) or ()]
    return f"with --cluster-set {', '.join(words)}" if words else ""


def criterion_of(nodeid: str) -> str:
    """The name of a criterion with its parameters, which may hold any character."""
    path, _, rest = nodeid.partition("::")
    name, bracket, parameters = rest.partition("[")
    return (name or path).rpartition("::")[2] + bracket + parameters


def criteria(names: Mapping[PhaseClass, str], items: Iterable[pytest.Item]) -> dict[str, list[str]]:
    """The criteria among these items, by phase name."""
    by_phase: dict[str, list[str]] = {name: [] for name in names.values()}
    for item in items:
        cls = phase_class(item)
        if cls is not None and cls in names and not isinstance(item, JobItem):
            by_phase[names[cls]].append(criterion_of(item.nodeid))
    return by_phase


def all_criteria(
    names: Mapping[PhaseClass, str], items: Iterable[pytest.Item], args: Iterable[str]
) -> dict[str, list[str]]:
    """All criteria of these phases, by phase name.

    A class collects all its own criteria, whatever node ids select. The criteria of a nested class
    are known from the items only: if node ids select a part, the nested class counts as one more
    criterion, which has no result.
    """
    by_phase, node_ids = criteria(names, items), list(args)
    for cls, name in names.items():
        is_part = any(f"::{cls.name}::" in node_id for node_id in node_ids)
        for criterion in cls.criteria:
            if isinstance(criterion, pytest.Item) or is_part:
                by_phase[name].append(criterion_of(criterion.nodeid))
    return by_phase
