"""The jobs of a screen: one on each idle node, which it has alone; never one over several nodes,
which a single stopped slurmd would hold up for all.

Several sbatch run side by side. Where the user may have fewer jobs, the others wait for the first
to end. A job that does not start in time is cancelled, and one that passes its limit is ended: what
becomes of a node depends on no other.
"""

from __future__ import annotations

import contextlib
import math
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Literal

from ..config.profile import Profile
from ..config.sbatch_options import normalize_option
from ..evidence.scheduler_record import JobState
from ..evidence.screen_files import ScreenFiles
from ..evidence.telemetry import read_start
from ..evidence.variable_names import hide_assignments
from ..evidence.whole_files import write_atomically
from ..node import node_screen
from ..text import sanitize_line
from . import batch_script
from .backend import COMMENT_BEGINS, STRANGER, Refused, Unanswered, names_job
from .screen_plan import BUSY
from .slurm_client import SlurmClient
from .slurm_records import names_own_limit

START_S = 30.0  # how long a job may wait for its node, which was idle
LOST_S = 3.0  # how long after the end of a job its answer may become visible (NFS)
CANCEL_S = 10.0  # how long Slurm has to confirm that a job is cancelled
SILENT_S = 60.0  # how much longer than all limits a job of which Slurm says nothing is awaited
ASK_S, LOOK_S = 1.0, 0.1  # between two questions to Slurm, and two looks at the answers
AT_ONCE = 8  # sbatch side by side
MAX_LOG, MAX_REASON = 64 * 2**10, 300
# Options of the profile that choose nodes or divide them: each job has one node, and all of it. The
# plan of the screen has followed `exclude` and `constraint` by then.
DROPPED = {
    *("nodelist", "exclude", "constraint", "prefer", "cluster_constraint", "contiguous"),
    *("switches", "nodes", "spread_job", "spread_segments", "segment", "use_min_nodes"),
    *("exclusive", "oversubscribe", "cpus_per_task", "ntasks_per_node", "mincpus"),
    *("time", "time_min", "begin", "deadline", "dependency", "hold", "wait_all_nodes"),
}

# Slurm's states of a job that others ended, each with a word and the words for it.
TAKEN = {
    "PREEMPTED": ("preempted", "its job was preempted"),
    "CANCELLED": ("cancelled", "somebody cancelled its job"),
}

FIGURES = "CLUSTERSMOKE_FIGURES"  # the file of a second part's figures
MEASURE = "pytest_clustersmoke.rank.peaks"  # measures the devices of a node

INTERRUPTED = "the screen was interrupted"
EndKind = Literal["answered", "no answer", "not screened"]


@dataclass(frozen=True)
class NodeEnd:
    """How the screen of a node ended. `word` counts a node that was not screened: `busy`. `why`, of
    one that answered: why its second part was cut short, for no fault of the node."""

    kind: EndKind
    why: str = ""
    word: str = ""
    job_id: str = ""
    seconds: float | None = None  # from its start to its answer


@dataclass(frozen=True)
class SecondPart:
    """What a node's job runs after it has answered, such as what needs torch: a command of the
    shell, which writes what its devices reached to the file that the variable FIGURES names
    (read_measurement), within a limit of its own. The answer stands whatever becomes of it."""

    command: str
    limit_s: float

    @classmethod
    def measuring(cls, profile: Profile) -> SecondPart | None:
        """Measure what the devices of a node reach, by one rank for each; None if the profile has
        `peaks: never`."""
        if profile.peaks == "never":
            return None
        hardware, python = profile.hardware, batch_script.node_python(profile)
        names = f'CLUSTERSMOKE_DEVICE={hardware.device} CLUSTERSMOKE_NODE_NAME="$SLURMD_NODENAME"'
        ranks = f"--standalone --nproc_per_node={hardware.gpus_per_node}"
        command = f"export {names}; {python} -m torch.distributed.run {ranks} -m {MEASURE}"
        return cls(command, profile.limits.screen_peaks_s)


@dataclass
class _NodeJob:
    """The job of one node, while it is watched. Times are those of time.monotonic."""

    node: str
    job_id: str
    submitted: float
    started: float | None = None
    ended: float | None = None
    cancelled: float | None = None
    answered: float | None = None
    state: JobState | None = field(default=None)
    is_ours: bool = True  # not so once Slurm shows another job under its id


class ScreenJobs:
    """The jobs of one screen. `run` returns how each node's ended; `stop` may be called from a
    signal handler, and `close` cancels what is left."""

    def __init__(
        self,
        client: SlurmClient,
        profile: Profile,
        run_id: str,
        files: ScreenFiles,
        second: SecondPart | None = None,
    ) -> None:
        self._client, self._files, self._run_id = client, files, run_id
        self._limit_s, self._second = profile.limits.screen_s, second
        self._script = make_script(profile, files, second)
        self._jobs: dict[str, _NodeJob] = {}
        self._refused: dict[str, _NodeJob] = {}  # by id, those that Slurm did not agree to end
        self._unanswered: set[str] = set()  # nodes for which Slurm may have a job all the same
        self._stopped = threading.Event()
        self._asked = 0.0
        self._limited: float | None = None  # since when Slurm takes no more of this user's jobs

    def run(
        self, nodes: Sequence[str], report: Callable[[str, NodeEnd], object]
    ) -> dict[str, NodeEnd]:
        """Screen these nodes; `report` is called for each when it is known how it ended. Raises
        OSError if the batch script cannot be written."""
        write_atomically(self._files.script, self._script)
        waiting, ends = list(nodes), dict[str, NodeEnd]()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            while (waiting or self._jobs) and not self._stopped.is_set():
                new = self._submit(waiting, pool) if waiting else {}
                self._ask_slurm()
                for node, end in {**new, **self._find_ends()}.items():
                    ends[node] = end
                    self._jobs.pop(node, None)
                    report(node, end)
                self._stopped.wait(LOOK_S)
        for node, job in self._jobs.items():  # interrupted while they measured
            if job.answered is not None:
                ends[node] = replace(self._make_answered(job, job.answered), why=INTERRUPTED)
                report(node, ends[node])
        return ends

    def stop(self) -> None:
        self._stopped.set()

    def close(self) -> list[str]:
        """Cancel what is left; return the ids of jobs that Slurm did not accept to cancel, and the
        names of those whose ids are unknown. One that starts later ends at once."""
        with contextlib.suppress(OSError):  # a full disk: they have limits of their own
            self._files.closed.touch()
        ids = [job.job_id for job in self._watched.values() if job.is_ours]
        left = ids if ids and not self._client.cancel(*ids) else []
        names = [self._words(node)[0] for node in sorted(self._unanswered)]
        return left + [name for name in names if not self._client.cancel(f"--name={name}")]

    @property
    def _watched(self) -> dict[str, _NodeJob]:
        """By id, the jobs of nodes whose end is awaited, and those that Slurm has yet to end."""
        return {job.job_id: job for job in self._jobs.values()} | self._refused

    # Submission

    def _submit(self, waiting: list[str], pool: ThreadPoolExecutor) -> dict[str, NodeEnd]:
        """Submit the next of the waiting nodes, and take them off the list; returns those that
        Slurm refused. At this user's limit, one is tried each time that a job has ended."""
        if self._limited is not None:
            if self._jobs and time.monotonic() - self._limited < ASK_S:
                return {}
            count = 1
        else:
            count = AT_ONCE
        batch = waiting[:count]
        refused: dict[str, NodeEnd] = {}
        for node, answer in zip(batch, pool.map(self._submit_one, batch), strict=True):
            if isinstance(answer, _NodeJob):
                self._limited = None
            elif self._may_pass(answer):
                continue  # it stays on the list
            else:
                why = sanitize_line(str(answer))[:MAX_REASON]
                refused[node] = NodeEnd("not screened", f"sbatch: {why}", "refused")
            waiting.remove(node)
        return refused

    def _submit_one(self, node: str) -> _NodeJob | Refused | Unanswered:
        """Submit the job of a node. It is watched from then on, whatever interrupts the caller."""
        name, comment = self._words(node)
        output = f"--output={self._files.log(node)}"
        options = (f"--nodelist={node}", f"--job-name={name}", f"--comment={comment}", output)
        try:
            job_id = self._client.submit(self._files.script, *options)
        except Refused as error:
            return error
        except Unanswered as error:
            self._unanswered.add(node)
            self._client.cancel(f"--name={name}")
            return error
        job = self._jobs[node] = _NodeJob(node, job_id, time.monotonic())
        return job

    def _words(self, node: str) -> tuple[str, str]:
        """The name and the comment of a node's job, by which squeue finds it."""
        comment = f"{COMMENT_BEGINS}{self._run_id} screen={node}"
        return f"clustersmoke-{self._run_id}-screen-{node}", comment

    def _may_pass(self, answer: Refused | Unanswered) -> bool:
        """Whether Slurm may accept the job later: once others of this user have ended, or once it
        can answer again. For as long as none of ours runs, it has the time of a start."""
        if not isinstance(answer, Refused):
            return False
        if not (answer.for_now or names_own_limit(str(answer))):
            return False
        now = time.monotonic()
        self._limited = self._limited or now
        if self._jobs:
            self._limited = now
        return now - self._limited < START_S

    # The end of each job

    def _ask_slurm(self) -> None:
        """Ask Slurm for the states of all jobs, at most every ASK_S."""
        now, jobs = time.monotonic(), self._watched
        if not jobs or now - self._asked < ASK_S:
            return
        words = {job.job_id: self._words(job.node) for job in jobs.values()}
        states = self._client.job_states(words, words)
        self._asked = time.monotonic()
        for job in jobs.values():
            if (state := states.get(job.job_id)) is None:
                continue
            job.is_ours = names_job(words[job.job_id], state.name, state.comment)
            job.state = state = state if job.is_ours else JobState("unknown", "", STRANGER)
            if state.kind == "running" and job.started is None:
                job.started, job.cancelled = now, None
            if state.kind in ("ended", "unknown") and job.ended is None:
                job.ended = now
        self._end_overdue(now)

    def _find_overdue(self, now: float) -> tuple[list[_NodeJob], list[_NodeJob]]:
        """The jobs that did not start in time, and those that run for too long."""
        left = [job for job in self._jobs.values() if job.cancelled is None and job.ended is None]
        some_run = any(job.started is not None for job in self._jobs.values())
        for job in left:
            if some_run and job.state and names_own_limit(job.state.reason):
                job.submitted = now  # it waits for our own jobs, not for its node
        late = [j for j in left if j.started is None and now - j.submitted > START_S]
        long = [j for j in left if j.started is not None and now - j.started > self._limit_of(j)]
        return late, long

    def _limit_of(self, job: _NodeJob) -> float:
        """How long the job may run: the second part's time comes after the answer."""
        more = self._second.limit_s if self._second and job.answered is not None else 0.0
        return self._limit_s + more

    def _end_overdue(self, now: float) -> None:
        """End the jobs whose time is over, also those that Slurm did not agree to end before."""
        late, long = self._find_overdue(now)
        refused, self._refused = self._refused, {}
        for job in refused.values():
            if job.ended is None and (job.cancelled is not None or job.node not in self._jobs):
                (late if job.started is None else long).append(job)
        self._cancel(late, "--state=PENDING")  # one that starts just now goes on
        self._cancel(long)
        for job in (*late, *long):
            job.cancelled = job.cancelled or now

    def _cancel(self, jobs: Iterable[_NodeJob], *options: str) -> None:
        """Cancel these jobs, and remember them if Slurm does not agree."""
        ids = {job.job_id: job for job in jobs}
        if ids and not self._client.cancel(*options, *ids):
            self._refused |= ids

    def _find_ends(self) -> dict[str, NodeEnd]:
        self._files.refresh()
        now, ends = time.monotonic(), dict[str, NodeEnd]()
        for node, job in self._jobs.items():
            if (end := self._find_end(job, now)) is not None:
                ends[node] = end
        return ends

    def _find_end(self, job: _NodeJob, now: float) -> NodeEnd | None:
        is_open = job.answered is None and not self._is_too_late(job)
        if is_open and self._files.answer(job.node).is_file():
            job.answered = now
            if job.started is None:  # Slurm may say only later that it has started
                job.started, job.cancelled = now, None  # and it cancels only what waits
        if job.answered is not None:
            is_through = self._is_through(job, now)
            return self._make_answered(job, job.answered) if is_through else None
        if self._is_too_late(job):
            why = f"no answer within {self._limit_s:g} s; its job was ended"
            return NodeEnd("no answer", why, job_id=job.job_id)
        if job.ended is not None and now - job.ended > LOST_S:
            return self._explain_end(job)
        if job.cancelled is not None and now - job.cancelled > CANCEL_S:
            return self._explain_wait(job)
        longest = START_S + self._limit_of(job) + SILENT_S
        if now - job.submitted > longest:
            self._cancel([job])
            why = f"Slurm has not said for {longest:g} s what became of its job"
            return NodeEnd("not screened", why, "unknown", job.job_id)
        return None

    def _make_answered(self, job: _NodeJob, answered: float) -> NodeEnd:
        began = job.started if job.started and job.started < answered else job.submitted
        has_figures = self._second is None or self._files.figures(job.node).is_file()
        why = "" if has_figures else self._find_taker(job)[1]
        return NodeEnd("answered", why, job_id=job.job_id, seconds=answered - began)

    def _is_through(self, job: _NodeJob, now: float) -> bool:
        """Whether a job that has answered has nothing left to do, or was ended."""
        is_over = job.ended is not None and now - job.ended > LOST_S
        is_done = self._second is None or self._files.figures(job.node).is_file()
        return is_done or is_over or job.cancelled is not None

    def _is_too_late(self, job: _NodeJob) -> bool:
        """Whether the job was ended because it ran for too long."""
        return job.started is not None and job.cancelled is not None

    def _explain_end(self, job: _NodeJob) -> NodeEnd:
        """The end of a job whose node wrote nothing."""
        assert job.state is not None
        if job.cancelled is not None and job.started is None:
            return self._explain_wait(job)
        word, why = self._find_taker(job)
        if word:
            return NodeEnd("not screened", why, word, job.job_id)
        state = f"Slurm's state: {job.state.raw or 'unknown'}" if job.is_ours else STRANGER
        words = [f"its job ended without an answer ({state})", self._last_words(job)]
        return NodeEnd("no answer", ": ".join(filter(None, words)), job_id=job.job_id)

    def _find_taker(self, job: _NodeJob) -> tuple[str, str]:
        """How others took the job from its node, in a word and in words; empty where nobody did.
        Slurm also cancels a job that its node could not launch, and drains the node."""
        raw = job.state.raw if job.state and job.is_ours and job.cancelled is None else ""
        if job.state is None or raw not in TAKEN:
            return "", ""
        record = self._client.job_record(job.job_id, job.state, job.node, self._words(job.node))
        is_out = record is not None and any(node.down or node.drained for node in record.nodes)
        return ("", "") if is_out else TAKEN[raw]

    def _explain_wait(self, job: _NodeJob) -> NodeEnd:
        reason = f" ({job.state.reason})" if job.state and job.state.reason else ""
        why = f"its job did not start within {START_S:g} s{reason}"
        return NodeEnd("not screened", why, BUSY, job.job_id)

    def _last_words(self, job: _NodeJob) -> str:
        """Which setup line failed, otherwise the last line of the job's log."""
        for path in (self._files.setup_failed(job.node), self._files.log(job.node)):
            try:
                text = read_start(path, MAX_LOG).decode(errors="replace")
            except OSError:
                continue
            lines = [line for line in text.splitlines() if line.strip()]
            if lines and path == self._files.setup_failed(job.node):
                status, _, line = hide_assignments(lines[0]).partition("\t")
                return sanitize_line(f"setup line `{line}` ended with status {status}")
            if lines:
                return sanitize_line(lines[-1])[:MAX_REASON]
        return ""


def make_script(profile: Profile, files: ScreenFiles, second: SecondPart | None = None) -> str:
    """The batch script of every node's job; sbatch's command line names the node."""
    run, python = shlex.quote(str(files.run)), batch_script.node_python(profile)
    failed = f'{shlex.quote(str(files.root))}/setup_failed."$SLURMD_NODENAME"'
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in _options(profile, second)),
        f"[ ! -e {shlex.quote(str(files.closed))} ] || exit 0",
        *batch_script.strict_setup_lines(profile.setup, failed),
        *_environment_lines(profile),
        f'{python} -u -m {node_screen.__name__} {run} "$SLURMD_NODENAME" || exit',
        *(_second_lines(second, files) if second else ()),
    ]
    return "\n".join(lines) + "\n"


def _second_lines(second: SecondPart, files: ScreenFiles) -> list[str]:
    figures = f'{shlex.quote(str(files.figures("").parent))}/"$SLURMD_NODENAME".json'
    limited = f"timeout -k 5 {second.limit_s:g} bash -c {shlex.quote(second.command)}"
    # Without figures, the file says how it ended: 124 and 137 are those of `timeout`.
    missing = f'{{ status=$?; [ -e "${FIGURES}" ] || {{ echo "{{\\"status\\": $status}}" > '
    missing += f'"${FIGURES}.part"; mv "${FIGURES}.part" "${FIGURES}"; }}; }}'
    return [f"export {FIGURES}={figures}", f"{limited} || {missing}"]


def _options(profile: Profile, second: SecondPart | None) -> Iterable[str]:
    limit_s = profile.limits.screen_s + (second.limit_s if second else 0.0)
    own = {
        "nodes": 1,
        "ntasks": 1,
        "exclusive": True,
        "no-requeue": True,
        "export": "ALL",
        "time": math.ceil((limit_s + START_S) / 60) + 1,
    }
    if profile.hardware.gpu != "none":
        own["gpus-per-node"] = profile.hardware.gpus_per_node
    theirs = {
        key.replace("_", "-"): value
        for key, value in profile.slurm.items()
        if value is not False and normalize_option(key) not in DROPPED
    }
    for key, value in (theirs | own).items():
        yield f"--{key}" if value is True else f"--{key}={value}"


def _environment_lines(profile: Profile) -> list[str]:
    """Lines that set the profile's variables, as a job on one node has them."""
    lines: list[str] = []
    for block in (profile.env.common, profile.env.single_node):
        lines += [f"unset {name}" for name in block.unset]
        lines += [f"export {name}={shlex.quote(str(value))}" for name, value in block.set.items()]
    return lines
