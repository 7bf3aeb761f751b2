"""The batch script as sbatch gets it, and sbatch's answers (Slurm is a fake here)."""

from __future__ import annotations

import errno
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from submitit.core.utils import DelayedSubmission

from pytest_clustersmoke.config.phase import Sourced
from pytest_clustersmoke.evidence.locks import Superseded
from pytest_clustersmoke.evidence.run_directory import PhaseDir, create_phase, write_json
from pytest_clustersmoke.evidence.scheduler_record import JobState
from pytest_clustersmoke.jobs import batch_script
from pytest_clustersmoke.jobs.backend import (
    Refused,
    Submission,
    Unanswered,
    make_spec,
    prepare_jobs,
)
from pytest_clustersmoke.jobs.slurm_backend import ALLOCATION, KEEP_SIGNAL, SlurmBackend
from pytest_clustersmoke.jobs.slurm_client import SlurmClient
from pytest_clustersmoke.jobs.slurm_jobs import parse_test_only
from tests.fakes.slurm import FakeSlurm
from tests.support.evidence import make_phase, make_profile

FAILED = "sbatch: error: Batch job submission failed: "
MUNGE = "sbatch: error: Munge encode failed: Failed to access the socket\n"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm(tmp_path)
    monkeypatch.setenv("PATH", fake.environ["PATH"])
    return fake


def backend(tmp_path: Path, environ: dict[str, str] | None = None, **keys: Any) -> SlurmBackend:
    return SlurmBackend(make_profile(tmp_path, backend="slurm", **keys), environ or {})


def script_of(tmp_path: Path, settings: Any = (), **keys: Any) -> list[str]:
    profile = make_profile(tmp_path, backend="slurm", **keys)
    phase = make_phase(profile, nodes=4, gpus_per_node=2, settings=settings)
    directory = PhaseDir(tmp_path / "run1" / "phases" / "small")
    return SlurmBackend(profile, {}).script(Submission(phase, directory)).splitlines()


def test_job_has_one_task_per_node(tmp_path: Path) -> None:
    """N nodes with one task each, GPUs per node; name and comment contain run and phase."""
    lines = script_of(tmp_path)
    for line in (
        "#SBATCH --nodes=4",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --gpus-per-node=2",
        "#SBATCH --job-name=clustersmoke-run1-small",
        "#SBATCH --comment='clustersmoke run=run1 phase=small'",
        "#SBATCH --no-requeue",
        "#SBATCH --export=ALL",
    ):
        assert line in lines, line


def test_no_early_signal_is_requested(tmp_path: Path) -> None:
    """submitit's --signal, which would end short jobs early as FAILED, is removed."""
    assert not [line for line in script_of(tmp_path) if line.startswith("#SBATCH --signal")]


STARTING = """
import signal, sys
print("begun", flush=True)
sys.stdin.readline()
came = []
signal.signal(signal.SIGUSR1, lambda *_: came.append(1))
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
print(len(came))
"""
OLD_ENV = '#!/bin/sh\ncase $1 in --block-signal*) exit 125;; esac\nexec /usr/bin/env "$@"\n'


@pytest.mark.parametrize(("is_old", "seen"), [(False, "1"), (True, "0")])
def test_python_that_is_starting_survives_the_signal_to_stop(
    tmp_path: Path, is_old: bool, seen: str
) -> None:
    """It finds it pending once it looks; where `env` cannot block it, nothing ends."""
    if is_old:
        (tmp_path / "env").write_text(OLD_ENV)
        (tmp_path / "env").chmod(0o700)
    with subprocess.Popen(
        ["sh", "-c", KEEP_SIGNAL, "sh", sys.executable, "-c", STARTING],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout and process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGUSR1)
        assert process.communicate("\n", timeout=20)[0].split() == [seen]
    assert process.returncode == 0


def test_only_a_phase_that_resumes_is_asked_to_stop(tmp_path: Path) -> None:
    """Its Python starts with the signal blocked."""
    lines = "\n".join(script_of(tmp_path, phases={"small": {"resume": True}}))
    assert "#SBATCH --requeue" in lines and "#SBATCH --signal=USR1@120" in lines
    assert f"sh -c {shlex.quote(KEEP_SIGNAL)} sh {shlex.quote(sys.executable)} -u -m" in lines
    plain = script_of(tmp_path)
    assert "#SBATCH --no-requeue" in plain and "USR1" not in "\n".join(plain)


def test_srun_gets_cpus_and_environment(tmp_path: Path) -> None:
    """srun inherits neither since 22.05, so its own command line has both."""
    lines = script_of(tmp_path, slurm={"cpus_per_task": 16})
    assert "#SBATCH --cpus-per-task=16" in lines
    (srun,) = [line for line in lines if line.startswith("srun ")]
    words = srun.split()
    assert {"--export=ALL", "--cpus-per-task=16", "--kill-on-bad-exit=1"} <= set(words)


def test_sbatch_options_are_written(tmp_path: Path) -> None:
    """Text, numbers (also 0) and flags are written; false drops an option."""
    lines = script_of(
        tmp_path,
        slurm={"partition": "p", "mem": 0, "exclusive": True, "qos": "q"},
        phases={"small": {"slurm": {"qos": False}}},
    )
    assert {"#SBATCH --partition=p", "#SBATCH --mem=0", "#SBATCH --exclusive"} <= set(lines)
    assert not [line for line in lines if "qos" in line]


def test_no_gpus_are_requested_from_a_cpu_cluster(tmp_path: Path) -> None:
    """The script for a cluster without GPUs requests none."""
    hardware = {"gpu": "none", "device": "cpu", "gpus_per_node": 2}
    lines = script_of(tmp_path, hardware=hardware)
    assert not [line for line in lines if line.startswith(("#SBATCH --gpu", "#SBATCH --gres"))]


def test_profile_python_starts_the_launcher(tmp_path: Path) -> None:
    """The profile's `python` starts our launcher, even if it is a command of several words."""
    (srun,) = [
        line
        for line in script_of(tmp_path, python="apptainer exec x.sif python")
        if line.startswith("srun ")
    ]
    assert " apptainer exec x.sif python -u -m pytest_clustersmoke.node.job_entry " in srun


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({}, "#SBATCH --time=2"),
        ({"setup": ["module load cuda"]}, "#SBATCH --time=12"),
        ({"phases": {"small": {"resume": True}}}, "#SBATCH --time=5"),
        ({"slurm": {"time": 10}}, "#SBATCH --time=10"),
        ({"slurm": {"time": None}}, ""),
    ],
)
def test_job_has_the_time_of_its_phase_unless_the_profile_says_otherwise(
    tmp_path: Path, keys: dict[str, Any], line: str
) -> None:
    """And ten minutes for setup lines. submitit would limit it to five minutes."""
    lines = script_of(tmp_path, **keys)
    assert [each for each in lines if "--time" in each] == list(filter(None, [line]))


def test_time_that_nobody_chose_is_left_to_the_partition(tmp_path: Path) -> None:
    """An hour by default may be more than it allows."""
    profile = make_profile(tmp_path, backend="slurm")
    phase = make_phase(profile, timeout_s=3600)
    directory = PhaseDir(tmp_path / "run1" / "phases" / "small")
    assert "--time" not in SlurmBackend(profile, {}).script(Submission(phase, directory))


def test_setup_lines_precede_environment(tmp_path: Path) -> None:
    """The profile's variables override what a module sets."""
    lines = script_of(
        tmp_path,
        setup=["module load cuda"],
        env={"multi_node": {"set": {"A": "it's"}, "unset": ["B"]}},
    )
    order = [lines.index(line) for line in ("module load cuda", "unset B", "export A='it'\"'\"'s'")]
    assert order == sorted(order)
    assert next(i for i, line in enumerate(lines) if line.startswith("srun ")) > order[-1]


def bash(lines: list[str]) -> subprocess.CompletedProcess[str]:
    text = "\n".join([*lines, "echo reached"])
    return subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("bad", ["false", "no_such_command_here x", "true && false"])
def test_failing_setup_line_ends_the_job(tmp_path: Path, bad: str) -> None:
    """The line and its status are recorded; nothing after it runs."""
    phase = PhaseDir(tmp_path)
    done = bash(
        batch_script.strict_setup_lines(["true", bad, "echo too far"], str(phase.setup_failed))
    )
    assert done.returncode != 0 and "too far" not in done.stdout and "reached" not in done.stdout
    status, line = phase.setup_failed.read_text().rstrip("\n").split("\t")
    assert int(status) == done.returncode
    assert line in bad


def test_successful_setup_lines_leave_no_trace(tmp_path: Path) -> None:
    """After the lines `set -e` and the trap are off again, and variables stay set."""
    phase = PhaseDir(tmp_path)
    done = bash(
        [
            *batch_script.strict_setup_lines(
                ["X=1; export X", "false || true"], str(phase.setup_failed)
            ),
            "false",
            "echo $X",
        ]
    )
    assert done.stdout == "1\nreached\n" and not phase.setup_failed.exists()


def test_exiting_setup_line_is_a_failure(tmp_path: Path) -> None:
    """`exit 0` in a setup line would end the job as if it had succeeded, so it is recorded."""
    phase = PhaseDir(tmp_path)
    bash(batch_script.strict_setup_lines(["exit 0"], str(phase.setup_failed)))
    assert phase.setup_failed.exists()


def test_without_setup_lines_nothing_is_sourced() -> None:
    """Without setup lines nothing is sourced."""
    assert batch_script.strict_setup_lines([], "failed") == []


def submit(backend: SlurmBackend, tmp_path: Path, **keys: Any) -> str:
    profile = make_profile(tmp_path, backend="slurm", **keys)
    phase = make_phase(profile)
    directory = PhaseDir(tmp_path / "run1" / "phases" / "small")
    write_json(directory.spec, make_spec(phase, profile, directory))
    return backend.submit(Submission(phase, directory))


def test_submission_returns_the_job_id(slurm: FakeSlurm, tmp_path: Path) -> None:
    """sbatch gets the saved script, without an outer job's variables, and returns the job id."""
    slurm.answers("sbatch", "4711;cluster\n")
    environ = {**slurm.environ, "SLURM_JOB_ID": "1", "SBATCH_PARTITION": "other"}
    job = submit(backend(tmp_path, environ), tmp_path)
    kept = tmp_path / "run1" / "phases" / "small" / "batch.sh"
    assert job == "4711"
    assert slurm.calls() == [f"sbatch --parsable {kept}"]
    assert kept.read_text().startswith("#!/bin/bash\n")
    seen = (slurm.folder / "sbatch.env").read_text()
    assert "SLURM_JOB_ID" not in seen and "SBATCH_PARTITION" not in seen


@pytest.mark.parametrize("how", ["submitted", "found", "adopted"])
def test_answers_about_another_job_under_the_id_of_ours_are_left_out(
    how: str, slurm: FakeSlurm, tmp_path: Path
) -> None:
    """Whichever way the id became known: accounting knows an older job, and scontrol another one
    now."""
    chosen = backend(tmp_path, slurm.environ)
    job = Submission(
        make_phase(make_profile(tmp_path, backend="slurm")),
        PhaseDir(tmp_path / "run1" / "phases" / "small"),
    )
    slurm.answers("sbatch", "9\n")
    slurm.answers("squeue", "9|clustersmoke run=run1 phase=small\n")
    if how == "submitted":
        assert submit(chosen, tmp_path) == "9"
    elif how == "found":
        assert chosen.find_submitted([job]) == ["9"]
    else:
        chosen.adopt(job, "9")
    slurm.answers("squeue", "")
    slurm.answers("sacct", "9|FAILED|None|n1|2020-01-02T03:04:05|Unknown|train-llm|\n")
    slurm.answers("scontrol", "JobId=9 JobName=train-llm JobState=RUNNING NodeList=n1")
    state = chosen.states(["9"])["9"]
    assert (state.raw, state.name) == ("RUNNING", "train-llm")  # which names no job of ours
    slurm.answers("sacct", "9|PREEMPTED|0:0|n1|Unknown|train-llm|\n")
    assert chosen.details("9", JobState("ended", "CANCELLED"), "") is None


def test_points_of_a_sweep_are_one_array(slurm: FakeSlurm, tmp_path: Path) -> None:
    """One sbatch, one script and one token; task N finds the directory of the Nth point by a link,
    logs there and runs the call that lies there."""
    slurm.answers("sbatch", "4711\n")
    names = ("small-x-1", "small-x-2")
    profile = make_profile(tmp_path, backend="slurm", phases=dict.fromkeys(names))
    jobs = []
    for index, name in enumerate(names):
        phase = make_phase(profile, name)
        directory = PhaseDir(tmp_path / "run1" / "phases" / name)
        write_json(directory.spec, make_spec(phase, profile, directory, "t1"))
        jobs.append(Submission(replace(phase, base="small"), directory, "t1", index))
    chosen = SlurmBackend(profile, slurm.environ)
    assert chosen.submit_array(jobs, at_once=1, after="12") == ["4711_0", "4711_1"]
    first, second = (job.directory for job in jobs)
    script = first.batch_script
    assert slurm.calls() == [f"sbatch --parsable {script}"]
    lines = script.read_text().splitlines()
    for line in (
        "#SBATCH --array=0-1%1",
        "#SBATCH --dependency=afterok:12",
        "#SBATCH --job-name=clustersmoke-run1-small",
        f"#SBATCH --output={first.array}/%a/submitit/%A_%a_0_log.out",
        "#SBATCH --comment='clustersmoke run=run1 phase=small token=t1'",
    ):
        assert line in lines, line
    assert len([line for line in lines if "--error=" in line]) == 1
    slurm.answers("scancel", "")
    chosen.cancel_named(jobs[0])
    assert slurm.calls()[-1] == "scancel --name=clustersmoke-run1-small"
    assert (first.array / "1").resolve() == second.root.resolve()
    assert lines[-1].endswith(f' {first.run.root} phases/small-x-1/array/"$SLURM_ARRAY_TASK_ID" t1')
    calls = [DelayedSubmission.load(job.directory.call("t1")) for job in jobs]
    assert [call.args[0]["phase"] for call in calls] == [*names]


def test_array_of_several_phases_has_their_tokens_name(slurm: FakeSlurm, tmp_path: Path) -> None:
    """A run may have several such arrays; each is found and cancelled by a name of its own, and
    each phase keeps the script that runs it."""
    profile = make_profile(tmp_path, backend="slurm", phases=dict.fromkeys("ab"))
    jobs = []
    for index, name in enumerate("ab"):
        phase = make_phase(profile, name)
        directory = PhaseDir(tmp_path / "run1" / "phases" / name)
        write_json(directory.spec, make_spec(phase, profile, directory, "t1"))
        jobs.append(Submission(phase, directory, "t1", index))
    chosen = SlurmBackend(profile, slurm.environ)
    slurm.answers("sbatch", "4711\n")
    assert chosen.submit_array(jobs, at_once=2) == ["4711_0", "4711_1"]
    script = jobs[0].directory.batch_script.read_text()
    assert "#SBATCH --job-name=clustersmoke-run1-array-t1\n" in script
    assert "#SBATCH --comment='clustersmoke run=run1 array token=t1'\n" in script
    assert jobs[1].directory.batch_script.read_text() == script
    slurm.answers("squeue", "4711|clustersmoke run=run1 array token=t1\n")
    assert chosen.find_submitted(jobs) == ["4711_0", "4711_1"]
    assert chosen.find_submitted(jobs[1:]) == ["4711_1"]  # the other has ended
    chosen.cancel_named(jobs[0])
    assert slurm.calls()[-1] == "scancel --name=clustersmoke-run1-array-t1"


@pytest.mark.parametrize(
    ("out", "err", "rc", "message"),
    [
        ("", "sbatch: error: invalid partition specified: x", 1, "invalid partition specified: x"),
        ("", "the project is over its budget\n" + FAILED + "Unspecified error", 1, "budget"),
        ("", FAILED + "Invalid account or account/partition combination specified", 1, "account"),
        # munged is not there, so that nothing was sent.
        ("", MUNGE + FAILED + "Protocol authentication error", 1, "Munge encode failed"),
    ],
)
def test_refusal_quotes_sbatch(
    slurm: FakeSlurm, tmp_path: Path, out: str, err: str, rc: int, message: str
) -> None:
    """An error of Slurm's own is a refusal, with all that was printed."""
    slurm.answers("sbatch", out, err, rc)
    with pytest.raises(Refused, match=message) as refusal:
        submit(backend(tmp_path, slurm.environ), tmp_path)
    assert not refusal.value.for_now


@pytest.mark.parametrize(
    ("out", "err", "rc", "message"),
    [
        ("", "", 3, "sbatch ended with status 3: nothing"),
        ("", "", -9, "sbatch ended with status"),
        ("Submitted\n", "", 0, "sbatch succeeded without a job id .it printed 'Submitted'"),
        ("7\n8\n", "", 0, "without a job id"),
        ("", "", 0, "without a job id"),
        ("", "no more budget\n", 1, "no more budget"),  # a wrapper's words, perhaps after sbatch
        ("", FAILED + "Socket timed out on send/recv operation", 1, "Socket timed out"),
        ("", FAILED + "Zero Bytes were transmitted or received", 1, "Zero Bytes"),
        ("", FAILED + "Unable to contact slurm controller (receive failure)", 1, "receive failure"),
        ("", FAILED + "Protocol authentication error", 1, "Protocol authentication"),
        ("", FAILED + "Insane message length", 1, "Insane message length"),
    ],
)
def test_unclear_answer_is_no_refusal(
    slurm: FakeSlurm, tmp_path: Path, out: str, err: str, rc: int, message: str
) -> None:
    """slurmctld may have served the request, and the job may run."""
    slurm.answers("sbatch", out, err, rc % 256)
    with pytest.raises(Unanswered, match=message):
        submit(backend(tmp_path, slurm.environ), tmp_path)


def test_error_of_an_sbatch_that_was_killed_is_no_refusal(slurm: FakeSlurm, tmp_path: Path) -> None:
    """It had printed an error, and may have sent the request after that."""
    slurm.folder.joinpath("sbatch.answer").write_text("echo 'sbatch: error: x' >&2; kill -9 $$\n")
    with pytest.raises(Unanswered, match="sbatch ended with status -9: sbatch: error: x"):
        submit(backend(tmp_path, slurm.environ), tmp_path)


@pytest.mark.parametrize(
    "out", ["7\n", "7;cluster\n", "*** maintenance on 2026-12-01 ***\nWelcome, 5 jobs\n7\n"]
)
def test_job_id_is_read_past_a_banner(slurm: FakeSlurm, tmp_path: Path, out: str) -> None:
    """A site's wrapper may print what it likes."""
    slurm.answers("sbatch", out)
    assert submit(backend(tmp_path, slurm.environ), tmp_path) == "7"


def test_job_is_found_again_with_what_it_starts(slurm: FakeSlurm, tmp_path: Path) -> None:
    """Its name and comment have run, phase and token."""
    slurm.answers("sbatch", "", FAILED + "Socket timed out on send/recv operation", 1)
    chosen = backend(tmp_path, slurm.environ)
    with pytest.raises(Unanswered):
        submit(chosen, tmp_path)
    profile = make_profile(tmp_path, backend="slurm")
    job = Submission(make_phase(profile), PhaseDir(tmp_path / "run1" / "phases" / "small"))
    slurm.answers("squeue", "")
    assert chosen.find_submitted([job]) == []
    slurm.answers("squeue", "9|clustersmoke run=run1 phase=small\n")
    assert chosen.find_submitted([job]) == ["9"]
    assert " -n clustersmoke-run1-small " in slurm.calls()[-1]


@pytest.mark.parametrize(
    ("err", "no_controller", "for_now"),
    [
        ("sbatch: fatal: Could not establish a configuration source", True, False),
        (FAILED + "Unable to contact slurm controller (connect failure)", True, True),
        (FAILED + "Resource temporarily unavailable", False, True),
        (FAILED + "Slurm backup controller in standby mode", False, True),
        ("sbatch: error: invalid partition specified: gpu", False, False),
    ],
)
def test_refusal_without_a_controller_is_distinguished(
    slurm: FakeSlurm, tmp_path: Path, err: str, no_controller: bool, for_now: bool
) -> None:
    """Then the machine is wrong or Slurm is down, and the job's settings are not to blame; what can
    pass is tried again."""
    slurm.answers("sbatch", "", err, 1)
    with pytest.raises(Refused) as refusal:
        submit(backend(tmp_path, slurm.environ), tmp_path)
    assert (refusal.value.no_controller, refusal.value.for_now) == (no_controller, for_now)


@pytest.mark.parametrize(
    ("reason", "at_limit"),
    [
        *((f"{of}Limit", True) for of in ("QOSMaxSubmitJobPerUser", "AssocMaxSubmitJob")),
        *((f"{of}Limit", True) for of in ("QOSGrpSubmitJobs", "AssocGrpSubmitJobs")),
        *((of, False) for of in ("QOSMaxWallDurationPerJobLimit", "QOSMaxNodePerJobLimit")),
    ],
)
def test_limit_on_submitted_jobs_is_told_from_one_on_the_size_of_a_job(
    slurm: FakeSlurm, tmp_path: Path, reason: str, at_limit: bool
) -> None:
    """It passes; the same words follow both. A trial submission says nothing then."""
    policy = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
    words = f"sbatch: error: {reason}\n{FAILED}{policy}"
    slurm.answers("sbatch", "", words, 1)
    with pytest.raises(Refused, match=reason) as refusal:
        submit(backend(tmp_path, slurm.environ), tmp_path)
    assert (refusal.value.at_limit, refusal.value.for_now) == (at_limit, False)
    assert parse_test_only(1, words).accepted is (None if at_limit else False)


def test_host_that_starts_no_process_now_is_asked_again(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a login node limits the processes of a user."""
    chosen = backend(tmp_path, slurm.environ)

    def run(*_: Any, **__: Any) -> Any:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(SlurmClient, "run", run)
    with pytest.raises(Refused, match="temporarily unavailable") as refusal:
        submit(chosen, tmp_path)
    assert refusal.value.for_now


@pytest.mark.parametrize(
    ("state", "for_now"), [("UNKNOWN", True), ("IDLE", False), ("DOWN", False)]
)
def test_controller_that_does_not_know_its_nodes_yet_is_asked_again(
    slurm: FakeSlurm, tmp_path: Path, state: str, for_now: bool
) -> None:
    """For some seconds after its start, slurmctld refuses whatever needs a node."""
    slurm.answers("sbatch", "", FAILED + "Requested node configuration is not available", 1)
    slurm.answers("scontrol", f"NodeName=n1 State={state} CPUTot=8 Partitions=main\n")
    with pytest.raises(Refused) as refusal:
        submit(backend(tmp_path, slurm.environ), tmp_path)
    assert refusal.value.for_now == for_now


@pytest.mark.parametrize("allowed", [0, 1])
def test_run_that_is_taken_over_before_an_sbatch_submits_nothing_more(
    slurm: FakeSlurm, tmp_path: Path, allowed: int
) -> None:
    """Before the first, while its files were written, or before that which follows a refusal."""
    slurm.answers("sbatch", "", FAILED + "Requested node configuration is not available", 1)
    slurm.answers("scontrol", "NodeName=n1 State=IDLE CPUTot=8 Partitions=main\n")
    profile = make_profile(tmp_path, backend="slurm")
    phase, directory = make_phase(profile), PhaseDir(tmp_path / "run1" / "phases" / "small")

    def check() -> None:
        if slurm.commands().count("sbatch") == allowed:
            raise Superseded("pid 7 on login2 has taken this run over")

    (job,) = prepare_jobs([phase], profile, [directory], check=check)
    with pytest.raises(Superseded):
        backend(tmp_path, slurm.environ).submit(job)
    assert slurm.commands().count("sbatch") == allowed


def test_missing_sbatch_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """sbatch missing at submission is reported as a refusal."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refused, match="sbatch cannot be run"):
        submit(backend(tmp_path, {"PATH": str(tmp_path)}), tmp_path)


def test_one_scancel_for_all_jobs(slurm: FakeSlurm, tmp_path: Path) -> None:
    """One scancel cancels all jobs; without jobs none runs."""
    slurm_backend = backend(tmp_path, slurm.environ)
    slurm_backend.cancel([])
    slurm_backend.cancel(["7", "8"])
    assert slurm.calls() == ["scancel 7 8"]


@pytest.mark.parametrize(
    ("own", "expected"), [(None, "n1,n2"), ("n[7-9]", "'n[7-9],n1,n2'"), ("FILE", "n5,n6,n1,n2")]
)
def test_nodes_that_failed_are_left_out_beside_the_profiles_own(
    tmp_path: Path, own: str | None, expected: str
) -> None:
    """Which may be a list, or a file of names (`man sbatch`)."""
    listed = tmp_path / "nodes.txt"
    listed.write_text("n5\nn6\n")
    slurm = {} if own is None else {"exclude": own.replace("FILE", str(listed))}
    profile = make_profile(tmp_path, backend="slurm", slurm=slurm)
    directory = PhaseDir(tmp_path / "run1" / "phases" / "small")
    job = Submission(make_phase(profile), directory, avoid=("n1", "n2"))
    assert f"#SBATCH --exclude={expected}" in SlurmBackend(profile, {}).script(job).splitlines()
    listed.unlink()
    if own == "FILE":
        with pytest.raises(Refused, match="cannot be read"):
            SlurmBackend(profile, {}).script(job)


def test_job_that_waited_for_too_long_is_cancelled_only_while_it_waits(slurm: FakeSlurm) -> None:
    """Slurm decides whether it has started."""
    profile = make_profile(slurm.folder, backend="slurm")
    assert SlurmBackend(profile, slurm.environ).cancel_pending("7")
    assert slurm.calls() == ["scancel --state=PENDING 7"]


def test_step_of_another_process_ends_with_its_allocation(tmp_path: Path, slurm: FakeSlurm) -> None:
    """A later controller of the run, or the one that reaps it, has no srun of its own there."""
    own = backend(tmp_path, slurm.environ)
    shown = "JobId=7 UserId=ann(1001) JobState={} Reason=None NodeList=n[0-3]"
    slurm.answers("scontrol", shown.format("RUNNING"))
    step = "7.small.isolate1"
    assert own.states([step])[step].kind == "running"
    assert not own.cancel([step])  # its allocation is cancelled, as a job of the run
    slurm.answers("scontrol", shown.format("CANCELLED"))
    assert own.states([step])[step] == JobState("ended", "CANCELLED", "with allocation 7")
    slurm.answers("scontrol", err="slurm_load_jobs error: timed out", rc=1)
    assert own.states([step]) == {}


def test_phase_with_an_allocation_is_a_step_of_it(tmp_path: Path, slurm: FakeSlurm) -> None:
    """No job is submitted, and nothing of it is cancelled but the step."""
    profile = make_profile(tmp_path, backend="slurm")
    phase = make_phase(profile, nodes=2, gpus_per_node=2)
    phase = replace(phase, slurm={ALLOCATION: Sourced("7", "test"), **phase.slurm})
    directory = PhaseDir(tmp_path / "run1" / "phases" / "small")
    create_phase(directory, 2)
    write_json(directory.spec, make_spec(phase, profile, directory))
    own, job = SlurmBackend(profile, slurm.environ), Submission(phase, directory)
    assert own.submit(job) == "7.small"
    assert own.cancel_pending("7.small") and own.cancel(["7.small"])
    assert own.states(["7.small"])["7.small"].raw == "CANCELLED"
    assert "sbatch" not in slurm.commands()
    assert "srun --jobid=7 --overlap" in own.script(job)
