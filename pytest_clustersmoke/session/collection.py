"""The phases that pytest collected: which of them run on the cluster, and every problem found."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path

import pytest

from ..config.marker import Marked, read_size_mark
from ..config.phase import Phase, explain_absence, find_undefined, resolve_all
from ..config.profile import Profile
from ..report.acknowledgements import Acknowledgements
from ..text import Problem, UsageProblems
from .items import Mistakes, PhaseClass, phase_class, phase_classes
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
        self._mistakes: Mistakes = {}
        self._setting_problems: Mapping[str, list[Problem]] = {}
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
        mistakes: Mistakes,
        items: list[pytest.Item],
    ) -> None:
        """Resolve the phases that this cluster runs, and deselect the others. Phases with mistakes
        in their markers stay, to be refused if they are selected."""
        whole = is_whole(self.config)
        phases, self._setting_problems = resolve_all(
            markers.values(),
            self.profile,
            self.config.getoption("--cluster-set"),
            () if whole else self.profile.phases,
        )
        self._mistakes = mistakes
        for cls in mistakes.keys() - markers.keys():
            cls.add_marker(read_size_mark(cls.marker.kwargs))
        for cls, marked in markers.items():
            self._names[cls] = marked.name
            if marked.name in phases:
                cls.add_marker(phases[marked.name].size_mark)
        self.absences = [
            explain_absence(marked, self.profile)
            for marked in markers.values()
            if marked.name not in phases
        ]
        if whole:
            self.absences += find_undefined(markers.values(), self.profile)
        self.phases = phases
        self._all = list(items)
        kept = [item for item in items if self._is_on_cluster(item)]
        gone = [item for item in items if not self._is_on_cluster(item)]
        self.config.hook.pytest_deselected(items=gone)
        items[:] = kept

    def select(self, items: list[pytest.Item]) -> None:
        """Check the phases of the selected items, and report all problems at once. A mistake in
        the marker of another phase is only a remark."""
        selected = list(phase_classes(items))
        names = [self._names[cls] for cls in selected if cls in self._names]
        phases = [self.phases[name] for name in names]
        mistakes = {problem for cls in selected for problem in self._mistakes.get(cls, ())}
        problems = list(dict.fromkeys(chain.from_iterable(self._mistakes.values())))
        self.absences += [
            f"{problem} (not selected, so not refused)"
            for problem in problems
            if problem not in mistakes
        ]
        self._raise_problems(
            [
                *(problem for problem in problems if problem in mistakes),
                *self._input_problems(phases),
                *self._preflight(phases),
            ],
            phases,
        )

    def _input_problems(self, phases: Sequence[Phase]) -> list[Problem]:
        """Mistakes in --cluster-set and `known` that concern these phases, or no phase."""
        names = ["", *(phase.name for phase in phases)]
        criteria = {name: cls.criteria_names for cls, name in self._names.items()}
        return [
            *(problem for name in names for problem in self._setting_problems.get(name, ())),
            *self.acknowledgements.misnamed_entries(criteria, names),
        ]

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
            problems = [*problems, *self._ask_scheduler(phases)]
            raise pytest.UsageError(str(UsageProblems(problems)))

    def _ask_scheduler(self, phases: Sequence[Phase]) -> list[Problem]:
        """What the scheduler would also refuse, so that one run reports everything."""
        if self._plans_only:
            return []
        from .. import preflight

        environ, no_lab = self.scheduler_environ()
        return [] if no_lab else preflight.find_slurm_problems(self.profile, phases, environ)

    def _is_on_cluster(self, item: pytest.Item) -> bool:
        cls = phase_class(item)
        if cls is None:
            return True
        return self._names[cls] in self.phases if cls in self._names else cls in self._mistakes

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
