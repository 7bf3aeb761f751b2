"""The alternatives of a regular expression, each in an expression of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Group(NamedTuple):
    """One group: where it begins and ends, and the bounds of each of its alternatives."""

    begin: int
    end: int
    alternatives: list[tuple[int, int]]
    negative: bool


def narrowed(regex: str) -> Iterator[str]:
    """The expression once for each wording, with only that wording in its group; the groups around
    it are then required. The expression itself if it has no wordings.

    A wording is an alternative of several words. Lists of names (signals, libraries, kinds of
    numbers) and negative lookaheads have none.
    """
    groups = _groups(regex)
    barred = [(group.begin, group.end) for group in groups if group.negative]
    chosen = False
    for group in groups:
        if len(group.alternatives) < 2 or any(a <= group.begin < b for a, b in barred):
            continue
        around = {
            outer.end for outer in groups if outer.begin <= group.begin and group.end <= outer.end
        }
        first, last = group.alternatives[0][0], group.alternatives[-1][1]
        for begin, end in group.alternatives:
            if " " not in regex[begin:end].strip():
                continue
            chosen = True
            after = _required(regex, last, around)
            yield regex[:first] + regex[begin:end] + after
    if not chosen:
        yield regex


def _required(regex: str, since: int, ends: set[int]) -> str:
    """The rest of an expression, without the `?` after the groups that end there."""
    kept = [
        char for at, char in enumerate(regex[since:], since) if not (char == "?" and at in ends)
    ]
    return "".join(kept)


def _groups(regex: str) -> list[Group]:
    """All groups; the first is the whole expression."""
    groups: list[Group] = []
    open_: list[tuple[int, list[int]]] = [(0, [0])]
    at = 0
    while at < len(regex):
        char = regex[at]
        if char == "\\":
            at += 1
        elif char == "[":
            at = _class_end(regex, at)
        elif char == "(":
            open_.append((at, [_content(regex, at)]))
        elif char == "|":
            open_[-1][1].append(at + 1)
        elif char == ")":
            groups.append(_group(regex, *open_.pop(), at))
        at += 1
    return [_group(regex, *open_.pop(), at), *groups]


def _group(regex: str, begin: int, starts: list[int], end: int) -> Group:
    ends = [*(start - 1 for start in starts[1:]), end]
    negative = regex.startswith(("(?!", "(?<!"), begin)
    return Group(begin, end + 1, list(zip(starts, ends, strict=True)), negative)


def _class_end(regex: str, at: int) -> int:
    """The `]` of a character class; one that comes first stands for itself."""
    at += 2 if regex[at + 1] == "^" else 1
    at += regex[at] == "]"
    while regex[at] != "]":
        at += 2 if regex[at] == "\\" else 1
    return at


def _content(regex: str, at: int) -> int:
    """Where the content of the group that opens here begins."""
    for mark in ("(?:", "(?=", "(?!", "(?<=", "(?<!"):
        if regex.startswith(mark, at):
            return at + len(mark)
    return regex.index(">", at) + 1 if regex.startswith("(?P<", at) else at + 1
