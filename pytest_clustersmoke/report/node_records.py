"""The facts that nodes reported, once per node, and where nodes differ.

A job can write the files of facts: they may be huge, or nested arbitrarily deep.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..config.metrics import show
from ..evidence.phase_result import PhaseResult
from ..evidence.run_record import DifferenceRecord, FactsRecord, PhaseRecord
from ..evidence.screen_files import NodeAnswer
from ..evidence.telemetry import parse_rows
from ..text import sanitize_line

# A node with eight GPUs and ten network cards writes some 10,000 characters, nested four deep.
MAX_CHARACTERS, MAX_FACT, MAX_DEPTH = 2**18, 2**16, 6
CUT = "…"  # starts every text that replaces something left out
# Facts that NodeRecord and FactsRecord hold in fields of their own.
OWN_FIELDS = {"node_rank", "node", "host"}
# Facts of launch.facts that nodes of one kind should have in common.
COMMON = (
    "kernel",
    "python",
    "torch_cuda",
    "cpus_online",
    "cpus_allowed",
    "memory_bytes",
    "dev_shm_bytes",
    "memlock_limit_bytes",
    "open_files_limit",
)
# Facts of GPUs, and nvidia-smi's names of them.
OF_GPUS = {
    "GPU clock limit": "clocks.max.sm",
    "GPU power cap": "power.limit",
    "GPU firmware": "vbios_version",
}
MAX_WORDS = 200
MAX_DIFFERENCES = 1000
UNKNOWN, UNSET = "not reported", "not set"
VARIABLE = "variable "
SIZE = "_bytes"  # what a fact's name ends in that is a size
# Nodes of one kind differ by some pages of memory, which their firmware keeps.
ALIKE = 0.02


@dataclass
class _Node:
    host: str = ""
    by_phase: dict[str, dict[str, Any]] = field(default_factory=dict)


class FactsCollector:
    """The facts of all nodes of a run, gathered phase by phase."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[str, int], _Node] = {}

    def add(self, result: PhaseResult) -> None:
        """Take the facts of a phase's nodes; a phase that never started has none yet. Equal names
        within a phase are different nodes."""
        if not any(node.facts or node.result or node.scheduled for node in result.nodes):
            return
        named: Counter[str] = Counter()
        for reported in result.nodes:
            node = self._nodes.setdefault((reported.name, named[reported.name]), _Node())
            named[reported.name] += 1
            if reported.facts or not node.host:
                node.host = reported.host
            if reported.facts:
                facts = reported.facts.items()
                kept = {name: value for name, value in facts if name not in OWN_FIELDS}
                node.by_phase[result.name] = bound_facts(kept)

    def records(self) -> list[FactsRecord]:
        """Each node once, in the order of the phases."""
        return [_record(name, node) for (name, _), node in self._nodes.items()]


def _record(name: str, node: _Node) -> FactsRecord:
    last = next(reversed(node.by_phase.values()), {})
    earlier = {phase: _differing(facts, last) for phase, facts in node.by_phase.items()}
    return FactsRecord(
        node=name,
        host=node.host,
        phases=list(node.by_phase),
        facts=last,
        earlier={phase: facts for phase, facts in earlier.items() if facts},
    )


def _differing(facts: Mapping[str, Any], last: Mapping[str, Any]) -> dict[str, Any]:
    names = dict.fromkeys([*facts, *last])
    return {name: facts.get(name) for name in names if facts.get(name) != last.get(name)}


def bound_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts; a note replaces those that are too large or too deep."""
    kept: dict[str, Any] = {}
    left = MAX_CHARACTERS
    for count, (name, value) in enumerate(facts.items()):
        if _is_deeper(value, MAX_DEPTH):
            value = f"{CUT} nested deeper than {MAX_DEPTH}"
        size = len(name) + len(json.dumps(value))
        if size > MAX_FACT:
            name, value = name[:MAX_WORDS], f"{CUT} {size} characters"
            size = len(name) + len(value)
        left -= size
        if left < 0:
            kept[CUT] = f"{CUT} {len(facts) - count} more"
            break
        kept[name] = value
    return kept


def _is_deeper(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return bool(inner) and (levels == 0 or any(_is_deeper(item, levels - 1) for item in inner))


def record_facts(answer: NodeAnswer) -> FactsRecord:
    """The facts of a node that answered a screen."""
    facts = bound_facts(answer.facts)
    return FactsRecord(node=answer.node, host=answer.node, phases=[], facts=facts, earlier={})


def list_named(phases: Iterable[PhaseRecord]) -> list[str]:
    """The nodes on which phases ran, each once."""
    return list(dict.fromkeys(n.node for phase in phases for n in phase.nodes if n.is_named))


def find_differences(nodes: Iterable[FactsRecord]) -> list[DifferenceRecord]:
    """Every fact that differs between nodes, with the nodes of each value, the most common value
    first. A node without facts differs in nothing."""
    by_node = {node.node: dict(common_facts(node.facts)) for node in nodes if node.facts}
    names = sorted({name for facts in by_node.values() for name in facts})
    differences: list[DifferenceRecord] = []
    for name in names:
        by_value: dict[str, list[str]] = defaultdict(list)
        for node, facts in sorted(by_node.items()):
            absent = UNSET if name.startswith(VARIABLE) else UNKNOWN
            by_value[facts.get(name, absent)].append(node)
        if len(by_value) > 1:
            values = dict(sorted(by_value.items(), key=lambda pair: (-len(pair[1]), pair[0])))
            values = _merge_sizes(values) if name.endswith(SIZE) else values
            if len(values) > 1:
                differences.append(DifferenceRecord(fact=name, values=values))
    return differences[:MAX_DIFFERENCES]


def _merge_sizes(values: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Sizes with the nodes that have them, those that are all but equal as one: by value, of which
    the first is that of most nodes."""
    merged: dict[str, list[str]] = {}
    for value, nodes in values.items():
        alike = next((kept for kept in merged if _are_alike(kept, value)), value)
        merged[alike] = [*merged.get(alike, ()), *nodes]
    return dict(sorted(merged.items(), key=lambda pair: -len(pair[1])))


def _are_alike(size: str, other: str) -> bool:
    if not (size.isdecimal() and other.isdecimal()):
        return size == other
    return abs(int(size) - int(other)) <= ALIKE * int(size)


def fact_words(value: str, fact: str) -> str:
    """A fact's value as people read it: bytes as GiB."""
    if fact.endswith(SIZE) and value.isdecimal():
        return f"{show(int(value) / 2**30)} GiB"
    return value


def common_facts(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The facts that nodes of one kind should share; values of a wrong type are left out."""
    for name in COMMON:
        if facts.get(name) is not None:
            yield name, _word(facts[name])
    packages = facts.get("packages")
    for name, version in packages.items() if isinstance(packages, dict) else ():
        yield f"package {_word(name)}", _word(version)
    variables = facts.get("variables")
    for name, value in variables.items() if isinstance(variables, dict) else ():
        yield f"{VARIABLE}{_word(name)}", _word(value)
    gpus = parse_rows(facts.get("gpus"))
    if gpus:
        yield "GPUs", str(len(gpus))
        yield "GPU", ", ".join(sorted({_word(gpu.get("name")) for gpu in gpus}))
        yield "driver", ", ".join(sorted({_word(gpu.get("driver_version")) for gpu in gpus}))
        for name, field in OF_GPUS.items():
            if any(gpu.get(field) is not None for gpu in gpus):
                yield name, ", ".join(sorted({_word(gpu.get(field)) for gpu in gpus}))
    ports = parse_rows(facts.get("rdma_ports"))
    if ports:
        rates = sorted(f"{_word(port.get('hca'))} {_word(port.get('rate'))}" for port in ports)
        yield "RDMA ports", ", ".join(rates)[:MAX_WORDS]
        firmware = {_word(port.get("firmware")) for port in ports if port.get("firmware")}
        if firmware:
            yield "RDMA firmware", ", ".join(sorted(firmware))[:MAX_WORDS]


def _word(value: Any) -> str:
    return sanitize_line(str(value)[:MAX_WORDS])
