"""Which nodes are screened, and in which words the others are left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_clustersmoke.jobs.screen_plan import plan_screen
from pytest_clustersmoke.jobs.slurm_client import SlurmClient
from pytest_clustersmoke.jobs.slurm_jobs import parse_partition_nodes
from pytest_clustersmoke.jobs.slurm_records import add_zone, names_own_limit
from tests.fakes.slurm import FakeSlurm

SINFO = """\
debug|(null)|n9|idle|Unknown|Unknown|none
gpu*|(null)|n1|idle|Unknown|Unknown|none
gpu*|(null)|n2|allocated|Unknown|Unknown|none
gpu*|(null)|n3|drained*|2026-11-01T08:00:00|root|bad | fan
gpu*|(null)|n4|down|2026-11-01T08:00:00|slurm|Not responding
gpu*|(null)|n5|idle~|Unknown|Unknown|none
gpu*|(null)|n6|reserved|Unknown|Unknown|none
gpu*|(null)|n7|planned|Unknown|Unknown|none
big|(null)|n1|idle|Unknown|Unknown|none
"""


def test_nodes_of_the_default_partition_are_taken_if_the_profile_names_none(tmp_path: Path) -> None:
    """One question to sinfo; each node once."""
    fake = FakeSlurm(tmp_path)
    fake.answers("sinfo", SINFO)
    partition, nodes = SlurmClient(fake.environ).partition_nodes()
    assert partition == "gpu" and [node.name for node in nodes] == [f"n{i}" for i in range(1, 8)]
    assert fake.commands() == ["sinfo"]
    assert [node.name for node in parse_partition_nodes(SINFO, "big,debug")[1]] == ["n1", "n9"]


def test_only_idle_nodes_are_screened_and_the_others_keep_slurms_words() -> None:
    nodes = parse_partition_nodes(SINFO)[1]
    plan, problems = plan_screen(nodes)
    assert problems == []
    assert [node.name for node in plan if not node.skip] == ["n1", "n7"]
    skipped = {node.name: node.skip for node in plan if node.skip}
    assert skipped == {
        "n2": "busy",
        "n3": "drained",
        "n4": "down",
        "n5": "powered down",
        "n6": "reserved",
    }
    (drained,) = (node for node in plan if node.name == "n3")
    assert drained.why == f"n3 is drained*: bad | fan [root@{add_zone('2026-11-01T08:00:00')}]"


def test_nodes_of_a_reservation_are_free_for_who_uses_it() -> None:
    plan, _ = plan_screen(parse_partition_nodes(SINFO)[1], options={"reservation": "r"})
    assert [node.name for node in plan if not node.skip] == ["n1", "n6", "n7"]


@pytest.mark.parametrize("state", ["maint", "idle$", "maint$"])
def test_nodes_of_a_reservation_for_maintenance_are_free_for_who_uses_it(state: str) -> None:
    """As for the acceptance of repaired nodes."""
    nodes = parse_partition_nodes(f"gpu*|(null)|n1|{state}|Unknown|Unknown|none\n")[1]
    (used,), _ = plan_screen(nodes, options={"reservation": "accept"})
    (other,), _ = plan_screen(nodes)
    assert not used.skip and other.skip == "in maintenance"


MIXED = """\
gpu*|h100,ib|n1|idle|Unknown|Unknown|none
gpu*|a100,ib|n2|idle|Unknown|Unknown|none
gpu*|h100|n3|idle|Unknown|Unknown|none
gpu*|(null)|n4|drained|2026-11-01T08:00:00|root|fan
gpu*|h100,ib|n5|idle|Unknown|Unknown|none
"""


def skipped_by(**options: str) -> dict[str, str]:
    """The nodes of the mixed partition that are not screened, and the words."""
    plan, _ = plan_screen(parse_partition_nodes(MIXED)[1], options=options)
    return {node.name: node.skip for node in plan if node.skip}


def test_only_nodes_that_the_profiles_jobs_may_have_are_screened() -> None:
    """Those that its constraint allows, and not those that it excludes."""
    others = {"n2": "other features", "n4": "other features"}
    assert skipped_by(constraint="h100") == others
    assert skipped_by(constraint="h100&ib") == {**others, "n3": "other features"}
    assert skipped_by(constraint="h100|a100") == {"n4": "other features"}
    assert skipped_by(constraint="ib&[h100*2&a100*1]") == {
        "n3": "other features",
        "n4": "other features",
    }
    assert skipped_by(exclude="n[1-2]") == {
        **dict.fromkeys(("n1", "n2"), "excluded by the profile"),
        "n4": "drained",
    }
    plan, _ = plan_screen(parse_partition_nodes(MIXED)[1], options={"constraint": "h100&ib"})
    assert plan[2].why == "n3 lacks ib, which `slurm.constraint` asks for"


@pytest.mark.parametrize(
    ("state", "word"),
    [
        ("draining", "drained"),
        ("down*", "down"),
        ("down~", "down"),
        ("powering_up", "powering up"),
        ("idle#", "powering up"),
        ("powered_down", "powered down"),
        ("maint", "in maintenance"),
        ("idle$", "in maintenance"),
        ("reboot^", "in maintenance"),
        ("fail", "down"),
        ("mixed", "busy"),
        ("completing", "busy"),
        ("idle*", "down"),
    ],
)
def test_each_state_that_takes_no_job_has_a_word(state: str, word: str) -> None:
    (_, nodes) = parse_partition_nodes(f"p*|(null)|n1|{state}|Unknown|Unknown|none")
    assert plan_screen(nodes)[0][0].skip == word


def test_host_list_chooses_nodes_and_a_name_that_is_none_is_refused() -> None:
    nodes = parse_partition_nodes(SINFO)[1]
    assert [node.name for node in plan_screen(nodes, "n[1-2]")[0]] == ["n1", "n2"]
    (problem,) = plan_screen(nodes, "n[1-2],m3")[1]
    assert "has no node m3" in str(problem) and "--cluster-nodes" in str(problem)


@pytest.mark.parametrize(
    "words",
    [
        "QOSMaxSubmitJobPerUserLimit",
        "AssocMaxJobsLimit",
        "QOSMaxJobsPerUserLimit",
        "QOSGrpNodeLimit",
        "AssocGrpNodeLimit",
        "QOSMaxNodePerUserLimit",
        "sbatch: error: AssocMaxSubmitJobLimit",
        "Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's "
        "size and/or time limits)",
    ],
)
def test_limits_of_the_user_are_told_from_other_reasons(words: str) -> None:
    assert names_own_limit(words)
    for other in ("Resources", "Priority", "ReqNodeNotAvail", "invalid partition specified"):
        assert not names_own_limit(other)


def test_file_of_nodes_is_read_as_sbatch_reads_it(tmp_path: Path) -> None:
    """One that cannot be read is a problem, and no node is screened."""
    listed = tmp_path / "bad_nodes"
    nodes = parse_partition_nodes(SINFO)[1]
    listed.write_text(f"# {nodes[1].name} is back\n{nodes[0].name}  # its fan\n")
    plan, problems = plan_screen(nodes, options={"exclude": str(listed)})
    assert plan[0].skip == "excluded by the profile" and problems == []
    assert plan[1].skip != "excluded by the profile"
    listed.unlink()
    plan, (problem,) = plan_screen(nodes, options={"exclude": str(listed)})
    assert plan == [] and "slurm.exclude: its file cannot be read" in str(problem)
