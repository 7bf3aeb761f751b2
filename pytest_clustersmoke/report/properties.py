"""The JUnit properties of a phase's cases; they travel as pytest's `user_properties`.

A metric's name ends in its unit (`steps_per_s`, `peak_memory_gib`; `final_loss` has none), and its
figure is that of report.json, digit by digit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import clean
from ..identity import identity

if TYPE_CHECKING:
    from ..result import PhaseResult

Property = tuple[str, object]


def of_phase(result: PhaseResult) -> list[Property]:
    """phase, job_id, nodes, outcome, queue_s, run_s, each metric by its name, versions, transport.

    A time that is not known is empty; a metric or version that is not known is not there.
    """
    job = result.job
    properties: list[Property] = [
        ("phase", result.name),
        ("job_id", clean.line(str(job.get("job_id", "")))),
        ("nodes", clean.line(",".join(node.name for node in result.nodes))),
        ("outcome", result.outcome),
    ]
    for name in ("queue_s", "run_s"):
        value = job.get(name)
        properties.append((name, "" if value is None else value))
    properties += sorted(result.metrics().items())
    properties += identity(result).versions.items()
    properties.append(("transport", clean.line(result.transport_summary())))
    return properties
