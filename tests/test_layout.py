"""The structure of the package: its entries, the direction of imports, unique names."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable
from functools import cache
from graphlib import CycleError, TopologicalSorter

from tests.support.modules import MODULES, REPOSITORY

# From the bottom up, as in the map of `pytest_clustersmoke/__init__.py`. An entry imports only from
# layers below its own.
LAYERS = [
    {"text"},
    {"config"},
    {"evidence"},
    {"rank", "node"},
    {"jobs"},
    {"preflight", "lab"},
    {"criteria", "diagnose"},
    {"report", "faults"},
    {"session"},
    {"plugin", "cli"},
]
LEVEL = {entry: level for level, entries in enumerate(LAYERS) for entry in entries}


@cache
def parse_modules() -> dict[str, ast.Module]:
    return {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def imports_of(name: str) -> set[str]:
    """The package's modules that a module imports, also inside functions and for types."""
    package = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
    imports: set[str] = set()
    for node in ast.walk(parse_modules()[name]):
        if isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [base])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                imports.add(full if full in MODULES else base)
    return {module for module in imports if module in MODULES} - {name}


def entry_of(name: str) -> str:
    """The top-level entry of a module; empty for the package itself."""
    return name.partition(".")[2].partition(".")[0]


def entry_imports() -> dict[str, set[str]]:
    """Entry -> the other entries that any of its modules imports."""
    graph: dict[str, set[str]] = {}
    for name in MODULES:
        if entry := entry_of(name):
            reached = {entry_of(module) for module in imports_of(name)} - {"", entry}
            graph.setdefault(entry, set()).update(reached)
    return graph


def used_twice(names: Iterable[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def violations() -> set[str]:
    """Every breach of the layout, one line each."""
    graph = entry_imports()
    problems = {f"entry not in the map: {entry}" for entry in graph.keys() - LEVEL.keys()}
    problems |= {
        f"import that does not go down: {entry} -> {other}"
        for entry, others in graph.items()
        for other in others
        if LEVEL.get(other, -1) >= LEVEL.get(entry, len(LAYERS))
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        problems.add("entries import each other in a cycle")
    stems = [path.stem for path in MODULES.values() if not path.stem.startswith("__")]
    problems |= {f"file stem used twice: {stem}" for stem in used_twice(stems)}
    classes = [
        node.name
        for tree in parse_modules().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    return problems | {f"public class name used twice: {name}" for name in used_twice(classes)}


def test_layout_has_no_violation() -> None:
    """Imports go down, every entry is on the map, file stems and class names are unique."""
    assert sorted(violations()) == []


def test_package_map_lists_every_entry() -> None:
    """The docstring of `pytest_clustersmoke/__init__.py` has a line for each entry."""
    text = ast.get_docstring(parse_modules()["pytest_clustersmoke"]) or ""
    words = {line.split()[0] for line in text.splitlines() if line.startswith("    ")}
    listed = {word.removesuffix("/").removesuffix(".py") for word in words}
    assert sorted(LEVEL.keys() - listed) == []
    assert sorted(LEVEL.keys() - entry_imports().keys()) == []


def test_tests_mirror_the_entries() -> None:
    """A folder of tests/ is named after an entry, or is shared by several folders."""
    tests = REPOSITORY / "tests"
    folders = {path.parent.name for path in tests.glob("*/__init__.py")}
    assert sorted(folders - LEVEL.keys()) == ["fakes", "smoke", "support", "survival"]


def test_no_test_module_imports_from_another() -> None:
    """What test modules share is in tests/support, in tests/fakes, or in a module beside them."""
    tests = REPOSITORY / "tests"
    imports = {
        (str(path.relative_to(tests)), module)
        for path in tests.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for module in [getattr(node, "module", None) or "", *(name.name for name in node.names)]
    }
    # A suite under test may contain test files of its own; those are not part of `tests`.
    names = {path.stem for path in tests.rglob("test_*.py")}
    assert {(path, module) for path, module in imports if names & set(module.split("."))} == set()


def test_package_knows_no_name_of_the_suite() -> None:
    """No phase, program or criterion of `smoke_tests/` is named in the package, except in the
    examples of help and messages."""
    suite = REPOSITORY / "smoke_tests"
    names = {path.name for path in suite.glob("*.py")}
    for path in suite.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.phase":
                names.add(ast.literal_eval(node.args[0]))
    inherited = {
        node.name
        for node in ast.walk(parse_modules()["pytest_clustersmoke.criteria.phase_criteria"])
        if isinstance(node, ast.FunctionDef)
    }
    literals = {
        (module, node.value)
        for module, tree in parse_modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert {pair for pair in literals if pair[1] in names - inherited} == set()
