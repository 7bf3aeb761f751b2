"""Every exit status listed in docs/reference/exit-statuses.md is provoked."""

from __future__ import annotations

import argparse
import ast
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_clustersmoke.cli import parser
from tests.support.harness import Suite

ROOT = Path(__file__).resolve().parent.parent
DOC = ROOT / "docs" / "reference" / "exit-statuses.md"
FAILS = "def test_fails(self, phase):\n    assert False"
# Statuses of `clustersmoke` that other tests provoke, by subcommand and status.
ELSEWHERE = {
    ("history", 0): "tests/cli/test_history_command.py",
    ("compare", 0): "tests/cli/test_compare_command.py::test_similar_runs_do_not_differ",
    ("compare", 1): "tests/cli/test_compare_command.py::test_differences_are_named",
    ("report", 0): "tests/cli/test_report_command.py",
    ("nodes", 0): "tests/cli/test_nodes_command.py",
    ("exclude", 0): "tests/cli/test_exclude_command.py::test_one_word_is_printed",
    ("exclude", 1): "tests/cli/test_exclude_command.py::test_too_many_nodes_are_none",
    ("summary", 0): "tests/cli/test_summary_command.py::test_first_line_is_the_verdict_of_the_run",
    ("references", 0): (
        "tests/cli/test_propose_command.py::test_output_can_be_pasted_into_cluster_yaml"
    ),
    ("sensitivity", 0): (
        "tests/cli/test_sensitivity_command.py::test_table_has_a_row_for_each_size_and_spread"
    ),
    ("sensitivity", 2): (
        "tests/cli/test_sensitivity_command.py::test_unusable_number_of_trials_is_refused"
    ),
    ("lab up", 0): "tests/lab/test_lab_real.py::test_down_leaves_nothing",
    ("lab up", 1): "tests/lab/test_lab_failures.py",
    ("lab status", 0): "tests/lab/test_lab_real.py::test_down_leaves_nothing",
    ("lab env", 0): "tests/lab/test_lab_real.py",
    ("lab install", 0): "tests/lab/test_lab_config.py",
    ("lab install", 2): "tests/lab/test_lab_config.py",
}
# Tests that provoke the statuses of --cluster-prove.
PROOFS = {
    0: "tests/session/test_prove_suite.py::test_gate_that_detects_its_fault_is_proven",
    1: "tests/session/test_prove_suite.py::test_gate_that_stays_green_is_named",
    6: "tests/faults/test_gate.py::test_verdict_over_all_gates",
}
# Tests that provoke the statuses of --cluster-screen, all in one file.
SCREENS = {
    0: "test_screen_needs_no_test_file_and_runs_no_phase",
    1: "test_node_that_fails_a_check_is_a_failed_test_with_its_next_step",
    4: "test_cluster_without_slurm_is_refused",
    5: "test_selection_that_leaves_no_node_ends_with_nothing_collected",
    6: "test_too_few_nodes_are_inconclusive",
}


def table(title: str) -> list[list[str]]:
    """The rows of the table under a heading, without the head."""
    section = DOC.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def passes(suite: Suite) -> int:
    suite.phase()
    return int(suite.run().ret)


def criterion_fails(suite: Suite) -> int:
    suite.phase(body=FAILS)
    return int(suite.run().ret)


def interrupted(suite: Suite) -> int:
    """Ctrl-C while the job waits for a file that never comes."""
    suite.phase(args={"wait_for": str(suite.path / "never")})
    with suite.started() as running:
        running.wait_for_ranks()
        running.interrupt()
        return int(running.wait().ret)


def plugin_breaks(suite: Suite) -> int:
    """Another plugin's error ends pytest; a partial report is written all the same."""
    suite.phase()
    suite.path.joinpath("conftest.py").write_text("def pytest_runtest_logreport(): 1 / 0\n")
    status = int(suite.run_apart().ret)
    record = suite.record()
    assert record["partial"] == f"pytest ended early with exit status {status}"
    assert record["verdict"] == "INCONCLUSIVE"
    return status


def cluster_is_misspelt(suite: Suite) -> int:
    suite.phase()
    return int(suite.run(cluster="on").ret)


def selection_is_empty(suite: Suite) -> int:
    suite.phase()
    return int(suite.run("-k", "nothing").ret)


def required_kind_is_not_measured(suite: Suite) -> int:
    suite.cluster(require=["transports"], expect={"small": {"intra_node": ["P2P/*"]}})
    suite.phase(gpus_per_node=2, base="TalkedInsideNodes", body="pass")
    return int(suite.run().ret)


PROVOKED: dict[int, Callable[[Suite], int]] = {
    0: passes,
    1: criterion_fails,
    2: interrupted,
    3: plugin_breaks,
    4: cluster_is_misspelt,
    5: selection_is_empty,
    6: required_kind_is_not_measured,
}


@pytest.mark.parametrize("status", PROVOKED)
def test_pytest_ends_with_each_listed_status(suite: Suite, status: int) -> None:
    """The case described in the table gives the status."""
    assert PROVOKED[status](suite) == status


def test_table_of_pytest_is_complete() -> None:
    """It lists exactly these statuses."""
    rows = table("`pytest --cluster NAME`")
    assert [int(row[0]) for row in rows] == list(PROVOKED)


def test_readme_lists_the_same_verdicts() -> None:
    """Each status in the README has the verdict of the table."""
    readme = dict(re.findall(r"^\| (\d) \| (FIT|UNFIT|INCONCLUSIVE)\b", README, re.MULTILINE))
    assert {"0", "1", "6"} <= readme.keys()
    listed = {row[0]: row[1] for row in table("`pytest --cluster NAME`")}
    assert all(listed[status].startswith(verdict) for status, verdict in readme.items())


README = (ROOT / "README.md").read_text()


def test_table_of_a_proof_is_complete(suite: Suite) -> None:
    """It lists the statuses that the tests of proofs provoke, and 5 for no gate."""
    rows = {int(row[0]): row[1] for row in table("`pytest --cluster NAME --cluster-prove`")}
    assert rows == {0: "PROVEN", 1: "NOT PROVEN", 5: "none", 6: "INCONCLUSIVE"}
    assert rows.keys() == PROOFS.keys() | {5}
    for place in PROOFS.values():
        assert exists(place), place
    suite.phase()
    result = suite.run("--cluster-prove", "-k", "matches_nothing")
    assert result.ret == 5, result.stdout.str()
    assert "0 gates to prove" in result.stdout.str()


def test_table_of_a_screen_is_complete() -> None:
    """It lists the statuses that the tests of screens provoke."""
    rows = {int(row[0]): row[1] for row in table("`pytest --cluster NAME --cluster-screen`")}
    assert rows == {0: "FIT", 1: "UNFIT", 4: "none", 5: "none", 6: "INCONCLUSIVE"}
    assert rows.keys() == SCREENS.keys()
    for name in SCREENS.values():
        assert exists(f"tests/session/test_screen_suite.py::{name}"), name


def exists(place: str) -> bool:
    """Whether the test, or a test in the file, exists."""
    path, _, name = place.partition("::")
    if not (ROOT / path).is_file():
        return False
    tree = ast.parse((ROOT / path).read_text())
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return name in names if name else any(name.startswith("test_") for name in names)


# The subcommands

CALLS: dict[tuple[str, int], tuple[str, ...]] = {
    ("transports", 0): ("transports", "nccl.log"),
    ("transports", 2): ("transports", "none.log"),
    ("diagnose", 0): ("diagnose", "quiet.log"),
    ("diagnose", 1): ("diagnose", "bad.log"),
    ("diagnose", 2): ("diagnose", "none.log"),
    ("init", 0): ("init", "new"),
    ("init", 2): ("init", "quiet.log"),
    ("summary", 2): ("summary",),
    ("status", 0): ("status", "--shared-dir", "."),
    ("status", 2): ("status",),
    ("history", 2): ("history", "--report-dir", "none"),
    ("compare", 2): ("compare", "a", "b"),
    ("report", 2): ("report", "20261101"),
    ("nodes", 2): ("nodes", "--cluster", "one"),
    ("exclude", 2): ("exclude", "--cluster", "one"),
    ("references", 2): ("references", "propose", "--cluster", "one"),
    ("lab up", 2): ("lab", "up", "--nodes", "0"),
    ("lab status", 1): ("lab", "status"),
    ("lab status", 2): ("lab", "status", "--no"),
    ("lab env", 2): ("lab", "env"),
    ("lab down", 0): ("lab", "down"),
    ("lab down", 2): ("lab", "down", "--name", "none"),
}
BAD = "node0: [rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


@pytest.mark.parametrize(("call", "status"), [(CALLS[key], key[1]) for key in CALLS])
def test_clustersmoke_ends_with_each_listed_status(
    tmp_path: Path, call: tuple[str, ...], status: int
) -> None:
    """The case described in the table gives the status, without a traceback."""
    tmp_path.joinpath("quiet.log").write_text("all is well\n")
    tmp_path.joinpath("bad.log").write_text(BAD)
    log = ROOT / "tests" / "evidence" / "nccl" / "data" / "46_v2307_shm_direct_single.log"
    tmp_path.joinpath("nccl.log").write_text(log.read_text())
    own = {"XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "PATH": "/nowhere"}
    env = {name: value for name, value in os.environ.items() if name != "SLURM_CONF"}
    command = [sys.executable, "-m", "pytest_clustersmoke.cli", *call]
    done = subprocess.run(command, cwd=tmp_path, env={**env, **own}, capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("before", "status"), [(signal.SIG_DFL, 129), (signal.SIG_IGN, 0)])
def test_lost_terminal_ends_clustersmoke_except_under_nohup(
    before: signal.Handlers, status: int
) -> None:
    """SIGHUP during reading ends it with 129; under nohup it continues."""
    ours = signal.signal(signal.SIGHUP, before)  # inherited by the child
    command = [sys.executable, "-m", "pytest_clustersmoke.cli", "diagnose", "-"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    signal.signal(signal.SIGHUP, ours)
    assert process.stdin is not None
    process.stdin.write(
        b"all is well\n" * 100_000
    )  # far more than a pipe holds, so it is still reading
    process.send_signal(signal.SIGHUP)
    process.communicate()
    assert process.returncode == status


def subcommands(parser: argparse.ArgumentParser, before: str = "") -> set[str]:
    """The subcommands of a parser, and each of `lab`."""
    statuses: set[str] = set()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                nested = subcommands(inner, f"{name} ") if name == "lab" else set()
                statuses |= nested or {before + name}
    return statuses


def test_table_of_clustersmoke_is_complete() -> None:
    """It lists every subcommand; each status is provoked here or in the test named."""
    rows = {row[0].strip("`"): row[1:] for row in table("`clustersmoke`")}
    assert set(rows) == subcommands(parser())
    documented = {
        (name, status) for name, row in rows.items() for status in range(3) if row[status]
    }
    assert documented == set(CALLS) | set(ELSEWHERE)
    assert not set(CALLS) & set(ELSEWHERE)
    for place in ELSEWHERE.values():
        assert exists(place), place
