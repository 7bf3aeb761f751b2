"""What pytest collects for a phase: a class with a `phase` marker, its job, and its criteria."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr

from ..config.marker import PhaseMarker
from ..config.sweep import Point, Sweep, find_mistake, label, list_points
from ..text import Problem

MARKERS = (
    "phase(name, script, nodes=1, gpus_per_node=1, args={}, small={}, timeout_s=3600, "
    'launcher="torchrun", after="", resume=0, nodes_fixed=False, sweep={}, needs={}): '
    "one training job; the class's tests are its criteria",
    "detects(fault, ..., required=True): a criterion that must (or, with False, may) turn red "
    "when --cluster-prove stages one of these faults",
    "singlegpu: phases on one GPU (derived)",
    "multigpu: phases on several GPUs of one node (derived)",
    "multinode: phases on several nodes (derived)",
    "ddp: phases that train under DistributedDataParallel",
    "deepspeed: phases that train with DeepSpeed",
    "fsdp: phases that shard parameters with FSDP2",
    "megatron: phases that train with Megatron's core",
    "lora: phases that fine-tune adapters",
)
SUITE = "clustersmoke-suite"  # the plugin's name
HOW_TO_CHOOSE = (
    "no cluster chosen: run with --cluster NAME (or set the ini option `cluster`); "
    "--cluster-list shows the names"
)


class JobFailed(Exception):
    """The phase's job did not pass; the text is its outcome and findings."""


class _FailureText(TerminalRepr):
    """A failed job's findings; a summary line and JUnit's message take the first line."""

    def __init__(self, text: str, path: str, line: int) -> None:
        self._text = text
        self.reprcrash = ReprFileLocation(path, line, text.splitlines()[0])

    def toterminal(self, tw: Any) -> None:
        tw.line(self._text)


class PhaseClass(pytest.Class):
    """A class marked `@pytest.mark.phase(...)`: its job comes first, then its criteria.
    If the phase is swept, there is one for each point, in a `PhaseSweep`."""

    point: Point = MappingProxyType({})
    job: JobItem
    criteria: Sequence[pytest.Item | pytest.Collector] = ()  # all of them, whatever is selected

    @property
    def sweep(self) -> Sweep:
        """The sweep of the profile or of the marker; empty if the marker's has a mistake, which is
        reported later. A proof stages faults in the phase as it is without."""
        suite, _ = suite_of(self.config), self.obj  # pytest reads a class's markers with it
        collection = suite.collection if suite is not None else None
        if self.config.getoption("--cluster-prove"):
            return {}
        name = next(iter(self.marker.args), "")
        chosen = None
        if collection is not None and isinstance(name, str):
            chosen = collection.sweep_of(name)
        sweep = self.marker.kwargs.get("sweep", {}) if chosen is None else chosen
        return {} if find_mistake(sweep) else sweep

    def _getobj(self) -> Any:
        if isinstance(self.parent, PhaseSweep):
            return self.parent.obj
        return super()._getobj()  # type: ignore[no-untyped-call]

    @property
    def title(self) -> str:
        """The class, for the headline of a failure."""
        return f"{self.parent.name}.{self.name}" if self.point and self.parent else self.name

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        if not getattr(self.obj, "__test__", True):  # pytest's own way to leave out a class
            return
        self.job = JobItem.from_parent(self, name="job")
        yield self.job
        self.criteria = list(super().collect())
        yield from self.criteria
        if self.config.getoption("--cluster-prove"):
            from .gates import make_gates

            yield from make_gates(self)

    @property
    def criteria_names(self) -> list[str] | None:
        """The names of all criteria; None if a nested class holds some."""
        items = [item for item in self.criteria if isinstance(item, pytest.Item)]
        return [item.name for item in items] if len(items) == len(self.criteria) else None

    @property
    def marker(self) -> pytest.Mark:
        marker = self.get_closest_marker("phase")
        assert marker is not None
        return marker

    @property
    def line(self) -> int:
        """The first line of the class, decorators included."""
        try:
            return inspect.getsourcelines(self.obj)[1]
        except (OSError, TypeError):
            return 1

    @property
    def where(self) -> str:
        """file:line of the class; the file is relative to the current directory."""
        return f"{_shorten(self.path)}:{self.line}"


class PhaseSweep(pytest.Collector):
    """A class whose phase is swept: it holds a `PhaseClass` for each point."""

    def __init__(self, obj: object, points: Sequence[Point], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.obj, self._points = obj, points

    def collect(self) -> Iterator[PhaseClass]:
        for point in self._points:
            node: PhaseClass = PhaseClass.from_parent(self, name=label(point))
            node.point = point
            yield node


def make_collector(
    parent: pytest.Module | pytest.Class, name: str, obj: object
) -> PhaseClass | PhaseSweep:
    """The collector of the class `name` with a `phase` marker."""
    phase: PhaseClass = PhaseClass.from_parent(parent, name=name)
    points = list_points(phase.sweep)
    if not points:
        return phase
    sweep: PhaseSweep = PhaseSweep.from_parent(parent, name=name, obj=obj, points=points)
    return sweep


class PhaseItem(pytest.Item):
    """A test of a phase that is not a function of its class."""

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, JobFailed):
            path, line, _ = self.reportinfo()
            return _FailureText(str(excinfo.value), str(path), (line or 0) + 1)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        assert isinstance(self.parent, PhaseClass)
        return self.path, self.parent.line - 1, f"{self.parent.title}.{self.name}"


class JobItem(PhaseItem):
    """The phase's job as a test: it carries the outcome and the findings."""

    def runtest(self) -> None:
        suite = suite_of(self.config)
        assert suite is not None  # without a cluster the item was skipped in setup
        result = suite.views.of(self)
        if result.outcome != "passed":
            from .phase_views import job_failure_text

            text = job_failure_text(result, suite.collection.report_path)
            hosts = suite.collection.acknowledgements.uncovered_hosts(result)
            raise JobFailed("\n".join([text, *hosts]))


# The mistakes in the markers of phases.
Mistakes = dict[PhaseClass, list[Problem]]


def phase_class(item: pytest.Item) -> PhaseClass | None:
    """The phase that an item belongs to; None for a test outside all phases."""
    return item.getparent(PhaseClass)


def phase_classes(items: Iterable[pytest.Item]) -> Iterator[PhaseClass]:
    """The phases of these items, each once, in order."""
    seen: set[int] = set()
    for item in items:
        cls = phase_class(item)
        if cls is not None and id(cls) not in seen:
            seen.add(id(cls))
            yield cls


def read_phases(items: Iterable[pytest.Item]) -> tuple[dict[PhaseClass, PhaseMarker], Mistakes]:
    """Read every phase marker; returns the mistakes of all, also phases of the same name."""
    from ..config.marker import read_marker

    phases: dict[PhaseClass, PhaseMarker] = {}
    mistakes: Mistakes = {}
    named: dict[str, PhaseClass] = {}
    for cls in phase_classes(items):
        marker, where = cls.marker, cls.where
        # `-k` finds a phase by its name.
        cls.extra_keyword_matches.update(word for word in marker.args if isinstance(word, str))
        marked, problems = read_marker(marker.args, marker.kwargs, cls.path, where)
        if problems:
            mistakes[cls] = problems
        if marked is None:
            continue
        if cls.point:
            marked = marked.at(cls.point, cls.sweep)
            cls.extra_keyword_matches.add(marked.name)
        other = named.setdefault(marked.name, cls)
        if other is not cls:
            problem = Problem(
                f"two phases are named `{marked.name}`",
                where,
                "a unique name for each phase",
                f"the other is at {other.where}",
            )
            mistakes.setdefault(cls, []).append(problem)
            mistakes.setdefault(other, []).append(problem)
        phases[cls] = marked
    return phases, mistakes


def suite_of(config: pytest.Config) -> Any:
    """The suite of a session with a cluster; None without one."""
    return config.pluginmanager.get_plugin(SUITE)


def _shorten(path: Path) -> str:
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
