"""Lines of edges that say again what one said before, but for the channel or the peer.

A log of thousands of ranks has millions of them, from a few threads each. What stands before the
channel tells the thread, what stands after it the edge: two look-ups for an edge that was seen, one
pattern for a new one of a thread that was.
"""

from __future__ import annotations

from . import grammar
from .nccl_log import Where
from .observations import WHOLE, Group, Observations, SeenEdge, Thread, Variant, see

CHANNEL = b"Channel "
MAX_KNOWN = 2**16
BITS = {b"%02d" % channel: 1 << channel for channel in range(100)}

# Connection, source's id, destination's id, role and wording, as they stand in a line.
Form = tuple["bytes | None", "bytes | None", "bytes | None", "bytes | None", bytes]


class Head:
    """What is known of the lines that begin alike."""

    __slots__ = ("forms", "seen", "thread")

    def __init__(self, thread: Thread | None) -> None:
        self.thread = thread
        self.forms: dict[Form, Group] = {}
        self.seen: dict[bytes, SeenEdge] = {}  # what stands after the channel -> the edge


class LineCache:
    """Lines by their words around a channel of two digits, until there are too many to know."""

    def __init__(self, logged: Observations) -> None:
        self._logged = logged
        self.heads: dict[bytes, Head] = {}
        self._count = 0

    def behind_label(self, head: bytes) -> Head | None:
        """What is known of a line by its header, past what launchers put before it, which may
        differ in each line. Not past another line of NCCL's that lost its newline."""
        begin = header_begin(head)
        return self.heads.get(head[begin:]) if head.find(b"NCCL ", 0, begin) < 0 else None

    def new(self, known: Head, tail: bytes, file: str, line: int) -> bool:
        """Whether a whole line is an edge and nothing else, by what stands behind `Channel `; then
        it is noted."""
        found = grammar.EDGE.fullmatch(tail)
        if found is None:
            return False
        channel, connection, source, source_id, destination, destination_id, role, wording = (
            found.groups()
        )
        if source == destination:  # torn: no rank connects to itself
            return False
        form: Form = connection, source_id, destination_id, role, wording
        group = known.forms.get(form)
        if group is None:
            group = self._logged.group(known.thread, variant_of(known.thread, *form))
            known.forms[form] = group
        seen = see(group, int(source), int(destination), Where(file, line), WHOLE)
        seen.channels |= BITS[channel]
        self._keep(known, tail[2:], seen)
        return True

    def remember(self, head: bytes, rest: bytes, thread: Thread | None, seen: SeenEdge) -> None:
        """Know the lines of a thread from here on; `rest` is what stands after the channel."""
        head = head[header_begin(head) :]
        known = self.heads.get(head)
        if known is None:
            known = self.heads[head] = Head(thread)
        if thread is not None:
            thread.state.heads.add(head)
        self._keep(known, rest, seen)

    def forget(self, thread: Thread) -> None:
        """From here on the edges of this thread's process may be another communicator's."""
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


def header_begin(head: bytes) -> int:
    """Where `host:pid:tid [0] NCCL INFO ` begins in what stands before a channel."""
    return head.rfind(b" ", 0, max(0, head.rfind(b" ["))) + 1


def variant_of(
    thread: Thread | None,
    connection: bytes | None,
    source_id: bytes | None,
    destination_id: bytes | None,
    role: bytes | None,
    wording: bytes,
) -> Variant:
    """What an edge has in common with others, of the words of its line."""
    said = role.decode() if role else None
    return Variant(
        wording=wording.decode(),
        connection=int(connection) if connection else None,
        # P2P and SHM edges are logged by the sender; the oldest NET lines do not say by whom.
        role=said if said or wording.startswith(b"NET") else "send",
        source_id=source_id.decode() if source_id else None,
        destination_id=destination_id.decode() if destination_id else None,
        moment=thread.moment() if thread else None,
    )
