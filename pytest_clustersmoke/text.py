"""What messages are made of: numbers of things, and lists that stay short."""

from __future__ import annotations

from collections.abc import Iterable


def plural(count: int, one: str, several: str = "") -> str:
    """`1 pair`, `2 pairs`."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def ranges(numbers: Iterable[int]) -> str:
    """`0-7, 9` of sorted numbers."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return span_list(spans)


def span_list(spans: Iterable[Iterable[int]]) -> str:
    """The same of the first and last number of each span."""
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
