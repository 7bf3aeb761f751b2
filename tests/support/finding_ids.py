"""The ids of all findings that the package can create, read from its source.

An id is the first argument of a finding's class. Where that argument is a name, the ids are the
literals that may reach it: through assignments and loops in its module, through calls of the
function whose parameter it is, and, if the module imports it, through assignments elsewhere.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

# A literal inside a table counts as an id only if it looks like one.
ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")
Bindings = dict[str, list[ast.expr]]


def finding_ids(folder: Path, types: Collection[str]) -> set[str]:
    """The ids given to these classes in the sources below a folder; `*` stands for the fields of
    an f-string."""
    modules = [ast.parse(path.read_text()) for path in folder.rglob("*.py")]
    everywhere: Bindings = defaultdict(list)
    calls: dict[str, list[ast.Call]] = defaultdict(list)
    for module in modules:
        _bind(module.body, everywhere)
        for node in ast.walk(module):
            if isinstance(node, ast.Call):
                calls[_called(node)].append(node)
    ids: set[str] = set()
    for module in modules:
        arguments = [*_first_arguments(module, types)]
        ids |= {text for argument in arguments for text in _texts(argument)}
        if names := {name for argument in arguments for name in _names(argument)}:
            here: Bindings = defaultdict(list)
            _bind(ast.walk(module), here)
            _bind_parameters(ast.walk(module), calls, here)
            for value in _reaching(names, here, everywhere):
                ids |= {text for text in _texts(value) if _may_be_id(value, text)}
    return ids


def _may_be_id(expression: ast.expr, text: str) -> bool:
    """Whether a text of an expression that reaches an id is an id: a lone constant always is."""
    return isinstance(expression, ast.Constant) or ID.fullmatch(text) is not None


def _first_arguments(module: ast.Module, types: Collection[str]) -> Iterator[ast.expr]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and _called(node) in types:
            named = [keyword.value for keyword in node.keywords if keyword.arg == "id"]
            yield from [*node.args[:1], *named]


def _reaching(names: set[str], here: Bindings, everywhere: Bindings) -> list[ast.expr]:
    """The expressions whose values may reach these names."""
    todo, seen = [*names], set(names)
    reaching: list[ast.expr] = []
    while todo:
        name = todo.pop()
        values = here.get(name) or everywhere.get(name, [])
        reaching += values
        new = {other for value in values for other in _names(value)} - seen
        seen |= new
        todo += new
    return reaching


def _bind(nodes: Iterable[ast.AST], bindings: Bindings) -> None:
    """Record which expressions these statements assign to which names."""
    for node in nodes:
        for target, value in _assignments(node):
            for name in ast.walk(target):
                if isinstance(name, ast.Name):
                    bindings[name.id].append(value)


def _bind_parameters(
    nodes: Iterable[ast.AST], calls: dict[str, list[ast.Call]], bindings: Bindings
) -> None:
    """Record what any call in the package passes to the parameters of these functions."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            names = [arg.arg for arg in node.args.args if arg.arg not in ("self", "cls")]
            for call in calls[node.name]:
                for name, value in zip(names, call.args, strict=False):
                    bindings[name].append(value)
                for keyword in call.keywords:
                    bindings[keyword.arg or ""].append(keyword.value)


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
        parts = [part.value if isinstance(part, ast.Constant) else "*" for part in node.values]
        yield "".join(map(str, parts))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    else:
        for inner in ast.iter_child_nodes(node):
            yield from _texts(inner)


def _names(node: ast.AST) -> Iterator[str]:
    """The names whose values an expression passes on: not those in an f-string, and not those
    whose attribute it takes."""
    if isinstance(node, ast.Name):
        yield node.id
    elif not isinstance(node, ast.Attribute | ast.JoinedStr):
        for inner in ast.iter_child_nodes(node):
            yield from _names(inner)
