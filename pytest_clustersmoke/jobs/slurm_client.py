"""The Slurm client: its commands, run in sessions of their own and without an outer job's words.

Answers leave as records (slurm_records.py, slurm_jobs.py).
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..evidence.scheduler_record import AccountingEntry, JobState, SchedulerRecord
from ..text import sanitize_line
from . import slurm_jobs, slurm_records
from .backend import Refused
from .slurm_jobs import TrialSubmission
from .slurm_records import Association, SlurmConfig, SlurmNode, SlurmPartition, SlurmQos

COMMAND_TIMEOUT_S = 60.0
# For each question about a job that ended: the watch over the other jobs waits meanwhile.
DETAILS_TIMEOUT_S = 10.0
# The database hears of a job's end about a second late (seen with slurmdbd 22.05).
ACCOUNTING_LAG_S, ACCOUNTING_POLL_S = 2.0, 0.25
MAX_DETAILS, MAX_WORDS = 2**20, 300
UNAVAILABLE = "down,drained,draining,fail,failing,maint,unk"
# Variables by which an enclosing job would change what ours asks for.
OUTER_JOB = re.compile(
    r"(SLURM|SLURMD|SBATCH|SRUN|SALLOC|SCANCEL|SQUEUE|SACCT|SCONTROL|PMI|PMIX|SUBMITIT)_"
)
KEPT = {"SLURM_CONF"}
_SACCTMGR = ("sacctmgr", "-n", "-P", "show")

Answer = subprocess.CompletedProcess[str]


class SlurmSilent(Exception):
    """A command of Slurm gave no answer; the text says which, and why."""


def clean_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for the scheduler's commands and for jobs."""
    return {
        name: value for name, value in environ.items() if name in KEPT or not OUTER_JOB.match(name)
    }


def run_command(
    command: Sequence[str], environ: Mapping[str, str], timeout_s: float | None = None
) -> Answer:
    """Run a command in a session of its own, which keeps a Ctrl-C at the terminal from cutting it
    in half. Raises OSError and subprocess.TimeoutExpired."""
    return subprocess.run(
        command,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        start_new_session=True,
        timeout=timeout_s or COMMAND_TIMEOUT_S,
        check=False,
    )


def find_command(name: str, environ: Mapping[str, str]) -> str | None:
    """Where a command of Slurm is; None where it is not on PATH."""
    return shutil.which(name, path=environ.get("PATH", os.defpath))


def user_name() -> str:
    """The user's name; empty where this machine knows none (a container)."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""


def group_names() -> frozenset[str]:
    """The groups that the user is in, as far as they have names."""
    names = set()
    for number in {os.getgid(), *os.getgroups()}:
        with contextlib.suppress(KeyError):
            names.add(grp.getgrgid(number).gr_name)
    return frozenset(names)


class SlurmClient:
    """One Slurm, as `environ` names it. Calls may come from several threads."""

    def __init__(self, environ: Mapping[str, str], timeout_s: float | None = None) -> None:
        self.environ = clean_environ(environ)
        self._timeout_s = timeout_s
        self._accounting = True

    def run(self, *command: str, timeout_s: float | None = None) -> Answer:
        """Run one command. Raises OSError and subprocess.TimeoutExpired."""
        return run_command(command, self.environ, timeout_s or self._timeout_s)

    def ask(self, *command: str, timeout_s: float | None = None) -> str:
        """What a command prints. Raises SlurmSilent where it does not end well."""
        words = " ".join(command)
        try:
            answer = self.run(*command, timeout_s=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise SlurmSilent(f"`{words}` did not answer within {error.timeout:g} s") from None
        except OSError as error:
            raise SlurmSilent(f"`{words}` cannot be run: {error.strerror or error}") from error
        if answer.returncode != 0:
            # What went wrong first is said on the way; the last line says what came of it.
            last = sanitize_line((answer.stderr.strip().splitlines() or ["no error message"])[-1])[
                :MAX_WORDS
            ]
            raise SlurmSilent(f"`{words}` ended with status {answer.returncode}: {last}")
        return answer.stdout

    # The cluster.

    def config(self) -> SlurmConfig:
        return slurm_records.parse_config(self.ask("scontrol", "show", "config"))

    def partitions(self) -> dict[str, SlurmPartition]:
        text = self.ask("scontrol", "-a", "-o", "show", "partition")
        return slurm_records.parse_partitions(text)

    def nodes(self) -> dict[str, SlurmNode]:
        return slurm_records.parse_nodes(self.ask("scontrol", "-a", "-o", "show", "node"))

    def qos(self) -> dict[str, SlurmQos]:
        return slurm_records.parse_qos(
            self.ask(*_SACCTMGR, "qos", f"format={slurm_records.QOS_FIELDS}")
        )

    def associations(self, user: str, cluster: str) -> tuple[Association, ...]:
        """What a user may use on this cluster."""
        wanted = (f"user={user}", f"format={slurm_records.ASSOCIATION_FIELDS}")
        return slurm_records.parse_associations(self.ask(*_SACCTMGR, "assoc", *wanted), cluster)

    def default_account(self, user: str) -> str:
        text = self.ask(*_SACCTMGR, "user", user, "format=DefaultAccount")
        return slurm_records.parse_default_account(text)

    # Jobs.

    def test_only(self, script: Path, timeout_s: float) -> TrialSubmission:
        """Whether Slurm would take a batch script, and when it might start it; nothing is
        submitted."""
        try:
            answer = self.run("sbatch", "--test-only", str(script), timeout_s=timeout_s)
        except subprocess.TimeoutExpired:
            words = f"`sbatch --test-only` did not answer within {timeout_s:.0f} s"
            return TrialSubmission(None, words, silent=True)
        except OSError as error:
            return TrialSubmission(None, f"`sbatch --test-only` cannot be run: {error}")
        return slurm_jobs.parse_test_only(answer.returncode, f"{answer.stderr}\n{answer.stdout}")

    def submit(self, script: Path, name: str) -> str:
        """Submit a batch script whose job has this name; the job's id. Raises Refused."""
        try:
            answer = self.run("sbatch", "--parsable", str(script))
        except subprocess.TimeoutExpired as error:
            return self._submitted_without_answer(name, error)
        except OSError as error:
            raise Refused(f"sbatch cannot be run: {error}") from error
        if answer.returncode != 0:
            words = answer.stderr.strip() or answer.stdout.strip()
            raise Refused(words or f"sbatch ended with status {answer.returncode}")
        job_id = answer.stdout.strip().split(";")[0]
        if not job_id.isdigit():
            raise Refused(f"sbatch answered {answer.stdout.strip()!r}, which is not a job id")
        return job_id

    def _submitted_without_answer(self, name: str, silence: subprocess.TimeoutExpired) -> str:
        """sbatch did not answer in time, but the job may be in the queue: it is known by its name.
        Without this it would run with nobody to watch or cancel it."""
        try:
            answer = self.run("squeue", "-h", "-o", "%i", "-n", name)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Refused(f"{silence}; squeue does not answer either") from error
        found = answer.stdout.split()
        if len(found) != 1 or not found[0].isdigit():
            raise Refused(f"{silence}; no job named {name} is in the queue") from silence
        return found[0]

    def cancel(self, *jobs: str) -> bool:
        """Whether Slurm has taken the cancellation."""
        try:
            return self.run("scancel", *jobs).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            return False

    def job_states(self, job_ids: Iterable[str]) -> dict[str, JobState]:
        """squeue for all at once; for what it forgot sacct, then scontrol. Empty where Slurm does
        not answer, which says nothing of any job."""
        wanted = list(job_ids)
        if not wanted:
            return {}
        try:
            states = self._squeue(wanted)
            forgotten = [job for job in wanted if job not in states]
            if forgotten and self._accounting:
                found = self._sacct(forgotten)
                # A job whose end the database never heard of "runs" there for ever.
                states |= {job: state for job, state in found.items() if state.kind == "ended"}
            for job in [job for job in forgotten if job not in states]:
                states[job] = self._scontrol(job)
        except (OSError, subprocess.TimeoutExpired, SlurmSilent):
            return {}
        return states

    def _squeue(self, jobs: list[str]) -> dict[str, JobState]:
        fields = ("-o", slurm_jobs.SQUEUE_FIELDS, "-j", ",".join(jobs))
        answer = self.run("squeue", "-h", "-a", "-t", "all", *fields)
        if answer.returncode != 0 and "Invalid job id" not in answer.stderr:
            raise SlurmSilent(answer.stderr)
        return slurm_jobs.parse_squeue(answer.stdout)

    def _sacct(self, jobs: list[str]) -> dict[str, JobState]:
        fields = ("-o", slurm_jobs.SACCT_FIELDS)
        answer = self.run("sacct", "-n", "-P", "-X", "-j", ",".join(jobs), *fields)
        if answer.returncode != 0:
            # Many clusters run without accounting; then there is no use in asking again.
            self._accounting = "disabled" not in answer.stderr
            return {}
        return slurm_jobs.parse_sacct(answer.stdout)

    def _scontrol(self, job: str) -> JobState:
        answer = self.run("scontrol", "-o", "show", "job", job)
        if answer.returncode == 0:
            return slurm_jobs.parse_scontrol_job(answer.stdout)
        if "Invalid job id" in answer.stderr:
            return JobState("unknown", "", "Invalid job id specified")
        raise SlurmSilent(answer.stderr)

    # What became of a job.

    def job_record(self, job: str, state: JobState, nodes: str) -> SchedulerRecord | None:
        """What Slurm says of a job that did not end well and of `nodes`, those that it had; None
        where it says nothing. Any user may ask these questions."""
        shown = slurm_jobs.parse_scheduled_job(self._detail("scontrol", "-o", "show", "job", job))
        sinfo = ("sinfo", "-h", "-N", "-o", slurm_jobs.SINFO_FIELDS)
        statuses = others = ""
        if nodes:
            statuses = self._detail(*sinfo, "-n", nodes)
        elif shown.partition:  # it never had any: those that it may have waited for
            statuses = self._detail(*sinfo, "-p", shown.partition, "-t", UNAVAILABLE)
        if state.raw == "PREEMPTED" and nodes:
            running = ("-t", "running,completing", "-o", slurm_jobs.OTHERS_FIELDS)
            others = self._detail("squeue", "-h", "-a", *running, "-w", nodes)
        entries: tuple[AccountingEntry, ...] = ()
        if state.raw == "CANCELLED" or (nodes and state.kind in ("pending", "held")):
            entries = self._accounting_of(job)
        record = SchedulerRecord(
            shown, slurm_jobs.parse_sinfo(statuses), entries, slurm_jobs.parse_other_jobs(others)
        )
        return None if record == SchedulerRecord() else record

    def _accounting_of(self, job: str) -> tuple[AccountingEntry, ...]:
        """What the database says of a job, asked until it knows of an end."""
        deadline = time.monotonic() + ACCOUNTING_LAG_S
        command = ("sacct", "-n", "-P", "-X", "-D", "-o", slurm_jobs.ACCOUNTING_FIELDS, "-j", job)
        over = slurm_jobs.ENDED | {"REQUEUED"}
        entries = slurm_jobs.parse_accounting(self._detail(*command))
        while entries and not any(one.state in over for one in entries):
            if time.monotonic() > deadline:
                break
            time.sleep(ACCOUNTING_POLL_S)
            entries = slurm_jobs.parse_accounting(self._detail(*command))
        return entries

    def _detail(self, *command: str) -> str:
        try:
            return self.ask(*command, timeout_s=DETAILS_TIMEOUT_S)[:MAX_DETAILS]
        except SlurmSilent:
            return ""
