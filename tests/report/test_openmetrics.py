"""metrics.prom: figures of the record, in a form that both Prometheus parsers read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import parser as classic
from prometheus_client.openmetrics import parser as openmetrics

from pytest_clustersmoke.config.metrics import METRICS
from pytest_clustersmoke.report.node_standing import MAX_NODES, NodeStanding
from pytest_clustersmoke.report.openmetrics import PREFIX, gauge_of, render_metrics
from tests.report import staged
from tests.support import records

# OpenMetrics requires base units, and the unit as the last part of the name.
BASE_UNITS = {
    "steps/s": "steps_per_second",
    "samples/s": "samples_per_second",
    "tokens/s": "tokens_per_second_per_rank",
    "GiB": "bytes",
    "GB/s": "bytes_per_second",
    "s": "seconds",
    "us": "seconds",
    "1": "",
}


def samples(
    record: records.Record, standings: Sequence[NodeStanding] = ()
) -> dict[tuple[str, ...], float]:
    """(name, then the values of all labels except `cluster`, in order of their names) -> value."""
    text = render_metrics(records.parsed(record), standings)
    read = []
    for families in (
        openmetrics.text_string_to_metric_families(text),
        classic.text_string_to_metric_families(text),
    ):
        values: dict[tuple[str, ...], float] = {}
        for family in families:
            assert family.type == "gauge" and family.documentation
            for sample in family.samples:
                assert sample.timestamp is None and sample.labels["cluster"] == record["cluster"]
                rest = [sample.labels[key] for key in sorted(sample.labels) if key != "cluster"]
                where = (sample.name.removeprefix(PREFIX), *rest)
                values[where] = sample.value
        read.append(values)
    assert str(read[0]) == str(read[1])  # as text: NaN is not equal to itself
    return read[0]


def test_figures_match_the_record() -> None:
    """Verdict, times, counts and metrics, each under its name."""
    phase = records.phase(
        metrics={
            "steps_per_s": records.metric(9.5),
            "peak_memory_gib": records.metric(9.25, "GiB", False),
            "busbw_gb_per_s": records.metric(45.5, "GB/s"),
            "latency_us": records.metric(12.5, "us", False),
        }
    )
    phase["metrics"]["steps_per_s"]["met"] = False
    values = samples(records.run(phase, records.phase("other", outcome="failed"), verdict="UNFIT"))
    assert values["run_fit",] == 0 and values["run_verdict", "UNFIT"] == 1
    assert values["run_verdict", "FIT"] == values["run_verdict", "INCONCLUSIVE"] == 0
    assert values["run_timestamp_seconds",] == records.BEGUN + 90
    assert values["phase_outcome", "passed", "zero1_4node"] == 1
    assert values["phase_outcome", "failed", "other"] == 1
    assert sum(v for key, v in values.items() if key[0] == "phase_outcome") == 2
    assert values["phase_queue_seconds", "zero1_4node"] == 12.5
    assert values["phase_run_seconds", "zero1_4node"] == 60
    assert values["phase_ranks", "zero1_4node"] == values["phase_ranks_done", "zero1_4node"] == 8
    assert values["phase_nodes", "zero1_4node"] == 4
    assert values["phase_criteria", "zero1_4node", "passed"] == 2
    assert values["phase_criteria", "zero1_4node", "skipped"] == 1
    assert values["phase_criteria", "zero1_4node", "failed"] == 0
    assert values["phase_steps_per_second", "zero1_4node"] == 9.5
    assert values["phase_peak_memory_bytes", "zero1_4node"] == 9.25 * 2**30
    assert values["phase_busbw_bytes_per_second", "zero1_4node"] == 45.5e9
    assert values["phase_latency_seconds", "zero1_4node"] == pytest.approx(12.5e-6)
    assert values["phase_reference_met", "steps_per_s", "zero1_4node"] == 0
    assert ("phase_reference_met", "latency_us", "zero1_4node") not in values


def test_metrics_are_divided_by_reference_and_past() -> None:
    """1 is the reference, or the median of the good runs before. Neither a reference for other
    sizes nor runs on other versions are a measure, and nothing is divided by 0."""
    metrics = {
        "steps_per_s": against(9.0, reference=12.0, median=10.0),
        "peak_memory_gib": against(3.0, reference=2.0, median=None),
        "latency_us": {**against(3.0, reference=2.0, median=2.0), "met": None},
        "final_loss": against(3.0, reference=0.0, median=0.0),
    }
    metrics["latency_us"]["past"]["other_versions"] = True
    values = samples(records.run(records.phase("a", metrics=metrics)))
    ratios = {key: value for key, value in values.items() if key[0].endswith("_ratio")}
    assert ratios == {
        ("phase_reference_ratio", "steps_per_s", "a"): 0.75,
        ("phase_reference_ratio", "peak_memory_gib", "a"): 1.5,
        ("phase_past_ratio", "steps_per_s", "a"): 0.9,
    }


def against(value: float, reference: float, median: float | None) -> records.Record:
    """A metric with a reference and a past."""
    past = {"status": "ok", "runs": 9, "median": median, "text": "", "mad": 0.1, "warn": None}
    return {
        **records.metric(value),
        "reference": {"value": reference, "low": None, "high": None, "source": ""},
        "met": True,
        "past": {**past, "fail": None},
    }


def test_nodes_are_listed_up_to_a_bound_the_worst_first() -> None:
    """What is not listed is counted."""
    sound = [NodeStanding(f"n{number}", "good", 0, False) for number in range(MAX_NODES)]
    values = samples(records.run(), [NodeStanding("bad one", "bad", 3, True), *sound])
    assert values["node_state", "bad one", "bad"] == 1
    assert values["node_state", "bad one", "good"] == values["node_state", "n0", "bad"] == 0
    assert values["node_named_runs", "bad one"] == 3 and values["node_named_runs", "n0"] == 0
    assert values["node_left_out", "bad one"] == 1 and values["node_left_out", "n0"] == 0
    assert ("node_left_out", f"n{MAX_NODES - 1}") not in values
    assert len([key for key in values if key[0] == "node_left_out"]) == MAX_NODES
    counts = {key[1]: value for key, value in values.items() if key[0] == "cluster_nodes"}
    assert counts == {"bad": 1, "unknown": 0, "good": MAX_NODES}


def test_unknown_figure_has_no_sample() -> None:
    """A job that never ran has an outcome, but no times: not even 0 s."""
    lost = records.phase(
        outcome="never_ran", queue_s=None, run_s=None, topology=None, metrics={}, ranks=[]
    )
    values = samples(records.run(lost))
    assert values["phase_outcome", "never_ran", "zero1_4node"] == 1
    names = {key[0] for key in values}
    assert not names & {"phase_queue_seconds", "phase_run_seconds", "phase_links_unexpected"}


@pytest.mark.parametrize(
    ("written", "value"), [("inf", math.inf), ("-inf", -math.inf), ("nan", math.nan)]
)
def test_value_that_is_not_finite_is_written_as_in_prometheus(written: Any, value: float) -> None:
    """Prometheus has values for infinity and NaN."""
    phase = records.phase(metrics={"final_loss": records.metric(written)})
    values = samples(records.run(phase))
    assert str(values["phase_final_loss", "zero1_4node"]) == str(value)


def test_unexpected_links_are_counted() -> None:
    """The gauge is the sum over all groups of links."""
    phase = records.phase()
    assert phase["topology"] is not None
    phase["topology"]["groups"][0]["unexpected"] = 3
    phase["topology"]["groups"][1]["unexpected"] = 2
    assert samples(records.run(phase))["phase_links_unexpected", "zero1_4node"] == 5


def test_proof_has_no_verdict_on_the_cluster() -> None:
    """Staged faults make a cluster neither fit nor unfit."""
    values = samples(records.run(verdict="PROVEN", proof=records.proof()))
    assert values["run_verdict", "PROVEN"] == 1 and values["run_verdict", "NOT PROVEN"] == 0
    assert ("run_fit",) not in values and ("run_verdict", "FIT") not in values


@pytest.mark.parametrize("name", sorted(METRICS))
def test_each_metric_has_a_name_with_its_base_unit(name: str) -> None:
    """The name of its gauge ends in the base unit, and no two metrics share a gauge."""
    gauge, unit, factor = gauge_of(name)
    assert unit == BASE_UNITS[METRICS[name].unit] and gauge.endswith(unit)
    assert gauge.startswith("phase_") and "__" not in gauge
    assert [metric for metric in METRICS if gauge_of(metric)[0] == gauge] == [name]
    scale = {"GiB": 2**30, "GB/s": 1e9, "us": 1e-6}
    assert factor == scale.get(METRICS[name].unit, 1)


def test_hostile_text_stays_in_its_label() -> None:
    """Quotes, newlines, control characters and lone surrogates break neither the text nor its
    encoding."""
    bad = 'a"b\\c\nd\x00\x1b[31m\ud800} 1\n# EOF'
    record = records.run(records.phase(bad), package_version=bad)
    values = samples(record)
    assert len([key for key in values if key[0] == "run_about"]) == 1
    assert len([key for key in values if key[0] == "phase_ranks"]) == 1
    render_metrics(records.parsed(record)).encode()


def test_every_run_has_the_same_names_and_help() -> None:
    """A collector of several clusters refuses a name that has two help texts."""
    texts: dict[str, set[str]] = {}
    for record in (
        records.run(),
        records.run(records.phase(outcome="lost"), cluster="other", interrupted=True),
    ):
        for line in render_metrics(records.parsed(record)).splitlines():
            if line.startswith("# ") and line != "# EOF":
                _, kind, name, words = line.split(" ", 3)
                texts.setdefault(f"{kind} {name}", set()).add(words)
    assert texts and all(len(words) == 1 for words in texts.values())


def test_every_name_is_documented() -> None:
    """reports.md, from which dashboards are written, names every gauge except those of metrics."""
    document = (Path(__file__).parents[2] / "docs" / "reference" / "reports.md").read_text()
    metrics = {gauge_of(name)[0] for name in METRICS}
    record = records.run(records.phase(metrics={"steps_per_s": against(9.0, 9.0, 9.0)}))
    standings = [NodeStanding("n", "good", 0, False)]
    names = {key[0] for key in samples(record, standings)} - metrics
    assert len(names) > 22 and [name for name in names if f"`{name}`" not in document] == []


def test_curves_of_collectives_have_a_sample_for_each_size() -> None:
    """In base units, by collective and by the size that was asked for."""
    phase = records.phase(collectives=staged.curves("all_reduce", "all_gather", sizes=3))
    values = samples(records.run(phase))
    point = phase["collectives"][0]["points"][2]
    busbw, where = point["busbw_gb_per_s"], ("all_reduce", "zero1_4node", "512")
    found = {key[0]: value for key, value in values.items() if key[1:] == where}
    assert found["phase_collective_busbw_bytes_per_second"] == pytest.approx(busbw * 1e9)
    assert found["phase_collective_seconds"] == point["seconds"]
    assert len([key for key in values if key[0] == "phase_collective_seconds"]) == 6
