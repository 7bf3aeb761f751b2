"""Devices are measured once in a run, by real ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.harness import Suite

PROGRAM = """\
from pytest_clustersmoke.rank import Rank

with Rank.start() as rank:
    pass
"""
CRITERION = "test_devices_reach_their_peaks"


def test_first_phase_measures_and_the_next_one_does_not(
    tmp_path: Path, leftovers: tuple[str, Callable[[], list[str]]]
) -> None:
    """The second phase's criterion is skipped with the first one's name; report.json has the
    figures and the time, in the first phase alone."""
    suite = Suite(tmp_path, leftovers[0], real_torchrun=True)
    suite.profile["peaks"] = "once"
    program = tmp_path / "train_nothing.py"
    program.write_text(PROGRAM)
    for name, after in (("first", ""), ("second", "first")):
        suite.phase(name, "", "Started", script=program.name, gpus_per_node=2, after=after)
    outcome = suite.run_apart("-rs")
    assert outcome.ret == 0, outcome.output
    first, second = outcome.record()["phases"]
    assert first["criteria"][CRITERION]["result"] == "passed"
    assert second["criteria"][CRITERION]["result"] == "skipped"
    assert "in an earlier phase of the run (first)" in outcome.output
    names = [(figure["device"], figure["name"]) for figure in first["peaks"]["figures"]]
    gemm = "gemm_fp32_tflops"
    host = [("", "cpu_copy_gb_per_s"), ("", "cpu_latency_ns")]
    assert names == [("local0/cpu:0", gemm), *host, ("local0/cpu:1", gemm)]
    assert first["peaks"]["wrong"] == 0 < first["peaks"]["calls"]
    assert first["stage_seconds"]["peaks"] >= first["peaks"]["seconds"] > 0
    assert second["peaks"] is None and "peaks" not in second["stage_seconds"]
