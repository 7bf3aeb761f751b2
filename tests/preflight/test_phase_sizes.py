"""Sizes of a phase that its cluster cannot give, and those that could not show anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_clustersmoke.cli.suite_files import shipped_phases
from pytest_clustersmoke.config.marker import Needs
from pytest_clustersmoke.config.phase import parse_setting
from pytest_clustersmoke.preflight.phase_sizes import find_unfit_sizes
from tests.support.evidence import make_phase, make_profile
from tests.support.harness import Suite


def test_phase_that_fits_the_hardware_is_accepted(tmp_path: Path) -> None:
    profile = make_profile(tmp_path)
    needs = Needs(min_ranks=2, min_nodes=1)
    assert [*find_unfit_sizes(make_phase(profile, gpus_per_node=8, needs=needs), profile)] == []


@pytest.mark.parametrize(
    ("nodes", "ranks", "needs", "words"),
    [
        (1, 1, Needs(), ""),
        (1, 2, Needs(min_ranks=2), ""),
        (2, 1, Needs(min_ranks=2), ""),
        (1, 1, Needs(min_ranks=2), "phase `small` has 1 rank (`nodes` times `gpus_per_node`)"),
        (1, 8, Needs(min_nodes=2), "phase `small` has 1 node"),
        (1, 1, Needs(min_nodes=2, min_ranks=2), "phase `small` has 1 node"),
    ],
)
def test_phase_too_small_for_its_criteria_is_refused_once(
    tmp_path: Path, nodes: int, ranks: int, needs: Needs, words: str
) -> None:
    """One problem for what the phase lacks: ranks, or nodes."""
    profile = make_profile(tmp_path)
    phase = make_phase(profile, nodes=nodes, gpus_per_node=ranks, needs=needs)
    assert [problem.what for problem in find_unfit_sizes(phase, profile)] == [words] * bool(words)


@pytest.mark.parametrize(
    ("resume", "time", "refused"),
    [
        (5, "00:02:59", True),
        (5, 3, False),
        (0, 1, False),
        (5, False, False),
        (5, None, False),
    ],
)
def test_phase_that_is_asked_to_stop_as_it_starts_is_refused(
    tmp_path: Path, resume: int, time: object, refused: bool
) -> None:
    """Slurm asks up to a minute before `stop_before_s`."""
    phases = {"small": {"resume": resume, "slurm": {"time": time}}}
    profile = make_profile(tmp_path, backend="slurm", phases=phases)
    problems = [*find_unfit_sizes(make_phase(profile), profile)]
    assert [problem.where.partition(":")[0] for problem in problems] == (
        [str(tmp_path / "cluster.yaml")] * refused
    )
    assert all("180 s before its time limit" in problem.what for problem in problems)


@pytest.mark.parametrize(
    ("chosen", "setting", "source"),
    [
        ({"nodes": 1, "gpus_per_node": 1}, "", "cluster.yaml:"),
        ({"nodes": 1}, "", "cluster.yaml:"),
        ({"nodes": 2}, "nodes=1", "--cluster-set"),
    ],
)
def test_place_of_the_size_is_named(
    tmp_path: Path, chosen: dict[str, int], setting: str, source: str
) -> None:
    """Whoever made the phase too small is shown where."""
    profile = make_profile(tmp_path, phases={"small": chosen})
    settings = [parse_setting(f"small.{setting}")] if setting else []
    phase = make_phase(profile, settings=settings, nodes=2, needs=Needs(min_ranks=2))
    (problem,) = find_unfit_sizes(phase, profile)
    assert source in problem.where


@pytest.mark.parametrize("way", ["profile", "--cluster-set"])
def test_one_rank_is_refused_where_criteria_compare_ranks(suite: Suite, way: str) -> None:
    """By the profile or by an option: nothing is submitted, and one line says what to do."""
    suite.cluster(phases={"small": {"gpus_per_node": 1} if way == "profile" else None})
    suite.phase(gpus_per_node=2, needs={"min_ranks": 2})
    words = () if way == "profile" else ("--cluster-set", "small.gpus_per_node=1")
    (line,) = suite.refused(*words)
    assert line.startswith("cluster.yaml:" if way == "profile" else "--cluster-set: ")
    assert "phase `small` has 1 rank (`nodes` times `gpus_per_node`); expected at least 2" in line
    assert "its criteria compare ranks (`needs` at test_small.py:3)" in line
    assert line.endswith("set its `nodes` or `gpus_per_node`, or remove it from `phases`")


def test_shipped_phases_that_compare_ranks_need_two() -> None:
    """One GPU is no reason to fail: DDP does not wrap a lone rank, and nothing is reduced."""
    needed = {phase.name: phase.needs.min_ranks for phase in shipped_phases()}
    comparing = {name for name in needed if name.startswith(("ddp_", "lora_sft_", "allreduce_1"))}
    assert len(comparing) == 6 and needed["mlp_1gpu"] == 0
    assert {needed[name] for name in comparing} == {2}
