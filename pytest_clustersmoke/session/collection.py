"""The phases that pytest collected: which of them run on the cluster, and every problem found."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path

import pytest

from ..config.marker import PhaseMarker, read_size_mark
from ..config.phase import (
    Phase,
    Trace,
    check_order,
    check_traces,
    explain_absence,
    find_undefined,
    resolve_all,
)
from ..config.profile import Profile
from ..config.sweep import Sweep
from ..report.acknowledgements import Acknowledgements
from ..text import Problem, UsageProblems
from .avoided_nodes import AvoidedNodes, find_avoided_nodes
from .items import Mistakes, PhaseClass, phase_class, phase_classes
from .selection import all_criteria, collects_all, criteria, criterion_of, is_whole

# The criterion of `Resumed`, by which a class is known to judge what came before a stop.
RESUMED = "test_training_before_the_stop_was_sound"


class PhaseCollection:
    """The phases of one session on one cluster, and the criteria of each."""

    def __init__(self, config: pytest.Config, profile: Profile, run_id: str) -> None:
        self.config, self.profile, self.run_id = config, profile, run_id
        self.acknowledgements = Acknowledgements(profile, run_id)
        self.report_dir = Path(
            config.getoption("--cluster-report-dir") or config.rootpath / "reports"
        ).absolute()
        self.report_path = self.report_dir / run_id
        self.absences: list[str] = []
        self.refused: list[Problem] = []  # of a dry run: why a real run would be refused
        self._mistakes: Mistakes = {}
        self._setting_problems: Mapping[str, list[Problem]] = {}
        self.phases: dict[str, Phase] = {}
        self.names: dict[PhaseClass, str] = {}
        self.markers: list[PhaseMarker] = []
        self._all: list[pytest.Item] = []
        self.plans_only = bool(
            config.getoption("--cluster-dry-run")
            or config.getoption("collectonly")
            or config.getoption("setupplan", False)
        )
        self.here = bool(config.getoption("--cluster-here"))

    def resolve_phases(
        self,
        markers: Mapping[PhaseClass, PhaseMarker],
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
        self.set_markers(markers.values())
        self._mistakes = mistakes
        for cls, marked in markers.items():
            if marked.base and marked.name in self.profile.phases:
                what = f"a point of the sweep of phase `{marked.base}` is named `{marked.name}`"
                expected = "names that no phase of the cluster has"
                problem = Problem(what, marked.where, expected, "list other values")
                self._mistakes.setdefault(cls, []).append(problem)
        for cls in mistakes.keys() - markers.keys():
            cls.add_marker(read_size_mark(cls.marker.kwargs))
        for cls, marked in markers.items():
            self.names[cls] = marked.name
            if marked.name in phases:
                cls.add_marker(phases[marked.name].size_mark)
        self.absences = [
            explain_absence(marked, self.profile)
            for marked in {marked.entry: marked for marked in markers.values()}.values()
            if marked.name not in phases
        ]
        if collects_all(self.config):
            self.absences += find_undefined(markers.values(), self.profile)
        self.phases = self.with_traces(phases)
        self._all = list(items)
        kept = [item for item in items if self._is_on_cluster(item)]
        gone = [item for item in items if not self._is_on_cluster(item)]
        self.config.hook.pytest_deselected(items=gone)
        items[:] = kept

    def set_markers(self, markers: Iterable[PhaseMarker]) -> None:
        """Take the markers that were collected, here or by a worker of xdist."""
        self.markers = list(markers)
        self.acknowledgements.set_points(
            {each.name: each.base for each in self.markers if each.base}
        )

    def with_traces(self, phases: Mapping[str, Phase]) -> dict[str, Phase]:
        """The phases, those of --cluster-trace with what to trace."""
        first, last = self.config.getoption("--cluster-trace-steps") or (None, None)
        trace = Trace(first, last, self.config.getoption("--cluster-trace-ranks") or (0,))
        wanted = self.config.getoption("--cluster-trace")
        return {
            name: replace(phase, trace=trace) if name in wanted else phase
            for name, phase in phases.items()
        }

    def check_selection(self, items: Iterable[pytest.Item]) -> list[Problem]:
        """All problems of the phases of the selected items. A mistake in the marker of another
        phase is only a remark."""
        phases, mistakes = self.phases_of(phase_classes(items)), self.find_mistakes(items)
        selected = {phase.name for phase in phases}
        self.absences += [
            f"{phase.name} does not wait for {phase.after.value}, which is not selected"
            for phase in phases
            if phase.after.value not in ("", *selected)
        ]
        others = dict.fromkeys(chain.from_iterable(self._mistakes.values()))
        self.absences += [
            f"{problem} (not selected, so not refused)"
            for problem in others
            if problem not in mistakes
        ]
        names = {*self.phases, *(() if is_whole(self.config) else self.profile.phases)}
        untraceable, remarks = check_traces(
            self.config.getoption("--cluster-trace"), phases, names, self.profile.name
        )
        self.absences += remarks
        problems = [*mistakes, *self._input_problems(phases), *self._unjudged_stops(phases)]
        problems += self._same_names(selected)
        return [*problems, *untraceable, *self._preflight(phases)]

    def sweep_of(self, phase: str) -> Sweep | None:
        """The sweep that the profile has for a phase; None if it has none."""
        settings = self.profile.phases.get(phase)
        return settings.sweep if settings is not None else None

    @property
    def phases_of_cluster(self) -> list[str]:
        """The phases that the profile lists, in its order; the points of a sweep in place of the
        phase."""
        points = {marked.entry: marked.points for marked in self.markers}
        names = (points.get(entry) or [entry] for entry in self.profile.phases)
        return list(chain.from_iterable(names))

    def _unjudged_stops(self, phases: Iterable[Phase]) -> Iterator[Problem]:
        """Phases that stop and are resumed, whose criteria would judge the last attempt alone."""
        classes = {name: cls for cls, name in self.names.items()}
        for phase in phases:
            names = classes[phase.name].criteria_names or ()
            if phase.resume.value and RESUMED not in names:
                what = (
                    f"phase `{phase.name}` has `resume`, but none of its criteria judges the steps "
                    "before the stop"
                )
                expected = "a class that also inherits `Resumed` of pytest_clustersmoke.criteria"
                yield Problem(what, phase.resume.source, expected)

    def _same_names(self, phases: Collection[str]) -> Iterator[Problem]:
        """Criteria that would count as one."""
        where = {marked.name: marked.where for marked in self.markers}
        counts = Counter((phase_class(item), criterion_of(item.nodeid)) for item in self._all)
        for (cls, name), count in counts.items():
            phase = self.names.get(cls, "") if cls is not None else ""
            if count > 1 and phase in phases:
                what = f"phase `{phase}` has {count} criteria named `{name}`"
                expected = "a name of its own for each, also in nested classes"
                yield Problem(what, where[phase], expected)

    def find_mistakes(self, items: Iterable[pytest.Item]) -> list[Problem]:
        """The mistakes in the markers of these items' phases."""
        return [problem for cls in phase_classes(items) for problem in self._mistakes.get(cls, ())]

    def phases_of(self, classes: Iterable[PhaseClass]) -> list[Phase]:
        return [self.phases[self.names[cls]] for cls in classes if cls in self.names]

    def _input_problems(self, phases: Sequence[Phase]) -> list[Problem]:
        """Mistakes in --cluster-set and `known` that concern these phases, or no phase."""
        names = ["", *dict.fromkeys(name for phase in phases for name in (phase.entry, phase.name))]
        criteria = {name: cls.criteria_names for cls, name in self.names.items()}
        return [
            *check_order(phases, self._known_names()),
            *(problem for name in names for problem in self._setting_problems.get(name, ())),
            *self.acknowledgements.misnamed_entries(criteria, names),
        ]

    def _known_names(self) -> set[str]:
        """The names that a phase may run after. If only a part of the tests is collected, another
        part may define those that markers name."""
        names = {*self.profile.phases, *(marked.name for marked in self.markers)}
        if not is_whole(self.config):
            names |= {marked.after for marked in self.markers}
        return names - {marked.base for marked in self.markers}

    @cached_property
    def avoided(self) -> AvoidedNodes:
        """The nodes that no job gets; none without --cluster-avoid."""
        if not self.config.getoption("--cluster-avoid"):
            return AvoidedNodes()
        environ, _ = self.scheduler_environ()
        return find_avoided_nodes(self.profile, self.report_dir, environ)

    def scheduler_environ(self) -> tuple[Mapping[str, str], list[Problem]]:
        return scheduler_environ(self.profile, os.environ)

    def _preflight(self, phases: Sequence[Phase]) -> list[Problem]:
        if self.config.getoption("collectonly"):
            return []
        from .. import preflight  # not for --collect-only, which must be fast

        problems = preflight.find_plan_problems(self.profile, phases)
        environ, no_lab = self.scheduler_environ() if self.here or not self.plans_only else ({}, [])
        outside: list[Problem] = []
        misfits: list[str] = []
        if self.here and phases and not no_lab:
            outside, misfits = preflight.find_allocation_problems(self.profile, phases, environ)
        if self.plans_only:
            self.absences += misfits  # a run has a finding on each
            self.refused = [
                *no_lab,
                *outside,
                *preflight.find_misplaced_paths(self.profile, phases),
            ]
        else:
            problems += [*no_lab, *outside]
            detaches = bool(self.config.getoption("--cluster-detach"))
            problems += preflight.find_start_problems(
                self.profile, phases, self.report_dir, environ, detaches
            )
        return problems

    def refuse(self, problems: Sequence[Problem], phases: Sequence[Phase]) -> None:
        """Raise UsageError if there are problems, with what the scheduler would also refuse, so
        that one run reports everything."""
        if problems:
            raise pytest.UsageError(str(UsageProblems([*problems, *self._ask_scheduler(phases)])))

    def _ask_scheduler(self, phases: Sequence[Phase]) -> list[Problem]:
        if self.plans_only or self.here:
            return []
        from .. import preflight

        environ, no_lab = self.scheduler_environ()
        return [] if no_lab else preflight.find_slurm_problems(self.profile, phases, environ)

    def _is_on_cluster(self, item: pytest.Item) -> bool:
        cls = phase_class(item)
        if cls is None:
            return True
        return self.names[cls] in self.phases if cls in self.names else cls in self._mistakes

    def name_of(self, item: pytest.Item) -> str:
        """The phase of an item of one."""
        cls = phase_class(item)
        assert cls is not None
        return self.names[cls]

    def criteria(self, items: list[pytest.Item]) -> tuple[dict[str, list[str]], ...]:
        """By phase: all its criteria, and those among the selected items."""
        return all_criteria(self.names, self._all, self.config.args), criteria(self.names, items)


def scheduler_environ(
    profile: Profile, environ: Mapping[str, str]
) -> tuple[Mapping[str, str], list[Problem]]:
    """The environment for the scheduler's commands, with SLURM_CONF for a lab profile, and the
    reason if no lab was found."""
    from .. import preflight

    if not profile.lab or preflight.find_missing_commands(profile, environ):
        return environ, []
    from ..lab import LabError, find_lab

    try:
        lab = find_lab(environ)
    except LabError as error:
        return environ, [Problem(str(error), profile.where("lab"))]
    return {**environ, "SLURM_CONF": str(lab.slurm_conf)}, []
