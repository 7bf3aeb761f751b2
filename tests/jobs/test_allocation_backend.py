"""Phases as steps of an allocation (Slurm's commands are fakes here, srun one that waits)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.config.profile import Profile
from pytest_clustersmoke.evidence.run_directory import (
    PhaseDir,
    create_phase,
    write_atomically,
    write_json,
)
from pytest_clustersmoke.evidence.scheduler_record import JobState
from pytest_clustersmoke.jobs import allocation_backend
from pytest_clustersmoke.jobs.allocation_backend import AllocationBackend
from pytest_clustersmoke.jobs.backend import Submission, make_spec
from pytest_clustersmoke.jobs.outcome import NOT_STARTED, OUT_OF_TIME
from tests.fakes.slurm import FakeSlurm
from tests.support.evidence import make_phase, make_profile
from tests.support.waiting import PATIENCE_S, wait_for

SHOWN = (
    "JobId=7 UserId=ann(1001) JobState={} Reason=None EndTime=Unknown NodeList=n[0-3] "
    " Nodes=n[0-3] CPU_IDs=0-7 Mem=0 GRES=gpu:8 "
)
# Ends like srun after `scancel`: it says so, and passes on what its step ended with.
SRUN = """\
#!/bin/sh
env > "$FAKE_SLURM/srun.env"
printf '%s\\n' "srun $*" >> "$FAKE_SLURM/calls"
while [ ! -e "$FAKE_SLURM/srun.end" ]; do sleep 0.02; done
cat "$FAKE_SLURM/srun.end" >&2
[ ! -s "$FAKE_SLURM/srun.end" ]
"""


class Phases:
    """A backend in allocation 7 of four nodes, of which a step of the user's holds one."""

    def __init__(self, slurm: FakeSlurm, profile: Profile, folder: Path) -> None:
        self.slurm, self.profile, self.folder = slurm, profile, folder
        environ = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "9", "SLURM_STEP_ID": "0"}
        self.backend = AllocationBackend(profile, {**slurm.environ, **environ})
        self.show()

    def show(self, state: str = "RUNNING", steps: str = "7.0|n[0-3]|bash\n7.1|n0|own\n") -> None:
        self.slurm.answers("scontrol", SHOWN.format(state))
        self.slurm.answers("squeue", steps)

    def directory(self, name: str = "small") -> PhaseDir:
        return PhaseDir(self.folder / "run1" / "phases" / name)

    def submit(self, nodes: int = 2, name: str = "small") -> str:
        phase = make_phase(self.profile, name, nodes=nodes, gpus_per_node=2)
        directory = self.directory(name)
        create_phase(directory, nodes)
        write_json(directory.spec, make_spec(phase, self.profile, directory))
        return self.backend.submit(Submission(phase, directory))

    def state(self, job: str) -> JobState:
        return self.backend.states([job])[job]

    def end(self, log: str) -> None:
        write_atomically(self.slurm.folder / "srun.end", log)

    def ended(self, job: str) -> JobState:
        def look() -> JobState | None:
            state = self.backend.states([job]).get(job)
            return state if state is not None and state.kind == "ended" else None

        return wait_for("the end", look)

    def calls(self, name: str) -> list[str]:
        return [call for call in self.slurm.calls() if call.startswith(f"{name} ")]


@pytest.fixture
def phases(tmp_path: Path) -> Iterator[Phases]:
    slurm = FakeSlurm(tmp_path)
    srun = tmp_path / "bin" / "srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    slurm_options = {"partition": "p", "cpus_per_task": 4, "exclusive": True}
    named: dict[str, Any] = {"phases": dict.fromkeys(("small", "next"))}
    profile = make_profile(
        tmp_path, backend="slurm", slurm=slurm_options, setup=["module load x"], **named
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", slurm.environ["PATH"])
        yield Phases(slurm, profile, tmp_path)
    if not (slurm.folder / "srun.end").exists():
        (slurm.folder / "srun.end").touch()


def test_step_is_pinned_to_free_nodes(phases: Phases) -> None:
    """Not to that of the user's own step; the step of the shell in which pytest runs is none. The
    options are those of a job's srun, and an outer job's variables do not count."""
    job = phases.submit()
    assert job == "7.small"
    state = phases.state(job)
    assert (state.kind, state.nodes) == ("running", "n1,n2")
    words = wait_for("srun", lambda: phases.calls("srun"))[0].split()
    end = words.index("bash")
    assert words[-1] == "phases/small/batch.sh"
    assert words[1:end] == [
        *("--jobid=7", "--overlap", "--job-name=clustersmoke-run1-small"),
        *("--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--nodelist=n1,n2"),
        *("--export=ALL", "--kill-on-bad-exit=1", "--unbuffered", "--input=none"),
        *("--cpus-per-task=4", "--gpus-per-node=2"),
    ]
    assert "SLURM_NTASKS" not in (phases.slurm.folder / "srun.env").read_text()
    script = phases.directory().batch_script.read_text()
    assert "--nodelist=n1,n2" in script and "\nmodule load x\n" in script


def test_phase_waits_until_enough_nodes_are_free(phases: Phases) -> None:
    """In the order of submission; its wait ends once the step before it has ended."""
    first, second = phases.submit(), phases.submit(name="next")
    states = phases.backend.states([first, second])
    assert (states[first].kind, states[second].kind) == ("running", "pending")
    assert states[second].reason == "too few nodes of the allocation are free"
    phases.end("")
    assert phases.ended(first).raw == "COMPLETED"
    state = phases.ended(second)
    assert state.raw == "COMPLETED" and state.nodes == "n1,n2"
    assert state.submitted is not None and state.started is not None
    assert state.started >= state.submitted


@pytest.mark.parametrize(
    ("log", "allocation", "raw", "reason"),
    [
        ("srun: error: n1: task 0: Exited with exit code 3\n", "RUNNING", "FAILED", ""),
        ("srun: Job step aborted: Waiting", "RUNNING", "CANCELLED", "only this step; allocation 7"),
        ("srun: Job step aborted: Waiting", "CANCELLED", "CANCELLED", "with allocation 7"),
        ("srun: Job step aborted: Waiting", "TIMEOUT", OUT_OF_TIME, "allocation 7 ended"),
        ("srun: Job step aborted: Waiting", "COMPLETED", "CANCELLED", "with allocation 7"),
        ("srun: error: Node failure on n1\n", "RUNNING", "NODE_FAIL", "in allocation 7"),
        ("srun: error: Unable to create step for job 7: More", "RUNNING", NOT_STARTED, "Unable"),
        ("srun: error: Unable to create step for job 7: x", "TIMEOUT", NOT_STARTED, "allocation 7"),
    ],
)
def test_end_of_a_step_is_that_of_its_cause(
    log: str, allocation: str, raw: str, reason: str, phases: Phases
) -> None:
    """A task that failed, a step or an allocation that was ended, a node that was lost."""
    job = phases.submit()
    phases.state(job)
    phases.show(allocation)
    phases.end(log)
    state = phases.ended(job)
    assert state.raw == raw and state.reason.startswith(reason), state


def test_end_of_the_allocation_is_awaited(phases: Phases) -> None:
    """While it completes, nothing says how it ended; then its waiting phases never run."""
    first, second = phases.submit(), phases.submit(name="next")
    phases.backend.states([first, second])
    phases.show("COMPLETING")
    phases.end("srun: Job step aborted: Waiting")
    wait_for("srun's end", lambda: first not in phases.backend.states([first]))
    assert phases.state(second).kind == "pending"
    phases.show("TIMEOUT")
    assert phases.ended(first).raw == OUT_OF_TIME
    state = phases.ended(second)
    assert (state.raw, state.started) == (NOT_STARTED, None)
    assert state.reason == "allocation 7 ended (TIMEOUT) before the phase started"


def test_allocation_that_slurm_forgot_has_ended(phases: Phases) -> None:
    """A phase that waits for it would wait forever; no answer says nothing."""
    job = phases.submit(nodes=4)
    assert phases.state(job).kind == "pending"
    phases.slurm.answers("scontrol", err="Unable to contact slurm controller", rc=1)
    assert phases.backend.states([job]) == {}
    phases.slurm.answers("scontrol", err="slurm_load_jobs error: Invalid job id specified", rc=1)
    assert phases.ended(job).raw == NOT_STARTED


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine may be slow, and then Slurm's commands are slow to answer, and srun to end."""
    for name in ("SILENT_S", "KILLED_WITHIN_S"):
        monkeypatch.setattr(allocation_backend, name, PATIENCE_S)


@pytest.mark.usefixtures("patient")
def test_cancellation_ends_steps_and_never_the_allocation(phases: Phases) -> None:
    """By SIGTERM first; a step that goes on is ended by force, and so is its srun."""
    first, second = phases.submit(), phases.submit(name="next")
    phases.backend.states([first, second])
    wait_for("srun", lambda: phases.calls("srun"))
    phases.show(steps="7.1|n0|own\n7.2|n[1-2]|clustersmoke-run1-small\n")
    assert phases.backend.cancel([first, second])
    assert phases.calls("scancel") == ["scancel --signal=TERM 7.2", "scancel 7.2"]
    assert {phases.ended(job).raw for job in (first, second)} == {"CANCELLED"}
    assert len(phases.calls("srun")) == 1


@pytest.mark.parametrize("command", ["squeue", "scancel"])
def test_cancellation_waits_for_no_silent_slurm(
    phases: Phases, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever command hangs, the sruns are ended within the time that a run takes to end: both
    commands have a limit, and so have their step's ends, by TERM and by KILL."""
    ends_s = allocation_backend.CANCEL_GRACE_S + allocation_backend.KILLED_WITHIN_S
    assert 2 * allocation_backend.SILENT_S + ends_s < 4
    monkeypatch.setattr(allocation_backend, "KILLED_WITHIN_S", PATIENCE_S)  # of a slow machine
    job = phases.submit()
    phases.state(job)
    wait_for("srun", lambda: phases.calls("srun"))
    phases.show(steps="7.2|n[1-2]|clustersmoke-run1-small\n")
    phases.slurm.folder.joinpath(f"{command}.answer").write_text(f"exec sleep {PATIENCE_S}\n")
    began = time.monotonic()
    assert phases.backend.cancel([job])
    assert time.monotonic() - began < PATIENCE_S
    assert not phases.backend._steps[job].runs()


@pytest.mark.usefixtures("patient")
def test_cancellation_needs_no_slurm(phases: Phases) -> None:
    """If Slurm does not answer, srun ends its step."""
    job = phases.submit()
    phases.state(job)
    wait_for("srun", lambda: phases.calls("srun"))
    phases.slurm.answers("squeue", err="Unable to contact slurm controller", rc=1)
    assert phases.backend.cancel([job])
    assert phases.calls("scancel") == []
    assert phases.ended(job).raw == "CANCELLED"


def test_script_of_a_dry_run_has_variables(tmp_path: Path) -> None:
    """Outside of an allocation, for what is not known."""
    profile = make_profile(tmp_path, backend="slurm")
    phase, directory = make_phase(profile, nodes=2), PhaseDir(tmp_path / "run1/phases/small")
    lines = AllocationBackend(profile, {}).script(Submission(phase, directory)).splitlines()
    (srun,) = [line for line in lines if line.startswith("# srun ")]
    assert {"--jobid=$SLURM_JOB_ID", "--nodelist=$NODES", "--overlap"} <= set(srun.split())
    assert not directory.root.exists()
