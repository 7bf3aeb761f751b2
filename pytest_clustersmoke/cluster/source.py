"""YAML text -> plain values, with the line where each key stands.

The scalars are those of YAML 1.2 that nobody trips over: only `true` and `false` are booleans,
`01:00:00` and `007` stay the text that was written, and dates are text. Anchors, aliases and merge
keys work, and the line of a key is the line where it was written, behind an anchor too. What
PyYAML lets pass is refused: a key that stands twice, keys that are no text, foreign tags, aliases
that contain themselves, and files whose aliases unfold without end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pytest_clustersmoke.errors import Problem, UsageProblems

# Keys and list positions that lead to a value, from the top of the file.
Route = tuple[str | int, ...]

# What a cluster file can hold with a wide margin; beyond it something is wrong with the file.
MAX_BYTES = 2**20
MAX_VALUES = 20_000
MAX_DEPTH = 40

_TAG = "tag:yaml.org,2002:"
_STR, _INT, _FLOAT, _BOOL, _NULL, _MAP, _SEQ, _MERGE = (
    _TAG + name for name in ("str", "int", "float", "bool", "null", "map", "seq", "merge")
)
_SCALARS: tuple[tuple[str, str, str], ...] = (
    (_BOOL, r"true|True|TRUE|false|False|FALSE", "tTfF"),
    # No leading zeros: `007` is a name, not a number.
    (_INT, r"[-+]?(?:0|[1-9][0-9]{0,17})", "-+0123456789"),
    (
        _FLOAT,
        r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
    (_NULL, r"null|Null|NULL|~|", "nN~"),
    (_MERGE, r"<<", "<"),
)


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    table: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for tag, pattern, firsts in _SCALARS:
        for first in firsts:
            table.setdefault(first, []).append((tag, re.compile(f"(?:{pattern})\\Z")))
    table[""] = [(_NULL, re.compile(r"\Z"))]
    return table


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """PyYAML's parser, in C where it is there, with the scalars above."""

    yaml_implicit_resolvers = _resolvers()


@dataclass(frozen=True)
class Reading:
    """What a file's keys mean for reading it."""

    # The one form of a key that may be written in several ("cpus-per-task").
    key: Callable[[Route, str], str] = lambda route, key: key
    # Whether the scalar there is text however it looks (a version `2.10` is no number).
    is_text: Callable[[Route], bool] = lambda route: False


@dataclass
class Source:
    """A file's values, and the line of every key and list item."""

    file: str
    values: Any = None
    lines: dict[Route, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def where(self, route: Route) -> str:
        """`file:line` of a key; of the nearest key around it where it is not in the file."""
        for length in range(len(route), 0, -1):
            if line := self.lines.get(route[:length]):
                return f"{self.file}:{line}"
        return self.file


def shown(path: Path) -> str:
    """The path as messages show it: from the working directory where it lies below it."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def read(path: Path, reading: Reading) -> Source:
    """Read a file; raises `UsageProblems` where no values can be had from it at all."""
    file = shown(path)
    text = _text(path, file)
    source = Source(file)
    try:
        _check_depth(text)
        node = yaml.compose(text, Loader=_Loader)
        if node is not None:
            source.values = _Builder(source, reading).value(node, ())
    except yaml.YAMLError as error:
        raise UsageProblems([_malformed(file, text, error)]) from None
    except _TooLargeError as error:
        source.problems.append(
            Problem(
                str(error),
                f"{file}:{error.line}",
                f"at most {MAX_VALUES} values and {MAX_DEPTH} levels, aliases unfolded",
                "take out the aliases or levels that nothing needs",
            )
        )
        raise UsageProblems(source.problems) from None
    # An anchor is read once for each place that uses it, and so are its mistakes.
    source.problems = list(dict.fromkeys(source.problems))
    return source


def read_value(text: str) -> Any:
    """One value as it could stand in the file; raises ValueError where the text is none."""
    try:
        _check_depth(text)
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, _TooLargeError) as error:
        raise ValueError(str(error)) from None


def _text(path: Path, file: str) -> str:
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except IsADirectoryError:
        raise UsageProblems([Problem("is a directory", file, "a YAML file")]) from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UsageProblems(
            [Problem(f"cannot be read: {reason}", file, "a readable YAML file")]
        ) from None
    if len(content) > MAX_BYTES:
        raise UsageProblems(
            [Problem(f"is larger than {MAX_BYTES} bytes", file, "a YAML file of profiles")]
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        what = f"byte 0x{content[error.start]:02x} is not UTF-8"
        raise UsageProblems([Problem(what, f"{file}:{line}", "UTF-8 text")]) from None


def _check_depth(text: str) -> None:
    """Refuse deep nesting before nodes are composed: PyYAML's parser in C overruns its stack."""
    depth = line = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            line = event.start_mark.line + 1 if event.start_mark else line
            if depth > MAX_DEPTH:
                raise _TooLargeError("nests too deep", line)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _malformed(file: str, text: str, error: yaml.YAMLError) -> Problem:
    expected = "valid YAML"
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is not None:
        parts = (getattr(error, "context", None), getattr(error, "problem", None))
        what = ", ".join(" ".join(part.split()) for part in parts if part)
        return Problem(f"malformed YAML: {what}", f"{file}:{mark.line + 1}", expected)
    control = re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", text)
    if control:
        line = text.count("\n", 0, control.start()) + 1
        what = f"malformed YAML: control character 0x{ord(control.group()):02x}"
        return Problem(what, f"{file}:{line}", expected)
    return Problem(f"malformed YAML: {' '.join(str(error).split())}", file, expected)


class _TooLargeError(Exception):
    def __init__(self, what: str, line: int) -> None:
        super().__init__(what)
        self.line = line


class _Builder:
    """Turns YAML nodes into values, and notes lines and problems on the way."""

    def __init__(self, source: Source, reading: Reading) -> None:
        self._source = source
        self._reading = reading
        self._count = 0
        self._open: set[int] = set()

    def value(self, node: yaml.Node, route: Route) -> Any:
        self._spend(node)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, route)
        if id(node) in self._open:
            self._problem(node, "an alias contains itself", "values that end")
            return None
        if len(self._open) >= MAX_DEPTH:
            raise _TooLargeError("nests too deep", _line(node))
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                self._check_tag(node, _SEQ)
                return tuple(self._items(node, route))
            self._check_tag(node, _MAP)
            return self._mapping(node, route)
        finally:
            self._open.discard(id(node))

    def _items(self, node: yaml.SequenceNode, route: Route) -> Iterator[Any]:
        for index, item in enumerate(node.value):
            at = (*route, index)
            self._source.lines[at] = _line(item)
            yield self.value(item, at)

    def _mapping(self, node: yaml.Node, route: Route) -> dict[str, Any]:
        values = {}
        for key, (line, child) in self._entries(node, route).items():
            at = (*route, key)
            self._source.lines[at] = line
            values[key] = self.value(child, at)
        return values

    def _entries(self, node: yaml.Node, route: Route) -> dict[str, tuple[int, yaml.Node]]:
        """A mapping's keys with what merge keys add; what the mapping says itself wins."""
        own: dict[str, tuple[int, yaml.Node]] = {}
        merged: dict[str, tuple[int, yaml.Node]] = {}
        merge_line = 0
        for key_node, child in node.value:
            self._spend(key_node)
            line = _line(key_node)
            if key_node.tag == _MERGE:
                if merge_line:
                    self._problem(
                        key_node,
                        f"`<<` stands twice (first at line {merge_line})",
                        "one `<<: [*first, *second]`",
                    )
                merge_line = line
                for key, entry in self._merged(child, route).items():
                    merged.setdefault(key, entry)
                continue
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != _STR:
                text = getattr(key_node, "value", None)
                name = f"the key `{text}`" if isinstance(text, str) else "a key"
                self._problem(key_node, f"{name} is no text", "text, quoted where it looks other")
                continue
            key = self._reading.key(route, key_node.value)
            if key in own:
                self._problem(
                    key_node,
                    f"the key `{key}` stands twice (first at line {own[key][0]})",
                    "each key once",
                )
            else:
                own[key] = (line, child)
        return {**merged, **own}

    def _merged(self, node: yaml.Node, route: Route) -> dict[str, tuple[int, yaml.Node]]:
        """What `<<` brings in; of several mappings the earlier one wins."""
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        entries: dict[str, tuple[int, yaml.Node]] = {}
        for part in parts:
            if not isinstance(part, yaml.MappingNode):
                self._problem(part, "`<<` merges what is no mapping", "`<<: *anchor` of a mapping")
            elif id(part) in self._open:
                self._problem(part, "an alias contains itself", "values that end")
            else:
                self._open.add(id(part))
                for key, entry in self._entries(part, route).items():
                    entries.setdefault(key, entry)
                self._open.discard(id(part))
        return entries

    def _scalar(self, node: yaml.ScalarNode, route: Route) -> Any:
        text: str = node.value
        if node.tag == _NULL:
            return None
        if node.tag in (_STR, _MERGE) or self._reading.is_text(route):
            return text
        try:
            if node.tag == _BOOL:
                return {"true": True, "false": False}[text.lower()]
            if node.tag == _INT:
                return int(text)
            if node.tag == _FLOAT:
                return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        except (ValueError, KeyError):
            self._problem(node, f"`{text}` does not fit its tag", "a plain value without a tag")
            return None
        self._check_tag(node, _STR)
        return text

    def _check_tag(self, node: yaml.Node, usual: str) -> None:
        if node.tag != usual:
            tag = node.tag.replace(_TAG, "!!")
            self._problem(node, f"the tag `{tag}` is not known here", "plain values without tags")

    def _spend(self, node: yaml.Node) -> None:
        self._count += 1
        if self._count > MAX_VALUES:
            raise _TooLargeError("its aliases unfold to too many values", _line(node))

    def _problem(self, node: yaml.Node, what: str, expected: str) -> None:
        self._source.problems.append(Problem(what, f"{self._source.file}:{_line(node)}", expected))


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
