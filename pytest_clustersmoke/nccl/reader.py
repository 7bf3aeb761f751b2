"""Reads NCCL's logs as a stream of any size; memory grows with distinct edges, not with bytes.

Most of a log says nothing of transports. One pass of a multi-pattern search finds the few places
that may; only their lines are looked at. The lines of one edge differ in their channel alone, so a
line that was seen before but for its channel costs two look-ups.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import BinaryIO

from . import grammar, statements
from .evidence import Logged, Seen, Thread, Variant
from .model import Log, Where

# Small enough that the copies of a chunk stay in a processor's cache.
CHUNK_BYTES = 2**17
# A line of NCCL's is at most 1 KiB; of longer ones this much around a word is looked at.
WINDOW_BYTES = 2**11
# Of a line in colour this much is cleaned around a word.
COLOURED_BYTES = 600
# A chunk with more than one word of interest in so many bytes is read line by line.
DENSE_BYTES = 400
MAX_CACHED = 2**16
MAX_CHANNEL = 1023
BITS = {b"%02d" % channel: 1 << channel for channel in range(100)}
COMPRESSED = {
    b"\x1f\x8b": "zcat",
    b"\x28\xb5\x2f\xfd": "zstdcat",
    b"BZh": "bzcat",
    b"\xfd7zXZ": "xzcat",
}
VIA = b" via "
PATTERNS = (VIA, *statements.WORDS)


class Unreadable(Exception):
    """A file that cannot be read, or is no text; the message says which and why."""


class Reader:
    """Feed it files or streams, then ask for the `log`."""

    def __init__(self) -> None:
        import ahocorasick_rs

        self._search = ahocorasick_rs.BytesAhoCorasick(
            PATTERNS, matchkind=ahocorasick_rs.MatchKind.LeftmostFirst
        )
        self._logged = Logged()
        # What stands before a channel -> what stands after it -> the edge.
        self._heads: dict[bytes, dict[bytes, Seen]] = {}
        self._cached = 0
        self._scope = ""
        self._file = ""

    def file(self, path: Path, name: str | None = None, scope: str = "") -> None:
        """Read one file. Raises Unreadable; what stands before the fault is kept."""
        try:
            if not path.is_file():  # a FIFO of that name would be waited on for ever
                reason = "is no file" if path.exists() else "does not exist"
                raise Unreadable(f"{path} {'is a directory' if path.is_dir() else reason}")
            with path.open("rb") as stream:
                self.stream(stream, name or str(path), scope)
        except OSError as error:
            raise Unreadable(f"{path} cannot be read: {error.strerror or error}") from error

    def stream(self, stream: BinaryIO, name: str, scope: str = "") -> None:
        """Read a stream to its end. Raises Unreadable where it is no text.

        `name` is what places in it are called; `scope` tells apart nodes of one host name.
        """
        self._file, self._scope = name, scope
        self._heads.clear()
        line, carry, dense = 1, b"", False
        while chunk := stream.read(CHUNK_BYTES):
            if not carry and line == 1:
                refuse_what_is_no_text(chunk, name)
            chunk = carry + chunk
            cut = chunk.rfind(b"\n") + 1
            if cut:
                dense = (self._each if dense else self._scan)(chunk[:cut], line)
                line += chunk.count(b"\n", 0, cut)
            elif len(chunk) > 2 * WINDOW_BYTES:  # what a cut would part is read again
                cut = len(chunk) - WINDOW_BYTES
                self._scan(chunk, line, until=cut)
            carry = chunk[cut:]
        self._scan(carry, line)

    def log(self, version: str | None = None) -> Log:
        """What was read so far, put together. `version` is NCCL's, where the logs do not tell it:
        it decides whether edges are those of the init around them."""
        if version is not None and not self._logged.versions:
            self._logged.versions[version] = None
        return self._logged.log()

    # -- Lines -------------------------------------------------------------------------------------

    def _scan(self, chunk: bytes, line: int, until: int | None = None) -> bool:
        """Read the lines of a chunk that may say something. `line` is the number of its first.

        Gives whether that is most lines.
        """
        counted = 0
        hits = self._search.find_matches_as_indexes(chunk)
        for pattern, start, end in hits:
            least, most = max(0, start - WINDOW_BYTES), min(len(chunk), end + WINDOW_BYTES)
            begin = chunk.rfind(b"\n", least, start) + 1 or least
            stop = chunk.find(b"\n", end, most)
            text = chunk[begin : stop if stop >= 0 else most]
            if pattern == 0 and stop >= 0 and self._known(text):
                continue
            if until is not None and start >= until:
                break
            line += chunk.count(b"\n", counted, begin)
            counted = max(counted, begin)
            # The last line of a file may have been cut while it was written.
            whole = stop >= 0 or most < len(chunk)
            where = Where(self._file, line)
            self._line(pattern, text, start - begin, end - begin, where, whole)
        return len(hits) * DENSE_BYTES > len(chunk)

    def _each(self, chunk: bytes, line: int) -> bool:
        """The same for a chunk of which most lines say something: line by line."""
        edges, heads = 0, self._heads
        for number, text in enumerate(chunk.split(b"\n"), line):
            head, _, tail = text.partition(b"Channel ")
            known = heads.get(head)
            if known is not None and (seen := known.get(tail[2:])) is not None:
                seen.channels |= BITS.get(tail[:2], 0)
                edges += 1
            elif b" via " in text and self._known(text):
                edges += 1
            elif len(text) > WINDOW_BYTES:
                self._scan(text + b"\n", number)
            else:
                for pattern, start, end in self._search.find_matches_as_indexes(text):
                    edges += 1
                    self._line(pattern, text, start, end, Where(self._file, number), True)
        return edges * DENSE_BYTES > len(chunk)

    def _known(self, text: bytes) -> bool:
        """Whether the edge of a line is one that was seen before; then its channel is noted."""
        head, _, tail = text.partition(b"Channel ")
        known = self._heads.get(head)
        if known is None:  # what launchers put before the header may differ in each line
            known = self._heads.get(_without_label(head))
        seen = known.get(tail[2:]) if known is not None else None
        if seen is None:
            return False
        seen.channels |= BITS.get(tail[:2], 0)
        return True

    def _line(
        self, pattern: int, text: bytes, start: int, end: int, where: Where, whole: bool
    ) -> None:
        if b"\x1b" in text:
            before = grammar.ANSI.sub(b"", text[max(0, start - COLOURED_BYTES) : start])
            after = grammar.ANSI.sub(b"", text[end : end + COLOURED_BYTES])
            word = text[start:end]
            text = before + word + after
            start, end = len(before), len(before) + len(word)
        if pattern == 0:
            self._edge(text, start, end, where, whole)
        elif thread := statements.read(pattern - 1, text, start, where, self._scope, self._logged):
            # From here on its edges may be another communicator's.
            self._forget(thread)

    def _edge(self, text: bytes, start: int, end: int, where: Where, whole: bool) -> None:
        """One ` via `: an edge, a connection into the network's collectives, prose, or torn."""
        begin = max(text.rfind(b"Channel ", 0, start), text.rfind(b"Ring ", 0, start))
        body = grammar.BODY.match(text, begin, end) if begin >= 0 else None
        words = grammar.TRANSPORT.match(text, end)
        if words is not None and self._may_be_longer(words):
            words = None
        if body is None:
            self._other(text, start, end, words, where)
            return
        if words is None:
            self._logged.tear(where)
            return
        channel, connection, source, source_id, destination, destination_id, role = body.groups()
        thread = self._thread(text, begin)
        variant = Variant(
            wording=words.group(1).decode(),
            connection=int(connection) if connection else None,
            role=role.decode() if role else _role(words.group(1)),
            source_id=source_id.decode() if source_id else None,
            destination_id=destination_id.decode() if destination_id else None,
            moment=thread.moment() if thread else None,
        )
        seen = self._logged.see(thread, int(source), int(destination), variant, where, whole)
        if int(channel) <= MAX_CHANNEL:
            seen.channels |= 1 << int(channel)
        alone = words.end() >= len(text.rstrip()) and text.find(b"Channel ") == begin
        if alone and whole and len(channel) == 2:
            self._remember(text[:begin], text[begin + len(b"Channel ") + 2 :], thread, seen)

    def _other(
        self, text: bytes, start: int, end: int, words: re.Match[bytes] | None, where: Where
    ) -> None:
        begin = text.rfind(b"Coll", 0, start)
        inside = grammar.COLLNET.match(text, begin, end) if begin >= 0 else None
        if inside is not None and words is not None:
            channel, rank, role = inside.groups()
            thread = self._thread(text, begin)
            key = (int(rank), words.group(1).decode(), role.decode())
            self._logged.see_collnet(thread, key, int(channel), where)
            return
        quoted = grammar.QUOTED.search(text, max(0, start - 64), end)
        if quoted is not None and words is not None:
            source, source_id, destination, destination_id, role = quoted.groups()
            named = role.decode() if role else _role(words.group(1))
            ids = source_id.decode(), destination_id.decode()
            variant = Variant(words.group(1).decode(), None, named, *ids, None)
            self._logged.quote(int(source), int(destination), variant, where)
        elif words is not None or quoted is not None or inside is not None:
            self._logged.tear(where)

    def _may_be_longer(self, words: re.Match[bytes]) -> bool:
        """Whether a header glued to a transport that ends in a number may begin with digits."""
        if words.group("glued") is None or not words.group(1)[-1:].isdigit():
            return False
        host = words.string[words.end() :].split(b":", 1)[0]
        return not self._logged.knows_host(self._scope, host.decode(errors="replace"))

    # -- Who logged, and what was seen -------------------------------------------------------------

    def _thread(self, text: bytes, begin: int) -> Thread | None:
        return self._logged.thread(self._scope, grammar.logger(text, begin))

    def _remember(self, head: bytes, rest: bytes, thread: Thread | None, seen: Seen) -> None:
        """Know a line by its words around the channel, until there are too many to know."""
        if self._cached >= MAX_CACHED:
            self._heads.clear()
            self._cached = 0
        head = _without_label(head)
        self._heads.setdefault(head, {})[rest] = seen
        self._cached += 1
        if thread is not None:
            thread.heads.add(head)

    def _forget(self, thread: Thread) -> None:
        for head in thread.heads:
            self._heads.pop(head, None)
        thread.heads.clear()


def _without_label(head: bytes) -> bytes:
    """`host:pid:tid [0] NCCL INFO ` of what stands before a channel."""
    return head[head.rfind(b" ", 0, max(0, head.rfind(b" ["))) + 1 :]


def _role(wording: bytes) -> str | None:
    """P2P and SHM edges are logged by the sender; the oldest NET lines do not say by whom."""
    return None if wording.startswith(b"NET") else "send"


def refuse_what_is_no_text(chunk: bytes, name: str) -> None:
    """What is no text as it stands would be read as a log without edges: raise Unreadable."""
    if chunk[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise Unreadable(f"{name} is UTF-16 text; expected UTF-8 (iconv -f UTF-16 -t UTF-8)")
    for magic, tool in COMPRESSED.items():
        if chunk.startswith(magic):
            raise Unreadable(f"{name} is compressed; expected text ({tool} FILE | … -)")
    if b"\0" in chunk[:WINDOW_BYTES] and b"NCCL" not in chunk:
        raise Unreadable(f"{name} is binary; expected the text of a log")
