"""Hostile text made harmless: what a job wrote, before it reaches a terminal, XML or a report.

Control characters, terminal escapes, marks that turn the direction of writing, and lone halves of
UTF-16 pairs become U+FFFD; all that people read stays.
"""

from __future__ import annotations

REPLACEMENT = "\ufffd"


def sanitize_line(text: str) -> str:
    """The text on one line: nothing in it begins a line of its own or moves a cursor."""
    if text.isprintable():
        return text
    joined = " ".join(part for part in text.replace("\t", " ").splitlines() if part.strip())
    return "".join(char if char.isprintable() else REPLACEMENT for char in joined)


def sanitize_lines(text: str) -> str:
    """The text with its lines and tabs."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else REPLACEMENT for char in text)
