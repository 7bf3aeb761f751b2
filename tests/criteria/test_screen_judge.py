"""A screened node is judged alone and against the others; what most nodes have is no failure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_clustersmoke.criteria.screen_judge import CHECKS, PARTS, judge_screen
from pytest_clustersmoke.evidence.screen_files import NodeAnswer
from pytest_clustersmoke.node.checks import BETWEEN_NODES, ON_A_NODE
from pytest_clustersmoke.node.checks.gpu_checks import ECC_ERRORS
from pytest_clustersmoke.node.node_facts import fact_groups
from tests.support.screens import SPEC, answer, healthy


def failures(answers: list[NodeAnswer], **spec: Any) -> dict[tuple[str, str], str]:
    """By node and check, the id of what failed."""
    judged = judge_screen(answers, {**SPEC, **spec})
    return {
        (node, name): check.id
        for node, checks in judged.items()
        for name, check in checks.items()
        if check.result == "failed"
    }


def test_healthy_nodes_pass_every_check_that_applies() -> None:
    judged = judge_screen(healthy(8), SPEC)
    assert all(list(checks) == list(CHECKS) for checks in judged.values())
    results = {name: check.result for name, check in judged["n3"].items()}
    assert results == {**dict.fromkeys(CHECKS, "passed"), "rdma": "skipped"}


def test_each_check_names_the_part_of_the_facts_that_it_reads() -> None:
    """Where that part hung, the check fails."""
    assert set(PARTS) == {*ON_A_NODE, *BETWEEN_NODES}
    answers = [*healthy(3), replace(answer("stuck"), cut=dict.fromkeys(PARTS.values(), "no end"))]
    assert {check for _, check in failures(answers)} == set(PARTS)


def test_full_directory_of_one_node_is_a_failure_and_that_of_all_a_setting() -> None:
    """A job copes with it, so it is a warning there."""
    full = {"tmp": {"path": "/tmp", "error": "No space left", "instead": "/var/tmp"}}
    answers = [*healthy(7), answer("bad", **full)]
    assert failures(answers) == {("bad", "system"): "tmp-not-writable"}
    judged = judge_screen([answer(f"n{number}", **full) for number in range(8)], SPEC)
    assert all(checks["system"].result == "passed" for checks in judged.values())
    assert "warning: cannot create files in /tmp" in judged["n1"]["system"].text


def test_other_driver_is_named_against_the_majority_and_of_two_neither() -> None:
    gpus = [{**g, "driver_version": "535.1"} for g in answer("x").facts["gpus"]]
    assert failures([*healthy(3), answer("odd", gpus=gpus)]) == {
        ("odd", "driver"): "driver-differs"
    }
    assert failures([answer("a"), answer("b", gpus=gpus)]) == {}


def test_without_a_majority_no_node_is_to_blame() -> None:
    """Two versions on two nodes, or two drivers on the only two nodes with GPUs: warnings."""
    other = answer("b", packages={"torch": "2.6.0"})
    assert failures([answer("a"), other]) == {}
    judged = judge_screen([answer("a"), other], SPEC)["b"]["versions"]
    assert judged.result == "passed"
    assert judged.text == "warning: torch differs: 2.5.1 on a; 2.6.0 on b"
    assert failures([*healthy(2), other]) == {("b", "versions"): "versions-differ"}
    gpus = [{**g, "driver_version": "535.1"} for g in answer("x").facts["gpus"]]
    without = [answer(f"cpu{n}", gpus=[], gpu_driver=False) for n in range(4)]
    found = failures([answer("a"), answer("b", gpus=gpus), *without])
    assert not {check for _, check in found} & {"driver"}


def test_slow_core_is_named_and_noise_is_not() -> None:
    noisy = [replace(each, work_s=0.0015 * (1 + 0.06 * n)) for n, each in enumerate(healthy(6))]
    assert failures(noisy) == {}
    assert failures([*noisy, replace(answer("slow"), work_s=0.005)]) == {
        ("slow", "cpu"): "cpu-slow"
    }


def test_nodes_with_another_cpu_are_not_compared() -> None:
    old = [replace(answer(f"old{n}"), cpu="other", work_s=0.009) for n in range(3)]
    assert failures([*healthy(4), *old]) == {}
    judged = judge_screen([*healthy(4), *old[:2]], SPEC)
    assert judged["old0"]["cpu"].result == "skipped"


def test_core_that_was_not_timed_is_not_judged() -> None:
    judged = judge_screen([replace(each, work_s=None) for each in healthy(4)], SPEC)
    assert {checks["cpu"].result for checks in judged.values()} == {"skipped"}


def test_part_that_hung_fails_the_checks_that_need_it() -> None:
    hung = replace(answer("hung"), cut={"gpus": "no answer within 5 s"})
    facts = {name: value for name, value in hung.facts.items() if name != "gpus"}
    found = failures([*healthy(3), replace(hung, facts=facts)])
    assert {node for node, _ in found} == {"hung"} and ("hung", "gpus") in found


def test_part_that_no_check_is_named_for_fails_its_node_too() -> None:
    """Every part of the facts that a node collects has a check that fails where it hung."""
    for part in fact_groups(0, "n", "cuda"):
        stuck = replace(answer("stuck"), cut={part: "no answer within 5 s"})
        found = failures([*healthy(3), stuck])
        assert {node for node, _ in found} == {"stuck"} and {*found.values()} == {"part-hung"}
        if part in ("settings", "kernel"):
            assert found == {("stuck", "system"): "part-hung"}


def test_what_only_the_node_saw_counts() -> None:
    seen = replace(answer("n9"), found={"gpus": "a GPU is lost"})
    assert failures([*healthy(3), seen]) == {("n9", "gpus"): "gpus"}


def test_memory_errors_of_a_gpu_fail_its_node() -> None:
    gpus = [dict(g) for g in answer("x").facts["gpus"]]
    gpus[1]["ecc.errors.uncorrected.volatile.total"] = "3"
    assert failures([*healthy(3), answer("ecc", gpus=gpus)]) == {("ecc", "gpus"): "gpu-ecc-errors"}


def test_definite_finding_of_a_check_comes_first() -> None:
    """By its id the ledger knows what ends the evidence."""
    gpus = [dict(g) for g in answer("x").facts["gpus"]]
    gpus[0]["remapped_rows.pending"] = "Yes"
    gpus[1][ECC_ERRORS] = "3"
    judged = judge_screen([*healthy(3), answer("bad", gpus=gpus)], SPEC)["bad"]["gpus"]
    assert judged.id == "gpu-ecc-errors" and judged.is_definite
    assert "uncorrectable memory errors" in judged.text.split(";")[0]


@pytest.mark.parametrize(
    ("facts", "id"),
    [
        ({"gpus": answer("x").facts["gpus"][:1]}, "gpus-missing"),
        ({"gpus": []}, "gpus-missing"),
        ({"gpus": None, "gpu_driver": False}, "gpus-missing"),
        ({"gpus": None, "gpu_tool_failed": "no answer within 30 s"}, "gpu-driver-failed"),
    ],
)
def test_node_that_lost_a_gpu_fails_also_where_the_device_is_chosen_by_torch(
    facts: dict[str, Any], id: str
) -> None:
    """Its ranks would train on its cores; the other nodes show that they have GPUs."""
    found = failures([*healthy(3), answer("bad", **facts)], device="auto")
    assert found == {("bad", "gpus"): id}
    assert failures([*healthy(1), answer("bad", **facts)], device="auto") == found


@pytest.mark.parametrize("gpu_on_bus", [False, True])
def test_nodes_without_gpus_pass_where_the_device_is_chosen_by_torch(gpu_on_bus: bool) -> None:
    """Also with a tool that fails on one of them, and too few GPUs on another."""
    nodes = [answer(f"n{number}", gpus=None, gpu_driver=False) for number in range(4)]
    failing = {"gpus": None, "gpu_tool_failed": "no driver", "gpu_on_bus": gpu_on_bus}
    few = answer("few", gpus=answer("x").facts["gpus"][:1])
    assert failures([*nodes, few, answer("tool", **failing)], device="auto") == {}


@pytest.mark.parametrize("infiniband", [False, True])
def test_ports_pass_only_where_the_check_looked_at_them(infiniband: bool) -> None:
    """The profile does not name InfiniBand, or no other node has a port to compare with."""
    ports = [{"hca": "mlx5_0", "port": "1", "state": "1: DOWN", "rate": "400 Gb/sec"}]
    shows = [answer(f"n{number}", rdma_ports=ports) for number in range(2)]
    nodes = shows if not infiniband else [shows[0], *healthy(3)[1:]]
    check = judge_screen(nodes, {**SPEC, "infiniband": infiniband})["n0"]["rdma"]
    words = "no other node shows an RDMA port" if infiniband else "InfiniBand is not expected"
    assert check.result == "skipped" and words in check.text


def test_checks_of_gpus_are_skipped_where_ranks_train_on_cpus() -> None:
    judged = judge_screen(healthy(4), {**SPEC, "device": "cpu", "gpu": "none"})
    skipped = {name for name, check in judged["n0"].items() if check.result == "skipped"}
    assert skipped == {"gpus", "gpu_model", "driver", "rdma"}
