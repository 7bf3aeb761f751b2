"""Phases compared with recorded answers of Slurm: every finding has its numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.finding import Finding
from pytest_clustersmoke.evidence.run_directory import PhaseDir
from pytest_clustersmoke.jobs import slurm_records as records
from pytest_clustersmoke.jobs.slurm_jobs import TrialSubmission
from pytest_clustersmoke.preflight import slurm_check
from pytest_clustersmoke.preflight.partition_fit import Slurm
from pytest_clustersmoke.preflight.slurm_check import (
    CheckNotes,
    check_phase,
    report_unavailable_nodes,
)
from tests.preflight import slurm_texts as texts
from tests.support.evidence import make_phase, make_profile

TAKEN = TrialSubmission(True, "")
REFUSED = TrialSubmission(False, "Requested node configuration is not available")
ENFORCED = frozenset({"associations", "limits", "qos"})


def slurm(
    nodes: list[str] | None = None, partitions: list[str] | None = None, **keys: Any
) -> Slurm:
    """By default, three nodes in the partitions `main` and `high`."""
    lines = [texts.node(f"n{i}") for i in range(3)] if nodes is None else nodes
    parts = partitions or [texts.partition(), texts.partition("high", default="NO")]
    return Slurm(
        partitions=records.parse_partitions("\n".join(parts)),
        nodes=records.parse_nodes("\n".join(lines)),
        **keys,
    )


def accounting(**keys: Any) -> Slurm:
    return slurm(
        enforced=ENFORCED,
        qos=records.parse_qos(texts.QOS),
        associations=records.parse_associations(texts.ASSOCIATIONS, "pf"),
        **keys,
    )


Judge = Callable[..., list[Finding]]


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    """A function that returns the findings of the phase `small`."""

    def find(
        answers: Slurm,
        trial: TrialSubmission = TAKEN,
        options: dict[str, Any] | None = None,
        **marker: Any,
    ) -> list[Finding]:
        hardware = {"gpu": "fake", "device": "cpu", "gpus_per_node": 8}
        options = {"partition": "main", **(options or {})}
        profile = make_profile(tmp_path, backend="slurm", hardware=hardware, slurm=options)
        phase = make_phase(profile, **marker)
        record = CheckNotes(PhaseDir(tmp_path / "small"))
        findings = check_phase(phase, profile, answers, trial, record)
        record.write()
        for finding in findings:
            assert finding.severity == "failure" and finding.evidence and finding.fix
        return findings

    return find


def ids(findings: list[Finding]) -> list[str]:
    return [finding.id for finding in findings]


def test_phase_that_fits_has_no_finding(judge: Judge) -> None:
    """With accounting and without; without an answer nothing is reported."""
    assert judge(slurm(), nodes=3, gpus_per_node=2) == []
    assert judge(accounting(), options={"account": "lab", "qos": "normal"}, nodes=3) == []
    assert judge(Slurm(), nodes=64, gpus_per_node=8) == []
    assert judge(Slurm(), TrialSubmission(None, "no answer")) == []


def test_unknown_partition_is_reported(judge: Judge) -> None:
    """The fix is a near match; with several partitions each name is checked."""
    (finding,) = judge(slurm(), options={"partition": "mian"})
    assert finding.id == "partition-unknown" and finding.fix == "did you mean `main`?"
    assert "`high`, `main`" in finding.cause
    assert finding.evidence[0].text == "partition: mian"
    assert ids(judge(slurm(), options={"partition": "main,nope"})) == ["partition-unknown"]


def test_default_partition_is_checked(judge: Judge) -> None:
    """Without a partition, the limits of the default one apply."""
    answers = slurm(partitions=[texts.partition(nodes="1"), texts.partition("high", default="NO")])
    (finding,) = judge(answers, options={"partition": False}, nodes=2)
    assert finding.id == "too-many-nodes" and "allows a job at most 1" in finding.cause


def test_partition_of_slurms_estimate_counts(judge: Judge) -> None:
    """A site's rules may move a job to another partition: where Slurm would start it, names and
    resources are correct, and the limits of that partition apply."""
    nodes = [texts.node("c0", gres="(null)"), texts.node("g0", partitions="high")]
    answers = slurm(nodes)
    assert judge(answers, options={"partition": False}, gpus_per_node=2) != []
    there = TrialSubmission(True, "", start=1.0, nodes="g0", partition="high")
    assert judge(answers, there, {"partition": False}, gpus_per_node=2) == []
    assert judge(answers, there, {"partition": "a-name-of-the-sites"}, gpus_per_node=2) == []
    short = texts.partition("high", default="NO", time="00:30:00")
    limited = slurm(nodes, [texts.partition(), short])
    findings = judge(limited, there, {"partition": False, "time": 60}, gpus_per_node=2)
    assert ids(findings) == ["time-over-limit"]


def test_estimate_on_drained_nodes_does_not_count(judge: Judge) -> None:
    """The drained node is named."""
    answers = slurm([texts.node("n0"), texts.node("n1", state="IDLE+DRAIN", reason="bad disk")])
    there = TrialSubmission(True, "", start=1.0, nodes="n[0-1]", partition="main")
    (finding,) = judge(answers, there, nodes=2)
    assert finding.id == "nodes-unavailable" and finding.hosts == ("n1",)


def test_one_fitting_partition_is_enough(judge: Judge) -> None:
    """A job for several partitions runs in the one that takes it."""
    answers = slurm(partitions=[texts.partition(nodes="1"), texts.partition("high", default="NO")])
    assert judge(answers, options={"partition": "main,high"}, nodes=2) == []
    assert judge(answers, options={"partition": "main"}, nodes=2) != []


@pytest.mark.parametrize("state", ["DOWN", "DRAIN", "INACTIVE"])
def test_partition_that_is_not_up_is_reported(judge: Judge, state: str) -> None:
    """sbatch would accept the job, but it would never start."""
    assert ids(judge(slurm(partitions=[texts.partition(state=state)]))) == ["partition-down"]


def test_all_causes_are_reported(judge: Judge) -> None:
    """Nodes, time, GPUs and CPUs together."""
    answers = slurm(partitions=[texts.partition(nodes="1", time="00:30:00")])
    findings = judge(answers, options={"time": 60, "cpus_per_task": 9}, nodes=2, gpus_per_node=3)
    expected = ["too-many-nodes", "time-over-limit", "too-many-gpus", "submission-refused"]
    assert ids(findings) == expected
    assert "01:00:00" in findings[1].cause and "00:30:00" in findings[1].cause
    assert "asks for 3 GPUs per node on 2 nodes, but no node of" in findings[2].cause
    assert "has more than 2" in findings[2].cause
    assert (
        "asks for 9 CPUs per node on 2 nodes" in findings[3].cause
        and "has more than 8" in findings[3].cause
    )


def test_qos_flag_lifts_the_partition_limit(judge: Judge) -> None:
    """PartitionTimeLimit lifts the time limit of the partition."""
    qos = records.parse_qos("long|PartitionTimeLimit||||\n")
    answers = slurm(partitions=[texts.partition(time="00:30:00")], qos=qos, enforced=ENFORCED)
    assert ids(judge(answers, options={"time": 60})) == ["time-over-limit"]
    assert judge(answers, options={"time": 60, "qos": "long"}) == []


def test_too_few_nodes_with_enough_gpus(judge: Judge) -> None:
    """The finding has the number of nodes that fit."""
    nodes = [texts.node("n0", gres="gpu:a:4"), texts.node("n1"), texts.node("n2")]
    (finding,) = judge(slurm(nodes), nodes=2, gpus_per_node=4)
    assert (
        finding.id == "too-many-gpus"
        and "only 1 of the 3 nodes of partition main has as many" in finding.cause
    )
    assert judge(slurm(nodes), nodes=1, gpus_per_node=4) == []


def test_nodes_that_take_no_jobs_are_named(judge: Judge) -> None:
    """Each has Slurm's reason; if enough other nodes take jobs, there is no finding."""
    nodes = [
        texts.node("n0"),
        texts.node("n1", state="IDLE+DRAIN", reason="bad disk"),
        texts.node("n2", state="DOWN*", reason="Not responding"),
    ]
    (finding,) = judge(slurm(nodes), REFUSED, nodes=2)
    assert finding.id == "nodes-unavailable" and finding.hosts == ("n1", "n2")
    assert "bad disk" in finding.cause and "Not responding" in finding.cause
    assert [evidence.text.split()[0] for evidence in finding.evidence[1:3]] == [
        "NodeName=n1",
        "NodeName=n2",
    ]
    assert finding.evidence[-1].text == REFUSED.message
    assert judge(slurm(nodes), nodes=1) == []


def test_drained_node_without_the_resources_is_ignored(judge: Judge) -> None:
    """Only nodes with the requested resources are candidates."""
    nodes = [texts.node("n0"), texts.node("n1", state="DOWN", gres="(null)"), texts.node("n2")]
    assert judge(slurm(nodes), nodes=2, gpus_per_node=2) == []


def test_rebooting_node_counts_only_if_sbatch_refuses(judge: Judge) -> None:
    """A job waits for a node that reboots; if sbatch refuses the job, that node is the cause."""
    nodes = [texts.node("n0"), texts.node("n1", state="MIXED+DRAIN+REBOOT_REQUESTED")]
    assert judge(slurm(nodes), nodes=2) == []
    (finding,) = judge(slurm(nodes), REFUSED, nodes=2)
    assert finding.id == "nodes-unavailable" and finding.hosts == ("n1",)


def test_node_lists_are_checked(judge: Judge) -> None:
    """A name that does not exist is the user's mistake; a node that is down is not."""
    nodes = [texts.node("n0"), texts.node("n1", state="DOWN", reason="x"), texts.node("n2")]
    (finding,) = judge(slurm(nodes), options={"nodelist": "n[0,5]"})
    assert finding.id == "submission-refused" and "`n5`" in finding.cause
    (finding,) = judge(slurm(nodes), options={"nodelist": "n1"})
    assert finding.id == "nodes-unavailable" and finding.hosts == ("n1",)
    assert judge(slurm(nodes), options={"exclude": "n1"}, nodes=2) == []


def test_unknown_feature_is_reported(judge: Judge) -> None:
    """The fix is a near match; what is no constraint of Slurm's is left to sbatch."""
    nodes = [texts.node("n0", features="a100,ib"), texts.node("n1", features="v100")]
    (finding,) = judge(slurm(nodes), options={"constraint": "a10"})
    assert finding.fix == "did you mean `a100`?" and "`a100`, `ib`, `v100`" in finding.cause
    assert judge(slurm(nodes), options={"constraint": "a100&ib"}) == []
    assert judge(slurm(nodes), options={"constraint": "a100|v100"}, nodes=2) == []
    (finding,) = judge(slurm(nodes), options={"constraint": "(a10|x)&ib"})
    assert "the feature (a10|x)&ib, but" in finding.cause
    assert judge(slurm(nodes), options={"constraint": "a10,x"}) == []


def test_memory_is_compared_in_sbatchs_units(judge: Judge) -> None:
    """0 means all memory of a node."""
    (finding,) = judge(slurm(), options={"mem": "2T"})
    assert "2097152 MiB of memory" in finding.cause and "1048576" in finding.cause
    assert judge(slurm(), options={"mem": 0}) == [] == judge(slurm(), options={"mem": "200G"})


ACCOUNT = TrialSubmission(False, "Invalid account or account/partition combination specified")
QOS = TrialSubmission(False, "Invalid qos specification")


def test_unknown_account_is_reported(judge: Judge) -> None:
    """The finding lists the user's accounts; if sbatch accepts the job there is none."""
    (finding,) = judge(accounting(), ACCOUNT, {"account": "labb"})
    assert finding.id == "account-refused" and finding.fix == "did you mean `lab`?"
    assert finding.evidence[-1].text == ACCOUNT.message
    assert judge(accounting(), TAKEN, {"account": "labb"}) == []


def test_unknown_or_forbidden_qos_is_reported(judge: Judge) -> None:
    """The finding lists the QOS that the user may use."""
    (finding,) = judge(accounting(), QOS, {"account": "lab", "qos": "standbye"})
    assert finding.id == "qos-refused" and "no QOS `standbye`" in finding.cause
    (finding,) = judge(accounting(), QOS, {"account": "root", "qos": "standby"})
    assert "under account root; allowed there: `normal`" in finding.cause


def test_partition_rules_explain_a_refusal(judge: Judge) -> None:
    """The partition's lists of accounts, QOS and groups, if sbatch names the same cause."""
    nodes = [texts.node(f"n{i}", partitions="gpu") for i in range(3)]
    answers = slurm(nodes, [texts.PARTITION_24], groups=frozenset({"users"}))
    options = {"partition": "gpu", "account": "eugen", "qos": "standby"}
    (finding,) = judge(answers, ACCOUNT, options, nodes=2)
    assert finding.id == "account-refused" and "allows only `euge`, `lab`" in finding.cause
    (finding,) = judge(answers, QOS, options, nodes=2)
    assert finding.id == "qos-refused" and "denies it" in finding.cause
    words = TrialSubmission(False, "User's group not permitted to use this partition")
    (finding,) = judge(answers, words, options, nodes=2)
    assert finding.id == "submission-refused" and "`gpu`, `hpc`" in finding.cause


def test_limits_of_a_qos_are_reported(judge: Judge) -> None:
    """Time, nodes per job and GPUs per user, if limits are enforced."""
    options = {"account": "lab", "qos": "standby", "time": 60}
    findings = judge(accounting(), options=options, nodes=2, gpus_per_node=2)
    assert ids(findings) == ["time-over-limit", "too-many-nodes", "too-many-gpus"]
    assert "QOS standby allows a user at most 2 (MaxTRESPU)" in findings[2].cause
    assert "asks for 4 GPUs" in findings[2].cause
    lax = slurm(qos=records.parse_qos(texts.QOS))
    assert judge(lax, options=options, nodes=2, gpus_per_node=2) == []


@pytest.mark.parametrize(
    ("words", "identity"),
    [
        ("Licenses are not available", "submission-refused"),
        (REFUSED.message, "submission-refused"),
        ("QOSMaxGRESPerUser; Job violates accounting/QOS policy", "too-many-gpus"),
    ],
)
def test_unexplained_refusal_quotes_slurm(judge: Judge, words: str, identity: str) -> None:
    """Slurm's own message is the cause, and gives the finding's id if it names a cause."""
    (finding,) = judge(slurm(), TrialSubmission(False, words))
    assert finding.id == identity and words in finding.cause
    assert any(evidence.text == words for evidence in finding.evidence)


def test_controller_that_has_just_started_keeps_no_phase_from_running(judge: Judge) -> None:
    """It refuses whatever needs a node until it has heard of its nodes; nobody has to act."""
    nodes = [texts.node(f"n{i}", state="UNKNOWN") for i in range(3)]
    assert judge(slurm(nodes), REFUSED) == []
    other = TrialSubmission(False, "Invalid account")
    assert ids(judge(slurm(nodes), other)) == ["account-refused"]


def test_other_cause_of_a_refusal_is_added(judge: Judge) -> None:
    """Slurm names one cause at a time; if ours differ, its cause is a finding as well."""
    answers = slurm(partitions=[texts.partition(time="00:30:00")])
    findings = judge(answers, ACCOUNT, {"time": 60})
    assert ids(findings) == ["time-over-limit", "account-refused"]


def test_evidence_is_in_the_record(judge: Judge, tmp_path: Path) -> None:
    """Each line to which a finding points exists."""
    findings = judge(slurm([texts.node("n0", state="DOWN", reason="gone")]), REFUSED)
    lines = (tmp_path / "small" / "preflight.txt").read_text().splitlines()
    evidence = [item for item in findings[0].evidence if item.file.endswith("preflight.txt")]
    assert evidence and all(lines[item.line - 1] == item.text for item in evidence)


def test_nodes_out_of_service_are_reported_once(tmp_path: Path) -> None:
    """One line per partition that phases use, with a limited number of nodes."""
    nodes = [texts.node("n0"), texts.node("x", state="DOWN", partitions="other")]
    nodes += [
        texts.node(f"d{i}", state="DOWN", reason="r") for i in range(slurm_check.MAX_LINES + 3)
    ]
    profile = make_profile(tmp_path, backend="slurm", slurm={"partition": "main"})
    phases = [make_phase(profile), make_phase(profile)]
    (line,) = report_unavailable_nodes(phases, slurm(nodes))
    assert line.startswith("13 of the 14 nodes of partition main take no jobs: d0 is down (r; root")
    assert line.endswith("; and 3 more") and "x is" not in line
    assert report_unavailable_nodes(phases, slurm()) == []


def test_time_that_follows_from_the_phases_limit_is_compared(judge: Judge) -> None:
    """The job asks for it, so Slurm would refuse it or never start it; the default limit, which
    nobody chose, is left to the partition."""
    short = slurm(partitions=[texts.partition(time="02:00:00")])
    (finding,) = judge(short, timeout_s=7200.0)
    assert (
        finding.id == "time-over-limit" and "asks for 02:01:00, but partition main" in finding.cause
    )
    assert finding.fix.startswith("lower `timeout_s`, so that the job asks for at most 02:00:00")
    assert finding.evidence[0].text == "timeout_s: 7200.0"
    assert judge(short, timeout_s=7000.0) == []
    assert judge(slurm(partitions=[texts.partition(time="00:30:00")])) == []


def test_nodes_left_out_by_a_file_or_with_spaces_are_known(judge: Judge, tmp_path: Path) -> None:
    """sbatch takes both; a file that cannot be read is named."""
    listed, busy = tmp_path / "bad_nodes", TrialSubmission(None, "Requested nodes are busy")
    listed.write_text("n0\nn1\n")
    for exclude in (str(listed), "n0, n1"):
        assert judge(slurm(), busy, {"exclude": exclude}) == []
        drained = slurm([*map(texts.node, ("n0", "n1")), texts.node("n2", state="DOWN")])
        (finding,) = judge(drained, busy, {"exclude": exclude})
        assert finding.id == "nodes-unavailable" and finding.hosts == ("n2",)
    (finding,) = judge(slurm(), busy, {"exclude": str(tmp_path / "gone")})
    words = "`exclude` of phase small names a file that cannot be read: [Errno 2]"
    assert finding.id == "submission-refused" and finding.cause.startswith(words)


@pytest.mark.parametrize("state", ["IDLE+RESERVED", "IDLE+MAINTENANCE"])
def test_nodes_of_the_jobs_own_reservation_are_not_away(judge: Judge, state: str) -> None:
    """The mistake that Slurm refuses is elsewhere; without a reservation they are not to be had."""
    answers = slurm([texts.node(f"n{number}", state=state) for number in range(3)])
    reserved = judge(answers, REFUSED, {"reservation": "burnin"}, nodes=3)
    assert ids(reserved) == ["submission-refused"]
    assert ids(judge(answers, REFUSED, nodes=3)) == ["nodes-unavailable"]


def test_cores_that_slurm_keeps_for_the_system_do_not_count(judge: Judge) -> None:
    """Unless the job asks for them."""
    answers = slurm([texts.node().replace("CPUEfctv=8", "CPUEfctv=6")])
    (finding,) = judge(answers, REFUSED, {"cpus_per_task": 8})
    assert finding.id == "submission-refused" and "has more than 6" in finding.cause
    (finding,) = judge(answers, REFUSED, {"cpus_per_task": 8, "core_spec": 0})
    assert "has more than" not in finding.cause


def test_unknown_qos_may_lift_a_limit_where_slurm_would_start_the_phase(judge: Judge) -> None:
    """slurmdbd did not answer: the phase is not refused. Without a QOS, or without limits that are
    enforced, it is, since Slurm also says when it would start a job that never does."""
    short = [texts.partition(time="00:30:00")]
    there = TrialSubmission(True, "", start=1.0, nodes="n0", partition="main")
    options = {"qos": "long", "time": 60}
    unknown = slurm(partitions=short, enforced=ENFORCED)
    assert judge(unknown, there, options) == []
    assert ids(judge(unknown, REFUSED, options))[0] == "time-over-limit"
    assert ids(judge(unknown, there, {"time": 60})) == ["time-over-limit"]
    for enforced in (frozenset[str](), frozenset({"none"})):
        answers = slurm(partitions=short, enforced=enforced)
        assert ids(judge(answers, there, options)) == ["time-over-limit"]
