"""Runs Slurm's commands, in their own sessions and without the variables of an outer job.

Answers are returned as records (slurm_records.py, slurm_jobs.py).
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from ..evidence.scheduler_record import AccountingEntry, JobState, NodeStatus, SchedulerRecord
from ..text import sanitize_line
from . import slurm_jobs, slurm_records
from .backend import ANY_JOB, Refused, Unanswered, Words, allow, names_job
from .slurm_jobs import Allocation, JobStep, TrialSubmission
from .slurm_records import Association, SlurmConfig, SlurmNode, SlurmPartition, SlurmQos

COMMAND_TIMEOUT_S = 60.0
# For each query about a job that ended; polling of the other jobs waits meanwhile.
DETAILS_TIMEOUT_S = 10.0
# The database learns of a job's end about a second late (seen with slurmdbd 22.05).
ACCOUNTING_LAG_S, ACCOUNTING_POLL_S = 2.0, 0.25
MAX_DETAILS, MAX_MESSAGE = 2**20, 300
# Why this host starts no process now.
NO_ROOM = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
# What sbatch prints once, as it begins to ask again by itself (22.05).
TRIES_AGAIN = re.compile(r"(sleeping and|temporarily disabled,) retrying")
# Variables of an enclosing job that would change what our jobs request.
OUTER_JOB = re.compile(
    r"(SLURM|SLURMD|SBATCH|SRUN|SALLOC|SCANCEL|SQUEUE|SACCT|SCONTROL|PMI|PMIX|SUBMITIT)_"
)
KEPT = {"SLURM_CONF"}
NOT_KNOWN = JobState("unknown", "", "Slurm does not know the job")
_SACCTMGR = ("sacctmgr", "-n", "-P", "show")

Answer = subprocess.CompletedProcess[str]


class SlurmUnavailable(Exception):
    """A Slurm command could not be run or failed; the text says which one, and why."""


def clean_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for Slurm's commands and for jobs, without an outer job's variables."""
    return {
        name: value for name, value in environ.items() if name in KEPT or not OUTER_JOB.match(name)
    }


def run_command(
    command: Sequence[str], environ: Mapping[str, str], timeout_s: float | None = None
) -> Answer:
    """Run a command in its own session, so that a Ctrl-C at the terminal cannot interrupt it.
    Raises OSError and subprocess.TimeoutExpired."""
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
    """The path of a Slurm command; None if it is not on PATH."""
    return shutil.which(name, path=environ.get("PATH", os.defpath))


def group_names() -> frozenset[str]:
    """The names of the user's groups; groups without a name are left out."""
    names = set()
    for number in {os.getgid(), *os.getgroups()}:
        with contextlib.suppress(KeyError):
            names.add(grp.getgrgid(number).gr_name)
    return frozenset(names)


class SlurmClient:
    """The Slurm that `environ` selects. Calls may come from several threads."""

    def __init__(self, environ: Mapping[str, str], timeout_s: float | None = None) -> None:
        self.environ = clean_environ(environ)
        self._timeout_s = timeout_s
        self._accounting = True

    def run(self, *command: str, timeout_s: float | None = None) -> Answer:
        """Run one command. Raises OSError and subprocess.TimeoutExpired."""
        return run_command(command, self.environ, timeout_s or self._timeout_s)

    def ask(self, *command: str, timeout_s: float | None = None) -> str:
        """Run a command and return its output. Raises SlurmUnavailable if it fails."""
        line = " ".join(command)
        try:
            answer = self.run(*command, timeout_s=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise SlurmUnavailable(f"`{line}` did not answer within {error.timeout:g} s") from None
        except OSError as error:
            raise SlurmUnavailable(f"`{line}` cannot be run: {error.strerror or error}") from error
        if answer.returncode != 0:
            # The last line says what failed in the end; earlier ones are steps on the way.
            last = sanitize_line((answer.stderr.strip().splitlines() or ["no error message"])[-1])[
                :MAX_MESSAGE
            ]
            raise SlurmUnavailable(f"`{line}` ended with status {answer.returncode}: {last}")
        return answer.stdout

    # Queries about the cluster.

    def config(self) -> SlurmConfig:
        return slurm_records.parse_config(self.ask("scontrol", "show", "config"))

    def partitions(self) -> dict[str, SlurmPartition]:
        text = self.ask("scontrol", "-a", "-o", "show", "partition")
        return slurm_records.parse_partitions(text)

    def nodes(self) -> dict[str, SlurmNode]:
        return slurm_records.parse_nodes(self.ask("scontrol", "-a", "-o", "show", "node"))

    def topology(self) -> dict[str, tuple[str, ...]]:
        """The nodes below each switch or block; empty without a topology."""
        return slurm_records.parse_topology(self.ask("scontrol", "-o", "show", "topology"))

    def node_states(self) -> dict[str, str]:
        """The state of each node, as Slurm words it."""
        return slurm_records.parse_node_states(self.ask("sinfo", "-h", "-N", "-o", "%N %T"))

    def node_partitions(self) -> dict[str, frozenset[str]]:
        """The partitions of each node, those included that are hidden or not the user's."""
        sinfo = ("sinfo", "-h", "-a", "-N", "-o", "%N|%R")
        return slurm_records.parse_node_partitions(self.ask(*sinfo, timeout_s=DETAILS_TIMEOUT_S))

    def partition_nodes(self, partition: str = "") -> tuple[str, tuple[NodeStatus, ...]]:
        """The nodes of a partition, or of the default one, and its name."""
        text = self.ask("sinfo", "-h", "-N", "-a", "-o", slurm_jobs.PARTITION_FIELDS)
        return slurm_jobs.parse_partition_nodes(text, partition)

    def qos(self) -> dict[str, SlurmQos]:
        return slurm_records.parse_qos(
            self.ask(*_SACCTMGR, "qos", f"format={slurm_records.QOS_FIELDS}")
        )

    def associations(self, user: str, cluster: str) -> tuple[Association, ...]:
        """The user's associations on this cluster."""
        query = (f"user={user}", f"format={slurm_records.ASSOCIATION_FIELDS}")
        return slurm_records.parse_associations(self.ask(*_SACCTMGR, "assoc", *query), cluster)

    def default_account(self, user: str) -> str:
        text = self.ask(*_SACCTMGR, "user", user, "format=DefaultAccount")
        return slurm_records.parse_default_account(text)

    # Submission, states and cancellation of jobs.

    def test_only(self, script: Path, timeout_s: float) -> TrialSubmission:
        """Ask whether Slurm would accept a batch script and when it might start; submits
        nothing."""
        trial = self._try_script(script, timeout_s)
        if trial.accepted is not False or not trial.no_nodes:
            return trial
        if self._is_starting():
            message = f"slurmctld has just started, and does not know its nodes: {trial.message}"
            return TrialSubmission(None, message)
        return self._try_script(script, timeout_s)  # it may have known no node before

    def _try_script(self, script: Path, timeout_s: float) -> TrialSubmission:
        try:
            answer = self.run("sbatch", "--test-only", str(script), timeout_s=timeout_s)
        except subprocess.TimeoutExpired:
            message = f"`sbatch --test-only` did not answer within {timeout_s:.0f} s"
            return TrialSubmission(None, message, timed_out=True)
        except OSError as error:
            return TrialSubmission(None, f"`sbatch --test-only` cannot be run: {error}")
        return slurm_jobs.parse_test_only(answer.returncode, f"{answer.stderr}\n{answer.stdout}")

    def submit(self, script: Path, *options: str, check: Callable[[], object] = allow) -> str:
        """Submit a batch script; return the job id. `check` is called just before each sbatch.
        Raises Refused and Unanswered, and what `check` does."""
        try:
            check()
            return self._submit_once(script, *options)
        except Refused as refusal:
            if not slurm_jobs.NO_NODES.search(str(refusal)):
                raise
            if self._is_starting():
                raise Refused(str(refusal), for_now=True) from refusal
        check()
        return self._submit_once(script, *options)  # slurmctld may have known no node before

    def _submit_once(self, script: Path, *options: str) -> str:
        try:
            answer = self.run("sbatch", "--parsable", *options, str(script))
        except subprocess.TimeoutExpired as error:
            data: str | bytes = error.stderr or ""  # bytes, whatever was asked for
            wrote = data if isinstance(data, str) else data.decode(errors="replace")
            shown = sanitize_line(wrote.strip())[:MAX_MESSAGE]
            said = f" (it printed {shown!r})" if shown else ""
            raise Unanswered(
                f"sbatch did not answer within {error.timeout:g} s{said}",
                refused_so_far=bool(TRIES_AGAIN.search(wrote)),
            ) from error
        except OSError as error:
            is_busy = error.errno in NO_ROOM
            raise Refused(f"sbatch cannot be run: {error}", for_now=is_busy) from error
        message = answer.stderr.strip() or answer.stdout.strip()
        if answer.returncode == 0:
            if job_id := slurm_jobs.parse_submitted(answer.stdout):
                return job_id
            shown = sanitize_line(message)[:MAX_MESSAGE]
            raise Unanswered(f"sbatch succeeded without a job id (it printed {shown!r})")
        if answer.returncode < 0 or not slurm_jobs.is_refusal(message):
            shown = sanitize_line(message)[:MAX_MESSAGE] or "nothing"
            raise Unanswered(f"sbatch ended with status {answer.returncode}: {shown}")
        raise Refused(
            message,
            no_controller=bool(slurm_jobs.NO_CONTROLLER.search(message)),
            for_now=bool(slurm_jobs.FOR_NOW.search(message)),
            at_limit=bool(slurm_jobs.SUBMIT_LIMIT.search(message)),
        )

    def _is_starting(self) -> bool:
        """Whether slurmctld has just started, and does not know its nodes yet, so that it refuses
        whatever needs one."""
        try:
            return any(node.unknown for node in self.nodes().values())
        except SlurmUnavailable:
            return True  # it went away just after its answer

    def find_job(self, name: str, comment: str) -> str:
        """The id of this user's one job with this name and comment; empty if Slurm lists none, or
        several. An array has one id. Raises SlurmUnavailable."""
        own = ("-u", str(os.getuid()), "-n", name)
        text = self.ask("squeue", "-h", "-a", "-t", "all", *own, "-o", "%F|%k")
        found = {cells[0] for _, cells in slurm_records.rows(text, 2) if comment in cells[1]}
        return found.pop() if len(found) == 1 else ""

    def list_jobs(self) -> dict[str, Words]:
        """By id, the names and comments of this user's jobs that have not ended. Raises
        SlurmUnavailable."""
        # -r: a line for each task of an array
        own = ("-u", str(os.getuid()), "-o", "%i|%j|%k")
        text = self.ask("squeue", "-h", "-a", "-r", *own, timeout_s=DETAILS_TIMEOUT_S)
        return {
            job_id: (name, comment) for _, (job_id, name, comment) in slurm_records.rows(text, 3)
        }

    def start_now(self, job_id: str) -> None:
        """Let a requeued job start as soon as there is room: Slurm holds it for two minutes. If it
        cannot be told, the job starts then."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self.run("scontrol", "update", f"JobId={job_id}", "StartTime=now")

    def cancel(self, *jobs: str, timeout_s: float | None = None) -> bool:
        """Cancel jobs; return whether Slurm accepted that."""
        try:
            return self.run("scancel", *jobs, timeout_s=timeout_s).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            return False

    def cancel_within(self, seconds: float, *jobs: str) -> bool:
        """Cancel jobs; return whether Slurm has accepted that in this time. The command goes on
        without us, also when this process ends: a pending job would wait for its turn otherwise."""
        accepted: list[bool] = []
        thread = threading.Thread(target=lambda: accepted.append(self.cancel(*jobs)), daemon=True)
        thread.start()
        thread.join(seconds)
        return accepted == [True]

    def job_states(
        self, job_ids: Iterable[str], words: Mapping[str, Words] | None = None
    ) -> dict[str, JobState]:
        """Ask squeue for all jobs at once, and sacct, then scontrol, for those it no longer knows.
        Empty if Slurm does not answer, which says nothing about any job. `words`: by id, the name
        and comment of jobs; accounting may know others that had their ids before."""
        wanted = list(job_ids)
        if not wanted:
            return {}
        try:
            states = self._squeue(wanted)
            unlisted = [job for job in wanted if job not in states]
            if unlisted and self._accounting:
                records = self._sacct(unlisted)
                # A job whose end never reached the database stays RUNNING there forever.
                states |= {
                    job: state
                    for job, state in records.items()
                    if state.kind == "ended"
                    and names_job((words or {}).get(job, ANY_JOB), state.name, state.comment)
                }
        except (OSError, subprocess.TimeoutExpired, SlurmUnavailable):
            return {}
        # Silence here hides nothing of what the others said.
        with contextlib.suppress(OSError, subprocess.TimeoutExpired, SlurmUnavailable):
            unknown = [job for job in unlisted if job not in states]
            for array, jobs in groupby(sorted(unknown), lambda job: job.partition("_")[0]):
                states |= self._scontrol(array, [*jobs])
        return states

    def _squeue(self, jobs: list[str]) -> dict[str, JobState]:
        # -r: a line for each task of an array
        fields = ("-r", "-o", slurm_jobs.SQUEUE_FIELDS, "-j", ",".join(jobs))
        answer = self.run("squeue", "-h", "-a", "-t", "all", *fields)
        if answer.returncode != 0 and "Invalid job id" not in answer.stderr:
            raise SlurmUnavailable(answer.stderr)
        return slurm_jobs.parse_squeue(answer.stdout)

    def _sacct(self, jobs: list[str]) -> dict[str, JobState]:
        fields = ("-o", slurm_jobs.SACCT_FIELDS)
        answer = self.run("sacct", "-n", "-P", "-X", "--array", "-j", ",".join(jobs), *fields)
        if answer.returncode != 0:
            # Many clusters have accounting disabled; do not ask them again.
            self._accounting = "disabled" not in answer.stderr
            return {}
        return slurm_jobs.parse_sacct(answer.stdout)

    def _scontrol(self, array: str, jobs: Sequence[str]) -> dict[str, JobState]:
        """The states of a job, or of tasks of an array with one call. Slurm shows none of a task
        that was cancelled before it started; where it shows several on one line, each is asked
        for."""
        shown = self._show_job(array if len(jobs) > 1 else jobs[0])
        if len(jobs) == 1 and shown:
            return {jobs[0]: slurm_jobs.parse_scontrol_job(shown)}
        tasks = {
            slurm_records.fields_of(line).get("ArrayTaskId", ""): line
            for line in shown.splitlines()
        }
        if not all(map(str.isdecimal, tasks)):
            return {job: state for job in jobs for state in self._scontrol(array, [job]).values()}
        lines = {job: tasks.get(job.rpartition("_")[2]) for job in jobs}
        return {
            job: slurm_jobs.parse_scontrol_job(line) if line else NOT_KNOWN
            for job, line in lines.items()
        }

    def _show_job(self, job: str) -> str:
        """What scontrol shows of a job; empty if Slurm does not know it."""
        answer = self.run("scontrol", "-o", "show", "job", job)
        # The second is about a task of an array that was cancelled before it started.
        unknown = ("Invalid job id specified", f"Job {job} not found")
        if answer.returncode == 0:
            return answer.stdout
        if not any(words in answer.stderr or words in answer.stdout for words in unknown):
            raise SlurmUnavailable(answer.stderr)
        return ""

    # An allocation and its steps. Both raise SlurmUnavailable.

    def allocation(self, job: str) -> Allocation:
        """A job in which steps can run; of one that Slurm no longer knows, only that."""
        try:
            shown = self.ask("scontrol", "-d", "-o", "show", "job", job)
        except SlurmUnavailable as error:
            if "Invalid job id" not in str(error):
                raise
            return Allocation(job, JobState("unknown", ""))
        return slurm_jobs.parse_allocation(shown)

    def steps(self, job: str, timeout_s: float | None = None) -> list[JobStep]:
        fields = ("-o", slurm_jobs.STEP_FIELDS)
        words = ("squeue", "-h", "-s", "-j", job, *fields)
        return slurm_jobs.parse_steps(self.ask(*words, timeout_s=timeout_s))

    # Details about a job that ended.

    def job_record(
        self, job: str, state: JobState, nodes: str, words: Words = ANY_JOB
    ) -> SchedulerRecord | None:
        """Collect Slurm's details about a job that did not succeed and about its `nodes`; None if
        Slurm has none. `words`: the job's name and comment, since another may have its id by now.
        Any user may run these queries."""
        text = self._ask_or_empty("scontrol", "-o", "show", "job", job)
        now = slurm_jobs.parse_scontrol_job(text)
        is_same = names_job(words, now.name, now.comment)
        shown = slurm_jobs.parse_scheduled_job(text if is_same else "")
        sinfo = ("sinfo", "-h", "-N", "-o", slurm_jobs.SINFO_FIELDS)
        others = ""
        statuses: tuple[NodeStatus, ...] = ()
        if nodes:
            statuses = slurm_jobs.parse_sinfo(self._ask_or_empty(*sinfo, "-n", nodes))
        elif shown.partition:  # it never had nodes: list those it may have waited for
            # Without -t: sinfo refuses the whole list if its version lacks one of the states.
            listed = slurm_jobs.parse_sinfo(self._ask_or_empty(*sinfo, "-p", shown.partition))
            statuses = tuple(node for node in listed if node.unusable)
        if state.raw == "PREEMPTED" and nodes:
            running = ("-t", "running,completing", "-o", slurm_jobs.OTHERS_FIELDS)
            others = self._ask_or_empty("squeue", "-h", "-a", *running, "-w", nodes)
        entries: tuple[AccountingEntry, ...] = ()
        if state.raw == "CANCELLED" or (nodes and state.kind in ("pending", "held")):
            entries = self._read_accounting(job, words)
        record = SchedulerRecord(shown, statuses, entries, slurm_jobs.parse_other_jobs(others))
        return None if record == SchedulerRecord() else record

    def _read_accounting(self, job: str, words: Words) -> tuple[AccountingEntry, ...]:
        """A job's accounting entries. If none has ended yet, asks again for a short time."""
        deadline = time.monotonic() + ACCOUNTING_LAG_S
        command = ("sacct", "-n", "-P", "-X", "-D", "-o", slurm_jobs.ACCOUNTING_FIELDS, "-j", job)
        ended = slurm_jobs.ENDED | {"REQUEUED"}
        entries = slurm_jobs.parse_accounting(self._ask_or_empty(*command), words)
        while entries and not any(entry.state in ended for entry in entries):
            if time.monotonic() > deadline:
                break
            time.sleep(ACCOUNTING_POLL_S)
            entries = slurm_jobs.parse_accounting(self._ask_or_empty(*command), words)
        return entries

    def _ask_or_empty(self, *command: str) -> str:
        try:
            return self.ask(*command, timeout_s=DETAILS_TIMEOUT_S)[:MAX_DETAILS]
        except SlurmUnavailable:
            return ""
