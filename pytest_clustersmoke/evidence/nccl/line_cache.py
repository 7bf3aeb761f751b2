"""Recognises edges that differ from an earlier line only in the channel or the peer.

A log of thousands of ranks has millions of such lines, from a few threads each. The text before the
channel identifies the thread, the text after it the edge: two look-ups for a known edge, one
pattern for a new edge of a known thread.
"""

from __future__ import annotations

from . import grammar
from .nccl_log import Where
from .observations import WHOLE, Group, Observations, SeenEdge, Thread, Variant, record_edge

CHANNEL = b"Channel "
MAX_KNOWN = 2**16
BITS = {b"%02d" % channel: 1 << channel for channel in range(100)}

# Connection, source's id, destination's id, role and wording, as in the line.
Form = tuple["bytes | None", "bytes | None", "bytes | None", "bytes | None", bytes]


class Head:
    """The thread and the edges of lines with the same beginning."""

    __slots__ = ("forms", "seen", "thread")

    def __init__(self, thread: Thread | None) -> None:
        self.thread = thread
        self.forms: dict[Form, Group] = {}
        self.seen: dict[bytes, SeenEdge] = {}  # the text after the channel -> the edge


class LineCache:
    """Lines by their text around a two-digit channel, up to MAX_KNOWN."""

    def __init__(self, logged: Observations) -> None:
        self._logged = logged
        self.heads: dict[bytes, Head] = {}
        self._count = 0

    def find_behind_label(self, head: bytes) -> Head | None:
        """The known head of a line that follows a launcher's label, which may differ in each line.
        None if it follows another NCCL line that lost its newline."""
        begin = find_header(head)
        return self.heads.get(head[begin:]) if head.find(b"NCCL ", 0, begin) < 0 else None

    def add_edge(self, known: Head, tail: bytes, file: str, line: int) -> bool:
        """Record a new edge of a known thread from the text after `Channel `; False if the line is
        not an edge and nothing else."""
        match = grammar.EDGE.fullmatch(tail)
        if match is None:
            return False
        channel, connection, source, source_id, destination, destination_id, role, wording = (
            match.groups()
        )
        if source == destination:  # torn: no rank connects to itself
            return False
        form: Form = connection, source_id, destination_id, role, wording
        group = known.forms.get(form)
        if group is None:
            group = self._logged.group(known.thread, make_variant(known.thread, *form))
            known.forms[form] = group
        seen = record_edge(group, int(source), int(destination), Where(file, line), WHOLE)
        seen.channels |= BITS[channel]
        self._keep(known, tail[2:], seen)
        return True

    def remember(self, head: bytes, rest: bytes, thread: Thread | None, seen: SeenEdge) -> None:
        """Recognise the lines of a thread from here on; `rest` is the text after the channel."""
        head = head[find_header(head) :]
        known = self.heads.get(head)
        if known is None:
            known = self.heads[head] = Head(thread)
        if thread is not None:
            thread.state.heads.add(head)
        self._keep(known, rest, seen)

    def forget(self, thread: Thread) -> None:
        """Forget a process, whose edges may belong to another communicator from here on."""
        for head in thread.state.heads:
            self.heads.pop(head, None)
        thread.state.heads.clear()

    def clear(self) -> None:
        self.heads.clear()
        self._count = 0

    def _keep(self, known: Head, rest: bytes, seen: SeenEdge) -> None:
        if self._count >= MAX_KNOWN:
            for head in self.heads.values():
                head.seen.clear()
            self._count = 0
        known.seen[rest] = seen
        self._count += 1


def find_header(head: bytes) -> int:
    """The offset of `host:pid:tid [0] NCCL INFO ` in the text before a channel."""
    return head.rfind(b" ", 0, max(0, head.rfind(b" ["))) + 1


def make_variant(
    thread: Thread | None,
    connection: bytes | None,
    source_id: bytes | None,
    destination_id: bytes | None,
    role: bytes | None,
    wording: bytes,
) -> Variant:
    """The variant of an edge, from the parts of its line."""
    end = role.decode() if role else None
    return Variant(
        wording=wording.decode(),
        connection=int(connection) if connection else None,
        # P2P and SHM edges are logged by the sender; the oldest NET lines do not say by which end.
        role=end if end or wording.startswith(b"NET") else "send",
        source_id=source_id.decode() if source_id else None,
        destination_id=destination_id.decode() if destination_id else None,
        moment=thread.moment() if thread else None,
    )
