"""Checks that versions, driver and GPU model are the same on all nodes of a job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...evidence.finding import UNDECIDED, Finding
from ...evidence.gpu_model import ANY_GPU
from ...evidence.variable_names import show_value
from ...text import FAILURE, WARNING
from ..gpu_facts import share
from .gpu_checks import uses_gpus
from .node_values import Node, most_common, shorten_names

ABSENT = "not installed"
SAME_ENVIRONMENT = (
    "use the same environment on every node: check that the profile's `setup` and `python` lead to "
    "one installation that all nodes share, or to equal ones"
)


def check_versions(nodes: Sequence[Node], spec: Mapping[str, Any]) -> Iterator[Finding]:
    """Python and packages. Nodes that differ from most are named, with every difference."""
    installed = {
        node.rank: _installed(node) for node in nodes if node.mapping("packages") is not None
    }
    names = sorted({name for versions in installed.values() for name in versions})
    packages = {name for node in nodes for name in node.mapping("packages") or {}}
    odd: dict[int, list[str]] = defaultdict(list)
    for name in names:
        default = ABSENT if name in packages else None
        values = {rank: versions.get(name, default) for rank, versions in installed.items()}
        known = {rank: value for rank, value in values.items() if value is not None}
        if len(set(known.values())) < 2:
            continue
        common = most_common(known.values())
        if common is None:
            yield from _undecided("versions-differ", name, known, nodes)
            continue
        for rank, value in known.items():
            if value != common:
                odd[rank].append(f"{name} {value} (most common: {common})")
    by_rank = {node.rank: node for node in nodes}
    for rank, words in odd.items():
        cause = f"versions differ from those on other nodes: {shorten_names(words)}"
        yield by_rank[rank].build_finding("versions-differ", cause, SAME_ENVIRONMENT, "packages")


def _installed(node: Node) -> dict[str, str]:
    packages = {
        show_value(str(k)): show_value(str(v)) for k, v in (node.mapping("packages") or {}).items()
    }
    others = {"python": node.text("python"), "torch's CUDA": node.text("torch_cuda")}
    return packages | {name: value for name, value in others.items() if value is not None}


def check_drivers(nodes: Sequence[Node], spec: Mapping[str, Any]) -> Iterator[Finding]:
    """A warning only: nodes differ during a rolling upgrade, and NCCL copes with that."""
    known = {
        node.rank: show_value(gpus[0]["driver_version"])
        for node in nodes
        if uses_gpus(node, spec) and (gpus := node.rows("gpus")) and "driver_version" in gpus[0]
    }
    fix = "install the same driver on all nodes of a job, or choose nodes that have it"
    yield from _differing("driver-differs", "the GPUs' driver", known, nodes, fix)


def check_models(nodes: Sequence[Node], spec: Mapping[str, Any]) -> Iterator[Finding]:
    """A warning, and only if the profile names no model; otherwise each node is checked for it."""
    if spec.get("gpu") not in ANY_GPU:
        return
    known = {}
    for node in nodes:
        ours = share(node.facts)
        if uses_gpus(node, spec) and ours is not None and ours.exact and ours.gpus:
            models = sorted({show_value(str(gpu.get("name"))) for gpu in ours.gpus})
            known[node.rank] = " and ".join(models)
    fix = "choose nodes with the same GPU: the slowest one holds up all others"
    yield from _differing("gpu-model-differs", "the GPU model", known, nodes, fix)


def _differing(
    identity: str, subject: str, known: Mapping[int, str], nodes: Sequence[Node], fix: str
) -> Iterator[Finding]:
    if len(set(known.values())) < 2:
        return
    common = most_common(known.values())
    if common is None:
        yield from _undecided(identity, subject, known, nodes, fix, "gpus", WARNING)
        return
    for node in nodes:
        value = known.get(node.rank, common)
        if value != common:
            cause = f"{subject} is {value}; most nodes of the job have {common}"
            yield node.build_finding(identity, cause, fix, "gpus", WARNING)


def _undecided(
    identity: str,
    subject: str,
    known: Mapping[int, str],
    nodes: Sequence[Node],
    fix: str = SAME_ENVIRONMENT,
    fact: str = "packages",
    severity: str = FAILURE,
) -> Iterator[Finding]:
    """Without a majority all nodes are named, since either value may be the wrong one."""
    differing = [node for node in nodes if node.rank in known]
    by_value: dict[str, list[str]] = defaultdict(list)
    for node in differing:
        by_value[known[node.rank]].append(node.name)
    values = "; ".join(f"{value} on {shorten_names(on)}" for value, on in sorted(by_value.items()))
    for node in differing:
        cause = f"{subject} differs: {values}"
        yield node.build_finding(identity, cause, fix, fact, severity, **{UNDECIDED: True})
