"""metrics.prom: figures of the record that both of Prometheus's parsers read."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import parser as classic
from prometheus_client.openmetrics import parser as openmetrics

from pytest_clustersmoke.config.metrics import METRICS
from pytest_clustersmoke.report.openmetrics import PREFIX, gauge_of, render_metrics
from tests.support import records

# By OpenMetrics' rules a unit is a base unit, and the last part of the name.
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


def samples(record: records.Record) -> dict[tuple[str, ...], float]:
    """(name, values of its labels but the cluster, by the labels' names) -> value."""
    text = render_metrics(records.parsed(record))
    read = []
    for families in (
        openmetrics.text_string_to_metric_families(text),
        classic.text_string_to_metric_families(text),
    ):
        found: dict[tuple[str, ...], float] = {}
        for family in families:
            assert family.type == "gauge" and family.documentation
            for one in family.samples:
                assert one.timestamp is None and one.labels["cluster"] == record["cluster"]
                rest = [one.labels[key] for key in sorted(one.labels) if key != "cluster"]
                where = (one.name.removeprefix(PREFIX), *rest)
                found[where] = one.value
        read.append(found)
    assert str(read[0]) == str(read[1])  # as text, since NaN is not itself
    return read[0]


def test_figures_match_the_record() -> None:
    """Verdict, times, counts and metrics, each under its name."""
    one = records.phase(
        metrics={
            "steps_per_s": records.metric(9.5),
            "peak_memory_gib": records.metric(9.25, "GiB", False),
            "busbw_gb_per_s": records.metric(45.5, "GB/s"),
            "latency_us": records.metric(12.5, "us", False),
        }
    )
    one["metrics"]["steps_per_s"]["met"] = False
    found = samples(records.run(one, records.phase("other", outcome="failed"), verdict="UNFIT"))
    assert found["run_fit",] == 0 and found["run_verdict", "UNFIT"] == 1
    assert found["run_verdict", "FIT"] == found["run_verdict", "INCONCLUSIVE"] == 0
    assert found["run_timestamp_seconds",] == records.BEGUN + 90
    assert found["phase_outcome", "passed", "zero1_4node"] == 1
    assert found["phase_outcome", "failed", "other"] == 1
    assert sum(v for key, v in found.items() if key[0] == "phase_outcome") == 2
    assert found["phase_queue_seconds", "zero1_4node"] == 12.5
    assert found["phase_run_seconds", "zero1_4node"] == 60
    assert found["phase_ranks", "zero1_4node"] == found["phase_ranks_done", "zero1_4node"] == 8
    assert found["phase_nodes", "zero1_4node"] == 4
    assert found["phase_criteria", "zero1_4node", "passed"] == 2
    assert found["phase_criteria", "zero1_4node", "skipped"] == 1
    assert found["phase_criteria", "zero1_4node", "failed"] == 0
    assert found["phase_steps_per_second", "zero1_4node"] == 9.5
    assert found["phase_peak_memory_bytes", "zero1_4node"] == 9.25 * 2**30
    assert found["phase_busbw_bytes_per_second", "zero1_4node"] == 45.5e9
    assert found["phase_latency_seconds", "zero1_4node"] == pytest.approx(12.5e-6)
    assert found["phase_reference_met", "steps_per_s", "zero1_4node"] == 0
    assert ("phase_reference_met", "latency_us", "zero1_4node") not in found


def test_unknown_figure_has_no_sample() -> None:
    """A job that never ran has an outcome, and no time of zero seconds."""
    lost = records.phase(
        outcome="never_ran", queue_s=None, run_s=None, topology=None, metrics={}, ranks=[]
    )
    found = samples(records.run(lost))
    assert found["phase_outcome", "never_ran", "zero1_4node"] == 1
    names = {key[0] for key in found}
    assert not names & {"phase_queue_seconds", "phase_run_seconds", "phase_links_unexpected"}


@pytest.mark.parametrize(
    ("written", "value"), [("inf", math.inf), ("-inf", -math.inf), ("nan", math.nan)]
)
def test_numbers_that_are_not_finite(written: Any, value: float) -> None:
    """They are written as in Prometheus."""
    phase = records.phase(metrics={"final_loss": records.metric(written)})
    found = samples(records.run(phase))
    assert str(found["phase_final_loss", "zero1_4node"]) == str(value)


def test_unexpected_links_are_counted() -> None:
    """Over all groups of links, those that are not drawn included."""
    phase = records.phase()
    assert phase["topology"] is not None
    phase["topology"]["groups"][0]["unexpected"] = 3
    phase["topology"]["groups"][1]["unexpected"] = 2
    assert samples(records.run(phase))["phase_links_unexpected", "zero1_4node"] == 5


def test_proof_has_no_verdict_on_the_cluster() -> None:
    """What was staged on purpose makes a cluster neither fit nor unfit."""
    found = samples(records.run(verdict="PROVEN", proof=records.proof()))
    assert found["run_verdict", "PROVEN"] == 1 and found["run_verdict", "NOT PROVEN"] == 0
    assert ("run_fit",) not in found and ("run_verdict", "FIT") not in found


@pytest.mark.parametrize("name", sorted(METRICS))
def test_each_metric_has_a_name_with_its_base_unit(name: str) -> None:
    """The name of a metric has its unit, and no two share one."""
    gauge, unit, factor = gauge_of(name)
    assert unit == BASE_UNITS[METRICS[name].unit] and gauge.endswith(unit)
    assert gauge.startswith("phase_") and "__" not in gauge
    assert [one for one in METRICS if gauge_of(one)[0] == gauge] == [name]
    scale = {"GiB": 2**30, "GB/s": 1e9, "us": 1e-6}
    assert factor == scale.get(METRICS[name].unit, 1)


def test_hostile_text_stays_in_its_label() -> None:
    """Quotes, newlines, control characters and lone surrogates break neither the text nor its
    encoding."""
    bad = 'a"b\\c\nd\x00\x1b[31m\ud800} 1\n# EOF'
    record = records.run(records.phase(bad), package_version=bad)
    found = samples(record)
    assert len([key for key in found if key[0] == "run_about"]) == 1
    assert len([key for key in found if key[0] == "phase_ranks"]) == 1
    render_metrics(records.parsed(record)).encode()


def test_every_run_has_the_same_names_and_help() -> None:
    """A collector that reads several clusters refuses a name with two help texts."""
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
    """A dashboard is made from the document: it has every gauge, and the rule for metrics."""
    document = (Path(__file__).parents[2] / "docs" / "reference" / "reports.md").read_text()
    metrics = {gauge_of(name)[0] for name in METRICS}
    names = {key[0] for key in samples(records.run())} - metrics
    assert len(names) > 15 and [one for one in names if f"`{one}`" not in document] == []
