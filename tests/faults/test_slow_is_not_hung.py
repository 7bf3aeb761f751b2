"""A rank that is slower than the others, but within its limits, has not hung."""

from __future__ import annotations

import pytest

from pytest_clustersmoke.evidence.run_counts import TRAINING_PROOFS
from tests.support.harness import PROGRAMS, Suite


@pytest.mark.slow
def test_rank_late_within_its_limit_passes(torch_suite: Suite) -> None:
    """The others wait for it for half their limit, in a step and again before a checkpoint; there
    is no dump and no finding."""
    torch_suite.profile["stage_limits_s"] = {"train_step": 4, "checkpoint": 4}
    torch_suite.phase("late", script=PROGRAMS / "late_step.py", nodes=1, gpus_per_node=2)
    outcome = torch_suite.run_apart()
    assert outcome.ret == 6, outcome.output  # its loop proves nothing
    assert {missing["kind"] for missing in outcome.record()["missing"]} == {*TRAINING_PROOFS}
    assert (outcome.phase("late")["outcome"], outcome.phase("late")["findings"]) == ("passed", [])
    assert list(outcome.evidence("late").directory.dumps.iterdir()) == []
