"""Acknowledged failures: what an entry of `known` may cover, and for how long.

An acknowledgement must be exact and short-lived. An entry is refused if it covers every failure,
names a phase that does not run here, or lasts longer than LONGEST_DAYS. An expired entry is not a
mistake: it has no effect, and the run reports it.
"""

from __future__ import annotations

import re
from datetime import date, timedelta
from fnmatch import fnmatchcase

from pydantic import Field, ValidationInfo, field_validator, model_validator

from ..text import near, quote_names
from . import field_types as f
from .hostlist import MAX_HOSTS, expand_hostlist
from .marker import JOB

# A quarter: the person responsible for a failure must review it at least that often.
LONGEST_DAYS = 90
# A name with bracketed ranges, and wildcards only after them; or a plain name.
_RANGE = r"\d{1,9}(?:-\d{1,9})?"
_RANGES = rf"\[{_RANGE}(?:,{_RANGE})*\]"
_HOST = rf"(?:[^,\[\]\s*?]+{_RANGES}(?:[^,\[\]\s*?]*{_RANGES})*[^,\[\]\s]*|[^,\[\]\s]+)"
_HOST_LIST = re.compile(rf"{_HOST}(?:,{_HOST})*")
# One criterion's name, with or without parameters in brackets.
_ONE_NAME = re.compile(r"\w+(?:\[[^*?\[\]]*\])?")


class Known(f.Section):
    """A failure that is acknowledged until a day: of a node, or of a phase's criterion."""

    node: f.Line | None = Field(
        default=None, description="the node that is bad, or a Slurm host list"
    )
    phase: f.Line | None = Field(
        default=None, description="the phase whose criterion fails, as a glob"
    )
    criterion: f.Line | None = Field(
        default=None, description="the criterion that fails, as a glob; `job` for the job itself"
    )
    reason: f.Line = Field(description="why it fails and who is responsible, in one line")
    until: f.Day = Field(description="the last day on which this is valid")

    @field_validator("node")
    @classmethod
    def _is_host_list(cls, node: str | None) -> str | None:
        if node is not None and not _is_host_list(node):
            raise f.misfit(
                "names as Slurm writes them (`gpu[10-12,20],login1`), with `*` and `?` as "
                "wildcards; `[` opens a range of numbers",
                what=f"`node: {node}` in {{at}} is not a list of nodes",
            )
        return node

    @field_validator("phase")
    @classmethod
    def _matches_a_phase(cls, phase: str | None, info: ValidationInfo) -> str | None:
        phases = _listed_phases(info)
        is_point = phase is not None and phase.startswith(tuple(f"{name}-" for name in phases))
        if phase and phases and not is_point and not any(fnmatchcase(n, phase) for n in phases):
            what = f"`{phase}` in {{at}} matches no phase listed under `phases`"
            raise f.misfit(f"one of {quote_names(phases)}", near(phase, phases), what)
        return phase

    @field_validator("until")
    @classmethod
    def _is_soon(cls, until: date) -> date:
        last = date.today() + timedelta(days=LONGEST_DAYS)
        if until > last:
            raise f.misfit(
                f"a day no later than {last.isoformat()}",
                "review the entry and renew it by then",
                f"{{key}} {{is}}, more than {LONGEST_DAYS} days ahead",
            )
        return until

    @model_validator(mode="after")
    def _names_something(self, info: ValidationInfo) -> Known:
        targets = {"node": self.node, "phase": self.phase, "criterion": self.criterion}
        globs = {key: glob for key, glob in targets.items() if glob is not None}
        if list(globs) not in (["node"], ["phase", "criterion"]):
            has = " and ".join(f"`{key}`" for key in globs) or "neither `node` nor `phase`"
            raise f.misfit("either `node`, or `phase` with `criterion`", what=f"{{key}} has {has}")
        if _covers_everything(globs, _listed_phases(info)):
            named = " and ".join(f"`{key}: {glob}`" for key, glob in globs.items())
            verb = "covers" if len(globs) == 1 else "cover"
            what = f"{named} in {{key}} {verb} every failure"
            raise f.misfit(
                "the name of the node, or of the phase and criterion, that fails", what=what
            )
        return self


def _listed_phases(info: ValidationInfo) -> list[str]:
    phases = f.profile_value(info, "phases")
    return list(phases) if isinstance(phases, dict) else []


def _is_host_list(text: str) -> bool:
    """Whether the whole text is a valid host list, without an empty range."""
    if _HOST_LIST.fullmatch(text) is None:
        return False
    ranges = [part for group in re.findall(r"\[([^]]*)\]", text) for part in group.split(",")]
    ends = [part.partition("-")[::2] for part in ranges]
    forward = all(int(first) <= int(last or first) for first, last in ends)
    return forward and len(expand_hostlist(text)) < MAX_HOSTS


def _covers_everything(globs: dict[str, str], phases: list[str]) -> bool:
    """Whether an entry covers every failure of all nodes, or of all phases' jobs or criteria."""
    if "node" in globs:
        names = expand_hostlist(globs["node"])
        return any(not re.search(r"\w", name.partition(".")[0]) for name in names)
    phase, criterion = globs["phase"], globs["criterion"]
    every = set(phase) <= set("*?") or (
        re.search(r"[*?\[]", phase) and all(fnmatchcase(name, phase) for name in phases)
    )
    return bool(every) and (criterion == JOB or _ONE_NAME.fullmatch(criterion) is None)
