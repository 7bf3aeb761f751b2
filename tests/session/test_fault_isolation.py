"""`--cluster-isolate` on a real Slurm of four nodes, one of which is bad."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke import lab
from pytest_clustersmoke.config.marker import JOB
from pytest_clustersmoke.evidence.metric import BETWEEN
from pytest_clustersmoke.evidence.phase_result import collect_phase
from pytest_clustersmoke.evidence.run_counts import CriterionRecord, PhaseTally
from pytest_clustersmoke.session.fault_isolation import (
    find_symptom,
    judge_transports,
    list_good,
)
from pytest_clustersmoke.session.group_tests import FAILED, NO_ANSWER, PASSED
from tests.support.evidence import Evidence, make_profile
from tests.support.harness import TRAIN, Outcome, Suite, properties
from tests.support.killed import KILLER, attach
from tests.support.labs import kill_daemon, running_lab
from tests.support.nccl_phase import EXPECT, Job, swap
from tests.support.waiting import wait_for

# By the file `plan`, beside it: fails on the nodes `bad`, is slow on `slow`, and never ends on
# `waits` in the phase's own job, on `hangs` in a test of the isolation.
PROGRAM = f"""
import json, os, runpy, sys, time
from pathlib import Path

plan = json.loads(Path(__file__).with_name("plan").read_text())
node = os.environ["SLURMD_NODENAME"]
is_test = ".isolate" in os.environ["CLUSTERSMOKE_PHASE_DIR"]
while node in plan["hangs" if is_test else "waits"]:
    time.sleep(0.1)
if node in plan["bad"]:
    sys.exit("staged: this node is bad")
slow = os.environ["RANK"] if node in plan["slow"] else "-1"
sys.argv[1:] = ["--slow", slow]
sys.path.insert(0, str(Path({str(TRAIN)!r}).parent))
runpy.run_path({str(TRAIN)!r}, run_name="__main__")
"""
JUDGED = """
def test_no_rank_falls_behind(self, phase):
    from pytest_clustersmoke.criteria import stragglers
    stragglers.check_stragglers(phase)
"""
# Slurm ends the allocation as soon as it is granted.
ENDS_ALLOCATION = """
import subprocess
from pytest_clustersmoke.jobs.node_hold import NodeHold

ask = NodeHold.ask

def ask_and_end(self, within_s, lasts_s):
    why = ask(self, within_s, lasts_s)
    subprocess.run(["scancel", self.job_id], env=self._client.environ, check=True)
    return why

NodeHold.ask = ask_and_end
"""
# The job of the allocation may start tomorrow only, and 5 s of an hour are left for it.
KEEPS_PENDING = """
from pytest_clustersmoke.jobs.node_hold import NodeHold
from pytest_clustersmoke.session import isolation_place

isolation_place.WAIT_SHARE = 5 / 3600
script = NodeHold.script

def script_of_tomorrow(self, minutes):
    return script(self, minutes).replace("#SBATCH", "#SBATCH --begin=now+1day\\n#SBATCH", 1)

NodeHold.script = script_of_tomorrow
"""


@pytest.fixture(scope="module")
def own_lab() -> Iterator[lab.Lab]:
    with running_lab(lab.LabSettings(name="isolate", nodes=4)) as running:
        yield running


@pytest.fixture
def lab_suite(
    tmp_path: Path, leftovers: tuple[str, Callable[[], list[str]]], own_lab: lab.Lab
) -> Suite:
    """An empty suite on that Slurm, with a fake torchrun."""
    return make_suite(tmp_path, leftovers[0], own_lab)


def make_suite(path: Path, marker: str, running: lab.Lab) -> Suite:
    suite = Suite(path, marker)
    suite.use_slurm(running.slurm_conf)
    suite.profile["limits"] |= {"poll_s": 0.3}
    return suite


def add_phase(suite: Suite, nodes: int = 4, name: str = "wide", **marker: Any) -> None:
    """A phase on nodes some of which are to misbehave (PROGRAM)."""
    plan = {key: list(marker.pop(key, ())) for key in ("bad", "slow", "waits", "hangs")}
    script = suite.path / f"{name}.py"
    script.write_text(PROGRAM)
    script.with_name("plan").write_text(json.dumps(plan))
    suite.phase(name, JUDGED, script=str(script), nodes=nodes, **marker)


def find_answer(outcome: Outcome, name: str = "wide") -> dict[str, Any]:
    """The finding of the phase's job that says what was isolated."""
    (found,) = [each for each in outcome.phase(name)["findings"] if each["id"] == "isolated"]
    return dict(found)


def wait_for_empty_queue(suite: Suite) -> None:
    """No job of an isolation is left: each is cancelled, or ends by itself where scancel was too
    slow. Silence alone would end it later than this waits."""
    queue = ("squeue", "-h", "-t", "PENDING,RUNNING", "-o", "%i")
    wait_for("the queue to be empty", lambda: not suite.slurm(*queue).split())


def read_tests(run: Path, name: str = "wide") -> dict[str, Any]:
    """isolation.json, in the directory of a run or of a report."""
    written = json.loads((run / f"phases/{name}/isolation/isolation.json").read_text())
    return dict(written)


@pytest.mark.lab
def test_node_on_which_ranks_die_is_named(lab_suite: Suite, own_lab: lab.Lab) -> None:
    """The phase stays failed; finding, JUnit, terminal and the record of the tests name the node,
    and no other record has the tests. A phase that cannot shrink says so."""
    bad = own_lab.nodes[2]
    add_phase(lab_suite, bad=[bad])
    lab_suite.phase("fixed", script=str(TRAIN), nodes=2, nodes_fixed=True, args={"fail": True})
    outcome = lab_suite.run_apart("--cluster-isolate")
    assert outcome.ret == 1, outcome.output
    assert find_answer(outcome)["hosts"] == [bad]
    assert outcome.phase("wide")["outcome"] == "failed"
    cases = properties(outcome.files.report / "junit.xml")
    assert cases["test_wide.TestWide::job"]["isolated"] == bad
    assert cases["test_fixed.TestFixed::job"]["isolated"] == "not isolated"
    assert "fixed needs 2 nodes (nodes_fixed)" in find_answer(outcome, "fixed")["cause"]
    assert f"wide: isolated: {bad}" in outcome.output
    assert "wide: 4 nodes; at most 64 tests and 60 minutes, 8 at a time" in outcome.output
    written = read_tests(outcome.files.report)
    assert written["ended"] and written["answer"]["nodes"] == [bad]
    held = written["allocation"]["job_id"]
    assert held and f"tests are steps of job {held}, which holds 4 nodes" in outcome.output
    assert {test["job_id"].partition(".")[0] for test in written["tests"]} == {held}
    wait_for_empty_queue(lab_suite)
    assert {phase["phase"] for phase in outcome.record()["phases"]} == {"wide", "fixed"}
    for test in written["tests"]:
        assert (test["result"] == "failed") == (bad in test["nodes"])
        name = f"wide.isolate{test['number']}"
        assert (outcome.files.report / "phases/wide/isolation" / name / "spec.json").is_file()


@pytest.mark.lab
@pytest.mark.slow
def test_slow_node_is_named_by_each_ranks_own_work(lab_suite: Suite, own_lab: lab.Lab) -> None:
    """Its job passes, and a criterion fails; groups are compared with those of their round."""
    slow = own_lab.nodes[1]
    add_phase(lab_suite, slow=[slow])
    outcome = lab_suite.run_apart("--cluster-isolate")
    assert outcome.ret == 1, outcome.output
    assert outcome.phase("wide")["outcome"] == "passed"
    assert find_answer(outcome)["hosts"] == [slow]
    results = {test["result"] for test in read_tests(outcome.files.report)["tests"]}
    assert results == {"passed", "slow"}


@pytest.mark.lab
@pytest.mark.slow
def test_interrupted_isolation_keeps_what_is_known(lab_suite: Suite, own_lab: lab.Lab) -> None:
    """An interrupt ends its jobs; the finding says that it was interrupted, and names nothing."""
    add_phase(lab_suite, bad=[own_lab.nodes[2]])
    with lab_suite.started("--cluster-isolate") as running:
        running.wait_for("a second round", lambda: "wide.isolate3: running" in running.output())
        running.interrupt()
        outcome = running.wait()
    assert outcome.ret == pytest.ExitCode.INTERRUPTED, outcome.output
    assert "interrupted after" in find_answer(outcome)["cause"]
    written = read_tests(outcome.files.report)
    assert not written["ended"] and written["tests"][0]["result"] == "failed"
    wait_for_empty_queue(lab_suite)


@pytest.mark.lab
@pytest.mark.slow
def test_attached_run_goes_on_from_the_tests_that_are_done(
    lab_suite: Suite, own_lab: lab.Lab
) -> None:
    """No test that ended runs again, and the answer is that of a whole run. The allocation of the
    controller before ends by itself, since the run has another one."""
    bad = own_lab.nodes[2]
    add_phase(lab_suite, bad=[bad])
    (lab_suite.path / "conftest.py").write_text(KILLER)
    with lab_suite.started("--cluster-isolate", KILL_AT="submitted:5") as running:
        assert running.process.wait(120) == -signal.SIGKILL, running.output()
    before = read_tests(lab_suite.run_dir().root)["tests"]
    outcome = attach(lab_suite, "--cluster-isolate")
    assert outcome.ret == 1, outcome.output
    assert find_answer(outcome)["hosts"] == [bad]
    after = read_tests(outcome.files.report)["tests"]
    done = [test["job_id"] for test in before if test["result"]]
    assert done and [test["job_id"] for test in after][: len(done)] == done
    held = {test["job_id"].partition(".")[0] for test in after}
    assert len(held) == 2  # one before the controller was killed, and one after


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.parametrize("event", ["allocation:1", "allocation:2"])
def test_run_that_was_killed_with_its_allocation_goes_on(
    lab_suite: Suite, own_lab: lab.Lab, event: str
) -> None:
    """Before it asked for the nodes, and once it had them. The node is named, and nothing of either
    controller is left in the queue."""
    bad = own_lab.nodes[2]
    add_phase(lab_suite, bad=[bad])
    (lab_suite.path / "conftest.py").write_text(KILLER)
    with lab_suite.started("--cluster-isolate", KILL_AT=event) as running:
        assert running.process.wait(120) == -signal.SIGKILL, running.output()
    outcome = attach(lab_suite, "--cluster-isolate")
    assert outcome.ret == 1, outcome.output
    assert find_answer(outcome)["hosts"] == [bad]
    wait_for_empty_queue(lab_suite)


@pytest.mark.lab
@pytest.mark.slow
def test_reaped_run_leaves_no_allocation(lab_suite: Suite, own_lab: lab.Lab) -> None:
    """Its job has the run's words, as any other."""
    add_phase(lab_suite, bad=[own_lab.nodes[2]])
    (lab_suite.path / "conftest.py").write_text(KILLER)
    with lab_suite.started("--cluster-isolate", KILL_AT="submitted:3") as running:
        assert running.process.wait(120) == -signal.SIGKILL, running.output()
    outcome = lab_suite.run_apart("--cluster-reap", lab_suite.run_dir().run_id)
    assert outcome.ret == 0, outcome.output
    wait_for_empty_queue(lab_suite)


@pytest.mark.lab
@pytest.mark.slow
def test_tests_are_jobs_once_their_allocation_has_ended(lab_suite: Suite, own_lab: lab.Lab) -> None:
    """What steps ended with it says nothing of their nodes: it is run again, and the bad node is
    named."""
    bad = own_lab.nodes[2]
    add_phase(lab_suite, bad=[bad], waits=[], hangs=[])
    (lab_suite.path / "conftest.py").write_text(ENDS_ALLOCATION)
    outcome = lab_suite.run_apart("--cluster-isolate")
    assert outcome.ret == 1, outcome.output
    assert find_answer(outcome)["hosts"] == [bad]
    written = read_tests(outcome.files.report)
    assert written["allocation"] == {"job_id": "", "why_none": "the allocation ended"}
    assert all("." not in test["job_id"] for test in written["tests"])


@pytest.mark.lab
@pytest.mark.slow
def test_tests_are_jobs_where_no_allocation_is_granted_in_time(
    lab_suite: Suite, own_lab: lab.Lab
) -> None:
    """Slurm's reason is said, and its job is cancelled."""
    bad = own_lab.nodes[1]
    add_phase(lab_suite, bad=[bad])
    (lab_suite.path / "conftest.py").write_text(KEEPS_PENDING)
    outcome = lab_suite.run_apart("--cluster-isolate")
    assert outcome.ret == 1, outcome.output
    assert find_answer(outcome)["hosts"] == [bad]
    assert "did not start within 5 s" in outcome.output
    assert "did not start within 5 s" in read_tests(outcome.files.report)["allocation"]["why_none"]
    wait_for_empty_queue(lab_suite)


@pytest.mark.lab
@pytest.mark.slow
def test_budget_of_the_command_line_ends_the_tests(lab_suite: Suite, own_lab: lab.Lab) -> None:
    add_phase(lab_suite, bad=[own_lab.nodes[2]])
    outcome = lab_suite.run_apart("--cluster-isolate", "--cluster-isolate-budget", "3:60")
    assert outcome.ret == 1, outcome.output
    assert "at most 3 tests and 60 minutes" in outcome.output
    assert len(read_tests(outcome.files.report)["tests"]) == 3
    answer = find_answer(outcome)
    assert "the budget of 3 tests is spent" in answer["cause"] and answer["hosts"] == []


@pytest.mark.lab
@pytest.mark.slow
def test_tests_that_run_when_the_minutes_are_over_are_ended(
    lab_suite: Suite, own_lab: lab.Lab
) -> None:
    """The finding says so, and no job is left."""
    add_phase(lab_suite, bad=own_lab.nodes[:1], hangs=own_lab.nodes)
    outcome = lab_suite.run_apart("--cluster-isolate", "--cluster-isolate-budget", "64:0.1")
    assert outcome.ret == 1, outcome.output
    assert "the time for isolation is over" in find_answer(outcome)["cause"]
    (test,) = read_tests(outcome.files.report)["tests"]
    assert (test["result"], test["outcome"]) == ("no answer", "cancelled")
    wait_for_empty_queue(lab_suite)


@pytest.mark.lab
@pytest.mark.slow
def test_workers_of_xdist_get_the_same_answer(lab_suite: Suite, own_lab: lab.Lab) -> None:
    bad = own_lab.nodes[0]
    add_phase(lab_suite, bad=[bad])
    outcome = lab_suite.run_apart("--cluster-isolate", "-n", "2")
    assert outcome.ret == 1, outcome.output
    assert find_answer(outcome)["hosts"] == [bad]


@pytest.mark.lab
@pytest.mark.slow_lab
def test_slow_dying_and_unreachable_nodes_of_sixteen_are_named(
    tmp_path: Path, leftovers: tuple[str, Callable[[], list[str]]]
) -> None:
    """One after the other, on one lab; Slurm's own word names the one whose slurmd is gone."""
    settings = lab.LabSettings(name="isolate16", nodes=16, cpus_per_node=2)
    with running_lab(settings) as running_one:
        for number, kind in enumerate(("bad", "slow", "waits")):
            folder = tmp_path / kind
            folder.mkdir()
            suite = make_suite(folder, leftovers[0], running_one)
            node = running_one.nodes[3 + 5 * number]
            add_phase(suite, 16, **{kind: [node]})  # type: ignore[arg-type]
            with suite.started("--cluster-isolate") as running:
                if kind == "waits":
                    running.wait_for_ranks("wide", 15)
                    kill_daemon(running_one, f"slurmd-{node}")
                outcome = running.wait(600)
            assert outcome.ret == 1, outcome.output
            assert find_answer(outcome)["hosts"] == [node], outcome.output


@pytest.mark.parametrize(
    ("failed", "symptom"),
    [
        ({"job": ""}, JOB),
        ({"test_links": BETWEEN}, BETWEEN),
        ({"test_no_rank_falls_behind": "stragglers"}, "stragglers"),
        ({"test_checkpoint": "", "test_memory": "references"}, ""),
    ],
    ids=["job", "transports", "slow rank", "nothing that a node or link causes"],
)
def test_only_what_nodes_or_links_can_cause_is_isolated(
    failed: dict[str, str], symptom: str
) -> None:
    criteria = {
        name: CriterionRecord.of("failed", "staged", judged=kind) for name, kind in failed.items()
    }
    passed = {"test_other": CriterionRecord.of("passed", judged="stragglers")}
    assert find_symptom({**passed, **criteria}) == symptom
    known = {name: CriterionRecord.of("known", "staged", judged=BETWEEN) for name in failed}
    assert find_symptom(known) == ""


def test_nodes_of_a_phase_with_a_failed_criterion_are_not_known_as_good(tmp_path: Path) -> None:
    """Its job passed, but its nodes may be why the criterion failed: they prove nothing."""
    results, tallies = {}, {}
    for name, kind in (("fit", ""), ("slow", BETWEEN)):
        result = collect_phase(Evidence(tmp_path / name, nodes=2).done().dir)
        job = {"outcome": "passed", "scheduler_nodes": f"{name}[0-1]"}
        results[name] = replace(result, job=job)
        failed = {"test_link": CriterionRecord.of("failed", "staged", judged=kind)} if kind else {}
        tallies[name] = PhaseTally(criteria=failed)
    assert list_good(results, tallies) == ["fit0", "fit1"]


@pytest.mark.parametrize(
    ("edges", "backend", "result"),
    [({}, "nccl", PASSED), ({(1, 2): "NET/Socket/0"}, "nccl", FAILED), ({}, "gloo", NO_ANSWER)],
    ids=["as expected", "sockets between two nodes", "nothing logged"],
)
def test_group_is_judged_by_the_transports_between_its_nodes(
    tmp_path: Path, edges: dict[tuple[int, int], str | None], backend: str, result: str
) -> None:
    job = Job(2, 2)
    job.wording = swap(job, edges)
    evidence = job.stage(tmp_path, backend=backend, silent=() if backend == "nccl" else range(4))
    profile = make_profile(tmp_path, expect={"small": EXPECT})
    assert judge_transports(evidence.result(profile)) == result


def test_isolation_is_refused_where_no_phase_can_be_pinned(suite: Suite) -> None:
    """A usage error, as with options under which no phase is judged."""
    suite.phase("small", nodes=2)
    (line,) = suite.refused("--cluster-isolate")
    assert "the backend of one cannot" in line and "a profile with `backend: slurm`" in line
    for other in ("--cluster-prove", "--cluster-screen", "--cluster-detach"):
        line = suite.refused("--cluster-isolate", other)[0]
        assert f"--cluster-isolate and {other} exclude each other" in line
    (line,) = suite.refused("--cluster-isolate-budget", "8:10")
    assert line == "--cluster-isolate-budget needs --cluster-isolate"
    assert "expected a number of tests and one of minutes" in "".join(
        suite.refused("--cluster-isolate", "--cluster-isolate-budget", "many")
    )
