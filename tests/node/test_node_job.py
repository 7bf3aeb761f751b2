"""Real runs on virtual nodes of this machine, one of which differs from the others: the phase ends
before torchrun starts, and the finding names the node. torchrun is a fake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.job_results import read_claim, read_node_result
from pytest_clustersmoke.evidence.phase_result import collect_phase
from pytest_clustersmoke.evidence.run_directory import PhaseDir, create_phase, write_json
from pytest_clustersmoke.evidence.whole_files import create_once
from pytest_clustersmoke.node import abort_flag, node_job
from pytest_clustersmoke.node.abort_flag import NodeFailed
from tests.fakes import nvidia_smi
from tests.fakes.nvidia_smi import gpu
from tests.support.harness import FAKE_TORCHRUN, ROOT, Suite
from tests.support.launched import make_job
from tests.support.waiting import PATIENCE_S, time_to_end

ON_NODE_1 = 'if [ "$SUBMITIT_LOCAL_JOB_ID" = small.1 ]; then {}; fi'


def phase(suite: Suite) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The phase's record and its findings."""
    (record,) = suite.record()["phases"]
    return record, record["findings"]


def phase_dir(suite: Suite) -> PhaseDir:
    (run,) = (path for path in suite.runs() if path.is_dir())
    return PhaseDir(run / "phases" / "small")


def start_claim(folder: Path, node: int, token: str = "t1", wait_s: float = PATIENCE_S) -> PhaseDir:
    """Claim a phase of two nodes for one of them, as the job of a submission with this token."""
    directory = PhaseDir(folder / "run1" / "phases" / "small")
    create_phase(directory, nodes=2)
    spec = {"phase": "small", "phase_dir": str(directory.root), "nodes": 2, "token": token}
    job = node_job.NodeJob(spec, node, f"n{node}")
    node_job._claim(job, time.monotonic() + wait_s)
    return directory


@pytest.mark.parametrize("name", ["small", "attempt-1", "phases"])
@pytest.mark.parametrize("place", ["", "attempt-1", "attempt-2"])
def test_job_knows_its_run_and_its_phase(tmp_path: Path, name: str, place: str) -> None:
    """Also if its phase may be retried, and each job has a directory of its own: tasks that srun
    starts look for the run from there."""
    phase = tmp_path / "run1" / "phases" / name
    spec = {"phase": name, "phase_dir": str(phase / place)}
    directory = node_job.NodeJob(spec, 0, "n0").dir
    assert (directory.run.root, directory.name) == (tmp_path / "run1", name)
    assert directory.number == int(place[-1:] or 0)


def test_other_nodes_wait_for_the_claim_of_node_0(tmp_path: Path) -> None:
    """One file stands for the start of all nodes."""
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(start_claim, tmp_path, 1)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.3)
        directory = start_claim(tmp_path, 0)
        waiting.result()
    claim = read_claim(directory)
    assert claim is not None and (claim.token, claim.node, claim.pid) == ("t1", "n0", os.getpid())


def test_nodes_of_two_jobs_never_run_one_phase_together(tmp_path: Path) -> None:
    """The job of another submission ends on every node, and writes nothing into the phase."""
    directory = start_claim(tmp_path, 0)
    before = sorted(directory.root.rglob("*"))
    for node in (1, 0):
        with pytest.raises(NodeFailed, match="phase small was already started on n0, by job"):
            start_claim(tmp_path, node, token="t2")
    assert sorted({*directory.root.rglob("*")} - {*before}) == [directory.started_again]


def test_requeued_job_finds_the_claim_of_its_first_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its id and token are the same, and a phase runs at most once: no node takes part again. The
    first node that sees that says so, since srun ends the others then."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    start_claim(tmp_path, 0)
    start_claim(tmp_path, 1)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    for node in (1, 0):
        with pytest.raises(NodeFailed, match=r"already started on n0, by job 7 \(was the job r"):
            start_claim(tmp_path, node)
        PhaseDir(tmp_path / "run1" / "phases" / "small").started_again.unlink()


@pytest.mark.parametrize(
    ("ended", "attempt"),
    [
        ({0: "asked"}, 10),
        ({0: "planned", 1: "asked"}, 10),
        ({0: "planned", 1: "asked", 10: "asked"}, 20),
        ({0: "killed"}, 0),
        ({0: "node 1 killed"}, 0),
        ({0: "planned"}, 0),
        ({0: "planned", 1: "killed"}, 0),
        ({0: "asked", 10: "killed"}, 0),
    ],
    ids=str,
)
def test_requeued_job_goes_on_only_where_all_nodes_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: dict[int, str], attempt: int
) -> None:
    """After any other requeue a node may have failed, and the job ends as one without `resume`,
    whether or not a controller sees it."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    directory = PhaseDir(tmp_path / "run1" / "phases" / "small")
    spec = {"phase": "small", "phase_dir": str(directory.root), "nodes": 2, "token": "t1"}
    jobs = [node_job.NodeJob(spec, node, f"n{node}") for node in range(2)]

    def start(count: int, *attempts: int) -> None:
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(count))
        for job in (replace(job, attempt=attempt) for attempt in attempts for job in jobs):
            create_phase(job.dir, nodes=2)
            node_job._claim(job, time.monotonic() + PATIENCE_S)

    for number, how in ended.items():
        start(number // 10, number)
        for node in range(0 if how == "killed" else 2 - (how == "node 1 killed")):
            result = {"ok": True, "stopped": True, "requeue": how != "planned"}
            write_json(replace(directory, attempt=number).node_result(node), result)
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(max(ended) // 10 + 1))
    assert [node_job._find_attempt(job) for job in jobs] == [attempt] * 2
    if attempt:
        start(attempt // 10, attempt)
        return
    with pytest.raises(NodeFailed, match="already started"):
        node_job._claim(jobs[0], time.monotonic() + PATIENCE_S)
    assert directory.started_again.exists()


def test_first_start_of_a_job_in_a_requeued_allocation_is_its_first_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has been saved that it could load; also after a start that claimed nothing."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    directory = PhaseDir(tmp_path / "run1" / "phases" / "small")
    create_phase(directory, nodes=1)
    spec = {"phase": "small", "phase_dir": str(directory.root), "nodes": 1, "token": "t1"}
    assert node_job._find_attempt(node_job.NodeJob(spec, 0, "n0")) == 0


def test_job_that_was_given_up_ends_before_its_claim(tmp_path: Path) -> None:
    """Only the job of that submission: another may run the phase."""
    directory = PhaseDir(tmp_path / "run1" / "phases" / "small")
    create_phase(directory, nodes=2)
    write_json(directory.withdrawn("t1"), {})
    for node in (0, 1):
        with pytest.raises(NodeFailed, match="phase small was given up before this job started"):
            start_claim(tmp_path, node)
    assert read_claim(directory) is None
    start_claim(tmp_path, 0, token="t2")


def test_job_of_which_one_node_has_seen_that_it_was_given_up_runs_on_none(tmp_path: Path) -> None:
    """A dead run's jobs are kept after all, if one of them starts just as they are given up."""
    directory = PhaseDir(tmp_path / "run1" / "phases" / "small")
    create_phase(directory, nodes=2)
    directory.withdrawn("t1").touch()
    with pytest.raises(NodeFailed, match="was given up"):
        start_claim(tmp_path, 1)
    directory.withdrawn("t1").unlink()
    with pytest.raises(NodeFailed, match="was given up"):
        start_claim(tmp_path, 0)
    assert directory.declined("t1").exists() and read_claim(directory) is None


def test_job_that_is_given_up_just_after_its_claim_takes_that_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The phase may be submitted again: that job would take it for one that has started. The other
    node does not wait for a claim that comes no more."""
    directory = PhaseDir(tmp_path / "run1" / "phases" / "small")

    def give_up_meanwhile(path: Path, value: dict[str, Any]) -> bool:
        created = create_once(path, value)
        directory.withdrawn("t1").touch()
        return created

    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(start_claim, tmp_path, 1)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.3)
        monkeypatch.setattr(node_job, "create_once", give_up_meanwhile)
        with pytest.raises(NodeFailed, match="was given up before this job started"):
            start_claim(tmp_path, 0)
        with pytest.raises(NodeFailed, match="was given up before this job started"):
            waiting.result(timeout=10)
    assert directory.declined("t1").exists() and read_claim(directory) is None
    monkeypatch.undo()
    start_claim(tmp_path, 0, token="t2")


WAITING = """
import json, sys
from pytest_clustersmoke.node import abort_flag, node_job
read_claim = node_job.read_claim
def read_and_say(directory):
    print("waits", flush=True)
    return read_claim(directory)
node_job.read_claim = read_and_say
node_job.run_node(json.loads(sys.argv[1]))
"""


@pytest.mark.parametrize("other", ["", "claims", "gives up"])
def test_node_that_is_ended_while_it_waits_for_the_claim_ends_at_once(
    tmp_path: Path, other: str
) -> None:
    """Its result says so, unless the phase is another start's or was given up by then."""
    job = make_job(tmp_path / "run1" / "phases" / "small", 1, nodes=2, token="t1")
    create_phase(job.dir, 2)
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING, json.dumps(job.spec)],
        env={**os.environ, node_job.RANK_VARIABLE: "1", node_job.NAME_VARIABLE: "n1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"waits\n"
    process.send_signal(signal.SIGSTOP)
    if other == "claims":
        start_claim(tmp_path, 0, token="t2")
    elif other:
        job.dir.withdrawn("t1").touch()
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    assert time_to_end(process) < 10
    _, errors = process.communicate()
    assert process.returncode == 1
    result = read_node_result(job.dir, 1)
    assert result.reason == ("" if other else "terminated")
    assert abort_flag.visible(job.dir.abort) == (not other)
    why = {"": b"terminated: SIGTERM", "claims": b"already started", "gives up": b"was given up"}
    assert why[other] in errors


REQUEUING = """
import json, signal, sys
from pytest_clustersmoke.evidence.run_directory import write_json
from pytest_clustersmoke.node import node_job
node_job.REQUEUE_S, node_job.REQUEUE_PAUSE_S, node_job.REQUEUED_S, node_job.COMMAND_S = map(
    float, sys.argv[2:])
job = node_job.NodeJob(json.loads(sys.argv[1]), 0, "n0")
result = node_job._Result(job)
result.ended({"ok": True, "stopped": True, "requeue": True})
write_json(job.dir.node_result(0), result.record.result)
signal.pthread_sigmask(signal.SIG_BLOCK, node_job.ENDING)
node_job._requeue(job, result)
"""


@pytest.mark.parametrize(
    ("scontrol", "why"),
    [
        ("echo Requested operation is presently disabled >&2; exit 1", "Requested operation is"),
        ("exit 3", "scontrol ended with status 3"),
        ("exec sleep 600", "timed out after 2.0 seconds"),
        (None, "No such file or directory: 'scontrol'"),
        ("test -e $0.asked || { touch $0.asked; exit 1; }", ""),
        ("kill -TERM $PPID; exec sleep 600", ""),
    ],
    ids=["refuses", "fails", "hangs", "absent", "refuses_once", "requeues_without_an_answer"],
)
def test_requeue_that_slurm_refuses_is_the_reason_of_the_failure(
    tmp_path: Path, scontrol: str | None, why: str
) -> None:
    """It is asked for a while; a job that it ends meanwhile was requeued after all."""
    job = make_job(tmp_path / "run1" / "phases" / "small", 0, nodes=2)
    create_phase(job.dir, 2)
    if scontrol is not None:
        (tmp_path / "scontrol").write_text(f"#!/bin/sh\n{scontrol}\n")
        (tmp_path / "scontrol").chmod(0o700)
    limits = (0.1 if why else PATIENCE_S, 0.05, 0, 2)  # in the order of the program
    process = subprocess.run(
        [sys.executable, "-c", REQUEUING, json.dumps(job.spec), *map(str, limits)],
        env={**os.environ, "PATH": f"{tmp_path}:/bin" if scontrol else str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        timeout=PATIENCE_S,
    )
    result = read_node_result(job.dir, 0)
    assert (process.returncode, result.ok, result.requeues) == (bool(why), not why, not why)
    if why:
        assert result.why.startswith("Slurm did not requeue the job: ") and why in result.why
        assert result.why in process.stderr


def test_node_without_a_claim_of_node_0_goes_on_to_its_time_limit(tmp_path: Path) -> None:
    """The meeting of the nodes then says which node was not seen."""
    assert not start_claim(tmp_path, 1, wait_s=0.1).claim.exists()


def test_healthy_nodes_have_no_finding(suite: Suite) -> None:
    """Three virtual nodes on this machine reach each other, and nothing is reported."""
    suite.phase(nodes=3)
    result = suite.run()
    assert result.ret == 0, result.stdout.str()
    record, findings = phase(suite)
    assert record["outcome"] == "passed" and findings == []


def test_other_versions_on_one_node_end_the_phase_before_torchrun(
    suite: Suite, tmp_path: Path
) -> None:
    """The node that differs is named with package and versions; no node has started torchrun."""
    shim = suite.path / "other" / "submitit-0.0.1.dist-info"
    shim.mkdir(parents=True)
    (shim / "METADATA").write_text("Metadata-Version: 2.1\nName: submitit\nVersion: 0.0.1\n")
    (shim.parent / "sitecustomize.py").write_text("")
    paths = f"export PYTHONPATH={shim.parent}:{FAKE_TORCHRUN}"
    setup = [f"export PYTHONPATH={FAKE_TORCHRUN}", ON_NODE_1.format(paths)]
    suite.cluster(setup=setup, env={"common": {"set": {suite.marker: "1"}}})
    suite.phase(nodes=3)
    assert suite.run().ret == 1
    record, (finding,) = phase(suite)
    assert record["outcome"] == "failed"
    assert (finding["id"], finding["hosts"]) == ("versions-differ", ["local1"])
    assert "submitit 0.0.1 (most common: " in finding["cause"]
    evidence = finding["evidence"][0]
    assert evidence["file"].endswith("0001/facts.json") and "packages" in evidence["text"]
    result = collect_phase(phase_dir(suite))
    assert not any(result.directory.launcher_log(rank).exists() for rank in range(3))
    reasons = {node.result["reason"] for node in result.nodes}
    assert "preflight" in reasons <= {"preflight", "aborted"}
    failed = [node.result for node in result.nodes if node.result["reason"] == "preflight"]
    ids = [[found["id"] for found in node_result["findings"]] for node_result in failed]
    assert ids == [["versions-differ"]] * len(failed)


def test_warning_is_in_the_record_of_a_passed_phase(suite: Suite) -> None:
    """The outcome stays; the finding is a warning with its host."""
    suite.cluster(setup=[ON_NODE_1.format("ulimit -Sn 256")])
    suite.phase(nodes=2)
    result = suite.run()
    assert result.ret == 0, result.stdout.str()
    record, (finding,) = phase(suite)
    assert record["outcome"] == "passed"
    assert (finding["id"], finding["severity"]) == ("open-files-limit", "warning")
    assert finding["hosts"] == ["local1"]


@pytest.mark.parametrize(
    ("gpus", "output", "identity"),
    [
        ([gpu(0)], {}, "gpus-missing"),
        ([gpu(0), gpu(1, **{"remapped_rows.pending": "Yes"})], {}, "gpu-row-remap-pending"),
        ([], {"words": "NVIDIA-SMI has failed", "status": 9}, "gpu-driver-failed"),
    ],
)
def test_faulty_gpu_on_one_node_ends_the_phase(
    suite: Suite, gpus: Any, output: dict[str, Any], identity: str
) -> None:
    """A fake nvidia-smi lists two GPUs; on one node it lists a faulty one, or fails."""
    for name, listed, options in (("well", [gpu(0), gpu(1)], {}), ("sick", gpus, output)):
        (suite.path / name).mkdir()
        nvidia_smi.write(suite.path / name, sys.executable, listed, **options)
    every = f"export PATH={suite.path}/well:$PATH CUDA_VISIBLE_DEVICES=0,1"
    sick = ON_NODE_1.format(f"export PATH={suite.path}/sick:$PATH")
    hardware = {"gpu": "any", "device": "cuda", "gpus_per_node": 2}
    suite.cluster(setup=[every, sick], hardware=hardware)
    suite.phase(nodes=2, gpus_per_node=2)
    assert suite.run().ret == 1
    _, (finding,) = phase(suite)
    assert (finding["id"], finding["hosts"]) == (identity, ["local1"])
    assert finding["severity"] == "failure" and finding["fix"]


RESUMED = """
def test_resumed(self, phase):
    assert phase.ranks_done == phase.world_size and phase.losses == [2.0, 1.0] * 2
"""


def test_phase_that_stops_is_started_again_on_all_nodes(suite: Suite) -> None:
    """The second attempt has files and nonces of its own; the times are those of both."""
    suite.phase(nodes=2, resume=3, args={"stops": 1}, base="Resumed", body=RESUMED)
    result = suite.run()
    assert result.ret == 0, result.stdout.str()
    record, findings = phase(suite)
    assert record["outcome"] == "passed" and findings == []
    last = collect_phase(phase_dir(suite))
    (first,) = last.earlier
    assert first.nodes[0].started and last.nodes[0].started and last.nodes[0].ended
    assert first.nodes[0].started < last.nodes[0].started
    assert record["run_s"] >= last.nodes[0].ended - first.nodes[0].started - 1
    assert len({node.nonce for attempt in (first, last) for node in attempt.nodes}) == 4
    assert (suite.report / "phases/small/attempts/1/ranks/00000.jsonl").is_file()


@pytest.mark.parametrize(
    ("args", "resume", "words"),
    [
        ({"stops": 0}, 3, "but it started once"),
        (
            {"stops": 1},
            0,
            "its ranks stopped to go on in another attempt, and were not started again",
        ),
        pytest.param(
            {"stops": 2},
            3,
            "its ranks stopped to go on in another attempt, and were not started again",
            marks=pytest.mark.slow,  # node 0 waits a minute for a requeue
        ),
        ({"stops": 1, "fail_again": True}, 3, "rank 0: ValueError: staged"),
    ],
    ids=["never_stops", "not_asked", "stops_again", "fails_when_resumed"],
)
def test_phase_that_is_not_resumed_fails(
    suite: Suite, args: dict[str, Any], resume: int, words: str
) -> None:
    """It stops once, where it was asked to, and what ends the second attempt ends the phase."""
    suite.phase(nodes=2, resume=resume, args=args, base="Resumed", body=RESUMED)
    result = suite.run()
    assert result.ret == 1 and words in result.stdout.str(), result.stdout.str()


def test_failure_of_the_second_attempt_has_its_evidence(suite: Suite) -> None:
    suite.phase(resume=3, args={"stops": 1, "fail_again": True}, base="Resumed")
    assert suite.run().ret == 1
    _, (finding, *_) = phase(suite)
    assert "staged" in finding["cause"]
    files = [shown["file"] for shown in finding["evidence"]]
    assert files and all(name.startswith("attempts/1/") for name in files), files
    assert all((suite.report / "phases/small" / name).exists() for name in files)
