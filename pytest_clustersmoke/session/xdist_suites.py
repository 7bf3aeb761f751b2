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
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ..config.marker import Marked, Needs
from ..config.phase import Phase, resolve_all
from ..config.profile import Profile
from ..evidence.phase_result import PhaseResult
from ..evidence.run_directory import RunDir, read_json, write_json
from ..text import Problem
from .items import Mistakes, phase_classes
from .live.pytest_terminal import show_in_queue
from .suite import Suite

POLL_S = 0.2
INPUT = "clustersmoke"


class ControllerSuite(Suite):
    """The suite of xdist's controller."""

    def __init__(self, config: pytest.Config, profile: Profile) -> None:
        super().__init__(config, profile)
        if config.getoption("--cluster-dry-run"):  # no workers, so that the plan is printed once
            config.option.dist, config.option.tx, config.option.numprocesses = "no", [], None
        # Local, since the shared directory may be unusable, which is reported later.
        self._exchange = Path(tempfile.mkdtemp(prefix="clustersmoke-xdist-"))
        self._submitted = False

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[INPUT] = {
            "run_id": self.run_id,
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
        self.absences = plan["absences"]
        markers = [
            Marked(**marker | {"script": Path(marker["script"]), "needs": Needs(**marker["needs"])})
            for marker in plan["phases"]
        ]
        settings = self.config.getoption("--cluster-set")
        self.phases, _ = resolve_all(markers, self.profile, settings)
        chosen = [self.phases[name] for name in plan["chosen"] if name in self.phases]
        self._raise_problems([Problem(text) for text in plan["problems"]], chosen)
        self._count_selection(chosen, *plan["criteria"])
        if chosen and not self._plans_only:
            self.start(chosen)
            assert self.run is not None and self.view is not None
            dsession = self.config.pluginmanager.get_plugin("dsession")
            if not show_in_queue(dsession, self.watching, self.view.show_all):
                self.terminal.say("  progress not shown: this pytest-xdist has no event queue")
            write_json(self._exchange / "run.json", {"root": str(self.run.root)})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[Any]:
        if self.config.getoption("--cluster-dry-run"):
            return (yield from super().pytest_runtestloop(session))
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Iterator[None]:
        with contextlib.suppress(OSError):  # workers also notice that their parent is gone
            write_json(self._exchange / "over.json", {"exitstatus": int(exitstatus)})
        yield from super().pytest_sessionfinish(session, exitstatus)
        shutil.rmtree(self._exchange, ignore_errors=True)


class WorkerSuite(Suite):
    """The suite of an xdist worker: it submits nothing, and waits for files."""

    def __init__(self, config: pytest.Config, profile: Profile) -> None:
        super().__init__(config, profile)
        handed = config.workerinput[INPUT]  # type: ignore[attr-defined]
        self.run_id, self._exchange = handed["run_id"], Path(handed["exchange"])
        self._parent: int = handed["controller"]
        self._problems: list[Problem] = []
        self._markers: list[Marked] = []

    def resolve_phases(self, markers: Any, mistakes: Mistakes, items: list[pytest.Item]) -> None:
        self._markers = list(markers.values())
        super().resolve_phases(markers, mistakes, items)

    def _raise_problems(self, problems: list[Problem], phases: Sequence[Phase]) -> None:
        self._problems += problems  # the controller raises them, once

    @pytest.hookimpl(tryfirst=True)  # before xdist reports it to the controller
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        plan = {
            "phases": [
                {**asdict(marker), "script": str(marker.script)} for marker in self._markers
            ],
            "chosen": [self._names[cls] for cls in phase_classes(session.items)],
            "criteria": self.criteria(session.items),
            "absences": self.absences,
            "problems": [str(problem) for problem in self._problems],
        }
        worker = self.config.workerinput["workerid"]  # type: ignore[attr-defined]
        write_json(self._exchange / f"{worker}.json", plan)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[Any]:
        return (yield)

    def read_phase(self, name: str) -> PhaseResult:
        """The evidence of a phase whose job has ended; this process has not read it yet."""
        from ..evidence.phase_result import collect_phase

        assert self.run is not None
        return collect_phase(self.run.phase(name))

    def wait(self, name: str) -> None:
        while True:
            started = read_json(self._exchange / "run.json")
            if started is not None:
                self.run = RunDir(Path(started["root"]))
                if self.run.phase(name).result.exists():
                    return
            if (self._exchange / "over.json").exists() or os.getppid() != self._parent:
                pytest.exit("the controller has ended the run")
            time.sleep(POLL_S)

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Iterator[None]:
        yield  # the controller gives the verdict and writes the report
