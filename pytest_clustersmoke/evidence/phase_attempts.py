"""The jobs of a phase that may be retried, and how each of them ended.

What is read here lies where jobs can write, so that a value of the wrong type counts as missing,
and a file that is missing or damaged never as "there was no job".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..text import outcome_words, sanitize_line
from .finding import Finding
from .run_directory import PhaseDir, read_json, write_json
from .telemetry import parse_finite, parse_rows, parse_text, parse_texts, to_json_value

NODE_FAILED, PREEMPTED = "cluster_failed", "preempted"
RETRIED = (NODE_FAILED, PREEMPTED)  # the outcomes after which a phase may be tried again


@dataclass(frozen=True)
class PhaseAttempt:
    """One job of a phase: its number, from 1, and how it ended. `nodes` are those that it had, and
    `failed` those that the next one must not get, by the scheduler's names. Times are seconds;
    `submitted` and `ended` are Unix times."""

    number: int
    outcome: str
    reason: str
    job_id: str = ""
    nodes: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    submitted: float | None = None
    ended: float | None = None
    queue_s: float | None = None
    run_s: float | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def words(self) -> str:
        """How it ended, as a line of the progress."""
        return f"attempt {self.number}: {outcome_words(self.outcome)}: {self.reason}"

    def as_record(self) -> dict[str, Any]:
        """The attempt as report.json lists it."""
        return {
            "attempt": self.number,
            "outcome": self.outcome,
            "reason": self.reason,
            "job_id": self.job_id,
            "nodes": list(self.nodes),
            "failed_nodes": list(self.failed),
            "submitted": self.submitted,
            "ended": self.ended,
            "queue_s": self.queue_s,
            "run_s": self.run_s,
        }

    def write(self, directory: PhaseDir) -> None:
        """Write how the job in this directory ended. Raises OSError."""
        found = [finding.as_dict() for finding in self.findings]
        record = {"schema": 1, **self.as_record(), "findings": found}
        write_json(directory.job(self.number).ending, to_json_value(record))

    @classmethod
    def from_record(cls, number: int, record: Mapping[str, Any]) -> PhaseAttempt:
        """The attempt of this number; the outcome is `lost` if the record has none."""
        return cls(
            number,
            parse_text(record.get("outcome")) or "lost",
            sanitize_line(parse_text(record.get("reason")) or ""),
            sanitize_line(parse_text(record.get("job_id")) or ""),
            tuple(map(sanitize_line, parse_texts(record.get("nodes")))),
            tuple(map(sanitize_line, parse_texts(record.get("failed_nodes")))),
            parse_finite(record.get("submitted")),
            parse_finite(record.get("ended")),
            parse_finite(record.get("queue_s")),
            parse_finite(record.get("run_s")),
            tuple(map(Finding.from_record, parse_rows(record.get("findings")))),
        )


def read_attempt(directory: PhaseDir) -> PhaseAttempt | None:
    """How the job in this directory ended; None if it has not, or that cannot be read."""
    record = read_json(directory.ending)
    return None if record is None else PhaseAttempt.from_record(directory.number, record)


def read_attempts(directory: PhaseDir, before: int | None = None) -> list[PhaseAttempt]:
    """The jobs of a phase that have ended, in order, up to the one of the number `before`. One that
    another followed is `lost` if its record cannot be read."""
    jobs = [job for job in directory.jobs() if before is None or job.number < before]
    followed = jobs if before is not None else jobs[:-1]
    found = [read_attempt(job) or _lose(job, job in followed) for job in jobs]
    return [attempt for attempt in found if attempt is not None]


def _lose(directory: PhaseDir, was_followed: bool) -> PhaseAttempt | None:
    reason = f"nobody knows how it ended: {directory.ending} cannot be read"
    return PhaseAttempt(directory.number, "lost", reason) if was_followed else None
