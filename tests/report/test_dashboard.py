"""The dashboard that ships is what its script builds, and a real Prometheus answers its queries."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import parser

from pytest_clustersmoke.cli import main
from pytest_clustersmoke.evidence.run_directory import RunDir
from pytest_clustersmoke.report.publication import publish
from tests.report.nights import DAY_S, night
from tests.support import records
from tests.support.harness import ROOT
from tests.support.prometheus import Server, promtool, started_exporter, started_server
from tests.support.waiting import wait_for

EXAMPLES = ROOT / "docs" / "examples"
RULES, DASHBOARD = (EXAMPLES / f"clustersmoke.{kind}" for kind in ("rules.yml", "dashboard.json"))
NIGHTS = 45
CHOSEN = {"cluster": "gilbreth", "metric": "steps_per_s"}  # of the dashboard's variables
ADDED = {"__name__", "job", "instance"}  # by Prometheus
# The past of the first nights is too short.
LEAST_NIGHTS = 20


def panels() -> list[dict[str, Any]]:
    loaded = json.loads(DASHBOARD.read_text())["panels"]
    return [panel for panel in loaded if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str, bool]]:
    """Each panel's title, one of its queries, and whether that asks for the newest value only."""
    for panel in panels():
        for target in panel["targets"]:
            query = re.sub(r"\$(\w+)", lambda found: CHOSEN[found[1]], target["expr"])
            yield panel["title"], query, target["instant"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="grafana-foundation-sdk needs Python 3.11")
def test_shipped_dashboard_is_what_the_script_builds() -> None:
    """`python docs/examples/dashboard.py` would change nothing."""
    from docs.examples import dashboard

    assert dashboard.render() == DASHBOARD.read_text()


def test_dashboard_can_be_imported() -> None:
    """Panels do not overlap, each has a title, a description, a data source that the user chooses
    and named queries; no query is without the chosen cluster."""
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not cells & taken and max(x for x, _ in cells) < 24
        taken |= cells
        assert panel["title"] and panel["description"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        names = [target["refId"] for target in panel["targets"]]
        assert names and len(set(names)) == len(names) and all(names)
        for target in panel["targets"]:
            assert 'cluster=~"$cluster"' in target["expr"]
    assert len(list(queries())) > 12


def store_nights(report_dir: Path) -> None:
    """45 nights, the newest eight hours ago, UNFIT and with a slow node."""
    first = time.time() - 8 * 3600 - (NIGHTS - 1) * DAY_S
    for number in range(NIGHTS):
        is_last = number == NIGHTS - 1
        rate = records.metric(7.0 if is_last else 10 + (number % 5) / 50)
        rate["reference"] = {"value": 10.0, "low": 9.3, "high": None, "source": "acceptance"}
        rate["met"] = not is_last
        metrics = {
            "steps_per_s": rate,
            "peak_memory_gib": records.metric(9.0, "GiB", False),
            "busbw_gb_per_s": records.metric(180.0, "GB/s"),
        }
        phase = records.phase("zero1_4node", nodes=4, metrics=metrics)
        if is_last:
            phase["criteria"]["test_throughput"] = {"result": "failed", "text": "-30 %"}
            phase["findings"] = [records.finding(id="slow-rank", hosts=["node2"])]
        begun = first + number * DAY_S
        records.store_run(night(number, phase, begun=begun, written=begun + 3600), report_dir)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Prometheus that was filled with 45 nights, and evaluates our rules."""
    folder = tmp_path_factory.mktemp("prometheus")
    store_nights(folder)
    with pytest.MonkeyPatch.context() as patch, (folder / "past.om").open("w") as printed:
        patch.setattr(sys, "stdout", printed)
        words = ["--report-dir", str(folder), "--openmetrics", "--last", "400"]
        assert main(["history", *words]) == 0
    promtool("tsdb", "create-blocks-from", "openmetrics", folder / "past.om", folder / "data")
    with started_server(folder, rules=[RULES]) as running:
        yield running


@pytest.mark.slow
def test_every_query_of_the_dashboard_answers(server: Server) -> None:
    """With finite values: each panel of trends for most of 45 nights, each number for the newest;
    and the variables have values to choose from."""
    now = time.time()
    for title, query, is_newest_only in queries():
        if is_newest_only:
            values = [value for _, value in server.query(query)]
            assert values and all(map(math.isfinite, values)), (title, query)
            continue
        series = server.query_range(query, now - NIGHTS * DAY_S, now, DAY_S)
        assert all(math.isfinite(value) for values in series for value in values)
        longest = max((len(values) for values in series), default=0)
        assert longest >= (1 if "node_state" in query else LEAST_NIGHTS), (title, query)
    variables = json.loads(DASHBOARD.read_text())["templating"]["list"]
    asked = [each["query"] for each in variables if each["type"] == "query"]
    for query in asked:
        found = re.fullmatch(r"label_values\((.+), (\w+)\)", query.replace("$cluster", "gilbreth"))
        assert found is not None
        assert server.ask(f"label/{found[2]}/values", **{"match[]": found[1]}), query


@pytest.mark.slow
def test_newest_night_is_seen_as_it_was(server: Server) -> None:
    """Hours later, when its sample is long stale: the verdict, what it missed, who was named."""
    answers = {title: server.query(query) for title, query, _ in queries()}
    assert [labels["verdict"] for labels, _ in answers["Verdict"]] == ["UNFIT"]
    assert [value for _, value in answers["Metrics outside their reference"]] == [1]
    assert [value for _, value in answers["Verdicts"]] == [0]
    assert [value for _, value in answers["Of the reference"]] == [0.7]
    (past,) = (value for _, value in answers["Of the past"])
    assert 0.69 < past < 0.71
    ((labels, named),) = answers["Nodes that runs named"]
    assert labels["node"] == "node2" and named == 1


@pytest.mark.slow
def test_back_filled_night_betters_no_newer_one_and_counts_nothing_twice(tmp_path: Path) -> None:
    """A FIT night was back-filled; the next one, which is INCONCLUSIVE, is scraped, so its series
    have the labels of the exporter."""
    gauges = {
        'run_verdict{cluster="gilbreth", verdict="FIT"}': (1, 0),
        'run_verdict{cluster="gilbreth", verdict="INCONCLUSIVE"}': (0, 1),
        'run_timestamp_seconds{cluster="gilbreth"}': (0, 1800),
        'phase_reference_met{cluster="gilbreth", phase="a", metric="steps_per_s"}': (0, 0),
        'node_left_out{cluster="gilbreth", node="node2"}': (1, 1),
    }
    exporter = ', instance="login1:9100", job="node"}'
    series = [
        {"series": f"clustersmoke_{name}", "values": str(value)}
        for gauge, values in gauges.items()
        for name, value in zip((gauge, gauge[:-1] + exporter), values, strict=True)
    ]
    shown = {"Verdicts": 1, "Last complete run": 1800}
    shown |= {"Metrics outside their reference": 1, "Nodes to leave out": 1}
    expected = [
        {
            "expr": query,
            "eval_time": "1h",
            "exp_samples": [{"labels": '{cluster="gilbreth"}', "value": shown[title]}],
        }
        for title, query, _ in queries()
        if title in shown
    ]
    assert len(expected) == len(shown)
    tested = {"interval": "1m", "input_series": series, "promql_expr_test": expected}
    (tmp_path / "test.yml").write_text(json.dumps({"tests": [tested]}))
    promtool("test", "rules", tmp_path / "test.yml")


@pytest.mark.slow
def test_rules_run_in_a_real_prometheus(server: Server) -> None:
    """All are healthy; of this night the verdict and the reference alert, and its age does not."""

    def evaluated() -> list[dict[str, Any]] | None:
        (group,) = server.ask("rules")["groups"]
        done = all(rule["health"] != "unknown" for rule in group["rules"])
        return list(group["rules"]) if done else None

    rules = wait_for("the evaluation of all rules", evaluated, 60)
    assert {rule["name"]: (rule["health"], rule["state"]) for rule in rules} == {
        "ClusterNotFit": ("ok", "firing"),
        "ClusterNotChecked": ("ok", "inactive"),
        "PhaseBelowItsReference": ("ok", "firing"),
    }


@pytest.mark.slow
def test_textfile_of_a_run_is_scraped(tmp_path: Path) -> None:
    """A node exporter collects it, a Prometheus scrapes that, and has every sample with its value;
    those of nodes as well."""
    reports = tmp_path / "reports"
    slow = records.finding(id="slow-rank", hosts=["node2"])
    record = records.parsed(records.run(records.phase(findings=[slow])))
    assert publish(record, RunDir(tmp_path / "runs" / record.run_id), reports, {}) == []
    text = (reports / "metrics-gilbreth.prom").read_text()
    written = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert ("clustersmoke_node_named_runs", ("cluster", "gilbreth"), ("node", "node2")) in written
    with (
        started_exporter(tmp_path, reports) as address,
        started_server(tmp_path, [address]) as prometheus,
    ):
        scraped = wait_for("a scrape", lambda: prometheus.query('{__name__=~"clustersmoke_.+"}'))
        errors = prometheus.query("node_textfile_scrape_error")
    found = {}
    for labels, value in scraped:
        own = sorted(pair for pair in labels.items() if pair[0] not in ADDED)
        key = (labels["__name__"], *own)
        found[key] = value
    assert found == written
    assert [value for _, value in errors] == [0]
