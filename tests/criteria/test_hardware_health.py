"""Nodes whose hardware counted damage during a phase."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.criteria.hardware_health import check_health, warn_of_devices
from pytest_clustersmoke.criteria.phase_criteria import PhaseView
from pytest_clustersmoke.evidence.metric import Unmeasured
from pytest_clustersmoke.evidence.phase_result import collect_phase
from pytest_clustersmoke.evidence.run_directory import write_json
from tests.support.evidence import Evidence

PORT = {"hca": "mlx5_0", "port": "1", "state": "4: ACTIVE", "link_layer": "InfiniBand"}


def reading(downs: int = 0, ecc: int = 0, **more: Any) -> dict[str, Any]:
    counters = {"port_xmit_data": 1000, "port_rcv_data": 1000, "link_downed": downs}
    gpu = {"uuid": "GPU-0", "ecc_uncorrected": ecc}
    return {"ports": [{**PORT, "counters": counters}], "interfaces": {}, "gpus": [gpu], **more}


def ran(
    folder: Path, *after: dict[str, Any] | None, first: dict[str, Any] | None = None
) -> PhaseView:
    """A phase whose nodes, which have GPUs, read these counters at its end."""
    evidence = Evidence(folder, nodes=len(after)).done()
    for node, last in enumerate(after):
        gpus = [{"uuid": "GPU-0", "name": "NVIDIA H100"}]
        facts = {"node": f"n{node}", "host": "h", "gpu_driver": True, "gpus": gpus}
        write_json(evidence.dir.node_facts(node), facts)
        readings = {"before": first or reading(), **({} if last is None else {"after": last})}
        write_json(evidence.dir.node_health(node), readings)
    return evidence.result()


def test_quiet_hardware_passes(tmp_path: Path) -> None:
    """Nothing is found about it."""
    result = ran(tmp_path, reading(), reading())
    check_health(result)
    assert "health" in result.judged and warn_of_devices(result) == []


def test_damage_fails_and_names_its_node(tmp_path: Path) -> None:
    """Memory errors; a link that went down, which NCCL does not use. The job's list has both as
    warnings."""
    result = ran(tmp_path, reading(), reading(downs=2, ecc=1))
    with pytest.raises(AssertionError) as raised:
        check_health(result)
    assert str(raised.value).splitlines() == [
        "n1: GPU-0 had 1 uncorrectable memory errors during the job",
    ]
    findings = warn_of_devices(result)
    assert {finding.id for finding in findings} == {"gpu-errors-during-job", "rdma-port-errors"}
    assert {(finding.severity, finding.primary, finding.hosts) for finding in findings} == {
        ("warning", False, ("n1",))
    }
    assert findings[0].evidence[0].file.endswith("nodes/0001/health.json")


def test_node_without_a_second_reading_is_unmeasured(tmp_path: Path) -> None:
    """Missing evidence is never a pass."""
    with pytest.raises(Unmeasured, match="n1 read no counters") as raised:
        check_health(ran(tmp_path, reading(), None))
    assert raised.value.kind == "health"


NO_GPUS: dict[str, Any] = {"gpus": None}


@pytest.mark.parametrize(
    ("first", "last", "words"),
    [
        (NO_GPUS, {}, "n1 read no counters of its GPUs before the ranks started"),
        ({}, NO_GPUS, "n1 read no counters of its GPUs after the ranks had ended"),
        (
            {"gpus": [{"uuid": "GPU-7", "ecc_uncorrected": 0}]},
            {},
            "n1 did not read counters of GPU-0",
        ),
        ({}, {"ports": []}, "n1 did not read counters of mlx5_0:1 twice"),
        ({"ports": [PORT]}, {"ports": [PORT]}, "n1 did not read counters of mlx5_0:1 twice"),
        ({}, {"gpus": [{"uuid": "GPU-0"}]}, "n1 did not read counters of GPU-0 twice"),
    ],
)
def test_node_that_compared_nothing_is_unmeasured(
    first: dict[str, Any], last: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """Both readings must have the same devices, on every node that shows some."""
    result = ran(tmp_path, reading(), reading())
    readings = {"before": reading(**first), "after": reading(**last)}
    write_json(result.directory.node_health(1), readings)
    with pytest.raises(Unmeasured, match=words):
        check_health(result)


def test_machines_without_counters_are_skipped(tmp_path: Path) -> None:
    """As a laptop, and the lab."""
    empty: dict[str, Any] = {
        "ports": [],
        "interfaces": {"eth0": {"sent": 1, "received": 1}},
        "gpus": None,
    }
    with pytest.raises(pytest.skip.Exception, match="no counters"):
        result = ran(tmp_path, empty, first=empty)
        write_json(result.directory.node_facts(0), {"node": "n0", "gpu_driver": False})
        check_health(collect_phase(result.directory))


def test_wrong_answer_is_in_the_list_of_the_job(tmp_path: Path) -> None:
    """With its node and rank, for the ledger of nodes."""
    evidence = Evidence(tmp_path, ranks_per_node=2).done()
    evidence.rank(1, ("peaks", {"figures": [], "calls": 3000, "wrong": 2}))
    (finding,) = warn_of_devices(evidence.result())
    assert (finding.id, finding.hosts, finding.ranks) == ("device-wrong-answer", ("n0",), (1,))


def test_device_that_a_proof_of_training_accuses_is_in_the_list_of_the_job(tmp_path: Path) -> None:
    """Once, and nobody where the records are not whole. The criteria judge it still."""
    evidence = Evidence(tmp_path, ranks_per_node=2).done()
    sound = {"replayed": 4, "differing": [], "differing_count": 0, "nondeterministic": []}
    evidence.each("proof", step=1, **sound)
    assert warn_of_devices(evidence.result()) == []
    wrong = {**sound, "differing": ["w"], "differing_count": 1}
    evidence.rank(1, ("proof", {**wrong, "step": 2}))
    assert warn_of_devices(evidence.result()) == []
    evidence.rank(0, ("proof", {**sound, "step": 2}))
    result = evidence.result()
    (finding,) = warn_of_devices(result)
    assert (finding.id, finding.hosts, finding.ranks) == ("device-computes-wrongly", ("n0",), (1,))
    assert finding.cause.startswith("rank 1 (n0) on h computes wrongly: a proven step, repeated")
    resumed = replace(Evidence(tmp_path / "resumed").done().result(), earlier=(result,))
    assert warn_of_devices(resumed) == [finding]
    assert result.judged == set()
