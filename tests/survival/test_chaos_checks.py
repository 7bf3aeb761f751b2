"""`make soak-chaos` finds what it looks for: reports that differ from what jobs say themselves."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.strikes import (
    KINDS,
    RANK,
    SLURMCTLD,
    SLURMD,
    STEPD,
    Hit,
    draw_strikes,
)
from tests.support.truth import Reported, Start, find_violations, read_truth

WHOLE = Start("p", "t1", "7", "node0", 110.0, 112.0)
CUT = replace(WHOLE, ended=None)
PASSED = Reported("p", "passed", ("t1",), 100.0, 113.0)


def report(outcome: str, **keys: object) -> Reported:
    return replace(PASSED, outcome=outcome, **keys)  # type: ignore[arg-type]


def hit(kind: str, phase: str = "", node: str = "", at: float = 105.0) -> Hit:
    return Hit(kind, at, at + 3.0, phase, node)


@pytest.mark.parametrize(
    ("reported", "starts", "hits"),
    [
        (PASSED, [WHOLE], []),
        (PASSED, [WHOLE], [hit(SLURMCTLD), hit(SLURMD, node="node0")]),
        (report("failed"), [CUT], [hit(RANK, "p")]),
        (report("failed"), [WHOLE], [hit(STEPD, "p")]),
        (report("cluster_failed"), [CUT], [hit(SLURMD, node="node0")]),
        (report("lost"), [CUT], [hit(SLURMCTLD)]),
        (report("lost"), [WHOLE], [hit(SLURMCTLD)]),
        (report("never_ran", tokens=()), [], [hit(SLURMCTLD)]),
        (report("cluster_failed"), [], [hit(SLURMCTLD)]),
        (report("cluster_failed", refused=True), [CUT], [hit(SLURMCTLD)]),
        (report("cancelled", reaped=111.0), [CUT], []),
    ],
)
def test_true_outcomes_are_accepted(
    reported: Reported, starts: list[Start], hits: list[Hit]
) -> None:
    """Each with the kill that makes it true."""
    assert find_violations(reported, starts, hits) == []


@pytest.mark.parametrize(
    ("reported", "starts", "hits", "words"),
    [
        (PASSED, [], [], "did not get to its end"),
        (PASSED, [CUT], [hit(RANK, "p")], "did not get to its end"),
        (report("passed", tokens=("t0", "t2")), [WHOLE], [], "a token that the journal does not"),
        (report("passed", tokens=("t1", "t2")), [WHOLE], [], "did not get to its end"),
        (PASSED, [WHOLE, replace(WHOLE, job_id="8")], [], "it started 2 times"),
        (report("failed"), [CUT], [], "nothing was killed"),
        (report("failed"), [CUT], [hit(RANK, "other")], "nothing was killed"),
        (report("failed"), [CUT], [hit(SLURMCTLD)], "nothing was killed"),
        (report("cluster_failed"), [CUT], [hit(SLURMD, node="node1")], "nothing was killed"),
        (report("cluster_failed"), [CUT], [hit(SLURMCTLD)], "nothing was killed"),
        (report("cluster_failed", refused=True), [CUT], [hit(RANK, "p")], "nothing was killed"),
        (report("cluster_failed"), [WHOLE], [hit(SLURMD, node="node0")], "got to its end"),
        (report("lost"), [CUT], [hit(STEPD, "p")], "nothing was killed"),
        (report("lost"), [CUT], [hit(SLURMCTLD, at=300.0)], "nothing was killed"),
        (report("lost", has_result=True), [WHOLE], [hit(SLURMCTLD)], "got to its end"),
        (report("lost", ended=180.0), [WHOLE], [hit(SLURMCTLD)], "got to its end"),
        (report("never_ran"), [CUT], [hit(SLURMCTLD)], "it ran"),
        (report("cancelled"), [CUT], [hit(SLURMCTLD)], "nothing was killed"),
        (report("cancelled", reaped=150.0), [WHOLE], [], "got to its end"),
        (report("unheard_of"), [CUT], [hit(RANK, "p")], "nothing was killed"),
    ],
)
def test_false_outcomes_are_found(
    reported: Reported, starts: list[Start], hits: list[Hit], words: str
) -> None:
    """A pass without an end, a second start, a failure that nothing caused."""
    violations = find_violations(reported, starts, hits)
    assert any(words in line for line in violations), violations


def test_job_that_was_cut_off_has_no_end(tmp_path: Path) -> None:
    """Each start has a line of its own, also two of one job."""
    path = tmp_path / "truth.jsonl"
    about = {"phase": "p", "token": "t1", "job_id": "7", "node": "node0"}
    says = [("start", 110.0), ("start", 111.0), ("end", 112.0)]
    path.write_text("".join(json.dumps({**about, "what": w, "time": t}) + "\n" for w, t in says))
    assert read_truth(path) == [CUT, replace(WHOLE, began=111.0)]
    assert read_truth(tmp_path / "missing") == []


def test_schedule_follows_from_the_seed() -> None:
    """Each kind is killed once in a run at most, in the order of the times."""
    first, again, other = (draw_strikes(random.Random(seed), 15.0, 0.9) for seed in (1, 1, 2))
    assert first == again != other
    for strikes in (first, other):
        kinds = [strike.kind for strike in strikes]
        assert {*kinds} <= {*KINDS} and len({*kinds}) == len(kinds)
        assert [s.at_s for s in strikes] == sorted(s.at_s for s in strikes)
        assert all(strike.pause_s < 10.0 for strike in strikes)
