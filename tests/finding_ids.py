"""The ids of all findings that the package's source can make.

An id is the first argument of a finding's class. Where that is a name, the literals count that may
reach it: through what binds the name in its module, through calls of the functions that take it as
a parameter, and, where the module imports it, through what binds it elsewhere.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path

# What a literal of a table must look like to be an id: other texts stand beside it.
ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")
Bindings = dict[str, list[ast.expr]]


def finding_ids(folder: Path, types: Collection[str]) -> set[str]:
    """The ids of findings of these classes below a folder; `*` stands for what an f-string fills
    in."""
    modules = [ast.parse(path.read_text()) for path in folder.rglob("*.py")]
    everywhere: Bindings = defaultdict(list)
    for module in modules:
        for name, values in _bindings(module.body).items():
            everywhere[name] += values
    found: set[str] = set()
    for module in modules:
        given = [*_first_arguments(module, types)]
        found |= {text for one in given for text in _texts(one)}
        if names := {name for one in given for name in _names(one)}:
            reached = _reached(names, _bindings([*ast.walk(module)]), everywhere)
            found |= {text for one in reached for text in _texts(one) if _may_be_id(one, text)}
    return found


def _may_be_id(expression: ast.expr, text: str) -> bool:
    """A constant by itself is one; the texts of a table are where they look like it."""
    return isinstance(expression, ast.Constant) or ID.fullmatch(text) is not None


def _first_arguments(module: ast.Module, types: Collection[str]) -> Iterator[ast.expr]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and _called(node) in types:
            named = [keyword.value for keyword in node.keywords if keyword.arg == "id"]
            yield from [*node.args[:1], *named]


def _reached(names: set[str], here: Bindings, everywhere: Bindings) -> list[ast.expr]:
    """The expressions that may give these names their values."""
    todo, seen, found = [*names], set(names), []
    while todo:
        name = todo.pop()
        values = here.get(name) or everywhere.get(name, [])
        found += values
        new = {other for value in values for other in _names(value)} - seen
        seen |= new
        todo += new
    return found


def _bindings(nodes: Collection[ast.AST]) -> Bindings:
    """Name -> what it is bound to by these statements, and by calls of functions that take it."""
    found: Bindings = defaultdict(list)
    takers = {
        node.name: [argument.arg for argument in node.args.args]
        for node in nodes
        if isinstance(node, ast.FunctionDef)
    }
    for node in nodes:
        for target, value in _assignments(node):
            for name in ast.walk(target):
                if isinstance(name, ast.Name):
                    found[name.id].append(value)
        if isinstance(node, ast.Call) and _called(node) in takers:
            for name, value in zip(takers[_called(node)], node.args, strict=False):
                found[name].append(value)
            for keyword in node.keywords:
                found[keyword.arg or ""].append(keyword.value)
    return found


def _assignments(node: ast.AST) -> Iterator[tuple[ast.AST, ast.expr]]:
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.For | ast.comprehension):
        yield node.target, node.iter


def _called(call: ast.Call) -> str:
    function = call.func
    return getattr(function, "id", "") or getattr(function, "attr", "")


def _texts(node: ast.AST) -> Iterator[str]:
    """The literals of an expression, f-strings with `*` for their fields."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(part.value if isinstance(part, ast.Constant) else "*" for part in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    else:
        for inner in ast.iter_child_nodes(node):
            yield from _texts(inner)


def _names(node: ast.AST) -> Iterator[str]:
    """The names whose values an expression passes on: none of a text's fields or of what it takes
    an attribute of."""
    if isinstance(node, ast.Name):
        yield node.id
    elif not isinstance(node, ast.Attribute | ast.JoinedStr):
        for inner in ast.iter_child_nodes(node):
            yield from _names(inner)
