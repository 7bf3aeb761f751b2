"""A screen ends only evidence that it looked for on the node, among enough others."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.criteria.screen_clearance import COMPARED, KINDS, list_cleared
from pytest_clustersmoke.criteria.screen_judge import CheckJudgement, judge_screen
from pytest_clustersmoke.criteria.screen_peaks import PEAKS, SLOW, WRONG
from pytest_clustersmoke.evidence.node_observation import CHECKS
from pytest_clustersmoke.evidence.screen_files import NodeAnswer
from pytest_clustersmoke.node.checks import BETWEEN_NODES, ON_A_NODE
from tests.support.finding_ids import finding_ids
from tests.support.screens import SPEC, answer, healthy

UNMEASURED = CheckJudgement("skipped", "torch is not installed there")
ECC, TMP = "gpu-ecc-errors", "tmp-full"


def cleared(
    answers: list[NodeAnswer], peaks: CheckJudgement = UNMEASURED, **spec: Any
) -> dict[str, set[str]]:
    judged = judge_screen(answers, {**SPEC, **spec})
    made = list_cleared({node: {**checks, PEAKS: peaks} for node, checks in judged.items()})
    return {node: set(kinds) for node, kinds in made.items()}


def with_ecc(errors: str, name: str = "n0") -> NodeAnswer:
    gpus = answer(name).facts["gpus"]
    return answer(
        name, gpus=[{**gpu, "ecc.errors.uncorrected.volatile.total": errors} for gpu in gpus]
    )


def test_each_finding_of_a_check_can_be_cleared(tmp_path: Path) -> None:
    """Else it would stay until it is too old, though the node passes the check."""
    checks: dict[str, Callable[..., Any]] = {**ON_A_NODE, **BETWEEN_NODES}
    for check in checks.values():
        shutil.copy(inspect.getfile(check), tmp_path)
    found = finding_ids(tmp_path, {"Finding", "build_finding"})
    assert set(KINDS) - {"cpu", PEAKS} == set(checks)
    assert found == {kind for name in checks for kind in KINDS[name]}


def test_screen_clears_what_its_checks_ruled_out() -> None:
    """And that the node is there."""
    found = cleared([with_ecc("0"), *healthy(4)[1:]])["n0"]
    expected = {ECC, TMP, "open-files-limit", "driver-differs", "versions-differ", "cpu-slow"}
    assert expected | {"node-down", "interface-down"} <= found


def test_screen_clears_nothing_that_it_cannot_see() -> None:
    """What shows only while a job runs, and what devices compute, if they were not measured."""
    found = cleared(healthy(4))["n0"]
    during = {"gpu-errors-during-job", "rdma-link-went-down", "slow-rank", "rdma-rail-silent"}
    assert during <= CHECKS and not found & during
    assert not found & {WRONG, SLOW}
    assert {WRONG, SLOW} <= cleared(healthy(4), CheckJudgement("passed"))["n0"]


@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_nodes_clear_nothing_that_needs_a_majority(count: int) -> None:
    found = cleared(healthy(count))["n0"]
    assert not found & COMPARED and "node-down" in found
    assert cleared(healthy(3))["n0"] & COMPARED >= {TMP, "driver-differs", "interface-down"}


def test_devices_of_one_node_are_no_peers_that_clear() -> None:
    """Eight GPUs that are all as slow as each other show nothing; a known answer does."""
    found = cleared(healthy(2), CheckJudgement("passed"))["n0"]
    assert SLOW not in found and WRONG in found


def test_interfaces_that_were_not_compared_clear_nothing() -> None:
    """One node did not show its own."""
    found = cleared([answer("n0", interfaces=None), *healthy(4)[1:]])["n1"]
    assert "interface-down" not in found and "interface-missing" in found


def test_check_that_does_not_apply_clears_nothing() -> None:
    """No rank trains on a GPU, or the node shows no RDMA port; nor does a field that is missing."""
    found = cleared(healthy(4), device="cpu", gpu="none")["n0"]
    assert not found & {ECC, "gpus-missing", "driver-differs", "rdma-port-down"}
    gpus = [{"index": "0", "name": "H100"}, {"index": "1", "name": "H100"}]
    unread = cleared([answer("n0", gpus=gpus, gpu_processes=None), *healthy(4)[1:]])["n0"]
    assert "gpus-missing" in unread and not unread & {ECC, "gpu-in-use", "gpu-row-remap-failed"}
    assert ECC not in cleared([answer("n0", gpus=None), *healthy(4)[1:]])["n0"]


def test_warning_clears_nothing_of_its_kind() -> None:
    """What all nodes have is no failure; nor is it gone."""
    full = {"tmp": {"path": "/tmp", "error": None, "free_bytes": 0}}
    found = cleared([answer(f"n{number}", **full) for number in range(4)])["n0"]
    assert TMP not in found and "tmp-not-writable" in found
