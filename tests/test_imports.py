"""The controller imports nothing heavy, and a plain pytest nothing slow."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.modules import MODULES

REPOSITORY = Path(__file__).resolve().parents[1]
HEAVY = {"torch", "numpy", "deepspeed", "transformers", "peft", "datasets", "accelerate"}
LATE = {"pydantic", "submitit", "psutil", "yaml", "prometheus_client"}


def at_import(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements that run when the module is imported."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from at_import(node)


def imported(name: str) -> set[str]:
    """All modules that `name` imports when it is loaded."""
    path, names = MODULES[name], set()
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in at_import(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
            continue
        base = node.module or ""
        if node.level:
            parts = package.split(".")
            base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [base])])
        for alias in node.names:
            full = f"{base}.{alias.name}"
            names.add(full if full in MODULES else base)
    return names


def ours(name: str) -> set[str]:
    return {module for module in imported(name) if module in MODULES} - {name}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_module_imports_nothing_heavy(name: str) -> None:
    """No module, not even one for the ranks, imports torch or the like when it is loaded."""
    assert not {module.split(".")[0] for module in imported(name)} & HEAVY


@pytest.mark.parametrize("name", ["plugin", "session.items", "text"])
def test_modules_of_every_pytest_are_light(name: str) -> None:
    """Modules loaded without --cluster import no third-party package except pytest."""
    early, todo = set(), [f"pytest_clustersmoke.{name}"]
    while todo:
        module = todo.pop()
        if module in early:
            continue
        early.add(module)
        todo += list(ours(module))
    outside = {
        imported_module.split(".")[0] for module in early for imported_module in imported(module)
    }
    assert not outside & (HEAVY | LATE)


def loaded(*words: str) -> set[str]:
    """The top-level modules that pytest has loaded after collecting with these arguments."""
    code = (
        "import sys, pytest; status = pytest.main(sys.argv[1:]); "
        "print('LOADED', int(status), *sorted({n.split('.')[0] for n in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--collect-only", "-q", "-p", "no:cacheprovider", *words],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("LOADED")]
    _, status, *names = line.split()
    assert status == "0", done.stdout
    return set(names)


def test_collection_on_a_cluster_loads_nothing_heavy() -> None:
    """`pytest --collect-only --cluster local smoke_tests` loads no torch, numpy or submitit."""
    names = loaded("--cluster", "local", "smoke_tests")
    assert "pytest_clustersmoke" in names
    assert not names & (HEAVY | {"submitit", "psutil", "cloudpickle"})


def test_collection_without_a_cluster_loads_nothing_late() -> None:
    """Without --cluster not even YAML and pydantic are loaded."""
    assert not loaded("smoke_tests") & (HEAVY | LATE)


def test_commands_on_the_history_load_no_renderer(tmp_path: Path) -> None:
    """Unless there is a report to write: the renderer takes as long to load as all else does."""
    code = (
        "import sys; from pytest_clustersmoke.cli import main; "
        "status = main(['history', '--report-dir', sys.argv[1]]); "
        "print(status, sorted({'jinja2', 'pydantic', 'prometheus_client'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, cwd=REPOSITORY
    )
    assert done.stdout == "2 []\n", done.stderr


def test_start_of_a_run_loads_nothing_that_judges_or_reports() -> None:
    """Its first submission would wait for that; `early_load` loads it while jobs run."""
    code = (
        "import sys; from pytest_clustersmoke import preflight, session; "
        "from pytest_clustersmoke.session import attachment, dead_runs, job_session, suite; "
        "from pytest_clustersmoke.jobs import slurm_backend; print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, check=True
    )
    package = "pytest_clustersmoke"
    names = {name.removeprefix(f"{package}.") for name in done.stdout.split()}
    late = {"diagnose", "criteria.phase_criteria", "evidence.run_record", "report.run_archive"}
    late |= {"evidence.nccl.log_reader", "jobs.local_backend", "jobs.ssh_backend", "psutil"}
    assert package in names and not names & late
