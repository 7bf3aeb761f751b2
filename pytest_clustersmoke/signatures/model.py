"""A signature: the text by which a known failure shows in logs, why it happens, and what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Pattern:
    """A text in a log: `word` stands literally in every line that may hold it, and leads there;
    `regex`, where there is one, must match around it."""

    word: str
    regex: re.Pattern[str] | None = None


@dataclass(frozen=True)
class Sample:
    """A real text of a failure, and where it is from."""

    text: str
    source: str


@dataclass(frozen=True)
class Signature:
    """`primary`: it names a cause, where other texts only follow from one. `general`: it names a
    cause so roughly that it counts as one only where nothing more exact was found. `late`: the
    failure of a rank brings it about, too (the others waited until the time was up), so that it
    is a cause only where no other exact one, and no unknown Python exception, was found. `follows`:
    signatures that explain it; found beside one of them, it follows from that.

    `lines`: how many lines the text spans. `names`: what the groups of its regexes are, in words;
    groups `host` and `rank` tell where it happened. `harmless`: no failure, though it looks it."""

    id: str
    patterns: tuple[Pattern, ...]
    cause: str = ""
    fix: str = ""
    source: str = ""
    primary: bool = True
    general: bool = False
    late: bool = False
    follows: tuple[str, ...] = ()
    lines: int = 1
    names: dict[str, str] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    harmless: bool = False
