"""`--cluster-screen` measures what each node's devices reach, by real ranks on a real Slurm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_clustersmoke import lab
from pytest_clustersmoke.cli import main
from pytest_clustersmoke.evidence.history.figure_history import read_figures
from pytest_clustersmoke.evidence.history.history_database import open_for_reading
from tests.support.harness import Suite
from tests.support.labs import LabHosts, running_lab
from tests.support.screens import (
    FILL_TMP,
    SLOW_MEMORY,
    change_driver,
    make_slow,
    on_node,
    read_lists,
    read_screen,
    stop_process,
    use_fake_gpus,
)

pytestmark = [pytest.mark.lab, pytest.mark.slow_lab]

NODES = 4
PATIENCE_S = 600.0
LIMIT_S = 60.0


def test_slow_memory_and_ranks_that_do_not_start_are_named(
    tmp_path: Path,
    leftovers: tuple[str, Callable[[], list[str]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One node's memory is slow, and one cannot start its ranks: both fail the check `peaks` alone,
    each with its cause. `clustersmoke nodes` shows the figures."""
    with running_lab(lab.LabSettings(name="peaks", nodes=NODES)) as running:
        usual, slow, broken, _ = running.nodes
        suite = Suite(tmp_path, leftovers[0])
        suite.use_slurm(running.slurm_conf)
        suite.profile |= {"peaks": "once"}
        suite.profile["limits"] |= {"screen_s": 60, "screen_peaks_s": 200}
        suite.profile["env"]["common"]["set"].pop("PYTHONPATH")  # real torchrun, and `make_slow`
        suite.profile["setup"] = [
            make_slow(slow, tmp_path, SLOW_MEMORY),
            on_node(broken, "export CLUSTERSMOKE_PG_TIMEOUT_S=never"),
        ]
        outcome = suite.run_apart("--cluster-screen", patience_s=PATIENCE_S)
    assert outcome.ret == 1, outcome.output
    nodes = {node["node"]: node for node in read_screen(outcome)["screen"]["nodes"]}
    assert all(node["seconds"] for node in nodes.values()), "of the answer alone"
    failed = {name for name, node in nodes.items() if node["state"] != "passing"}
    assert failed == {slow, broken}, outcome.output
    assert nodes[slow]["reason"].startswith("device-slow: the node: its cpu_latency_ns is ")
    results = {name: node["checks"]["peaks"]["result"] for name, node in nodes.items()}
    assert results == {**dict.fromkeys(nodes, "passed"), slow: "failed", broken: "failed"}
    assert nodes[broken]["reason"].startswith(
        "peaks-failed: not measured, unlike 3 other nodes: its measurement ended with status 1; "
        "see the log of its job: "
    )
    assert "CLUSTERSMOKE_PG_TIMEOUT_S" in nodes[broken]["reason"], nodes[broken]["reason"]
    capsys.readouterr()
    status = main(["nodes", "--cluster", "one", "--reports", str(suite.reports), "--node", slow])
    shown = capsys.readouterr().out
    assert status == 0 and "device-slow" in shown and "cpu_latency_ns" in shown, shown
    with open_for_reading(suite.reports) as connection:
        assert connection is not None
        kept = read_figures(connection, "one")
    assert set(kept) == {*nodes} - {broken}
    names = {figure.name for figure in kept[usual]}
    assert names == {"gemm_fp32_tflops", "cpu_copy_gb_per_s", "cpu_latency_ns"}


@pytest.fixture
def four(
    lab_dir: Path, leftovers: tuple[str, Callable[[], list[str]]]
) -> Iterator[tuple[lab.Lab, Suite]]:
    """A lab whose nodes have a /tmp of their own, and a suite that screens it with real ranks."""
    settings = lab.LabSettings(name="four", nodes=NODES, isolated=True, directory=lab_dir / "lab")
    with running_lab(settings) as running:
        yield running, make_suite(lab_dir / "suite", leftovers[0], running)


def test_stopped_node_and_other_driver_are_named_beside_real_peaks(
    four: tuple[lab.Lab, Suite], lab_dir: Path
) -> None:
    """The drivers are those of a fake nvidia-smi; the ranks train on cores."""
    running, suite = four
    stopped, odd, *_ = running.nodes
    suite.profile["setup"] += [stop_process(stopped), change_driver(odd, lab_dir)]
    screen_four(suite, {stopped: "answer", odd: "driver-differs"}, silent={stopped})


def test_full_tmp_and_slow_memory_are_named_beside_real_peaks(
    four: tuple[lab.Lab, Suite], lab_dir: Path
) -> None:
    """The node with a full /tmp may be unable to measure its device, which is no fault of that."""
    running, suite = four
    full, slow, *_ = running.nodes
    LabHosts(running.name).run(full, FILL_TMP)
    suite.profile["setup"] += [
        on_node(full, "unset TMPDIR"),  # that of whoever runs the tests
        make_slow(slow, lab_dir, SLOW_MEMORY),
    ]
    screen_four(suite, {full: "tmp-not-writable", slow: "device-slow"}, silent={full})


def make_suite(folder: Path, token: str, running: lab.Lab) -> Suite:
    """A suite that screens with real ranks, one on each node."""
    folder.mkdir()
    suite = Suite(folder, token)
    suite.use_slurm(running.slurm_conf)
    use_fake_gpus(suite, folder, LIMIT_S)
    suite.profile["hardware"] |= {"device": "auto", "gpus_per_node": 1}
    suite.profile["limits"]["screen_peaks_s"] = PATIENCE_S
    suite.profile["peaks"] = "once"
    return suite


def screen_four(suite: Suite, bad: dict[str, str], silent: set[str]) -> None:
    """Screen the nodes; these bad ones alone are named, each with its reason, and all but the
    `silent` ones have figures."""
    outcome = suite.run_apart("--cluster-screen", patience_s=2 * PATIENCE_S)
    assert outcome.ret == 1, outcome.output
    nodes = {node["node"]: node for node in read_screen(outcome)["screen"]["nodes"]}
    reasons = {name: node["reason"].partition(":")[0] for name, node in nodes.items()}
    assert {name: why for name, why in reasons.items() if why} == bad, outcome.output
    assert read_lists(outcome)["failing"] == [name for name in nodes if name in bad]
    with open_for_reading(suite.reports) as connection:
        assert connection is not None
        assert {*read_figures(connection, "one")} >= {*nodes} - silent, outcome.output
