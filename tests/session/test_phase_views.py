"""The marks of a phase's reports say what its program must have proven."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_clustersmoke.session.phase_views import name_proofs
from tests.support.evidence import Evidence


@pytest.mark.parametrize(
    ("ranks", "values", "proofs"),
    [
        (2, {"train_loss": 0.5}, ("proofs", "gradients,data,checkpoint")),
        (1, {"train_loss": 0.5}, ("proofs", "checkpoint")),
        (2, {"steps_per_s": 3.0}, None),
    ],
)
def test_program_that_trained_can_be_asked_for_proofs(
    tmp_path: Path, ranks: int, values: dict[str, float], proofs: tuple[str, str] | None
) -> None:
    """Whatever the class of its phase asks for; a program that times collectives cannot."""
    evidence = Evidence(tmp_path, ranks_per_node=ranks).done().each("metrics", values=values)
    assert name_proofs(evidence.result()) == proofs


@pytest.mark.parametrize("loss", [True, False], ids=["ended", "left"])
def test_loop_of_steps_trains_also_if_it_records_no_loss_or_is_left(
    tmp_path: Path, loss: bool
) -> None:
    """Leaving out the loss, or the last steps, does not make a phase one that trains nothing."""
    evidence = Evidence(tmp_path, ranks_per_node=2).done()
    evidence.each("stage", name="train", state="begin", steps=9)
    if loss:
        evidence.each("losses", mean=[1.0], local_first=[1.0], replica=None)
    assert name_proofs(evidence.result()) == ("proofs", "gradients,data,checkpoint")


def test_model_that_is_split_over_all_ranks_has_no_replicas_to_compare(tmp_path: Path) -> None:
    """Its checkpoint is required; gradients and data are, as soon as there are two replicas."""
    evidence = Evidence(tmp_path, ranks_per_node=2).done()
    evidence.each("stage", name="train", state="begin", steps=9).each("losses", replica=0)
    assert name_proofs(evidence.result()) == ("proofs", "checkpoint")
    evidence.rank(1, ("losses", {"replica": 1}))
    assert name_proofs(evidence.result()) == ("proofs", "gradients,data,checkpoint")
