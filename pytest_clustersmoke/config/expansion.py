"""Expand variables in text: `$NAME`, `${NAME}`, `${NAME:-default}`, and `$$` for a dollar sign.

As in a shell, the default applies if the variable is unset or empty, and may contain variables
itself. A dollar sign before anything else stands for itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from .field_types import Misfits, misfit, raise_misfits
from .yaml_source import Route

Lookup = Callable[[str], str | None]

_VARIABLE = re.compile(r"\$\$|\$(?P<brace>\{)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)")
# The node's shell expands `setup`; the other keys are text for people.
_NOT_EXPANDED = ("setup", "description", "references", "known")
_PATHS = ("shared_dir", "node_local")


class MalformedVariableError(ValueError):
    """The text starts a variable but does not finish it."""


def expand(text: str, lookup: Lookup, unset: list[str]) -> str:
    """The text with its variables filled in; names without a value are added to `unset`."""
    return _expand(text, 0, False, lookup, unset)[0]


def _expand(text: str, at: int, inside: bool, lookup: Lookup, unset: list[str]) -> tuple[str, int]:
    """Expand from `at` to the end, or inside a default to its closing brace."""
    filled = ""
    while at < len(text) and not (inside and text[at] == "}"):
        match = _VARIABLE.match(text, at)
        if match is None:
            if text.startswith("${", at):
                raise MalformedVariableError(f"`{text[at:]}` has no variable name")
            filled, at = filled + text[at], at + 1
        elif match["name"] is None:
            filled, at = filled + "$", match.end()
        else:
            value, at = _expand_variable(text, match, lookup, unset)
            filled += value
    return filled, at


def _expand_variable(
    text: str, match: re.Match[str], lookup: Lookup, unset: list[str]
) -> tuple[str, int]:
    value, default, at = lookup(match["name"]), None, match.end()
    if match["brace"]:
        if text.startswith(":-", at):
            default, at = _expand(text, at + 2, True, lookup, [] if value else unset)
        if not text.startswith("}", at):
            what = f"`{text[match.start() :]}` is an unfinished variable"
            raise MalformedVariableError(what)
        at += 1
    if value is None and default is None:
        unset.append(match["name"])
    return value or default or "", at


def lookup_variable(name: str, environ: Mapping[str, str]) -> str | None:
    """A variable's value; USER and HOME, which cron and containers may not set, also come from the
    password file."""
    value = environ.get(name)
    if value or name not in ("USER", "HOME"):
        return value
    import pwd

    try:
        entry: Any = pwd.getpwuid(os.getuid())
    except KeyError:
        return value
    return str(entry.pw_name if name == "USER" else entry.pw_dir)


def expand_profile(profile: Any, lookup: Lookup) -> Any:
    """A profile with its variables filled in; raises a ValidationError if one has no value."""
    misfits: Misfits = []
    filled = _expand_values(profile, (), lookup, misfits)
    raise_misfits(misfits)
    return filled


def _expand_values(value: Any, route: Route, lookup: Lookup, misfits: Misfits) -> Any:
    if isinstance(value, str):
        text = _expand_text(value, route, lookup, misfits)
        return _expand_home(text, lookup) if route and route[0] in _PATHS else text
    if isinstance(value, tuple):
        items = enumerate(value)
        return tuple(
            _expand_values(item, (*route, index), lookup, misfits) for index, item in items
        )
    if isinstance(value, dict):
        return {
            key: item
            if not route and key in _NOT_EXPANDED
            else _expand_values(item, (*route, key), lookup, misfits)
            for key, item in value.items()
        }
    return value


def _expand_text(text: str, route: Route, lookup: Lookup, misfits: Misfits) -> str:
    unset: list[str] = []
    try:
        text = expand(text, lookup, unset)
    except MalformedVariableError as error:
        form, todo = "`$NAME`, `${NAME}` or `${NAME:-default}`", "write `$$` for a dollar sign"
        misfits.append((route, misfit(form, todo, f"{error} in {{key}}"), text))
    for name in dict.fromkeys(unset):
        what = f"the variable {name} in {{key}} is not set"
        expected = "a value, or a default, as in `${" + name + ":-default}`"
        todo = f"export {name}, or add a default"
        misfits.append((route, misfit(expected, todo, what), text))
    return text


def _expand_home(path: str, lookup: Lookup) -> str:
    """The path with a leading `~` replaced, if a home directory is known."""
    if path == "~" or path.startswith("~/"):
        return (lookup("HOME") or "~") + path[1:]
    return path
