"""What Slurm says of a job that did not end well: what is asked, and how the answers are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_clustersmoke import told
from pytest_clustersmoke.submit import JobState, details

from .evidence import Evidence
from .test_scheduler import FakeSlurm

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
    fake = FakeSlurm(tmp_path)
    (tmp_path / "bin" / "sinfo").symlink_to((tmp_path / "bin" / "squeue").readlink())
    return fake


def ask(slurm: FakeSlurm, state: JobState, nodes: str = "n[1-3]") -> told.Told:
    path = slurm.folder / "scheduler.txt"
    path.write_text(details.ask("7", state, nodes, slurm.environ))
    return told.read(path)


def test_a_failed_nodes_state_reason_and_time_are_read(slurm: FakeSlurm) -> None:
    """Each node once, with the line where it stands; a reason may hold the separator."""
    slurm.answers("scontrol", SHOWN + "\n")
    slurm.answers("sinfo", NODES)
    found = ask(slurm, JobState("ended", "NODE_FAIL", "NodeDown", "n[1-3]"))
    assert found.of_job("EndTime") == "2026-01-02T03:09:05"
    assert found.of_job("QOS") == "" == found.of_job("Nope")
    assert [(one.name, one.down, one.drained) for one in found.nodes] == [
        ("n1", False, False),
        ("n2", True, False),
        ("n3", False, True),
    ]
    assert found.nodes[1].why == "n2 is down*: Not responding [root@2026-01-02T03:09:00]"
    assert found.nodes[2].reason == "bad | dimm"
    lines = found.path.read_text().splitlines()
    assert all(lines[one.line - 1] == one.text for one in found.nodes)
    assert lines[found.job_line - 1] == SHOWN
    assert slurm.commands() == ["scontrol", "sinfo"]


def test_who_cancelled_is_read_from_accounting(slurm: FakeSlurm) -> None:
    """The database's user id, of the last record."""
    slurm.answers("scontrol", SHOWN)
    rows = "7|REQUEUED|0:0|n1|2026-01-02T03:04:05\n7|CANCELLED by 1000|0:0|n1|2026-01-02T03:04:09\n"
    slurm.answers("sacct", rows)
    found = ask(slurm, JobState("ended", "CANCELLED"))
    assert found.cancelled_by == 1000
    assert [one.state for one in found.records] == ["REQUEUED", "CANCELLED by 1000"]


def test_a_database_that_lags_is_asked_again(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It still says RUNNING: so it is asked until time is up, and then nobody is named."""
    monkeypatch.setattr(details, "RECORD_LAG_S", 0.2)
    monkeypatch.setattr(details, "RECORD_POLL_S", 0.01)
    slurm.answers("sacct", "7|RUNNING|0:0|n1|Unknown\n")
    found = ask(slurm, JobState("ended", "CANCELLED"))
    assert found.cancelled_by is None
    assert slurm.commands().count("sacct") > 1


def test_without_accounting_nobody_is_named_and_nothing_is_asked_again(slurm: FakeSlurm) -> None:
    """sacct ends with an error at once where there is no database."""
    slurm.answers("scontrol", SHOWN)
    slurm.answers("sacct", err="Slurm accounting storage is disabled", rc=1)
    found = ask(slurm, JobState("ended", "CANCELLED"))
    assert found.cancelled_by is None and found.records == ()
    assert slurm.commands().count("sacct") == 1


def test_a_job_that_never_had_nodes_is_told_those_of_its_partition(slurm: FakeSlurm) -> None:
    """Only nodes that cannot be used are asked for."""
    slurm.answers("scontrol", SHOWN)
    slurm.answers("sinfo", NODES)
    ask(slurm, JobState("pending", "PENDING", "Resources"), nodes="")
    (call,) = [one for one in slurm.calls() if one.startswith("sinfo")]
    assert "-p main -t down,drained" in call


def test_a_preempted_job_is_told_who_has_its_nodes(slurm: FakeSlurm) -> None:
    """Other jobs on its nodes, with their partitions."""
    slurm.answers("scontrol", SHOWN)
    slurm.answers("squeue", "8|ann|high|normal|2026-01-02T03:09:06|n2\n")
    found = ask(slurm, JobState("ended", "PREEMPTED", "", "n[1-3]"))
    assert [(one.job, one.user, one.partition) for one in found.others] == [("8", "ann", "high")]


def test_a_scheduler_that_does_not_answer_tells_nothing(slurm: FakeSlurm) -> None:
    """No file is worth writing then, and one that is missing reads as nothing told."""
    slurm.answers("scontrol", err="Unable to contact slurm controller", rc=1)
    slurm.answers("sinfo", err="Unable to contact slurm controller", rc=1)
    assert details.ask("7", JobState("ended", "NODE_FAIL"), "n1", slurm.environ) == ""
    assert told.read(Path("/nowhere/at/all")).nodes == ()


def test_an_answer_cannot_pass_as_a_question(slurm: FakeSlurm) -> None:
    """A drain reason with a newline and a `$` makes no block of its own."""
    slurm.answers("scontrol", SHOWN + "\n$ sacct -j 7\n7|CANCELLED by 1|0:0|n1|x\n")
    found = ask(slurm, JobState("ended", "NODE_FAIL"))
    assert found.records == () and found.cancelled_by is None


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"$ \n$ sinfo\n||||\n|\n"])
def test_any_content_is_read(content: bytes, tmp_path: Path) -> None:
    """Whatever is not of the known form counts as not told."""
    path = tmp_path / "scheduler.txt"
    path.write_bytes(content)
    found = told.read(path)
    assert not found.job and not found.records


@pytest.mark.parametrize(
    ("nodes", "name"), [("n[0-2]", "n2"), ("n[0-5]", "node 2"), ("", "node 2")]
)
def test_a_node_that_wrote_nothing_has_the_schedulers_name(
    nodes: str, name: str, tmp_path: Path
) -> None:
    """It is the one of the job's list that no other node has; a list that does not fit says
    nothing."""
    evidence = Evidence(tmp_path, nodes=3).node(0, ok=False).node(1, ok=False)
    evidence.dir.scheduler.write_text(f"$ scontrol -o show job 7\nJobId=7 NodeList={nodes}\n")
    assert [node.name for node in evidence.result().nodes] == ["n0", "n1", name]
