"""The ladder itself, end to end: every phase, on this machine and on a real Slurm."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.config.metrics import show
from pytest_clustersmoke.report.record_schema import SCHEMA_PATH
from tests.report.browsing import Opened, first_screen, started
from tests.support.harness import properties
from tests.support.labs import visible_folder
from tests.support.ladder import (
    LAB_LAUNCHERS,
    NODES,
    ON_SLURM,
    ON_THIS_MACHINE,
    ONE_RANK_A_NODE,
    PHASES,
    check_phases,
    run_ladder,
    run_on_hosts,
    run_on_lab,
)
from tests.support.outcome import RunFiles
from tests.support.report_files import JunitFile, check_agreement, find_schema_errors


def property_names(ladder: RunFiles) -> dict[str, tuple[str, frozenset[str]]]:
    """The result and the names of the properties of each case of junit.xml."""
    cases = properties(ladder.report / "junit.xml")
    return {name: (case["result"], frozenset(case)) for name, case in cases.items()}


def check_files(ladder: RunFiles) -> None:
    """report.json matches the shipped schema, and junit.xml the XSD of Jenkins; they agree."""
    assert find_schema_errors(ladder.record(), json.loads(SCHEMA_PATH.read_text())) == []
    check_agreement(ladder.record(), JunitFile(ladder.report / "junit.xml"))


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
    figure = opened.page.locator(f'{section} figure[data-chart="topology"]')
    figure.scroll_into_view_if_needed()  # a page of many charts draws those that are near
    drawing = figure.locator("svg")
    drawing.wait_for()
    assert drawing.locator("rect.box").count() == NODES.get(phase["phase"], 1)
    assert drawing.locator("rect.gpu").count() == phase["world_size"]
    for name, metric in phase["metrics"].items():
        cell = f'{section} table[data-table="metrics"] tr[data-metric="{name}"] td:nth-child(2)'
        assert opened.figures(cell) == [(show(metric["value"]), json.dumps(metric["value"]))]


def choose(phases: Set[str]) -> list[str]:
    """The options that select these phases."""
    return ["-k", " or ".join(sorted(phases))]


@pytest.fixture(scope="module")
def local_ladder(tmp_path_factory: pytest.TempPathFactory) -> RunFiles:
    """The ladder of ON_THIS_MACHINE, once, there."""
    words = [f"--cluster-set={phase}.gpus_per_node=1" for phase in ONE_RANK_A_NODE]
    folder = tmp_path_factory.mktemp("ladder")
    return run_ladder(folder, "local", *choose(ON_THIS_MACHINE), *words)


def check_local(ladder: RunFiles, chosen: Set[str]) -> None:
    """Each case has its phase's properties, too."""
    check_phases(ladder, chosen)
    check_files(ladder)
    for name, (_, names) in property_names(ladder).items():
        measured = "busbw_gb_per_s" if "AllReduce" in name else "steps_per_s"
        assert {"job_id", "nodes", "outcome", "queue_s", "run_s", measured} <= names, name


def test_ladder_passes_on_this_machine(local_ladder: RunFiles) -> None:
    """The phases of ON_THIS_MACHINE are FIT on local."""
    check_local(local_ladder, ON_THIS_MACHINE)


def test_page_shows_the_ladder_of_this_machine(local_ladder: RunFiles) -> None:
    """Chromium opens what the ladder wrote, and shows what report.json says."""
    check_page(local_ladder)


@pytest.fixture(scope="module")
def other_local_ladder(tmp_path_factory: pytest.TempPathFactory) -> RunFiles:
    """The ladder of ON_SLURM, once, on this machine."""
    return run_ladder(tmp_path_factory.mktemp("others"), "local", *choose(ON_SLURM))


@pytest.mark.slow
def test_other_phases_pass_on_this_machine(other_local_ladder: RunFiles) -> None:
    """The phases of ON_SLURM are FIT on local as well."""
    check_local(other_local_ladder, ON_SLURM)


@pytest.fixture(scope="module")
def slurm_ladder() -> Iterator[RunFiles]:
    """The ladder of ON_SLURM, once, on a real Slurm without accounting."""
    with visible_folder() as folder:
        yield run_on_lab(folder, *choose(ON_SLURM))


@pytest.mark.lab
def test_ladder_passes_on_slurm(slurm_ladder: RunFiles) -> None:
    """The ladder is FIT on a real Slurm without accounting, in jobs and tasks of arrays."""
    check_phases(slurm_ladder, ON_SLURM)
    check_files(slurm_ladder)
    job_ids = [phase["job_id"] for phase in slurm_ladder.record()["phases"]]
    assert all(re.fullmatch(r"\d+(_\d+)?", job_id) for job_id in job_ids), job_ids
    assert any("_" in job_id for job_id in job_ids)


@pytest.mark.slow
@pytest.mark.lab
def test_every_launcher_gives_the_same_losses(
    other_local_ladder: RunFiles, slurm_ladder: RunFiles
) -> None:
    """The first and last losses are those of the same phase under torchrun, to 1e-6."""
    by_launcher = [
        {phase["phase"]: phase for phase in ladder.record()["phases"]}
        for ladder in (other_local_ladder, slurm_ladder)
    ]
    for name, launcher in LAB_LAUNCHERS.items():
        torchrun, other = (phases[name]["metrics"] for phases in by_launcher)
        for metric in ("first_loss", "train_loss"):
            expected = torchrun[metric]["value"]
            assert other[metric]["value"] == pytest.approx(expected, abs=1e-6), (name, launcher)


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
def test_every_phase_passes_on_hosts_without_a_scheduler(lab_dir: Path) -> None:
    """The whole ladder is FIT on four hosts that are reached over SSH, each with its own address;
    a phase's nodes are on different hosts."""
    ladder = run_on_hosts(lab_dir)
    check_phases(ladder)
    check_files(ladder)
    for phase in ladder.record()["phases"]:
        hosts = [node["host"] for node in phase["nodes"]]
        assert len({*hosts}) == len(hosts) == NODES.get(phase["phase"], 1)


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
