"""A rank that is slower than the others, within its limits, is no hang."""

from __future__ import annotations

from tests.faults.harness import DONE, Suite


def test_a_rank_that_is_late_within_its_limit_passes(broken: Suite) -> None:
    """Others wait for it half of their limit, in a step and again before a checkpoint; nothing is
    dumped, and nothing is found."""
    broken.profile["stage_limits_s"] = {"train_step": 4, "checkpoint": 4}
    broken.phase("late", "late_step.py", DONE, nodes=1, gpus_per_node=2)
    outcome = broken.run()
    assert outcome.status == 0, outcome.output
    assert (outcome.phase("late")["outcome"], outcome.phase("late")["findings"]) == ("passed", [])
    assert list(outcome.result("late").directory.dumps.iterdir()) == []
