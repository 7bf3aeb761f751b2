"""The faults that gates are proven with: each can be staged by a rank, names criteria and
signatures that exist, and is documented."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.diagnose.signature_file import shipped_signatures
from pytest_clustersmoke.faults import FAULTS, HOOK, JOB, NOTHING, staged
from pytest_clustersmoke.rank.hook import RankHook, load_hook

ROOT = Path(__file__).resolve().parents[2]


def criteria_names() -> set[str]:
    """The names of all tests of the suite and of the base classes it inherits from."""
    bases = ROOT / "pytest_clustersmoke/criteria/phase_criteria.py"
    files = [bases, *(ROOT / "smoke_tests").glob("test_*.py")]
    trees = [ast.parse(path.read_text()) for path in files]
    return {
        node.name
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_rank_can_stage_every_fault_and_no_other() -> None:
    """A rank can stage (or mark) every fault of the registry, and `nothing`."""
    assert set(staged.STAGINGS) == {*FAULTS, NOTHING}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_says_what_it_leads_to(name: str) -> None:
    """It fails the job, with a finding, or criteria that the suite has; never both."""
    fault = FAULTS[name]
    assert fault.name == name and fault.what and fault.red
    assert fault.by in ("rank", "ranks", "job")
    if JOB in fault.red:
        assert fault.red == {JOB} and fault.findings
        # Only the cause of a program's own exception has no signature.
        assert fault.signatures or fault.by == "rank" or "rank-error" not in fault.findings
    else:
        assert (fault.red | fault.follows) <= criteria_names() and not fault.findings
    if fault.by == "rank":
        assert fault.ranks > 1 and fault.blames, (
            "the one rank must be distinguishable from the others"
        )
    assert set(fault.signatures) <= {signature.id for signature in shipped_signatures()}


def test_documents_list_every_gate() -> None:
    """The page has a row for each fault, with its criterion or finding, and no other."""
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in (ROOT / "docs/how-to/prove-the-gates.md").read_text().splitlines()
        if line.startswith("| `")
    ]
    table = {row[0].strip("`"): row[2] for row in rows}
    assert set(table) == set(FAULTS)
    for name, red in table.items():
        fault = FAULTS[name]
        for word in fault.findings or fault.red:
            assert f"`{word}`" in red, (name, word)


def test_stagings_have_the_signatures_of_the_hook() -> None:
    """A method that a staged fault overrides takes the parameters of the hook's own method."""
    hooks = {name: call for name, call in vars(RankHook).items() if inspect.isfunction(call)}
    for staging in staged.STAGINGS.values():
        for name, call in hooks.items():
            parameters = inspect.signature(getattr(staging, name)).parameters
            assert list(parameters) == list(inspect.signature(call).parameters), (staging, name)


def test_rank_refuses_a_fault_that_it_cannot_stage() -> None:
    """An unknown fault and a fault without a hook are errors."""
    rank: Any = None  # not used before the fault is known
    with pytest.raises(ValueError, match="no rank can stage"):
        load_hook(rank, {"name": "unheard-of", "rank": 0, "hook": HOOK}, print)
    with pytest.raises(ValueError, match="`hook` is missing"):
        load_hook(rank, {"name": "rank-killed", "rank": 0}, print)


def test_rank_of_a_normal_run_loads_no_fault() -> None:
    """The code that stages faults is imported only where a fault is staged."""
    code = "import sys, pytest_clustersmoke.rank; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "pytest_clustersmoke.rank.core" in loaded
    assert not [name for name in loaded if "faults" in name]
