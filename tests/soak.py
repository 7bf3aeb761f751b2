"""Long runs: the healthy ladder again and again, on the lab or where BACKEND says (`local`, `ssh`);
on the lab also eight ranks of which one is slow; and, on this machine, ranks that compute wrongly.

A turn that passed on the same commit is not run again, so an interrupted soak goes on where it
stopped; `--cache-clear` starts anew. What has passed is in pytest's cache; `-o cache_dir=DIR` keeps
it outside this clone (`make soak SOAK_STATE=DIR`).
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_clustersmoke import lab
from tests.faults import staged
from tests.faults.table import LOCAL, Fault
from tests.support.harness import PROGRAMS, ROOT, Suite
from tests.support.labs import running_lab
from tests.support.ladder import check_phases, run_ladder, run_on_hosts, run_on_lab
from tests.support.outcome import RunFiles

BACKEND = os.environ.get("BACKEND", "lab")
RUN_ON: dict[str, Callable[[Path], RunFiles]] = {
    "lab": run_on_lab,
    "local": lambda folder: run_ladder(folder, "local"),
    "ssh": run_on_hosts,
}
TURNS = range(int(os.environ.get("SOAK", "20")))
NODES, RANKS = 4, 8
JOBS = range(10)  # of each fault of a rank that computes wrongly
# Of the staged faults; their programs are gradient_corrupted, weight_flipped, master_flipped and
# always_wrong.
WRONG = (
    "gradient_corrupted_before_reduction",
    "weight_flipped_without_replica",
    "master_flipped_under_zero",
    "same_wrong_answer_each_time",
)


@pytest.fixture(autouse=True)
def unless_passed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Skip a test that has passed on this commit, if nothing has been changed since."""
    git = ("git", "-C", str(ROOT))
    changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True).stdout
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    key, name = f"soak/{commit.strip()}", request.node.nodeid
    passed = request.config.cache.get(key, []) if commit and not changed else []
    if name in passed:
        pytest.skip("it has passed on this commit; --cache-clear runs it again")
    failed = request.session.testsfailed
    yield
    if commit and not changed and request.session.testsfailed == failed:
        request.config.cache.set(key, [*request.config.cache.get(key, []), name])


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("backend", [BACKEND])
def test_healthy_ladder_stays_fit(lab_dir: Path, backend: str, turn: int) -> None:
    """Nothing is staged, so nothing fails and nothing is found."""
    assert backend in RUN_ON, f"BACKEND={backend}; expected {' or '.join(RUN_ON)}"
    check_phases(RUN_ON[backend](lab_dir))


@pytest.fixture(scope="module")
def eight_ranks() -> Iterator[lab.Lab]:
    with running_lab(lab.LabSettings(name="soak", nodes=NODES)) as running:
        yield running


@pytest.mark.skipif(BACKEND != "lab", reason="it runs on the lab")
@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("times", [1, 3])
def test_slow_rank_of_eight_is_named(
    tmp_path: Path,
    leftovers: tuple[str, Callable[[], list[str]]],
    eight_ranks: lab.Lab,
    times: int,
    turn: int,
) -> None:
    """Eight ranks share a few cores. One whose backward pass takes three times as long is named,
    and no other; if none is slow, none is named."""
    slow = turn % RANKS
    suite = Suite(tmp_path, leftovers[0], real_torchrun=True)
    suite.use_slurm(eight_ranks.slurm_conf)
    suite.profile["env"]["common"]["set"] |= {"SLOW_RANK": slow, "SLOW_TIMES": times}
    suite.phase(
        base="Trained",
        body="pass",
        script=PROGRAMS / "slow_backward.py",
        nodes=NODES,
        gpus_per_node=RANKS // NODES,
        args={"hidden_size": 256, "batch_size": 64, "steps": 10},
    )
    outcome = suite.run_apart(patience_s=300)
    named = re.findall(r"rank (\d+) \(\S+\) on \S+ falls behind: ", outcome.failures("small"))
    judged = outcome.phase("small")["criteria"]["test_no_rank_falls_behind"]["result"]
    assert judged == ("passed" if times == 1 else "failed"), outcome.output
    assert set(named) == (set() if times == 1 else {str(slow)}), outcome.output


@pytest.mark.parametrize("turn", JOBS)
@pytest.mark.parametrize("fault", [f for f in LOCAL if f.name in WRONG], ids=lambda f: f.name)
def test_rank_that_computes_wrongly_is_named(
    tmp_path: Path,
    leftovers: tuple[str, Callable[[], list[str]]],
    record_property: Callable[[str, object], None],
    fault: Fault,
    turn: int,
) -> None:
    """Through the whole suite: each run draws other steps to prove. Exactly the criteria of the
    fault's row fail, and they name its rank and no other."""
    outcome = staged.run_together([fault], Suite(tmp_path, leftovers[0], real_torchrun=True))
    staged.check(fault, outcome, record_property)
    named = re.findall(r"rank (\d+) \(\S+\) on ", outcome.failures(fault.name))
    assert set(named) == {str(fault.rank)}, outcome.output
