"""The ladder itself, end to end: every phase, on this machine and on a real Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke import lab
from pytest_clustersmoke.config.metrics import show
from pytest_clustersmoke.report.run_record import SCHEMA_PATH
from tests.report.browsing import Opened, first_screen, started
from tests.report.test_junit import Read, same
from tests.report.test_run_record import wrong
from tests.support.harness import ROOT, properties
from tests.support.labs import running_lab, visible_folder
from tests.support.outcome import RunFiles

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
    # gloo's times are those of cores that ranks share, not of a network.
    "test_all_ranks_are_equally_fast",
    "test_bandwidth_does_not_fall_as_sizes_grow",
    "test_no_pair_of_nodes_is_slow",
    "test_other_references_are_met",
    # The first run in a report directory has no past.
    "test_metrics_are_as_in_the_past",
    # A single rank has no other to compare with.
    "test_no_rank_falls_behind",
}


def run_ladder(folder: Path, cluster: str, *words: str, **variables: str) -> RunFiles:
    """Run the whole suite as a user runs it, in the repository; return its files in `folder`."""
    files = RunFiles(folder)
    command = [sys.executable, "-m", "pytest", "smoke_tests", "--cluster", cluster, *words]
    command += ["--cluster-report-dir", str(files.reports), "-p", "no:cacheprovider"]
    env = {**os.environ, "CLUSTERSMOKE_SHARED_DIR": str(files.shared), **variables}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("FIT"), done.stdout
    return files


def check_phases(ladder: RunFiles) -> None:
    """Every phase ran on its nodes and passed; only criteria that may be skipped are skipped."""
    record = ladder.record()
    assert record["verdict"] == "FIT"
    phases = {phase["phase"]: phase for phase in record["phases"]}
    assert set(phases) == PHASES
    for name, phase in phases.items():
        assert phase["outcome"] == "passed" and phase["findings"] == []
        assert len(phase["nodes"]) == NODES.get(name, 1)
        results = {key: criterion["result"] for key, criterion in phase["criteria"].items()}
        skipped = {key for key, result in results.items() if result == "skipped"}
        assert skipped <= SKIPPABLE
        assert "failed" not in results.values() and len(results) > 12


def property_names(ladder: RunFiles) -> dict[str, tuple[str, frozenset[str]]]:
    """The result and the names of the properties of each case of junit.xml."""
    cases = properties(ladder.report / "junit.xml")
    return {name: (case["result"], frozenset(case)) for name, case in cases.items()}


def check_files(ladder: RunFiles) -> None:
    """report.json matches the shipped schema, and junit.xml the XSD of Jenkins; they agree."""
    assert wrong(ladder.record(), json.loads(SCHEMA_PATH.read_text())) == []
    same(ladder.record(), Read(ladder.report / "junit.xml"))


def check_page(ladder: RunFiles) -> None:
    """In a real browser the page logs no error; each phase shows its nodes and metrics."""
    with started() as chromium, first_screen(chromium, ladder.report / "index.html") as opened:
        opened.open_all()
        opened.check_quiet()
        assert opened.page.locator("h1").inner_text() == "FIT"
        for phase in ladder.record()["phases"]:
            check_phase_on_page(opened, phase)


def check_phase_on_page(opened: Opened, phase: dict[str, Any]) -> None:
    section = f'section[data-phase="{phase["phase"]}"]'
    drawing = opened.page.locator(f'{section} figure[data-chart="topology"] svg')
    assert drawing.locator("rect.box").count() == NODES.get(phase["phase"], 1)
    assert drawing.locator("rect.gpu").count() == phase["world_size"]
    for name, metric in phase["metrics"].items():
        cell = f'{section} table[data-table="metrics"] tr[data-metric="{name}"] td:nth-child(2)'
        assert opened.figures(cell) == [(show(metric["value"]), json.dumps(metric["value"]))]


@pytest.fixture(scope="module")
def local_ladder(tmp_path_factory: pytest.TempPathFactory) -> RunFiles:
    """The whole ladder, once, on this machine."""
    return run_ladder(tmp_path_factory.mktemp("ladder"), "local")


def test_every_phase_passes_on_this_machine(local_ladder: RunFiles) -> None:
    """The whole ladder is FIT on local, and each case has its phase's properties."""
    check_phases(local_ladder)
    check_files(local_ladder)
    for name, (_, names) in property_names(local_ladder).items():
        measured = "busbw_gb_per_s" if "AllReduce" in name else "steps_per_s"
        assert {"job_id", "nodes", "outcome", "queue_s", "run_s", measured} <= names, name


def test_page_shows_the_ladder_of_this_machine(local_ladder: RunFiles) -> None:
    """Chromium opens what the ladder wrote, and shows what report.json says."""
    check_page(local_ladder)


@pytest.fixture
def lab_dir() -> Iterator[Path]:
    with visible_folder() as folder:
        yield folder


def run_on_lab(
    folder: Path, *words: str, accounting: bool = False, isolated: bool = False
) -> RunFiles:
    """Run the ladder on a lab of its own."""
    settings = lab.LabSettings(
        name="ladder", accounting=accounting, isolated=isolated, directory=folder / "lab"
    )
    with running_lab(settings) as running:
        return run_ladder(folder, "lab", *words, SLURM_CONF=str(running.slurm_conf))


@pytest.fixture(scope="module")
def slurm_ladder() -> Iterator[RunFiles]:
    """The whole ladder, once, on a real Slurm without accounting."""
    with visible_folder() as folder:
        yield run_on_lab(folder)


@pytest.mark.lab
def test_every_phase_passes_on_slurm(slurm_ladder: RunFiles) -> None:
    """The whole ladder is FIT on a real Slurm without accounting."""
    check_phases(slurm_ladder)
    check_files(slurm_ladder)
    assert all(phase["job_id"].isdigit() for phase in slurm_ladder.record()["phases"])


@pytest.mark.lab
def test_page_shows_the_ladder_of_slurm(slurm_ladder: RunFiles) -> None:
    """Chromium opens what the ladder wrote, and shows what report.json says."""
    check_page(slurm_ladder)


@pytest.mark.slow_lab
def test_every_phase_passes_on_slurm_with_accounting(lab_dir: Path) -> None:
    """The whole ladder is FIT on a Slurm that enforces accounts and QOS."""
    check_phases(run_on_lab(lab_dir, accounting=True))


@pytest.mark.slow_lab
def test_every_phase_passes_on_isolated_nodes(lab_dir: Path) -> None:
    """The whole ladder is FIT where nodes have names, addresses and a /tmp of their own."""
    ladder = run_on_lab(lab_dir, isolated=True)
    check_phases(ladder)
    nodes = {phase["phase"]: phase["nodes"] for phase in ladder.record()["phases"]}
    assert len({node["host"] for node in nodes["zero1_4node"]}) == 4


@pytest.mark.slow_lab
def test_xdist_gives_the_same_cases_on_slurm(lab_dir: Path) -> None:
    """With -n 4: the same cases, outcomes and properties, and one submission for each phase."""
    with_xdist = run_on_lab(lab_dir, "-n", "4")
    check_phases(with_xdist)
    cases = property_names(with_xdist)
    submitted = [line["phase"] for line in with_xdist.journal() if line["event"] == "submitted"]
    assert sorted(submitted) == sorted(PHASES)
    without = run_on_lab(lab_dir)
    check_phases(without)
    assert property_names(without) == cases
