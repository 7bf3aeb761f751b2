"""Read YAML into plain values, with the line of each key.

Scalars follow YAML 1.2: only `true` and `false` are booleans; `01:00:00`, `007` and dates are
text. Anchors, aliases and merge keys work; a key's line is where it was written, even if an anchor
brought it elsewhere. Duplicate keys and keys that are not text, which PyYAML accepts, are refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import yaml

from ..text import Problem, UsageProblems

# Keys and list positions from the top of the file to a value.
Route = tuple[str | int, ...]

# Far more than any file needs. A limit is necessary, since aliases can expand without end.
MAX_VALUES = 20_000
MAX_DEPTH = 40

_TAG = "tag:yaml.org,2002:"
_STR, _NULL = f"{_TAG}str", f"{_TAG}null"
_NUMBER = "-+0123456789"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """PyYAML's parser, in C if available, that recognises only the scalars below."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}


for _kind, _pattern, _firsts in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    # No leading zeros: `007` is a name, not a number.
    ("int", r"[-+]?(?:0|[1-9][0-9]{0,17})", _NUMBER),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?",
        _NUMBER + ".",
    ),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
    ("null", r"null|Null|NULL|~|", ("n", "N", "~", "")),
):
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(rf"(?:{_pattern})\Z"), list(_firsts))


@dataclass(frozen=True)
class Reading:
    """How to read the keys of a file."""

    # The canonical form of a key with several spellings (`cpus-per-task`).
    key: Callable[[Route, str], str] = lambda route, key: key
    # Whether a scalar is text even if it looks like a number (the version `2.10`).
    is_text: Callable[[Route], bool] = lambda route: False


@dataclass
class Source:
    """A file's values, and the line of every key and list item."""

    file: str
    values: Any = None
    lines: dict[Route, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def where(self, route: Route) -> str:
        """`file:line` of a key, or of the nearest key around it if it is not in the file."""
        for length in range(len(route), 0, -1):
            if line := self.lines.get(route[:length]):
                return f"{self.file}:{line}"
        return self.file


def display_path(path: Path) -> str:
    """The path for messages: relative to the working directory if it lies below it."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def read_yaml(path: Path, reading: Reading) -> Source:
    """Read a file; raises `UsageProblems` if it cannot be read as YAML."""
    file = display_path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        what = f"cannot be read: {error.strerror or type(error).__name__}"
        raise UsageProblems([Problem(what, file, "a readable YAML file")]) from None
    return _parse_yaml(content, Source(file), reading)


def read_value(text: str) -> Any:
    """One value, read as in the file; raises ValueError if the text is not valid."""
    try:
        source = _parse_yaml(os.fsencode(text), Source("value"), Reading())
    except UsageProblems as error:
        raise ValueError(str(error)) from None
    if source.problems:
        raise ValueError(str(source.problems[0]))
    return source.values


def _parse_yaml(content: bytes, source: Source, reading: Reading) -> Source:
    loader = _Loader(content)
    builder = _Builder(loader, source, reading)
    try:
        _check_depth(content)
        node = loader.get_single_node()
        if node is not None:
            source.values = builder.value(node, ())
    except yaml.YAMLError as error:
        raise UsageProblems([_malformed(content, source.file, error)]) from None
    except RecursionError:
        where, expected = f"{source.file}:{builder.line}", f"at most {MAX_VALUES} values"
        problem = Problem("aliases expand to too many values", where, expected)
        raise UsageProblems([*source.problems, problem]) from None
    finally:
        loader.dispose()
    # An anchor is read once per use, and so are its mistakes.
    source.problems = list(dict.fromkeys(source.problems))
    return source


def _check_depth(content: bytes) -> None:
    """Refuse deep nesting before nodes are composed: PyYAML's C parser would overrun its stack."""
    depth = 0
    for event in yaml.parse(content, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            what = f"values nest more than {MAX_DEPTH} levels deep"
            raise yaml.MarkedYAMLError(None, None, what, event.start_mark)  # type: ignore[arg-type]


def _malformed(content: bytes, file: str, error: yaml.YAMLError) -> Problem:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        line = error.problem_mark.line
        what = ", ".join(part for part in (error.context, error.problem) if part)
    else:  # a byte that is not UTF-8, or a control character
        line = content.count(b"\n", 0, getattr(error, "position", 0))
        what = getattr(error, "reason", str(error))
    return Problem(f"malformed YAML: {what}", f"{file}:{line + 1}", "valid YAML in UTF-8")


# Key -> the node of the key and the node of its value.
_Entries = dict[str, tuple[yaml.Node, yaml.Node]]


class _Builder:
    """Turns YAML nodes into values, and records lines and problems."""

    def __init__(self, loader: Any, source: Source, reading: Reading) -> None:
        self._loader = loader
        self._source = source
        self._reading = reading
        self._count = 0
        self.line = 1  # of the node read last

    def value(self, node: yaml.Node, route: Route) -> Any:
        self._count_node(node)
        if isinstance(node, yaml.MappingNode):
            entries = self._entries(node, route).items()
            return {key: self._placed(child, (*route, key), at) for key, (at, child) in entries}
        if isinstance(node, yaml.SequenceNode):
            items = enumerate(node.value)
            return tuple(self._placed(item, (*route, index), item) for index, item in items)
        if node.tag == _STR or (node.tag != _NULL and self._reading.is_text(route)):
            return node.value
        try:
            return self._loader.construct_object(node)
        except (ValueError, LookupError, AttributeError):  # `!!int five`
            self._problem(node, f"`{node.value}` does not fit its tag", "a plain value")

    def _placed(self, node: yaml.Node, route: Route, at: yaml.Node) -> Any:
        self._source.lines[route] = _line(at)
        return self.value(node, route)

    def _entries(self, node: yaml.Node, route: Route) -> _Entries:
        """A mapping's keys and values, with those from merge keys; its own keys win."""
        own: _Entries = {}
        merged: _Entries = {}
        for key_node, child in node.value:
            self._count_node(key_node)
            if key_node.tag != _STR or not isinstance(key_node, yaml.ScalarNode):
                name = f"the key `{key_node.value}`" if key_node.id == "scalar" else "a key"
                expected = "text; put it in quotes"
                self._problem(key_node, f"{name} is not text", expected)
                continue
            key = self._reading.key(route, key_node.value)
            if key in own:
                first = _line(own[key][0])
                what = f"the key `{key}` appears twice (first at line {first})"
                self._problem(key_node, what, "each key once")
            own.setdefault(key, (key_node, child))
        if "<<" in own:
            for part in self._merged(own.pop("<<")[1]):
                merged = {**self._entries(part, route), **merged}
        return {**merged, **own}

    def _merged(self, node: yaml.Node) -> Iterator[yaml.Node]:
        """The mappings that `<<` merges; the first one that holds a key wins."""
        for part in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if isinstance(part, yaml.MappingNode):
                yield part
            else:
                self._problem(
                    part,
                    "`<<` merges something that is not a mapping",
                    "`<<: *anchor` of a mapping",
                )

    def _count_node(self, node: yaml.Node) -> None:
        self.line = _line(node)
        self._count += 1
        if self._count > MAX_VALUES:
            raise RecursionError

    def _problem(self, node: yaml.Node, what: str, expected: str) -> None:
        self._source.problems.append(Problem(what, f"{self._source.file}:{_line(node)}", expected))


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
