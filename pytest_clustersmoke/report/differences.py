"""In which facts the nodes of a run differ that should be alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .. import clean

if TYPE_CHECKING:
    from .model import DifferenceRecord, FactsRecord

# Facts of launch.facts that two nodes of one kind have in common.
PLAIN = (
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
MAX_WORDS = 200
MAX_DIFFERENCES = 1000
UNKNOWN = "not told"


def differences(nodes: Iterable[FactsRecord]) -> list[DifferenceRecord]:
    """Every fact that is not the same on all nodes, with the nodes of each value; the value that
    most nodes have first. A node that told no facts at all differs in nothing."""
    told = {node["node"]: dict(facts_of(node["facts"])) for node in nodes if node["facts"]}
    names = sorted({name for facts in told.values() for name in facts})
    found: list[DifferenceRecord] = []
    for name in names:
        by_value: dict[str, list[str]] = defaultdict(list)
        for node, facts in sorted(told.items()):
            by_value[facts.get(name, UNKNOWN)].append(node)
        if len(by_value) > 1:
            ordered = sorted(by_value.items(), key=lambda one: (-len(one[1]), one[0]))
            found.append({"fact": name, "values": dict(ordered)})
        if len(found) == MAX_DIFFERENCES:
            break
    return found


def facts_of(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The facts in which nodes of one kind are alike; those of a wrong type are left out."""
    for name in PLAIN:
        if facts.get(name) is not None:
            yield name, _word(facts[name])
    packages = facts.get("packages")
    for name, version in packages.items() if isinstance(packages, dict) else ():
        yield f"package {_word(name)}", _word(version)
    gpus = facts.get("gpus")
    rows = [one for one in gpus if isinstance(one, dict)] if isinstance(gpus, list) else []
    if rows:
        yield "GPUs", str(len(rows))
        yield "GPU", ", ".join(sorted({_word(one.get("name")) for one in rows}))
        yield "driver", ", ".join(sorted({_word(one.get("driver_version")) for one in rows}))
    ports = facts.get("rdma_ports")
    rows = [one for one in ports if isinstance(one, dict)] if isinstance(ports, list) else []
    if rows:
        yield (
            "RDMA ports",
            ", ".join(sorted(f"{_word(one.get('hca'))} {_word(one.get('rate'))}" for one in rows))[
                :MAX_WORDS
            ],
        )


def _word(value: Any) -> str:
    return clean.line(str(value)[:MAX_WORDS])
