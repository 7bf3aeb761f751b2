"""Entries of a file -> YAML with comments: what was guessed is marked, with the reason."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

WIDTH = 100
MARK = "check this"


@dataclass(frozen=True)
class Remark:
    """A comment on lines of its own."""

    text: str


@dataclass(frozen=True)
class Entry:
    """A key. `value` is plain data, or a block of entries; `guess` why it is one, if it is."""

    key: str
    value: Any
    guess: str = ""


Item = Entry | Remark


class Block(tuple[Item, ...]):
    """Entries below a key."""


def render(items: Sequence[Item], indent: int = 0) -> Iterator[str]:
    """The lines of a file, each at most WIDTH long unless a single value is longer."""
    margin = " " * indent
    for item in items:
        if isinstance(item, Remark):
            yield from comment(item.text, indent)
            continue
        if item.guess:
            yield from comment(f"{MARK}: {item.guess}", indent)
        key = f"{margin}{scalar(item.key)}:"
        if isinstance(item.value, Block):
            yield key
            yield from render(item.value, indent + 2)
        elif isinstance(item.value, list) and len(f"{key} {flow(item.value)}") > WIDTH:
            yield key
            yield from (f"{margin}  - {flow(one)}" for one in item.value)
        elif isinstance(item.value, dict) and len(f"{key} {flow(item.value)}") > WIDTH:
            yield key
            yield from (
                f"{margin}  {scalar(name)}: {flow(one)}" for name, one in item.value.items()
            )
        elif item.value is None:
            yield key
        else:
            value = item.value
            yield f"{key} {scalar(value) if isinstance(value, str) else flow(value)}"


def comment(text: str, indent: int) -> Iterator[str]:
    for line in textwrap.wrap(text, WIDTH - indent - 2, break_on_hyphens=False):
        yield f"{' ' * indent}# {line}"


def scalar(value: Any) -> str:
    """A value on one line, quoted where YAML would read another."""
    text = yaml.safe_dump(value, default_flow_style=True, width=float("inf"))
    return text.removesuffix("\n").removesuffix("\n...")


def flow(value: Any) -> str:
    """`{a: 1, b: 2}`, `[a, b]` or a scalar, on one line."""
    if isinstance(value, dict):
        inside = ", ".join(f"{scalar(key)}: {flow(one)}" for key, one in value.items())
        return f"{{{inside}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_in_flow, value))}]"
    return _in_flow(value)


def _in_flow(value: Any) -> str:
    """A comma or a bracket would end a plain value inside braces: it is quoted then."""
    text = scalar(value)
    if isinstance(value, str) and text == value and set(value) & set(",[]{}"):
        return yaml.safe_dump(value, default_style='"', width=float("inf")).strip()
    return text


def guesses(items: Sequence[Item], under: str = "") -> Iterator[tuple[str, str]]:
    """Every guess as (the key's full name, why), in the order of the file."""
    for item in items:
        if isinstance(item, Remark):
            if item.text.startswith(f"{MARK}: "):
                yield under, item.text.removeprefix(f"{MARK}: ")
        else:
            name = f"{under}.{item.key}".lstrip(".")
            if item.guess:
                yield name, item.guess
            if isinstance(item.value, Block):
                yield from guesses(item.value, name)
