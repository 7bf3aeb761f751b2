"""Searches logs of any size and content for signatures, in one pass and in bounded memory.

One multi-pattern search over each chunk finds the few places that contain a signature's word; its
regexes see only the line there, or the few lines that the signature spans.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from .log_lines import (
    ANSI,
    BEFORE_BYTES,
    BEHIND_BYTES,
    ENDS_RANK,
    MAX_TEXT,
    PREFIX_CHARS,
    FailureLine,
    LogEnd,
    LogLine,
    Piece,
    Time,
    cut,
    groups_at,
    host_of_line,
    is_caught,
    last_time_in,
    named_places,
    piece_at,
    rank_of_line,
    strip_colors,
    time_at,
)
from .signature_file import Pattern, Signature
from .unknown_errors import (
    HEADER,
    HINT,
    LAST,
    SCHEDULER,
    STARTS,
    TRACEBACK,
    WARN,
    UnknownAt,
    UnknownError,
    UnknownErrors,
    error_on_last_line,
    find_printed,
)

CHUNK_BYTES = 2**18
# How much must be read after a word: the lines that a signature spans, the traceback above an
# exception, the nearest time stamp above a line.
AHEAD_BYTES = 2**15
# How many lines of a file count for one signature; a log may repeat one for gigabytes.
MAX_COUNTED = 1000
MAX_KEPT, MAX_PLACES = 5, 256
# How many lines about the end may follow a log's last error.
MAX_LAST_LINES = 20
# The device of a fault that no line says to be over.
FOREVER = "\n"
# Python logs these above the traceback of an error in a finalizer, and goes on.
IGNORED = (b"Exception ignored in", b"Error in atexit._run_exitfuncs")


# An input, a host and a device.
Place = tuple[int, str, str]


@dataclass
class SignatureMatch:
    """Where one signature was found: `count` lines, of which the earliest are kept."""

    signature: Signature
    count: int = 0
    capped: bool = False
    lines: list[LogLine] = field(default_factory=list)
    hosts: dict[str, None] = field(default_factory=dict)
    ranks: dict[int, None] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    # By source and rank.
    last: dict[tuple[int, int | None], FailureLine] = field(default_factory=dict)
    # Where the fault has not been said to be over: source, host and device.
    open: set[Place] = field(default_factory=set)

    @property
    def is_over(self) -> bool:
        """Whether the log says of each place that the fault is over there."""
        return bool(self.last) and not self.open and not self.capped

    def lines_of(self, source: int) -> list[FailureLine]:
        """The last line of each rank in an input."""
        return [line for (index, _), line in self.last.items() if index == source]

    def add(self, line: LogLine, hosts: Iterable[str], ranks: Iterable[int]) -> None:
        self.count += 1
        key = line.source, line.rank
        self.last[key] = FailureLine.of(line, self.last.get(key))
        self.lines.append(line)
        if len(self.lines) > MAX_KEPT:
            self.lines = heapq.nsmallest(MAX_KEPT, self.lines, key=_sort_key)
        if len(self.hosts) < MAX_PLACES:
            self.hosts.update(dict.fromkeys(hosts))
        if len(self.ranks) < MAX_PLACES:
            self.ranks.update(dict.fromkeys(ranks))


class SignatureSearch:
    """Reads streams and collects `matches` by signature and `unknown` errors."""

    def __init__(self, signatures: Iterable[Signature]) -> None:
        import ahocorasick_rs

        self._entries: dict[bytes, list[tuple[Signature, Pattern]]] = {}
        self._ended_by: dict[str, set[str]] = {}
        for signature in signatures:
            for pattern in signature.patterns:
                if pattern.until:
                    self._ended_by.setdefault(pattern.until, set()).add(signature.id)
                self._entries.setdefault(pattern.word.encode(), []).append((signature, pattern))
        self._words = tuple(dict.fromkeys([*self._entries, *STARTS]))
        self._each = ahocorasick_rs.BytesAhoCorasick(self._words)
        # One of several overlapping words is enough to find a line.
        self._any = ahocorasick_rs.BytesAhoCorasick(
            self._words, matchkind=ahocorasick_rs.MatchKind.LeftmostFirst
        )
        self.matches: dict[str, SignatureMatch] = {}
        self.unknown = UnknownErrors()
        self._ends: dict[int, LogEnd] = {}
        self._file, self._index = "", -1
        self._cut = False  # the beginning of the log is no longer in the buffer
        self._host = ""
        self._rank: int | None = None
        self._counted: Counter[str] = Counter()
        self._tried: Counter[str] = Counter()
        self._exhausted: set[bytes] = set()

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
        """Search a stream to its end. `host` and `rank` are its writer's, if that is certain;
        `line` is the number of its first line. `insist`: search a log that looks binary as well,
        since it may contain garbage, and reject it only if nothing was found in it.

        Raises log_reader.Unreadable if the stream is not text.
        """
        from ..evidence.nccl.log_reader import (
            Unreadable,
            refuse_binary,
            refuse_other_encodings,
        )

        self._file, self._host, self._rank = name, host, rank
        self._index += 1
        self._cut = line > 1
        self._counted.clear()
        self._tried.clear()
        self._exhausted.clear()
        doubt: Unreadable | None = None
        # Words before `since` were found, and lines before `looked` were examined.
        buffer, since, looked, first = b"", 0, 0, True
        while chunk := stream.read(CHUNK_BYTES):
            if first:
                first = False
                refuse_other_encodings(chunk, name)
                try:
                    refuse_binary(chunk, name)
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
                self._cut = self._cut or cut > 0
        self._scan(buffer, line, since, looked, len(buffer))
        if doubt is not None and not self._found_here():
            raise doubt
        self._examine_end(buffer, line)

    def _found_here(self) -> bool:
        """Whether anything was found in the current input."""
        unknown = any(line.source == self._index for _, line, _, _ in self.unknown.errors)
        return unknown or any(self._counted[name] for name in self.matches)

    # -- Lines -------------------------------------------------------------------------------------

    def _scan(self, buffer: bytes, line: int, since: int, looked: int, limit: int) -> int:
        """Examine the lines with a word that begins between `since` and `limit` of the buffer,
        whose first line has this number. Returns the end of the last line examined."""
        counted = 0
        # A word may begin before the limit and end after it.
        region = memoryview(buffer)[since : limit + BEFORE_BYTES]
        for word, start, end in self._any.find_matches_as_indexes(region):
            start, end = start + since, end + since
            if start >= limit:
                break
            if start < looked or self._is_exhausted(self._words[word]):
                continue
            piece = piece_at(buffer, start, end, looked)
            line += buffer.count(b"\n", counted, piece.begin)
            counted = max(counted, piece.begin)
            self._examine_line(buffer, piece, line)
            looked = piece.end
        return looked

    def _is_exhausted(self, word: bytes) -> bool:
        """Whether everything a word leads to was found so often that more adds nothing."""
        # The other words that begin an error may also begin a word of a signature.
        if word in self._exhausted:
            return True
        if word == HEADER and self.unknown.has_enough(self._index, TRACEBACK):
            return True
        entries = self._entries.get(word, [])
        enough = bool(entries) and all(
            max(self._counted[signature.id], self._tried[signature.id]) >= MAX_COUNTED
            for signature, _ in entries
        )
        if enough:
            self._exhausted.add(word)
        return enough

    def _is_costly(self, signature: Signature) -> bool:
        """Whether a general signature was tried often enough; one over several lines costs most."""
        if signature.general and signature.lines > 1:
            self._tried[signature.id] += 1
        return self._tried[signature.id] > MAX_COUNTED

    def _examine_line(self, buffer: bytes, piece: Piece, number: int) -> None:
        text = piece.text.decode(errors="replace")
        matched: dict[str, tuple[Signature, Pattern, dict[str, str | None]]] = {}
        starts = False
        for word in self._words_of(piece.text):
            starts = starts or word in STARTS
            for signature, pattern in self._entries.get(word, ()):
                if self._is_costly(signature) or (
                    pattern.after and not self._counted[pattern.after]
                ):
                    continue
                # Prefer the pattern of a signature that captures a name.
                if signature.id in matched and any(matched[signature.id][2].values()):
                    continue
                groups = groups_at(signature, pattern, buffer, piece, text)
                if groups is not None:
                    matched[signature.id] = signature, pattern, groups
        for signature, pattern, groups in matched.values():
            # A line that shows an exact cause does not also count for a general one that follows.
            if signature.general and any(name in matched for name in signature.follows):
                continue
            shown = cut(text, text.find(pattern.word))
            time, (rank, *_) = time_at(buffer, piece, text), [*self._writer(text)[1], None]
            more = self._counted[signature.id] < MAX_COUNTED
            caught = more and (signature.warning or is_caught(buffer, piece.begin, piece.end))
            ends = ENDS_RANK.search(text, 0, PREFIX_CHARS) is not None
            printed = (
                find_printed(buffer, piece.end, first=not self._cut)
                if more and not caught
                else None
            )
            line = LogLine(
                self._index, number, self._file, shown, time, rank, caught, ends, printed
            )
            self._note_place(signature, pattern, text, groups)
            self._add(signature, line, text, groups)
        if starts and not matched:
            self._examine_error(buffer, piece, number, text)

    def _words_of(self, text: bytes) -> Iterator[bytes]:
        hits = self._each.find_matches_as_indexes(text, overlapping=True)
        return iter(dict.fromkeys(self._words[word] for word, _, _ in hits))

    def _add(
        self,
        signature: Signature,
        line: LogLine,
        text: str,
        groups: dict[str, str | None],
    ) -> None:
        self._counted[signature.id] += 1
        counted = self._counted[signature.id]
        if signature.harmless or counted > MAX_COUNTED:
            return
        match = self.matches.setdefault(signature.id, SignatureMatch(signature))
        match.capped = match.capped or counted == MAX_COUNTED
        hosts, ranks = named_places(groups)
        own_hosts, own_ranks = self._writer(text)
        # The run's name for a node takes precedence over the name in a line.
        hosts = own_hosts if self._host else hosts or own_hosts
        match.add(line, hosts, ranks or own_ranks)
        for group, words in signature.names.items():
            if value := groups.get(group):
                match.names.setdefault(words, cut(value))

    def _note_place(
        self,
        signature: Signature,
        pattern: Pattern,
        text: str,
        groups: dict[str, str | None],
    ) -> None:
        """Record where a fault begins, or, by a harmless line, where it is over."""
        host = next(iter(self._writer(text)[0]), "")
        place = self._index, host, groups.get("device") or ""
        if signature.harmless:
            for other in self._ended_by.get(signature.id, ()):
                if other in self.matches:
                    self.matches[other].open.discard(place)
            return
        match = self.matches.setdefault(signature.id, SignatureMatch(signature))
        ends = pattern.until and len(match.open) < MAX_PLACES
        match.open.add(place if ends else (self._index, "", FOREVER))

    def _writer(self, text: str) -> tuple[list[str], list[int]]:
        """The host and rank that wrote a line, from the line itself or from its file."""
        host, rank = self._host or host_of_line(text), rank_of_line(text)
        rank = self._rank if rank is None else rank
        return [host] if host else [], [] if rank is None else [rank]

    def _examine_error(self, buffer: bytes, piece: Piece, number: int, text: str) -> None:
        """Examine an error that begins on this line, which no signature matched."""
        above = buffer[max(0, piece.begin - MAX_TEXT) : max(0, piece.begin - 1)]
        ignored = any(words in above[above.rfind(b"\n") + 1 :] for words in IGNORED)
        if ignored or not self.unknown.wants(self._index, text):
            return
        ahead = strip_colors(buffer[piece.begin : piece.begin + AHEAD_BYTES])
        error = UnknownError.parse(ahead.decode(errors="replace").split("\n"))
        if error is None or any(self._knows(line) for line in error.message):
            return
        hosts, ranks = self._writer(text)
        time = time_at(buffer, piece, text)
        label, text, number = text, cut(error.message[0]), number + error.offset
        rank = ranks[0] if ranks else None
        end = buffer.find(error.message[0].encode(), piece.end)
        # NCCL and slurmstepd go on; what they cannot go on from, torch raises and srun reports.
        warned = error.kind == WARN or SCHEDULER[1] in label
        caught = warned or is_caught(buffer, piece.begin, max(piece.end, end))
        ends = ENDS_RANK.search(label, 0, PREFIX_CHARS) is not None
        end = max(piece.end, end)
        printed = None if caught else find_printed(buffer, end, first=not self._cut)
        line = LogLine(self._index, number, self._file, text, time, rank, caught, ends, printed)
        self.unknown.add(error, line, hosts, ranks)

    def _examine_end(self, buffer: bytes, line: int) -> None:
        """Examine the last lines of a log. `line` is the number of the buffer's first line."""
        tail = buffer[-AHEAD_BYTES:]
        first = line + buffer.count(b"\n", 0, len(buffer) - len(tail))
        lines = strip_colors(tail).decode(errors="replace").split("\n")
        self._examine_last_line(lines, first)
        self._ends[self._index] = LogEnd.of(ANSI.sub(b"", tail).decode(errors="replace"), first)

    def _examine_last_line(self, lines: list[str], first: int) -> None:
        """Look for an error without a traceback in the last line of a log. Blank lines and those
        that a signature explains are passed over. `lines[0]` is line number `first` of the log."""
        for index in range(len(lines) - 1, max(-1, len(lines) - 1 - MAX_LAST_LINES), -1):
            text = lines[index]
            if not text.strip() or HINT.search(text) or self._knows(text):
                continue
            if error := error_on_last_line(text, lines[index - 1] if index else ""):
                at = LogLine(self._index, first + index, self._file, cut(error), last_time_in(text))
                self.unknown.add(UnknownError(LAST, (error,), 0, ""), at, *self._writer(text))
            return

    # -- Logs that end well ------------------------------------------------------------------------

    def drop_survived(self) -> None:
        """Forget what was found in logs that end well, since the run survived it. What processes
        print as a run ends is also forgotten if nothing else was found and a log reports success.
        """
        good = {source for source, end in self._ends.items() if self._ends_well(source, end)}
        errors = [error for error in self.unknown.errors if error[1].source not in good]
        self.unknown.errors[:] = errors
        kept = {
            name: match
            for name, match in self.matches.items()
            if not {source for source, _ in match.last} <= good
        }
        kept = self._without_past(kept, errors)
        ends = self._ends.values()
        if not errors and all(match.signature.teardown for match in kept.values()):
            over = any(end.over for end in ends)
            # Slurm's note about memory does not say that anything failed.
            notes = all(match.signature.primary for match in kept.values())
            kept = {} if over or (notes and any(end.progress for end in ends)) else kept
        self.matches = kept

    def _without_past(
        self, kept: dict[str, SignatureMatch], errors: list[UnknownAt]
    ) -> dict[str, SignatureMatch]:
        """Without faults that are over, unless one of them may have led to what else failed."""
        past = {name for name, match in kept.items() if self._is_past(match)}
        rest = {name: match for name, match in kept.items() if name not in past}
        exact = any(
            match.signature.primary and not match.signature.general
            for match in rest.values()
            if not past & {*match.signature.follows}
        )
        raised = any(error.kind == TRACEBACK for error, _, _, _ in errors)
        return rest if raised or exact or not (rest or errors) else kept

    def _is_past(self, match: SignatureMatch) -> bool:
        """Whether a fault is over, and the job went on after it, as far as its logs show that."""
        sources = {source for source, _ in match.last}
        if not match.is_over:
            return False
        if any(end.goes_on() for source, end in self._ends.items() if source not in sources):
            return True
        lasts = {index: max(line.number for line in match.lines_of(index)) for index in sources}
        return all(self._ends.get(source, LogEnd()).goes_on(last) for source, last in lasts.items())

    def _ends_well(self, source: int, end: LogEnd) -> bool:
        here = [match for match in self.matches.values() if match.lines_of(source)]
        serious = [m for m in here if not m.signature.teardown and not self._is_past(m)]
        ended = any(match.signature.always or not match.signature.primary for match in serious)
        if ended or any(match.capped for match in serious) or self.unknown.is_capped(source):
            return False
        lines = [line for match in serious for line in match.lines_of(source)]
        for error, line, _, _ in self.unknown.errors:
            over = error.kind == WARN and any(good.number < line.number for good in end.succeeded)
            if line.source == source and not over:  # NCCL may warn as a run ends
                lines.append(FailureLine.of(line))
        return end.is_good(lines)

    def _knows(self, text: str) -> bool:
        raw = text.encode()
        piece = Piece(0, len(raw), raw)
        return any(
            groups_at(signature, pattern, raw, piece, text) is not None
            for word in self._words_of(raw)
            for signature, pattern in self._entries.get(word, ())
        )


def _sort_key(line: LogLine) -> tuple[bool, Time, int, int]:
    return line.time is None, line.time or (0, 0, 0, 0, 0.0), line.source, line.number
