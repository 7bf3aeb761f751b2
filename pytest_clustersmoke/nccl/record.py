"""The transports of a job as one JSON object, for programs; docs/transports.md has every key.

Numbers are numbers; what is not known is null. Edges, which may be millions, are made as they are
written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from .job import Job
from .links import Link
from .model import Communicator, Member, NcclProcess, Where, transport
from .placement import Node, Placement

SCHEMA = 1
MANY = 2**14
CHANNELS, ASYMMETRIC = Link._fields.index("channels"), Link._fields.index("asymmetric")
ENCODE = json.JSONEncoder(allow_nan=False).encode


def json_lines(job: Job) -> Iterator[str]:
    """The object, a line for each edge, member and warning, so that people can read it, too."""
    yield from _value("", _record(job), 0)


def _record(job: Job) -> dict[str, Any]:
    log = job.log
    return {
        "schema": SCHEMA,
        "version": log.version,
        "communicators": [_communicator(job, one) for one in log.communicators],
        "edges": map(_edge, job.merged()),
        "asymmetric": [list(pair) for pair in job.asymmetric],
        "collnet": _collnet(job),
        "networks": networks(job),
        "without_ib": sorted({process.host for process in log.without_ib}),
        "warnings": [
            {
                "text": warn.text,
                "source": warn.source,
                "function": warn.function,
                **_who(warn.process),
                **_where(warn.where),
                "count": warn.count,
            }
            for warn in log.warnings
        ],
        "torn": {"count": log.torn_count, "places": [_where(where) for where in log.torn]},
        "unreadable": [{"file": name, "reason": reason} for name, reason in job.unreadable],
        "files": list(job.files),
    }


def _value(start: str, value: Any, depth: int) -> Iterator[str]:
    """Lists of objects, and objects that hold some, are opened; all else stays on its line."""
    inner = " " * depth
    if isinstance(value, map):  # edges, as they are made
        yield inner + start + "["
        held = next(value, None)
        for one in value:
            yield f"{inner} {held},"
            held = one
        if held is not None:
            yield f"{inner} {held}"
        yield inner + "]"
    elif _is_many(value):
        yield inner + start + "["
        yield from _parts(_value("", one, depth + 1) for one in value)
        yield inner + "]"
    elif isinstance(value, dict) and any(map(_is_many, value.values())):
        yield inner + start + "{"
        parts = (_value(f"{ENCODE(k)}: ", one, depth + 1) for k, one in value.items())
        yield from _parts(parts)
        yield inner + "}"
    else:
        yield inner + start + ENCODE(value)


def _parts(parts: Iterable[Iterable[str]]) -> Iterator[str]:
    """The lines of all parts; each part but the last ends with a comma."""
    held: str | None = None
    for part in parts:
        if held is not None:
            yield held + ","
        held = None
        for line in part:
            if held is not None:
                yield held
            held = line
    if held is not None:
        yield held


def _is_many(value: Any) -> bool:
    """Edges as they are made, and lists of objects."""
    return isinstance(value, map) or (
        isinstance(value, list) and bool(value) and isinstance(value[0], dict)
    )


def networks(job: Job) -> list[dict[str, Any]]:
    """The networks that NCCL chose (`Using network IB`), and the hosts and processes that did."""
    users: dict[str, list[NcclProcess | None]] = {}
    for process, names in job.log.networks.items():
        for name in names:
            users.setdefault(name, []).append(process)
    return [
        {
            "network": name,
            "hosts": sorted({process.host for process in processes if process is not None}),
            "processes": len(processes),
        }
        for name, processes in sorted(users.items())
    ]


def member_complete(member: Member) -> bool | None:
    """Whether a rank's init is complete; None where no line of its init is there."""
    if member.complete:
        return True
    return False if member.started else None


def _communicator(job: Job, one: Communicator) -> dict[str, Any]:
    placement = job.placements[one.index]
    ranks = sorted({*one.members, *placement.processes})
    used = {
        name
        for process in placement.processes.values()
        for name in job.log.networks.get(process, ())
    }
    mine = set(placement.processes.values())
    return {
        "index": one.index,
        "id": one.id,
        "ranks": one.ranks,
        "nodes": job.nodes(one),
        "complete": one.complete,
        "version": job.log.version if len(job.log.versions) == 1 else None,
        "nvls": one.nvls,
        "collnet": any(c.logger in mine for c in job.log.collnet) if mine else None,
        "networks": sorted(used),
        "members": [_member(rank, one.members.get(rank), placement) for rank in ranks],
        "edges": map(_edge, job.of(one)),
    }


def _member(rank: int, member: Member | None, placement: Placement) -> dict[str, Any]:
    member = member or Member(None)
    return {
        "rank": rank,
        **_who(placement.processes.get(rank)),
        "cuda_device": member.cuda_device,
        "nvml_device": member.nvml_device,
        "bus_id": member.bus_id,
        "local_rank": member.local_rank,
        "complete": member_complete(member),
    }


def _edge(link: Link) -> str:
    """An edge as JSON. Of half a million edges most have all but their ends in common: what is the
    same is encoded once."""
    told = _transport(link.wording, link.placement)
    rest = _rest(link[CHANNELS:ASYMMETRIC], link.wording, link.asymmetric, link.where.file)
    hosts = _hosts(*link.ends)
    ends = f'"src": {link.source}, "dst": {link.destination}'
    return f'{{{ends}, {told}, {hosts}, {rest}, "line": {link.where.line}}}'


@lru_cache(maxsize=MANY)
def _transport(wording: str, placement: str | None) -> str:
    kind = transport(wording).kind
    return _inside({"transport": wording, "kind": kind, "placement": placement})


@lru_cache(maxsize=MANY)
def _hosts(source: Node | None, destination: Node | None) -> str:
    ends = {"src": source, "dst": destination}
    return _inside({"hosts": {end: node.host if node else None for end, node in ends.items()}})


@lru_cache(maxsize=MANY)
def _rest(parts: tuple[Any, ...], wording: str, asymmetric: bool | None, file: str) -> str:
    """Of a link's fields from its channels to `certain`."""
    channels, connections, nics, sent, received, roles, communicators, certain = parts
    told = transport(wording)
    return _inside(
        {
            "channels": channels,
            "connections": connections,
            "net": told.net,
            "device": told.device,
            "nics": nics,
            "src_nics": sent,
            "dst_nics": received,
            "gdrdma": told.gdrdma,
            "pxn_proxy": told.pxn_proxy,
            "shared": told.shared,
            "roles": roles,
            "asymmetric": asymmetric,
            "communicators": communicators,
            "communicators_certain": certain,
            "file": file,
        }
    )


def _inside(record: dict[str, Any]) -> str:
    """The object's JSON without its braces."""
    return ENCODE(record)[1:-1]


def _collnet(job: Job) -> list[dict[str, Any]]:
    return [
        {
            "rank": one.rank,
            "transport": one.wording,
            "kind": one.kind,
            "role": one.role,
            "channels": list(one.channels),
            "nic": one.nic,
            **_who(one.logger),
            **_where(one.where),
        }
        for one in job.log.collnet
    ]


def _who(process: NcclProcess | None) -> dict[str, Any]:
    if process is None:
        return {"host": None, "pid": None}
    return {"host": process.host, "pid": int(process.pid) if process.pid.isdigit() else None}


def _where(where: Where) -> dict[str, Any]:
    return {"file": where.file, "line": where.line}
