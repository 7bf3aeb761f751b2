"""Each fault can be staged by a rank, names existing criteria and signatures, and is
documented."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.diagnose.signature_file import shipped_signatures
from pytest_clustersmoke.faults import FAULTS, HOOK, JOB, NOTHING, staged
from pytest_clustersmoke.rank.hook import RankHook, load_hook
from tests.support.detections import detections, list_tests

ROOT = Path(__file__).resolve().parents[2]


BASES = ROOT / "pytest_clustersmoke/criteria/phase_criteria.py"


def test_rank_can_stage_every_fault() -> None:
    """A rank can stage or record exactly the faults of the registry, and `nothing`."""
    assert set(staged.STAGINGS) == {*FAULTS, NOTHING}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_says_what_must_fail(name: str) -> None:
    """It must fail either the job, with a finding, or criteria, never both. The registry names only
    criteria of the plugin; those of the suite are marked there."""
    fault = FAULTS[name]
    assert fault.name == name and fault.description
    assert bool(fault.red) is not bool(detections().get(name))
    assert fault.by in ("rank", "ranks", "job")
    if JOB in fault.red:
        assert fault.red == {JOB} and fault.findings
        # Only an exception that the rank program itself raises has no signature.
        assert fault.signatures or fault.by == "rank" or "rank-error" not in fault.findings
    else:
        own = {test.name for test in list_tests(BASES)}
        assert (fault.red | fault.follows) <= own and not fault.findings
    if fault.by == "rank" and fault.red != {"test_replicas_stay_equal"}:  # neither replica is named
        assert fault.ranks > 1 and fault.blames, "the rank must be distinguished from other ranks"
    assert set(fault.signatures) <= {signature.id for signature in shipped_signatures()}


def test_every_fault_is_documented() -> None:
    """The page has exactly one row for each fault, with its criterion or finding, and the criteria
    that may follow."""
    page = (ROOT / "docs/how-to/prove-the-gates.md").read_text()
    section = page.partition("\n## The faults\n")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("| `")
    ]
    table = {row[0].strip("`"): row[2] for row in rows}
    assert set(table) == set(FAULTS)
    for name, red in table.items():
        fault = FAULTS[name]
        for gate in (*(fault.findings or fault.red or detections()[name]), *fault.follows):
            assert f"`{gate}`" in red, (name, gate)
        assert bool(fault.follows) is ("may follow" in red), name


def test_stagings_have_the_parameters_of_the_hook() -> None:
    """A method that a fault overrides has the parameters of the hook's method."""
    hooks = {name: call for name, call in vars(RankHook).items() if inspect.isfunction(call)}
    for staging in staged.STAGINGS.values():
        for name, call in hooks.items():
            parameters = inspect.signature(getattr(staging, name)).parameters
            assert list(parameters) == list(inspect.signature(call).parameters), (staging, name)


def test_rank_refuses_an_unknown_fault() -> None:
    """A rank fails on an unknown fault and on one without a hook."""
    rank: Any = None  # not used before the fault is found
    with pytest.raises(ValueError, match="a rank cannot stage"):
        load_hook(rank, {"name": "unknown", "rank": 0, "hook": HOOK}, print)
    with pytest.raises(ValueError, match="has no `hook`"):
        load_hook(rank, {"name": "rank-killed", "rank": 0}, print)


def test_normal_run_does_not_load_faults() -> None:
    """Code that stages faults is imported only where one is staged."""
    code = "import sys, pytest_clustersmoke.rank; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "pytest_clustersmoke.rank.core" in loaded
    assert not [name for name in loaded if "faults" in name]
