"""Judges the nodes of a screen from their answers: each alone, and against the others.

A job copes with some causes, which are warnings there: it falls back to another directory, or runs
with two drivers. Of a screen they are failures, where fewer than half of the nodes have them: the
question is which nodes are not as the others. What most nodes share is the cluster's setting, and
stays a warning.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..evidence.finding import UNDECIDED, Finding
from ..evidence.node_observation import DAMAGE, DEFINITE
from ..evidence.screen_files import NodeAnswer
from ..node.checks import BETWEEN_NODES, ON_A_NODE
from ..node.checks.gpu_checks import list_unseen, uses_gpus
from ..node.checks.interface_checks import compares_links
from ..node.checks.node_values import Node
from ..node.checks.rdma_checks import expects_infiniband
from ..text import FAILURE
from .peer_judge import CPU_FACTOR, judge_by_factor

CPU = "cpu"
CHECKS = (*ON_A_NODE, *BETWEEN_NODES, CPU)
# The warnings of a job that disqualify a node, by their findings' ids.
ODD = frozenset(
    {
        *("tmp-not-writable", "tmp-full", "build-directory-not-writable", "shm-small"),
        *("driver-differs", "gpu-model-differs", "memlock-limit", "open-files-limit"),
        *("interface-down", "interface-missing", "rdma-port-down", "rdma-port-slow"),
    }
)
FEWEST_CPUS = 3  # nodes without which no core is compared with others
# The part of the facts that each check reads (node/node_facts.py): without it, it is not judged.
# `system` fails for every part that no check is named for: a node on which one hangs is not fit.
PARTS = {
    "gpus": "gpus",
    "gpu_model": "gpus",
    "driver": "gpus",
    "system": "directories",
    "versions": "packages",
    "interfaces": "network",
    "rdma": "network",
}
CheckResult = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class CheckJudgement:
    """What one check says of one node. A check that passed may have warnings as its text; `id` is
    that of the gravest finding if it failed. `open` are the kinds of findings that it did not rule
    out: those of warnings, and those that the node did not show."""

    result: CheckResult
    text: str = ""
    id: str = ""
    fix: str = ""
    severity: str = ""
    open: frozenset[str] = frozenset()

    @property
    def is_definite(self) -> bool:
        """Whether it needs no second piece of evidence."""
        return self.id in DEFINITE | DAMAGE and self.severity == FAILURE


def judge_screen(
    answers: Sequence[NodeAnswer],
    spec: Mapping[str, Any],
    path_of: Callable[[str], Path] | None = None,
) -> dict[str, dict[str, CheckJudgement]]:
    """By node and check, what the nodes' answers show."""
    nodes = [
        Node(rank, answer.node, answer.facts, path_of and path_of(answer.node))
        for rank, answer in enumerate(answers)
    ]
    spec = _settle_device(nodes, spec)
    findings = _find_all(nodes, spec)
    odd = _find_odd(findings, len(nodes))
    speeds = _judge_cores(answers)
    unseen = frozenset[str]() if compares_links(nodes) else frozenset({"interface-down"})
    judged: dict[str, dict[str, CheckJudgement]] = {}
    for answer, node in zip(answers, nodes, strict=True):
        by_check = {
            name: _judge_check(name, answer, findings.get((answer.node, name), ()), odd)
            or _explain_skip(name, node, nodes, spec)
            or _pass_check(name, node, unseen, findings.get((answer.node, name), ()))
            for name in (*ON_A_NODE, *BETWEEN_NODES)
        }
        judged[answer.node] = {**by_check, CPU: speeds[answer.node]}
    return judged


def _settle_device(nodes: Sequence[Node], spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """With `auto` the ranks of a node that lost a GPU train on its cores. Where any node has enough
    GPUs, all must: otherwise nothing would be said of those that the node has lost."""
    has_gpus = spec.get("device") == "auto" and any(uses_gpus(node, spec) for node in nodes)
    return {**spec, "device": "cuda"} if has_gpus else spec


Found = Mapping[tuple[str, str], Sequence[Finding]]
NO_INFINIBAND = (
    "InfiniBand is not expected between nodes: `hardware.interconnect` does not name it, or NCCL's "
    "variables turn it off"
)


def _find_all(nodes: Sequence[Node], spec: Mapping[str, Any]) -> Found:
    """The findings by node and check."""
    found: defaultdict[tuple[str, str], list[Finding]] = defaultdict(list)
    for name, check in ON_A_NODE.items():
        for node in nodes:
            found[node.name, name] += check(node, spec)
    for name, compare in BETWEEN_NODES.items():
        for finding in compare(nodes, spec):
            for host in finding.hosts:
                found[host, name].append(finding)
    return found


def _find_odd(findings: Found, count: int) -> set[tuple[str, str]]:
    """The pairs of node and finding's id among ODD that fewer than half of the nodes have."""
    having: defaultdict[str, set[str]] = defaultdict(set)
    for (node, _), listed in findings.items():
        for finding in listed:
            having[finding.id].add(node)
    rare = [name for name in ODD if 2 * len(having[name]) < count]
    return {(node, name) for name in rare for node in having[name]}


def _judge_check(
    name: str, answer: NodeAnswer, findings: Sequence[Finding], odd: set[tuple[str, str]]
) -> CheckJudgement | None:
    """The failure of a check, also one that the node found itself, or that hung there. Where no
    value is that of most nodes, none of them is to blame."""
    bad = [
        found
        for found in findings
        if (found.severity == FAILURE or (answer.node, found.id) in odd)
        and not found.detail.get(UNDECIDED)
    ]
    if bad:
        bad.sort(key=lambda found: (found.severity != FAILURE, found.id not in DEFINITE | DAMAGE))
        fixes = "; ".join(dict.fromkeys(found.fix for found in bad))
        causes = "; ".join(found.cause for found in bad)
        return CheckJudgement("failed", causes, bad[0].id, fixes, bad[0].severity)
    if own := answer.found.get(name):
        return CheckJudgement("failed", own, name)
    hung = [
        f"its facts ({part}) gave {why}" for part, why in answer.cut.items() if _reads(name, part)
    ]
    return CheckJudgement("failed", "; ".join(hung), "part-hung") if hung else None


def _reads(name: str, part: str) -> bool:
    """Whether a check reads this part of the facts; `system` stands for what no check reads."""
    return PARTS[name] == part or (name == "system" and part not in PARTS.values())


def _pass_check(
    name: str, node: Node, unseen_links: frozenset[str], findings: Sequence[Finding]
) -> CheckJudgement:
    """`unseen_links`: what the check of interfaces could not rule out on any node."""
    warnings = "; ".join(f"warning: {found.cause}" for found in findings)
    unseen = frozenset[str]()
    if name == "gpus":
        unseen = list_unseen(node)
    elif name == "interfaces":
        unseen = unseen_links
    return CheckJudgement("passed", warnings, open=unseen | {found.id for found in findings})


def _explain_skip(
    name: str, node: Node, nodes: Sequence[Node], spec: Mapping[str, Any]
) -> CheckJudgement | None:
    """Why a check does not apply to this node, or did not look at it; None if it did."""
    if name in ("gpus", "gpu_model", "driver") and not uses_gpus(node, spec):
        return CheckJudgement("skipped", "no rank trains on a GPU here (hardware.device)")
    if name in ("gpus", "gpu_model", "driver") and not node.rows("gpus"):
        return CheckJudgement("skipped", "nvidia-smi lists no GPU there")
    if name == "rdma" and not node.rows("rdma_ports"):
        return CheckJudgement("skipped", "the node shows no RDMA port")
    if name == "rdma" and not expects_infiniband(nodes, spec):
        return CheckJudgement("skipped", NO_INFINIBAND)
    if name == "rdma" and not any(other.rows("rdma_ports") for other in nodes if other is not node):
        return CheckJudgement("skipped", "no other node shows an RDMA port")
    return None


def _judge_cores(answers: Sequence[NodeAnswer]) -> dict[str, CheckJudgement]:
    """The CPU time of a fixed piece of work, against the other nodes with the same CPU."""
    by_cpu: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for index, answer in enumerate(answers):
        if answer.work_s:
            by_cpu[answer.cpu][index] = answer.work_s
    judged: dict[str, CheckJudgement] = {}
    for times in by_cpu.values():
        judged |= {answers[at].node: made for at, made in _compare_cores(times)}
    return {answer.node: judged.get(answer.node) or _explain_unmeasured() for answer in answers}


def _compare_cores(times: Mapping[int, float]) -> Iterator[tuple[int, CheckJudgement]]:
    if len(times) < FEWEST_CPUS:
        few = f"fewer than {FEWEST_CPUS} nodes with this CPU answered"
        yield from ((index, CheckJudgement("skipped", few)) for index in times)
        return
    verdict = judge_by_factor(times, CPU_FACTOR)
    for index, own_s in times.items():
        if index not in verdict.slow:
            yield index, CheckJudgement("passed")
            continue
        text = (
            f"a fixed piece of work takes {own_s / verdict.usual_s:.1f} times the CPU time of the "
            f"other nodes ({1e3 * own_s:.2f} ms, usual {1e3 * verdict.usual_s:.2f} ms; from "
            f"{CPU_FACTOR:g} times on a node is slow)"
        )
        fix = "look for throttling, a power cap or other work on the node"
        yield index, CheckJudgement("failed", text, "cpu-slow", fix)


def _explain_unmeasured() -> CheckJudgement:
    return CheckJudgement("skipped", "not measured: the job does not have all cores of the node")
