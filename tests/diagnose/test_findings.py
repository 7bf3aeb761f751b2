"""Findings: the first cause first, each with its evidence and the next step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.diagnose import diagnose, explain_refusal
from pytest_clustersmoke.diagnose.failure_evidence import FailureEvidence
from pytest_clustersmoke.evidence.finding import Finding, find_last_line
from pytest_clustersmoke.evidence.run_directory import write_json
from pytest_clustersmoke.evidence.telemetry import EventWriter
from pytest_clustersmoke.jobs.backend import Refused
from pytest_clustersmoke.jobs.job_watch import WatchedJob
from pytest_clustersmoke.jobs.outcome import Judgement
from pytest_clustersmoke.node.job_entry import MISSING, REFUSAL
from pytest_clustersmoke.session.job_end import judge_end
from tests.diagnose.logs import KILLED, TRACEBACK
from tests.support.evidence import Evidence


def diagnosed(evidence: Evidence, outcome: str = "failed") -> list[Finding]:
    findings = diagnose(evidence.result(), Judgement(outcome, "the reason"))
    assert findings and findings[0].primary
    for finding in findings:
        assert finding.cause and finding.fix
    return findings


def error(message: str = "boom", **fields: Any) -> tuple[str, dict[str, Any]]:
    return "error", {"type": "ValueError", "message": message, "traceback": "tb", **fields}


def test_finding_is_the_same_when_read_from_its_record(tmp_path: Path) -> None:
    """With its evidence, hosts and ranks: a process that adds to the findings of a phase, as the
    isolation does, has their records from memory, not from JSON."""
    evidence = Evidence(tmp_path, nodes=2).started()
    evidence.rank(1, error("unhandled cuda error"))
    for finding in diagnosed(evidence):
        assert finding.evidence and finding.hosts and finding.ranks
        assert Finding.from_record(finding.as_dict()) == finding


def test_failed_setup_line(tmp_path: Path) -> None:
    """The line and its status are the cause."""
    evidence = Evidence(tmp_path)
    evidence.dir.setup_failed.write_text("1\tmodule load cuda\n")
    (finding,) = diagnosed(evidence)
    assert finding.id == "setup-line-failed"
    assert finding.cause == "the setup line `module load cuda` failed with status 1"


@pytest.mark.parametrize(
    ("line", "identity"),
    [
        ("ModuleNotFoundError: No module named 'pytest_clustersmoke'", "package-missing-on-node"),
        ("/opt/python: Error: No module named 'submitit'", "package-missing-on-node"),
        ("batch.sh: line 9: python: command not found", "python-missing-on-node"),
        ("srun: /gone/bin/python3: No such file or directory", "python-missing-on-node"),
        (f"{REFUSAL}/shared/run1 belongs to user 7", "run-directory-not-ours"),
        (f"{REFUSAL}/shared/run1 {MISSING}", "run-directory-missing"),
    ],
)
def test_job_that_never_came_to_its_launcher(tmp_path: Path, line: str, identity: str) -> None:
    """The node's message in the job's log is found, with file and line."""
    evidence = Evidence(tmp_path)
    evidence.dir.submitit.mkdir()
    log = evidence.dir.submitit / "7_0_log.err"
    log.write_text(f"noise\n{line}\n")
    (finding,) = diagnosed(evidence)
    assert finding.id == identity
    assert (finding.evidence[0].file, finding.evidence[0].line) == (str(log), 2)


def test_words_of_another_job_in_the_same_directory_are_no_evidence(tmp_path: Path) -> None:
    """The job of a submission whose answer was lost was withdrawn, and said so in a log of its
    own; the job that followed it died."""
    evidence = Evidence(tmp_path)
    evidence.dir.submitit.mkdir()
    for log, line in (("41_0_log.err", f"{REFUSAL}/shared/run1 {MISSING}"), ("42_0_log.err", "x")):
        (evidence.dir.submitit / log).write_text(f"{line}\n")
    job = WatchedJob("small", "42", evidence.dir, 1, 0.0)
    _, _, findings = judge_end(job, None, None)
    assert [finding.id for finding in findings] == ["job-lost"]
    quoted = [(Path(each.file).name, each.text) for each in findings[0].evidence]
    assert quoted == [("42_0_log.err", "x")]


def test_refusal_of_a_task_that_srun_started_is_found(tmp_path: Path) -> None:
    """Its words are in the log of the launcher on node 0."""
    evidence = Evidence(tmp_path, 2)
    for node in range(2):
        evidence.node(node, ok=False, reason="torchrun", why="srun exited with status 1")
    log = evidence.dir.launcher_log(0)
    log.write_text(f"{REFUSAL}/shared/run1 belongs to user 7\n")
    (finding,) = diagnosed(evidence)
    assert finding.id == "run-directory-not-ours"
    assert finding.evidence[0].file == str(log)


def test_tensor_in_an_error_is_cut(tmp_path: Path) -> None:
    """The cause says in a line what follows the tensor; the rank's event has all of it."""
    values = ",\n        ".join(str([0.125 + row, 1.5, -2e-05, 3.0]) for row in range(200))
    message = f"expected no NaN in tensor([{values}]), found one at step 7"
    evidence = Evidence(tmp_path, 1, 2).started().rank(1, error(message=message))
    (finding,) = diagnosed(evidence)
    assert finding.cause == (
        "rank 1 (n0) failed: ValueError: expected no NaN in tensor([[0.125, 1.5, ...]]), found one "
        "at step 7; unknown cause"
    )
    place = finding.evidence[0]
    lines = Path(place.file).read_text().splitlines()
    assert json.loads(lines[place.line - 1])["message"] == message


def test_error_of_a_rank(tmp_path: Path) -> None:
    """Which rank failed, with what, and where its traceback is."""
    evidence = Evidence(tmp_path, 1, 2).started().rank(1, error())
    (finding,) = diagnosed(evidence)
    assert (
        finding.id == "rank-error"
        and finding.cause == "rank 1 (n0) failed: ValueError: boom; unknown cause"
    )
    assert finding.ranks == (1,) and finding.hosts == ("n0",)
    assert finding.evidence[0].file.endswith("ranks/00001.jsonl")
    assert (Path(finding.evidence[0].file).read_text().splitlines())[finding.evidence[0].line - 1]
    assert (
        "boom"
        in Path(finding.evidence[0].file).read_text().splitlines()[finding.evidence[0].line - 1]
    )


def test_echo_comes_after_its_cause(tmp_path: Path) -> None:
    """A rank whose connection broke is the victim, although it failed first."""
    evidence = Evidence(tmp_path, 1, 2).started()
    evidence.rank(0, error("Connection closed by peer [127.0.0.1]:1"))
    evidence.rank(1, error("CUDA out of memory"))
    first, second = diagnosed(evidence)
    assert first.ranks == (1,) and second.ranks == (0,) and not second.primary


@pytest.mark.parametrize("closed", [True, False])
def test_node_that_is_gone_is_named_and_not_the_rank_that_torchrun_ended(
    tmp_path: Path, closed: bool
) -> None:
    """With node 0 its c10d store is gone, and torchrun on the other node ends its rank. Without
    torchrun's line, nobody is known to have ended the rank."""
    evidence = Evidence(tmp_path, 2, 1).started().node(1, ok=False, reason="rank_died", why="x")
    evidence.dir.claim.touch()
    EventWriter(evidence.dir.node_events(0)).write("claim", pid=1)
    writer = EventWriter(evidence.dir.node_events(1))
    writer.write("ranks", states=[{"rank": 1, "alive": False, "exit_code": -15}])
    writer.close()
    line = "W1123 18:40:22.888 7 api.py:1028] Sending process 1001 closing signal SIGTERM\n"
    evidence.dir.launcher_log(1).write_text(line if closed else "")
    finding = diagnosed(evidence)[0]
    assert (finding.id, finding.ranks) == (
        ("launcher-failed", ()) if closed else ("rank-died", (1,))
    )


def test_rank_that_died_silently(tmp_path: Path) -> None:
    """The dead rank comes before the ranks that lost it."""
    evidence = Evidence(tmp_path, 1, 2).started()
    evidence.rank(0, ("stage", {"name": "train", "state": "begin"}), ("step", {"step": 7}))
    evidence.rank(1, error("Connection reset by peer"))
    writer = EventWriter(evidence.dir.node_events(0))
    writer.write("ranks", states=[{"rank": 0, "alive": False}, {"rank": 1, "alive": False}])
    writer.close()
    finding = diagnosed(evidence)[0]
    assert finding.id == "rank-died" and finding.ranks == (0,)
    assert (
        "in stage train, after step 7 or later (steps are marked at most every 0.5 s)"
        in finding.cause
    )


@pytest.mark.parametrize(("proven", "last"), [([1, 9], 8), ([1], 7), (["x", 1e9, None], 7)])
def test_dead_rank_proved_a_step_after_its_last_mark(
    tmp_path: Path, proven: list[Any], last: int
) -> None:
    """It had done the steps before that one, whether or not it marked them."""
    begun = ("stage", {"name": "train", "state": "begin"}), ("step", {"step": 7})
    evidence = Evidence(tmp_path, 1, 1).started()
    evidence.rank(0, *begun, *(("proof", {"step": step}) for step in proven))
    writer = EventWriter(evidence.dir.node_events(0))
    writer.write("ranks", states=[{"rank": 0, "alive": False}])
    writer.close()
    assert f"in stage train, after step {last} or later (" in diagnosed(evidence)[0].cause


def test_place_of_an_error_of_the_program_is_named(tmp_path: Path) -> None:
    """Of one that a rank recorded, and of one that ended it before it had a Rank; each is said and
    quoted once."""
    raised = TRACEBACK.format("")
    place = "unknown cause, raised at /work/train.py:23, in main"
    recorded = ("error", {"type": "ValueError", "message": "boom", "traceback": raised})
    (finding,) = diagnosed(Evidence(tmp_path / "a", 1, 1).started().rank(0, recorded))
    assert finding.cause == f"rank 0 (n0) failed: ValueError: boom; {place}"
    early = Evidence(tmp_path / "b", 1, 1)
    early.node(0, ok=False, reason="torchrun", why="torchrun ended with status 1")
    stderr(early, 0, raised)
    (finding,) = diagnosed(early)
    assert finding.cause.count("ValueError: labels are 7, 9") == 1 and finding.cause.endswith(place)
    known = Evidence(tmp_path / "c", 1, 1)
    known.node(0, ok=False, reason="torchrun", why="torchrun ended with status 1")
    stderr(known, 0, "ModuleNotFoundError: No module named 'peft'\n")
    for each in (finding, *diagnosed(known)):
        places = [(shown.file, shown.line) for shown in each.evidence]
        assert len({*places}) == len(places) == 2


@pytest.mark.parametrize(
    ("reason", "identity"),
    [
        ("timeout", "time-limit"),
        ("stalled", "hang"),
        ("rank_ended_early", "rank-left-early"),
        ("torchrun", "torchrun-failed"),
        ("node", "node-failed"),
        ("slurmstepd", "slurmstepd-died"),
        ("launcher", "launcher-failed"),
    ],
)
def test_reason_of_the_node(tmp_path: Path, reason: str, identity: str) -> None:
    """The node's own reason becomes the finding, with the launcher's last line; after a time limit,
    where the ranks were, and no line about the launcher's end."""
    evidence = Evidence(tmp_path).started().node(0, ok=False, reason=reason, why="it ended")
    log = evidence.dir.launcher_log(0)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("Sending process 7 closing signal SIGTERM\n")
    finding = diagnosed(evidence)[0]
    limit = reason == "timeout"
    assert finding.id == identity and finding.cause == "n0: it ended" + "; rank 0: init" * limit
    assert any("SIGTERM" in shown.text for shown in finding.evidence) is not limit


@pytest.mark.parametrize(
    "outcome", ["failed", "lost", "cluster_failed", "preempted", "cancelled", "never_ran"]
)
def test_without_evidence_the_outcome_is_the_finding(tmp_path: Path, outcome: str) -> None:
    """The finding is the outcome itself, with what to do."""
    (finding,) = diagnosed(Evidence(tmp_path), outcome)
    assert finding.id == f"job-{outcome.replace('_', '-')}" and finding.cause == "the reason"


@pytest.mark.parametrize("outcome", ["cluster_failed", "preempted", "cancelled"])
def test_ranks_are_not_blamed_for_a_job_ended_from_outside(tmp_path: Path, outcome: str) -> None:
    """The ranks of such a job look as if they had failed."""
    evidence = Evidence(tmp_path).started().rank(0, error())
    assert diagnosed(evidence, outcome)[0].id == f"job-{outcome.replace('_', '-')}"


def test_refusal_quotes_the_scheduler() -> None:
    """sbatch's message, up to a bound, and the script it refused."""
    refusal = Refused("Invalid account " + "x" * 1000)
    finding = explain_refusal(refusal, Path("/run/batch.sh"))
    assert "Invalid account" in finding.cause and finding.evidence[0].file == "/run/batch.sh"


@pytest.mark.parametrize("states", [None, 7, "x", [7], [{"rank": "x"}], {}])
def test_hostile_node_events(tmp_path: Path, states: object) -> None:
    """Events of the wrong type are ignored."""
    evidence = Evidence(tmp_path).started().node(0, ok=False, reason="torchrun", why="x")
    writer = EventWriter(evidence.dir.node_events(0))
    writer.write("ranks", states=states)
    writer.close()
    assert diagnosed(evidence)[0].id == "torchrun-failed"


@pytest.mark.parametrize("step", [None, "x", [1], {}])
def test_hostile_steps(tmp_path: Path, step: object) -> None:
    """A step of the wrong type does not prevent the report of a dead rank."""
    evidence = Evidence(tmp_path).started()
    evidence.rank(0, ("stage", {"name": "train", "state": "begin"}), ("step", {"step": step}))
    writer = EventWriter(evidence.dir.node_events(0))
    writer.write("ranks", states=[{"rank": 0, "alive": False}])
    writer.close()
    assert diagnosed(evidence)[0].id == "rank-died"


ECHO = "[pair.cc:553] Connection closed by peer [127.0.0.1]:1"


def test_errors_while_a_hang_is_ended_are_not_the_cause(tmp_path: Path) -> None:
    """A rank that lost its peer while the watch ended the phase is not the culprit."""
    evidence = Evidence(tmp_path, 1, 2).started().rank(1, error(ECHO))
    why = {"reason": "stalled", "why": "rank 0 has made no progress", "rank": 0}
    write_json(evidence.dir.abort, {"node": "n0", **why})
    write_json(evidence.dir.node_result(0), {"ok": False, "node": "n0", **why})
    (finding,) = diagnosed(evidence)
    assert (finding.id, finding.ranks) == ("hang", (0,))


@pytest.mark.parametrize("outcome", ["cancelled", "cluster_failed", "preempted"])
def test_errors_while_the_scheduler_ends_ranks_are_not_the_cause(
    outcome: str, tmp_path: Path
) -> None:
    """The scheduler's action is the finding, whatever ranks logged."""
    evidence = Evidence(tmp_path, 1, 2).started().rank(1, error(ECHO))
    (finding,) = diagnosed(evidence, outcome)
    assert finding.id == f"job-{outcome}".replace("_", "-")


def test_node_without_a_result_is_named_by_the_abort_flag(tmp_path: Path) -> None:
    """The flag was raised for it; the other nodes only record that they saw the flag."""
    evidence = Evidence(tmp_path, 2, 1).started()
    write_json(evidence.dir.abort, {"node": "n1", "reason": "launcher", "why": "it ended"})
    write_json(evidence.dir.node_result(0), {"ok": False, "node": "n0", "reason": "aborted"})
    (finding,) = diagnosed(evidence)
    assert (finding.id, finding.hosts, finding.cause) == (
        "launcher-failed",
        ("n1",),
        "n1: it ended",
    )


def test_last_line_of_a_long_log(tmp_path: Path) -> None:
    """However long the log is, and whether or not the line is terminated."""
    log = tmp_path / "x.log"
    log.write_text("noise\n" * 50_000 + "the cause\n\n  \n")
    (finding,) = find_last_line(log)
    assert (finding.line, finding.text) == (50_001, "the cause")


def test_known_cause_of_an_exception(tmp_path: Path) -> None:
    """Id, rank and place stay; the cause and the next step are the signature's."""
    evidence = Evidence(tmp_path, 1, 2).started()
    raised = "CUDA out of memory. Tried to allocate 2.26 GiB"
    evidence.rank(1, error(raised, type="OutOfMemoryError"))
    (finding,) = diagnosed(evidence)
    assert (finding.id, finding.ranks) == ("rank-error", (1,))
    assert finding.cause.startswith(f"rank 1 (n0) failed: OutOfMemoryError: {raised}; cause: the")
    assert "smaller batch" in finding.fix and finding.detail["signature"] == "cuda_oom"
    own, text = finding.evidence
    assert own.file == text.file and own.line == text.line and raised in text.text


def stderr(evidence: Evidence, rank: int, text: str) -> None:
    log = evidence.dir.rank_logs(0) / "x" / "attempt_0" / str(rank) / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text(text)


def test_known_cause_in_a_ranks_stderr(tmp_path: Path) -> None:
    """A general exception is explained by its rank's stderr, not by another rank's."""
    evidence = Evidence(tmp_path, 1, 2)
    for rank in (0, 1):
        start = {"rank": rank, "node_rank": 0, "node": "n0", "local_rank": rank}
        evidence.rank(rank, ("start", start))
    evidence.rank(1, error("NCCL error in: x.cpp:1, unhandled system error, NCCL version 2.21"))
    stderr(evidence, 1, "noise\nNCCL WARN Call to posix_fallocate failed : No space left\n")
    stderr(evidence, 0, "RuntimeError: No CUDA GPUs are available\n")
    (finding,) = diagnosed(evidence)
    assert finding.detail["signature"] == "shm_no_space"
    assert finding.evidence[-1].line == 2 and "/1/stderr.log" in finding.evidence[-1].file


def test_known_cause_in_a_nodes_logs(tmp_path: Path) -> None:
    """NCCL's own warning on the node explains a failure that its rank could not."""
    evidence = Evidence(tmp_path, 1, 1).started().node(0, ok=False, reason="torchrun", why="x")
    log = evidence.dir.nccl_logs(0) / "h.7.log"
    log.parent.mkdir(parents=True)
    log.write_text("h:7:8 [0] ibvwrap.cc:1 NCCL WARN Call to ibv_modify_qp failed with error X\n")
    finding = diagnosed(evidence)[0]
    assert (finding.id, finding.detail["signature"]) == ("torchrun-failed", "ibv_modify_qp")


def test_warning_of_a_node_on_which_ranks_go_on_explains_nothing(tmp_path: Path) -> None:
    """NCCL goes on without libfabric; before any rank has, it may be the cause."""
    warning = (
        "n1:152:386 [0] nccl_net_ofi_create_plugin:259 NCCL WARN NET/OFI Unable to find a protocol "
        "that worked.  Failing initialization.\n"
    )
    for folder, steps in (("begun", ()), ("trained", (("step", {"step": 4}),))):
        evidence = Evidence(tmp_path / folder, 1, 1).started().node(0, ok=False, reason="torchrun")
        evidence.rank(0, *steps, error())
        log = evidence.dir.nccl_logs(0) / "h.7.log"
        log.parent.mkdir(parents=True)
        log.write_text(warning)
        finding = diagnosed(evidence)[0]
        assert ("signature" in finding.detail) is not bool(steps)
        assert ("unknown cause" in finding.cause) is bool(steps)


def test_cause_of_another_rank_explains_nothing(tmp_path: Path) -> None:
    """torchrun's report about rank 5 does not apply to rank 1."""
    evidence = Evidence(tmp_path, 1, 2).started().node(0).rank(1, error())
    evidence.dir.launcher_log(0).write_text(KILLED)
    assert "signature" not in diagnosed(evidence)[0].detail


@pytest.mark.parametrize("started", [True, False])
def test_rendezvous_that_ends_with_its_ranks_explains_nothing(
    tmp_path: Path, started: bool
) -> None:
    """torchrun's own store is gone once node 0's ranks have ended; but before any rank has started,
    it is the cause."""
    evidence = Evidence(tmp_path, 1, 1).node(0, ok=False, reason="torchrun", why="x")
    if started:
        evidence.started().rank(0, error())
    evidence.dir.launcher_log(0).write_text(
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the "
        "C10d store has failed. See inner exception for details.\n"
    )
    finding = diagnosed(evidence)[0]
    assert finding.detail.get("signature") == (None if started else "rdzv_timeout")


def test_consequence_explains_nothing(tmp_path: Path) -> None:
    """A lost peer is not a cause, and an unknown exception is not reported twice."""
    evidence = Evidence(tmp_path, 1, 1).started().rank(0, error())
    stderr(evidence, 0, "Connection closed by remote peer n1<7>\n" + TRACEBACK.format(""))
    (finding,) = diagnosed(evidence)
    assert (
        "signature" not in finding.detail
        and finding.cause == "rank 0 (n0) failed: ValueError: boom; unknown cause"
    )


@pytest.mark.parametrize("outcome", ["cancelled", "preempted", "never_ran"])
def test_logs_do_not_explain_a_job_ended_from_outside(tmp_path: Path, outcome: str) -> None:
    """What ranks log as they are ended is not why they were ended."""
    evidence = Evidence(tmp_path).started().rank(0, error("CUDA out of memory"))
    assert "signature" not in diagnosed(evidence, outcome)[0].detail


def test_error_that_a_rank_survived_explains_nothing(tmp_path: Path) -> None:
    """An out of memory that the program caught and tried again is no failure of a rank that was
    done; of one that was not, it is."""
    retried = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\nretry\n"
    for done, folder in ((True, tmp_path / "done"), (False, tmp_path / "not")):
        evidence = Evidence(folder, 1, 2).node(0, ok=False, reason="torchrun", why="x")
        for rank in (0, 1):
            start = {"rank": rank, "node_rank": 0, "node": "n0", "local_rank": rank}
            evidence.rank(rank, ("start", start))
        evidence.rank(1, *([("done", {"seconds": 1.0})] if done else []))
        stderr(evidence, 1, retried)
        finding = diagnosed(evidence)[0]
        assert finding.id == "torchrun-failed"
        assert finding.detail.get("signature") == (None if done else "cuda_oom")


def test_rank_whose_process_failed_after_done_did_not_survive(tmp_path: Path) -> None:
    """It was done, but its process failed afterwards: what it logged counts."""
    evidence = Evidence(tmp_path, 1, 1).node(0, ok=False, reason="torchrun", why="x")
    start = {"rank": 0, "node_rank": 0, "node": "n0", "local_rank": 0, "pid": 7}
    evidence.rank(0, ("start", start), ("done", {"seconds": 1.0}))
    assert FailureEvidence(evidence.result()).survivors == {0}
    evidence.dir.launcher_log(0).write_text(
        "failed (exitcode: -6) local_rank: 0 (pid: 7) of binary"
    )
    assert FailureEvidence(evidence.result()).survivors == frozenset()


@pytest.mark.parametrize("recorded", [False, True])
def test_exception_before_a_known_cause_is_reported_with_it(tmp_path: Path, recorded: bool) -> None:
    """For a rank that died silently; an exception that the rank recorded is not repeated."""
    evidence = Evidence(tmp_path, 1, 1)
    start = {"rank": 0, "node_rank": 0, "node": "n0", "local_rank": 0}
    evidence.rank(0, ("start", start), *([error("labels are 7, 9")] if recorded else []))
    writer = EventWriter(evidence.dir.node_events(0))
    writer.write("ranks", states=[{"rank": 0, "alive": False}])
    writer.close()
    stderr(evidence, 0, TRACEBACK.format("") + "OSError: [Errno 28] No space left on device\n")
    finding = diagnosed(evidence)[0]
    assert finding.id == ("rank-error" if recorded else "rank-died")
    assert finding.detail["signature"] == "disk_full"
    unknown = (
        "error that no signature knows: ValueError: labels are 7, 9 (/work/train.py:23, in main)"
    )
    assert (unknown in finding.cause) is not recorded


@pytest.mark.parametrize(
    ("code", "text", "last_line"),
    [
        (2, "train.py: error: unrecognized arguments: --sede", "first error: train.py: error: unr"),
        (1, "mylib.DecodeError: frame 7 is cut", "first error: mylib.DecodeError: frame 7 is cut"),
        (1, "there are no labels in /data", "last line of its stderr: there are no labels"),
        (0, "there are no labels in /data", ""),
        (-9, "there are no labels in /data", ""),
    ],
)
def test_rank_that_exited_with_a_status_has_a_last_line(
    tmp_path: Path, code: int, text: str, last_line: str
) -> None:
    """As argument parsers or SystemExit leave it; a killed rank left none."""
    evidence = Evidence(tmp_path, 1, 1)
    start = {"rank": 0, "node_rank": 0, "node": "n0", "local_rank": 0}
    evidence.rank(0, ("start", start))
    writer = EventWriter(evidence.dir.node_events(0))
    writer.write("ranks", states=[{"rank": 0, "alive": False, "exit_code": code}])
    writer.close()
    stderr(evidence, 0, f"step 1\n{text}\n")
    finding = diagnosed(evidence)[0]
    assert finding.id == "rank-died"
    assert (f"; unknown cause; {'the ' if last_line else ''}{last_line}" in finding.cause) is bool(
        last_line
    )
    assert ("unknown cause" in finding.cause) is bool(last_line)
    assert bool(last_line) is any(
        line.line == 2 and "stderr" in line.file for line in finding.evidence
    )


@pytest.mark.parametrize(
    ("no_controller", "fix"),
    [(True, "run this on a login node"), (False, "read the scheduler's message")],
)
def test_refusal_says_what_to_do_next(no_controller: bool, fix: str, tmp_path: Path) -> None:
    """If no controller answers, the settings are not to blame."""
    refusal = Refused("sbatch: error", no_controller=no_controller)
    assert explain_refusal(refusal, tmp_path / "batch.sh").fix.startswith(fix)
