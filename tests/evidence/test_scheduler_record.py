"""Slurm's record of a job that did not end well: the queries, and reading the record."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import pytest

from pytest_clustersmoke.evidence.scheduler_record import (
    JobState,
    ScheduledJob,
    SchedulerRecord,
    read_scheduler_record,
    show_time,
)
from pytest_clustersmoke.jobs import slurm_client
from pytest_clustersmoke.jobs.slurm_client import SlurmClient
from pytest_clustersmoke.jobs.slurm_records import add_zone
from tests.fakes.slurm import FakeSlurm
from tests.support.evidence import Evidence

SHOWN = (
    "JobId=7 JobName=x JobState=NODE_FAIL Reason=NodeDown Partition=main QOS=(null) "
    "StartTime=2026-01-02T03:04:05 EndTime=2026-01-02T03:09:05 MinMemoryNode=4G"
)
NODES = """n1|idle|Unknown|Unknown|none
n2|down*|2026-01-02T03:09:00|root|Not responding
n2|down*|2026-01-02T03:09:00|root|Not responding
n3|drained|2026-01-02T03:00:00|ann|bad | dimm
"""


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    return FakeSlurm(tmp_path)


def ask(
    slurm: FakeSlurm, state: JobState, nodes: str = "n[1-3]", words: tuple[str, str] = ("", "")
) -> SchedulerRecord:
    """The record as it is read back from its file."""
    path = slurm.folder / "scheduler.jsonl"
    record = SlurmClient(slurm.environ).job_record("7", state, nodes, words)
    assert record is not None
    record.write(path)
    return read_scheduler_record(path)


def test_node_state_reason_and_time_are_read(slurm: FakeSlurm) -> None:
    """Each node once, with its line; a reason may contain the separator."""
    slurm.answers("scontrol", SHOWN + "\n")
    slurm.answers("sinfo", NODES)
    record = ask(slurm, JobState("ended", "NODE_FAIL", "NodeDown", "n[1-3]"))
    assert (
        show_time(record.job.ended) == add_zone("2026-01-02T03:09:05")
        and record.job.memory_per_node == "4G"
    )
    assert record.job.qos == "" and record.job.shown == SHOWN
    assert [(entry.name, entry.down, entry.drained) for entry in record.nodes] == [
        ("n1", False, False),
        ("n2", True, False),
        ("n3", False, True),
    ]
    assert (
        record.nodes[1].why
        == f"n2 is down*: Not responding [root@{add_zone('2026-01-02T03:09:00')}]"
    )
    assert record.nodes[2].reason == "bad | dimm"
    lines = record.path.read_text().splitlines()
    evidence = record.evidence(record.job, *record.nodes)
    assert all(entry.text in lines[entry.line - 1] for entry in evidence) and len(evidence) == 4
    assert slurm.commands() == ["scontrol", "sinfo"]


def test_canceller_is_read_from_accounting(slurm: FakeSlurm) -> None:
    """The user id of the last record in the database."""
    slurm.answers("scontrol", SHOWN)
    rows = "7|REQUEUED|0:0|n1|2026-01-02T03:04:05\n7|CANCELLED by 1000|0:0|n1|2026-01-02T03:04:09\n"
    slurm.answers("sacct", rows)
    record = ask(slurm, JobState("ended", "CANCELLED"))
    assert record.cancelled_by == 1000
    assert [entry.state for entry in record.accounting] == ["REQUEUED", "CANCELLED"]


def test_jobs_that_had_the_id_before_or_have_it_now_cause_nothing(slurm: FakeSlurm) -> None:
    """Ids begin at 1 again where Slurm was set up anew, and its database keeps the old jobs: who
    cancelled or preempted one of those is nothing to ours."""
    ours = ("clustersmoke-r-p", "clustersmoke run=r phase=p token=a")
    entries = [
        "7|PREEMPTED|0:0|n1|2020-01-02T03:04:05|train-llm|",
        "7|CANCELLED by 0|0:0|n1|2020-01-02T03:04:05|train-llm|a | comment",
        f"7|CANCELLED by 1000|0:0|n1|2026-01-02T03:04:09|{ours[0]}|",
        f"7|CANCELLED by 2|0:0|n1|2026-01-02T03:04:10|{ours[0]}|clustersmoke run=r token=b",
    ]
    slurm.answers("sacct", "".join(f"{line}\n" for line in entries))
    slurm.answers("scontrol", SHOWN)  # of job x
    slurm.answers("sinfo", NODES)
    record = ask(slurm, JobState("ended", "CANCELLED"), words=ours)
    assert [entry.state for entry in record.accounting] == ["CANCELLED"]
    assert record.cancelled_by == 1000 and record.job == ScheduledJob()
    assert record.accounting[0].text == "7|CANCELLED by 1000|0:0|n1|2026-01-02T03:04:09"
    slurm.answers("scontrol", SHOWN.replace("JobName=x", f"JobName={ours[0]}"))
    record = ask(slurm, JobState("ended", "CANCELLED"), words=ours)
    assert record.job.state == "NODE_FAIL"


def test_lagging_accounting_is_queried_again(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While sacct still reports RUNNING it is queried again, up to a limit; then nobody is
    named."""
    monkeypatch.setattr(slurm_client, "ACCOUNTING_LAG_S", 0.2)
    monkeypatch.setattr(slurm_client, "ACCOUNTING_POLL_S", 0.01)
    slurm.answers("sacct", "7|RUNNING|0:0|n1|Unknown\n")
    record = ask(slurm, JobState("ended", "CANCELLED"))
    assert record.cancelled_by is None
    assert slurm.commands().count("sacct") > 1


def test_without_accounting_sacct_runs_once(slurm: FakeSlurm) -> None:
    """sacct fails at once if there is no database."""
    slurm.answers("scontrol", SHOWN)
    slurm.answers("sacct", err="Slurm accounting storage is disabled", rc=1)
    record = ask(slurm, JobState("ended", "CANCELLED"))
    assert record.cancelled_by is None and record.accounting == ()
    assert slurm.commands().count("sacct") == 1


def test_pending_job_lists_unusable_nodes_of_its_partition(slurm: FakeSlurm) -> None:
    """All are asked for, since sinfo refuses a list of states of which its version lacks one; also
    a state that no version had so far keeps jobs away."""
    states = ("idle", "mixed-", "idle~", "allocated+", "completing", "planned")
    unusable = ("drained", "down*", "idle*", "maint", "idle$", "mixed@", "reserved", "spoilt")
    lines = [f"n{number}|{state}|Unknown|-|-" for number, state in enumerate((*states, *unusable))]
    slurm.answers("scontrol", SHOWN)
    slurm.answers("sinfo", "".join(f"{line}\n" for line in lines))
    record = ask(slurm, JobState("pending", "PENDING", "Resources"), nodes="")
    (call,) = [line for line in slurm.calls() if line.startswith("sinfo")]
    assert call.endswith("-p main")
    assert [node.state for node in record.nodes] == [*unusable]


def test_preempted_job_lists_other_jobs_on_its_nodes(slurm: FakeSlurm) -> None:
    """Other jobs on its nodes, with their partitions."""
    slurm.answers("scontrol", SHOWN)
    slurm.answers("squeue", "8|ann|high|normal|2026-01-02T03:09:06|n2\n")
    record = ask(slurm, JobState("ended", "PREEMPTED", "", "n[1-3]"))
    assert [(job.job, job.user, job.partition) for job in record.others] == [("8", "ann", "high")]


def test_silent_scheduler_leaves_no_record(slurm: FakeSlurm) -> None:
    """No file is written, and a missing file reads as an empty record."""
    slurm.answers("scontrol", err="Unable to contact slurm controller", rc=1)
    slurm.answers("sinfo", err="Unable to contact slurm controller", rc=1)
    state = JobState("ended", "NODE_FAIL")
    assert SlurmClient(slurm.environ).job_record("7", state, "n1") is None
    assert read_scheduler_record(Path("/nowhere/at/all")).nodes == ()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b'{"schema": 1}\n{"kind": "node", "name": "n1"}\n',
        b'{"schema": 2}\n[]\n{"kind": ["node"]}\n{"kind": "nodes"}\n{"kind": "job", "text": 7}\n{',
    ],
)
def test_invalid_record_is_empty(content: bytes, tmp_path: Path) -> None:
    """Another schema, an unknown kind and a value of the wrong type count as missing."""
    path = tmp_path / "scheduler.jsonl"
    path.write_bytes(content)
    record = read_scheduler_record(path)
    assert not record.job.text and not record.nodes and not record.evidence(record.job)


def test_times_are_numbers_from_slurms_answer_to_the_file(slurm: FakeSlurm) -> None:
    """What Slurm does not know is None: `Unknown` and `N/A` come after any time only as texts."""
    slurm.answers("scontrol", SHOWN.replace("EndTime=2026-01-02T03:09:05", "EndTime=Unknown"))
    slurm.answers("sinfo", NODES)
    slurm.answers("squeue", "8|ann|high|normal|N/A|n2\n")
    record = ask(slurm, JobState("ended", "PREEMPTED", "", "n[1-3]"))
    started = datetime(2026, 1, 2, 3, 4, 5).timestamp()  # in the local zone
    assert (record.job.started, record.job.ended, record.job.preempted) == (started, None, None)
    assert [node.since for node in record.nodes] == [None, started + 295, started - 245]
    assert record.others[0].started is None


@pytest.mark.parametrize("value", ["true", '"2026-01-02T03:04:05"', "1e999", "NaN", "[1]"])
def test_values_that_are_no_times_are_missing(value: str, tmp_path: Path) -> None:
    path = tmp_path / "scheduler.jsonl"
    path.write_text(f'{{"schema": 2}}\n{{"kind": "job", "started": {value}, "ended": 7}}\n')
    job = read_scheduler_record(path).job
    assert (job.started, job.ended) == (None, 7.0)


def test_time_has_the_offset_that_slurm_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of its day: in winter another one than in summer."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/Chicago")
        time.tzset()
        shown = [show_time(at) for at in (1767344945.0, 1783059545.9)]
    time.tzset()
    assert shown == ["2026-01-02T03:09:05-06:00", "2026-07-03T01:19:05-05:00"]


@pytest.mark.parametrize("seconds", [None, 1e300, -1e300, 1e12])
def test_time_that_is_no_date_is_not_shown(seconds: float | None) -> None:
    """The file may hold any number."""
    assert show_time(seconds) == ""


@pytest.mark.parametrize(
    ("nodes", "name"), [("n[0-2]", "n2"), ("n[0-5]", "node 2"), ("", "node 2")]
)
def test_silent_node_gets_the_schedulers_name(nodes: str, name: str, tmp_path: Path) -> None:
    """It is the name in the job's list that no other node has; a list of another length gives no
    name."""
    evidence = Evidence(tmp_path, nodes=3).node(0, ok=False).node(1, ok=False)
    job = ScheduledJob(nodes=nodes, text=f"NodeList={nodes}")
    SchedulerRecord(job).write(evidence.dir.scheduler)
    assert [node.name for node in evidence.result().nodes] == ["n0", "n1", name]
