"""The record of a screen, from how the nodes' jobs ended and the files that they left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.screen_files import ScreenFiles
from pytest_clustersmoke.evidence.screen_record import ScreenRecord
from pytest_clustersmoke.evidence.whole_files import write_json
from pytest_clustersmoke.jobs.screen_jobs import NodeEnd
from pytest_clustersmoke.jobs.screen_plan import PlannedNode
from pytest_clustersmoke.session.screen_results import build_record
from tests.support.evidence import make_profile
from tests.support.screens import answer

NODES = ("n0", "n1", "n2")
FIGURES = {"figures": [{"name": "gemm_bf16_tflops", "value": 700.0, "unit": "TFLOP/s"}]}
ERROR = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"


@pytest.fixture
def files(tmp_path: Path) -> ScreenFiles:
    """What three nodes left, of which n2 has no figures."""
    made = ScreenFiles(tmp_path)
    made.create({})
    for name in NODES:
        write_json(made.answer(name), answer(name).as_dict())
    for name in NODES[:2]:
        write_json(made.figures(name), FIGURES)
    return made


def record(files: ScreenFiles, **ends: NodeEnd) -> ScreenRecord:
    """Of a profile for nodes with two GPUs; nodes have answered unless `ends` say otherwise."""
    hardware: dict[str, Any] = {"gpu": "any", "device": "cuda", "gpus_per_node": 2}
    profile = make_profile(files.run, backend="slurm", hardware=hardware)
    plan = [PlannedNode(name, "idle") for name in NODES]
    ends = {name: NodeEnd("answered") for name in NODES} | ends
    return build_record(profile, "gpu", 0.0, plan, ends, files)


def test_node_whose_ranks_died_fails_with_the_cause_in_the_log_of_its_job(
    files: ScreenFiles,
) -> None:
    """Also where its answer says nothing against it."""
    frames = "Traceback (most recent call last):\n  File 'peaks.py', line 335, in measure_alone\n"
    launcher = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n======\n"
    files.log("n2").write_text(f"{frames}{ERROR}\n\n{frames}{launcher}")
    write_json(files.figures("n2"), {"status": 1})
    *others, bad = record(files).nodes
    assert [node.state for node in others] == ["passing", "passing"]
    assert bad.state == "failing" and bad.checks["peaks"].finding == "peaks-failed"
    assert bad.reason.startswith(
        "peaks-failed: not measured, unlike 2 other nodes: its measurement"
    )
    assert "a GPU has a hardware fault" in bad.reason


def test_node_that_an_interrupted_screen_left_measuring_passes(files: ScreenFiles) -> None:
    node = record(files, n2=NodeEnd("answered", "the screen was interrupted")).nodes[2]
    assert (node.state, node.checks["peaks"].result) == ("passing", "skipped")
    assert node.checks["peaks"].text == "not measured: the screen was interrupted"


def test_reason_begins_with_what_is_definite(files: ScreenFiles) -> None:
    """A new driver ends the evidence of another driver, and not that of a wrong device."""
    gpus = [{**gpu, "driver_version": "535.1"} for gpu in answer("n1").facts["gpus"]]
    wrong = {"identity": "GPU-1", "device": "cuda:0", "calls": 3000, "wrong": 2}
    write_json(files.figures("n2"), FIGURES)
    write_json(files.figures("n1"), {**FIGURES, "devices": [wrong]})
    write_json(files.answer("n1"), answer("n1", gpus=gpus).as_dict())
    bad = record(files).nodes[1]
    assert bad.checks["driver"].finding == "driver-differs"
    assert bad.reason.startswith("device-wrong-answer: ") and "; driver-differs: " in bad.reason
