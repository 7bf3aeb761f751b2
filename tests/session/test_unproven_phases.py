"""A phase that trains is FIT only if its criteria judge the proofs of training."""

from __future__ import annotations

import pytest

from tests.support.harness import TRAINED, Suite, properties

VERDICT = "phase_verdict"
ALL = ["gradients", "data", "checkpoint"]
RATE = "def test_throughput(self, phase): assert phase.metric('steps_per_s').value > 0"
OVERRIDDEN = "def test_ranks_train_on_their_own_data(self, phase): pass"
SKIPPED = "def test_reloaded_checkpoint_equals_the_saved(self, phase): pytest.skip('saves none')"
# Phase -> base, its own criteria, ranks, whether it trains, and the proofs that nothing judges.
CLASSES = {
    "own": ("", RATE, 2, True, ALL),
    "started": ("Started", RATE, 2, True, ALL),
    "overridden": ("Trained", OVERRIDDEN, 2, True, ["data"]),
    "skipped": ("Trained", SKIPPED, 2, True, ["checkpoint"]),
    "alone": ("Started", RATE, 1, True, ["checkpoint"]),
    "timed": ("Started", RATE, 2, False, []),  # it times collectives
    "calls": ("", TRAINED, 2, True, []),
    "proven": ("Trained", "pass", 2, True, []),
}


def add(suite: Suite, name: str) -> None:
    base, body, ranks, trains, _ = CLASSES[name]
    suite.phase(name, body, base, gpus_per_node=ranks, args={"steps": 3, "trains": trains})


def test_first_phase_of_ones_own_is_inconclusive_until_its_proofs_are_judged(suite: Suite) -> None:
    """The verdict says what no criterion judged, and the line above it what to do."""
    suite.cluster(phases={})
    add(suite, "started")
    result = suite.run()
    assert result.ret == 6
    assert result.outlines[-1] == (
        "INCONCLUSIVE: 1 of 1 phases finished (started: no criterion judged gradients, data, "
        "checkpoint, as `Trained` does)"
    )
    assert result.outlines[-2] == (
        "next: started: let the class inherit `Trained` and neither override nor skip its "
        "criteria, or add criteria that call phase.check_gradients(), phase.check_data(), "
        "phase.check_reload()"
    )


@pytest.mark.slow
def test_phase_whose_class_judges_no_proof_is_named_in_every_view(suite: Suite) -> None:
    """Whatever the class is made of; a phase that trains nothing, or judges all, is not named."""
    suite.cluster(phases={})
    for name in CLASSES:
        add(suite, name)
    result = suite.run()
    record = suite.record()
    assert result.ret == 6 and record["verdict"] == "INCONCLUSIVE", result.stdout.str()
    missed: dict[str, list[str]] = {name: [] for name in CLASSES}
    for each in record["missing"]:
        missed[each["phase"]].append(each["kind"])
    assert missed == {name: entry[-1] for name, entry in CLASSES.items()}
    assert result.outlines[-1] == record["sentence"]
    assert "own, started: no criterion judged gradients, data, checkpoint" in record["sentence"]
    of_phase = [of for of in properties(suite.report / "junit.xml").values() if VERDICT in of]
    words = {of["phase"]: of[VERDICT] for of in of_phase}
    assert words == {
        name: f"not measured ({', '.join(entry[-1])})" if entry[-1] else "passed"
        for name, entry in CLASSES.items()
    }


@pytest.mark.slow
def test_verdict_on_some_criteria_says_so(suite: Suite) -> None:
    """With -k the verdict holds for its scope, which it names."""
    suite.cluster(phases={})
    add(suite, "started")
    result = suite.run("-k", "started and throughput")
    assert result.ret == 0
    assert result.outlines[-1] == (
        "FIT: 1 of 1 phases passed, 1 of 12 criteria reported; selected: started and throughput"
    )
