"""The scheduler's commands: in sessions of their own, without the words of an outer allocation."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from datetime import datetime

from . import JobState

COMMAND_TIMEOUT_S = 60.0
# Variables by which an enclosing job would change what ours asks for.
OUTER_JOB = re.compile(
    r"(SLURM|SLURMD|SBATCH|SRUN|SALLOC|SCANCEL|SQUEUE|SACCT|SCONTROL|PMI|PMIX|SUBMITIT)_"
)
KEPT = {"SLURM_CONF"}

PENDING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"}
# Why a job waits that was put back when its launch had failed: nobody but an operator starts it
# again (squeue and scontrol write it differently).
HELD = {"launch failed requeued held", "launch_failed_requeued_held"}
# A job completes, with this reason, for as long as what is left of it on its other nodes takes to
# end; that a node failed it is known all the while.
NODE_DOWN = "NodeDown"
# Any word that is in neither set is that of a job which is still there.
ENDED = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "LAUNCH_FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "RECONFIG_FAIL",
    "REVOKED",
    "TIMEOUT",
}

SQUEUE_FIELDS = "%i|%T|%r|%N|%V|%S"
SACCT_FIELDS = "JobIDRaw,State,Reason,NodeList,Submit,Start"


def clean_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for the scheduler's commands and for jobs."""
    return {
        name: value for name, value in environ.items() if name in KEPT or not OUTER_JOB.match(name)
    }


def run(
    command: list[str], environ: Mapping[str, str], timeout_s: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one command of the scheduler. A session of its own keeps a Ctrl-C at the terminal from
    cutting it in half. Raises OSError and subprocess.TimeoutExpired."""
    return subprocess.run(
        command,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        start_new_session=True,
        timeout=COMMAND_TIMEOUT_S if timeout_s is None else timeout_s,
        check=False,
    )


class Witnesses:
    """Asks Slurm about jobs: squeue for all at once; for what it forgot sacct, then scontrol."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._accounting = True

    def ask(self, job_ids: Iterable[str]) -> dict[str, JobState]:
        wanted = list(job_ids)
        if not wanted:
            return {}
        try:
            states = self._squeue(wanted)
            forgotten = [job for job in wanted if job not in states]
            if forgotten and self._accounting:
                told = self._sacct(forgotten)
                # A job whose end the database never heard of "runs" there for ever.
                states |= {job: state for job, state in told.items() if state.kind == "ended"}
            for job in [job for job in forgotten if job not in states]:
                states[job] = self._scontrol(job)
        except (OSError, subprocess.TimeoutExpired, _NoAnswer):
            return {}
        return states

    def _squeue(self, jobs: list[str]) -> dict[str, JobState]:
        command = ["squeue", "-h", "-a", "-t", "all", "-o", SQUEUE_FIELDS, "-j", ",".join(jobs)]
        answer = run(command, self._environ)
        if answer.returncode != 0 and "Invalid job id" not in answer.stderr:
            raise _NoAnswer(answer.stderr)
        return dict(_row(line) for line in answer.stdout.splitlines() if line.count("|") == 5)

    def _sacct(self, jobs: list[str]) -> dict[str, JobState]:
        answer = run(
            ["sacct", "-n", "-P", "-X", "-j", ",".join(jobs), "-o", SACCT_FIELDS], self._environ
        )
        if answer.returncode != 0:
            # Many clusters run without accounting; then there is no use in asking again.
            self._accounting = "disabled" not in answer.stderr
            return {}
        return dict(_row(line) for line in answer.stdout.splitlines() if line.count("|") == 5)

    def _scontrol(self, job: str) -> JobState:
        answer = run(["scontrol", "-o", "show", "job", job], self._environ)
        if answer.returncode != 0:
            if "Invalid job id" in answer.stderr:
                return JobState("unknown", "", "Invalid job id specified")
            raise _NoAnswer(answer.stderr)
        fields = dict(word.split("=", 1) for word in answer.stdout.split() if "=" in word)
        return _state(
            [
                *(fields.get(name, "") for name in ("JobState", "Reason", "NodeList")),
                *(fields.get(name, "") for name in ("SubmitTime", "StartTime")),
            ]
        )


class _NoAnswer(Exception):
    """The scheduler did not answer; this says nothing about any job."""


def _row(line: str) -> tuple[str, JobState]:
    job, *rest = line.strip().split("|")
    return job, _state(rest)


def _state(fields: list[str]) -> JobState:
    raw, reason, nodes, submitted, started = fields
    # sacct says "CANCELLED by 1000" and marks truncated states with a "+".
    word = (raw.split() or [""])[0].rstrip("+")
    if word == "COMPLETING" and reason == NODE_DOWN:
        word = "NODE_FAIL"
    kind = "pending" if word in PENDING else "ended" if word in ENDED else "running"
    kind = "held" if kind == "pending" and reason in HELD else kind
    reason = "" if reason in ("None", "(null)") else reason
    nodes = "" if nodes in ("(null)", "None assigned") else nodes
    start = _seconds(started)
    waits = kind in ("pending", "held")  # then it is an estimate
    times = (None, start) if waits else (start, None)
    return JobState(kind, word, reason, nodes, _seconds(submitted), *times)


def _seconds(text: str) -> float | None:
    """Slurm prints local time without a zone; TZ is the same for its commands and for us."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").timestamp()
    except ValueError:
        return None


def which(command: str, environ: Mapping[str, str]) -> str | None:
    import shutil

    return shutil.which(command, path=environ.get("PATH", os.defpath))
