"""A run's record -> rows."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from sqlite3 import Connection
from typing import Any, NamedTuple

from ...text import sanitize_line
from ..telemetry import plain
from . import history_database

# Parts of report.json as plain data; report/run_record.py, which describes them, is above.
RunRecord = dict[str, Any]
PhaseRecord = dict[str, Any]
MetricRecord = dict[str, Any]
# Most of it comes from jobs, and is as long as they like.
MAX_TEXT, MAX_SHAPE, MAX_NAMES = 500, 4000, 4096


class Setup(NamedTuple):
    """What phase runs must have in common to be compared; versions that are not known are empty."""

    hardware: str
    shape: str
    driver: str
    cuda: str
    nccl: str
    torch: str
    deepspeed: str

    @classmethod
    def of(cls, hardware: str, shape: str, versions: Mapping[str, str]) -> Setup:
        """As it is stored, so that equal ones are found again."""
        compared = (text(versions.get(name, "")) for name in cls._fields[2:])
        return cls(text(hardware), text(shape, MAX_SHAPE), *compared)


# What a phase must not lack to be good; these two come of good runs.
_OF_THE_PAST = ("history", "references")


def add(record: RunRecord, report_dir: Path, judged: bool = True) -> None:
    """Store a run, in place of what was stored of it before. Raises HistoryUnusable.

    What was staged says nothing of the cluster: such runs and phases are not stored. Without
    `judged` it was not put beside the past, and so is not good.
    """
    phases = [phase for phase in record["phases"] if not phase.get("fault")]
    if "proof" in record or (record["phases"] and not phases):
        return
    ended = not (record["interrupted"] or record["partial"])
    patience_s = history_database.PATIENCE_S if ended else history_database.HURRIED_S
    with history_database.writing(report_dir, patience_s) as connection:
        run = _store_run(connection, record)
        for phase in phases:
            _store_phase(connection, record, run, phase, judged and is_good(phase, record))


def is_good(phase: PhaseRecord, run: RunRecord) -> bool:
    """Whether later runs may be measured against it: it passed, all its criteria were heard, what
    is required was measured, no criterion failed (nor fails with somebody's leave), no metric
    misses its reference or is worse than the past (which need not fail a criterion), and all is
    known of the run."""
    bad = any(one["result"] in ("failed", "known") for one in phase["criteria"].values())
    worse = any(map(_is_worse, phase["metrics"].values()))
    whole = phase["all_criteria"] and not (run["partial"] or _lacks(phase["phase"], run))
    return phase["outcome"] == "passed" and whole and not (bad or phase["known"] or worse)


def _is_worse(metric: MetricRecord) -> bool:
    """It misses its reference, or lies beyond the past's bounds: where it may fail, a warning is
    enough, else the median would follow a slow loss."""
    past = metric["past"]
    if metric["met"] is False:
        return True
    if past is None or past["status"] not in ("fail", "warn"):
        return False
    return past["status"] == "fail" or past["fail"] is not None


def _lacks(phase: str, run: RunRecord) -> bool:
    """Whether something that is required of a phase was not measured."""
    begins = {
        f"{phase}: {words}"
        for kind in _OF_THE_PAST
        for words in (f"{kind} not measured", f"no criterion judged {kind}")
    }
    lacking = (one for one in run["not_measured"] if one.startswith(f"{phase}: "))
    return any(one not in begins for one in lacking)


def _store_run(connection: Connection, record: RunRecord) -> int:
    """In place of what was stored of it before; returns its number."""
    connection.execute("DELETE FROM runs WHERE run_id = ?", (record["run_id"],))
    hardware = record["hardware"]
    row = {
        "run_id": record["run_id"],
        "cluster": record["cluster"],
        "backend": record["backend"],
        "begun": record["begun"],
        "written": record["written"],
        "verdict": record["verdict"],
        "sentence": text(record["sentence"]),
        "selection": text(record["selection"]),
        "interrupted": int(record["interrupted"]),
        "partial": text(record["partial"]),
        "package_version": record["package_version"],
        "gpu": text(hardware["gpu"]),
        "device": text(hardware["device"]),
        "gpus_per_node": hardware["gpus_per_node"],
        "interconnect": text(hardware["interconnect"]),
    }
    run = insert(connection, "runs", row)
    # Of a run that was deleted by hand the phases stay, and its number is given again.
    connection.execute("DELETE FROM phases WHERE run = ?", (run,))
    return run


def _store_phase(
    connection: Connection, record: RunRecord, run: int, phase: PhaseRecord, good: bool
) -> None:
    criteria = {text(name): one["result"] for name, one in phase["criteria"].items()}
    counts = Counter(criteria.values())
    versions = {text(name): text(value) for name, value in phase["versions"].items()}
    nodes = [text(node["node"]) for node in phase["nodes"][:MAX_NAMES]]
    causes = [finding["id"] for finding in phase["findings"] if finding["primary"]]
    row = {
        "run": run,
        "cluster": record["cluster"],
        "phase": phase["phase"],
        "begun": record["begun"],
        "setup": setup_id(
            connection, Setup.of(phase["hardware"], phase["shape"], phase["versions"])
        ),
        "good": int(good),
        "outcome": phase["outcome"],
        "reason": text(phase["reason"]),
        "finding": text(causes[0]) if causes else "",
        "job_id": text(phase["job_id"]),
        "world_size": phase["world_size"],
        "queue_s": phase["queue_s"],
        "run_s": phase["run_s"],
        **{name: counts[name] for name in ("passed", "failed", "skipped", "known")},
        "transport": text(phase["transport"]),
        "nodes": json.dumps(nodes),
        "versions": json.dumps(versions, sort_keys=True),
        "criteria": json.dumps(dict(list(criteria.items())[:MAX_NAMES]), sort_keys=True),
    }
    number = insert(connection, "phases", row)
    connection.execute("DELETE FROM metrics WHERE phase = ?", (number,))
    rows = [_metric(number, name, one) for name, one in phase["metrics"].items()]
    connection.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?)", rows)


def _metric(phase: int, name: str, metric: MetricRecord) -> tuple[Any, ...]:
    value = float(metric["value"])  # which also reads the names of what is not finite
    return phase, name, plain(value), metric["unit"], int(metric["higher_is_better"])


def setup_id(connection: Connection, setup: Setup) -> int:
    """The row of a setup, which is made where it is new."""
    values = dict(zip(Setup._fields, setup, strict=True))
    found = connection.execute(
        f"SELECT id FROM setups WHERE {' AND '.join(f'{name} = :{name}' for name in values)}",
        values,
    ).fetchone()
    if found:
        return int(found[0])
    number = insert(connection, "setups", values)
    connection.execute("DELETE FROM phases WHERE setup = ?", (number,))  # as of runs
    return number


def insert(connection: Connection, table: str, row: Mapping[str, Any]) -> int:
    """Insert a row, and give its id."""
    places = ", ".join(f":{name}" for name in row)
    cursor = connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})", row)
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def text(said: object, longest: int = MAX_TEXT) -> str:
    """One clean line; two that are too long stay two, by a digest of what is cut off."""
    line = sanitize_line(str(said))
    if len(line) <= longest:
        return line
    digest = hashlib.sha256(line.encode()).hexdigest()[:16]
    return f"{line[: longest - 20]}... {digest}"
