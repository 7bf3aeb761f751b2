"""A phase against recorded answers of Slurm: every cause with its numbers, and nothing invented."""

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
    """Three nodes in `main` and `high`, unless said otherwise."""
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
    """The findings of the phase `small` with these sbatch options and resources."""

    def find(
        told: Slurm,
        trial: TrialSubmission = TAKEN,
        options: dict[str, Any] | None = None,
        **marker: Any,
    ) -> list[Finding]:
        hardware = {"gpu": "fake", "device": "cpu", "gpus_per_node": 8}
        options = {"partition": "main", **(options or {})}
        profile = make_profile(tmp_path, backend="slurm", hardware=hardware, slurm=options)
        phase = make_phase(profile, **marker)
        record = CheckNotes(PhaseDir(tmp_path / "small"))
        found = check_phase(phase, profile, told, trial, record)
        record.write()
        for one in found:
            assert one.severity == "failure" and one.evidence and one.fix
        return found

    return find


def ids(found: list[Finding]) -> list[str]:
    return [one.id for one in found]


def test_what_fits_has_no_finding(judge: Judge) -> None:
    """Three nodes for three, with accounting and without; nothing told, nothing found."""
    assert judge(slurm(), nodes=3, gpus_per_node=2) == []
    assert judge(accounting(), options={"account": "lab", "qos": "normal"}, nodes=3) == []
    assert judge(Slurm(), nodes=64, gpus_per_node=8) == []
    assert judge(Slurm(), TrialSubmission(None, "no answer")) == []


def test_a_partition_that_is_not_there(judge: Judge) -> None:
    """The near one is the next step; of several partitions each is looked for."""
    (found,) = judge(slurm(), options={"partition": "mian"})
    assert found.id == "partition-unknown" and found.fix == "did you mean `main`?"
    assert "`high`, `main`" in found.cause
    assert found.evidence[0].text == "partition: mian"
    assert ids(judge(slurm(), options={"partition": "main,nope"})) == ["partition-unknown"]


def test_without_a_partition_the_default_one_is_meant(judge: Judge) -> None:
    """Its limits hold."""
    told = slurm(partitions=[texts.partition(nodes="1"), texts.partition("high", default="NO")])
    (found,) = judge(told, options={"partition": False}, nodes=2)
    assert found.id == "too-many-nodes" and "allows a job at most 1" in found.cause


def test_where_slurm_would_start_the_job_counts(judge: Judge) -> None:
    """A site's rules may put a job into another partition than the default one, or than one that is
    no partition at all: what Slurm would start lacks nothing, and that partition's limits hold."""
    nodes = [texts.node("c0", gres="(null)"), texts.node("g0", partitions="high")]
    told = slurm(nodes)
    assert judge(told, options={"partition": False}, gpus_per_node=2) != []
    there = TrialSubmission(True, "", start=1.0, nodes="g0", partition="high")
    assert judge(told, there, {"partition": False}, gpus_per_node=2) == []
    assert judge(told, there, {"partition": "a-name-of-the-sites"}, gpus_per_node=2) == []
    short = texts.partition("high", default="NO", time="00:30:00")
    limited = slurm(nodes, [texts.partition(), short])
    found = judge(limited, there, {"partition": False, "time": 60}, gpus_per_node=2)
    assert ids(found) == ["time-over-limit"]


def test_an_estimate_on_nodes_that_take_no_jobs_is_not_believed(judge: Judge) -> None:
    """They are named all the same."""
    told = slurm([texts.node("n0"), texts.node("n1", state="IDLE+DRAIN", reason="bad disk")])
    there = TrialSubmission(True, "", start=1.0, nodes="n[0-1]", partition="main")
    (found,) = judge(told, there, nodes=2)
    assert found.id == "nodes-unavailable" and found.hosts == ("n1",)


def test_of_several_partitions_one_that_fits_is_enough(judge: Judge) -> None:
    """A job for either runs in the one that takes it."""
    told = slurm(partitions=[texts.partition(nodes="1"), texts.partition("high", default="NO")])
    assert judge(told, options={"partition": "main,high"}, nodes=2) == []
    assert judge(told, options={"partition": "main"}, nodes=2) != []


@pytest.mark.parametrize("state", ["DOWN", "DRAIN", "INACTIVE"])
def test_a_partition_that_starts_nothing(judge: Judge, state: str) -> None:
    """Even where sbatch would take the job."""
    assert ids(judge(slurm(partitions=[texts.partition(state=state)]))) == ["partition-down"]


def test_everything_is_told_at_once(judge: Judge) -> None:
    """Nodes, time, GPUs and CPUs."""
    told = slurm(partitions=[texts.partition(nodes="1", time="00:30:00")])
    found = judge(told, options={"time": 60, "cpus_per_task": 9}, nodes=2, gpus_per_node=3)
    wanted = ["too-many-nodes", "time-over-limit", "too-many-gpus", "submission-refused"]
    assert ids(found) == wanted
    assert "01:00:00" in found[1].cause and "00:30:00" in found[1].cause
    assert "asks for 3 GPUs per node on 2 nodes, but no node of" in found[2].cause
    assert "has more than 2" in found[2].cause
    assert (
        "asks for 9 CPUs per node on 2 nodes" in found[3].cause
        and "has more than 8" in found[3].cause
    )


def test_a_qos_may_lift_its_partitions_limits(judge: Judge) -> None:
    """As Slurm does by the QOS's flags."""
    qos = records.parse_qos("long|PartitionTimeLimit||||\n")
    told = slurm(partitions=[texts.partition(time="00:30:00")], qos=qos, enforced=ENFORCED)
    assert ids(judge(told, options={"time": 60})) == ["time-over-limit"]
    assert judge(told, options={"time": 60, "qos": "long"}) == []


def test_only_some_nodes_have_what_is_asked(judge: Judge) -> None:
    """How many have it is told."""
    nodes = [texts.node("n0", gres="gpu:a:4"), texts.node("n1"), texts.node("n2")]
    (found,) = judge(slurm(nodes), nodes=2, gpus_per_node=4)
    assert (
        found.id == "too-many-gpus"
        and "only 1 of the 3 nodes of partition main has as many" in found.cause
    )
    assert judge(slurm(nodes), nodes=1, gpus_per_node=4) == []


def test_too_few_nodes_take_jobs(judge: Judge) -> None:
    """Each that does not is named with Slurm's reason; enough that do are no finding."""
    nodes = [
        texts.node("n0"),
        texts.node("n1", state="IDLE+DRAIN", reason="bad disk"),
        texts.node("n2", state="DOWN*", reason="Not responding"),
    ]
    (found,) = judge(slurm(nodes), REFUSED, nodes=2)
    assert found.id == "nodes-unavailable" and found.hosts == ("n1", "n2")
    assert "bad disk" in found.cause and "Not responding" in found.cause
    assert [one.text.split()[0] for one in found.evidence[1:3]] == ["NodeName=n1", "NodeName=n2"]
    assert found.evidence[-1].text == REFUSED.words
    assert judge(slurm(nodes), nodes=1) == []


def test_a_drained_node_that_could_not_run_it_anyway_is_not_counted(judge: Judge) -> None:
    """Only nodes that have what is asked for are candidates."""
    nodes = [texts.node("n0"), texts.node("n1", state="DOWN", gres="(null)"), texts.node("n2")]
    assert judge(slurm(nodes), nodes=2, gpus_per_node=2) == []


def test_nodes_that_come_back_count_only_where_slurm_says_no(judge: Judge) -> None:
    """A job waits for a node that reboots; where sbatch refuses, that node is why."""
    nodes = [texts.node("n0"), texts.node("n1", state="MIXED+DRAIN+REBOOT_REQUESTED")]
    assert judge(slurm(nodes), nodes=2) == []
    (found,) = judge(slurm(nodes), REFUSED, nodes=2)
    assert found.id == "nodes-unavailable" and found.hosts == ("n1",)


def test_nodes_that_are_named(judge: Judge) -> None:
    """One that is not there is a slip; one that is down is the cluster's."""
    nodes = [texts.node("n0"), texts.node("n1", state="DOWN", reason="x"), texts.node("n2")]
    (found,) = judge(slurm(nodes), options={"nodelist": "n[0,5]"})
    assert found.id == "submission-refused" and "`n5`" in found.cause
    (found,) = judge(slurm(nodes), options={"nodelist": "n1"})
    assert found.id == "nodes-unavailable" and found.hosts == ("n1",)
    assert judge(slurm(nodes), options={"exclude": "n1"}, nodes=2) == []


def test_features(judge: Judge) -> None:
    """One that no node has is told with the near one; an expression is sbatch's to read."""
    nodes = [texts.node("n0", features="a100,ib"), texts.node("n1", features="v100")]
    (found,) = judge(slurm(nodes), options={"constraint": "a10"})
    assert found.fix == "did you mean `a100`?" and "`a100`, `ib`, `v100`" in found.cause
    assert judge(slurm(nodes), options={"constraint": "a100&ib"}) == []
    assert judge(slurm(nodes), options={"constraint": "[a10*2|x]"}) == []


def test_memory(judge: Judge) -> None:
    """In sbatch's units; 0 is all there is."""
    (found,) = judge(slurm(), options={"mem": "2T"})
    assert "2097152 MiB of memory" in found.cause and "1048576" in found.cause
    assert judge(slurm(), options={"mem": 0}) == [] == judge(slurm(), options={"mem": "200G"})


ACCOUNT = TrialSubmission(False, "Invalid account or account/partition combination specified")
QOS = TrialSubmission(False, "Invalid qos specification")


def test_an_account_of_somebody_else(judge: Judge) -> None:
    """The user's own are listed; where sbatch takes the job nothing is wrong with it."""
    (found,) = judge(accounting(), ACCOUNT, {"account": "labb"})
    assert found.id == "account-refused" and found.fix == "did you mean `lab`?"
    assert found.evidence[-1].text == ACCOUNT.words
    assert judge(accounting(), TAKEN, {"account": "labb"}) == []


def test_a_qos_that_is_not_there_or_not_allowed(judge: Judge) -> None:
    """The user's own are listed."""
    (found,) = judge(accounting(), QOS, {"account": "lab", "qos": "standbye"})
    assert found.id == "qos-refused" and "no QOS `standbye`" in found.cause
    (found,) = judge(accounting(), QOS, {"account": "root", "qos": "standby"})
    assert "under account root; allowed there: `normal`" in found.cause


def test_what_a_partition_allows(judge: Judge) -> None:
    """Accounts, QOS and groups of the partition's own lists, where sbatch says the same."""
    nodes = [texts.node(f"n{i}", partitions="gpu") for i in range(3)]
    told = slurm(nodes, [texts.PARTITION_24], groups=frozenset({"users"}))
    options = {"partition": "gpu", "account": "eugen", "qos": "standby"}
    (found,) = judge(told, ACCOUNT, options, nodes=2)
    assert found.id == "account-refused" and "allows only `euge`, `lab`" in found.cause
    (found,) = judge(told, QOS, options, nodes=2)
    assert found.id == "qos-refused" and "denies it" in found.cause
    words = TrialSubmission(False, "User's group not permitted to use this partition")
    (found,) = judge(told, words, options, nodes=2)
    assert found.id == "submission-refused" and "`gpu`, `hpc`" in found.cause


def test_limits_of_a_qos(judge: Judge) -> None:
    """Time, nodes a job and GPUs a user; not where limits are not enforced."""
    options = {"account": "lab", "qos": "standby", "time": 60}
    found = judge(accounting(), options=options, nodes=2, gpus_per_node=2)
    assert ids(found) == ["time-over-limit", "too-many-nodes", "too-many-gpus"]
    assert "QOS standby allows a user at most 2 (MaxTRESPU)" in found[2].cause
    assert "asks for 4 GPUs" in found[2].cause
    lax = slurm(qos=records.parse_qos(texts.QOS))
    assert judge(lax, options=options, nodes=2, gpus_per_node=2) == []


@pytest.mark.parametrize(
    ("words", "identity"),
    [
        ("Licenses are not available", "submission-refused"),
        (REFUSED.words, "submission-refused"),
        ("QOSMaxGRESPerUser; Job violates accounting/QOS policy", "too-many-gpus"),
    ],
)
def test_a_refusal_that_nothing_explains(judge: Judge, words: str, identity: str) -> None:
    """Slurm's own words are the cause; the id follows them where they name one."""
    (found,) = judge(slurm(), TrialSubmission(False, words))
    assert found.id == identity and words in found.cause
    assert any(one.text == words for one in found.evidence)


def test_a_refusal_for_another_cause_is_told_beside_ours(judge: Judge) -> None:
    """Slurm names one cause at a time: what it says and we did not see is a finding, too."""
    told = slurm(partitions=[texts.partition(time="00:30:00")])
    found = judge(told, ACCOUNT, {"time": 60})
    assert ids(found) == ["time-over-limit", "account-refused"]


def test_evidence_stands_in_the_record(judge: Judge, tmp_path: Path) -> None:
    """Each line that a finding points to is there."""
    found = judge(slurm([texts.node("n0", state="DOWN", reason="gone")]), REFUSED)
    lines = (tmp_path / "small" / "preflight.txt").read_text().splitlines()
    told = [one for one in found[0].evidence if one.file.endswith("preflight.txt")]
    assert told and all(lines[one.line - 1] == one.text for one in told)


def test_nodes_out_of_service_are_said_once(tmp_path: Path) -> None:
    """One line a partition, of those that phases use, and no more nodes than fit a line."""
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
