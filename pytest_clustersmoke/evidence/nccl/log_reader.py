"""Reads NCCL's logs as a stream of any size; memory grows with distinct edges, not with bytes.

Most of a log says nothing about transports. One pass of a multi-pattern search finds the few places
that may; only their lines are parsed. Where most lines are edges they are parsed one by one, and
recognised by their beginnings (line_cache.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ..telemetry import open_regular
from . import grammar, statements
from .line_cache import BITS, CHANNEL, LineCache, make_variant
from .log_assembly import assemble
from .nccl_log import Log, Where
from .observations import CUT, LAST, WHOLE, Observations, Thread, record_edge

# Small enough that the copies of a chunk stay in the processor's cache.
CHUNK_BYTES = 2**17
# NCCL's lines have at most 1 KiB; of a longer line only this much around a match is parsed.
WINDOW_BYTES = 2**11
# In a line with colour or JSON escapes, this much around a match is cleaned.
CLEANED_BYTES = 600
# A chunk with more than one match in this many bytes is read line by line.
DENSE_BYTES = 400
MAX_CHANNEL = 1023
COMPRESSED = {
    b"\x1f\x8b": "zcat",
    b"\x28\xb5\x2f\xfd": "zstdcat",
    b"BZh": "bzcat",
    b"\xfd7zXZ": "xzcat",
}
VIA = b" via "
PATTERNS = (VIA, *statements.WORDS)


class Unreadable(Exception):
    """A file cannot be read or is not text; the message says which and why."""


class Reader:
    """Reads files and streams, then builds the `log`."""

    def __init__(self) -> None:
        import ahocorasick_rs

        self._search = ahocorasick_rs.BytesAhoCorasick(
            PATTERNS, matchkind=ahocorasick_rs.MatchKind.LeftmostFirst
        )
        self._logged = Observations()
        self._known = LineCache(self._logged)
        self._scope = ""
        self._file = ""

    def file(self, path: Path, name: str | None = None, scope: str = "") -> None:
        """Read a file. Raises Unreadable, and keeps everything read before the fault."""
        try:
            if not path.is_file():  # a FIFO would block forever
                reason = "is not a regular file" if path.exists() else "does not exist"
                raise Unreadable(f"{path} {'is a directory' if path.is_dir() else reason}")
            with open_regular(path) as stream:
                self.stream(stream, name or str(path), scope)
        except OSError as error:
            raise Unreadable(f"{path} cannot be read: {error.strerror or error}") from error

    def stream(self, stream: BinaryIO, name: str, scope: str = "") -> None:
        """Read a stream to its end. Raises Unreadable if it is not text.

        `name` is the file name in places; `scope` distinguishes nodes that share a host name.
        """
        self._file, self._scope = name, scope
        self._known.clear()
        # The first `done` bytes of `carry`, which has no newline, were parsed.
        line, carry, done, dense = 1, b"", 0, False
        while chunk := self._read(stream, name):
            if not carry and line == 1:
                refuse_non_text(chunk, name)
            chunk = carry + chunk
            self._logged.informed = self._logged.informed or b"NCCL INFO " in chunk
            cut = chunk.rfind(b"\n") + 1
            if cut:
                lines = chunk[:cut]
                each = dense and not done
                dense = self._scan_lines(lines, line) if each else self._scan(lines, line, done)
                line += lines.count(b"\n")
                done = 0
            elif len(chunk) > 2 * WINDOW_BYTES:  # longer than any line of NCCL's: read it in pieces
                cut = len(chunk) - 2 * WINDOW_BYTES
                self._scan(chunk, line, done, until=cut + WINDOW_BYTES)
                done = WINDOW_BYTES
            carry = chunk[cut:]
        self._scan(carry, line, done)

    def _read(self, stream: BinaryIO, name: str) -> bytes:
        try:
            return stream.read(CHUNK_BYTES)
        except OSError as error:
            raise Unreadable(f"{name} cannot be read: {error.strerror or error}") from error

    def log(self, version: str | None = None) -> Log:
        """Build the log from everything read so far. `version` is the version of NCCL to assume if
        the log does not show one; it decides whether edges belong to the init around them."""
        if version is not None and not self._logged.versions:
            self._logged.versions[version] = None
        return assemble(self._logged)

    # -- Lines -------------------------------------------------------------------------------------

    def _scan(self, chunk: bytes, line: int, since: int = 0, until: int | None = None) -> bool:
        """Parse the lines of a chunk that match; `line` is the number of its first line. Matches
        before `since` have been parsed already; those from `until` on will be parsed later.

        Returns whether most lines match.
        """
        counted, known, heads, size = 0, self._known, self._known.heads, len(chunk)
        hits = self._search.find_matches_as_indexes(chunk)
        for pattern, start, end in hits:
            if start < since:
                continue
            if until is not None and start >= until:
                break
            least = start - WINDOW_BYTES if start > WINDOW_BYTES else 0
            begin = chunk.rfind(b"\n", least, start) + 1 or least
            stop = chunk.find(b"\n", end, end + WINDOW_BYTES)
            cached = None
            if pattern == 0 and stop >= 0:
                head, _, tail = chunk[begin:stop].partition(CHANNEL)
                cached = heads.get(head) or known.find_behind_label(head)
                if cached is not None and (seen := cached.seen.get(tail[2:])) is not None:
                    seen.channels |= BITS.get(tail[:2], 0)
                    continue
            line += chunk.count(b"\n", counted, begin)
            counted = max(counted, begin)
            if cached is not None and known.add_edge(cached, tail, self._file, line):
                continue
            # The last line of a file, without a newline, may have been cut while it was written.
            text = chunk[begin : stop + 1 if stop >= 0 else end + WINDOW_BYTES]
            if stop < 0 and end + WINDOW_BYTES < size:
                text += b"\n"
            self._parse_line(pattern, text, start - begin, end - begin, Where(self._file, line))
        return len(hits) * DENSE_BYTES > size

    def _scan_lines(self, chunk: bytes, line: int) -> bool:
        """Like _scan, but line by line, for a chunk in which most lines match."""
        edges, known, heads = 0, self._known, self._known.heads
        for number, text in enumerate(chunk.split(b"\n"), line):
            head, _, tail = text.partition(CHANNEL)
            cached = heads.get(head) or (known.find_behind_label(head) if VIA in tail else None)
            if cached is not None and (seen := cached.seen.get(tail[2:])) is not None:
                seen.channels |= BITS.get(tail[:2], 0)
                edges += 1
            elif cached is not None and known.add_edge(cached, tail, self._file, number):
                edges += 1
            elif len(text) > WINDOW_BYTES:
                self._scan(text + b"\n", number)
            else:
                for pattern, start, end in self._search.find_matches_as_indexes(text):
                    edges += 1
                    self._parse_line(pattern, text + b"\n", start, end, Where(self._file, number))
        return edges * DENSE_BYTES > len(chunk)

    def _parse_line(self, pattern: int, text: bytes, start: int, end: int, where: Where) -> None:
        """Parse one line, with its newline if it has one, for the match from `start` to `end`."""
        if b"\x1b" in text or b"\\u00" in text:
            before = _clean(text[max(0, start - CLEANED_BYTES) : start])
            after = _clean(text[end : end + CLEANED_BYTES])
            text = before + text[start:end] + after
            start, end = len(before), len(before) + end - start
        if pattern == 0:
            self._parse_edge(text, start, end, where)
        elif thread := statements.read_statement(
            pattern - 1, text, start, where, self._scope, self._logged
        ):
            self._known.forget(thread)

    def _parse_edge(self, text: bytes, start: int, end: int, where: Where) -> None:
        """Parse a ` via `: an edge, a connection into the network's collectives, prose, or a torn
        line."""
        begin = max(text.rfind(CHANNEL, 0, start), text.rfind(b"Ring ", 0, start))
        body = grammar.BODY.match(text, begin, end) if begin >= 0 else None
        words = grammar.TRANSPORT.match(text, end)
        if body is None:
            self._parse_other(text, start, end, words, where)
            return
        channel, connection, source, source_id, destination, destination_id, role = body.groups()
        thread = self._thread(text, begin)
        wording = self._read_wording(words) if words is not None else None
        if words is None or wording is None:
            self._logged.tear(where)
            return
        ended = _classify_end(words)
        # A number that runs into another line may have gained digits, and no rank connects to
        # itself.
        run_on = ended == CUT and words.group("glued") is None and wording[-1:].isdigit()
        if run_on or source == destination:
            self._logged.tear(where)
            return
        form = connection, source_id, destination_id, role, wording
        group = self._logged.group(thread, make_variant(thread, *form))
        seen = record_edge(group, int(source), int(destination), where, ended)
        if int(channel) <= MAX_CHANNEL:
            seen.channels |= 1 << int(channel)
        alone = words.end() >= len(text.rstrip()) and text.find(CHANNEL) == begin
        if alone and ended == WHOLE and len(channel) == 2:
            rest = text[begin + len(CHANNEL) + 2 :].removesuffix(b"\n")
            self._known.remember(text[:begin], rest, thread, seen)

    def _parse_other(
        self, text: bytes, start: int, end: int, words: re.Match[bytes] | None, where: Where
    ) -> None:
        begin = text.rfind(b"Coll", 0, start)
        inside = grammar.COLLNET.match(text, begin, end) if begin >= 0 else None
        if inside is not None and words is not None:
            channel, rank, role = inside.groups()
            key = (int(rank), words.group(1).decode(), role.decode())
            self._logged.see_collnet(self._thread(text, begin), key, int(channel), where)
            return
        quoted = grammar.QUOTED.search(text, max(0, start - 64), end)
        if quoted is not None and words is not None:
            source, source_id, destination, destination_id, role = quoted.groups()
            form = None, source_id, destination_id, role, words.group(1)
            group = self._logged.quote(make_variant(None, *form))
            record_edge(group, int(source), int(destination), where, _classify_end(words))
        elif words is not None or quoted is not None or inside is not None:
            self._logged.tear(where)

    def _read_wording(self, words: re.Match[bytes]) -> bytes | None:
        """The transport's wording. If it ends in a number and a header is glued to it, the host may
        begin with some of the digits: None if no known host shows with which."""
        wording: bytes = words.group(1)
        number = len(wording) - len(wording.rstrip(b"0123456789"))
        if words.group("glued") is None or number == 0:
            return wording
        rest = words.string[words.end() :].split(b":", 1)[0]
        hosts = [
            end
            for end in range(len(wording) - number + 1, len(wording) + 1)
            if self._logged.knows_host(self._scope, (wording[end:] + rest).decode(errors="replace"))
        ]
        if not hosts and number == 1:
            return wording
        return wording[: hosts[0]] if len(hosts) == 1 else None

    def _thread(self, text: bytes, begin: int) -> Thread | None:
        return self._logged.thread(self._scope, grammar.parse_logger(text, begin))


class NodeLogs(NamedTuple):
    """The NCCL log of all nodes of a phase, and why some files could not be read."""

    log: Log
    unreadable: tuple[str, ...]


def read_nodes(folders: Mapping[int, Path], root: Path, version: str | None) -> NodeLogs:
    """Read each node's folder of logs, named by their paths below `root`."""
    reader, unreadable = Reader(), []
    for node_rank, folder in folders.items():
        for path in sorted(folder.glob("*.log")):
            try:
                reader.file(path, str(path.relative_to(root)), scope=str(node_rank))
            except Unreadable as error:
                unreadable.append(str(error))
    return NodeLogs(reader.log(version), tuple(unreadable))


def _classify_end(words: re.Match[bytes]) -> int:
    """How the wording of a transport ends: at the end of the text, certainly complete (before a
    quote, or with no other NCCL line behind it), or possibly cut by another line."""
    text, end = words.string, words.end()
    if end == len(text):
        return LAST
    if words.group("ended") is None:
        return CUT
    certain = text[end : end + 1] in b"\"'`\\" or text.find(b"NCCL ", end) < 0
    return WHOLE if certain else CUT


def _clean(text: bytes) -> bytes:
    """Remove colour, and JSON's escapes in `->` and `<0>`."""
    text = grammar.ANSI.sub(b"", text)
    return grammar.ESCAPED.sub(lambda match: bytes([int(match.group(1), 16)]), text)


def refuse_non_text(chunk: bytes, name: str) -> None:
    """Raise Unreadable for anything but text, which would look like a log without edges."""
    refuse_other_encodings(chunk, name)
    refuse_binary(chunk, name)


def refuse_other_encodings(chunk: bytes, name: str) -> None:
    """Raise Unreadable for text that a tool can make readable."""
    if chunk[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise Unreadable(f"{name} is UTF-16 text; expected UTF-8 (iconv -f UTF-16 -t UTF-8)")
    for magic, tool in COMPRESSED.items():
        if chunk.startswith(magic):
            raise Unreadable(f"{name} is compressed; expected text ({tool} FILE | … -)")


def refuse_binary(chunk: bytes, name: str) -> None:
    """Raise Unreadable for binary data, except a damaged log of NCCL's."""
    # A file system that lost a node may leave zeros at the start of a log.
    text = chunk.lstrip(b"\0")
    if (not text or b"\0" in text[:WINDOW_BYTES]) and b"NCCL" not in chunk:
        raise Unreadable(f"{name} is binary; expected a text log")
