"""What the criteria of both LoRA programs judge alike, under DDP and under FSDP."""

from __future__ import annotations

import math

import pytest

from pytest_clustersmoke.criteria import PhaseView

NEAR = 0.02  # a first loss within this share of ln V is that of a guess


def check_base_weights(phase: PhaseView) -> None:
    """Fail if the first loss is ln V, that of a model that knows nothing of its V tokens."""
    __tracebackhide__ = True
    if phase.args["model"] == "tiny":
        pytest.skip("the base is random by design (model: tiny)")
    first, guess = phase.losses[0], math.log(phase.fact("vocabulary"))
    assert abs(first / guess - 1) > NEAR, (
        f"the base weights are not trained: the first loss is {first:.4g}, and that of a model "
        f"that guesses is {guess:.4g}; check what {phase.args['model']} loads"
    )
