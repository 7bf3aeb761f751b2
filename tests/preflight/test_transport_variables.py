"""Variables that rule out everything a profile expects; only certain ones are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.config.phase import parse_setting
from pytest_clustersmoke.preflight import variable_remarks as environment
from tests.preflight.profiles import CPU, CUDA, gpu_profile, problems
from tests.support.evidence import make_phase
from tests.support.harness import Suite


@pytest.mark.parametrize(
    ("variables", "nodes", "expect", "error"),
    [
        (
            {"NCCL_IB_DISABLE": "1"},
            2,
            {"inter_node": ["NET/IB*"]},
            "NCCL_IB_DISABLE=1 rules out everything that is expected of phase `small`; expected "
            "NET/IB* between nodes (@inter_node); change NCCL_IB_DISABLE, or "
            "`expect.small.inter_node`; a plugin's InfiniBand has its own name, such as "
            "`NET/IBext*`",
        ),
        (
            {"NCCL_NET": "Socket"},
            2,
            {"forbid": ["NET/Socket"]},
            "NCCL_NET=Socket rules out everything that is expected of phase `small`; expected "
            "any transport but not NET/Socket between nodes (@forbid); change NCCL_NET, or "
            "`expect.small.forbid`",
        ),
        (
            {"NCCL_NET": "socket"},
            2,
            {"inter_node": ["NET/IB*", "NET/AWS*"]},
            "NCCL_NET=socket rules out everything that is expected of phase `small`; expected "
            "NET/IB* or NET/AWS* between nodes (@inter_node); change NCCL_NET, or "
            "`expect.small.inter_node`",
        ),
        (
            {"NCCL_P2P_DISABLE": "1"},
            1,
            {"intra_node": ["P2P/*"]},
            "NCCL_P2P_DISABLE=1 rules out everything that is expected of phase `small`; expected "
            "P2P/* inside a node (@intra_node); change NCCL_P2P_DISABLE, or "
            "`expect.small.intra_node`",
        ),
        (
            {"NCCL_P2P_LEVEL": "LOC"},
            1,
            {"intra_node": ["P2P/CUMEM"]},
            "NCCL_P2P_LEVEL=LOC rules out everything that is expected of phase `small`; expected "
            "P2P/CUMEM inside a node (@intra_node); change NCCL_P2P_LEVEL, or "
            "`expect.small.intra_node`",
        ),
        (
            {"NCCL_SHM_DISABLE": "1"},
            1,
            {"intra_node": ["SHM/direct/direct"]},
            "NCCL_SHM_DISABLE=1 rules out everything that is expected of phase `small`; expected "
            "SHM/direct/direct inside a node (@intra_node); change NCCL_SHM_DISABLE, or "
            "`expect.small.intra_node`",
        ),
        (
            {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
            1,
            {"forbid": ["NET/*"]},
            "NCCL_P2P_DISABLE=1 with NCCL_SHM_DISABLE=1 (@NCCL_SHM_DISABLE) rules out everything "
            "that is expected of phase `small`; expected any transport but not NET/* inside a "
            "node (@forbid); change NCCL_P2P_DISABLE or NCCL_SHM_DISABLE, or "
            "`expect.small.forbid`",
        ),
        (
            {"NCCL_NET_GDR_LEVEL": "LOC"},
            2,
            {"inter_node": ["NET/IB*"], "gpudirect": "required"},
            "NCCL_NET_GDR_LEVEL=LOC rules out everything that is expected of phase `small`; "
            "expected NET/IB* with GPUDirect RDMA between nodes (@gpudirect); change "
            "NCCL_NET_GDR_LEVEL, or `expect.small.gpudirect`",
        ),
        (
            {"NCCL_NET": "Socket"},
            2,
            {"gpudirect": "required"},
            "NCCL_NET=Socket rules out everything that is expected of phase `small`; expected "
            "any transport with GPUDirect RDMA between nodes (@gpudirect); change NCCL_NET, or "
            "`expect.small.gpudirect`",
        ),
        (
            {"NCCL_NET": "Socket"},
            2,
            {"inter_node": ["NET/*"], "gpudirect": "required"},
            "NCCL_NET=Socket rules out everything that is expected of phase `small`; expected "
            "NET/* with GPUDirect RDMA between nodes (@inter_node); change NCCL_NET, or "
            "`expect.small.inter_node`",
        ),
        (
            {"NCCL_IB_HCA": "^mlx5"},
            2,
            {"hca": "mlx5_*"},
            "NCCL_IB_HCA=^mlx5 rules out everything that is expected of phase `small`; expected "
            "the RDMA device mlx5_* between nodes (@hca); change NCCL_IB_HCA, or "
            "`expect.small.hca`",
        ),
    ],
)
def test_contradiction_in_a_profile_is_reported(
    tmp_path: Path, variables: dict[str, str], nodes: int, expect: dict[str, Any], error: str
) -> None:
    """The error has the variable, the expectation and the lines of both."""
    (line,) = problems(tmp_path, variables, nodes, **expect)
    file = (tmp_path / "cluster.yaml").read_text().splitlines()

    def at(key: str) -> str:
        return next(f"cluster.yaml:{i}" for i, text in enumerate(file, 1) if f'"{key}"' in text)

    for key in ("inter_node", "intra_node", "forbid", "gpudirect", "hca", "NCCL_SHM_DISABLE"):
        if f"@{key}" in error:
            error = error.replace(f"@{key}", at(key))
    assert line == f"{at(next(iter(variables)))}: {error}"


@pytest.mark.parametrize(
    ("variables", "nodes", "expect"),
    [
        ({"NCCL_IB_DISABLE": "1"}, 2, {"inter_node": ["NET/IB*", "NET/Socket"]}),
        ({"NCCL_IB_DISABLE": "1"}, 2, {"inter_node": ["NET/*"]}),
        ({"NCCL_IB_DISABLE": "1"}, 2, {"inter_node": ["NET/IBext*"]}),
        ({"NCCL_IB_DISABLE": "1"}, 2, {"inter_node": ["NET/[IS]*"]}),
        ({"NCCL_IB_DISABLE": "1"}, 2, {"forbid": ["NET/Socket"]}),
        ({"NCCL_IB_DISABLE": "0"}, 2, {"inter_node": ["NET/IB*"]}),
        ({"NCCL_IB_DISABLE": "true"}, 2, {"inter_node": ["NET/IB*"]}),
        ({"NCCL_IB_DISABLE": "1"}, 1, {"inter_node": ["NET/IB*"]}),
        ({"NCCL_IB_DISABLE": "1", "NCCL_NET": "IBext"}, 2, {"inter_node": ["NET/IB*"]}),
        ({"NCCL_NET": "Socket"}, 2, {"inter_node": ["NET/Socket"]}),
        ({"NCCL_NET": "Socket"}, 1, {"forbid": ["NET/*"]}),
        ({"NCCL_NET": "AWS Libfabric"}, 2, {"inter_node": ["NET/AWS*"]}),
        ({"NCCL_P2P_DISABLE": "1"}, 1, {"intra_node": ["P2P/*", "SHM*"]}),
        ({"NCCL_P2P_DISABLE": "1"}, 2, {"inter_node": ["P2P/MNNVL"]}),
        ({"NCCL_P2P_LEVEL": "NVL"}, 1, {"intra_node": ["P2P/*"]}),
        ({"NCCL_P2P_DISABLE": "2"}, 1, {"intra_node": ["P2P/*"]}),  # NCCL compares with 1
        ({"NCCL_SHM_DISABLE": "1"}, 1, {"intra_node": ["P2P/*"]}),
        ({"NCCL_NET_GDR_LEVEL": "PHB"}, 2, {"gpudirect": "required"}),
        ({"NCCL_NET_GDR_LEVEL": "LOC"}, 2, {"gpudirect": "any", "inter_node": ["NET/IB*"]}),
        ({"NCCL_IB_HCA": "mlx5_1"}, 2, {"hca": "mlx5_*"}),
        ({"NCCL_IB_HCA": "^mlx5_0:1"}, 2, {"hca": "mlx5_0"}),
        ({"NCCL_IB_HCA": "^=mlx5_0"}, 2, {"hca": "mlx5_*"}),
        ({"NCCL_IB_DISABLE": "1"}, 2, {"inter_node": ["NET/IB"], "forbid": ["NET/IB"]}),
        (
            {"NCCL_P2P_DISABLE": "1"},
            1,
            {"intra_node": ["P2P/*", "NET/IB*"], "forbid": ["NET/IB"]},  # of a plugin's NET/IBext
        ),
        ({"NCCL_IB_HCA": "^=mlx5"}, 2, {"hca": "mlx5_0"}),
        ({"NCCL_IB_DISABLE": "1"}, 2, {"inter_node": ["SHM*"]}),  # nothing was possible before
    ],
)
def test_possible_transport_is_no_contradiction(
    tmp_path: Path, variables: dict[str, str], nodes: int, expect: dict[str, Any]
) -> None:
    """There is no error if an expected transport could still be used."""
    assert problems(tmp_path, variables, nodes, **expect) == []


@pytest.mark.parametrize(
    ("value", "hca", "excluded"),
    [
        ("mlx5_0", "mlx5_0", False),
        ("mlx5_1", "mlx5_0", True),
        ("=mlx5_1,mlx5_2", "mlx5_[0-9]", False),
        ("=mlx4_0", "mlx5_*", True),
        ("bnxt", "mlx5_*", True),
        ("mlx5_10", "mlx5_1*", False),
        ("^=mlx5_0", "mlx5_0", True),
        ("^mlx5_0", "mlx5_0", True),
        ("^mlx4", "mlx5_*", False),
    ],
)
def test_excluded_devices_contradict_hca(
    tmp_path: Path, value: str, hca: str, excluded: bool
) -> None:
    """NCCL_IB_HCA contradicts a pattern if no device that it selects could match."""
    contradictions = problems(tmp_path, {"NCCL_IB_HCA": value}, 2, hca=hca)
    assert bool(contradictions) is excluded


def test_one_rank_per_node_has_no_peer_inside(tmp_path: Path) -> None:
    """`intra_node` does not apply to phases with one rank per node."""
    contradiction = {"NCCL_P2P_DISABLE": "1"}
    assert problems(tmp_path, contradiction, 2, ranks=1, intra_node=["P2P/*"]) == []


def test_without_nccl_there_is_no_contradiction(tmp_path: Path) -> None:
    """Ranks on the CPU do not use NCCL, so its variables have no effect."""
    off = {"NCCL_IB_DISABLE": "1"}
    assert problems(tmp_path, off, 2, hardware=CPU, inter_node=["NET/IB*"]) == []


def test_contradiction_is_a_usage_error(suite: Suite) -> None:
    """Exit status 4, with the other usage errors, before anything is submitted."""
    suite.cluster(
        hardware={**CUDA, "gpus_per_node": 2},
        env={"single_node": {"set": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}}},
        expect={"small": {"intra_node": ["P2P/*", "SHM*"]}},
        phases={"small": None, "wide": None},
    )
    suite.phase(gpus_per_node=2)
    suite.phase("wide", gpus_per_node=8)
    lines = suite.refused()
    assert len(lines) == 2
    assert any("NCCL_P2P_DISABLE=1 with NCCL_SHM_DISABLE=1" in line for line in lines)
    assert any("phase `wide` asks for 8 GPUs per node" in line for line in lines)


def test_cluster_set_is_checked(tmp_path: Path) -> None:
    """The error names --cluster-set as the source of the variable."""
    profile = gpu_profile(tmp_path, expect={"small": {"inter_node": ["NET/IB*"]}})
    settings = [parse_setting("small.env.NCCL_IB_DISABLE=1")]
    phase = make_phase(profile, settings=settings, nodes=2, gpus_per_node=2)
    (problem,) = environment.find_contradictory_settings(phase, profile)
    assert problem.where == "--cluster-set"
