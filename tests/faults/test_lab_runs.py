"""A real Slurm refuses, cancels, loses nodes and requeues: each is recognised in time."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from pytest_clustersmoke import lab
from pytest_clustersmoke.evidence.run_directory import read_json
from pytest_clustersmoke.evidence.telemetry import read_events
from pytest_clustersmoke.jobs.job_watch import VERDICT_GRACE_S
from pytest_clustersmoke.lab import Lab
from tests.faults.table.model import SMALL
from tests.faults.watched_phase import WatchedPhase, bring_back
from tests.report.page_samples import dead, links
from tests.support.harness import IDLE, PROGRAMS, Outcome, Suite
from tests.support.labs import running_lab
from tests.support.load import load_factor
from tests.support.waiting import wait_for

pytestmark = pytest.mark.lab

QUEUE_WAIT_S = 25
HOUR_S = 3600
STILL_S = 8.0  # longer than the watch needs to recognise a suspended job
SEEN_WITHIN_S = 5.0
# From the end of a task with an error until Slurm knows of it, through srun.
SLURM_LEARNS_S = 1.5
KNOWN_WITHIN_S = SEEN_WITHIN_S + SLURM_LEARNS_S


def test_refused_job_never_ran_and_the_others_go_on(lab_suite: Suite) -> None:
    """sbatch's own message is shown, and the line of cluster.yaml, which the report has; nothing
    failed, but not all was measured: exit status 6."""
    for name in ("refused", "good"):
        lab_suite.phase(name, script=IDLE)
    lab_suite.profile["phases"]["refused"] = {"slurm": {"partition": "nope"}}
    outcome = lab_suite.run_apart()
    assert outcome.ret == 6, outcome.output
    assert outcome.record()["verdict"] == "INCONCLUSIVE"
    assert outcome.phase("refused")["outcome"] == "never_ran"
    finding = outcome.finding("refused")
    assert finding["id"] == "partition-unknown"
    assert "there is no partition `nope`" in finding["cause"]
    words = "invalid partition specified: nope"
    assert words in finding["evidence"][-1]["text"] and words in outcome.output
    named = {f"phases/refused/{shown['file']}" for shown in finding["evidence"]}
    assert named <= links(outcome.files.report) and dead(outcome.files.report) == []
    assert "phases/refused/settings/cluster.yaml" in named
    assert outcome.phase("good")["outcome"] == "passed"
    criteria = outcome.phase("good")["criteria"].values()
    assert {criterion["result"] for criterion in criteria} == {"passed"}
    assert [event["phase"] for event in outcome.events("submitted")] == ["good"]


@pytest.mark.slow
@pytest.mark.parametrize("fails", [True, False])
def test_second_rung_waits_in_the_queue_for_the_first(fails: bool, lab_suite: Suite) -> None:
    """If the first fails, Slurm never starts the second, and the run does not wait for it."""
    program = PROGRAMS / "ends.py" if fails else IDLE
    args = {**SMALL, "how": "exits-3", "at_rank": 0, "when": "step"} if fails else {"seconds": 1}
    lab_suite.phase("first", script=program, args=args)
    lab_suite.phase("second", script=IDLE, args={"seconds": 1}, after="first")
    outcome = lab_suite.run_apart("--cluster-set", "second.slurm.time=5")
    first, second = (outcome.phase(name) for name in ("first", "second"))
    script = outcome.evidence("second").directory.batch_script.read_text()
    assert f"#SBATCH --dependency=afterok:{first['job_id']}" in script
    if not fails:
        assert outcome.ret == 0, outcome.output
        assert second["started"] >= first["ended"]
        return
    assert outcome.ret == 1, outcome.output
    assert (first["outcome"], second["outcome"]) == ("failed", "never_ran")
    assert second["reason"] == "first failed, and this phase runs only after it has passed"
    assert ended_state(lab_suite, second["job_id"]) == "CANCELLED"
    ended = {event["phase"]: event["time"] for event in outcome.events("ended")}
    assert ended["second"] - ended["first"] < SEEN_WITHIN_S * load_factor()


@pytest.mark.slow
def test_sweep_is_one_array_of_which_each_task_has_a_result(lab_suite: Suite) -> None:
    """One point fails alone. While another runs, a point waits for its turn and not for the queue,
    whose limit is shorter."""
    args = {**SMALL, "how": "exits-3", "when": "step", "at_step": 1}
    sweep = {"at_rank": [1, 0, 2]}  # of one rank, so only 0 fails
    lab_suite.profile["limits"] |= {"max_jobs": 1, "queue_wait_s": 8}
    lab_suite.phase("swept", script=PROGRAMS / "ends.py", args=args, sweep=sweep)
    outcome = lab_suite.run_apart()
    assert outcome.ret == 1, outcome.output
    phases = [outcome.phase(f"swept-at_rank-{rank}") for rank in sweep["at_rank"]]
    assert [phase["outcome"] for phase in phases] == ["passed", "failed", "passed"]
    array = {phase["job_id"].partition("_")[0] for phase in phases}
    assert len(array) == 1
    assert [phase["job_id"] for phase in phases] == [f"{min(array)}_{index}" for index in range(3)]
    assert all(one["ended"] <= next["started"] + 1 for one, next in pairwise(phases))
    assert outcome.finding("swept-at_rank-0")["ranks"] == [0]


@pytest.mark.slow_lab
def test_phases_that_ask_for_the_same_are_one_array(lab_suite: Suite) -> None:
    """Each runs its own program and has a result of its own, and its own job fails alone; squeue
    finds the array by run and token."""
    names = ("one", "two", "three")
    for name in names:
        lab_suite.phase(name, script=IDLE, args={"seconds": 0.1})
    args = {**SMALL, "how": "exits-3", "at_rank": 0, "when": "step", "at_step": 1}
    lab_suite.phase("bad", script=PROGRAMS / "ends.py", args=args)
    lab_suite.profile["limits"] |= {"max_jobs": 2}
    outcome = lab_suite.run_apart()
    assert outcome.ret == 1, outcome.output
    phases = [outcome.phase(name) for name in ("bad", *names)]
    assert [phase["outcome"] for phase in phases] == ["failed", *("passed" for _ in names)]
    (array,) = {phase["job_id"].partition("_")[0] for phase in phases}
    assert sorted(phase["job_id"] for phase in phases) == [f"{array}_{task}" for task in range(4)]
    assert outcome.finding("bad")["ranks"] == [0]
    shown = lab_suite.slurm("squeue", "-h", "-t", "all", "-j", array, "-o", "%j|%k").splitlines()
    token = (read_json(outcome.evidence("one").directory.spec) or {})["token"]
    run_id = outcome.record()["run_id"]
    words = f"clustersmoke-{run_id}-array-{token}|clustersmoke run={run_id} array token={token}"
    assert set(shown) == {words}


def test_failing_setup_line_is_named(lab_suite: Suite) -> None:
    """The finding has the line and its status; the launcher never ran."""
    lab_suite.profile["setup"] = ["true", "ls /nowhere-at-all", "touch never-made"]
    lab_suite.phase("small", script=IDLE)
    outcome = lab_suite.run_apart()
    assert outcome.ret == 1, outcome.output
    finding = outcome.finding("small")
    assert finding["id"] == "setup-line-failed"
    assert "`ls /nowhere-at-all`" in finding["cause"] and "status 2" in finding["cause"]
    assert "/nowhere-at-all" in finding["evidence"][-1]["text"]
    assert not outcome.evidence("small").directory.claim.exists()


@pytest.mark.parametrize(
    ("python", "identity", "words"),
    [
        ("/usr/bin/python3", "package-missing-on-node", "pytest_clustersmoke"),
        ("/nowhere/bin/python3", "python-missing-on-node", "/nowhere/bin/python3"),
    ],
)
def test_interpreter_without_the_package_is_named(
    python: str, identity: str, words: str, lab_suite: Suite
) -> None:
    """The finding says which package the node's interpreter lacks, or that there is none."""
    lab_suite.profile["python"] = python
    lab_suite.phase("small", script=IDLE)
    outcome = lab_suite.run_apart()
    assert outcome.ret == 1, outcome.output
    finding = outcome.finding("small")
    assert finding["id"] == identity, finding
    assert words in finding["cause"]


def ended_state(suite: Suite, job: str) -> str:
    """The job's state in Slurm, once it is final."""

    def look() -> str | None:
        state = suite.slurm("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").strip()
        return state if state not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING") else None

    return wait_for(f"the end of job {job}", look)


@pytest.fixture(scope="module")
def struck(
    tmp_path_factory: pytest.TempPathFactory, faults_lab: Lab
) -> Iterator[tuple[Outcome, dict[str, WatchedPhase]]]:
    """One run of phases that all train at once; then each is struck in its own way."""
    marker = f"CLUSTERSMOKE_TEST_STRUCK_{os.getpid()}"
    suite = Suite(tmp_path_factory.mktemp("struck"), marker, real_torchrun=True)
    suite.use_slurm(faults_lab.slurm_conf)
    suite.profile["limits"] |= {"queue_wait_s": QUEUE_WAIT_S}
    suite.profile["phases"]["waits"] = {"slurm": {"begin": "now+1hour"}}
    # Exclusive, so that no other phase is lost with the node.
    suite.profile["phases"]["node_lost"] = {"slurm": {"exclusive": True}}
    suite.phase("waits", script=IDLE)
    single = {name: WatchedPhase.idle(suite, name) for name in ("scancelled", "requeued")}
    double = {
        name: WatchedPhase.idle(suite, name, nodes=2) for name in ("node_lost", "launcher_killed")
    }
    phases = single | double
    with suite.started() as running:
        for phase in phases.values():
            phase.wait()
        strike_through_slurm(suite, phases)
        lost = phases["node_lost"]
        down = lost.node_name(1)
        state = ("state=down", "reason=staged")
        lost.strike(lambda: suite.slurm("scontrol", "update", f"nodename={down}", *state))
        outcome = running.wait()
        bring_back(suite, down)
    yield outcome, phases


def strike_through_slurm(suite: Suite, phases: dict[str, WatchedPhase]) -> None:
    """Cancel one job by hand, kill the launcher of another on one node, requeue a third."""
    job = phases["scancelled"].job
    phases["scancelled"].strike(lambda: suite.slurm("scancel", job))
    pid = phases["launcher_killed"].pid("claim", node=1)
    phases["launcher_killed"].strike(lambda: os.kill(pid, signal.SIGKILL))
    requeued = phases["requeued"]
    suite.slurm("scontrol", "update", f"jobid={requeued.job}", "requeue=1")
    requeued.strike(lambda: suite.slurm("scontrol", "requeue", requeued.job))


Struck = tuple[Outcome, dict[str, WatchedPhase]]


def test_job_cancelled_by_hand_is_not_a_failure(struck: Struck) -> None:
    """Its outcome is `cancelled`, seen within 5 s, whatever its ranks wrote as they were ended."""
    outcome, phases = struck
    phase = outcome.phase("scancelled")
    assert (phase["outcome"], phase["scheduler_state"]) == ("cancelled", "CANCELLED")
    assert outcome.finding("scancelled")["id"] == "cancelled-by-other"
    assert phases["scancelled"].seen_after_s() < KNOWN_WITHIN_S * load_factor()


def test_lost_node_is_a_failure_of_the_cluster(struck: Struck) -> None:
    """NODE_FAIL makes the outcome `cluster_failed`, though the ranks were only terminated."""
    outcome, phases = struck
    phase = outcome.phase("node_lost")
    assert (phase["outcome"], phase["scheduler_state"]) == ("cluster_failed", "NODE_FAIL")
    finding = outcome.finding("node_lost")
    assert finding["id"] == "node-down"
    assert finding["hosts"] == [phases["node_lost"].node_name(1)]
    assert phases["node_lost"].seen_after_s() < KNOWN_WITHIN_S * load_factor()


def test_killed_launcher_fails_the_job_and_names_the_node(struck: Struck) -> None:
    """srun ends the other node; the job fails, and the node without a result is named."""
    outcome, phases = struck
    phase = outcome.phase("launcher_killed")
    assert (phase["outcome"], phase["scheduler_state"]) == ("failed", "FAILED")
    node = phases["launcher_killed"].node_name(1)
    assert f"the launcher on {node} was killed (SIGKILL)" in phase["reason"], phase["reason"]
    assert outcome.finding("launcher_killed")["hosts"] == [node]
    assert phases["launcher_killed"].seen_after_s() < KNOWN_WITHIN_S * load_factor()


def test_requeued_job_is_preempted_and_removed_from_the_queue(struck: Struck) -> None:
    """A phase runs at most once: pytest does not wait for it again."""
    outcome, phases = struck
    phase = outcome.phase("requeued")
    assert (phase["outcome"], phase["scheduler_state"]) == ("preempted", "PENDING")
    assert outcome.finding("requeued")["id"] == "requeued"
    assert ended_state(phases["requeued"].suite, phases["requeued"].job) == "CANCELLED"


@pytest.mark.slow
def test_suspended_job_has_not_hung_and_is_not_measured(lab_suite: Suite) -> None:
    """Its ranks stand still for longer than their limit, then go on; their times do not count."""
    lab_suite.phase("small", script=IDLE, args={"seconds": 4})
    with lab_suite.started(
        "--cluster-set", f"small.stage_limits_s.train_step={STILL_S - 2:g}"
    ) as run:
        phase = WatchedPhase(lab_suite, "small")
        phase.wait()
        lab_suite.slurm("scontrol", "suspend", phase.job)
        time.sleep(STILL_S)
        assert lab_suite.slurm("squeue", "-h", "-j", phase.job, "-o", "%T").strip() == "SUSPENDED"
        lab_suite.slurm("scontrol", "resume", phase.job)
        outcome = run.wait(180)
    assert outcome.ret == 6, outcome.output
    assert outcome.phase("small")["outcome"] == "preempted"
    finding = outcome.finding("small")
    assert finding["id"] == "job-suspended"
    (still,) = re.findall(r"suspended for (\d+) s", finding["cause"])
    assert STILL_S - 1 <= int(still) < STILL_S + 30
    assert finding["hosts"] == [outcome.evidence("small").nodes[0].name]
    assert [item["text"].split()[:2] for item in finding["evidence"]] == [["paused", "for"]]


@pytest.mark.slow
def test_requeued_job_without_a_controller_is_refused_by_its_claim(lab_suite: Suite) -> None:
    """After pytest was killed, Slurm starts the job a second time: it fails at once, and its ranks
    do not train again."""
    phase = WatchedPhase.idle(lab_suite, "small")
    with lab_suite.started() as running:
        phase.wait()
        running.process.kill()
    directory = lab_suite.run_dir().phase("small")
    lab_suite.slurm("scontrol", "update", f"jobid={phase.job}", "requeue=1")
    lab_suite.slurm("scontrol", "requeue", phase.job)
    phase.wait_for_second_start()
    assert ended_state(lab_suite, phase.job) == "FAILED"
    assert phase.job in directory.started_again.read_text()
    assert len(list(read_events(directory.rank_events(0)).named("start"))) == 1


def test_job_that_waits_too_long_is_removed_from_the_queue(
    struck: Struck,
) -> None:
    """After `queue_wait_s` it is cancelled, and the reason names the limit."""
    outcome, phases = struck
    phase = outcome.phase("waits")
    assert phase["outcome"] == "never_ran"
    assert f"did not start within {QUEUE_WAIT_S} s" in phase["reason"]
    assert phases["node_lost"].suite.slurm("squeue", "-h", "-o", "%j").count("waits") == 0


def test_reason_and_estimated_start_are_reported_while_a_job_waits(struck: Struck) -> None:
    """The log says once what the job waits for, and the record when it might start."""
    outcome, _ = struck
    lines = [line.strip() for line in outcome.output.splitlines()]
    assert [line for line in lines if line.startswith("waits: pending")] == [
        "waits: pending: BeginTime"
    ]
    phase = outcome.phase("waits")
    assert (
        phase["submitted"] + HOUR_S - 120
        < phase["estimated_start"]
        < phase["submitted"] + 2 * HOUR_S
    )


def test_failure_beside_unmeasured_phases_makes_the_cluster_unfit(struck: Struck) -> None:
    """UNFIT beats INCONCLUSIVE, and no process of the run is left on any node."""
    outcome, phases = struck
    assert outcome.ret == 1, outcome.output
    assert outcome.record()["verdict"] == "UNFIT"
    marker = phases["node_lost"].suite.marker.encode()

    def left() -> list[str]:
        pids = []
        for entry in Path("/proc").glob("[0-9]*/environ"):
            try:
                if marker in entry.read_bytes():
                    pids.append(entry.parent.name)
            except OSError:
                continue
        return pids

    wait_for("the end of every process of the run", lambda: not left())


@pytest.mark.slow_lab
def test_killed_slurmstepd_is_named_with_its_host_and_leaves_no_process(lab_suite: Suite) -> None:
    """Nothing of Slurm's ends that node's processes then, so the node does."""
    phase = WatchedPhase.idle(lab_suite, "small", nodes=2)
    with lab_suite.started() as running:
        phase.wait()
        task = psutil.Process(phase.pid("claim", node=1))
        (daemon,) = [each for each in task.parents() if each.name().startswith("slurmstepd")]
        phase.strike(daemon.kill)
        outcome = running.wait(180)
    assert outcome.ret == 1, outcome.output
    finding = outcome.finding("small")
    assert (finding["id"], finding["hosts"]) == ("slurmstepd-died", [phase.node_name(1)])
    assert outcome.record()["phases"][0]["outcome"] == "cluster_failed"
    assert f"slurmstepd (pid {daemon.pid} on host " in finding["cause"]
    assert phase.seen_after_s() < SEEN_WITHIN_S * load_factor() + VERDICT_GRACE_S


@pytest.mark.slow_lab
def test_dead_job_is_seen_within_five_seconds_with_accounting(
    tmp_path: Path, leftovers: tuple[str, Callable[[], list[str]]]
) -> None:
    """A launcher is killed on a lab with slurmdbd; sacct lags behind."""
    settings = lab.LabSettings(name="faults-acct", nodes=2, accounting=True)
    with running_lab(settings) as running_slurm:
        suite = Suite(tmp_path, leftovers[0], real_torchrun=True)
        suite.use_slurm(running_slurm.slurm_conf)
        phase = WatchedPhase.idle(suite, "launcher_killed", nodes=2)
        with suite.started() as running:
            phase.wait()
            pid = phase.pid("claim", node=1)
            phase.strike(lambda: os.kill(pid, signal.SIGKILL))
            outcome = running.wait(60)
        assert outcome.ret == 1, outcome.output
        record = outcome.phase("launcher_killed")
        assert (record["outcome"], record["scheduler_state"]) == ("failed", "FAILED")
        assert phase.seen_after_s() < KNOWN_WITHIN_S * load_factor()
