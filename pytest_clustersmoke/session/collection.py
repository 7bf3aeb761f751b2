"""What pytest collected of a suite: which of its phases the cluster runs, and all that is wrong."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import pytest

from ..config.marker import Marked
from ..config.phase import Phase, absence, resolve_all, undefined
from ..config.profile import Profile
from ..report.acknowledgements import Acknowledgements
from ..text import Problem
from .items import PhaseClass, phase_class, phase_classes
from .selection import collected, criteria, is_whole


class Collected:
    """The phases of one session on one cluster, and the criteria of each."""

    def __init__(self, config: pytest.Config, profile: Profile) -> None:
        self.config, self.profile = config, profile
        self.run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        self.report_dir = Path(
            config.getoption("--cluster-report-dir") or config.rootpath / "reports"
        ).absolute()
        self.absences: list[str] = []
        self.refused: list[Problem] = []  # why a run would be refused whose plan is printed
        self._resolved_with: list[Problem] = []
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
        """Who answers for which failures; a worker knows its run's name only once it is made."""
        return Acknowledgements(self.profile, self.run_id)

    def read(
        self, read: Mapping[PhaseClass, Marked], problems: list[Problem], items: list[pytest.Item]
    ) -> None:
        """Resolve the phases that this cluster runs, deselect the others."""
        settings = self.config.getoption("--cluster-set")
        phases, found = resolve_all(read.values(), self.profile, settings)
        problems = [*problems, *found]
        for cls, marked in read.items():
            self._names[cls] = marked.name
            if marked.name in phases:
                cls.add_marker(phases[marked.name].size_mark)
        self.absences = [
            absence(marked, self.profile) for marked in read.values() if marked.name not in phases
        ]
        if is_whole(self.config):
            self.absences += undefined(read.values(), self.profile)
        self.phases = phases
        names = {self._names[cls]: cls.criteria_names for cls in read}
        problems += self.acknowledgements.misnamed(names)
        self._resolved_with = problems
        self._all = list(items)
        here = [item for item in items if self._runs(item)]
        self.config.hook.pytest_deselected(items=[item for item in items if not self._runs(item)])
        items[:] = here

    def select(self, items: list[pytest.Item]) -> None:
        """Check the phases of the items that pytest selected; all problems at once."""
        phases = [self.phases[self._names[cls]] for cls in phase_classes(items)]
        self._problems([*self._resolved_with, *self._preflight(phases)], phases)

    def scheduler_environ(self) -> tuple[Mapping[str, str], list[Problem]]:
        """The environment for the scheduler's commands, with the lab's SLURM_CONF where the profile
        is a lab's, and why no lab can be found."""
        from .. import preflight

        if not self.profile.lab or preflight.missing_commands(self.profile, os.environ):
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
        from .. import preflight  # not for a collection alone, which is to be quick

        found = preflight.planned(self.profile, phases)
        if self._plans_only:
            self.refused = preflight.misplaced(self.profile, phases)
        else:
            environ, no_lab = self.scheduler_environ()
            found += [*no_lab, *preflight.problems(self.profile, phases, self.report_dir, environ)]
        return found

    def _problems(self, problems: list[Problem], phases: Sequence[Phase]) -> None:
        if problems:
            raise pytest.UsageError("\n".join(map(str, [*problems, *self._refusals(phases)])))

    def _refusals(self, phases: Sequence[Phase]) -> list[Problem]:
        """What the scheduler would say next, so that one run tells all."""
        if self._plans_only:
            return []
        from .. import preflight

        environ, no_lab = self.scheduler_environ()
        return [] if no_lab else preflight.refusals(self.profile, phases, environ)

    def _runs(self, item: pytest.Item) -> bool:
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
        """By phase all criteria that there are, and those among the items that are to run."""
        return collected(self._names, self._all, self.config.args), criteria(self._names, items)
