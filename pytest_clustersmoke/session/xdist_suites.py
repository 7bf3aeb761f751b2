"""pytest-xdist: the controller owns the jobs, the workers wait for their results.

The controller collects no items. Each worker writes a plan of the phases it collected before it
reports its collection to xdist; the controller submits once, from the first plan. A worker reads
results from the phase's `result.json`, which the controller writes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from ..config.marker import Needs, PhaseMarker
from ..config.phase import Phase, resolve_all
from ..config.profile import Profile
from ..criteria.phase_criteria import PhaseView
from ..evidence.metric import RESULT, Unmeasured
from ..evidence.phase_result import PhaseResult, collect_phase
from ..evidence.run_directory import RunDir, read_json, write_json
from ..text import Problem
from .collection import PhaseCollection
from .items import Mistakes, PhaseClass, phase_classes
from .live.pytest_terminal import show_in_queue
from .phase_views import PhaseViews, make_view
from .suite import Suite

POLL_S = 0.2
INPUT = "clustersmoke"
STARTED = "started.json"
FULL = "full.json"  # the same, once a result cannot be handed over
RESULTS = "results"  # those that the shared directory did not take


class XdistController:
    """What xdist's controller does beside its suite: it tells the workers about the run, and starts
    the jobs of the first plan that a worker writes."""

    def __init__(self, suite: Suite) -> None:
        self._suite = suite
        suite.on_unwritten = self._answer
        # Local, since the shared directory may be unusable, which is reported later.
        self._exchange = Path(tempfile.mkdtemp(prefix="clustersmoke-xdist-"))
        self._submitted = False

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[INPUT] = {
            "run_id": self._suite.run_id,
            "exchange": str(self._exchange),
            "controller": os.getpid(),
        }

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Keep the criteria of a phase on one worker, unless the user chose a `--dist`."""
        if config.getoption("dist") != "load":
            return None
        from xdist.scheduler import LoadScopeScheduling

        return LoadScopeScheduling(config, log)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        if self._submitted:
            return
        self._submitted = True
        plan = read_json(self._exchange / f"{node.gateway.id}.json")
        if plan is None:
            raise RuntimeError(f"worker {node.gateway.id} left no plan in {self._exchange}")
        suite, collection = self._suite, self._suite.collection
        markers = [
            PhaseMarker(
                **marker | {"script": Path(marker["script"]), "needs": Needs(**marker["needs"])}
            )
            for marker in plan["phases"]
        ]
        settings = suite.config.getoption("--cluster-set")
        collection.set_markers(markers)
        collection.absences = plan["absences"]
        phases, _ = resolve_all(markers, suite.profile, settings)
        collection.phases = collection.with_traces(phases)
        chosen = [collection.phases[name] for name in plan["chosen"]]
        collection.refuse([Problem(text) for text in plan["problems"]], chosen)
        suite.count_selection(chosen, *plan["criteria"])
        if chosen and not collection.plans_only:
            self._start(chosen)

    def _answer(self, result: PhaseResult) -> None:
        """Hand workers a result that the shared directory did not take. If this disk is full, too,
        they stop waiting."""
        try:
            write_json(self._exchange / RESULTS / f"{result.name}.json", dict(result.job))
        except OSError:
            with contextlib.suppress(OSError):
                (self._exchange / STARTED).rename(self._exchange / FULL)  # needs no room

    def _start(self, phases: list[Phase]) -> None:
        suite = self._suite
        suite.start(phases)
        assert suite.run is not None and suite.view is not None
        dsession = suite.config.pluginmanager.get_plugin("dsession")
        if not show_in_queue(dsession, suite.watching, suite.view.show_all):
            suite.terminal.say("  progress not shown: this pytest-xdist has no event queue")
        write_json(self._exchange / STARTED, {"root": str(suite.run.root)})

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, exitstatus: int) -> Iterator[None]:
        with contextlib.suppress(OSError):  # workers also notice that their parent is gone
            write_json(self._exchange / "over.json", {"exitstatus": int(exitstatus)})
        try:
            return (yield)
        finally:
            shutil.rmtree(self._exchange, ignore_errors=True)


class WorkerSuite:
    """The suite of an xdist worker: it submits nothing, and waits for files."""

    def __init__(self, config: pytest.Config, profile: Profile) -> None:
        handed = config.workerinput[INPUT]  # type: ignore[attr-defined]
        self._worker = config.workerinput["workerid"]  # type: ignore[attr-defined]
        self._exchange, self._parent = Path(handed["exchange"]), int(handed["controller"])
        self._run: RunDir | None = None
        self._problems: list[Problem] = []
        self.collection = PhaseCollection(config, profile, handed["run_id"])
        self.views = PhaseViews(self.collection, self.collection.name_of, self._make_view)
        config.pluginmanager.register(self.views)

    def resolve_phases(
        self,
        markers: Mapping[PhaseClass, PhaseMarker],
        mistakes: Mistakes,
        items: list[pytest.Item],
    ) -> None:
        self.collection.resolve_phases(markers, mistakes, items)

    def select(self, items: list[pytest.Item]) -> None:
        self._problems = self.collection.check_selection(items)  # the controller raises them, once

    def header(self) -> list[str]:
        return []

    @pytest.hookimpl(tryfirst=True)  # before xdist reports it to the controller
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        collection = self.collection
        chosen = collection.phases_of(phase_classes(session.items))
        plan = {
            "phases": [
                {**asdict(marker), "script": str(marker.script)} for marker in collection.markers
            ],
            "chosen": [phase.name for phase in chosen],
            "criteria": collection.criteria(session.items),
            "absences": collection.absences,
            "problems": [str(problem) for problem in self._problems],
        }
        write_json(self._exchange / f"{self._worker}.json", plan)

    def _make_view(self, name: str) -> PhaseView:
        return make_view(self.collection, self._wait(name), self._run_again)

    def _run_again(self, phase: str, number: int) -> PhaseResult:
        """The result of a rerun, which the controller submits as soon as it sees the request."""
        assert self._run is not None  # the result that asks for a rerun was read there
        return self._wait(self._run.request_rerun(phase, number))

    def _wait(self, name: str) -> PhaseResult:
        """The result of a phase, once the controller has written it. Raises Unmeasured if it
        cannot."""
        while True:
            is_full = (self._exchange / FULL).exists()
            started = read_json(self._exchange / (FULL if is_full else STARTED))
            if started is not None:
                self._run = RunDir(Path(started["root"]))
                phase = self._run.phase(name)
                if phase.result.is_file():
                    return collect_phase(phase)
                if (job := read_json(self._exchange / RESULTS / f"{name}.json")) is not None:
                    return replace(collect_phase(phase), job=job)
                if is_full:
                    why = f"the controller has no room to hand over the result of {name}"
                    raise Unmeasured(RESULT, why)
            if (self._exchange / "over.json").exists() or os.getppid() != self._parent:
                pytest.exit("the controller has ended the run")
            time.sleep(POLL_S)
