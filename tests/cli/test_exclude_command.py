"""`clustersmoke exclude`, run as a user runs it, with a sinfo that lists what a test says."""

from __future__ import annotations

import contextlib
import json
import shlex
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.cli import main
from pytest_clustersmoke.evidence.history import history_database, history_store
from pytest_clustersmoke.evidence.history.node_history import DAY_S
from pytest_clustersmoke.evidence.node_observation import SCREEN, NodeObservation
from tests.support import records

NODES = [f"gpu-n{number:02d}" for number in range(20)]
DOWN, FULL = "node-down: it went away", "tmp-full: /tmp is full"
Exclude = Callable[..., tuple[int, str, str]]


@pytest.fixture
def exclude(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Exclude:
    """Run the command on a cluster with these nodes; status, output and errors."""
    install_sinfo(tmp_path, *(f"{node}|{'big' if node in NODES[:10] else 'all'}" for node in NODES))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")

    def run(*words: str) -> tuple[int, str, str]:
        status = main(["exclude", "--cluster", "gilbreth", "--report-dir", str(tmp_path), *words])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def install_sinfo(tmp_path: Path, *lines: str, status: int = 0) -> None:
    sinfo = tmp_path / "bin" / "sinfo"
    sinfo.parent.mkdir(exist_ok=True)
    (tmp_path / "sinfo.txt").write_text("".join(f"{line}\n" for line in lines))
    answer = f"cat {shlex.quote(str(tmp_path / 'sinfo.txt'))}; exit {status}"
    sinfo.write_text(f"#!/bin/sh\necho call >> {tmp_path}/calls\n{answer}\n")
    sinfo.chmod(0o755)


def store(directory: Path, days_ago: float, *seen: NodeObservation, **changes: Any) -> str:
    """Store a screen of so many days ago; returns its run id."""
    made = records.run(
        phases=[], nodes=[], begun=time.time() - days_ago * DAY_S, phases_chosen=[], **changes
    )
    history_store.store_run(records.parsed(made), directory, observations=seen)
    return str(made["run_id"])


def down(node: str) -> NodeObservation:
    return NodeObservation(node, SCREEN, "bad", DOWN, True)


def full(node: str) -> NodeObservation:
    return NodeObservation(node, SCREEN, "bad", FULL)


def good(node: str) -> NodeObservation:
    return NodeObservation(node, SCREEN, "good", cleared=frozenset({"node-down", "tmp-full"}))


def test_one_word_is_printed(tmp_path: Path, exclude: Exclude) -> None:
    """Comma-separated names, sorted, without brackets or quotes, and nothing else."""
    store(tmp_path, 1, down(NODES[17]), down(NODES[4]), *map(good, NODES[5:15]))
    assert exclude() == (0, "--exclude=gpu-n04,gpu-n17\n", "")


def test_nothing_is_printed_where_there_is_nothing(tmp_path: Path, exclude: Exclude) -> None:
    """Status 0, no empty line, and Slurm is not asked."""
    store(tmp_path, 1, good(NODES[5]), full(NODES[6]))
    for words in ((), ("--format", "hostlist"), ("--format", "tsv"), ("--drain",), ("--why",)):
        assert exclude(*words) == (0, "", ""), words
    assert not (tmp_path / "calls").exists()


def test_a_shell_passes_the_word_on(tmp_path: Path, exclude: Exclude) -> None:
    """`sbatch $(clustersmoke exclude ...) job.sh` gets one argument more, or none."""
    script = 'set -- $(cat word) job.sh; printf "%s\\n" $# "$1"'

    def read() -> str:
        (tmp_path / "word").write_text(exclude()[1])
        words = ["sh", "-c", script]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True).stdout

    store(tmp_path, 2, down(NODES[3]))
    assert read() == "2\n--exclude=gpu-n03\n"
    store(tmp_path, 1, good(NODES[3]))
    assert read() == "1\njob.sh\n"


def test_two_runs_are_two_pieces_of_evidence(tmp_path: Path, exclude: Exclude) -> None:
    """For the days that the user gives, and until a clean screen."""
    store(tmp_path, 3, full(NODES[6]), good(NODES[5]))
    store(tmp_path, 2, full(NODES[6]), good(NODES[5]))
    assert exclude()[1] == "--exclude=gpu-n06\n"
    assert exclude("--days", "2.5")[1] == ""
    store(tmp_path, 1, good(NODES[6]))
    assert exclude() == (0, "", "")


def test_too_many_nodes_are_none(tmp_path: Path, exclude: Exclude) -> None:
    """More than a fifth of any partition, although not of the cluster: nothing on standard output
    in any form, and status 1."""
    store(tmp_path, 1, *map(down, (*NODES[:2], *NODES[10:13])), *map(good, NODES[13:]))
    for words in ((), ("--format", "json"), ("--format", "tsv"), ("--drain",)):
        status, out, err = exclude(*words)
        assert (status, out) == (1, ""), words
        assert err.startswith(
            "clustersmoke: 3 nodes of 10 of partition all would be left out; expected at most 2, "
            "since so many point to a bad test or setting; nothing is printed; look at what named "
            "them: gpu-n00 (node-down: it went away), "
        )


def test_the_share_is_that_of_the_partition(tmp_path: Path, exclude: Exclude) -> None:
    """Only its nodes are listed and counted."""
    store(tmp_path, 1, *map(down, (*NODES[:2], *NODES[10:13])), *map(good, NODES[2:10]))
    assert exclude("--partition", "big")[1] == "--exclude=gpu-n00,gpu-n01\n"
    store(tmp_path, 1, down(NODES[2]))
    status, out, err = exclude("--partition", "big")
    assert (status, out) == (1, "")
    assert "3 nodes of 10 of partition big would be left out; expected at most 2" in err


def test_the_share_is_that_of_the_nodes_that_were_tested(tmp_path: Path, exclude: Exclude) -> None:
    """A bad test that ran on three nodes of a big cluster empties it of none."""
    store(tmp_path, 1, down(NODES[0]), down(NODES[10]), good(NODES[11]))
    status, out, err = exclude()
    assert (status, out) == (1, "")
    assert "2 nodes of 3 that the history knows would be left out; expected at most 1" in err
    store(tmp_path, 2, *map(good, NODES[12:]))
    assert exclude()[:2] == (0, "--exclude=gpu-n00,gpu-n10\n")


def test_names_that_sinfo_does_not_list_are_never_printed(tmp_path: Path, exclude: Exclude) -> None:
    """Names come from jobs: options of sbatch, commands of a shell, escape sequences."""
    hostile = [
        *("--wrap=reboot", "$(reboot)", "a b", "n1,n2", "n[0-9]", "x;y", "é", "\x1b[31mred"),
        *("gpu-n0", "gpu-n04\n", "../etc", "'", '"', "-w", "ALL"),
    ]
    install_sinfo(tmp_path, *(f"{node}|all" for node in (*NODES, *hostile[:3], "n[0-9]")))
    store(tmp_path, 1, *map(down, [*hostile, NODES[4]]))
    status, out, err = exclude("--why")
    assert (status, out) == (0, "--exclude=gpu-n04\n")
    assert "\x1b" not in err
    assert "left off, since sinfo does not list them here: " in err
    drained = exclude("--drain")[1]
    assert drained.count("\n") == 1


def test_slurm_that_does_not_answer_leaves_the_output_empty(
    tmp_path: Path, exclude: Exclude, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 2 and the reason, so that sbatch gets no list rather than a wrong one."""
    store(tmp_path, 1, down(NODES[4]))
    install_sinfo(tmp_path, "gpu-n04|all", status=1)
    status, out, err = exclude()
    assert (status, out) == (2, "")
    assert err.startswith(
        "clustersmoke: nothing is printed, since Slurm does not say which nodes it has: `sinfo"
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    status, out, err = exclude()
    assert (status, out) == (2, "")
    assert "cannot be run: No such file or directory" in err


def test_an_unknown_partition_is_refused(tmp_path: Path, exclude: Exclude) -> None:
    """With the names that Slurm has."""
    store(tmp_path, 1, down(NODES[4]))
    status, out, err = exclude("--partition", "bgi")
    assert (status, out) == (2, "")
    assert "Slurm has no partition `bgi`" in err and "did you mean `big`?" in err


def test_evidence_is_shown_on_standard_error(tmp_path: Path, exclude: Exclude) -> None:
    """Until when, each run, and what it found."""
    run_id = store(tmp_path, 1, down(NODES[4]))
    status, out, err = exclude("--why")
    assert (status, out) == (0, "--exclude=gpu-n04\n")
    first, second = err.splitlines()
    assert first.startswith("gpu-n04, until ") and first.endswith(" UTC:")
    assert f" screen of {run_id}: definite: {DOWN}" in second


def test_forms_for_programs(tmp_path: Path, exclude: Exclude) -> None:
    """Names, tab-separated values, and JSON."""
    run_id = store(tmp_path, 1, down(NODES[4]), full(NODES[6]), good(NODES[5]))
    other = store(tmp_path, 2, full(NODES[6]), good(NODES[5]), *map(good, NODES[10:]))
    assert exclude("--format", "hostlist")[1] == "gpu-n04,gpu-n06\n"
    rows = [line.split("\t") for line in exclude("--format", "tsv")[1].splitlines()]
    assert [[cell for at, cell in enumerate(row) if at != 1] for row in rows] == [
        ["gpu-n04", "definite", run_id, SCREEN, DOWN],
        ["gpu-n06", "independent", run_id, SCREEN, FULL],
        ["gpu-n06", "independent", other, SCREEN, FULL],
    ]
    made = json.loads(exclude("--format", "json")[1])
    assert [entry["node"] for entry in made["exclude"]] == ["gpu-n04", "gpu-n06"]
    assert made["exclude"][0]["evidence"][0]["definite"] is True
    assert made["exclude"][1]["reason"] == FULL


def test_drain_prints_lines_that_a_shell_reads_back(tmp_path: Path, exclude: Exclude) -> None:
    """Quoted, whatever a log wrote into the reason; no command is run."""
    reason = "gpu-ecc-errors: GPU '3' $(reboot); `id` \\ \"x\" é"
    store(tmp_path, 1, NodeObservation(NODES[4], SCREEN, "bad", reason, True))
    (tmp_path / "bin" / "scontrol").write_text("#!/bin/sh\ntouch called\n")
    (tmp_path / "bin" / "scontrol").chmod(0o755)
    (line,) = exclude("--drain")[1].splitlines()
    words = ["NodeName=gpu-n04", "State=DRAIN", f"Reason=clustersmoke: {reason}"]
    assert shlex.split(line) == ["scontrol", "update", *words]
    echoed = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True, check=True
    )
    assert echoed.stdout.splitlines() == ["scontrol", "update", *words]
    assert not list(tmp_path.rglob("called"))


def test_unusable_histories_leave_the_output_empty(tmp_path: Path, exclude: Exclude) -> None:
    """None, one of another program, one without the cluster, one that is locked: status 2."""
    assert exclude()[:2] == (2, "")
    path = tmp_path / history_database.NAME
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE bookmarks (url)")
    status, out, err = exclude()
    assert (status, out) == (2, "") and "not a clustersmoke history" in err
    path.unlink()
    store(tmp_path, 1, down(NODES[4]), cluster="gilbret")
    status, out, err = exclude()
    assert (status, out) == (2, "")
    assert "no cluster `gilbreth` in the history" in err and "did you mean `gilbret`?" in err


def test_a_locked_history_leaves_the_output_empty(
    tmp_path: Path, exclude: Exclude, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that never ends: status 2 and the reason."""
    store(tmp_path, 1, down(NODES[4]))
    monkeypatch.setattr(history_database, "READ_PATIENCE_S", 0.05)
    path = tmp_path / history_database.NAME
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        status, out, err = exclude()
    assert (status, out) == (2, "")
    assert "database is locked" in err


def test_a_history_of_an_older_version_has_no_evidence(tmp_path: Path, exclude: Exclude) -> None:
    """It is read as it is."""
    store(tmp_path, 1, down(NODES[4]))
    with contextlib.closing(sqlite3.connect(tmp_path / history_database.NAME)) as connection:
        connection.execute("PRAGMA user_version = 4")
    assert exclude() == (0, "", "")


@pytest.mark.parametrize("days", ["0", "-1", "nan", "181", "x"])
def test_days_are_a_number_of_days(
    exclude: Exclude, days: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        exclude("--days", days)
    assert ended.value.code == 2
    assert f"`{days}` is not a number of days" in capsys.readouterr().err
