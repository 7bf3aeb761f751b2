"""What a rank program's source shows without running it: what it imports and whom it calls."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_FILES, MAX_BYTES = 30, 2**20
# The calls by which Python starts another program: of subprocess, of os, and asyncio's.
STARTERS = frozenset(
    {"run", "Popen", "call", "check_call", "check_output", "getoutput", "system", "popen"}
    | {"execv", "execve", "execvp", "execlp", "spawnv", "spawnvp"}
    | {"create_subprocess_exec", "create_subprocess_shell"}
)


@dataclass(frozen=True)
class Call:
    """A call in a file, by line."""

    file: Path
    line: int
    node: ast.Call


@dataclass(frozen=True)
class Program:
    """A script, and the modules beside it that it imports."""

    imports: frozenset[str]
    calls: tuple[Call, ...]

    def named(self, name: str) -> list[Call]:
        """The calls of a function or method of this name, whatever stands before the dot."""
        return [one for one in self.calls if _name(one.node) == name]

    def started(self) -> Iterator[tuple[Call, str]]:
        """Calls that start another program whose name stands in the source, and that name."""
        for one in self.calls:
            word = _first_word(one.node) if _name(one.node) in STARTERS else ""
            if word:
                yield one, word.rsplit("/", 1)[-1]


def read_program(script: Path) -> Program | None:
    """The program of a script; None where one of its files cannot be read as Python."""
    todo, seen = [script], {script}
    imports: set[str] = set()
    calls: list[Call] = []
    while todo:
        path = todo.pop()
        tree = _tree(path)
        if tree is None:
            return None
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                calls.append(Call(path, node.lineno, node))
        names = _imported(tree)
        imports |= names
        beside = {path.parent / f"{name}.py" for name in names} - seen
        todo += [one for one in sorted(beside) if one.is_file()][: MAX_FILES - len(seen)]
        seen |= beside
    return Program(frozenset(imports), tuple(calls))


def _tree(path: Path) -> ast.Module | None:
    try:
        with path.open("rb") as stream:
            return ast.parse(stream.read(MAX_BYTES))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _imported(tree: ast.Module) -> set[str]:
    """The top-level names of what is imported anywhere in the file."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def _name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _first_word(call: ast.Call) -> str:
    first = call.args[0] if call.args else None
    if isinstance(first, ast.List | ast.Tuple):
        first = first.elts[0] if first.elts else None
    if not isinstance(first, ast.Constant) or not isinstance(first.value, str):
        return ""
    try:
        words = shlex.split(first.value)
    except ValueError:
        return ""
    return words[0] if words else ""
