"""The JUnit properties of a phase's cases; they travel as pytest's `user_properties`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..result import PhaseResult

Property = tuple[str, object]
VERSIONS = ("python", "torch", "cuda", "nccl")


def of_phase(result: PhaseResult) -> list[Property]:
    """phase, job_id, nodes, outcome, queue_s, run_s, each metric by its name, versions."""
    job = result.job
    properties: list[Property] = [
        ("phase", result.name),
        ("job_id", str(job.get("job_id", ""))),
        ("nodes", ",".join(node.name for node in result.nodes)),
        ("outcome", result.outcome),
    ]
    for name in ("queue_s", "run_s"):
        value = job.get(name)
        properties.append((name, "" if value is None else round(float(value), 3)))
    properties += sorted(result.metrics().items())
    start = result.ranks[0].start if result.ranks else {}
    properties += [(name, start[name]) for name in VERSIONS if start.get(name)]
    properties.append(("transport", result.transport_summary()))
    return properties
