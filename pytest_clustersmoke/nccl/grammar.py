"""The words of NCCL's lines, from its source at 62 tags, 2.3.5 to 2.30.7.

Strict on purpose: a line that was cut says something else than what NCCL wrote (`NET/IB/3` without
its `/GDRDMA`), so a transport counts only where its words are whole and end where words end.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# What can stand between two writers' lines that lost their newline: the next one's header.
_HEADER_AHEAD = rb"(?=[^\s:]{1,255}:\d{1,9}:\d{1,9} \[-?\d{1,9}\] )"
_END = rb"(?:\Z|(?=[\s\"'`\\<>|\]\[{}),;\x1b])|" + _HEADER_AHEAD + rb")"
_NET_NAME = rb"[A-Za-z][\w.+-]{0,62}(?: [A-Za-z0-9][\w.+-]{0,62}){0,3}"
_DIRECT = rb"(?:/GDRDMA(?:\(PCI\))?)?"

# Of one edge: `P2P/IPC/read/CE`, `SHM/direct/direct`, `NET/AWS Libfabric/1(2)/GDRDMA/Shared`, …
TRANSPORT = re.compile(
    rb"(P2P/(?:CUMEM|MNNVL|IPC|direct pointer|common device|indirect/\d{1,9}\[[0-9a-f]+\])"
    rb"(?:/read)?(?:/CE)?"
    rb"|SHM(?:/(?:direct|CE)){1,2}"
    rb"|direct shared memory"
    rb"|(?:COLL)?NET/"
    + _NET_NAME
    + rb"/\d{1,9}(?:\(\d{1,9}\))?"
    + _DIRECT
    + rb"(?:/Shared)?(?:/GDCopy)?)"
    rb"(?P<glued>" + _HEADER_AHEAD + rb")?" + _END
)
# The part before ` via `, in the words of 2.7 and later (Channel) and before (Ring).
BODY = re.compile(
    rb"(?:Ring|Channel) (\d{2,4})(?:/(\d))? : (\d{1,7})(?:\[([0-9a-f]+)\])? -> "
    rb"(\d{1,7})(?:\[([0-9a-f]+)\])?(?: \[(send|receive)\])? via \Z"
)
# The same as people quote it, without channel; believed only where no whole line stands beside it.
QUOTED = re.compile(
    rb"(?:\A|[\s>|\"'`])(?:NCCL INFO )?(\d{1,7})\[([0-9a-f]+)\] -> (\d{1,7})\[([0-9a-f]+)\]"
    rb"(?: \[(send|receive)\])? via \Z"
)
# A rank's connection into the network's own collectives: no peer.
COLLNET = re.compile(rb"Coll(?:Net)? (\d{2,4})(?:/\d)? : (\d{1,7}) \[(send|receive)\] via \Z")

COMM = re.compile(
    rb"comm (0x[0-9a-f]+|0x\.\.\.|\S{1,40}) rank (\d{1,7}) nranks (\d{1,7})"
    rb"(?: cudaDev (\d{1,9}))?(?: nvmlDev (\d{1,9}))?(?: busId ([0-9a-f]+))?"
    # Of a split: its parent, from 2.23 on instead of an id of its own.
    rb"(?: parent (0x[0-9a-f]+))?(?: (?:split|child)Count (\d{1,9}))?(?: color (-?\d{1,10}))?"
    rb"(?: key -?\d{1,10})?(?: commId (0x[0-9a-f]+))? ?- "
    rb"(Init START|(?:Init |Abort |Destroy )?COMPLETE)"
)
NODES = re.compile(
    rb"comm (0x[0-9a-f]+) rank (\d{1,7}) nRanks (\d{1,7}) nNodes (\d{1,7}) localRanks \d{1,7}"
    rb" localRank (\d{1,7})"
)
VERSION = re.compile(rb"NCCL version (\d{1,4}\.\d{1,4}(?:\.\d{1,4})?)")
NETWORK = re.compile(rb"Using network (" + _NET_NAME + rb")")
DEVICES = re.compile(rb"NET/(" + _NET_NAME + rb") ?: Using (\[0\].*)")
DEVICE = re.compile(rb"\[(\d{1,4})\]([^\s:;\[\]]{1,64}):")
VIRTUAL = re.compile(rb"NET/(IB) : Made virtual device \[(\d{1,4})\] name=(\S{1,200})")
SOURCE = re.compile(rb"\S{1,200}:\d{1,9}")
ANSI = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


class Header(NamedTuple):
    """`host:pid:tid [cudaDev] `, which stands before every message."""

    host: bytes
    pid: bytes
    tid: bytes
    device: bytes


def logger(text: bytes, begin: int) -> Header | None:
    """The header of the message that begins there, past `NCCL INFO` and the name of an API."""
    info = text.rfind(b"NCCL INFO ", 0, begin)
    between = text[info + len(b"NCCL INFO ") : begin].strip()
    if info < 0 or not (between == b"" or between.isalnum()):
        return None
    return header(text[:info])


def header(before: bytes) -> Header | None:
    """The header that ends the text before a message; None where there is none.

    Whatever stands in front of it (labels of srun, torchrun, mpirun, pdsh, Ray, times) is not its.
    """
    parts = before[-400:].rsplit(None, 2)
    if len(parts) < 2:
        return None
    name, device = parts[-2], parts[-1]
    if device[:1] != b"[" or device[-1:] != b"]" or not before[-1:].isspace():
        return None
    if not device[1:-1].lstrip(b"-").isdigit():
        return None
    words = name.split(b":")
    if len(words) < 3 or not words[-3]:
        return None
    host, pid, tid = words[-3:]
    if not (_number(pid) and _number(tid)):
        return None
    return Header(host, pid, tid, device[1:-1])


def source(before: bytes) -> tuple[bytes, bytes | None, bytes]:
    """`misc/shmutils.cc:88 (function) ` that ends the text before a warning: place, function (from
    2.30.7 on), and what stands before them. The place is empty where none is told."""
    parts = before[-600:].rsplit(None, 2)
    if parts and (found := SOURCE.fullmatch(parts[-1])):
        return found.group(), None, before[: before.rfind(parts[-1])]
    if len(parts) > 1 and parts[-1][:1] == b"(" and (found := SOURCE.fullmatch(parts[-2])):
        return found.group(), parts[-1].strip(b"()"), before[: before.rfind(parts[-2])]
    return b"", None, before


def _number(word: bytes) -> bool:
    """Quoted logs hide process numbers behind X."""
    return word.isdigit() or (bool(word) and not word.strip(b"X"))
