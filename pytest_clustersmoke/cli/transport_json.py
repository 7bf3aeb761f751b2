"""The transports of a job as one JSON object, for programs.

docs/reference/transports.md documents every key; an unknown value is null.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from ..evidence.nccl.nccl_log import Communicator, Member, NcclProcess, Where
from .job_transports import JobTransports, hosts_of
from .links import Link
from .placement import Placement

SCHEMA = 1


def json_lines(job: JobTransports) -> Iterator[str]:
    """The lines of the object, broken so that people can read them as well."""
    return _lines(_record(job))


def _lines(value: Any, start: str = "") -> Iterator[str]:
    """A value as JSON. A `map` becomes a list; its items are made as they are written, since a job
    may have millions of edges."""
    if isinstance(value, map):
        yield start + "["
        for number, item in enumerate(value):
            yield from _lines(item, " ," if number else " ")
        yield "]"
    elif isinstance(value, dict) and "edges" in value:
        yield start + "{"
        for number, (key, item) in enumerate(value.items()):
            yield from _lines(item, f'{"," if number else ""}"{key}": ')
        yield "}"
    else:
        yield start + json.dumps(value)


def _record(job: JobTransports) -> dict[str, Any]:
    log = job.log
    return {
        "schema": SCHEMA,
        "version": log.version,
        "communicators": map(partial(_communicator, job), log.communicators),
        "edges": map(_edge, job.merged()),
        "asymmetric": job.asymmetric,
        "collnet": _collnet(job),
        "networks": [
            {"network": name, "hosts": hosts_of(processes), "processes": len(processes)}
            for name, processes in job.networks.items()
        ],
        "without_ib": sorted({process.host for process in log.without_ib}),
        "warnings": [
            {
                "text": warn.text,
                "source": warn.source,
                "function": warn.function,
                **_process_keys(warn.process),
                **_place_keys(warn.where),
                "count": warn.count,
            }
            for warn in log.warnings
        ],
        "torn": {"count": log.torn_count, "places": [_place_keys(where) for where in log.torn]},
        "unreadable": [{"file": name, "reason": reason} for name, reason in job.unreadable],
        "files": job.files,
    }


def _communicator(job: JobTransports, communicator: Communicator) -> dict[str, Any]:
    placement = job.placements[communicator.index]
    processes = set(placement.processes.values())
    networks = {name for process in processes for name in job.log.networks.get(process, ())}
    ranks = sorted({*communicator.members, *placement.processes})
    return {
        "index": communicator.index,
        "id": communicator.id,
        "ranks": communicator.ranks,
        "nodes": job.nodes(communicator),
        "complete": communicator.complete,
        "version": job.log.version if len(job.log.versions) == 1 else None,
        "nvls": communicator.nvls,
        "collnet": any(c.logger in processes for c in job.log.collnet) if processes else None,
        "networks": sorted(networks),
        "members": [_member(rank, communicator.members.get(rank), placement) for rank in ranks],
        "edges": map(_edge, job.of(communicator)),
    }


def _member(rank: int, member: Member | None, placement: Placement) -> dict[str, Any]:
    member = member or Member(None)
    return {
        "rank": rank,
        **_process_keys(placement.processes.get(rank)),
        "cuda_device": member.cuda_device,
        "nvml_device": member.nvml_device,
        "bus_id": member.bus_id,
        "local_rank": member.local_rank,
        # None if no line of its init was logged.
        "complete": member.complete if member.complete or member.started else None,
    }


def _edge(link: Link) -> dict[str, Any]:
    source, destination = link.ends
    transport = link.transport
    return {
        "src": link.source,
        "dst": link.destination,
        "transport": link.wording,
        "kind": transport.kind,
        "placement": link.placement,
        "hosts": {
            "src": source.host if source else None,
            "dst": destination.host if destination else None,
        },
        "channels": link.channels,
        "connections": link.connections,
        "net": transport.net,
        "device": transport.device,
        "nics": link.nics,
        "src_nics": link.sender_nics,
        "dst_nics": link.receiver_nics,
        "gdrdma": transport.gdrdma,
        "pxn_proxy": transport.pxn_proxy,
        "shared": transport.shared,
        "roles": link.roles,
        "asymmetric": link.asymmetric,
        "communicators": link.communicators,
        "communicators_certain": link.certain,
        **_place_keys(link.where),
    }


def _collnet(job: JobTransports) -> list[dict[str, Any]]:
    return [
        {
            "rank": connection.rank,
            "transport": connection.wording,
            "kind": connection.kind,
            "role": connection.role,
            "channels": connection.channels,
            "nic": connection.nic,
            **_process_keys(connection.logger),
            **_place_keys(connection.where),
        }
        for connection in job.log.collnet
    ]


def _process_keys(process: NcclProcess | None) -> dict[str, Any]:
    if process is None:
        return {"host": None, "pid": None}
    return {"host": process.host, "pid": int(process.pid) if process.pid.isdigit() else None}


def _place_keys(where: Where) -> dict[str, Any]:
    return {"file": where.file, "line": where.line}
