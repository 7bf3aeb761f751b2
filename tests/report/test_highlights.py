"""Highlights: each kind, its text with its figures, and the place that it links to."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_clustersmoke.evidence.finding import ISOLATION_FINDING
from pytest_clustersmoke.evidence.job_results import NOT_MEASURED
from pytest_clustersmoke.evidence.node_naming import NamedNodeRecord, NamingRecord
from pytest_clustersmoke.report.highlights import HighlightGroup, find_highlights
from tests.report import staged
from tests.report.page_samples import page
from tests.support import records

CHANGED = ". Since the last good run: driver 550.54.15 to 550.90.07"


def highlights_of(*phases: records.Record, **changes: Any) -> dict[str, HighlightGroup]:
    run = records.run(*phases, **changes)
    anchors = {phase["phase"]: f"phase-{phase['phase']}" for phase in run["phases"]}
    return {group.id: group for group in find_highlights(records.parsed(run), anchors)}


def test_healthy_run_has_no_highlights() -> None:
    """A run without problems has an empty list."""
    assert highlights_of(records.phase()) == {}


def test_slow_rank_is_named_with_node_and_times() -> None:
    """The text has the rank's own part of a step, the median of the others', and the whole step."""
    phase = staged.with_own_times(records.phase(), slow=5)
    (item,) = highlights_of(phase)["stragglers"].items
    assert item.title == "rank 5 on node2" and item.anchor == "phase-zero1_4node-ranks"
    assert item.text.startswith("its own part of a step takes 131.0 ms, that of the others 40.")
    assert item.text.endswith("ms; a whole step takes 142.0 ms")


def test_unexpected_link_is_named_by_its_ends() -> None:
    """The text has the transport, both nodes, both ranks, and the expected transport."""
    (item,) = highlights_of(staged.with_wrong_link(records.phase(), 3))["links"].items
    assert item.title == "NET/Socket/0 from node1 to node2"
    assert item.text == "rank 3 to rank 4: expected NET/IB*"


def test_failed_job_says_what_was_isolated() -> None:
    """After the nodes that its finding names."""
    found = records.finding(id=ISOLATION_FINDING, detail={"answer": "node1"})
    phase = records.phase(outcome="failed", findings=[records.finding(), found])
    (item,) = highlights_of(phase)["jobs"].items
    assert item.text == "failed on node1; isolated: node1"


def test_lost_throughput_is_given_in_percent() -> None:
    """The text has the metric furthest off, the names of the others, and what changed."""
    (item,) = highlights_of(staged.slow_phase())["metrics"].items
    assert item.title == "steps_per_s 30.0 % below the reference 9.500 steps/s"
    assert item.text == ("steps_per_s is 6.650 steps/s; also samples_per_s" + CHANGED)


@pytest.mark.parametrize(("status", "count"), [("ok", 0), ("warn", 1), ("fail", 1)])
def test_metric_off_past_runs_is_highlighted(status: Any, count: int) -> None:
    """Without a reference, warnings and failures from the history are highlighted."""
    phase = records.phase()
    metric = staged.against(9.0, 9.5, "steps/s")
    assert metric["past"]
    metric["reference"], metric["met"], metric["past"]["status"] = None, None, status
    phase["metrics"]["steps_per_s"] = metric
    group = highlights_of(phase).get("warnings" if status == "warn" else "metrics")
    assert len(group.items if group else []) == count
    if group:
        assert "below the median 9.595 steps/s of 24 runs" in group.items[0].title


def test_warning_from_past_runs_is_a_warning() -> None:
    """A group of warnings has the tone `warn`; the text says if past runs had other versions."""
    phase = records.phase()
    metric = staged.against(6.0, 9.5, "steps/s")
    assert metric["past"]
    metric["reference"], metric["met"] = None, None
    metric["past"] |= {"status": "warn", "other_versions": True, "fail": None}
    phase["metrics"]["steps_per_s"] = metric
    group = highlights_of(phase)["warnings"]
    assert group.tone == "warn"
    assert group.items[0].title.endswith(
        "below the median 9.595 steps/s of 24 runs on other versions"
    )
    both = highlights_of(phase, staged.slow_phase())
    assert (both["metrics"].tone, both["warnings"].tone) == ("bad", "warn")


def slower(**metrics: records.Record) -> records.Record:
    """A phase with a throughput that misses its reference, and these metrics."""
    phase = records.phase()
    phase["metrics"] = {**metrics, "samples_per_s": staged.against(1702.4, 2432.0)}
    return phase


def warned(value: float, usual: float, unit: str) -> records.Record:
    """A metric that its past runs only warn of."""
    metric = staged.against(value, usual, unit)
    metric["reference"], metric["met"], metric["text"] = None, None, "no reference"
    metric["past"] |= {"status": "warn"}
    return metric


def test_throughput_leads_before_what_follows_from_it() -> None:
    """The time of a step grows by a larger share than the throughput falls."""
    steps = warned(0.0601, 0.042, "s")
    (group,) = highlights_of(slower(step_time_p50_s=steps)).values()
    assert (group.id, group.tone) == ("metrics", "bad")
    (item,) = group.items
    assert item.title.startswith("samples_per_s 30.0 % below the reference")
    assert item.text.endswith("; also step_time_p50_s")


def test_reference_leads_before_the_past() -> None:
    """Although the other metric is further off its past runs."""
    of_past = staged.against(3.0, 9.5, "steps/s")
    of_past["reference"], of_past["met"], of_past["text"] = None, None, "no reference"
    (item,) = highlights_of(slower(steps_per_s=of_past))["metrics"].items
    assert item.title.startswith("samples_per_s 30.0 % below the reference")


def test_warning_about_something_else_is_in_a_card_of_its_own() -> None:
    """After the failures."""
    memory = warned(20.0, 9.5, "GiB")
    groups = highlights_of(slower(peak_memory_gib=memory))
    assert [(group.id, group.tone) for group in groups.values()] == [
        ("metrics", "bad"),
        ("warnings", "warn"),
    ]
    assert "also" not in groups["metrics"].items[0].text
    assert groups["warnings"].items[0].title.startswith("peak_memory_gib 108.4 % above the median")


def test_one_miss_appears_once() -> None:
    """A criterion that failed for what another card shows is in no card of its own."""
    assert "criteria" not in highlights_of(staged.slow_phase())
    phase = staged.slow_phase()
    phase["criteria"]["test_loss"] = {
        "result": "failed",
        "text": "it rose",
        "judged": ["references"],
    }
    (item,) = highlights_of(phase)["criteria"].items
    assert (item.title, item.text) == ("test_loss", "it rose")


def test_metric_with_past_median_zero_is_highlighted() -> None:
    """A median of 0 allows no percentage; the metric is named without one."""
    phase = records.phase()
    metric = staged.against(6.0, 9.5, "1")
    assert metric["past"]
    metric["reference"], metric["met"] = None, None
    metric["past"] |= {"status": "warn", "median": 0.0}
    phase["metrics"]["final_loss"] = metric
    (item,) = highlights_of(phase)["warnings"].items
    assert item.title == "final_loss is off its past runs"


def test_nan_metric_is_highlighted() -> None:
    """NaN comes before any deviation in percent."""
    phase = staged.slow_phase()
    phase["metrics"]["final_loss"] = {**records.metric(1.0, "1"), "value": "nan"}
    (item,) = highlights_of(phase)["metrics"].items
    assert item.title == "nan, which is not a finite number"
    assert item.text == f"final_loss is nan; also steps_per_s, samples_per_s{CHANGED}"


def test_failed_job_comes_first_with_its_cause() -> None:
    """The primary finding's cause and host; without a finding, the reason."""
    groups = highlights_of(
        staged.failed_phase(), records.phase("b", outcome="cluster_failed", reason="prolog failed")
    )
    assert next(iter(groups)) == "jobs"
    first, second = groups["jobs"].items
    assert (first.title, first.text) == ("rank 1 was killed by signal 9", "failed on node0")
    assert (second.title, second.anchor) == ("prolog failed", "phase-b")


@pytest.mark.parametrize("outcome", sorted(NOT_MEASURED))
def test_job_that_was_not_measured_is_an_amber_card_after_failures(outcome: str) -> None:
    """Nothing is known to be wrong with the cluster."""
    lost = records.phase("b", outcome=outcome, reason="vanished")
    groups = highlights_of(lost, staged.failed_phase())
    assert next(iter(groups)) == "jobs" and len(groups["jobs"].items) == 1
    (item,) = groups["unmeasured"].items
    assert (item.title, item.text) == ("vanished", outcome.replace("_", " "))
    assert groups["unmeasured"].tone == "warn"


def test_known_failed_job_is_marked() -> None:
    """The text has the last day; the tone is `warn` only if every failed job is known."""
    known = {"what": "b", "reason": "switch 4", "until": "2026-12-01", "where": "cluster.yaml:7"}
    failed = records.phase("b", outcome="failed", reason="killed", known=known)
    group = highlights_of(failed)["jobs"]
    assert group.items[0].text == "failed, known until 2026-12-01" and group.tone == "warn"
    assert highlights_of(failed, staged.failed_phase())["jobs"].tone == "bad"


def test_failed_criteria_are_highlighted() -> None:
    """One criterion is shown with its message, several with their number and names."""
    phase = records.phase()
    phase["criteria"]["test_sync"] = {"result": "failed", "text": "rank 2 differs\nmore"}
    (item,) = highlights_of(phase)["criteria"].items
    assert (item.title, item.text) == ("test_sync", "rank 2 differs")
    phase["criteria"]["test_loss"] = {"result": "failed", "text": "it rose"}
    (item,) = highlights_of(phase)["criteria"].items
    assert (item.title, item.text) == ("2 of 5 criteria", "test_sync, test_loss")


def test_known_failures_are_not_highlighted() -> None:
    """The page has a section of its own for them."""
    phase = records.phase()
    phase["criteria"]["test_sync"] = {"result": "known", "text": "acknowledged"}
    assert highlights_of(phase) == {}


KNOWN: Any = {"what": "w", "reason": "switch 4", "until": "2026-12-01", "where": "c.yaml:7"}
RED = {
    "stragglers": "test_no_rank_falls_behind",
    "links": "test_transports_between_nodes",
    "metrics": "test_throughput_meets_the_reference",
}


@pytest.mark.parametrize(("kind", "criterion"), RED.items())
def test_highlight_of_known_criterion_is_known(kind: str, criterion: str) -> None:
    """Only its own group has the tone `warn`; the text has the last day."""
    phase = staged.slow_phase()
    assert all(group.tone == "bad" for group in highlights_of(phase).values())
    phase["criteria"][criterion] |= {"result": "known", "known": KNOWN}
    groups = highlights_of(phase)
    assert {name for name in RED if groups[name].tone == "warn"} == {kind}
    assert "; known until 2026-12-01" in groups[kind].items[0].text


@pytest.mark.parametrize(("kind", "criterion"), RED.items())
def test_criterion_covers_by_what_it_judged(kind: str, criterion: str) -> None:
    """Its name does not matter, and a criterion that judged nothing of the kind covers nothing."""
    phase = staged.slow_phase()
    renamed = phase["criteria"].pop(criterion) | {"result": "known", "known": KNOWN}
    phase["criteria"]["test_of_mine"] = renamed
    assert highlights_of(phase)[kind].tone == "warn"
    phase["criteria"][criterion] = {**renamed, "judged": []}
    del phase["criteria"]["test_of_mine"]
    assert highlights_of(phase)[kind].tone == "bad"


def test_highlight_with_uncovered_criterion_is_not_known() -> None:
    """An entry for one criterion does not cover the other."""
    phase = staged.slow_phase()
    phase["criteria"][RED["metrics"]] |= {"result": "known", "known": KNOWN}
    past: Any = {"result": "failed", "text": "", "judged": ["history"]}
    phase["criteria"]["test_metrics_are_as_in_the_past"] = past
    assert highlights_of(phase)["metrics"].tone == "bad"


def test_highlights_beyond_three_are_counted() -> None:
    """Three of each kind are listed, so that all kinds fit on the first screen."""
    phases = [records.phase(f"p{n}", outcome="failed", reason=f"r{n}") for n in range(9)]
    group = highlights_of(*phases)["jobs"]
    assert len(group.items) == 3 and group.more == 6


def test_what_a_card_does_not_list_has_a_link() -> None:
    """Also the phases beyond the first of a node that several name, which no other card has."""
    phases = [records.phase(f"p{n}", outcome="failed", reason=f"r{n}") for n in range(9)]
    card = page(records.run(*phases, verdict="UNFIT")).partition('class="rest"')[2]
    assert card.startswith('>and 6 more: <a href="#phase-p3">p3</a>, <a href="#phase-p4">p4</a>, ')
    naming = [
        NamingRecord(phase=f"p{n}", finding="x", cause="y", is_check=True, file="", line=0)
        for n in range(9)
    ]
    shared = NamedNodeRecord(node="n1", device="", named=naming)
    for phase in phases:
        phase["findings"] = [records.finding(id="x", cause="y", hosts=["n1"])]
    text = page(records.run(*phases, verdict="UNFIT", named_nodes=[shared.model_dump()]))
    rest = text.partition("<li>and in ")[2].partition("</li>")[0]
    assert [part.partition("<")[0] for part in rest.split('">')[1:]] == [
        f"p{n}" for n in range(4, 9)
    ]


def test_unproven_gates_are_highlighted() -> None:
    """The phases of a proof fail on purpose: only its gates are highlighted."""
    reasons = ["no criterion turned red"]
    green = records.gate("slow", status="stayed green", reasons=reasons)
    groups = highlights_of(
        staged.failed_phase(), proof=records.proof(records.gate("killed"), green)
    )
    assert list(groups) == ["gates"]
    (item,) = groups["gates"].items
    assert (item.title, item.text) == ("slow: stayed green", "no criterion turned red")
