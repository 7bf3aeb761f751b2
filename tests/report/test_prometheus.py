"""Prometheus reads the past from `clustersmoke history --openmetrics`, and our alerts fire."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.openmetrics import parser

from pytest_clustersmoke.cli import main
from pytest_clustersmoke.report import node_standing
from tests.evidence.history.made import DAY_S, of_night
from tests.report import staged
from tests.support.harness import ROOT
from tests.support.prometheus import promtool
from tests.support.records import BEGUN, finding, metric, phase, store_run

RULES = ROOT / "docs" / "examples" / "clustersmoke.rules.yml"
NIGHTS = 45
HOUR = 60  # minutes, the interval of the series below


def backfill(report_dir: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """45 nights, of which the last is UNFIT, and a run of a part."""
    for number in range(NIGHTS):
        verdict = "UNFIT" if number == NIGHTS - 1 else "FIT"
        metrics = {"steps_per_s": metric(9.0 + number), "peak_memory_gib": metric(2.0, "GiB")}
        reference = {"value": 10.0, "low": 9.5, "high": None, "source": "acceptance"}
        metrics["steps_per_s"] |= {"reference": reference, "met": number > 0}
        found = [finding(id="slow-rank", hosts=["node2"])] if verdict == "UNFIT" else []
        a = phase("a", metrics=metrics, findings=found)
        store_run(of_night(number, a, verdict=verdict), report_dir)
    store_run(of_night(50, phase("a"), selection="-k a"), report_dir)
    return exported(report_dir, capsys, "--last", "400")


def exported(report_dir: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What `clustersmoke history --openmetrics` prints."""
    assert main(["history", "--report-dir", str(report_dir), "--openmetrics", *words]) == 0
    return capsys.readouterr().out


def series(text: str, name: str, **labels: str) -> list[float]:
    """The values of one series, the oldest first."""
    families = {each.name: each for each in parser.text_string_to_metric_families(text)}
    return [
        sample.value
        for sample in families[f"clustersmoke_{name}"].samples
        if labels.items() <= sample.labels.items()
    ]


def test_backfill_has_a_sample_for_each_complete_night(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the time when it began, oldest first, and the end that OpenMetrics wants; in the names
    and units of metrics.prom."""
    text = backfill(tmp_path, capsys)
    assert text.endswith("\n# EOF\n")
    families = {each.name: each for each in parser.text_string_to_metric_families(text)}
    fit = families["clustersmoke_run_fit"].samples
    assert [float(sample.timestamp) for sample in fit] == [
        BEGUN + number * DAY_S for number in range(NIGHTS)
    ]
    assert [sample.value for sample in fit] == [1.0] * (NIGHTS - 1) + [0.0]
    rates = families["clustersmoke_phase_steps_per_second"].samples
    assert [sample.value for sample in rates] == [9.0 + number for number in range(NIGHTS)]
    assert rates[0].labels == {"cluster": "gilbreth", "phase": "a"}
    memory = families["clustersmoke_phase_peak_memory_bytes"].samples
    assert {sample.value for sample in memory} == {2.0 * 2**30}


def test_backfill_compares_with_reference_and_past_of_that_night(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reference is the one that judged it; the past is what was good and came before, once
    there is enough of it."""
    text = backfill(tmp_path, capsys)
    rate = {"phase": "a", "metric": "steps_per_s"}
    assert series(text, "phase_reference_ratio", **rate) == [
        (9.0 + number) / 10 for number in range(NIGHTS)
    ]
    assert series(text, "phase_reference_met", **rate) == [0.0] + [1.0] * (NIGHTS - 1)
    past = series(text, "phase_past_ratio", **rate)
    # The first night missed its reference, so it is not good: the level is that of nights 1 to 8.
    assert len(past) == NIGHTS - 9 and past[0] == 18.0 / 13.5
    assert set(series(text, "phase_past_ratio", phase="a", metric="peak_memory_gib")) == {1.0}
    passed = series(text, "phase_outcome", phase="a", outcome="passed")
    assert passed == [1.0] * NIGHTS
    assert series(text, "run_verdict", verdict="UNFIT") == [0.0] * (NIGHTS - 1) + [1.0]


def test_backfill_says_where_nodes_stood_that_night(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the last night found is not known the night before."""
    text = backfill(tmp_path, capsys)
    last_alone = [0.0] * (NIGHTS - 1) + [1.0]
    assert series(text, "node_state", node="node2", state="bad") == last_alone
    assert series(text, "node_named_runs", node="node2") == last_alone
    assert series(text, "node_left_out", node="node2") == [0.0] * NIGHTS
    assert series(text, "cluster_nodes", state="bad") == last_alone
    assert series(text, "cluster_nodes", state="good") == [4.0] * (NIGHTS - 1) + [3.0]


def test_backfill_may_have_one_metric(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --metric it has the gauges of that one and of no other, beside those of runs and
    nodes; an unknown one is refused."""
    backfill(tmp_path, capsys)
    text = exported(tmp_path, capsys, "--metric", "peak_memory_gib")
    assert series(text, "phase_peak_memory_bytes") and series(text, "run_fit")
    assert "steps_per_s" not in text and 'metric="peak_memory_gib"' in text
    words = ["--report-dir", str(tmp_path), "--openmetrics", "--metric", "peak_memory"]
    assert main(["history", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and "no metric `peak_memory` in these runs" in printed.err


def test_backfill_of_a_private_history_has_names_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the reports of those runs, it has no user's name, also where a node's name has it."""
    record = json.dumps(of_night(1, phase("a", scheduler_nodes="")))
    store_run(json.loads(record.replace('"node0"', '"anna"')), tmp_path)
    assert 'node="anna"' in exported(tmp_path, capsys)
    (tmp_path / "history.db").chmod(0o600)
    monkeypatch.setattr(node_standing, "user_name", lambda: "anna")
    text = exported(tmp_path, capsys)
    assert 'node="<user>"' in text and "anna" not in text


def test_backfill_has_the_runs_whose_phases_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A screen, which has no phases, says nothing of the nights; and where --last or --phase cuts
    phases, the verdicts of their runs go with them."""
    for number, names in enumerate(("a", "ab", "ab", "")):
        changes: dict[str, Any] = {"written": BEGUN + number * DAY_S + 90}
        changes |= {} if names else {"phases": []}
        store_run(of_night(number, *map(phase, names), **changes), tmp_path)
    for words, nights in (
        ([], [0, 1, 2]),
        (["--last", "1"], [2]),
        (["--phase", "b"], [1, 2]),
        (["--phase", "b", "--last", "1"], [2]),
    ):
        assert main(["history", "--report-dir", str(tmp_path), "--openmetrics", *words]) == 0
        text = capsys.readouterr().out
        families = {each.name: each for each in parser.text_string_to_metric_families(text)}
        for name in ("run_fit", "run_begun_timestamp_seconds", "run_timestamp_seconds"):
            samples = families[f"clustersmoke_{name}"].samples
            assert [float(each.timestamp) for each in samples] == [
                BEGUN + night * DAY_S for night in nights
            ]
        written = families["clustersmoke_run_timestamp_seconds"].samples
        begun = families["clustersmoke_run_begun_timestamp_seconds"].samples
        assert all(end.value > start.value for end, start in zip(written, begun, strict=True))


def test_backfill_has_the_curves_series_by_series(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The samples of one size stand together, oldest first; a run of a part has none."""
    curves = staged.curves("all_reduce", sizes=2)
    for number in range(3):
        store_run(of_night(number, phase("a", collectives=curves)), tmp_path)
    store_run(of_night(3, phase("a", collectives=curves), selection="-k a"), tmp_path)
    assert main(["history", "--report-dir", str(tmp_path), "--openmetrics"]) == 0
    text = capsys.readouterr().out
    families = {each.name: each for each in parser.text_string_to_metric_families(text)}
    found = families["clustersmoke_phase_collective_seconds"].samples
    sizes = [(each.labels["size_bytes"], float(each.timestamp)) for each in found]
    assert sizes == [(size, BEGUN + night * DAY_S) for size in ("8", "64") for night in range(3)]
    assert found[0].value == curves[0]["points"][0]["seconds"]
    assert found[0].labels["collective"] == "all_reduce"


@pytest.mark.slow
def test_prometheus_takes_the_backfill(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """promtool makes blocks of 45 nights from it, and their samples are all there."""
    file = tmp_path / "past.om"
    file.write_text(backfill(tmp_path, capsys))
    promtool("tsdb", "create-blocks-from", "openmetrics", file, tmp_path / "data")
    (tmp_path / "data" / "wal").mkdir()  # a server would make it
    dumped = promtool("tsdb", "dump", tmp_path / "data").splitlines()
    fit = [line for line in dumped if 'clustersmoke_run_fit"' in line]
    assert len(fit) == NIGHTS
    assert math.isclose(float(fit[-1].split()[-1]) / 1000, BEGUN + (NIGHTS - 1) * DAY_S, abs_tol=1)


CLUSTER = '{cluster="one"}'
PHASE = '{cluster="one", phase="a", metric="steps_per_s"}'
# For each rule: a series that has one sample, the value that alerts, one that does not, and when.
FIRED: dict[str, tuple[str, float, float, int]] = {
    "ClusterNotFit": (f"clustersmoke_run_fit{CLUSTER}", 0, 1, 20),
    "ClusterNotChecked": (f"clustersmoke_run_timestamp_seconds{CLUSTER}", 0, 20 * 3600, 27),
    "PhaseBelowItsReference": (f"clustersmoke_phase_reference_met{PHASE}", 0, 1, 20),
}


def test_every_shipped_rule_is_fired() -> None:
    """None is left out of the test below."""
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    assert [rule["alert"] for rule in group["rules"]] == list(FIRED)
    page = (ROOT / "docs" / "reference" / "reports.md").read_text()
    assert RULES.read_text() in page


@pytest.mark.slow
@pytest.mark.parametrize("alert", FIRED)
@pytest.mark.parametrize("fires", [True, False])
def test_rule_fires_hours_after_one_sample(tmp_path: Path, alert: str, fires: bool) -> None:
    """One sample a night is stale after five minutes; the rule sees it all the same, and a healthy
    one leaves it silent."""
    series, bad, good, hours = FIRED[alert]
    labels: dict[str, Any] = dict(
        pair.strip().replace('"', "").split("=") for pair in series[:-1].split("{")[1].split(",")
    )
    expected = [labels] if fires else []
    check_alert(tmp_path, alert, {series: str(bad if fires else good)}, hours, expected)


@pytest.mark.slow
def test_long_night_is_no_missing_one(tmp_path: Path) -> None:
    """A night of three hours was reported at 3 h; at 26.5 h the next one, begun at 24 h, still
    runs: nothing alerts. At 30 h it should have been reported."""
    series = {
        f"clustersmoke_run_timestamp_seconds{CLUSTER}": f"_x{3 * HOUR} {3 * 3600}",
        f"clustersmoke_run_begun_timestamp_seconds{CLUSTER}": f"_x{3 * HOUR} 0",
    }
    check_alert(tmp_path, "ClusterNotChecked", series, 27, [])
    check_alert(tmp_path, "ClusterNotChecked", series, 30, [{"cluster": "one"}])


@pytest.mark.slow
def test_silent_cluster_alerts_for_weeks_beside_one_that_reports(tmp_path: Path) -> None:
    """Its last sample is that of its last night; the other one has a new one each night."""
    name, day = "clustersmoke_run_timestamp_seconds", 24 * HOUR
    nights = " ".join(f"{60 * day * night} _x{day - 1}" for night in range(30))
    series = {f"{name}{CLUSTER}": "0", f'{name}{{cluster="two"}}': nights}
    for days in (2, 8, 29):
        check_alert(tmp_path, "ClusterNotChecked", series, days * 24, [{"cluster": "one"}])


@pytest.mark.slow
def test_back_filled_nights_alert_only_if_no_later_one_was_scraped(tmp_path: Path) -> None:
    """A scraped series has the labels of its exporter, so it is another than the back-filled one,
    which ends with the last night before."""
    name, day = "clustersmoke_run_timestamp_seconds", 24 * HOUR
    nights = " ".join(f"{60 * day * night} _x{day - 1}" for night in range(5))
    series = {f"{name}{CLUSTER}": "0"}
    scraped = f'{name}{{cluster="one", instance="login1:9100", job="node"}}'
    check_alert(tmp_path, "ClusterNotChecked", {**series, scraped: nights}, 4 * 24, [])
    check_alert(tmp_path, "ClusterNotChecked", series, 4 * 24, [{"cluster": "one"}])


@pytest.mark.slow
def test_cluster_that_was_never_reported_alerts(tmp_path: Path) -> None:
    """Also where no sample is left in the days that the rule looks back."""
    other = {f"clustersmoke_run_fit{CLUSTER}": "1"}
    check_alert(tmp_path, "ClusterNotChecked", other, 27, [{}])


def check_alert(
    folder: Path, alert: str, series: dict[str, str], hours: int, expected: list[dict[str, str]]
) -> None:
    """promtool fires an alert for exactly these labels, on these series, after so many hours."""
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    (rule,) = [rule for rule in group["rules"] if rule["alert"] == alert]
    bare = {key: value for key, value in rule.items() if key != "annotations"}
    (folder / "rules.yml").write_text(yaml.safe_dump({"groups": [{**group, "rules": [bare]}]}))
    alerts = [{"exp_labels": labels} for labels in expected]
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": f"{hours}h", "alertname": alert, "exp_alerts": alerts}],
    }
    suite = {"rule_files": ["rules.yml"], "evaluation_interval": "1h", "tests": [test]}
    (folder / "test.yml").write_text(yaml.safe_dump(suite))
    promtool("check", "rules", RULES)
    promtool("test", "rules", folder / "test.yml")
