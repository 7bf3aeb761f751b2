"""What Slurm says of a job that did not end well, and of its nodes, kept as it printed it.

These are questions that any user may ask. `told` reads the answers.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping

from ..told import HEAD, JOB, NODES, OTHERS, RECORDS, field_of
from . import JobState, scheduler

# For each question: the watch over the other jobs waits meanwhile.
PATIENCE_S = 10.0
# The database hears of a job's end about a second late (seen with slurmdbd 22.05).
RECORD_LAG_S, RECORD_POLL_S = 2.0, 0.25
UNAVAILABLE = "down,drained,draining,fail,failing,maint,unk"
MAX_BYTES = 2**20


def ask(job: str, state: JobState, nodes: str, environ: Mapping[str, str]) -> str:
    """The scheduler's answers; empty where it gives none. `nodes`: those that the job had."""
    questions = _Questions(environ)
    shown = questions.ask([*JOB, job])
    partition = field_of(shown, "Partition")
    if nodes:
        questions.ask([*NODES, "-n", nodes])
    elif partition:  # it never had any: those that it may have waited for
        questions.ask([*NODES, "-p", partition, "-t", UNAVAILABLE])
    if state.raw == "PREEMPTED" and nodes:
        questions.ask([*OTHERS, "-w", nodes])
    if state.raw == "CANCELLED" or (nodes and state.kind in ("pending", "held")):
        questions.ask_until_ended([*RECORDS, "-j", job])
    return questions.text()


class _Questions:
    """Asks one after the other, and keeps what was asked with what was answered."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._answers: list[tuple[list[str], str]] = []

    def ask(self, command: list[str]) -> str:
        answer = self._run(command)
        self._answers.append((command, answer))
        return answer

    def ask_until_ended(self, command: list[str]) -> None:
        """Ask the database until it knows of an end."""
        deadline = time.monotonic() + RECORD_LAG_S
        answer = self._run(command)
        while answer and not _has_ended(answer) and time.monotonic() < deadline:
            time.sleep(RECORD_POLL_S)
            answer = self._run(command)
        self._answers.append((command, answer))

    def text(self) -> str:
        if not any(answer for _, answer in self._answers):
            return ""
        return "".join(f"{HEAD}{' '.join(command)}\n{said}" for command, said in self._answers)

    def _run(self, command: list[str]) -> str:
        try:
            answer = scheduler.run(command, self._environ, PATIENCE_S)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        if answer.returncode != 0:
            return ""
        # A line that looks like a question of ours is none.
        lines = answer.stdout[:MAX_BYTES].splitlines()
        return "".join(f"{' ' * line.startswith(HEAD)}{line}\n" for line in lines)


def _has_ended(records: str) -> bool:
    states = [line.split("|")[1] for line in records.splitlines() if line.count("|") >= 2]
    known = scheduler.ENDED | {"REQUEUED"}
    return any(state.split()[0].rstrip("+") in known for state in states if state)
