"""The record of a run: what report.json holds, and all else is rendered from."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..environment import seen
from ..references import compare
from ..result import PhaseResult, collect

if TYPE_CHECKING:
    from ..suite import Suite

SCHEMA = 1


def make_record(suite: Suite) -> dict[str, Any]:
    """The record of a finished run, as plain data."""
    assert suite.run is not None
    return {
        "schema": SCHEMA,
        "run_id": suite.run_id,
        "cluster": suite.profile.name,
        "backend": suite.profile.backend,
        "evidence": str(suite.run.root),
        "written": time.time(),
        **suite.tally.as_dict(),
        "absent_phases": suite.absences,
        "phases": [
            phase_record(collect(suite.run.phase(name), suite.profile), suite)
            for name in suite.tally.chosen
        ],
    }


def phase_record(result: PhaseResult, suite: Suite) -> dict[str, Any]:
    metrics = {}
    for name, value in result.metrics().items():
        reference = result.references.get(name)
        comparison = compare(name, value, reference)
        metrics[name] = {
            "value": value,
            "unit": result.metric(name).unit,
            "reference": reference.value if reference else None,
            "met": comparison.met,
            "text": comparison.text,
        }
    return {
        **{key: value for key, value in result.job.items() if key != "schema"},
        "phase": result.name,
        "outcome": result.outcome,
        "world_size": result.world_size,
        "nodes": [
            {"node_rank": node.node_rank, "node": node.name, "host": node.host, "facts": node.facts}
            for node in result.nodes
        ],
        "transport": result.transport_summary(),
        "metrics": metrics,
        "remarks": _remarks(result, suite),
        "stage_seconds": result.stage_seconds(),
        "criteria": suite.tally.criteria.get(result.name, {}),
        "not_measured": sorted(suite.tally.unmeasured.get(result.name, set())),
    }


def _remarks(result: PhaseResult, suite: Suite) -> list[dict[str, Any]]:
    """What is to be said of the variables that the nodes saw."""
    phase = suite.phases.get(result.name)
    found = seen(result, phase, suite.profile, os.environ) if phase else []
    return [asdict(remark) for remark in found]
