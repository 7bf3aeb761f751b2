"""The wording of NCCL's lines, from its source at 62 tags, 2.3.5 to 2.30.7.

Strict on purpose: a cut line would mean something other than what NCCL wrote (`NET/IB/3` without
its `/GDRDMA`), so a transport counts only if its wording is complete and properly delimited.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# The start of another writer's line, glued to one that lost its newline.
_HEADER_AHEAD = rb"(?=[^\s:/]{1,255}:(?:\d{1,9}|X+):(?:\d{1,9}|X+) \[-?\d{1,9}\] )"
# The wording has not ended if the rest of another line follows: `NET/I` and `/0 : 3[1] -> …`.
_ENDED = rb"(?! : )(?=[\s\"'`\\<>|,;)\x1b])"
_CUT = rb"\Z|(?=[\]\[{}])"
_NET_NAME = rb"[A-Za-z][\w.+-]{0,62}(?: [A-Za-z0-9][\w.+-]{0,62}){0,3}"
_DIRECT = rb"(?:/GDRDMA(?:\(PCI\))?)?"
_WORDING = (
    rb"P2P/(?:CUMEM|MNNVL|IPC|direct pointer|common device|indirect/\d{1,9}\[[0-9a-f]+\])"
    rb"(?:/read)?(?:/CE)?"
    rb"|SHM(?:/(?:direct|CE)){1,2}"
    rb"|direct shared memory"
    rb"|(?:COLL)?NET/"
    + _NET_NAME
    + rb"/\d{1,9}(?:\(\d{1,9}\))?"
    + _DIRECT
    # GDCopy: 2.3; flush: from 2.31 on.
    + rb"(?:/(?:Shared|GDCopy|flush=[A-Za-z]{1,16})){0,2}"
)
_RANKS = (
    rb"(\d{1,7})(?:\[([0-9a-f]+)\])? -> (\d{1,7})(?:\[([0-9a-f]+)\])?"
    rb"(?: \[(send|receive)\])? via "
)

# The transport of an edge: `P2P/IPC/read/CE`, `NET/AWS Libfabric/1(2)/GDRDMA/Shared`, …
# `ended` if the wording certainly ends here; otherwise part of it may be lost.
TRANSPORT = re.compile(
    rb"(" + _WORDING + rb")"
    rb"(?:(?P<glued>" + _HEADER_AHEAD + rb")|(?P<ended>" + _ENDED + rb")|" + _CUT + rb")"
)
# Wordings to which nothing can be added.
FINAL = re.compile(
    r"direct shared memory|SHM/\w+/\w+|P2P/(?:direct pointer/read|indirect/\S+/read|\S+/CE)"
)
# The part before ` via `, as written by 2.7 and later (Channel) and before (Ring).
BODY = re.compile(rb"(?:Ring|Channel) (\d{2,4})(?:/(\d))? : " + _RANKS + rb"\Z")
# The part after `Channel ` of a line that is an edge and nothing else, in recent versions.
EDGE = re.compile(rb"(\d\d)(?:/(\d))? : " + _RANKS + rb"(" + _WORDING + rb")\r?")
# An edge as people quote it, without channel; used only if the log has no complete lines.
QUOTED = re.compile(
    rb"(?:\A|[\s>|\"'`])(?:NCCL INFO )?(\d{1,7})\[([0-9a-f]+)\] -> (\d{1,7})\[([0-9a-f]+)\]"
    rb"(?: \[(send|receive)\])? via \Z"
)
# A rank's connection into the network's own collectives, which has no peer.
COLLNET = re.compile(rb"Coll(?:Net)? (\d{2,4})(?:/\d)? : (\d{1,7}) \[(send|receive)\] via \Z")

COMM = re.compile(
    rb"comm (0x[0-9a-f]+|0x\.\.\.|\S{1,40}) rank (\d{1,7}) nranks (\d{1,7})"
    rb"(?: cudaDev (\d{1,9}))?(?: nvmlDev (\d{1,9}))?(?: busId ([0-9a-f]+))?"
    # After a split: the parent, from 2.23 on instead of an id.
    rb"(?: parent (0x[0-9a-f]+))?(?: (?:split|child)Count (\d{1,9}))?(?: color (-?\d{1,10}))?"
    rb"(?: key -?\d{1,10})?(?: commId (0x[0-9a-f]+))?"
    rb"(?: used \d{1,15} bytes)? ?- "  # RCCL
    rb"(Init START|(?:Init |Abort |Destroy )?COMPLETE)"
)
NODES = re.compile(
    rb"comm (0x[0-9a-f]+) rank (\d{1,7}) nRanks (\d{1,7}) nNodes (\d{1,7}) localRanks \d{1,7}"
    rb" localRank (\d{1,7})"
)
VERSION = re.compile(rb"[NR]CCL version (?:: )?(\d{1,4}\.\d{1,4}(?:\.\d{1,4})?)")
NETWORK = re.compile(rb"Using network (" + _NET_NAME + rb")")
DEVICES = re.compile(rb"NET/(" + _NET_NAME + rb") ?: Using (\[0\].*)")
DEVICE = re.compile(rb"\[(\d{1,4})\]([^\s:;\[\]]{1,64}):")
VIRTUAL = re.compile(rb"NET/(IB) : Made virtual device \[(\d{1,4})\] name=(\S{1,200})")
NVLS = re.compile(rb"NVLS comm (0x[0-9a-f]+)")
SOURCE = re.compile(rb"\S{1,200}:\d{1,9}")
# Between `NCCL INFO` and `comm`: from 2.21.5 on the API's name, from 2.29 on the rank.
BETWEEN = re.compile(rb"(?:\[Rank \d{1,7}\] )?\w{0,64} ?")
# The end of a transport that lost its newline and sticks to the host of the next header.
TRANSPORT_REMAINS = re.compile(rb"\A(?:CUMEM|MNNVL|IPC|read|CE|direct|GDRDMA(?:\(PCI\))?|Shared)")
# Ends a label that sticks to a host without a space: CSV, logfmt, brackets, quotes, JSON, and the
# NULs of a file that was cut.
LABEL_ENDS = re.compile(rb"[\"'`|=,;{(\0)\]]|>(?=.)")
ANSI = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
# `<`, `>` and `&` in Docker's JSON logs.
ESCAPED = re.compile(rb"\\u00(3[ce]|26)")


class Header(NamedTuple):
    """`host:pid:tid [cudaDev] `, which precedes every message."""

    host: bytes
    pid: bytes
    tid: bytes
    device: bytes


def parse_logger(text: bytes, begin: int) -> Header | None:
    """The header of the message at `begin`, before `NCCL INFO` and the name of an API."""
    info = text.rfind(b"NCCL INFO ", 0, begin)
    if info < 0 or not BETWEEN.fullmatch(text, info + len(b"NCCL INFO "), begin):
        return None
    return parse_header(text[:info])


def parse_header(before: bytes) -> Header | None:
    """The header at the end of the text before a message; None if there is none.

    Anything in front of it (labels of srun, torchrun, mpirun, pdsh, Ray; times) is ignored.
    """
    parts = before[-400:].rsplit(None, 2)
    if len(parts) < 2:
        return None
    name, device = parts[-2], parts[-1]
    if device[:1] != b"[" or device[-1:] != b"]" or not before[-1:].isspace():
        return None
    if not device[1:-1].lstrip(b"-").isdigit():
        return None
    words = name.rsplit(b":", 3)[-3:]
    if len(words) < 3:
        return None
    host, pid, tid = words
    if b"/" in host:  # a transport that lost its newline
        host = TRANSPORT_REMAINS.sub(b"", host[host.rfind(b"/") + 1 :])
    host = LABEL_ENDS.split(host)[-1]
    if not (host and _number(pid) and _number(tid)):
        return None
    return Header(host, pid, tid, device[1:-1])


def parse_source(before: bytes) -> tuple[bytes, bytes | None, bytes]:
    """Split `misc/shmutils.cc:88 (function) ` off the end of the text before a warning. Returns the
    place (empty if there is none), the function (from 2.30.7 on) and the rest."""
    parts = before[-600:].rsplit(None, 2)
    if parts and (match := SOURCE.fullmatch(parts[-1])):
        return match.group(), None, before[: before.rfind(parts[-1])]
    if len(parts) > 1 and parts[-1][:1] == b"(" and (match := SOURCE.fullmatch(parts[-2])):
        return match.group(), parts[-1].strip(b"()"), before[: before.rfind(parts[-2])]
    return b"", None, before


def _number(word: bytes) -> bool:
    """Whether a word is a process number, which quoted logs hide behind X."""
    return word.isdigit() or (bool(word) and not word.strip(b"X"))
