"""Stores a run's record as rows of history.db."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from ..node_observation import DeviceFigure, NodeObservation
from ..run_record import MetricRecord, PhaseRecord, RunRecord
from ..telemetry import to_json_value
from . import history_database
from .collective_history import insert_curves
from .figure_history import insert_figures
from .gpu_history import insert_gpu_steps, prune_gpus
from .history_schema import MAX_NAMES, Setup, shorten_line
from .node_history import insert_observations

# These kinds need good runs first, so a phase can be good without them.
_KINDS_FROM_THE_PAST = ("history", "references", "peaks")


def store_run(
    record: RunRecord,
    report_dir: Path,
    judged: bool = True,
    *,
    observations: Iterable[NodeObservation] = (),
    figures: Iterable[DeviceFigure] = (),
    private: bool = False,
) -> None:
    """Store a run, replacing an earlier record of it; with it what was observed of its nodes, and
    what their devices reached. `private`: only the user can read the history from now on. Raises
    HistoryUnusable.

    Runs and phases with staged faults say nothing about the cluster and are not stored. Without
    `judged` the run was not compared with the past, so it does not count as good.
    """
    if not is_stored(record):
        return
    phases = [phase for phase in record.phases if not phase.fault]
    ended = not (record.interrupted or record.partial)
    patience_s = history_database.PATIENCE_S if ended else history_database.HURRIED_S
    with history_database.open_for_writing(report_dir, patience_s, private) as connection:
        run = _insert_run(connection, record)
        for phase in phases:
            _insert_phase(connection, record, run, phase, judged and is_good(phase, record))
        place = (connection, run, record.cluster, record.begun)
        insert_observations(*place, observations)
        insert_figures(*place, figures)


def is_stored(record: RunRecord) -> bool:
    """Whether the history has this run: not if faults were staged in all of its phases."""
    is_staged = bool(record.phases) and all(phase.fault for phase in record.phases)
    return record.proof is None and not is_staged


def is_good(phase: PhaseRecord, run: RunRecord) -> bool:
    """Whether later runs may be judged against this one: it passed undisturbed, all its criteria
    reported, everything required was measured, no criterion failed (not even a waived one), no
    metric misses its reference or is worse than the past (even where that only warns), and the
    run's record is complete."""
    bad = any(criterion.result in ("failed", "known") for criterion in phase.criteria.values())
    worse = any(map(_is_regression, phase.metrics.values()))
    incomplete = run.partial or any(
        missing.phase == phase.phase and missing.kind not in _KINDS_FROM_THE_PAST
        for missing in run.missing
    )
    whole = phase.all_criteria and not incomplete
    passed = phase.outcome == "passed" and _is_undisturbed(phase)
    return passed and whole and not (bad or phase.known or worse)


def _is_undisturbed(phase: PhaseRecord) -> bool:
    """Whether its job was neither suspended nor requeued, so that its times mean something."""
    return not (phase.requeues or phase.suspended_s) and phase.outcome != "preempted"


def _is_regression(metric: MetricRecord) -> bool:
    """Whether a metric misses its reference or lies beyond the bounds from the past. For a metric
    that can fail a warning is enough, since the median would otherwise follow a slow loss."""
    past = metric.past
    if metric.met is False:
        return True
    if past is None or past["status"] not in ("fail", "warn"):
        return False
    return past["status"] == "fail" or past["fail"] is not None


def _insert_run(connection: Connection, record: RunRecord) -> int:
    """Insert a run, replacing an earlier record of it; returns its id."""
    connection.execute("DELETE FROM runs WHERE run_id = ?", (record.run_id,))
    hardware = record.hardware
    row = {
        "run_id": record.run_id,
        "cluster": record.cluster,
        "backend": record.backend,
        "begun": record.begun,
        "written": record.written,
        "verdict": record.verdict,
        "sentence": shorten_line(record.sentence),
        "selection": shorten_line(record.selection),
        "interrupted": int(record.interrupted),
        "partial": shorten_line(record.partial),
        "package_version": record.package_version,
        "gpu": shorten_line(hardware.gpu),
        "device": shorten_line(hardware.device),
        "gpus_per_node": hardware.gpus_per_node,
        "interconnect": shorten_line(hardware.interconnect),
        "publish": record.request.publish if record.request is not None else None,
        "utc_offset_s": record.utc_offset_s,
    }
    run = insert(connection, "runs", row)
    # Phases of a run that was deleted by hand remain, and its id is reused.
    connection.execute("DELETE FROM phases WHERE run = ?", (run,))
    return run


def _insert_phase(
    connection: Connection, record: RunRecord, run: int, phase: PhaseRecord, good: bool
) -> None:
    criteria = {shorten_line(name): entry.result for name, entry in phase.criteria.items()}
    counts = Counter(criteria.values())
    versions = {shorten_line(name): shorten_line(value) for name, value in phase.versions.items()}
    nodes = [shorten_line(node.node) for node in phase.nodes[:MAX_NAMES]]
    causes = [finding.id for finding in phase.findings if finding.primary]
    missing = [each.kind for each in record.missing if each.phase == phase.phase and each.kind]
    row = {
        "run": run,
        "cluster": record.cluster,
        "phase": phase.phase,
        "begun": record.begun,
        "setup": find_or_insert_setup(
            connection, Setup.of(phase.hardware, phase.shape, phase.versions)
        ),
        "good": int(good),
        "outcome": phase.outcome,
        "reason": shorten_line(phase.reason),
        "finding": shorten_line(causes[0]) if causes else "",
        "job_id": shorten_line(phase.job_id),
        "world_size": phase.world_size,
        "queue_s": phase.queue_s,
        "run_s": phase.run_s,
        **{name: counts[name] for name in ("passed", "failed", "skipped", "known")},
        "transport": shorten_line(phase.transport),
        "nodes": json.dumps(nodes),
        "versions": json.dumps(versions, sort_keys=True),
        "criteria": json.dumps(dict(list(criteria.items())[:MAX_NAMES]), sort_keys=True),
        "attempts": max(1, len(phase.attempts)),
        "unmeasured": ", ".join(missing),
    }
    number = insert(connection, "phases", row)
    connection.execute("DELETE FROM metrics WHERE phase = ?", (number,))
    metrics = phase.metrics if _is_undisturbed(phase) else {}
    rows = [_metric_row(number, name, metric) for name, metric in metrics.items()]
    connection.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
    ranks = phase.ranks if _is_undisturbed(phase) else []
    steps = {rank.gpu: float(rank.own_step_s) for rank in ranks if rank.own_step_s}
    insert_gpu_steps(connection, number, steps)
    insert_curves(connection, number, phase.collectives if _is_undisturbed(phase) else ())
    prune_gpus(connection, number)


def _metric_row(phase: int, name: str, metric: MetricRecord) -> tuple[Any, ...]:
    value = float(metric.value)  # float() also reads nan, inf and -inf
    reference = metric.reference if metric.met is not None else None
    bounds = (reference.value, reference.low, reference.high) if reference else (None, None, None)
    return phase, name, to_json_value(value), metric.unit, int(metric.higher_is_better), *bounds


def find_or_insert_setup(connection: Connection, setup: Setup) -> int:
    """The id of a setup's row, which is inserted if it is new."""
    values = dict(zip(Setup._fields, setup, strict=True))
    row = connection.execute(
        f"SELECT id FROM setups WHERE {' AND '.join(f'{name} = :{name}' for name in values)}",
        values,
    ).fetchone()
    if row:
        return int(row[0])
    number = insert(connection, "setups", values)
    connection.execute("DELETE FROM phases WHERE setup = ?", (number,))  # as in _insert_run
    return number


def insert(connection: Connection, table: str, row: Mapping[str, Any]) -> int:
    """Insert a row and return its id."""
    places = ", ".join(f":{name}" for name in row)
    cursor = connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})", row)
    assert cursor.lastrowid is not None
    return cursor.lastrowid
