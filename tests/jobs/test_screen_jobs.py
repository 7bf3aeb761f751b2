"""The jobs of a screen, one on each node: what becomes of one holds up no other."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_clustersmoke.config.profile import Profile
from pytest_clustersmoke.evidence.node_measurement import NodeMeasurement, read_measurement
from pytest_clustersmoke.evidence.scheduler_record import JobState, NodeStatus, SchedulerRecord
from pytest_clustersmoke.evidence.screen_files import ScreenFiles
from pytest_clustersmoke.evidence.whole_files import write_json
from pytest_clustersmoke.jobs import screen_jobs
from pytest_clustersmoke.jobs.backend import Refused, Unanswered
from pytest_clustersmoke.jobs.screen_jobs import (
    TAKEN,
    NodeEnd,
    ScreenJobs,
    SecondPart,
    make_script,
)
from pytest_clustersmoke.rank import peaks
from tests.support.evidence import make_profile
from tests.support.waiting import wait_for

LIMIT_S = 0.5
LIMIT = "sbatch: error: QOSMaxSubmitJobPerUserLimit"


class FakeQueue:
    """Slurm's queue, as SlurmClient shows it. What a node does stands in `behaviour`: it `answers`
    (the default), `hangs`, `waits` in the queue, `dies` without an answer, is `refused`, or its
    sbatch is `silent`. At most `most` jobs are accepted at a time."""

    def __init__(self, files: ScreenFiles, most: int = 1000, **behaviour: str) -> None:
        self.files, self.most, self.behaviour = files, most, behaviour
        self.submitted: list[str] = []
        self.cancelled: list[str] = []
        self.options: dict[str, tuple[str, ...]] = {}
        self.at_most = 0
        self.drained: set[str] = set()  # by Slurm, after their jobs
        self.takes_late: set[str] = set()  # whose job is taken only after the answer
        self._open: set[str] = set()
        self._lock = threading.Lock()

    def submit(self, script: Path, *options: str) -> str:
        node = options[0].removeprefix("--nodelist=")
        how = self.behaviour.get(node, "answers")
        with self._lock:
            self.options[node] = options
            if how == "refused":
                raise Refused("sbatch: error: Batch job submission failed: Invalid account")
            if how == "silent":
                raise Unanswered("sbatch did not answer within 60 s")
            if len(self._open) >= self.most:
                raise Refused(LIMIT)
            self.submitted.append(node)
            self._open.add(node)
            self.at_most = max(self.at_most, len(self._open))
        return f"job-{node}"

    def job_states(
        self, job_ids: Iterable[str], words: Mapping[str, Any] | None = None
    ) -> dict[str, JobState]:
        return {job: self._state(job.removeprefix("job-")) for job in job_ids}

    def _state(self, node: str) -> JobState:
        how = self.behaviour.get(node, "answers")
        if f"job-{node}" in self.cancelled:
            self._open.discard(node)
            return JobState("ended", "CANCELLED")
        if how == "forgotten":  # Slurm was set up anew, and the id is another job's
            return JobState("running", "RUNNING", nodes=node, name="train-llm")
        if how == "waits":
            return JobState("pending", "PENDING", "Resources")
        if how in TAKEN and node in self.takes_late:
            write_json(self.files.answer(node), {"node": node, "facts": {"a": 1}})
        if how in TAKEN:
            return JobState("ended", how)
        if how == "hangs":
            return JobState("running", "RUNNING", nodes=node)
        self._open.discard(node)
        if how == "dies":
            self.files.log(node).write_text("first\npython: command not found\n")
            return JobState("ended", "FAILED")
        write_json(self.files.answer(node), {"node": node, "facts": {"a": 1}})
        return JobState("ended", "COMPLETED")

    def job_record(
        self, job: str, state: JobState, nodes: str, words: tuple[str, str]
    ) -> SchedulerRecord:
        is_out = nodes in self.drained
        return SchedulerRecord(
            nodes=(NodeStatus(nodes, "drained" if is_out else "idle", drained=is_out),)
        )

    def cancel(self, *words: str, timeout_s: float | None = None) -> bool:
        self.cancelled += [word for word in words if not word.startswith("--state")]
        self._open -= {word.removeprefix("job-") for word in words}
        return True


class Clock:
    """Monotonic time, which passes while a screen waits, at once: what else runs on this machine
    takes none of it."""

    def __init__(self) -> None:
        self.now, self.stands = 1000.0, False

    def monotonic(self) -> float:
        self.now += 1e-6
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()

    class Stopped(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            made.now += 0.0 if made.stands else timeout or 0.0
            return super().wait(0.001)

    monkeypatch.setattr(screen_jobs, "time", made)
    monkeypatch.setattr(screen_jobs, "threading", SimpleNamespace(Event=Stopped))
    return made


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScreenFiles:
    """A screen's directories; limits are a fraction of a second."""
    for name, seconds in {"START_S": 0.5, "LOST_S": 0.1, "ASK_S": 0.05, "LOOK_S": 0.01}.items():
        monkeypatch.setattr(screen_jobs, name, seconds)
    made = ScreenFiles(tmp_path)
    made.create({})
    return made


@pytest.fixture
def profile(tmp_path: Path) -> Profile:
    return make_profile(tmp_path, backend="slurm", limits={"screen_s": LIMIT_S})


def screen(
    queue: FakeQueue, profile: Profile, nodes: list[str], second: SecondPart | None = None
) -> dict[str, NodeEnd]:
    ends: dict[str, NodeEnd] = {}
    jobs = ScreenJobs(queue, profile, "run", queue.files, second)  # type: ignore[arg-type]
    jobs.run(nodes, lambda node, end: ends.update({node: end}))
    assert jobs.close() == []
    return ends


def test_each_node_has_a_job_of_its_own_pinned_to_it(files: ScreenFiles, profile: Profile) -> None:
    """By name and comment squeue finds it with its run and node."""
    queue = FakeQueue(files)
    nodes = [f"n{number}" for number in range(20)]
    ends = screen(queue, profile, nodes)
    assert {end.kind for end in ends.values()} == {"answered"} and sorted(ends) == sorted(nodes)
    assert sorted(queue.submitted) == sorted(nodes)
    assert queue.options["n3"] == (
        "--nodelist=n3",
        "--job-name=clustersmoke-run-screen-n3",
        "--comment=clustersmoke run=run screen=n3",
        f"--output={files.log('n3')}",
    )
    assert queue.cancelled == []


def test_node_that_hangs_is_ended_at_its_limit_and_delays_no_other(
    files: ScreenFiles, profile: Profile
) -> None:
    queue = FakeQueue(files, n1="hangs")
    ends = screen(queue, profile, ["n0", "n1", "n2"])
    assert [ends[name].kind for name in ("n0", "n1", "n2")] == [
        *("answered", "no answer", "answered")
    ]
    assert ends["n1"].why == f"no answer within {LIMIT_S} s; its job was ended"
    *others, last = ends
    assert sorted(others) == ["n0", "n2"] and last == "n1"
    assert queue.cancelled == ["job-n1"]


def test_job_of_another_under_the_id_of_a_nodes_job_is_left_alone(
    files: ScreenFiles, profile: Profile
) -> None:
    """It is not waited for, it is not ended, and the node gave no answer."""
    queue = FakeQueue(files, n1="forgotten")
    ends = screen(queue, profile, ["n0", "n1"])
    assert (ends["n0"].kind, ends["n1"].kind) == ("answered", "no answer")
    assert ends["n1"].why == (
        "its job ended without an answer (Slurm shows another job under this id)"
    )
    assert queue.cancelled == []


def test_answer_that_comes_after_the_limit_does_not_count(
    files: ScreenFiles, profile: Profile
) -> None:
    """A stopped process goes on when its job is cancelled, and may still write."""
    queue = FakeQueue(files, n1="hangs")
    cancel = queue.cancel

    def write_late(*words: str, timeout_s: float | None = None) -> bool:
        write_json(files.answer("n1"), {"node": "n1", "facts": {"a": 1}})
        return cancel(*words)

    queue.cancel = write_late  # type: ignore[method-assign]
    assert screen(queue, profile, ["n1"])["n1"].kind == "no answer"


def test_job_that_does_not_start_in_time_is_cancelled_and_its_node_busy(
    files: ScreenFiles, profile: Profile
) -> None:
    queue = FakeQueue(files, n1="waits")
    end = screen(queue, profile, ["n0", "n1"])["n1"]
    assert (end.kind, end.word) == ("not screened", "busy")
    assert end.why == "its job did not start within 0.5 s"
    assert queue.cancelled == ["job-n1"]


@pytest.mark.parametrize("how", TAKEN)
def test_node_whose_job_others_took_is_not_screened(
    files: ScreenFiles, profile: Profile, how: str
) -> None:
    """That says nothing of the node; unless Slurm took the node out of service: then it could not
    launch the job. A node that had answered stands, and its figures are missing for that reason."""
    queue = FakeQueue(files, n0=how, n1=how, n2=how)
    queue.drained, queue.takes_late = {"n1"}, {"n2"}
    ends = screen(queue, profile, ["n0", "n1", "n2"], SecondPart("measure", 60))
    word, why = TAKEN[how]
    assert (ends["n0"].kind, ends["n0"].word, ends["n0"].why) == ("not screened", word, why)
    assert ends["n1"].kind == "no answer" and how in ends["n1"].why
    assert (ends["n2"].kind, ends["n2"].why) == ("answered", why)
    assert queue.cancelled == []


def test_job_that_ends_without_an_answer_says_how(files: ScreenFiles, profile: Profile) -> None:
    """By Slurm's state and the last line of its log, or by the setup line that failed."""
    end = screen(FakeQueue(files, n1="dies"), profile, ["n1"])["n1"]
    assert end.kind == "no answer"
    assert "FAILED" in end.why and end.why.endswith("python: command not found")
    files.setup_failed("n1").write_text("2\tmodule load cuda\n")
    end = screen(FakeQueue(files, n1="dies"), profile, ["n1"])["n1"]
    assert end.why.endswith("setup line `module load cuda` ended with status 2")


@pytest.mark.parametrize(
    ("how", "words"), [("refused", "Invalid account"), ("silent", "did not answer within 60 s")]
)
def test_node_whose_job_was_not_accepted_is_not_screened(
    files: ScreenFiles, profile: Profile, how: str, words: str
) -> None:
    """Of a submission without an answer the job is cancelled by its name."""
    queue = FakeQueue(files, n1=how)
    ends = screen(queue, profile, ["n0", "n1"])
    assert ends["n0"].kind == "answered"
    assert (ends["n1"].kind, ends["n1"].word) == ("not screened", "refused")
    assert words in ends["n1"].why
    assert ("--name=clustersmoke-run-screen-n1" in queue.cancelled) == (how == "silent")


def test_smaller_limit_of_jobs_makes_waves(files: ScreenFiles, profile: Profile) -> None:
    """Every node is screened, three at a time."""
    queue = FakeQueue(files, most=3)
    ends = screen(queue, profile, [f"n{number}" for number in range(7)])
    assert {end.kind for end in ends.values()} == {"answered"} and len(ends) == 7
    assert queue.at_most <= 3


def test_limit_that_never_passes_leaves_nodes_unscreened(
    files: ScreenFiles, profile: Profile
) -> None:
    """With no job of ours the limit is used up by others of this user."""
    (end,) = screen(FakeQueue(files, most=0), profile, ["n0"]).values()
    assert end.kind == "not screened" and "QOSMaxSubmitJobPerUserLimit" in end.why


def test_interrupted_screen_cancels_what_is_left(
    files: ScreenFiles, profile: Profile, clock: Clock
) -> None:
    clock.stands = True
    queue = FakeQueue(files, n0="hangs", n1="waits")
    jobs = ScreenJobs(queue, profile, "run", files)  # type: ignore[arg-type]
    running = threading.Thread(target=jobs.run, args=(["n0", "n1"], lambda node, end: None))
    running.start()
    wait_for("both jobs", lambda: len(queue.submitted) == 2 or None)
    jobs.stop()
    running.join(60)
    assert not running.is_alive() and jobs.close() == []
    assert set(queue.cancelled) >= {"job-n0", "job-n1"}


def test_second_part_has_a_limit_of_its_own_and_the_answer_stands(
    files: ScreenFiles, profile: Profile
) -> None:
    """One node writes its figures, one hangs while it measures: both have answered."""
    write_json(files.figures("n0"), {"figures": [{"name": "gemm", "value": 3, "unit": "TFLOP/s"}]})
    write_json(files.answer("n1"), {"node": "n1", "facts": {"a": 1}})
    queue = FakeQueue(files, n1="hangs")
    second = SecondPart("measure", 0.3)
    ends = screen(queue, profile, ["n0", "n1"], second)
    assert {end.kind for end in ends.values()} == {"answered"}
    assert queue.cancelled == ["job-n1"]
    (figure,) = read_measurement(files, "n0").figures
    assert (figure.node, figure.name, figure.value) == ("n0", "gemm", 3.0)
    assert read_measurement(files, "n1").figures == ()


def test_node_that_measures_while_slurm_says_that_its_job_waits_has_its_time(
    files: ScreenFiles, profile: Profile, clock: Clock
) -> None:
    """An answer shows that the job runs: it is not cancelled as one that did not start."""
    write_json(files.answer("n0"), {"node": "n0", "facts": {"a": 1}})
    queue, began = FakeQueue(files, n0="waits"), clock.now
    (end,) = screen(queue, profile, ["n0"], SecondPart("measure", 5.0)).values()
    assert end.kind == "answered" and queue.cancelled == ["job-n0"]
    assert clock.now - began > LIMIT_S + 5.0


def test_job_that_starts_as_it_is_taken_out_of_the_queue_has_its_time(
    files: ScreenFiles, profile: Profile, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`scancel` ends only what waits: it was cancelled for nothing, and answers."""
    queue, began = FakeQueue(files, n0="waits"), clock.now

    def start(*words: str, timeout_s: float | None = None) -> bool:
        queue.behaviour["n0"] = "hangs"
        write_json(files.answer("n0"), {"node": "n0", "facts": {"a": 1}})
        return True

    monkeypatch.setattr(queue, "cancel", start)
    (end,) = screen(queue, profile, ["n0"], SecondPart("measure", 5.0)).values()
    assert end.kind == "answered" and clock.now - began > LIMIT_S + 5.0


def test_second_part_runs_after_the_first_in_the_same_job(
    files: ScreenFiles, profile: Profile
) -> None:
    lines = make_script(profile, files, SecondPart("measure 'it'", 90)).splitlines()
    assert lines[-3].endswith('"$SLURMD_NODENAME" || exit')
    folder = files.figures("").parent
    assert lines[-2] == f'export CLUSTERSMOKE_FIGURES={folder}/"$SLURMD_NODENAME".json'
    assert lines[-1].startswith("timeout -k 5 90 bash -c 'measure ")
    assert "#SBATCH --time=3" in lines  # START_S is half a second here


@pytest.mark.parametrize(
    ("command", "status"),
    [("exit 3", 3), ("sleep 60", 124), ("echo {} > $CLUSTERSMOKE_FIGURES", None)],
)
def test_second_part_that_leaves_no_figures_says_how_it_ended(
    files: ScreenFiles, profile: Profile, command: str, status: int | None
) -> None:
    """The controller need not wait for the end of the job, and knows why figures are missing."""
    second = SecondPart(command, 0.3 if status == 124 else 60)
    lines = make_script(profile, files, second).splitlines()[-2:]
    environ = {**os.environ, "SLURMD_NODENAME": "n0"}
    subprocess.run(["bash", "-c", "\n".join(lines)], env=environ, check=True, timeout=60)
    assert read_measurement(files, "n0") == NodeMeasurement(status=status)
    assert [path.name for path in files.figures("").parent.iterdir()] == ["n0.json"]


def test_devices_are_measured_by_a_rank_each_unless_the_profile_says_never(tmp_path: Path) -> None:
    hardware = {"gpu": "H100", "device": "cuda", "gpus_per_node": 8}
    keys: dict[str, Any] = {"backend": "slurm", "hardware": hardware, "python": "srun-python"}
    asked = make_profile(tmp_path, **keys, limits={"screen_peaks_s": 90})
    second = SecondPart.measuring(asked)
    assert second == SecondPart(
        'export CLUSTERSMOKE_DEVICE=cuda CLUSTERSMOKE_NODE_NAME="$SLURMD_NODENAME"; srun-python '
        "-m torch.distributed.run --standalone --nproc_per_node=8 "
        f"-m {peaks.__name__}",
        90,
    )
    assert peaks.FIGURES == screen_jobs.FIGURES
    assert SecondPart.measuring(make_profile(tmp_path, **keys, peaks="never")) is None


def test_node_that_measures_when_the_screen_is_interrupted_has_answered(
    files: ScreenFiles, profile: Profile
) -> None:
    """Its other checks are judged; its job is cancelled."""
    write_json(files.answer("n0"), {"node": "n0", "facts": {"a": 1}})
    queue, ends = FakeQueue(files, n0="hangs", n1="hangs"), dict[str, NodeEnd]()
    second = SecondPart("measure", 60)
    jobs = ScreenJobs(queue, profile, "run", files, second)  # type: ignore[arg-type]

    def take(node: str, end: NodeEnd) -> None:
        ends[node] = end
        jobs.stop()  # n1 has passed its limit, n0 measures

    jobs.run(["n0", "n1"], take)
    assert {node: end.kind for node, end in ends.items()} == {"n0": "answered", "n1": "no answer"}
    assert ends["n0"].why == "the screen was interrupted"
    assert ends["n0"].seconds, "the answer came before Slurm said that the job runs"
    assert jobs.close() == [] and "job-n0" in queue.cancelled


def test_script_asks_for_a_whole_node_with_the_profiles_account_and_no_choice_of_nodes(
    files: ScreenFiles, tmp_path: Path
) -> None:
    slurm = {
        "partition": "gpu",
        "account": "ops",
        "cpus_per_task": 8,
        "time": "02:00:00",
        "exclude": "n[1-3]",
        "mem": "100G",
        "constraint": "a100",
    }
    env = {"common": {"set": {"A": "it's"}}, "single_node": {"unset": ["B"]}}
    profile = make_profile(
        tmp_path, backend="slurm", slurm=slurm, setup=["module load cuda"], env=env
    )
    lines = make_script(profile, files).splitlines()
    options = {line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH ")}
    assert {"partition=gpu", "account=ops", "mem=100G", "nodes=1", "ntasks=1"} <= options
    assert {"exclusive", "no-requeue", "time=3"} <= options
    assert not {o.partition("=")[0] for o in options} & {"exclude", "constraint", "cpus-per-task"}
    order = ("module load cuda", "export A='it'\"'\"'s'", "unset B")
    assert [lines.index(line) for line in order] == sorted(lines.index(line) for line in order)
    assert lines[-1].endswith(f'node_screen {files.run} "$SLURMD_NODENAME" || exit')


@pytest.mark.parametrize("how", ["hangs", "waits"])
@pytest.mark.parametrize("refusals", [3, 10**6])
def test_job_that_slurm_did_not_agree_to_end_is_ended_again(
    files: ScreenFiles, profile: Profile, monkeypatch: pytest.MonkeyPatch, how: str, refusals: int
) -> None:
    """It would hold its node, and the place of another job. Where Slurm never agrees, it is
    named."""
    queue, asked = FakeQueue(files, most=1, n0=how), list[tuple[str, ...]]()
    cancel = queue.cancel

    def refuse(*words: str, timeout_s: float | None = None) -> bool:
        asked.append(words)
        return len(asked) > refusals and cancel(*words)

    monkeypatch.setattr(queue, "cancel", refuse)
    monkeypatch.setattr(screen_jobs, "CANCEL_S", 0.1)
    jobs = ScreenJobs(queue, profile, "run", files)  # type: ignore[arg-type]
    ends = jobs.run(["n0", "n1"], lambda node, end: None)
    assert ends["n0"].kind == ("no answer" if how == "hangs" else "not screened")
    assert ends["n1"].kind == ("answered" if refusals == 3 else "not screened")
    assert jobs.close() == ([] if refusals == 3 else ["job-n0"])


def test_job_of_a_submission_without_an_answer_is_ended_with_the_screen(
    files: ScreenFiles, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm may have taken it after it was cancelled by its name. Where Slurm does not agree, it is
    named."""
    queue = FakeQueue(files, n0="silent")
    jobs = ScreenJobs(queue, profile, "run", files)  # type: ignore[arg-type]
    jobs.run(["n0", "n1"], lambda node, end: None)
    name = "clustersmoke-run-screen-n0"
    assert queue.cancelled == [f"--name={name}"]
    assert jobs.close() == [] and queue.cancelled == [f"--name={name}"] * 2
    monkeypatch.setattr(queue, "cancel", lambda *words: False)
    assert jobs.close() == [name]


def test_job_that_starts_after_the_screen_has_ended_does_nothing(
    files: ScreenFiles, tmp_path: Path
) -> None:
    """Slurm may serve a submission late, or a cancellation never."""
    started = files.run / "started"
    profile = make_profile(tmp_path, backend="slurm", setup=[f"touch {started}; exit 1"])
    script = make_script(profile, files)
    jobs = ScreenJobs(FakeQueue(files), profile, "run", files)  # type: ignore[arg-type]
    environ = {**os.environ, "SLURMD_NODENAME": "n0"}
    subprocess.run(["bash", "-c", script], env=environ, check=False, timeout=60)
    assert started.exists()
    started.unlink()
    jobs.close()
    subprocess.run(["bash", "-c", script], env=environ, check=True, timeout=60)
    assert not started.exists()
