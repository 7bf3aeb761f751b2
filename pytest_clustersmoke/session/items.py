"""What pytest collects of a phase: a class with a `phase` marker, its criteria, and its job."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr

from ..config.marker import Marked
from ..text import Problem

SIZE_MARKS = ("singlegpu", "multigpu", "multinode")
MARKERS = (
    "phase(name, script, nodes=1, gpus_per_node=1, args={}, small={}, timeout_s=3600): one "
    "training job; the class's tests are its criteria",
    "singlegpu: phases on one GPU (derived)",
    "multigpu: phases on several GPUs of one node (derived)",
    "multinode: phases on several nodes (derived)",
    "ddp: phases that train under DistributedDataParallel",
    "deepspeed: phases that train with DeepSpeed",
    "lora: phases that fine-tune adapters",
)
HOW_TO_CHOOSE = (
    "no cluster chosen: run with --cluster NAME (or set the ini option `cluster`); "
    "--cluster-list shows the names"
)


class JobFailed(Exception):
    """The phase's job did not pass; the text is its outcome and findings."""


class _Told(TerminalRepr):
    """A failed job's findings; where one line must do (summary, JUnit's message) the first."""

    def __init__(self, text: str, path: str, line: int) -> None:
        self._text = text
        self.reprcrash = ReprFileLocation(path, line, text.splitlines()[0])

    def toterminal(self, tw: Any) -> None:
        tw.line(self._text)


class PhaseClass(pytest.Class):
    """A class marked `@pytest.mark.phase(...)`: its job comes first, then its criteria."""

    criteria: Sequence[pytest.Item | pytest.Collector] = ()  # all, whatever is selected of them

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        yield JobItem.from_parent(self, name="job")
        self.criteria = list(super().collect())
        yield from self.criteria
        if self.config.getoption("--cluster-prove"):
            from .gates import gates

            yield from gates(self)

    @property
    def criteria_names(self) -> list[str] | None:
        """All criteria by name; None where a class inside this one holds some."""
        items = [one for one in self.criteria if isinstance(one, pytest.Item)]
        return [one.name for one in items] if len(items) == len(self.criteria) else None

    @property
    def marker(self) -> pytest.Mark:
        found = self.get_closest_marker("phase")
        assert found is not None
        return found

    @property
    def line(self) -> int:
        """The class's first line, its decorators included."""
        try:
            return inspect.getsourcelines(self.obj)[1]
        except (OSError, TypeError):
            return 1

    @property
    def where(self) -> str:
        """file:line of the class, the file as seen from where pytest was started."""
        return f"{_short(self.path)}:{self.line}"


class PhaseItem(pytest.Item):
    """A test of a phase that is no function of its class."""

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, JobFailed):
            path, line, _ = self.reportinfo()
            return _Told(str(excinfo.value), str(path), (line or 0) + 1)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        assert isinstance(self.parent, PhaseClass)
        return self.path, self.parent.line - 1, f"{self.parent.name}.{self.name}"


class JobItem(PhaseItem):
    """The phase's job as a test of its own: it carries the outcome and the findings."""

    def runtest(self) -> None:
        suite = suite_of(self.config)
        assert suite is not None  # without a cluster the item was skipped in setup
        suite.run_job(self)


def phase_class(item: pytest.Item) -> PhaseClass | None:
    """The phase an item belongs to; None for any other test."""
    return item.getparent(PhaseClass)


def phase_classes(items: Iterable[pytest.Item]) -> Iterator[PhaseClass]:
    """The phases of these items, each once, in their order."""
    seen: set[int] = set()
    for item in items:
        cls = phase_class(item)
        if cls is not None and id(cls) not in seen:
            seen.add(id(cls))
            yield cls


def read_phases(items: Iterable[pytest.Item]) -> tuple[dict[PhaseClass, Marked], list[Problem]]:
    """Check every phase marker, all problems at once: two phases of one name are one too."""
    from ..config.marker import read_marker

    read: dict[PhaseClass, Marked] = {}
    problems: list[Problem] = []
    places: dict[str, str] = {}
    for cls in phase_classes(items):
        marker, where = cls.marker, cls.where
        marked, found = read_marker(marker.args, marker.kwargs, cls.path, where)
        problems += found
        if marked is None:
            continue
        if marked.name in places:
            problems.append(
                Problem(
                    f"two phases are named `{marked.name}`",
                    where,
                    "a unique name for each phase",
                    f"the other is at {places[marked.name]}",
                )
            )
        places.setdefault(marked.name, where)
        cls.extra_keyword_matches.add(marked.name)  # so that `-k` finds a phase by its name
        read[cls] = marked
    return read, problems


def suite_of(config: pytest.Config) -> Any:
    """The suite of a session that has a cluster; None without one."""
    return config.pluginmanager.get_plugin("clustersmoke-suite")


def _short(path: Path) -> str:
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
