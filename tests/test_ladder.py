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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke import lab
from pytest_clustersmoke.config.metrics import show
from pytest_clustersmoke.report.run_record import SCHEMA_PATH
from tests.report.browsing import Opened, first_screen, started
from tests.report.test_junit import Read, same
from tests.report.test_run_record import wrong
from tests.support.needs import need_lab

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


@dataclass(frozen=True)
class Ran:
    """A ladder that has run: its directory, and its report.json."""

    folder: Path
    report: dict[str, Any]

    def file(self, name: str) -> Path:
        return self.folder / "reports" / "latest" / name


def check_files(ran: Ran) -> None:
    """report.json is by the schema that ships; junit.xml is by Jenkins' XSD, and says the same."""
    assert wrong(ran.report, json.loads(SCHEMA_PATH.read_text())) == []
    same(ran.report, Read(ran.file("junit.xml")))


def check_page(ran: Ran) -> None:
    """In a real browser the page is quiet; each phase has its nodes drawn, and its metrics."""
    with started() as chromium, first_screen(chromium, ran.file("index.html")) as opened:
        opened.open_all()
        opened.check_quiet()
        assert opened.page.locator("h1").inner_text() == "FIT"
        for phase in ran.report["phases"]:
            check_phase(opened, phase)


def check_phase(opened: Opened, phase: dict[str, Any]) -> None:
    part = f'section[data-phase="{phase["phase"]}"]'
    drawn = opened.page.locator(f'{part} figure[data-chart="topology"] svg')
    assert drawn.locator("rect.box").count() == NODES.get(phase["phase"], 1)
    assert drawn.locator("rect.gpu").count() == phase["world_size"]
    for name, metric in phase["metrics"].items():
        cell = f'{part} table[data-table="metrics"] tr[data-metric="{name}"] td:nth-child(2)'
        assert opened.figures(cell) == [(show(metric["value"]), json.dumps(metric["value"]))]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The whole ladder, once, on this machine."""
    folder = tmp_path_factory.mktemp("ladder")
    return Ran(folder, run_ladder(folder, "local"))


def test_every_phase_passes_on_this_machine(here: Ran) -> None:
    """The whole ladder is FIT on local, and each case carries its phase's properties."""
    check(here.report)
    check_files(here)
    for name, (_, properties) in cases(here.folder).items():
        measured = "busbw_gb_per_s" if "AllReduce" in name else "steps_per_s"
        assert {"job_id", "nodes", "outcome", "queue_s", "run_s", measured} <= properties, name


def test_the_page_of_this_machine_s_ladder(here: Ran) -> None:
    """Chromium opens what the ladder wrote, and shows what report.json says."""
    check_page(here)


@contextmanager
def seen_by_all() -> Iterator[Path]:
    """A directory that isolated nodes see too: their /tmp is their own."""
    folder = Path(tempfile.mkdtemp(prefix="csm-", dir="/var/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def lab_dir() -> Iterator[Path]:
    with seen_by_all() as folder:
        yield folder


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


@pytest.fixture(scope="module")
def slurm() -> Iterator[Ran]:
    """The whole ladder, once, on a real Slurm without accounting."""
    with seen_by_all() as folder:
        yield Ran(folder, on_lab(folder))


@pytest.mark.lab
def test_every_phase_passes_on_slurm(slurm: Ran) -> None:
    """The whole ladder is FIT on a real Slurm without accounting."""
    check(slurm.report)
    check_files(slurm)
    assert all(phase["job_id"].isdigit() for phase in slurm.report["phases"])


@pytest.mark.lab
def test_the_page_of_slurm_s_ladder(slurm: Ran) -> None:
    """Chromium opens what the ladder wrote, and shows what report.json says."""
    check_page(slurm)


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
