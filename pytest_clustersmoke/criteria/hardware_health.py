"""The criterion: the hardware of no node counted damage during the phase.

The nodes read the counters of their ports and GPUs before the ranks start and after they end. What
they counted meanwhile is judged with what NCCL's log says of the connections between nodes: the log
says which ports were chosen, the counters say which carried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from ..evidence.finding import Finding
from ..evidence.job_results import NodeResult, RankResult
from ..evidence.measured_peaks import first_attempt, read_peaks
from ..evidence.metric import Unmeasured, WrongDevice, fail
from ..evidence.phase_result import PhaseResult
from ..evidence.run_directory import read_json
from ..evidence.telemetry import parse_rows
from ..evidence.variable_names import show_value
from ..evidence.whole_files import MAX_NODE_BYTES
from ..node.checks.gpu_deltas import check_gpu_deltas
from ..node.checks.node_values import Node
from ..node.checks.rail_checks import check_traffic, read_traffic
from ..node.gpu_facts import share
from ..text import FAILURE, WARNING, plural, shorten
from .outvoted_ranks import check_cross_replay
from .repeated_passes import check_replay
from .training_proofs import identify_device
from .transport_sides import Transports
from .twin_run import check_twin

KIND = "health"
SOCKET = "NET/Socket"
MOST_NAMES = 4
# What shows that a device computes wrongly while it trains.
PROOFS: dict[Callable[[PhaseResult], None], str] = {
    check_replay: "a proven step, repeated by the same rank, gave other gradients",
    check_cross_replay: "two other ranks, repeating its pass, got other gradients than it",
    check_twin: "the training, repeated from the same state, gave other numbers",
}
WHEN = {"before": "before the ranks started", "after": "after the ranks had ended"}
Reading = dict[str, dict[str, object]]  # `before` and `after`


def check_health(phase: PhaseResult) -> None:
    """Fail, naming the nodes whose hardware counted damage; unmeasured if a node lacks a reading
    of a device that it shows. Skipped where no node shows a GPU's driver or an RDMA port."""
    __tracebackhide__ = True
    if damage := [found for found in find_damage(phase) if found.severity == FAILURE]:
        phase.judged.add(KIND)
        fail("\n".join(f"{', '.join(found.hosts)}: {found.cause}" for found in damage))
    readings = _read_health(phase)
    for node in phase.nodes:
        reading = readings[node.node_rank]
        if why := _explain_missing(reading, _shows_driver(phase, node)):
            raise Unmeasured(KIND, f"{node.name} {why}")
    if not any(reading["after"].get(k) for reading in readings.values() for k in ("ports", "gpus")):
        pytest.skip("its nodes show no counters of RDMA ports or GPUs")
    phase.judged.add(KIND)


def _shows_driver(phase: PhaseResult, node: NodeResult) -> bool:
    """Whether the node should have read the counters of GPUs."""
    return phase.spec.get("device") != "cpu" and node.facts.get("gpu_driver") is True


def _explain_missing(reading: Reading, has_driver: bool) -> str:
    """What a node did not read of its devices; empty if it read all of them twice."""
    for when, words in WHEN.items():
        if when not in reading:
            return f"read no counters {words}"
        if has_driver and not parse_rows(reading[when].get("gpus")):
            return f"read no counters of its GPUs {words}; expected the package nvidia-ml-py there"
    before, after = (_list_devices(reading[when]) for when in WHEN)
    counted = {name for name, is_counted in before.items() if is_counted and after.get(name)}
    if missing := sorted({*before, *after} - counted):
        return f"did not read counters of {shorten(missing, MOST_NAMES)} twice"
    return ""


def _list_devices(reading: dict[str, object]) -> dict[str, bool]:
    """The ports and GPUs of a reading, and whether it has a counter of them."""
    ports, gpus = (parse_rows(reading.get(kind)) for kind in ("ports", "gpus"))
    names = (show_value(f"{port.get('hca')}:{port.get('port')}") for port in ports)
    return {
        **dict(zip(names, (bool(port.get("counters")) for port in ports), strict=True)),
        **{show_value(str(gpu.get("uuid"))): len(gpu) > 1 for gpu in gpus},
    }


def find_damage(phase: PhaseResult) -> list[Finding]:
    """What the hardware of the nodes counted: damage is a failure, the rest a warning."""
    readings = _read_health(phase)
    nodes = {node.node_rank: _node(phase, node) for node in phase.nodes}
    found = [
        finding
        for number, reading in readings.items()
        for finding in check_gpu_deltas(nodes[number], reading, _gpus_of(phase, nodes[number]))
    ]
    connections, sockets = _connections(phase, readings)
    traffic = [
        read
        for number, reading in readings.items()
        if (read := read_traffic(nodes[number], reading, connections[number], number in sockets))
    ]
    return [*found, *check_traffic(traffic)]


def _gpus_of(phase: PhaseResult, node: Node) -> set[str]:
    """The UUIDs of the job's GPUs on a node: those of its ranks, or else those that the job was
    given. Empty if they are not known."""
    uuids = {rank.gpu_uuid for rank in phase.ranks if rank.node == node.name and rank.gpu_uuid}
    ours = share(node.facts)
    given = ours.gpus if ours is not None and ours.exact else []
    return uuids or {gpu["uuid"] for gpu in given if "uuid" in gpu}


def warn_of_devices(phase: PhaseResult) -> list[Finding]:
    """Findings about the hardware for a job's list: its outcome is another matter, and criteria
    fail for damage."""
    wrong = [
        Finding(
            "device-wrong-answer",
            f"{peak.rank}: {peak.rank.gpu_uuid or peak.device} gave another answer in {peak.wrong} "
            f"of {plural(peak.calls, 'equal multiplication')} before the training",
            "take the device out of service, and repeat the phase without its node",
            hosts=(peak.rank.node,),
            ranks=(peak.rank.rank,),
        )
        for peak in read_peaks(first_attempt(phase).ranks)
        if peak.wrong
    ]
    found = (*wrong, *_find_wrong_devices(phase), *find_damage(phase))
    return [replace(each, severity=WARNING, primary=False) for each in found]


def _find_wrong_devices(phase: PhaseResult) -> list[Finding]:
    """One for each rank, by the first of its criteria that accuses its device, in any attempt."""
    accused: dict[int, tuple[RankResult, str]] = {}
    for attempt in (*phase.earlier, phase):
        for check, words in PROOFS.items():
            try:
                check(replace(attempt, judged=set()))
            except WrongDevice as wrong:
                for rank in wrong.ranks:
                    accused.setdefault(rank, (attempt.ranks[rank], words))
            except (AssertionError, pytest.skip.Exception):
                continue  # its records accuse no device, or are not whole
    return [
        Finding(
            "device-computes-wrongly",
            f"{identify_device(rank)} computes wrongly: {words}",
            "take the device out of service and test it (dcgmi diag -r 3)",
            hosts=(rank.node,),
            ranks=(number,),
        )
        for number, (rank, words) in sorted(accused.items())
    ]


def _read_health(phase: PhaseResult) -> dict[int, Reading]:
    """Node rank -> its readings; a reading that is not whole is left out."""
    found = {}
    for node in phase.nodes:
        read = read_json(phase.directory.node_health(node.node_rank), MAX_NODE_BYTES) or {}
        found[node.node_rank] = {
            when: read[when] for when in ("before", "after") if isinstance(read.get(when), dict)
        }
    return found


def _node(phase: PhaseResult, node: NodeResult) -> Node:
    path = phase.directory.node_health(node.node_rank)
    return Node(node.node_rank, node.name, node.facts, path)


def _connections(
    phase: PhaseResult, readings: dict[int, Reading]
) -> tuple[dict[int, Counter[str]], set[int]]:
    """Node -> HCA -> NCCL's connections to other nodes; and the nodes with some over sockets. Of
    several cards under one name nothing is known."""
    chosen: dict[int, Counter[str]] = {number: Counter() for number in readings}
    sockets: set[int] = set()
    if len(phase.nodes) < 2 or phase.backends != {"nccl"} or not _has_ports(readings.values()):
        return chosen, sockets
    transports = Transports(phase)
    for link in transports.inter_node.links():
        number = transports.nodes[link.ends[0]]
        if number in chosen and link.transport.kind.startswith(SOCKET):
            sockets.add(number)
        elif number in chosen and link.edge.nic:
            chosen[number][link.edge.nic.partition(":")[0]] += max(1, len(link.edge.channels))
    merged = {number for number, nics in chosen.items() if any("+" in nic for nic in nics)}
    return {number: Counter() if number in merged else n for number, n in chosen.items()}, sockets


def _has_ports(readings: Iterable[Reading]) -> bool:
    return any(reading.get("after", {}).get("ports") for reading in readings)
