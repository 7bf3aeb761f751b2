"""What is to be said of the variables once the nodes have told which they saw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from ..config.phase import Phase
from ..config.profile import Profile
from ..evidence.interfaces import conf_files, node_variables, only_gloo, unmatched_interfaces
from ..evidence.job_results import NodeResult
from ..evidence.phase_result import PhaseResult
from ..evidence.variable_names import of_families, shown
from ..text import shorten
from .variable_remarks import (
    NOTE,
    SHELL,
    WARNING,
    Remark,
    Scene,
    contradicted,
    is_read,
    of_profile,
    of_variable,
    planned,
)

MAX_NAMED = 4


def seen(
    result: PhaseResult, phase: Phase, profile: Profile, environ: Mapping[str, str]
) -> list[Remark]:
    """What can be said after the job. Where no node told of its variables: what was before it."""
    scene = Scene(phase, profile, ran_gloo=only_gloo(result))
    nodes = [node for node in result.nodes if isinstance(node.facts.get("variables"), dict)]
    if not nodes:
        return planned(phase, profile, environ)
    found = of_profile(scene)
    others = [(_name(node), _others(scene, node)) for node in nodes]
    for name in sorted({name for _, values in others for name in values}):
        found += _of_name(scene, name, others, environ)
    found += _of_conf_files(scene, nodes)
    found += _contradicted(scene, result, nodes)
    found += _unmatched(scene, result, environ)
    return list(dict.fromkeys(found))


def _name(node: NodeResult) -> str:
    return shown(node.name)


def _others(scene: Scene, node: NodeResult) -> dict[str, str]:
    """The variables that a node saw and that neither the profile nor the launcher set."""
    kept = {*scene.phase.env_set, *scene.launchers}
    return {
        name: value
        for name, value in of_families(node.facts["variables"]).items()
        if name not in kept
    }


Told = Sequence[tuple[str, Mapping[str, str]]]


def _of_name(scene: Scene, name: str, others: Told, environ: Mapping[str, str]) -> Iterator[Remark]:
    """What can be said of one variable which the profile does not set."""
    holders: dict[str | None, list[str]] = {}
    for node, values in others:  # two nodes can carry one name
        holders.setdefault(values.get(name), []).append(node)
    if len(holders) > 1:
        told = "; ".join(
            f"{'not set' if value is None else shown(value)} on {_listed(nodes, len(others))}"
            for value, nodes in holders.items()
        )
        yield scene.remark(name, WARNING, "the nodes", f"{name} differs between nodes: {told}")
    ours = of_families(environ).get(name)
    for value, nodes in holders.items():
        if value is None:
            continue
        where = _listed(nodes, len(others))
        if value == ours:
            source, severity = SHELL, WARNING
            text = (
                f"{name}={shown(value)} reached {where}, but the profile does not set it; "
                f"`env.common.unset: [{name}]` keeps it out"
            )
        else:
            source, severity = where, NOTE
            text = f"{name}={shown(value)} was set by `setup` or a start-up file"
        if is_read(name):
            yield scene.remark(name, severity, source, text)
        yield from of_variable(scene, name, value, source)


def _of_conf_files(scene: Scene, nodes: Sequence[NodeResult]) -> Iterator[Remark]:
    """What NCCL's own configuration files set where the environment does not."""
    holders: dict[tuple[str, str, str], list[str]] = {}
    for node in nodes:
        known = {*of_families(node.facts["variables"]), *scene.launchers}
        for path, values in conf_files(node.facts).items():
            for name, value in values.items():
                if name not in known:
                    known.add(name)
                    holders.setdefault((name, value, path), []).append(_name(node))
    for (name, value, path), names in sorted(holders.items()):
        source = f"{path} on {_listed(names, len(nodes))}"
        yield scene.remark(name, NOTE, source, f"NCCL takes {name}={shown(value)} from this file")
        yield from of_variable(scene, name, value, source)


def _contradicted(
    scene: Scene, result: PhaseResult, nodes: Sequence[NodeResult]
) -> Iterator[Remark]:
    """Contradictions on the nodes, each once with the nodes that have it."""
    holders: dict[Remark, list[str]] = {}
    for node in nodes:
        for remark in contradicted(scene, node_variables(node.facts, result.spec), ""):
            holders.setdefault(remark, []).append(_name(node))
    for remark, names in holders.items():
        source = _listed(names, len(nodes))
        yield Remark(remark.name, remark.severity, source, remark.text)


def _unmatched(scene: Scene, result: PhaseResult, environ: Mapping[str, str]) -> Iterator[Remark]:
    """Pinned interfaces that nodes do not have; nodes with the same ones are told together."""
    ours = scene.inherited(environ)
    keyed = [
        ((one.name, one.value, one.source, one.why, one.has), one.node)
        for one in unmatched_interfaces(result)
    ]
    for (name, value, source, why, has), pairs in groupby(sorted(keyed), lambda pair: pair[0]):
        nodes = _listed((node for _, node in pairs), len(result.nodes))
        written = scene.phase.env_set.get(name)
        if written is not None:
            source = written.source
        elif shown(ours.get(name, "")) == value:
            source = SHELL
        text = f"on {nodes} {name}={value} {why}; {has}"
        yield scene.remark(name, WARNING, source, text)


def _listed(nodes: Iterable[str], of: int) -> str:
    """Some nodes in words: their names, of many the first."""
    names = list(nodes)
    if len(names) == of > 1:
        return "every node"
    return shorten(names, MAX_NAMED)
