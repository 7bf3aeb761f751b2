"""The ladder itself, end to end: every phase, on this machine and on a real Slurm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke import lab
from tests.needs import need_lab

ROOT = Path(__file__).resolve().parent.parent
PHASES = {
    "mlp_1gpu",
    "ddp_2gpu",
    "zero1_2gpu",
    "zero1_4node",
    "lora_sft_ddp",
    "lora_sft_2node",
    "allreduce_1node",
    "allreduce_multinode",
}
NODES = {"zero1_4node": 4, "lora_sft_2node": 2, "allreduce_multinode": 4}
# The only criteria that may be skipped without a GPU and without references.
SKIPPABLE = {
    "test_throughput_meets_the_reference",
    "test_memory_meets_the_reference",
    "test_transports_inside_nodes_are_those_expected",
    "test_transports_between_nodes_are_those_expected",
    "test_fused_adam_is_compiled_on_cuda",
    "test_bandwidth_meets_the_reference",
    "test_latency_meets_the_reference",
    "test_slowest_pair_meets_the_reference",
    # gloo's times are those of cores that ranks share, and say nothing of a network.
    "test_all_ranks_are_equally_fast",
    "test_bandwidth_does_not_fall_as_sizes_grow",
    "test_no_pair_of_nodes_is_slow",
    "test_other_references_are_met",
    # The first run of a directory has no past.
    "test_metrics_are_as_in_the_past",
    # One rank has no other.
    "test_no_rank_falls_behind",
}


def run_ladder(folder: Path, cluster: str, *words: str, **environ: str) -> dict[str, Any]:
    """Run the suite as a user would; its report."""
    command = [sys.executable, "-m", "pytest", "smoke_tests", "--cluster", cluster, *words]
    command += ["--cluster-report-dir", str(folder / "reports"), "-p", "no:cacheprovider"]
    env = {**os.environ, "CLUSTERSMOKE_SHARED_DIR": str(folder / "runs"), **environ}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("FIT"), done.stdout
    report: dict[str, Any] = json.loads((folder / "reports/latest/report.json").read_text())
    return report


def check(report: dict[str, Any], phases: set[str] = PHASES) -> None:
    """Every phase ran and passed, with its nodes; no criterion is skipped but those that may be."""
    assert report["verdict"] == "FIT"
    found = {phase["phase"]: phase for phase in report["phases"]}
    assert set(found) == phases
    for name, phase in found.items():
        assert phase["outcome"] == "passed" and phase["findings"] == []
        assert len(phase["nodes"]) == NODES.get(name, 1)
        results = {key: one["result"] for key, one in phase["criteria"].items()}
        skipped = {key for key, result in results.items() if result == "skipped"}
        assert skipped <= SKIPPABLE
        assert "failed" not in results.values() and len(results) > 12


def cases(folder: Path) -> dict[str, tuple[str, frozenset[str]]]:
    """The cases of junit.xml: name -> (result, names of its properties)."""
    found = {}
    for case in ElementTree.parse(folder / "reports/latest/junit.xml").iter("testcase"):
        result = next((kid.tag for kid in case if kid.tag in ("failure", "error", "skipped")), "ok")
        names = frozenset(str(one.get("name")) for one in case.iter("property"))
        found[f"{case.get('classname')}.{case.get('name')}"] = (result, names)
    return found


def test_every_phase_passes_on_this_machine(tmp_path: Path) -> None:
    """The whole ladder is FIT on local, and each case carries its phase's properties."""
    check(run_ladder(tmp_path, "local"))
    for name, (_, properties) in cases(tmp_path).items():
        measured = "busbw_gb_per_s" if "AllReduce" in name else "steps_per_s"
        assert {"job_id", "nodes", "outcome", "queue_s", "run_s", measured} <= properties, name


@pytest.fixture
def lab_dir(tmp_path: Path) -> Iterator[Path]:
    """A directory that isolated nodes see too: their /tmp is their own."""
    folder = Path(tempfile.mkdtemp(prefix="csm-", dir="/var/tmp"))
    yield folder
    shutil.rmtree(folder)


def on_lab(
    folder: Path, *words: str, accounting: bool = False, isolated: bool = False
) -> dict[str, Any]:
    """Run the suite on a lab of its own."""
    need_lab(accounting, isolated)
    settings = lab.LabSettings(
        name=f"ladder-{os.getpid()}",
        accounting=accounting,
        isolated=isolated,
        directory=folder / "lab",
    )
    running = lab.up(settings)
    try:
        return run_ladder(folder, "lab", *words, SLURM_CONF=str(running.slurm_conf))
    finally:
        lab.down(running.name)


@pytest.mark.lab
def test_every_phase_passes_on_slurm(lab_dir: Path) -> None:
    """The whole ladder is FIT on a real Slurm without accounting."""
    report = on_lab(lab_dir)
    check(report)
    assert all(phase["job_id"].isdigit() for phase in report["phases"])


@pytest.mark.slow_lab
def test_every_phase_passes_on_slurm_with_accounting(lab_dir: Path) -> None:
    """The whole ladder is FIT on a Slurm that enforces accounts and QOS."""
    check(on_lab(lab_dir, accounting=True))


@pytest.mark.slow_lab
def test_every_phase_passes_on_isolated_nodes(lab_dir: Path) -> None:
    """The whole ladder is FIT where nodes have names, addresses and /tmp of their own."""
    report = on_lab(lab_dir, isolated=True)
    check(report)
    hosts = [
        [node["host"] for node in phase["nodes"]]
        for phase in report["phases"]
        if phase["phase"] == "zero1_4node"
    ]
    assert len(set(hosts[0])) == 4


@pytest.mark.slow_lab
def test_xdist_gives_the_same_cases_on_slurm(lab_dir: Path) -> None:
    """With -n 4: the same cases, outcomes and properties, and one submission a phase."""
    check(on_lab(lab_dir, "-n", "4"))
    with_xdist = cases(lab_dir)
    journal = (lab_dir / "reports/latest/journal.jsonl").read_text().splitlines()
    submitted = [line["phase"] for line in map(json.loads, journal) if line["event"] == "submitted"]
    assert sorted(submitted) == sorted(PHASES)
    check(on_lab(lab_dir))
    assert cases(lab_dir) == with_xdist
