"""Reads `signatures.yaml`: the known failures, each with its texts, its cause and its fix.

Everything wrong in the file is reported at once, with line numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from ..text import Problem, UsageProblems, near

FILE = Path(__file__).with_name("signatures.yaml")
MAX_LINES = 12
MIN_WORD = 6
ID = re.compile(r"[a-z][a-z0-9_]*")
# Groups that say where it happened; all others need a name in words.
PLACES = {"host", "rank"}
KINDS: dict[str, tuple[type, str]] = {
    "id": (str, "a name in lower case with underscores"),
    "primary": (bool, "true or false"),
    "general": (bool, "true or false"),
    "late": (bool, "true or false"),
    "teardown": (bool, "true or false"),
    "always": (bool, "true or false"),
    "warning": (bool, "true or false"),
    "follows": (tuple, "a list of ids"),
    "cause": (str, "why it happens, in a sentence"),
    "fix": (str, "what to do, in a sentence"),
    "source": (str, "where it is described: a link, or a document and its section"),
    "lines": (int, f"how many lines it spans, 2 to {MAX_LINES}"),
    "names": (dict, "what its groups are: `group: words`"),
    "patterns": (tuple, "a list of texts, or of `word` and `regex`"),
    "samples": (tuple, "a list of `text` and `source`"),
}
# Classes that do not match a line's end.
NEGATED = re.compile(r"\[\^[^\]]*\\n[^\]]*\]")
PATTERN_KEYS = {"word", "regex", "after", "until"}
NEEDED = ("id", "primary", "cause", "fix", "source", "patterns", "samples")
HARMLESS_NEEDED = ("id", "source", "patterns", "samples")
# With these, a hostile line could take unbounded time.
ENDLESS = re.compile(r"(?<!\\)\.[*+]|\.\{\d*,\}|[*+}]\)[*+{]")


@dataclass(frozen=True)
class Pattern:
    """A text in a log: every line that can match contains `word` literally, which is how it is
    found; `regex`, if given, must match around it. `after`: the harmless signature that must have
    been found above it in the same log. `until`: the one that says that the fault is over."""

    word: str
    regex: re.Pattern[str] | None = None
    after: str = ""
    until: str = ""

    @cached_property
    def spans_lines(self) -> bool:
        """Whether the regex can match more than one line."""
        regex = NEGATED.sub("", self.regex.pattern) if self.regex else ""
        return "\\n" in regex or "\\s" in regex


@dataclass(frozen=True)
class Sample:
    """A real text of a failure, and its source."""

    text: str
    source: str


@dataclass(frozen=True)
class Signature:
    """`primary`: it names a cause; other texts are only consequences. `general`: it names a cause
    so vaguely that it counts only if nothing more exact was found. `late`: a rank's failure can
    lead to it (the others wait until a time limit), so it is a cause only if no other exact one,
    and no unknown Python exception, was found. `teardown`: processes of healthy runs print it too
    as they end, so it is ignored after a run that succeeded. `always`: it counts even if the run
    succeeded; a process was ended, or hardware failed. `warning`: a program can go on without what
    it names, so progress after it shows that this one did. `follows`: signatures that explain it;
    next to one of them it is a consequence.

    `lines`: how many lines the text spans. `names`: what the groups of its regexes are, in words;
    the groups `host` and `rank` say where it happened. `harmless`: looks like a failure but is
    not."""

    id: str
    patterns: tuple[Pattern, ...]
    cause: str = ""
    fix: str = ""
    source: str = ""
    primary: bool = True
    general: bool = False
    late: bool = False
    teardown: bool = False
    always: bool = False
    warning: bool = False
    follows: tuple[str, ...] = ()
    lines: int = 1
    names: dict[str, str] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    harmless: bool = False


@lru_cache(maxsize=1)
def shipped_signatures() -> tuple[Signature, ...]:
    """The signatures that ship with the package, including the harmless ones."""
    return load_signatures(FILE)


def load_signatures(path: Path) -> tuple[Signature, ...]:
    """Read and check a signature file; raises UsageProblems with everything wrong in it."""
    from ..config.yaml_source import Reading, read_yaml

    text = ("text", "word", "regex", "source", "cause", "fix")
    source = read_yaml(path, Reading(is_text=lambda route: route[-1] in text or "names" in route))
    checker = _Checker(source)
    signatures = checker.signatures()
    problems = [*source.problems, *checker.problems]
    if problems:
        raise UsageProblems(problems)
    return tuple(signatures)


class _Checker:
    def __init__(self, source: Any) -> None:
        self._source = source
        self.problems: list[Problem] = []

    def signatures(self) -> list[Signature]:
        top = self._source.values
        if not isinstance(top, dict) or not isinstance(top.get("signatures"), tuple):
            self._bad((), "holds no signatures", "a list under `signatures`")
            return []
        for key in set(top) - {"signatures", "harmless"}:
            self._bad((key,), f"unknown key `{key}`", "`signatures` and `harmless`")
        signatures = [
            signature
            for section in ("signatures", "harmless")
            for index, values in enumerate(top.get(section) or ())
            if (signature := self._signature((section, index), values)) is not None
        ]
        self._check_ids(signatures)
        return signatures

    def _signature(self, route: tuple[Any, ...], values: Any) -> Signature | None:
        """One entry; None if something is wrong with it."""
        before = len(self.problems)
        harmless = route[0] == "harmless"
        if not isinstance(values, dict):
            self._bad(route, "a signature is not a mapping", "its keys, `id` first")
            return None
        for key in HARMLESS_NEEDED if harmless else NEEDED:
            if key not in values:
                self._bad(route, f"the signature has no `{key}`", KINDS[key][1])
        for key, value in values.items():
            self._check_kind((*route, key), key, value)
        if len(self.problems) > before:
            return None
        lines, names = values.get("lines", 1), values.get("names", {})
        patterns = tuple(self._patterns(route, values["patterns"]))
        samples = tuple(self._samples(route, values["samples"]))
        self._check_groups(route, patterns, names)
        if not ID.fullmatch(values["id"]):
            self._bad((*route, "id"), f"`{values['id']}` is not an id", KINDS["id"][1])
        if "lines" in values and not 2 <= lines <= MAX_LINES:
            self._bad((*route, "lines"), f"`lines` is {lines}", KINDS["lines"][1])
        if values.get("general") and not values.get("primary"):
            self._bad((*route, "general"), "general, but not primary", "`primary: true` with it")
        if values.get("late") and (values.get("general") or not values.get("primary")):
            problem = "late, but not an exact cause"
            self._bad((*route, "late"), problem, "`primary: true`, not general")
        kept = {key: value for key, value in values.items() if key not in ("patterns", "samples")}
        return Signature(**kept, patterns=patterns, samples=samples, harmless=harmless)

    def _check_kind(self, route: tuple[Any, ...], key: str, value: Any) -> None:
        if key not in KINDS:
            self._bad(route, f"unknown key `{key}`", ", ".join(KINDS), near(key, KINDS))
            return
        kind, expected = KINDS[key]
        wrong = not isinstance(value, kind) or (kind is int and isinstance(value, bool))
        if wrong or (kind in (str, tuple) and not value):
            self._bad(route, f"`{key}` is {value!r:.60}", expected)

    def _patterns(self, route: tuple[Any, ...], values: Any) -> Iterator[Pattern]:
        for index, value in enumerate(values):
            at = (*route, "patterns", index)
            if isinstance(value, str):
                value = {"word": value}
            if not isinstance(value, dict) or not {"word"} <= set(value) <= PATTERN_KEYS:
                self._bad(at, "a pattern has the wrong form", KINDS["patterns"][1])
                continue
            word, regex = value["word"], value.get("regex")
            if not isinstance(word, str) or len(word) < MIN_WORD or "\n" in word:
                expected = f"at least {MIN_WORD} characters of one line"
                self._bad(at, f"`{word}` cannot be a `word`", expected)
                continue
            others = (str(value.get(key, "")) for key in ("after", "until"))
            yield Pattern(word, self._regex(at, regex), *others)

    def _regex(self, route: tuple[Any, ...], regex: Any) -> re.Pattern[str] | None:
        if regex is None:
            return None
        if not isinstance(regex, str):
            self._bad(route, f"`regex` is {regex!r:.60}", "a regular expression")
            return None
        if endless := ENDLESS.search(regex):
            expected = "repetitions with a bound, such as `.{0,200}?`"
            self._bad(route, f"`{endless.group()}` in the regex has no bound", expected)
            return None
        try:
            return re.compile(regex, re.MULTILINE)
        except re.error as error:
            self._bad(route, f"the regex is malformed: {error}", "a regex of Python's `re`")
            return None

    def _samples(self, route: tuple[Any, ...], values: Any) -> Iterator[Sample]:
        for index, value in enumerate(values):
            whole = isinstance(value, dict) and set(value) == {"text", "source"}
            if not whole or not all(isinstance(text, str) and text for text in value.values()):
                at = (*route, "samples", index)
                self._bad(at, "a sample has the wrong form", KINDS["samples"][1])
                continue
            yield Sample(**value)

    def _check_groups(
        self, route: tuple[Any, ...], patterns: tuple[Pattern, ...], names: dict[str, Any]
    ) -> None:
        groups = {
            group for pattern in patterns if pattern.regex for group in pattern.regex.groupindex
        }
        for group in sorted(groups - PLACES - set(names)):
            self._bad((*route, "names"), f"the group `{group}` has no name", KINDS["names"][1])
        for name in sorted(set(names) - groups):
            self._bad((*route, "names", name), f"no regex has a group `{name}`", "names of groups")

    def _check_ids(self, signatures: list[Signature]) -> None:
        ids: set[str] = set()
        for signature in signatures:
            if signature.id in ids:
                self._bad(("signatures",), f"the id `{signature.id}` appears twice", "each id once")
            ids.add(signature.id)
        harmless = {signature.id for signature in signatures if signature.harmless}
        for signature in signatures:
            for pattern in signature.patterns:
                for other in filter(None, (pattern.after, pattern.until)):
                    if other not in harmless:
                        problem = f"a pattern of `{signature.id}` refers to `{other}`"
                        expected = "the id of a harmless signature"
                        self._bad(("signatures",), problem, expected, near(other, harmless))
            for other in signature.follows:
                if other not in ids or other == signature.id:
                    problem = f"`{signature.id}` follows `{other}`, which is not another signature"
                    self._bad(("signatures",), problem, "ids of signatures", near(str(other), ids))

    def _bad(self, route: tuple[Any, ...], problem: str, expected: str, todo: str = "") -> None:
        self.problems.append(Problem(problem, self._source.where(route), expected, todo))
