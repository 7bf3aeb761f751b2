"""Every file name of a run.

<shared_dir>/<run_id>/               0700, owned by this user, or refused
    run.json, controller.lock        the request; a lock held while the controller lives
    controller.<n>                   the run's controllers: the last may touch its jobs, no other
    scheduler.silent                 changed when its scheduler was first silent about a dead run
    journal.jsonl                    submissions, ends and judgements, in order
    hosts/token, hosts/<host>/seen   what each host reads before the first job, and writes again
    reruns/<phase>.confirm<N>        created by a criterion that wants the phase to run again
    peaks/<node>.<device>            created by the rank that measures the device, once in a run
    phases/<phase>/                  of a rerun, phases/<phase>.confirm<N>/; of a phase that may be
                                     retried, each job has all but the last two of these files in
                                     phases/<phase>/attempt-<n>/, with attempt.json: how it ended
        spec.json                    the job as plain data; written before it is submitted
        preflight.txt                the scheduler's answer before the job was submitted
        batch.sh, submitit/          the batch script; submitit's files
        array/<n>                    links to the phases of an array, in the first of them
        setup_failed                 the setup line that failed, if one did
        withdrawn.<token>            the controller gave that submission up: its job ends at once
        declined.<token>             written by a node of its job, which saw that and ended
        claim.json                   the start that runs the phase: created by its node 0, once
        started_again                written by a later start, which found the claim and ended
        incomplete                   created when results of an ended job were first missing
        scheduler.jsonl              the scheduler's record of a job that did not end well
        rendezvous.json, abort.json  node 0's address and port; the flag that ends all nodes
        nodes/<node>/                facts.json, health.json, meeting.json (checks of other nodes),
                                     events.jsonl, result.json, launcher.log,
                                     logs/**/<local rank>/stdout.log and stderr.log,
                                     dumped (its ranks' dumps are complete); accelerate.yaml,
                                     environment.json (until srun has started the ranks),
                                     start/process (what was started over ssh)
        ranks/<rank>.*               .jsonl: its own events; .process.json: its end under srun
        dumps/rank_<rank>.*          stacks and flight-recorder entries of a rank that hung
        traces/rank_<rank>.json.gz   some steps as torch.profiler saw them (--cluster-trace)
        nccl/<node>/HOST.PID.log     NCCL's own log
        build/<node>/                kernels that the node's ranks compile
        output/, output/progress/    checkpoints; what ranks that stopped leave to the next attempt
        stop.<restart>.<node>        the scheduler will end this start of the job soon
        attempts/<attempt>/          a later start of the launcher: claim.json, nodes/, ranks/ and
                                     all else that a start writes; output/ is that of the phase
        result.json                  the phase's result, as the controller collected it
        past.json                    the result of the criterion on past runs, for the record
        isolation/                   of --cluster-isolate: isolation.json, its tests and the answer;
                                     <phase>.isolate<N>/ has what a phase has, of one test;
                                     allocation.sh, .log and .released: the job that holds nodes
                                     for them, and the file that ends it
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from .whole_files import create_once as create_once
from .whole_files import list_directory as list_directory
from .whole_files import list_names as list_names
from .whole_files import read_json as read_json
from .whole_files import write_atomically as write_atomically
from .whole_files import write_json as write_json

RESTART = 10  # the attempts of a job that was requeued once begin with 10, twice with 20
ATTEMPT_VARIABLE = "CLUSTERSMOKE_ATTEMPT"
ATTEMPT = re.compile(r"[1-9]\d{0,2}")
JOB_ATTEMPT = re.compile(r"attempt-([1-9]\d{0,2})")  # the directory of one of a phase's jobs
MAX_RERUNS = 3  # of a phase in one run
RERUN = re.compile(rf"(.+)\.confirm([1-{MAX_RERUNS}])")  # no phase has a word after a dot
# A test of --cluster-isolate: the phase's program on a group of its nodes.
ISOLATION = re.compile(r"(.+)\.isolate([1-9]\d{0,4})")
RUN_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")


def is_job_root(root: Path, phase: str) -> bool:
    """Whether a job's directory is one of several of its phase, below the phase's own."""
    return root.parent.name == phase and JOB_ATTEMPT.fullmatch(root.name) is not None


def job_name(spec: Mapping[str, Any]) -> str:
    """The job's name in its ranks' events, RUN_ID/PHASE: a phase runs at most once in a run. Empty
    if the spec names no run, as in one written by hand."""
    return f"{spec['run_id']}/{spec.get('phase')}" if spec.get("run_id") else ""


@dataclass(frozen=True)
class PhaseDir:
    """The paths of one phase's job, and those of one of its attempts: 0 is the first start of the
    launcher, whose files are in `root` itself. `owner` is the directory of the phase if that may be
    retried: then each of its jobs has a `root` of its own below."""

    ENVIRONMENT: ClassVar = "environment.json"

    root: Path
    attempt: int = 0
    owner: Path | None = None

    @property
    def phase(self) -> Path:
        """The directory of the phase, which its results and the report name files in."""
        return self.owner or self.root

    @property
    def name(self) -> str:
        """The phase's."""
        return self.phase.name

    @property
    def number(self) -> int:
        """Which of the phase's jobs this is, from 1; 0 if it cannot be retried."""
        match = JOB_ATTEMPT.fullmatch(self.root.name) if self.owner else None
        return int(match[1]) if match else 0

    def job(self, number: int) -> PhaseDir:
        """The paths of one of the phase's jobs, by its number."""
        root = self.phase / f"attempt-{number}"
        return PhaseDir(root, owner=self.phase) if number else PhaseDir(self.phase)

    def jobs(self) -> list[PhaseDir]:
        """The jobs of the phase that have a directory of their own, in order."""
        list_directory(self.phase)  # clears NFS's cache of missing files
        try:
            names = [path.name for path in self.phase.iterdir()]
        except OSError:
            return []
        numbers = [int(match[1]) for name in names if (match := JOB_ATTEMPT.fullmatch(name))]
        return [self.job(number) for number in sorted(numbers)]

    @property
    def last_job(self) -> PhaseDir:
        """The paths of the phase's last job; of a job, its own."""
        jobs = [] if self.owner else self.jobs()
        return jobs[-1] if jobs else replace(self, attempt=0)

    @property
    def start(self) -> Path:
        """Where this attempt writes its files."""
        return self.root / "attempts" / str(self.attempt) if self.attempt else self.root

    def stop_asked(self, node_rank: int) -> Path:
        """Created by the node when the scheduler says that it will end the job soon."""
        return self.root / f"stop.{self.restarts}.{node_rank}"

    @property
    def restarts(self) -> int:
        """How often the job was requeued before this attempt, after its ranks had saved."""
        return self.attempt // RESTART

    def restarted(self, count: int) -> PhaseDir:
        """The first attempt of the job after it was requeued so many times."""
        return replace(self, attempt=count * RESTART)

    @property
    def newest(self) -> PhaseDir:
        """The attempt of the phase's last job that started last."""
        return self.last_job.attempts()[-1]

    def attempts(self) -> list[PhaseDir]:
        """All attempts of this job that have started, in order; the first is always among them."""
        list_directory(self.root)  # clears NFS's cache of missing files
        try:
            names = [path.name for path in (self.root / "attempts").iterdir() if path.is_dir()]
        except OSError:
            names = []
        later = sorted(int(name) for name in names if ATTEMPT.fullmatch(name))
        return [replace(self, attempt=number) for number in (0, *later)]

    @property
    def spec(self) -> Path:
        return self.root / "spec.json"

    @property
    def preflight(self) -> Path:
        return self.root / "preflight.txt"

    @property
    def batch_script(self) -> Path:
        return self.root / "batch.sh"

    @property
    def submitit(self) -> Path:
        return self.root / "submitit"

    @property
    def array(self) -> Path:
        """In the first phase of an array: a link to the directory of each, by its number."""
        return self.root / "array"

    @property
    def setup_failed(self) -> Path:
        return self.root / "setup_failed"

    @property
    def claim(self) -> Path:
        return self.start / "claim.json"

    def call(self, token: str) -> Path:
        """What submitit runs in the job of the submission with this token."""
        return self.submitit / f"{token}.pkl"

    def withdrawn(self, token: str) -> Path:
        """Created by the controller when it gives up the submission with this token."""
        return self.root / f"withdrawn.{token}"

    def declined(self, token: str) -> Path:
        """Created by a node of that submission's job, which found it withdrawn, and ended."""
        return self.root / f"declined.{token}"

    @property
    def seen(self) -> Path:
        """The token that a host read, as the host wrote it again."""
        return self.root / "seen"

    @property
    def rendezvous(self) -> Path:
        return self.start / "rendezvous.json"

    @property
    def abort(self) -> Path:
        return self.start / "abort.json"

    @property
    def result(self) -> Path:
        return self.phase / "result.json"

    @property
    def ending(self) -> Path:
        """How this job of a phase that may be retried ended."""
        return self.root / "attempt.json"

    @property
    def past(self) -> Path:
        return self.phase / "past.json"

    @property
    def run(self) -> RunDir:
        is_test = ISOLATION.fullmatch(self.name) and self.phase.parent.name == "isolation"
        return RunDir(self.phase.parents[3 if is_test else 1])

    @property
    def isolation(self) -> Path:
        """The tests of --cluster-isolate, and its answer."""
        return self.phase / "isolation" / "isolation.json"

    @property
    def output(self) -> Path:
        return self.root / "output"

    @property
    def dumps(self) -> Path:
        return self.start / "dumps"

    @property
    def started_again(self) -> Path:
        return self.root / "started_again"

    @property
    def incomplete(self) -> Path:
        return self.root / "incomplete"

    @property
    def scheduler(self) -> Path:
        return self.root / "scheduler.jsonl"

    def node(self, node_rank: int | str) -> Path:
        """`node_rank` may be a shell variable in the dry run, here and below."""
        return self.start / "nodes" / f"{node_rank:0>4}"

    def node_facts(self, node_rank: int) -> Path:
        return self.node(node_rank) / "facts.json"

    def node_health(self, node_rank: int) -> Path:
        return self.node(node_rank) / "health.json"

    def node_meeting(self, node_rank: int) -> Path:
        return self.node(node_rank) / "meeting.json"

    def node_events(self, node_rank: int) -> Path:
        return self.node(node_rank) / "events.jsonl"

    def node_result(self, node_rank: int) -> Path:
        return self.node(node_rank) / "result.json"

    def launcher_log(self, node_rank: int) -> Path:
        return self.node(node_rank) / "launcher.log"

    def rank_logs(self, node_rank: int | str) -> Path:
        return self.node(node_rank) / "logs"

    def rank_log(self, node_rank: int | str, local_rank: int | str, stream: str) -> Path:
        """Where a rank's stdout (`out`) or stderr (`err`) goes if a step of the job started it."""
        return self.rank_logs(node_rank) / "attempt_0" / str(local_rank) / f"std{stream}.log"

    def find_rank_logs(
        self, node_rank: int, local_rank: int | str | None = "*", stream: str = "err"
    ) -> list[Path]:
        """The logs of one or all ranks of a node, in folders that the launcher named."""
        return sorted(self.rank_logs(node_rank).glob(f"**/{local_rank}/std{stream}.log"))

    def accelerate_config(self, node_rank: int | str) -> Path:
        return self.node(node_rank) / "accelerate.yaml"

    def node_environment(self, node_rank: int | str) -> Path:
        """The environment of the node's ranks, for tasks that node 0 starts there."""
        return self.node(node_rank) / self.ENVIRONMENT

    def node_process(self, node_rank: int) -> Path:
        """The process that was started there, locally or over ssh: its pid and start time."""
        return self.node(node_rank) / "start" / "process"

    def dumped(self, node_rank: int) -> Path:
        return self.node(node_rank) / "dumped"

    def rank_events(self, rank: int) -> Path:
        return self.start / "ranks" / f"{rank:05d}.jsonl"

    def rank_process(self, rank: int) -> Path:
        """What started this rank, and how the rank ended, if a step of the job started it."""
        return self.start / "ranks" / f"{rank:05d}.process.json"

    def rank_stack(self, rank: int) -> Path:
        return self.dumps / f"rank_{rank:05d}.stack.txt"

    def rank_flight_recorder(self, rank: int) -> Path:
        return self.dumps / f"rank_{rank:05d}.flight_recorder.json"

    def rank_flight_recorder_brief(self, rank: int) -> Path:
        """Without source lines; written only if the rank could not write the complete one."""
        return self.dumps / f"rank_{rank:05d}.flight_recorder.brief.json"

    def rank_py_spy(self, rank: int) -> Path:
        return self.dumps / f"rank_{rank:05d}.py-spy.txt"

    def rank_trace(self, rank: int) -> Path:
        return self.start / "traces" / f"rank_{rank:05d}.json.gz"

    def nccl_logs(self, node_rank: int | str) -> Path:
        return self.start / "nccl" / f"{node_rank:0>4}"

    def build(self, node_rank: int | str) -> Path:
        return self.start / "build" / f"{node_rank:0>4}"


def rank_progress(output: Path, rank: int, kind: str) -> Path:
    """What a rank that stopped leaves in the phase's output: the hashes of what it saved (`json`),
    and its random state (`pt`)."""
    return output / "progress" / f"rank_{rank:05d}.{kind}"


def find_attempt(start: Path) -> PhaseDir:
    """The attempt that writes its files in `start`, as far as the path shows."""
    if start.parent.name == "attempts" and ATTEMPT.fullmatch(start.name):
        return PhaseDir(start.parent.parent, int(start.name))
    return PhaseDir(start)


def place_of_rank(folder: str, environ: Mapping[str, str]) -> PhaseDir:
    """Where a rank of the phase in `folder` writes, by its environment."""
    attempt = environ.get(ATTEMPT_VARIABLE, "")
    return PhaseDir(Path(folder), int(attempt) if ATTEMPT.fullmatch(attempt) else 0)


@dataclass(frozen=True)
class RunDir:
    """The paths of one run, under the cluster's shared directory."""

    root: Path

    @property
    def run_id(self) -> str:
        return self.root.name

    @property
    def run(self) -> Path:
        return self.root / "run.json"

    @property
    def lock(self) -> Path:
        return self.root / "controller.lock"

    @property
    def journal(self) -> Path:
        return self.root / "journal.jsonl"

    @property
    def silence(self) -> Path:
        """Changed when the scheduler first did not say what is left of the dead run."""
        return self.root / "scheduler.silent"

    @property
    def host_token(self) -> Path:
        return self.root / "hosts" / "token"

    def host(self, number: int) -> PhaseDir:
        """What one host writes before the first job; its files are named as those of a phase."""
        return PhaseDir(self.root / "hosts" / f"{number:04d}")

    def controller(self, number: int) -> Path:
        return self.root / f"controller.{number}"

    def phase(self, name: str) -> PhaseDir:
        if test := ISOLATION.fullmatch(name):
            return PhaseDir(self.phase(test[1]).isolation.parent / name)
        return PhaseDir(self.root / "phases" / name)

    def request_rerun(self, phase: str, number: int) -> str:
        """Ask the controller, from any process, to run a phase once more; returns the name of the
        rerun, whose result will be that of a phase. Raises OSError."""
        name = f"{phase}.confirm{number}"
        write_atomically(self.root / "reruns" / name, "")
        return name

    def requested_reruns(self) -> dict[str, str]:
        """The reruns requested so far, each with its phase, in order."""
        try:
            names = sorted(path.name for path in (self.root / "reruns").iterdir())
        except OSError:  # none was requested
            return {}
        return {name: match[1] for name in names if (match := RERUN.fullmatch(name))}


def is_of_phases(about: Mapping[str, Any]) -> bool:
    """Whether a run, by its run.json, is one of phases, which others can go on with: no screen, and
    no proof of gates."""
    return not {"proof", "screen"} & about.keys()


def create_phase(phase: PhaseDir, nodes: int) -> None:
    """Create the directories that a job on this many nodes writes into. Raises OSError.

    Jobs then only add files. A look-up that comes too early makes NFS remember that a file is
    missing until its directory is listed; a missing directory could not be listed.
    """
    for node in range(nodes):
        phase.node(node).mkdir(parents=True, exist_ok=True)
    phase.rank_events(0).parent.mkdir(parents=True, exist_ok=True)


def delete_output(phase: PhaseDir) -> None:
    """Delete what the rank programs of all the phase's jobs wrote, as far as that is possible."""
    for job in (phase, *phase.jobs()):
        shutil.rmtree(job.output, ignore_errors=True)


def refresh_directories(phase: PhaseDir, nodes: int) -> None:
    """List the directories that `create_phase` made. Then NFS looks again for files that it has
    remembered as missing."""
    for directory in (phase.start, phase.rank_events(0).parent, *map(phase.node, range(nodes))):
        list_directory(directory)
