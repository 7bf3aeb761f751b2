"""A phase is compared with an allocation: whether it fits, and which nodes its step gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.scheduler_record import JobState
from pytest_clustersmoke.jobs.slurm_jobs import AllocatedNode, Allocation
from pytest_clustersmoke.jobs.step_request import StepRequest
from tests.support.evidence import make_phase, make_profile

NOW = 1000.0


def allocation(nodes: int = 4, ends: float | None = None, **keys: int | None) -> Allocation:
    has: dict[str, int | None] = {"cpus": 8, "gpus": 2, **keys}
    held = tuple(AllocatedNode(f"n{number}", **has) for number in range(nodes))
    return Allocation("7", JobState("running", "RUNNING"), 0, held, ends, "")


def request(tmp_path: Path, slurm: Any = None, gpu: str = "any", **marker: Any) -> StepRequest:
    hardware = {"gpu": gpu, "device": "cpu", "gpus_per_node": 8}
    profile = make_profile(tmp_path, backend="slurm", slurm=slurm or {}, hardware=hardware)
    return StepRequest(make_phase(profile, **marker), profile)


def test_nodes_are_left_out_by_a_file_too(tmp_path: Path) -> None:
    """Or with spaces, as for sbatch; a file that cannot be read is a misfit."""
    listed = tmp_path / "bad_nodes"
    listed.write_text("n1\n")
    by_file = request(tmp_path, {"exclude": str(listed)}, nodes=2)
    assert by_file.choose_nodes(allocation(), ()) == ("n0", "n2")
    by_words = request(tmp_path, {"exclude": "n0, n1"}, nodes=2)
    assert by_words.choose_nodes(allocation(), ()) == ("n2", "n3")
    lost = request(tmp_path, {"exclude": str(tmp_path / "gone")}).find_misfit(allocation(), 0.0)
    assert lost is not None and lost.name == "exclude"
    assert lost.what.startswith("the file of its `exclude` cannot be read: [Errno 2]")


def test_step_gets_the_first_free_nodes(tmp_path: Path) -> None:
    """In the allocation's order; none if too few are free."""
    wanted = request(tmp_path, nodes=2)
    assert wanted.choose_nodes(allocation(), {"n0", "n2"}) == ("n1", "n3")
    assert wanted.choose_nodes(allocation(), {"n0", "n1", "n2"}) == ()


def test_options_that_choose_nodes_hold_for_steps(tmp_path: Path) -> None:
    """`exclude` and `nodelist`, as in a job; a step waits for the nodes of `nodelist`."""
    assert request(tmp_path, {"exclude": "n[0-1]"}, nodes=2).choose_nodes(allocation(), ()) == (
        "n2",
        "n3",
    )
    pinned = request(tmp_path, {"nodelist": "n3"}, nodes=2)
    assert pinned.choose_nodes(allocation(), ()) == ("n0", "n3")
    assert pinned.choose_nodes(allocation(), {"n3"}) == ()


@pytest.mark.parametrize(
    ("slurm", "marker", "held", "words", "todo"),
    [
        ({}, {"nodes": 5}, {}, "it needs 5 nodes, and the allocation has 4", "--nodes=5"),
        (
            {},
            {"gpus_per_node": 4},
            {"nodes": 1},
            "it needs 4 GPUs per node, and the allocation has 2 on n0",
            "--gpus-per-node=4",
        ),
        (
            {"cpus_per_task": 16},
            {},
            {"nodes": 2},
            "it needs 16 CPUs per node, and the allocation has 8 on n0, n1",
            "--cpus-per-task=16",
        ),
        (
            {"exclude": "n[1-3]"},
            {"nodes": 2},
            {},
            "it needs 2 nodes that it may use, and the allocation has 1",
            "--exclude=n[1-3]",
        ),
        ({"nodelist": "n8"}, {}, {}, "it needs n8, and the allocation has other nodes", "n8"),
    ],
)
def test_too_small_allocation_is_named(
    slurm: Any, marker: Any, held: Any, words: str, todo: str, tmp_path: Path
) -> None:
    """The reason has both numbers, and what to ask salloc for."""
    misfit = request(tmp_path, slurm, **marker).find_misfit(allocation(**held), NOW)
    assert misfit is not None and not misfit.is_time
    assert misfit.what == words
    assert todo in misfit.todo


def test_unknown_counts_and_clusters_without_gpus_refuse_nothing(tmp_path: Path) -> None:
    """Where Slurm does not say what the allocation has of a node, srun decides."""
    wanted = request(tmp_path, {"cpus_per_task": 16}, gpus_per_node=4)
    assert wanted.find_misfit(allocation(cpus=None, gpus=None), NOW) is None
    assert request(tmp_path, gpu="none").find_misfit(allocation(gpus=0), NOW) is None


def test_allocation_that_ends_before_the_phase_may_is_too_short(tmp_path: Path) -> None:
    """The phase's own limit counts, but not the default of an hour, which nobody chose."""
    misfit = request(tmp_path, timeout_s=60.0).find_misfit(allocation(ends=NOW + 59), NOW)
    assert misfit is not None and misfit.is_time
    assert misfit.what == "it may take 60 s, and the allocation ends in 59 s"
    assert request(tmp_path, timeout_s=60.0).find_misfit(allocation(ends=NOW + 60), NOW) is None
    assert request(tmp_path, timeout_s=3600.0).find_misfit(allocation(ends=NOW + 9), NOW) is None
