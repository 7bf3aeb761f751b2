"""Parses NCCL's lines other than edges: communicators, networks, devices, versions, warnings."""

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


def _read_warning(text: bytes, start: int, where: Where, scope: str, logged: Observations) -> None:
    place, function, before = grammar.parse_source(text[:start])
    thread = logged.thread(scope, grammar.parse_header(before))
    message = text[start + len(b"NCCL WARN") :].strip()
    process = thread.process if thread else None
    logged.warn(
        _decode(message),
        _decode(place) or None,
        _decode(function) if function else None,
        process,
        where,
    )


def _read_init(
    text: bytes, start: int, where: Where, scope: str, logged: Observations
) -> Thread | None:
    match = grammar.COMM.search(text, max(0, start - AROUND), start + AROUND)
    if match is None:
        return None
    pointer, rank, ranks, cuda, nvml, bus, parent, split, colour, comm_id, state = match.groups()
    if int(rank) >= int(ranks):
        return None
    thread = logged.thread(scope, grammar.parse_logger(text, match.start()))
    process = thread.process if thread else None
    name = _decode(comm_id) if comm_id and int(comm_id, 16) else None
    if name is None and parent and split and colour:
        name = logged.child(process, _decode(parent), f"{_decode(split)}/{_decode(colour)}")
    init = Init(
        index=-1,
        process=process,
        pointer=_decode(pointer),
        rank=int(rank),
        ranks=int(ranks),
        comm_id=name,
        cuda_device=int(cuda) if cuda else None,
        nvml_device=int(nvml) if nvml else None,
        bus_id=_decode(bus) if bus else None,
        shared_id=parent is not None and comm_id is not None,
    )
    logged.init(thread, init, _decode(state))
    return thread


def _read_nodes(text: bytes, start: int, where: Where, scope: str, logged: Observations) -> None:
    match = grammar.NODES.search(text, max(0, start - AROUND), start + AROUND)
    if match is not None:
        pointer, (rank, ranks, nodes, local) = _decode(match[1]), map(int, match.groups()[1:])
        process = _find_process(text, match.start(), scope, logged)
        if rank < ranks:
            init = Init(-1, process, pointer, rank, ranks, None, None, None, None)
            init.nodes, init.local_rank = nodes, local
            logged.nodes(init)


def _read_version(text: bytes, start: int, where: Where, scope: str, logged: Observations) -> None:
    match = grammar.VERSION.match(text, start)
    if match is not None:
        logged.versions[_decode(match.group(1))] = None


def _read_network(text: bytes, start: int, where: Where, scope: str, logged: Observations) -> None:
    match = grammar.NETWORK.match(text, start)
    if match is not None:
        process = _find_process(text, start, scope, logged)
        logged.networks.setdefault(process, {})[_decode(match.group(1))] = None


def _read_devices(text: bytes, start: int, where: Where, scope: str, logged: Observations) -> None:
    begin = text.rfind(b"NET/", 0, start)
    match = grammar.DEVICES.match(text, begin) if begin >= 0 else None
    if match is not None:
        process = _find_process(text, begin, scope, logged)
        names = {int(i): _decode(name) for i, name in grammar.DEVICE.findall(match.group(2))}
        logged.list_devices(process, _decode(match.group(1)), names)


def _read_virtual_device(
    text: bytes, start: int, where: Where, scope: str, logged: Observations
) -> None:
    begin = text.rfind(b"NET/", 0, start)
    match = grammar.VIRTUAL.match(text, begin) if begin >= 0 else None
    if match is not None:
        net, index, name = match.groups()
        process = _find_process(text, begin, scope, logged)
        logged.list_devices(process, _decode(net), {int(index): _decode(name)})


def _read_nvls(text: bytes, start: int, where: Where, scope: str, logged: Observations) -> None:
    match = grammar.NVLS.match(text, start)
    pointer = _decode(match.group(1)) if match else None
    logged.nvls.setdefault(_find_process(text, start, scope, logged), set()).add(pointer)


def _read_missing_ib(
    text: bytes, start: int, where: Where, scope: str, logged: Observations
) -> None:
    process = _find_process(text, start, scope, logged)
    if process is not None:
        logged.without_ib[process] = None


def _find_process(text: bytes, begin: int, scope: str, logged: Observations) -> NcclProcess | None:
    thread = logged.thread(scope, grammar.parse_logger(text, begin))
    return thread.process if thread else None


def _decode(word: bytes) -> str:
    return word[:MAX_TEXT].decode(errors="replace")


Reading = Callable[[bytes, int, Where, str, Observations], "Thread | None"]
# The word that identifies a line, and the function that parses it.
_LINES: dict[bytes, Reading] = {
    b"NCCL WARN": _read_warning,
    b" nranks ": _read_init,
    b" nRanks ": _read_nodes,
    b"NCCL version ": _read_version,
    b"RCCL version ": _read_version,
    b"Using network ": _read_network,
    b": Using [": _read_devices,
    b"Connected NVLS": _read_nvls,
    b"NVLS comm ": _read_nvls,
    b"Made virtual device [": _read_virtual_device,
    b"NET/IB : No device found": _read_missing_ib,
}
WORDS = tuple(_LINES)
_READERS = tuple(_LINES.values())
