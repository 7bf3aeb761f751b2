"""The phases that pytest collected: which of them run on the cluster, and every problem found."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import pytest

from ..config.marker import Marked
from ..config.phase import Phase, explain_absence, find_undefined, resolve_all
from ..config.profile import Profile
from ..report.acknowledgements import Acknowledgements
from ..text import Problem
from .items import PhaseClass, phase_class, phase_classes
from .selection import all_criteria, criteria, is_whole


class Collected:
    """The phases of one session on one cluster, and the criteria of each."""

    def __init__(self, config: pytest.Config, profile: Profile) -> None:
        self.config, self.profile = config, profile
        self.run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        self.report_dir = Path(
            config.getoption("--cluster-report-dir") or config.rootpath / "reports"
        ).absolute()
        self.absences: list[str] = []
        self.refused: list[Problem] = []  # of a dry run: why a real run would be refused
        self._phase_problems: list[Problem] = []
        self.phases: dict[str, Phase] = {}
        self._names: dict[PhaseClass, str] = {}
        self._all: list[pytest.Item] = []
        self._plans_only = bool(
            config.getoption("--cluster-dry-run")
            or config.getoption("collectonly")
            or config.getoption("setupplan", False)
        )

    @cached_property
    def acknowledgements(self) -> Acknowledgements:
        """The known failures. Made late, since a worker gets its run id after `__init__`."""
        return Acknowledgements(self.profile, self.run_id)

    def resolve_phases(
        self,
        markers: Mapping[PhaseClass, Marked],
        problems: list[Problem],
        items: list[pytest.Item],
    ) -> None:
        """Resolve the phases that this cluster runs, and deselect the others."""
        settings = self.config.getoption("--cluster-set")
        phases, unresolved = resolve_all(markers.values(), self.profile, settings)
        problems = [*problems, *unresolved]
        for cls, marked in markers.items():
            self._names[cls] = marked.name
            if marked.name in phases:
                cls.add_marker(phases[marked.name].size_mark)
        self.absences = [
            explain_absence(marked, self.profile)
            for marked in markers.values()
            if marked.name not in phases
        ]
        if is_whole(self.config):
            self.absences += find_undefined(markers.values(), self.profile)
        self.phases = phases
        names = {self._names[cls]: cls.criteria_names for cls in markers}
        problems += self.acknowledgements.misnamed_entries(names)
        self._phase_problems = problems
        self._all = list(items)
        kept = [item for item in items if self._is_on_cluster(item)]
        gone = [item for item in items if not self._is_on_cluster(item)]
        self.config.hook.pytest_deselected(items=gone)
        items[:] = kept

    def select(self, items: list[pytest.Item]) -> None:
        """Check the phases of the selected items, and report all problems at once."""
        phases = [self.phases[self._names[cls]] for cls in phase_classes(items)]
        self._raise_problems([*self._phase_problems, *self._preflight(phases)], phases)

    def scheduler_environ(self) -> tuple[Mapping[str, str], list[Problem]]:
        """The environment for the scheduler's commands, with SLURM_CONF for a lab profile, and the
        reason if no lab was found."""
        from .. import preflight

        if not self.profile.lab or preflight.find_missing_commands(self.profile, os.environ):
            return os.environ, []
        from ..lab import LabError, find

        try:
            lab = find(os.environ)
        except LabError as error:
            return os.environ, [Problem(str(error), self.profile.where("lab"))]
        return {**os.environ, "SLURM_CONF": str(lab.slurm_conf)}, []

    def _preflight(self, phases: Sequence[Phase]) -> list[Problem]:
        if self.config.getoption("collectonly"):
            return []
        from .. import preflight  # not for --collect-only, which must be fast

        problems = preflight.find_plan_problems(self.profile, phases)
        if self._plans_only:
            self.refused = preflight.find_misplaced_paths(self.profile, phases)
        else:
            environ, no_lab = self.scheduler_environ()
            problems += no_lab
            problems += preflight.find_start_problems(
                self.profile, phases, self.report_dir, environ
            )
        return problems

    def _raise_problems(self, problems: list[Problem], phases: Sequence[Phase]) -> None:
        if problems:
            raise pytest.UsageError("\n".join(map(str, [*problems, *self._ask_scheduler(phases)])))

    def _ask_scheduler(self, phases: Sequence[Phase]) -> list[Problem]:
        """What the scheduler would also refuse, so that one run reports everything."""
        if self._plans_only:
            return []
        from .. import preflight

        environ, no_lab = self.scheduler_environ()
        return [] if no_lab else preflight.find_slurm_problems(self.profile, phases, environ)

    def _is_on_cluster(self, item: pytest.Item) -> bool:
        cls = phase_class(item)
        return cls is None or self._names.get(cls) in self.phases

    def pytest_report_collectionfinish(self) -> list[str]:
        return [*self.absences]

    def header(self) -> list[str]:
        hardware = self.profile.hardware
        return [
            f"cluster: {self.profile.name} ({self.profile.backend}; "
            f"{hardware.gpus_per_node} x {hardware.gpu} per node), run {self.run_id}"
        ]

    def criteria(self, items: list[pytest.Item]) -> tuple[dict[str, list[str]], ...]:
        """By phase: all its criteria, and those among the selected items."""
        return all_criteria(self._names, self._all, self.config.args), criteria(self._names, items)
