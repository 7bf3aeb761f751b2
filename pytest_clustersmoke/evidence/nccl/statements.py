"""Parses NCCL's lines other than edges: communicators, networks, devices, version, warnings."""

from __future__ import annotations

from collections.abc import Callable

from . import grammar
from .nccl_log import NcclProcess, Where
from .observations import Init, Observations, Thread

MAX_TEXT = 1000
# A statement lies within this many bytes of the word that was matched.
AROUND = 300


def read_statement(
    word: int, text: bytes, start: int, where: Where, scope: str, logged: Observations
) -> Thread | None:
    """Parse the line that has WORDS[word] at `start`.

    Returns the thread whose edges may belong to another communicator from here on.
    """
    return _READERS[word](text, start, where, scope, logged)


def _warn(text: bytes, start: int, where: Where, scope: str, logged: Observations) -> None:
    place, function, before = grammar.parse_source(text[:start])
    thread = logged.thread(scope, grammar.parse_header(before))
    message = text[start + len(b"NCCL WARN") :].strip()
    process = thread.process if thread else None
    logged.warn(
        _text(message), _text(place) or None, _text(function) if function else None, process, where
    )


def _comm(text: bytes, start: int, where: Where, scope: str, logged: Observations) -> Thread | None:
    found = grammar.COMM.search(text, max(0, start - AROUND), start + AROUND)
    if found is None:
        return None
    pointer, rank, ranks, cuda, nvml, bus, parent, split, colour, comm_id, state = found.groups()
    if int(rank) >= int(ranks):
        return None
    thread = logged.thread(scope, grammar.parse_logger(text, found.start()))
    process = thread.process if thread else None
    name = _text(comm_id) if comm_id and int(comm_id, 16) else None
    if name is None and parent and split and colour:
        name = logged.child(process, _text(parent), f"{_text(split)}/{_text(colour)}")
    init = Init(
        index=-1,
        process=process,
        pointer=_text(pointer),
        rank=int(rank),
        ranks=int(ranks),
        comm_id=name,
        cuda_device=int(cuda) if cuda else None,
        nvml_device=int(nvml) if nvml else None,
        bus_id=_text(bus) if bus else None,
        shared_id=parent is not None and comm_id is not None,
    )
    logged.init(thread, init, _text(state))
    return thread


def _nodes(text: bytes, start: int, where: Where, scope: str, logged: Observations) -> None:
    found = grammar.NODES.search(text, max(0, start - AROUND), start + AROUND)
    if found is not None:
        pointer, rank, _, nodes, local_rank = found.groups()
        process = _process(text, found.start(), scope, logged)
        logged.nodes(process, _text(pointer), int(rank), (int(nodes), int(local_rank)))


def _version(text: bytes, start: int, where: Where, scope: str, logged: Observations) -> None:
    found = grammar.VERSION.match(text, start)
    if found is not None:
        logged.versions[_text(found.group(1))] = None


def _network(text: bytes, start: int, where: Where, scope: str, logged: Observations) -> None:
    found = grammar.NETWORK.match(text, start)
    if found is not None:
        process = _process(text, start, scope, logged)
        logged.networks.setdefault(process, {})[_text(found.group(1))] = None


def _devices(text: bytes, start: int, where: Where, scope: str, logged: Observations) -> None:
    begin = text.rfind(b"NET/", 0, start)
    found = grammar.DEVICES.match(text, begin) if begin >= 0 else None
    if found is not None:
        process = _process(text, begin, scope, logged)
        names = {int(i): _text(name) for i, name in grammar.DEVICE.findall(found.group(2))}
        logged.list_devices(process, _text(found.group(1)), names)


def _virtual(text: bytes, start: int, where: Where, scope: str, logged: Observations) -> None:
    begin = text.rfind(b"NET/", 0, start)
    found = grammar.VIRTUAL.match(text, begin) if begin >= 0 else None
    if found is not None:
        net, index, name = found.groups()
        process = _process(text, begin, scope, logged)
        logged.list_devices(process, _text(net), {int(index): _text(name)})


def _nvls(text: bytes, start: int, where: Where, scope: str, logged: Observations) -> None:
    found = grammar.NVLS.match(text, start)
    pointer = _text(found.group(1)) if found else None
    logged.nvls.setdefault(_process(text, start, scope, logged), set()).add(pointer)


def _no_ib(text: bytes, start: int, where: Where, scope: str, logged: Observations) -> None:
    process = _process(text, start, scope, logged)
    if process is not None:
        logged.without_ib[process] = None


def _process(text: bytes, begin: int, scope: str, logged: Observations) -> NcclProcess | None:
    thread = logged.thread(scope, grammar.parse_logger(text, begin))
    return thread.process if thread else None


def _text(word: bytes) -> str:
    return word[:MAX_TEXT].decode(errors="replace")


Reading = Callable[[bytes, int, Where, str, Observations], "Thread | None"]
# The word that identifies a line, and the function that parses it.
_LINES: dict[bytes, Reading] = {
    b"NCCL WARN": _warn,
    b" nranks ": _comm,
    b" nRanks ": _nodes,
    b"NCCL version ": _version,
    b"Using network ": _network,
    b": Using [": _devices,
    b"Connected NVLS": _nvls,
    b"NVLS comm ": _nvls,
    b"Made virtual device [": _virtual,
    b"NET/IB : No device found": _no_ib,
}
WORDS = tuple(_LINES)
_READERS = tuple(_LINES.values())
