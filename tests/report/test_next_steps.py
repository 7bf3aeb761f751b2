"""A verdict that is not FIT says what to do next."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_clustersmoke.evidence.finding import ISOLATION_FINDING
from pytest_clustersmoke.report.next_steps import list_next_steps
from tests.support import records

ENDED = {"has_ended": True}


def steps(*phases: records.Record, verdict: str = "INCONCLUSIVE", **changes: Any) -> list[str]:
    record = records.run(*phases, verdict=verdict, **changes)
    return list_next_steps(records.parsed(record))


def missing(phase: str, kind: str = "", reason: str = "") -> dict[str, str]:
    return {"phase": phase, "kind": kind, "reason": reason or f"{kind} not measured"}


def with_past(runs: int, name: str = "a") -> records.Record:
    """A phase whose metrics are compared with so many good runs."""
    phase = records.phase(name, counts=ENDED)
    for metric in phase["metrics"].values():
        metric["past"] = {
            "status": "not enough history" if runs < 8 else "ok",
            "runs": runs,
            "median": None,
            "mad": None,
            "warn": None,
            "fail": None,
            "text": "",
        }
    return phase


def test_fit_run_needs_nothing() -> None:
    """There is no next step, not even if something that is not required is missing."""
    assert steps(with_past(0), verdict="FIT") == []


def test_references_are_proposed_once_there_are_good_runs() -> None:
    """The command that prints them; before, how many runs are needed, and how many there are."""
    (step,) = steps(with_past(8), missing=[missing("a", "references")])
    assert step.startswith("`clustersmoke references propose --cluster gilbreth` prints references")
    two = [missing("a", "references"), missing("b", "references")]
    (step,) = steps(with_past(3), with_past(9, "b"), missing=two)
    assert step == (
        "after 8 good runs, `clustersmoke references propose --cluster gilbreth` prints "
        "references; a, b: 3 good runs before this one on this hardware and these versions, of 8"
    )


def test_history_that_is_long_enough_says_why_it_judges_nothing() -> None:
    """More nights do not mend noise, nor a loss that only warns; few nights, or nights of other
    versions, do need more."""
    noisy = with_past(20)
    text = "not measured (history): steps_per_s is too noisy"
    noisy["criteria"]["test_past"] = {"result": "skipped", "text": text}
    other = with_past(12, "c")
    for metric in other["metrics"].values():
        metric["past"]["other_versions"] = True
    lacks = [missing(name, "history") for name in "abc"]
    assert steps(noisy, with_past(3, "b"), other, missing=lacks) == [
        "run it on more nights: b, c: 0 good runs before this one on this hardware and these "
        "versions, of 8",
        "measure history: a: steps_per_s is too noisy",
    ]


def test_references_of_other_sizes_need_the_usual_sizes() -> None:
    """Proposing references would not help a phase that --cluster-set changed."""
    phase = with_past(9)
    reference = {"value": 1.0, "low": None, "high": None, "source": "s"}
    phase["metrics"]["steps_per_s"]["reference"] = reference
    (step,) = steps(phase, missing=[missing("a", "references")])
    assert step == "run it at the sizes of its references, without --cluster-set"


def test_history_needs_more_nights() -> None:
    """How many good runs there are."""
    (step,) = steps(with_past(1), missing=[missing("a", "history")])
    assert step.startswith("run it on more nights: a: 1 good run before this one")


def test_other_kinds_give_the_reason_of_their_criterion() -> None:
    """Why the kind could not be measured."""
    phase = records.phase("a", counts=ENDED)
    text = "not measured (transports): cluster.yaml expects nothing of transports inside nodes"
    phase["criteria"]["test_t"] = {"result": "skipped", "text": text}
    (step,) = steps(phase, missing=[missing("a", "transports")])
    assert step == (
        "measure transports: a: cluster.yaml expects nothing of transports inside nodes"
    )


@pytest.mark.parametrize("outcome", ["never_ran", "preempted", "cancelled", "lost"])
def test_phase_that_was_not_measured_runs_again(outcome: str) -> None:
    """First what its finding advises, then the command that runs it alone."""
    phase = records.phase("a", outcome=outcome, counts=ENDED, findings=[records.finding()])
    other = records.phase("b", counts=ENDED)
    assert steps(phase, other, missing=[missing("a", reason=outcome)]) == [
        "a: look into the kernel's log of node1",
        "run it again: `pytest --cluster gilbreth -k 'a'`",
    ]


def test_advice_to_run_again_is_given_once() -> None:
    """By the command."""
    advice = records.finding(fix="run again")
    phase = records.phase("a", outcome="cancelled", counts=ENDED, findings=[advice])
    assert steps(phase, missing=[missing("a", reason="cancelled")]) == [
        "run it again: `pytest --cluster gilbreth -k 'a'`"
    ]


def test_interrupted_run_of_many_phases_runs_again_as_a_whole() -> None:
    """More than a few names are no help on a command line."""
    phases = [records.phase(f"p{number}") for number in range(9)]
    assert steps(*phases, interrupted=True) == ["run it again: `pytest --cluster gilbreth`"]


def test_known_failure_names_its_entry() -> None:
    """It ends with the repair, and the entry goes."""
    known = {"what": "a", "reason": "fan", "until": "2026-12-01", "where": "cluster.yaml:7"}
    phase = records.phase("a", outcome="failed", known=known, counts=ENDED)
    (step,) = steps(phase, known=[known])
    assert step.endswith("remove its entry under `known` (cluster.yaml:7)")


def test_phase_without_a_test_is_named() -> None:
    """Its name, and the two ways out."""
    counts = {"undefined_phases": ["zero3"], "is_whole": True}
    (step,) = steps(with_past(9), counts=counts)
    assert step == "write a test for zero3, or take it from `phases` of gilbreth"


def test_unfit_run_repeats_the_fixes_of_its_causes() -> None:
    """Only those of phases that failed."""
    bad = records.phase("a", outcome="failed", findings=[records.finding(fix="replace the GPU")])
    good = records.phase("b", findings=[records.finding(fix="nothing")])
    assert steps(bad, good, verdict="UNFIT") == ["a: replace the GPU"]


def test_isolated_node_is_left_out_first() -> None:
    """Before what the failure alone advises."""
    causes = [
        records.finding(fix="read the log"),
        records.finding(id=ISOLATION_FINDING, fix="leave it out"),
    ]
    bad = records.phase("a", outcome="failed", findings=causes)
    assert steps(bad, verdict="UNFIT") == ["a: leave it out", "a: read the log"]


def test_loss_against_the_past_is_compared_with_the_last_good_run() -> None:
    """Where only the comparison with past runs failed, no finding says what to do. A failure that
    past runs do not judge gets no such advice."""
    slow = records.phase("a", last_good="20261117-1")
    slow["criteria"]["test_past"] = {"result": "failed", "text": "t", "judged": ["history"]}
    other = records.phase("b", last_good="20261117-1")
    other["criteria"]["test_own"] = {"result": "failed", "text": "t", "judged": ["data"]}
    (step,) = steps(slow, other, verdict="UNFIT", run_id="20261118-1")
    assert step == (
        "a: find what changed by `clustersmoke compare 20261117-1 20261118-1`; if "
        "the new level is right, `clustersmoke references accept --cluster gilbreth --phase a "
        "--reason TEXT`"
    )
    (step,) = steps(slow | {"last_good": ""}, verdict="UNFIT")
    assert step.startswith("a: if the new level is right, `clustersmoke references accept ")


def test_missed_reference_says_where_to_look_and_how_to_correct_it() -> None:
    """What changed since the last good run, if there is one; a slow node, which only Slurm's screen
    looks for; or the reference itself."""
    slow = records.phase("a", last_good="20261117-1")
    slow["criteria"]["test_rate"] = {"result": "failed", "text": "t", "judged": ["references"]}
    (step,) = steps(slow, verdict="UNFIT", run_id="20261118-1", backend="slurm")
    assert step == (
        "a: find what changed by `clustersmoke compare 20261117-1 20261118-1`; look for a slow "
        "node by `pytest --cluster gilbreth --cluster-screen`; if the reference is wrong, correct "
        "`references.a` of cluster gilbreth in cluster.yaml"
    )
    (step,) = steps(slow | {"last_good": ""}, verdict="UNFIT", backend="local")
    assert step == (
        "a: if the reference is wrong, correct `references.a` of cluster gilbreth in cluster.yaml"
    )


@pytest.mark.parametrize("kind", ["stragglers", "transports between nodes"])
def test_phase_that_a_node_may_have_slowed_is_isolated(kind: str) -> None:
    """On Slurm, if it has several nodes and was not isolated already."""
    slow = records.phase("a")
    slow["criteria"]["test_own"] = {"result": "failed", "text": "t", "judged": [kind]}
    (step,) = steps(slow, verdict="UNFIT", backend="slurm")
    assert step == "a: find the node or link by `pytest --cluster gilbreth -k a --cluster-isolate`"
    assert steps(slow, verdict="UNFIT", backend="local") == []
    assert steps({**slow, "nodes": slow["nodes"][:1]}, verdict="UNFIT", backend="slurm") == []
    isolated = [records.finding(id="isolated")]
    assert steps({**slow, "findings": isolated}, verdict="UNFIT", backend="slurm") == []


def test_proofs_that_no_criterion_judged_need_a_class_that_judges_them() -> None:
    """`Trained` does; and so do criteria that call the checks, each named once for all phases."""
    lacking = [
        missing(phase, kind, f"no criterion judged {kind}")
        for phase, kind in (("a", "gradients"), ("a", "checkpoint"), ("b", "checkpoint"))
    ]
    assert steps(with_past(0), with_past(0, "b"), missing=lacking) == [
        "a, b: let the class inherit `Trained` and neither override nor skip its criteria, or add "
        "criteria that call phase.check_gradients(), phase.check_reload()"
    ]
