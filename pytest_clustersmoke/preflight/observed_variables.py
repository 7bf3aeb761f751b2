"""Remarks about environment variables after the job, from what the nodes saw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from ..config.phase import Phase
from ..config.profile import Profile
from ..evidence.interfaces import read_nccl_conf_files, read_node_variables
from ..evidence.job_results import NodeResult
from ..evidence.phase_result import PhaseResult, find_unmatched_interfaces, used_only_gloo
from ..evidence.variable_names import filter_variables, is_read, show_value
from ..text import NOTE, WARNING, Problem, shorten
from .variable_remarks import (
    SHELL,
    PhaseContext,
    keep_out,
    remark_on_contradictions,
    remark_on_plan,
    remark_on_profile,
    remark_on_variable,
)

MAX_NAMED = 4


def remark_on_job(
    result: PhaseResult, phase: Phase, profile: Profile, environ: Mapping[str, str]
) -> list[Problem]:
    """Remarks after the job. If no node recorded its variables: the remarks before the job."""
    context = PhaseContext(phase, profile, ran_gloo=used_only_gloo(result))
    nodes = [node for node in result.nodes if isinstance(node.facts.get("variables"), dict)]
    if not nodes:
        return remark_on_plan(phase, profile, environ)
    remarks = remark_on_profile(context)
    observed = [(_name(node), _other_variables(context, node)) for node in nodes]
    for name in sorted({name for _, values in observed for name in values}):
        remarks += _remark_on_name(context, name, observed, environ)
    remarks += _remark_on_conf_files(context, nodes)
    remarks += _remark_on_contradictions(context, result, nodes)
    remarks += _remark_on_interfaces(context, result, environ)
    return list(dict.fromkeys(remarks))


def _name(node: NodeResult) -> str:
    return show_value(node.name)


def _other_variables(context: PhaseContext, node: NodeResult) -> dict[str, str]:
    """Variables that a node saw but neither the profile nor the launcher set."""
    decided = {*context.phase.env_set, *context.launchers}
    return {
        name: value
        for name, value in filter_variables(node.facts["variables"]).items()
        if name not in decided
    }


Observed = Sequence[tuple[str, Mapping[str, str]]]


def _remark_on_name(
    context: PhaseContext, name: str, observed: Observed, environ: Mapping[str, str]
) -> Iterator[Problem]:
    """Remarks about one variable that the profile does not set."""
    holders: dict[str | None, list[str]] = {}
    for node, values in observed:  # two nodes can have the same name
        holders.setdefault(values.get(name), []).append(node)
    if len(holders) > 1:
        values_on = "; ".join(
            f"{'not set' if value is None else show_value(value)} on "
            f"{_name_nodes(nodes, len(observed))}"
            for value, nodes in holders.items()
        )
        yield context.remark(
            name, WARNING, "the nodes", f"{name} differs between nodes: {values_on}"
        )
    ours = filter_variables(environ).get(name)
    for value, nodes in holders.items():
        if value is None:
            continue
        where = _name_nodes(nodes, len(observed))
        if value == ours:
            source, severity, todo = SHELL, WARNING, keep_out(name)
            what = f"{name}={show_value(value)} reached {where}, but the profile does not set it"
        else:
            source, severity, todo = where, NOTE, ""
            what = f"{name}={show_value(value)} was set by `setup` or a start-up file"
        if is_read(name):
            yield context.remark(name, severity, source, what, todo)
        yield from remark_on_variable(context, name, value, source)


def _remark_on_conf_files(context: PhaseContext, nodes: Sequence[NodeResult]) -> Iterator[Problem]:
    """Remarks about what NCCL's configuration files set and the environment does not."""
    holders: dict[tuple[str, str, str], list[str]] = {}
    for node in nodes:
        known = {*filter_variables(node.facts["variables"]), *context.launchers}
        for path, values in read_nccl_conf_files(node.facts).items():
            for name, value in values.items():
                if name not in known:
                    known.add(name)
                    holders.setdefault((name, value, path), []).append(_name(node))
    for (name, value, path), names in sorted(holders.items()):
        source = f"{path} on {_name_nodes(names, len(nodes))}"
        yield context.remark(
            name, NOTE, source, f"NCCL takes {name}={show_value(value)} from this file"
        )
        yield from remark_on_variable(context, name, value, source)


def _remark_on_contradictions(
    context: PhaseContext, result: PhaseResult, nodes: Sequence[NodeResult]
) -> Iterator[Problem]:
    """Contradictions on the nodes, each once with its nodes."""
    holders: dict[Problem, list[str]] = {}
    for node in nodes:
        for remark in remark_on_contradictions(
            context, read_node_variables(node.facts, result.spec), ""
        ):
            holders.setdefault(remark, []).append(_name(node))
    for remark, names in holders.items():
        yield replace(remark, where=_name_nodes(names, len(nodes)))


def _remark_on_interfaces(
    context: PhaseContext, result: PhaseResult, environ: Mapping[str, str]
) -> Iterator[Problem]:
    """Report pinned interfaces that nodes do not have; nodes with equal ones share a remark."""
    ours = context.inherited(environ)
    keyed = [
        (
            (mismatch.name, mismatch.value, mismatch.source, mismatch.why, mismatch.has),
            mismatch.node,
        )
        for mismatch in find_unmatched_interfaces(result)
    ]
    for (name, value, source, why, has), pairs in groupby(sorted(keyed), lambda pair: pair[0]):
        nodes = _name_nodes((node for _, node in pairs), len(result.nodes))
        written = context.phase.env_set.get(name)
        if written is not None:
            source = written.source
        elif show_value(ours.get(name, "")) == value:
            source = SHELL
        text = f"on {nodes} {name}={value} {why}; {has}"
        yield context.remark(name, WARNING, source, text)


def _name_nodes(nodes: Iterable[str], of: int) -> str:
    """The names of nodes; a long list is cut."""
    names = list(nodes)
    if len(names) == of > 1:
        return "every node"
    return shorten(names, MAX_NAMED)
