"""A rank that is slower than the others, within its limits, is no hang."""

from __future__ import annotations

from tests.support.harness import PROGRAMS, Suite


def test_a_rank_that_is_late_within_its_limit_passes(torch_suite: Suite) -> None:
    """Others wait for it half of their limit, in a step and again before a checkpoint; nothing is
    dumped, and nothing is found."""
    torch_suite.profile["stage_limits_s"] = {"train_step": 4, "checkpoint": 4}
    torch_suite.phase("late", script=PROGRAMS / "late_step.py", nodes=1, gpus_per_node=2)
    outcome = torch_suite.run_apart()
    assert outcome.ret == 0, outcome.output
    assert (outcome.phase("late")["outcome"], outcome.phase("late")["findings"]) == ("passed", [])
    assert list(outcome.evidence("late").directory.dumps.iterdir()) == []
