"""Which nodes `--cluster-screen` screens, and why not the others: by what sinfo says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..config.hostlist import expand_hostlist, read_host_option
from ..evidence.scheduler_record import NodeStatus
from ..evidence.screen_record import EXCLUDED, OTHER_FEATURES
from ..text import Problem, near, sanitize_line, shorten
from .node_constraint import NodeConstraint

MANY = 8
OPTION = "--cluster-nodes"
# An idle node, also one that the scheduler has planned for a later job; of a job in a reservation,
# the nodes of that, also where it is one for maintenance.
_IDLE = re.compile(r"(idle|planned)\+?-?")
_RESERVED = re.compile(r"(idle|planned|reserved|maint)\+?[-$]?")
# Nodes that no job can get now, by the mark behind their state (man sinfo, NODE STATE CODES) or the
# state itself, in words that count them. The first that matches counts; all others are busy.
_GROUPS = tuple(
    (word, re.compile(form))
    for word, form in (
        ("drained", r"drain"),
        ("powered down", r"power(ed|ing)_down|(?<!down)[~%!]$"),
        ("powering up", r"powering_up|#$"),
        ("in maintenance", r"maint|reboot|[$@^]$"),
        ("reserved", r"reserved|resv"),
        ("down", r"down|fail|unk|error|inval|blocked|future|\*$"),
    )
)
BUSY = "busy"


@dataclass(frozen=True)
class PlannedNode:
    """A node of the partition, by Slurm's words. `skip` says in a word why it is not screened;
    empty if it is."""

    name: str
    state: str
    skip: str = ""
    why: str = ""


def plan_screen(
    nodes: Sequence[NodeStatus], hostlist: str = "", options: Mapping[str, Any] | None = None
) -> tuple[list[PlannedNode], list[Problem]]:
    """The nodes of a partition, only those in `hostlist` if there is one, in Slurm's order; and
    the names that are no nodes of it. `options` are the profile's for sbatch: they leave out nodes
    that no phase gets, and the nodes of a reservation that jobs use are free."""
    wanted = expand_hostlist(hostlist)
    known = {node.name for node in nodes}
    unknown = [name for name in dict.fromkeys(wanted) if name not in known]
    problems = [_explain_unknown(unknown, known)] if unknown else []
    if hostlist and not wanted:
        problems.append(Problem(f"`{hostlist}` names no node", OPTION, "a list such as gpu[0-7]"))
    chosen = set(wanted) if hostlist else known
    try:
        rule = _Rule.of(options or {})
    except (OSError, ValueError) as error:
        problem = Problem(f"its file cannot be read: {error}", "slurm.exclude", "names of nodes")
        return [], [*problems, problem]
    return [rule.plan(node) for node in nodes if node.name in chosen], problems


def _explain_unknown(unknown: Sequence[str], known: set[str]) -> Problem:
    what = f"the partition has no node {shorten(unknown, MANY)}"
    hint = near(unknown[0], known)
    return Problem(what, OPTION, "names of nodes, as sinfo -N lists them", hint)


@dataclass(frozen=True)
class _Rule:
    """Which nodes the profile's jobs may have."""

    usable: re.Pattern[str]
    constraint: NodeConstraint
    excluded: frozenset[str]

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> _Rule:
        """Raises OSError or ValueError if `exclude` names a file that cannot be read."""
        return cls(
            _RESERVED if options.get("reservation") else _IDLE,
            NodeConstraint.parse(str(options.get("constraint") or "")),
            frozenset(expand_hostlist(read_host_option(str(options.get("exclude") or "")))),
        )

    def plan(self, node: NodeStatus) -> PlannedNode:
        skip, why = self._explain_skip(node)
        return PlannedNode(node.name, node.state, skip, why)

    def _explain_skip(self, node: NodeStatus) -> tuple[str, str]:
        if node.name in self.excluded:
            return EXCLUDED, f"`slurm.exclude` of the profile names {node.name}"
        if not self.constraint.allows(node.features):
            return OTHER_FEATURES, self._explain_features(node)
        return ("", "") if self.usable.fullmatch(node.state) else (name_group(node), node.why)

    def _explain_features(self, node: NodeStatus) -> str:
        if self.constraint.is_plain:
            lacks = " and ".join(sorted(self.constraint.names.difference(node.features)))
            return f"{node.name} lacks {lacks}, which `slurm.constraint` asks for"
        has = ", ".join(node.features) or "no features"
        return f"{node.name} has {has}; `slurm.constraint` asks for {self.constraint.text}"


def remark_constraint(options: Mapping[str, Any]) -> str:
    """What a screen says of a constraint that it does not understand; empty of any other."""
    constraint = NodeConstraint.parse(str(options.get("constraint") or ""))
    if constraint.is_understood:
        return ""
    return (
        f"`slurm.constraint: {sanitize_line(constraint.text)}` has none of the forms that sbatch "
        "documents: nodes of any features are screened"
    )


def name_group(node: NodeStatus) -> str:
    """In a word, why a node takes no job now."""
    return next((word for word, form in _GROUPS if form.search(node.state)), BUSY)
