"""Searches logs for signatures: any size, in one pass, in bounded memory, whatever they hold.

One multi-pattern search over each chunk finds the few places where a signature's word stands; only
the line there, or the few lines that a signature spans, is given to its regexes.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from .first_error import LAST, STARTS, TRACEBACK, UnknownError, UnknownErrors, last_words
from .log_lines import (
    BEFORE_BYTES,
    BEHIND_BYTES,
    MAX_TEXT,
    LogLine,
    Piece,
    Time,
    cut,
    groups_at,
    host_of_line,
    last_time_in,
    named_places,
    piece_at,
    rank_of_line,
    strip_colors,
    time_at,
)
from .signature_file import Pattern, Signature

CHUNK_BYTES = 2**18
# What must be there behind a word: the lines that a signature spans, the traceback above an
# exception, the nearest time stamp above a line.
AHEAD_BYTES = 2**15
# So many lines of a file count for one signature; a log may repeat one for gigabytes.
MAX_COUNTED = 1000
MAX_KEPT, MAX_PLACES = 5, 256
# So many lines may tell of the end behind a log's last words.
MAX_LAST_LINES = 20
RAISED = TRACEBACK.encode()
# What Python says above a traceback as it ends, where an object could not be tidied up.
IGNORED = b"Exception ignored in"


@dataclass
class SignatureMatch:
    """Where one signature was found; `count` lines in all, the earliest of which are kept."""

    signature: Signature
    count: int = 0
    capped: bool = False
    lines: list[LogLine] = field(default_factory=list)
    hosts: dict[str, None] = field(default_factory=dict)
    ranks: dict[int, None] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def add(self, line: LogLine, hosts: Iterable[str], ranks: Iterable[int]) -> None:
        self.count += 1
        self.lines.append(line)
        if len(self.lines) > MAX_KEPT:
            self.lines = heapq.nsmallest(MAX_KEPT, self.lines, key=_early)
        if len(self.hosts) < MAX_PLACES:
            self.hosts.update(dict.fromkeys(hosts))
        if len(self.ranks) < MAX_PLACES:
            self.ranks.update(dict.fromkeys(ranks))


class SignatureSearch:
    """Feed it streams, then ask what was found: `matches` by signature, `unknown` errors."""

    def __init__(self, signatures: Iterable[Signature]) -> None:
        import ahocorasick_rs

        self._entries: dict[bytes, list[tuple[Signature, Pattern]]] = {}
        for signature in signatures:
            for pattern in signature.patterns:
                self._entries.setdefault(pattern.word.encode(), []).append((signature, pattern))
        self._words = tuple(dict.fromkeys([*self._entries, *STARTS]))
        self._each = ahocorasick_rs.BytesAhoCorasick(self._words)
        # Of words that overlap one is enough to lead to a line.
        self._any = ahocorasick_rs.BytesAhoCorasick(
            self._words, matchkind=ahocorasick_rs.MatchKind.LeftmostFirst
        )
        self.matches: dict[str, SignatureMatch] = {}
        self.unknown = UnknownErrors()
        self._file, self._index = "", -1
        self._host = ""
        self._rank: int | None = None
        self._counted: Counter[str] = Counter()
        self._tried: Counter[str] = Counter()

    def stream(
        self,
        stream: BinaryIO,
        name: str,
        host: str = "",
        rank: int | None = None,
        line: int = 1,
        *,
        insist: bool = True,
    ) -> None:
        """Search a stream to its end. `host` and `rank` are its writer's, where that is certain;
        `line` is the number of its first line. `insist`: a log may hold garbage, so what looks
        binary is searched all the same, and is called so where nothing was found in it.

        Raises reader.Unreadable where it is no text.
        """
        from ..evidence.nccl.log_reader import (
            Unreadable,
            refuse_other_encodings,
            refuse_what_is_binary,
        )

        self._file, self._host, self._rank = name, host, rank
        self._index += 1
        self._counted.clear()
        self._tried.clear()
        doubt: Unreadable | None = None
        # Words before `since` were found, and lines before `looked` were looked at.
        buffer, since, looked, first = b"", 0, 0, True
        while chunk := stream.read(CHUNK_BYTES):
            if first:
                first = False
                refuse_other_encodings(chunk, name)
                try:
                    refuse_what_is_binary(chunk, name)
                except Unreadable as error:
                    if not insist:
                        raise
                    doubt = error
            buffer += chunk
            limit = len(buffer) - AHEAD_BYTES
            if limit > since:
                looked = self._scan(buffer, line, since, looked, limit)
                cut = max(0, limit - BEHIND_BYTES)
                line += buffer.count(b"\n", 0, cut)
                buffer, since, looked = buffer[cut:], max(limit, looked) - cut, looked - cut
        self._scan(buffer, line, since, looked, len(buffer))
        if doubt is not None and not self._found_here():
            raise doubt
        self._last_line(buffer, line)

    def _found_here(self) -> bool:
        """Whether the input that is being read said anything."""
        unknown = any(line.source == self._index for _, line, _, _ in self.unknown.errors)
        return unknown or any(self._counted[name] for name in self.matches)

    # -- Lines -------------------------------------------------------------------------------------

    def _scan(self, buffer: bytes, line: int, since: int, looked: int, limit: int) -> int:
        """Look at the lines that hold a word between two places of the buffer, whose first line
        has this number. Gives up to where lines were looked at."""
        counted = 0
        # A word may begin before the limit and end behind it.
        region = memoryview(buffer)[since : limit + BEFORE_BYTES]
        for word, start, end in self._any.find_matches_as_indexes(region):
            start, end = start + since, end + since
            if start >= limit:
                break
            if start < looked or self._tired(self._words[word]):
                continue
            piece = piece_at(buffer, start, end, looked)
            line += buffer.count(b"\n", counted, piece.begin)
            counted = max(counted, piece.begin)
            self._line(buffer, piece, line)
            looked = piece.end
        return looked

    def _tired(self, word: bytes) -> bool:
        """Whether all that a word leads to was found so often that more of it tells nothing."""
        # Of the other words that an error begins with, a signature's may begin with a part.
        if word == RAISED and self.unknown.has_enough(self._index, TRACEBACK):
            return True
        entries = self._entries.get(word, [])
        return bool(entries) and all(
            max(self._counted[signature.id], self._tried[signature.id]) >= MAX_COUNTED
            for signature, _ in entries
        )

    def _is_costly(self, signature: Signature) -> bool:
        """Whether a rough cause was looked for often enough: one over several lines costs most."""
        if signature.general and signature.lines > 1:
            self._tried[signature.id] += 1
        return self._tried[signature.id] > MAX_COUNTED

    def _line(self, buffer: bytes, piece: Piece, number: int) -> None:
        text = piece.text.decode(errors="replace")
        found: dict[str, tuple[Signature, Pattern, dict[str, str | None]]] = {}
        starts = False
        for word in self._words_of(piece.text):
            starts = starts or word in STARTS
            for signature, pattern in self._entries.get(word, ()):
                if self._is_costly(signature):
                    continue
                # Of several patterns of one signature, one that names something.
                if signature.id in found and any(found[signature.id][2].values()):
                    continue
                groups = groups_at(signature, pattern, buffer, piece, text)
                if groups is not None:
                    found[signature.id] = signature, pattern, groups
        for signature, pattern, groups in found.values():
            # A line that says what exactly happened says no less exactly what that brings about.
            if signature.general and any(name in found for name in signature.follows):
                continue
            shown = cut(text, text.find(pattern.word))
            time, (rank, *_) = time_at(buffer, piece, text), [*self._writer(text)[1], None]
            line = LogLine(self._index, number, self._file, shown, time, rank)
            self._add(signature, line, text, groups)
        if starts and not found:
            self._look_at_error(buffer, piece, number, text)

    def _words_of(self, text: bytes) -> Iterator[bytes]:
        found = self._each.find_matches_as_indexes(text, overlapping=True)
        return iter(dict.fromkeys(self._words[word] for word, _, _ in found))

    def _add(
        self, signature: Signature, line: LogLine, text: str, groups: dict[str, str | None]
    ) -> None:
        self._counted[signature.id] += 1
        counted = self._counted[signature.id]
        if signature.harmless or counted > MAX_COUNTED:
            return
        match = self.matches.setdefault(signature.id, SignatureMatch(signature))
        match.capped = match.capped or counted == MAX_COUNTED
        hosts, ranks = named_places(groups)
        own_hosts, own_ranks = self._writer(text)
        # A known node is called as its run calls it; a line may have another name for it.
        match.add(line, own_hosts if self._host else hosts or own_hosts, ranks or own_ranks)
        for group, words in signature.names.items():
            if said := groups.get(group):
                match.names.setdefault(words, cut(said))

    def _writer(self, text: str) -> tuple[list[str], list[int]]:
        """The host and rank that wrote a line, by the line, else by its file."""
        host, rank = self._host or host_of_line(text), rank_of_line(text)
        rank = self._rank if rank is None else rank
        return [host] if host else [], [] if rank is None else [rank]

    def _look_at_error(self, buffer: bytes, piece: Piece, number: int, text: str) -> None:
        """An error begins on this line, and no signature knows the line itself."""
        above = buffer[max(0, piece.begin - MAX_TEXT) : max(0, piece.begin - 1)]
        if IGNORED in above[above.rfind(b"\n") + 1 :] or not self.unknown.wants(self._index, text):
            return
        ahead = strip_colors(buffer[piece.begin : piece.begin + AHEAD_BYTES])
        error = UnknownError.parse(ahead.decode(errors="replace").split("\n"))
        if error is None or any(self._knows(said) for said in error.message):
            return
        hosts, ranks = self._writer(text)
        time = time_at(buffer, piece, text)
        text, number = cut(error.message[0]), number + error.offset
        said = LogLine(self._index, number, self._file, text, time, ranks[0] if ranks else None)
        self.unknown.add(error, said, hosts, ranks)

    def _last_line(self, buffer: bytes, line: int) -> None:
        """An error without a traceback, as the last words of a log but for those that tell of the
        end itself. `line` is the number of the buffer's first line."""
        tail = buffer[-AHEAD_BYTES:]
        numbers = line + buffer.count(b"\n", 0, len(buffer) - len(tail))
        lines = strip_colors(tail).decode(errors="replace").split("\n")
        for index in range(len(lines) - 1, max(-1, len(lines) - 1 - MAX_LAST_LINES), -1):
            text = lines[index]
            if not text.strip() or self._knows(text):
                continue
            if said := last_words(text, lines[index - 1] if index else ""):
                at = LogLine(
                    self._index, numbers + index, self._file, cut(said), last_time_in(text)
                )
                self.unknown.add(UnknownError(LAST, (said,), 0, ""), at, *self._writer(text))
            return

    def _knows(self, text: str) -> bool:
        raw = text.encode()
        piece = Piece(0, len(raw), raw)
        return any(
            groups_at(signature, pattern, raw, piece, text) is not None
            for word in self._words_of(raw)
            for signature, pattern in self._entries.get(word, ())
        )


def _early(line: LogLine) -> tuple[bool, Time, int, int]:
    return line.time is None, line.time or (0, 0, 0, 0, 0.0), line.source, line.number
