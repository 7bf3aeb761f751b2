"""pytest-xdist: the controller owns the jobs, the workers wait for their results.

The controller has no items of its own. Each worker writes the phases it collected into the run's
plan before xdist hears of its collection; the controller submits once, on the first of them. A
worker learns of a result from the phase's `result.json`, which the controller writes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ..config.marker import Marked
from ..config.phase import Phase, resolve_all
from ..config.profile import Profile
from ..evidence.phase_result import PhaseResult
from ..evidence.run_directory import RunDir, read_json, write_json
from ..text import Problem
from .items import phase_classes
from .suite import Suite

POLL_S = 0.2
INPUT = "clustersmoke"


class ControllerSuite(Suite):
    """The suite of xdist's controller."""

    def __init__(self, config: pytest.Config, profile: Profile) -> None:
        super().__init__(config, profile)
        if config.getoption("--cluster-dry-run"):  # one plan, printed once
            config.option.dist, config.option.tx, config.option.numprocesses = "no", [], None
        # Workers are on this machine; the shared directory may be unusable, which is told later.
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
        """Criteria of one phase stay on one worker; a `--dist` the user chose is left alone."""
        if config.getoption("dist") != "load":
            return None
        from xdist.scheduler import LoadScopeScheduling

        return LoadScopeScheduling(config, log)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        if self._submitted:
            return
        self._submitted = True
        collected = read_json(self._exchange / f"{node.gateway.id}.json")
        if collected is None:
            raise RuntimeError(f"worker {node.gateway.id} left no plan in {self._exchange}")
        self.absences = collected["absences"]
        marked = [Marked(**{**one, "script": Path(one["script"])}) for one in collected["phases"]]
        self.phases, _ = resolve_all(marked, self.profile, self.config.getoption("--cluster-set"))
        chosen = [self.phases[name] for name in collected["chosen"] if name in self.phases]
        self._problems([Problem(text) for text in collected["problems"]], chosen)
        self._count_selection(chosen, *collected["criteria"])
        if chosen and not self._plans_only:
            self.start(chosen)
            assert self.run is not None and self.show is not None
            self.show.wait_with_xdist()
            write_json(self._exchange / "run.json", {"root": str(self.run.root)})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[Any]:
        if self.config.getoption("--cluster-dry-run"):
            return (yield from super().pytest_runtestloop(session))
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Iterator[None]:
        with contextlib.suppress(OSError):  # workers also see that their parent is gone
            write_json(self._exchange / "over.json", {"exitstatus": int(exitstatus)})
        yield from super().pytest_sessionfinish(session, exitstatus)
        shutil.rmtree(self._exchange, ignore_errors=True)


class WorkerSuite(Suite):
    """The suite of one xdist worker: it submits nothing and waits for files."""

    def __init__(self, config: pytest.Config, profile: Profile) -> None:
        super().__init__(config, profile)
        given = config.workerinput[INPUT]  # type: ignore[attr-defined]
        self.run_id, self._exchange = given["run_id"], Path(given["exchange"])
        self._parent: int = given["controller"]
        self._found: list[Problem] = []
        self._marked: list[Marked] = []

    def read(self, read: Any, problems: list[Problem], items: list[pytest.Item]) -> None:
        self._marked = list(read.values())
        super().read(read, problems, items)

    def _problems(self, problems: list[Problem], phases: Sequence[Phase]) -> None:
        self._found += problems  # the controller raises them, once

    @pytest.hookimpl(tryfirst=True)  # before xdist tells the controller that we have collected
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        record = {
            "phases": [{**vars(one), "script": str(one.script)} for one in self._marked],
            "chosen": [self._names[cls] for cls in phase_classes(session.items)],
            "criteria": self.criteria(session.items),
            "absences": self.absences,
            "problems": [str(problem) for problem in self._found],
        }
        worker = self.config.workerinput["workerid"]  # type: ignore[attr-defined]
        write_json(self._exchange / f"{worker}.json", record)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[Any]:
        return (yield)

    def read_phase(self, name: str) -> PhaseResult:
        """The evidence of a phase whose job is over; this process has not read it yet."""
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
