"""Lists what a class, a JSON schema, a JSON value or a help text contains, item by item."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

# An option in a usage line: in brackets, with the options that it excludes, or bare if required.
OPTION = re.compile(r"\[(-[^\]]*)\]|(--[a-z-]+ [A-Z]+)")


def members(thing: object) -> Iterator[str]:
    """The public attributes and methods of an object or a class, with the methods' parameters."""
    for name in dir(thing):
        if name.startswith("_"):
            continue
        static = inspect.getattr_static(thing, name)
        is_method = isinstance(static, FunctionType | classmethod | staticmethod)
        yield name + (_parameters(getattr(thing, name)) if is_method else "")


def _parameters(method: Any) -> str:
    signature = inspect.signature(method)
    plain = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def assigned(cls: type) -> Iterator[str]:
    """The public names that the methods of a class assign to `self`."""
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(cls)))):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            of_self = isinstance(node.value, ast.Name) and node.value.id == "self"
            if of_self and not node.attr.startswith("_"):
                yield node.attr


def classes(module: ModuleType) -> dict[str, type]:
    """The public classes that a module defines, or gathers from the modules below it, without
    exceptions, whose members are Python's."""
    return {
        name: member
        for name, member in vars(module).items()
        if isinstance(member, type)
        and member.__module__.startswith(module.__name__)
        and not issubclass(member, BaseException)
        and not name.startswith("_")
    }


def schema(path: Path) -> set[str]:
    """Every key of a JSON schema, with its types and the values it may have: `a object`,
    `a.b integer|null`, `a.c[] string`, `a.c[] = value`; `*` is any key."""
    root = json.loads(path.read_text())
    return {key.removeprefix(".") for key in _keys(root, root)}


def _keys(node: dict[str, Any], root: dict[str, Any]) -> Iterator[str]:
    """A node's types and everything below it, each relative to the node's path."""
    parts = [*_parts(node, root)]
    kinds = [part.get("type", []) for part in parts]
    types = {name for kind in kinds for name in ([kind] if isinstance(kind, str) else kind)}
    below = [*_below(parts, root)]
    if types - {"array", "object"} or (types and not below):
        yield f" {'|'.join(sorted(types))}"
    yield from below


def _below(parts: list[dict[str, Any]], root: dict[str, Any]) -> Iterator[str]:
    for part in parts:
        yield from (f" = {value}" for value in part.get("enum", ()))
        anything = part.get("additionalProperties")
        if isinstance(anything, dict):  # any key may be used; those named beside it are examples
            for name in part.get("propertyNames", {}).get("enum", ["*"]):
                yield from (f".{name}{below}" for below in _keys(anything, root))
        else:
            yield from _named(part.get("properties", {}), root)
        for item in [part["items"]] if "items" in part else part.get("prefixItems", ()):
            yield from (f"[]{below}" for below in _keys(item, root))


def _named(properties: dict[str, Any], root: dict[str, Any]) -> Iterator[str]:
    """The keys of an object; if all contain the same, the content is listed once."""
    keys = {name: [*_keys(node, root)] for name, node in properties.items()}
    first = next(iter(keys.values()), [])
    if len(keys) > 2 and len(first) > 2 and all(below == first for below in keys.values()):
        yield from (f".{name}" for name in keys)
        keys = {"<each>": first}
    yield from (f".{name}{words}" for name, below in keys.items() for words in below)


def _parts(node: dict[str, Any], root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A node of a JSON schema, with the nodes that it refers to or is composed of."""
    yield node
    if "$ref" in node:
        yield from _parts(root["$defs"][node["$ref"].rsplit("/", 1)[-1]], root)
    for word in ("allOf", "anyOf", "oneOf"):
        for inner in node.get(word, ()):
            yield from _parts(inner, root)


def keys_of(value: object) -> Iterator[str]:
    """The keys of a JSON value, at any depth: `.a`, `.a.b`, `.a.c[].d`."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield f".{name}"
            yield from (f".{name}{key}" for key in keys_of(inner))
    elif isinstance(value, list):
        for inner in value:
            yield from (f"[]{key}" for key in keys_of(inner))


def tables(text: str) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """The tables of a Markdown text: the heading above, the head, the rows."""
    for section in text.split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        lines = [line for line in body.splitlines() if line.startswith("|")]
        rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]
        if rows:
            yield title.strip("`"), rows[0], rows[2:]


def arguments(text: str) -> Iterator[str]:
    """The options and operands in a command's help: `[--json]`, `--cluster C`, `RUN RUN`."""
    (usage,) = re.findall(r"^usage: (.*)$", text, re.MULTILINE)
    for optional, required in OPTION.findall(usage):
        yield from (f"[{option}]" for option in optional.split(" | ") if option not in ("", "-h"))
        if required:
            yield required
    command_and_operands = " ".join(OPTION.sub("", usage).split())
    operands = re.sub(r"^clustersmoke( [a-z][\w-]*)*", "", command_and_operands).strip()
    if operands:
        yield operands


def subcommands(text: str) -> list[str]:
    """The subcommands in a help text, which are indented further than options."""
    return re.findall(r"^ {4}([a-z][\w-]*)(?: |$)", text, re.MULTILINE)
