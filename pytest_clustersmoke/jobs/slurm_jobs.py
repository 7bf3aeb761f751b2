"""Parses what Slurm prints about jobs: their states, how they ended, allocations and their steps,
trial submissions, and its messages in a job's own log.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ..config.hostlist import expand_hostlist
from ..evidence.scheduler_record import (
    CANCELLED,
    CONTROLLER_SILENT,
    NODE_FAILED,
    OUT_OF_MEMORY,
    PREEMPTED,
    PROLOG_FAILED,
    TASK_KILLED,
    AccountingEntry,
    JobState,
    NodeStatus,
    OtherJob,
    ScheduledJob,
)
from ..text import sanitize_line
from .backend import ANY_JOB, Words, names_job
from .slurm_records import NODE_NAME, count_gpus, fields_of, parse_time, rows, value_or_empty

PENDING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"}
# The reason of a job that was requeued after a failed launch; only an operator can release it.
# squeue and scontrol spell it differently.
HELD = {"launch failed requeued held", "launch_failed_requeued_held"}
# After a node failed the job stays COMPLETING with this reason until its remaining processes on the
# other nodes have ended.
NODE_DOWN = "NodeDown"
# A state in neither set counts as running.
ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL"),
    *("OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT"),
}
SQUEUE_FIELDS = "%i|%T|%r|%N|%V|%S|%j|%k"
SACCT_FIELDS = "JobID,State,Reason,NodeList,Submit,Start,JobName,Comment"
SINFO_FIELDS = "%N|%T|%H|%u|%E"
PARTITION_FIELDS = f"%P|%f|{SINFO_FIELDS}"
ACCOUNTING_FIELDS = "JobID,State,ExitCode,NodeList,End,JobName,Comment"
OTHERS_FIELDS = "%i|%u|%P|%q|%S|%N"
STEP_FIELDS = "%i|%N|%j"
OWN_STEPS = 0xFFFFFFF0  # slurm.h: SLURM_MAX_NORMAL_STEP_ID
SHOWN_OF_JOBS = (
    *("JobState", "Reason", "ExitCode", "StartTime", "EndTime", "NodeList", "Partition", "QOS"),
    *("TimeLimit", "PreemptTime", "MinMemoryNode", "MinMemoryCPU"),
)
# Messages in a job's own log: slurmd/req.c, slurmstepd/req.c and srun/libsrun of 22.05 to 24.11;
# of memory from 18.08 on, where slurmstepd names its node only if a machine has several.
# The first that matches counts; a group is the node.
MESSAGES = (
    (NODE_FAILED, re.compile(r"srun: error: Node failure on ([\w.\[\],-]{1,255})")),
    (
        PROLOG_FAILED,
        re.compile(
            r"(?:failed on node (?P<task>[\w.-]{1,255}): )?Job prolog failed|"
            r"Prolog failure on node (?P<node>[\w.-]{1,255})|Error running slurm prolog"
        ),
    ),
    (PREEMPTED, re.compile(r"\*\*\* JOB \S{1,60} ON .{1,300} DUE TO PREEMPTION \*\*\*")),
    (CANCELLED, re.compile(r"\*\*\* (?:JOB|STEP) \S{1,60} ON .{1,300} CANCELLED AT ")),
    (
        OUT_OF_MEMORY,
        re.compile(
            r"(?:slurmstepd-([\w.-]{1,255}): error: )?"
            r"(?:Detected \d{1,6} oom[-_]kill events?(?:\(s\))? in (?:StepId=|step )\S"
            r"|Exceeded (?:step|job) memory limit)|"
            r"srun: error: ([\w.-]{1,255}): tasks? [\d,-]{1,99}: Out Of Memory"
        ),
    ),
    (TASK_KILLED, re.compile(r"srun: error: ([\w.-]{1,255}): tasks? [\d,-]{1,99}: Killed")),
    (
        CONTROLLER_SILENT,
        re.compile(
            r"srun: error: Unable to (?:confirm allocation|create step) for job \S{1,60}: "
            r"(?:Unable to contact slurm controller|Socket timed out|Zero Bytes|Connection re)"
        ),
    ),
)
# How srun's own log shows the end of a step, in the order of its lines: Slurm ended the step, or a
# task of it ended first. Where a task fails, some versions add the first message after it.
_STEP_ENDED = re.compile(
    r"(?P<outside>srun: Job step aborted|\*\*\* STEP \S{1,60} ON \S{1,300} CANCELLED AT )|"
    r"srun: error: [\w.\[\],-]{1,300}: tasks? [\d,-]{1,99}: "
)
_NO_STEP = re.compile(r"srun: error: (Unable to create step for job .{1,300})")
# Of one or several nodes of a job, in the output of `scontrol -d -o show job`.
_ALLOCATED = re.compile(r" Nodes=(\S+) CPU_IDs=(\S*) Mem=\S* GRES=(\S*)")
_COMMENT = re.compile(r" Comment=(.*?)(?= [A-Z]\w*=|$)", re.M)
_UID = re.compile(r"\((\d{1,10})\)$")
# Node states that keep jobs away, as sinfo prints them (man sinfo, NODE STATE CODES). A node that
# saves power is not down; one that a slurmctld started again has not heard of yet is unknown.
_DOWN = re.compile(r"(?<!_)down|fail|not_responding|(?<!unk)(?<!unknown)\*$")
_DRAINED = re.compile(r"drain|maint")
# In any other state, also one that this version does not know, a node takes no jobs. Of the marks
# behind a state, these mean power saving (~ # % !) and a plan of the scheduler's (-).
_USABLE = re.compile(
    r"(idle|allocated|mixed|completing|planned|powered_down|powering_up)\+?[~#%!-]?"
)
_STARTS = re.compile(
    r"\bto start at (\S+) using \d+ processors on (?:nodes )?(\S+)(?: in partition (\S+))?"
)
# The controller could not be reached, or the job could run but would have to wait
# (ESLURM_NODES_BUSY, ESLURM_RESERVATION_BUSY): neither is a refusal.
_NO_ANSWER = re.compile(
    r"unable to contact|timed out|temporarily|zero bytes|connection (refused|reset)|"
    r"communication connection|authentication|credential|try again|not responding|"
    r"could not establish a configuration source|"
    r"requested nodes are busy|requested reservation is in use",
    re.I,
)
# sbatch found no controller (slurm-client 22.05 without a slurm.conf; slurm_errno.c).
NO_CONTROLLER = re.compile(
    "could not establish a configuration source|unable to contact slurm controller", re.I
)
# The request did not reach a controller that could serve it (slurm_errno.c of 22.05).
FOR_NOW = re.compile(
    r"unable to contact slurm controller \(connect failure\)|temporarily un|standby mode", re.I
)
# The reasons of a refusal that ends once other jobs of this user have (slurm_errno.c and
# job_state_reason_string of 22.05 to 24.11); the message after them names limits on sizes as well.
SUBMIT_LIMIT = re.compile(r"\b(QOS|Assoc)\w*Submit\w*Limit\b|\bMaxSubmitJobs", re.I)
# How sbatch reports an error of Slurm's, or its own before it asks; and errors of the connection,
# after which slurmctld may have served the request.
_SBATCH_ERROR = re.compile(r"^(sbatch: (error|fatal): |Batch job submission failed: )", re.M)
_ANSWER_LOST = re.compile(
    r"unable to contact slurm controller \((send|receive|shutdown)|timed out|zero bytes|"
    r"connection (reset|failure|aborted)|communication|broken pipe|transport endpoint|"
    r"insane message|unexpected message|protocol authentication",
    re.I,
)
_NOT_SENT = re.compile("munge encode failed", re.I)  # auth_munge.c: munged did not sign the request
_PREFIX = re.compile(r"^(sbatch|allocation failure|sbatch: error)(: error)?: ")
# Slurm's messages (src/common/slurm_errno.c; limits: job_state_reason_string) by finding id.
_REFUSALS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (finding_id, re.compile(pattern, re.I))
    for finding_id, pattern in (
        ("partition-unknown", r"invalid partition"),
        ("partition-down", r"partition not available|partition.*(inactive|drain)"),
        ("account-refused", r"invalid account"),
        ("qos-refused", r"invalid qos"),
        ("time-over-limit", r"MaxWall|requested time limit"),
        ("too-many-gpus", r"(Max|Min)GRES|invalid generic resource"),
        ("too-many-nodes", r"MaxNode|GrpNode|node count"),
        ("submission-refused", r"group not permitted"),
    )
)
NO_NODES = re.compile(r"requested node configuration is not available|nodes? .*not available", re.I)


@dataclass(frozen=True)
class TrialSubmission:
    """The answer of `sbatch --test-only` for a batch script. `accepted` is None if Slurm did not
    answer; `start` (Unix seconds), `nodes` and `partition` are its estimate, if it made one.
    `causes` are the ids of the findings that the message of a refusal names."""

    accepted: bool | None
    message: str
    start: float | None = None
    nodes: str = ""
    partition: str = ""
    timed_out: bool = False

    @property
    def causes(self) -> set[str]:
        return {finding_id for finding_id, pattern in _REFUSALS if pattern.search(self.message)}

    @property
    def no_nodes(self) -> bool:
        return bool(NO_NODES.search(self.message))


@dataclass(frozen=True)
class AllocatedNode:
    """A node of an allocation, and what the allocation has of it; None if Slurm does not say."""

    name: str
    cpus: int | None = None
    gpus: int | None = None


@dataclass(frozen=True)
class Allocation:
    """A job in which steps can run. `uid`: the user's; `ends`: its time limit in Unix seconds, None
    if it has none; `text`: what Slurm shows of it."""

    job_id: str
    state: JobState
    uid: int | None = None
    nodes: tuple[AllocatedNode, ...] = ()
    ends: float | None = None
    text: str = ""

    @property
    def runs(self) -> bool:
        return self.state.raw == "RUNNING"


@dataclass(frozen=True)
class JobStep:
    """A step of a job that has not ended: its id, such as `12.3`, its nodes and its name."""

    step_id: str
    nodes: tuple[str, ...]
    name: str


def parse_squeue(text: str) -> dict[str, JobState]:
    """`squeue -h -o SQUEUE_FIELDS`, by job id."""
    return {cells[0]: _state(*cells[1:]) for _, cells in rows(text, 8)}


def parse_sacct(text: str) -> dict[str, JobState]:
    """`sacct -n -P -X -o SACCT_FIELDS`, by job id."""
    return parse_squeue(text)


def parse_scontrol_job(text: str) -> JobState:
    """`scontrol -o show job`."""
    names = ("JobState", "Reason", "NodeList", "SubmitTime", "StartTime", "JobName")
    comment = _COMMENT.search(text)
    values = [*_first_words(text, names), comment[1] if comment else ""]
    return _state(*values)


def parse_scheduled_job(text: str) -> ScheduledJob:
    """`scontrol -o show job`, with the fields that show how the job ended."""
    shown = sanitize_line(next(iter(text.splitlines()), ""))
    values = dict(
        zip(SHOWN_OF_JOBS, map(value_or_empty, _first_words(shown, SHOWN_OF_JOBS)), strict=True)
    )
    return ScheduledJob(
        state=values["JobState"],
        reason=values["Reason"],
        partition=values["Partition"],
        qos=values["QOS"],
        nodes=values["NodeList"],
        started=_unix_seconds(values["StartTime"]),
        ended=_unix_seconds(values["EndTime"]),
        preempted=_unix_seconds(values["PreemptTime"]),
        time_limit=values["TimeLimit"],
        memory_per_node=values["MinMemoryNode"],
        memory_per_cpu=values["MinMemoryCPU"],
        text=" ".join(f"{name}={value}" for name, value in values.items() if value),
        shown=shown,
    )


def parse_allocation(text: str) -> Allocation:
    """`scontrol -d -o show job`: the first job's nodes, with their CPUs and GPUs."""
    line = sanitize_line(next(iter(text.splitlines()), ""))
    fields = fields_of(line)
    user = _UID.search(fields.get("UserId", ""))
    state = parse_scontrol_job(line)
    shown = {
        name: AllocatedNode(name, _count_numbers(cpus), sum(count_gpus(gres).values()))
        for nodes, cpus, gres in _ALLOCATED.findall(line)
        for name in expand_hostlist(nodes)
    }
    return Allocation(
        fields.get("JobId", ""),
        state,
        int(user[1]) if user else None,
        tuple(shown.get(name, AllocatedNode(name)) for name in expand_hostlist(state.nodes)),
        _unix_seconds(fields.get("EndTime", "")),
        " ".join(
            f"{name}={fields[name]}"
            for name in ("JobId", "JobState", "NodeList", "TimeLimit", "EndTime")
            if name in fields
        )
        + "".join(match[0] for match in _ALLOCATED.finditer(line)),
    )


def parse_steps(text: str) -> list[JobStep]:
    """`squeue -h -s -o STEP_FIELDS`, without the steps of Slurm's own: a batch script's, a shell's
    of salloc and the like, which have a name or one of the highest numbers."""
    return [
        JobStep(step_id, tuple(expand_hostlist(nodes)), name)
        for _, (step_id, nodes, name) in rows(text, 3)
        if (number := step_id.partition(".")[2]).isdigit() and int(number) < OWN_STEPS
    ]


def parse_step_end(log: str) -> str:
    """How srun's own log shows that a step ended: `CANCELLED` if Slurm ended it, `FAILED` if a task
    of it ended first, otherwise empty."""
    end = _STEP_ENDED.search(log)
    if end is None:
        return ""
    return "CANCELLED" if end["outside"] else "FAILED"


def parse_step_refusal(log: str) -> str:
    """Why Slurm did not create a step, from srun's own log; empty if it did."""
    refusal = _NO_STEP.search(log)
    return sanitize_line(refusal[1]) if refusal else ""


def _count_numbers(ranges: str) -> int | None:
    """How many numbers `0-3,8` holds; None if it is not such a list."""
    if not re.fullmatch(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*", ranges, re.ASCII):
        return None
    spans = [part.partition("-") for part in ranges.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in spans)


def parse_sinfo(text: str) -> tuple[NodeStatus, ...]:
    """`sinfo -h -N -o SINFO_FIELDS`: each node once, although it is listed for every partition."""
    statuses = {}
    for line, (name, state, since, by, reason) in rows(text, 5):
        statuses[name] = NodeStatus(
            name,
            state,
            down=bool(_DOWN.search(state)),
            drained=bool(_DRAINED.search(state)),
            unusable=not _USABLE.fullmatch(state),
            prolog_failed=reason.startswith("Prolog error"),
            since=_unix_seconds(since),
            by=by,
            reason=value_or_empty(reason),
            text=line,
        )
    return tuple(statuses.values())


def parse_partition_nodes(text: str, wanted: str = "") -> tuple[str, tuple[NodeStatus, ...]]:
    """`sinfo -h -N -o PARTITION_FIELDS`: the nodes of the partitions `wanted`, a list joined with
    commas, or of the default one, and its name."""
    by_partition: dict[str, list[str]] = {}
    features: dict[str, tuple[str, ...]] = {}
    for _, (partition, words, status) in rows(text, 3):
        by_partition.setdefault(partition, []).append(status)
        features[status.partition("|")[0]] = (*filter(None, value_or_empty(words).split(",")),)
    default = next((name for name in by_partition if name.endswith("*")), "")
    names = {name.rstrip("*"): lines for name, lines in by_partition.items()}
    chosen = wanted or default.rstrip("*")
    listed = [line for name in chosen.split(",") for line in names.get(name, ())]
    statuses = (node for node in parse_sinfo("\n".join(listed)) if NODE_NAME.fullmatch(node.name))
    return chosen, tuple(replace(node, features=features[node.name]) for node in statuses)


def parse_accounting(text: str, words: Words = ANY_JOB) -> tuple[AccountingEntry, ...]:
    """`sacct -n -P -X -D -o ACCOUNTING_FIELDS`: the entries of the job with these words, not those
    of others that had its id."""
    entries = []
    for _, (job, state, code, nodes, rest) in rows(text, 5):
        end, _, named = rest.partition("|")
        name, _, comment = named.partition("|")
        if not names_job(words, name, comment):
            continue
        line = "|".join((job, state, code, nodes, end))
        by = re.fullmatch(r"CANCELLED by (\d{1,10})", state)
        word = (state.split() or [""])[0].rstrip("+")
        entries.append(AccountingEntry(word, int(by[1]) if by else -1, line))
    return tuple(entries)


def parse_other_jobs(text: str) -> tuple[OtherJob, ...]:
    """`squeue -h -o OTHERS_FIELDS`."""
    return tuple(
        OtherJob(job, user, partition, value_or_empty(qos), _unix_seconds(started), line)
        for line, (job, user, partition, qos, started, _) in rows(text, 6)
    )


def parse_submitted(text: str) -> str:
    """The job id in the output of `sbatch --parsable`, past what else a site prints; empty if there
    is none, or more than one number that could be it."""
    ids = set(re.findall(r"^[ \t]*(\d{1,10})(?:;[\w.-]{1,255})?[ \t]*$", text, re.M | re.ASCII))
    return ids.pop() if len(ids) == 1 else ""


def is_refusal(message: str) -> bool:
    """Whether the error of an sbatch that failed shows that there is no job. Anything else may have
    come after slurmctld served the request."""
    is_lost = _ANSWER_LOST.search(message) and not _NOT_SENT.search(message)
    return bool(_SBATCH_ERROR.search(message)) and not is_lost


def parse_test_only(status: int, output: str) -> TrialSubmission:
    """Output and exit status of `sbatch --test-only`."""
    lines = [
        _PREFIX.sub("", sanitize_line(line.strip())) for line in output.splitlines() if line.strip()
    ]
    message = "; ".join(dict.fromkeys(lines))
    if status == 0:
        estimate = _STARTS.search(message)
        if not estimate:
            return TrialSubmission(True, message)
        partition = (estimate[3] or "").rstrip(";")
        start = _unix_seconds(estimate[1])
        return TrialSubmission(True, message, start, estimate[2], partition)
    if _NO_ANSWER.search(message) or SUBMIT_LIMIT.search(message) or not message:
        return TrialSubmission(None, message or f"`sbatch --test-only` ended with status {status}")
    return TrialSubmission(False, message)


def parse_message(line: str) -> tuple[str, str] | None:
    """What a line of Slurm's in a job's log says, and the node that it names; None for any other
    line."""
    for event, form in MESSAGES:
        if match := form.search(line):
            return event, next(filter(None, match.groups()), "")
    return None


def _unix_seconds(text: str) -> float | None:
    """A time that Slurm printed, in Unix seconds."""
    time = parse_time(text)
    return None if time is None else time.timestamp()


def _first_words(shown: str, names: tuple[str, ...]) -> list[str]:
    """These fields of `scontrol -o show job`, up to the first space of each value."""
    fields = fields_of(shown)
    return [(fields.get(name, "").split() or [""])[0] for name in names]


def _state(
    raw: str, reason: str, nodes: str, submitted: str, started: str, name: str, comment: str
) -> JobState:
    # sacct says "CANCELLED by 1000" and marks truncated states with a "+".
    word = (raw.split() or [""])[0].rstrip("+")
    if word == "COMPLETING" and reason == NODE_DOWN:
        word = "NODE_FAIL"
    kind = "pending" if word in PENDING else "ended" if word in ENDED else "running"
    kind = "held" if kind == "pending" and reason in HELD else kind
    start = _unix_seconds(started)
    waits = kind in ("pending", "held")  # then the start is an estimate
    return JobState(
        kind,
        word,
        value_or_empty(reason),
        value_or_empty(nodes),
        _unix_seconds(submitted),
        started=None if waits else start,
        expected_start=start if waits else None,
        name=name,
        comment=value_or_empty(comment),
    )
