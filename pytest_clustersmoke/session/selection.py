"""Which of a cluster's phases and criteria a run selects; its verdict holds for those only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from glob import glob
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from ..text import UsageProblems, sanitize_line
from .items import (
    HOW_TO_CHOOSE,
    JobItem,
    PhaseClass,
    phase_class,
    phase_classes,
    read_phases,
    suite_of,
)

# Options that may leave tests out, but do not always.
CACHE_OPTIONS = {"lf": "--last-failed", "stepwise": "--stepwise"}
# --last-failed does not even collect files in which nothing failed.
NOT_COLLECTING = ("ignore", "ignore_glob", "lf")


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
    """Whether no option leaves out a file or a test."""
    options = ("markexpr", "keyword", "deselect", *CACHE_OPTIONS)
    return collects_all(config) and not any(config.getoption(name, None) for name in options)


def collects_all(config: pytest.Config) -> bool:
    """Whether no option leaves out a file, so that a phase that was not collected does not exist.
    The suite is at pytest's `testpaths`, which may be globs, or in the root directory."""
    globs = [str(config.rootpath / path) for path in config.getini("testpaths")]
    # As pytest expands them: `Path.glob` takes no absolute ones.
    found = [Path(path) for each in globs for path in glob(each, recursive=True)]  # noqa: PTH207
    suite = found or [config.rootpath]
    places = [(config.invocation_params.dir / word).resolve() for word in config.args]
    return all(
        any(path.resolve().is_relative_to(place) for place in places) for path in suite
    ) and not any(config.getoption(name, None) for name in NOT_COLLECTING)


def _describe_changes(config: pytest.Config) -> str:
    """What --cluster-set changed; empty if nothing."""
    words = map(_hide_secret, config.getoption("--cluster-set", None) or ())
    changes = ", ".join(map(sanitize_line, words))
    return f"with --cluster-set {changes}" if changes else ""


def _hide_secret(word: str) -> str:
    """PHASE.KEY=VALUE, as in PHASE.env.NAME=VALUE, without a value that looks like a secret:
    reports show it."""
    from ..evidence.variable_names import HIDDEN, may_be_secret

    key, equals, value = word.partition("=")
    name = key.rpartition(".")[2]
    return f"{key}{equals}{HIDDEN if may_be_secret(name, value) else value}"


class ItemSelection:
    """The plugin around every other one that selects items.

    Before them, phases get their size marks; after them, a phase with a selected test has its job.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Iterator[None]:
        suite = suite_of(self._config)
        self._mark_phases(suite, items)
        with self._criteria_of_failed_jobs(items):
            yield
        self._restore_jobs(items)
        if suite is not None:
            suite.select(items)

    def _mark_phases(self, suite: Any, items: list[pytest.Item]) -> None:
        markers, mistakes = read_phases(items)
        if suite is not None:
            suite.resolve_phases(markers, mistakes, items)
        elif mistakes:
            raise pytest.UsageError(str(UsageProblems(chain.from_iterable(mistakes.values()))))
        else:
            for cls, marked in markers.items():
                cls.add_marker(marked.size_mark)
                cls.add_marker(pytest.mark.skip(reason=HOW_TO_CHOOSE))

    @contextmanager
    def _criteria_of_failed_jobs(self, items: Sequence[pytest.Item]) -> Iterator[None]:
        """While --lf or --ff selects, count the criteria of each job that failed as failed, too."""
        cache = self._config.pluginmanager.get_plugin("lfplugin")
        failed: dict[object, bool] = {} if cache is None else cache.lastfailed
        jobs = {cls for cls in phase_classes(items) if _cache_key(cls.job) in failed}
        added = {_cache_key(item) for item in items if phase_class(item) in jobs} - failed.keys()
        failed.update(dict.fromkeys(added, True))
        yield
        for key in added:
            del failed[key]

    def _restore_jobs(self, items: list[pytest.Item]) -> None:
        """A criterion of a failed job points to the job's item, so that item must run, too."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        deselected = [] if reporter is None else reporter.stats.get("deselected", [])
        present = set(items)
        for cls in [cls for cls in phase_classes(items) if cls.job not in present]:
            first = next(index for index, item in enumerate(items) if phase_class(item) is cls)
            items.insert(first, cls.job)
            if cls.job in deselected:
                deselected.remove(cls.job)


def _cache_key(item: pytest.Item) -> object:
    """How pytest's cache names an item: newer versions have a type of their own."""
    return getattr(item, "id", item.nodeid)


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
