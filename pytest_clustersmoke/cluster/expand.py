"""Variables in text: `$NAME`, `${NAME}`, `${NAME:-default}`, and `$$` for a dollar sign.

As in a shell, `:-` gives its default where the variable is unset or empty, and the default may
hold variables itself. A dollar sign before anything else stands for itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Variable:
    name: str
    default: tuple[str | Variable, ...] | None = None


Parts = tuple["str | Variable", ...]


class MalformedVariableError(ValueError):
    """The text starts a variable that it does not finish as one."""


def parse(text: str) -> Parts:
    """Split text into plain pieces and variables."""
    parts, end = _parse(text, 0, inside=False)
    assert end == len(text)
    return parts


def _parse(text: str, at: int, inside: bool) -> tuple[Parts, int]:
    """Read from `at` to the end, or inside a default to its closing brace."""
    parts: list[str | Variable] = []
    plain = ""
    while at < len(text) and not (inside and text[at] == "}"):
        if text[at] != "$":
            plain += text[at]
            at += 1
        elif text.startswith("$$", at):
            plain += "$"
            at += 2
        elif text.startswith("${", at):
            variable, at = _braced(text, at)
            parts += [plain, variable]
            plain = ""
        elif name := _NAME.match(text, at + 1):
            parts += [plain, Variable(name.group())]
            plain = ""
            at = name.end()
        else:
            plain += "$"
            at += 1
    parts.append(plain)
    return tuple(part for part in parts if part != ""), at


def _braced(text: str, at: int) -> tuple[Variable, int]:
    name = _NAME.match(text, at + 2)
    if name is None:
        raise MalformedVariableError(f"`{text[at:]}` names no variable")
    end = name.end()
    default: Parts | None = None
    if text.startswith(":-", end):
        default, end = _parse(text, end + 2, inside=True)
    if not text.startswith("}", end):
        raise MalformedVariableError(f"`{text[at:]}` is not finished as a variable")
    return Variable(name.group(), default), end + 1


def expand(parts: Parts, environ: Mapping[str, str], unset: list[str]) -> str:
    """The text with its variables filled in; names that have no value are added to `unset`."""
    return "".join(
        part if isinstance(part, str) else _value(part, environ, unset) for part in parts
    )


def _value(variable: Variable, environ: Mapping[str, str], unset: list[str]) -> str:
    value = lookup(variable.name, environ)
    if variable.default is not None:
        return value or expand(variable.default, environ, unset)
    if value is None:
        unset.append(variable.name)
        return ""
    return value


def lookup(name: str, environ: Mapping[str, str]) -> str | None:
    """A variable's value; cron and containers may not set USER and HOME, the password file does."""
    value = environ.get(name)
    if value or name not in ("USER", "HOME"):
        return value
    import pwd

    try:
        entry: Any = pwd.getpwuid(os.getuid())
    except KeyError:
        return value
    return str(entry.pw_name if name == "USER" else entry.pw_dir)
