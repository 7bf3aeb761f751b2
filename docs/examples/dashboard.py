"""Builds clustersmoke.dashboard.json, which Grafana imports: `python docs/examples/dashboard.py`.

Needs Python 3.11 and grafana-foundation-sdk. A night may be one sample, which is stale after five
minutes, so each query looks back, as the alert rules do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueTextMode,
    LineInterpolation,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    Dashboard,
    DataSourceRef,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
    VariableOption,
    VariableRefresh,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

FILE = Path(__file__).with_name("clustersmoke.dashboard.json")
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
GREEN, ORANGE, RED = "green", "orange", "red"
WHERE = 'cluster=~"$cluster"'
LATE_S = 26 * 3600  # as in the rule ClusterNotChecked
FRESH_S = 36 * 3600


def look_back(gauge: str, *labels: str, span: str = "36h") -> str:
    """The newest sample of a gauge."""
    return f"last_over_time(clustersmoke_{gauge}{{{','.join((WHERE, *labels))}}}[{span}])"


def while_fresh(query: str) -> str:
    """The query's samples of clusters whose newest complete run was reported in the last 36 hours:
    a textfile is scraped again and again, however old it is."""
    age = f"time() - {look_back('run_timestamp_seconds')}"
    return f"({query}) and on (cluster) ({age} < {FRESH_S})"


def ask(query: str, legend: str = "", name: str = "A") -> prometheus.Dataquery:
    """A query over the time that the dashboard shows."""
    return prometheus.Dataquery().expr(query).range().legend_format(legend).ref_id(name)


def ask_now(query: str, legend: str = "") -> prometheus.Dataquery:
    """A query of the newest value."""
    return prometheus.Dataquery().expr(query).instant().legend_format(legend).ref_id("A")


def steps(*colours: tuple[float | None, str]) -> dashboard.ThresholdsConfig:
    """The colours from values on, of which the first has none."""
    marks = [Threshold(value, colour) for value, colour in colours]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(marks)


def words(**texts: str) -> list[Any]:
    """What a value is shown as: `v1="FIT green"`."""
    shown = {}
    for name, text in texts.items():
        said, _, colour = text.rpartition(" ")
        shown[name.removeprefix("v")] = ValueMappingResult(text=said, color=colour)
    return [ValueMap(options=shown)]


def number(title: str, why: str, query: str, unit: str, red_from: float) -> stat.Panel:
    return (
        stat.Panel()
        .title(title)
        .description(why)
        .datasource(SOURCE)
        .unit(unit)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(steps((None, GREEN), (red_from, RED)))
        .color_mode(BigValueColorMode.BACKGROUND)
        .with_target(ask_now(query, "{{cluster}}"))
        .height(5)
        .span(6)
    )


def verdict() -> stat.Panel:
    held = f"{look_back('run_verdict')} == 1"
    panel = (
        stat.Panel()
        .title("Verdict")
        .description("Of the newest complete run. No data: none was reported in 36 hours.")
        .datasource(SOURCE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .text_mode(BigValueTextMode.NAME)
        .color_mode(BigValueColorMode.BACKGROUND)
        .with_target(ask_now(while_fresh(held), "{{cluster}}: {{verdict}}"))
        .height(5)
        .span(6)
    )
    for name, colour in (("FIT", GREEN), ("UNFIT", RED), ("INCONCLUSIVE", ORANGE)):
        fixed = DynamicConfigValue("color", {"mode": "fixed", "fixedColor": colour})
        panel = panel.override_by_regexp(f"/: {name}$/", [fixed])
    return panel


def nights(
    title: str, why: str, query: str, legend: str, mappings: Sequence[Any], height: int
) -> statetimeline.Panel:
    """A row for each series, coloured by its value."""
    return (
        statetimeline.Panel()
        .title(title)
        .description(why)
        .datasource(SOURCE)
        .mappings(list(mappings))
        .show_value(VisibilityMode.NEVER)
        .with_target(ask(query, legend))
        .height(height)
        .span(24)
    )


def trend(
    title: str, why: str, query: str, unit: str, legend: str = "{{cluster}} {{phase}}"
) -> timeseries.Panel:
    return (
        timeseries.Panel()
        .title(title)
        .description(why)
        .datasource(SOURCE)
        .unit(unit)
        .line_interpolation(LineInterpolation.STEP_AFTER)
        .with_target(ask(query, legend))
        .height(9)
        .span(12)
    )


def ratio(title: str, why: str, gauge: str) -> timeseries.Panel:
    return trend(
        title,
        why,
        look_back(gauge, 'metric=~"$metric"'),
        "percentunit",
        "{{cluster}} {{phase}} {{metric}}",
    )


def named_nodes() -> table.Panel:
    named = look_back("node_named_runs")
    return (
        table.Panel()
        .title("Nodes that runs named")
        .description("In how many runs of the last 14 days something named the node as bad.")
        .datasource(SOURCE)
        .with_target(ask_now(f"topk(20, {named} > 0)").format(PromQueryFormat.TABLE))
        .height(9)
        .span(12)
    )


def variables() -> list[Any]:
    chosen = VariableOption(selected=True, text="steps_per_s", value="steps_per_s")
    return [
        dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"),
        dashboard.QueryVariable("cluster")
        .label("Cluster")
        .datasource(SOURCE)
        .query("label_values(clustersmoke_run_fit, cluster)")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .current(VariableOption(selected=True, text="All", value="$__all")),
        dashboard.QueryVariable("metric")
        .label("Metric")
        .datasource(SOURCE)
        .query(f"label_values(clustersmoke_phase_past_ratio{{{WHERE}}}, metric)")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .current(chosen),
    ]


def build() -> Dashboard:
    held = {name: look_back("run_verdict", f'verdict="{name}"') for name in ("FIT", "INCONCLUSIVE")}
    verdicts = f"2 * {held['FIT']} or {held['INCONCLUSIVE']}"
    failed = look_back("phase_criteria", 'result="failed"')
    # A back-filled night, and another exporter of the same file, are series of their own; of two
    # verdicts the worse one shows.
    once = f"max by (cluster, phase, metric) ({look_back('phase_reference_met')} == bool 0)"
    missed = f"sum by (cluster) ({once})"
    reported = f"max by (cluster) ({look_back('run_timestamp_seconds', span='7d')})"
    left_out = f"max by (cluster, node) ({look_back('node_left_out')})"
    named = f"{look_back('node_named_runs')} > 0"
    bad = look_back("node_state", 'state="bad"')
    made = (
        dashboard.Dashboard("clustersmoke")
        .uid("clustersmoke")
        .description("Is the cluster fit to train on? The nights of pytest-clustersmoke.")
        .tags(["clustersmoke"])
        .time("now-45d", "now")
        .timezone("browser")
        .variables(variables())
        .with_row(dashboard.Row("Now"))
        .with_panel(verdict())
        .with_panel(
            number(
                "Last complete run",
                "How long ago it was reported. A night that is missing is worse than a bad one.",
                f"time() - {reported}",
                "s",
                LATE_S,
            )
        )
        .with_panel(
            number("Metrics outside their reference", "In the newest run.", missed, "none", 1)
        )
        .with_panel(
            number(
                "Nodes to leave out",
                "As `clustersmoke exclude` judges the evidence of past runs.",
                f"sum by (cluster) ({left_out})",
                "none",
                1,
            )
        )
        .with_row(dashboard.Row("Nights"))
        .with_panel(
            nights(
                "Verdicts",
                "A missing night shows the one before, up to 36 hours after its report.",
                while_fresh(f"min by (cluster) (sum without (verdict) ({verdicts}))"),
                "{{cluster}}",
                words(v0=f"UNFIT {RED}", v1=f"INCONCLUSIVE {ORANGE}", v2=f"FIT {GREEN}"),
                5,
            )
        )
        .with_panel(
            nights(
                "Phases",
                "Whether a criterion of the phase failed; its job counts as one.",
                while_fresh(f"{failed} > bool 0"),
                "{{cluster}} {{phase}}",
                words(v0=f"none failed {GREEN}", v1=f"failed {RED}"),
                9,
            )
        )
        .with_row(dashboard.Row("Against reference and past"))
        .with_panel(ratio("Of the reference", "100 % is the reference.", "phase_reference_ratio"))
        .with_panel(
            ratio(
                "Of the past",
                "100 % is the median of the good nights before, of the same setup.",
                "phase_past_ratio",
            )
        )
        .with_row(dashboard.Row("Measured"))
        .with_panel(
            trend("Steps", "All steps over their time.", look_back("phase_steps_per_second"), "/s")
        )
        .with_panel(
            trend(
                "Bus bandwidth",
                "Of all-reduce, the best of all sizes.",
                look_back("phase_busbw_bytes_per_second"),
                "Bps",
            )
        )
        .with_panel(
            trend(
                "Peak memory",
                "Of the device that needed the most.",
                look_back("phase_peak_memory_bytes"),
                "bytes",
            )
        )
        .with_panel(
            trend(
                "Run and queue",
                "How long each phase ran, and waited before.",
                look_back("phase_run_seconds"),
                "s",
            ).with_target(ask(look_back("phase_queue_seconds"), "{{cluster}} {{phase}} queue", "B"))
        )
        .with_row(dashboard.Row("Nodes"))
        .with_panel(
            nights(
                "Nodes that runs named",
                "What the newest run that had the node saw of it.",
                f"{bad} and on (cluster, node) ({named})",
                "{{cluster}} {{node}}",
                words(v0=f"not bad {GREEN}", v1=f"bad {RED}"),
                9,
            )
        )
        .with_panel(named_nodes())
        .with_panel(
            trend(
                "Nodes by state",
                "Of the runs of the last 14 days; a node counts as the newest of them saw it.",
                look_back("cluster_nodes"),
                "none",
                "{{cluster}} {{state}}",
            )
        )
    )
    return made.build()


def render() -> str:
    """The dashboard as the file that ships has it."""
    return JSONEncoder(sort_keys=True, indent=2).encode(build()) + "\n"


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
