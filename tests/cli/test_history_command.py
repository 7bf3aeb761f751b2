"""`clustersmoke history`, run as a user runs it."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.cli import main
from pytest_clustersmoke.config.metrics import show
from tests.evidence.history.made import DAY_S, night, nights, of_night, with_versions
from tests.support.records import BEGUN, annotate, attempt, metric, phase, store_run


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    status = main([str(word) for word in words])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    """Twelve good runs, an upgrade of NCCL, and a run at two thirds of the speed."""
    nights(tmp_path, 12, versions=with_versions(nccl="2.19.3"))
    nights(tmp_path, 9, first=12)
    store_run(night(21, 6.6, criteria={"test_t": {"result": "failed", "text": ""}}), tmp_path)
    return tmp_path


def test_one_phase_is_shown_run_by_run(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest run first, its failed criterion, the change of versions at its run, and the
    metric's level with a sparkline that drops at the end."""
    status, out, _ = run(capsys, "history", "--report-dir", reports)
    lines = out.splitlines()
    assert status == 0
    assert lines[0] == "zero1_4node on gilbreth: 22 runs, 21 of them good"
    assert "test_t failed" in lines[3]
    assert "6.600" in lines[3]
    (changed,) = [number for number, line in enumerate(lines) if "nccl 2.19.3 -> 2.21.5" in line]
    assert changed == 3 + 9
    assert len(lines) == 3 + 20 + 1 + 2  # --last is 20
    cells = lines[-1].split()
    assert cells[:5] == ["steps_per_s", "6.600", "steps/s", "9.500", "-30.5"]
    assert cells[-1].endswith("▁")
    assert len(cells[-1]) == 20
    assert set(cells[-1][:-1]) <= set("▆▇█")
    assert "\x1b" not in out
    assert all(line == line.rstrip() for line in lines)


def test_several_phases_have_one_line_each(
    reports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each phase of each cluster, with its newest run and main metric. The verdict is that of the
    phase: the job of the last one passed, and a criterion did not."""
    store_run(of_night(30, phase("a"), phase("b", metrics={}, outcome="lost")), reports)
    status, out, _ = run(capsys, "history", "--report-dir", reports)
    assert status == 0
    rows = [line.split() for line in out.splitlines()]
    assert [row[:4] for row in rows[1:]] == [
        ["gilbreth", "a", "1", "1"],
        ["gilbreth", "b", "1", "0"],
        ["gilbreth", "zero1_4node", "22", "21"],
    ]
    assert rows[1][7:9] == ["steps_per_s", "9.500"]
    verdicts = [line[out.index("verdict") :] for line in out.splitlines()[1:]]
    assert [words.split("  ")[0] for words in verdicts] == [
        "passed",
        "not measured (lost)",
        "1 failed",
    ]


def test_verdict_of_a_phase_is_that_of_its_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that lacks what is required has not passed, and one that was tried again is unlike the
    others."""
    attempts = [attempt(1, "preempted"), attempt(2)]
    missing = [{"phase": "a", "kind": "references", "reason": "none"}]
    store_run(of_night(0, phase("a"), phase("b", attempts=attempts), missing=missing), tmp_path)
    status, out, _ = run(capsys, "history", "--report-dir", tmp_path)
    assert status == 0
    first, second = (line.split("  ") for line in out.splitlines()[1:])
    assert "not measured (references)" in first and "passed on attempt 2" in second
    _, out, _ = run(capsys, "history", "--report-dir", tmp_path, "--phase", "a")
    assert " passed, not measured: references" in out


def test_last_cluster_phase_and_metric_select(
    reports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each option keeps only what it names."""
    store_run(of_night(30, phase("a"), cluster="nebius"), reports)
    words = ("--cluster", "nebius", "--phase", "a", "--metric", "peak_memory_gib", "--last", "1")
    status, out, _ = run(capsys, "history", "--report-dir", reports, *words, "--json")
    (shown,) = json.loads(out)["phases"]
    (only,) = shown["runs"]
    assert status == 0
    assert (shown["cluster"], shown["phase"], shown["runs_in_all"]) == ("nebius", "a", 1)
    assert only["metrics"] == {"peak_memory_gib": {"value": 9.007, "unit": "GiB"}}
    assert only["begun"] == BEGUN + 30 * DAY_S
    assert only["nodes"] == ["node0", "node1", "node2", "node3"]
    assert only["versions"]["nccl"] == "2.21.5"


def test_csv_has_one_line_per_metric(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A header, then every metric of every run, including runs without metrics and values that are
    not finite."""
    store_run(of_night(30, phase("zero1_4node", metrics={}, outcome="never_ran")), reports)
    bad = {**metric(1.0), "value": "nan"}
    store_run(night(31, metrics={"steps_per_s": bad, "final_loss": metric(0.5, "1")}), reports)
    status, out, _ = run(capsys, "history", "--report-dir", reports, "--csv", "--last", "3")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert status == 0
    assert [(row["outcome"], row["metric"], row["value"]) for row in rows] == [
        ("passed", "steps_per_s", "nan"),
        ("passed", "final_loss", "0.5"),
        ("never_ran", "", ""),
        ("passed", "steps_per_s", "6.6"),
    ]
    assert rows[-1]["hardware"] == "4 nodes x 2 NVIDIA H100"
    assert (rows[-1]["failed"], rows[-1]["good"]) == ("1", "0")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--cluster", "gilbret"),
            "--cluster: no cluster `gilbret` in the history; expected one of `gilbreth`; "
            "did you mean `gilbreth`?",
        ),
        (
            ("--phase", "zero1_4nodes"),
            "--phase: no phase `zero1_4nodes` in the history; expected one of `zero1_4node`; "
            "did you mean `zero1_4node`?",
        ),
        (
            ("--metric", "step_per_s"),
            "--metric: no metric `step_per_s` in these runs; expected one of `steps_per_s`; "
            "did you mean `steps_per_s`?",
        ),
    ],
)
def test_unknown_names_are_refused(
    reports: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, str], message: str
) -> None:
    """One line with the known names."""
    assert run(capsys, "history", "--report-dir", reports, *words) == (
        2,
        "",
        f"clustersmoke: {message}\n",
    )


@pytest.mark.parametrize("last", ["0", "-1", "x", "1.5", "²"])
def test_invalid_count_is_refused(
    reports: Path, capsys: pytest.CaptureFixture[str], last: str
) -> None:
    """--last accepts whole numbers from 1."""
    with pytest.raises(SystemExit) as raised:
        run(capsys, "history", "--report-dir", reports, f"--last={last}")
    assert raised.value.code == 2
    assert f"`{last}` is not a number of runs; expected 1 or more" in capsys.readouterr().err


def test_missing_history_is_refused_with_its_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command names the path, and a damaged file gives one line."""
    for command in (
        ("history",),
        ("compare", "a", "b"),
        ("references", "propose", "--cluster", "c"),
    ):
        status, out, err = run(capsys, *command, "--report-dir", tmp_path)
        assert (status, out) == (2, "")
        assert err == (
            f"clustersmoke: --report-dir: no history.db in {tmp_path}; expected the report "
            "directory of runs with --cluster\n"
        )
    tmp_path.joinpath("history.db").write_bytes(b"not a database, this is, for sure" * 99)
    status, out, err = run(capsys, "history", "--report-dir", tmp_path)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert "is damaged, or not a database" in err


def test_history_without_phases_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A history whose run has no phases gives one line."""
    store_run({**of_night(0), "phases": []}, tmp_path)
    assert run(capsys, "history", "--report-dir", tmp_path)[:2] == (
        0,
        "the history has no phases\n",
    )


def test_hostile_text_is_sanitised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Escapes in a version or a reason reach neither terminal nor JSON."""
    nights(tmp_path, 1)
    nights(tmp_path, 1, first=1, versions=with_versions(torch="\x1b]0;x\x07[bold]2.6[/bold]"))
    for form in ((), ("--json",), ("--csv",)):
        status, out, _ = run(capsys, "history", "--report-dir", tmp_path, *form)
        assert status == 0
        assert "\x1b" not in out
        assert "\\u001b" not in out
        assert "[bold]2.6[/bold]" in out  # nor is it markup


def on_terminal(width: int, *words: str | Path, **environ: str) -> str:
    """The output of the command on a terminal of this width."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(width), "LINES": "50", **environ}
    command = [sys.executable, "-m", "pytest_clustersmoke.cli", *map(str, words)]
    done = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    output = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        output += part
    os.close(ours)
    assert done.wait(60) == 0
    return output.decode()


def test_output_fits_a_terminal_and_has_colours(reports: Path) -> None:
    """On a terminal the head is bold and no line is too wide; NO_COLOR removes the bold."""
    words = ("history", "--report-dir", reports)
    out = on_terminal(100, *words)
    assert "\x1b[1m" in out
    plain = on_terminal(72, *words, NO_COLOR="1")
    assert "\x1b" not in plain
    assert max(map(len, plain.splitlines())) <= 72
    assert "▁" in plain


def test_terminal_without_block_characters_has_no_trend(reports: Path) -> None:
    """The trend is left out."""
    out = on_terminal(
        100, "history", "--report-dir", reports, PYTHONIOENCODING="ascii", NO_COLOR="1"
    )
    assert "steps_per_s" in out
    assert "trend" not in out
    assert "\\u" not in out


def test_commands_do_not_change_the_history(
    reports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No command changes the history, or leaves a file next to it."""
    before = reports.joinpath("history.db").read_bytes()
    run(capsys, "history", "--report-dir", reports)
    run(capsys, "compare", "previous", "latest", "--report-dir", reports)
    run(capsys, "references", "propose", "--cluster", "gilbreth", "--report-dir", reports)
    assert reports.joinpath("history.db").read_bytes() == before
    assert [path.name for path in reports.iterdir()] == ["history.db"]


def test_command_loads_nothing_slow() -> None:
    """Importing the command loads neither SQLite nor rich nor statistics."""
    code = "import sys, pytest_clustersmoke.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"rich", "statistics", "sparklines", "filelock"} & set(done.stdout.split())


def test_median_does_not_depend_on_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--last` limits the runs shown, not those that the newest is judged against."""
    steps = [9.0 + 0.05 * night for night in range(30)]
    for number, value in enumerate(steps):
        last = night(number, value)
        annotate(last, tmp_path)
        store_run(last, tmp_path)
    past: Any = last["phases"][0]["metrics"]["steps_per_s"]["past"]
    assert main(["history", "--last", "5", "--report-dir", str(tmp_path)]) == 0
    line = next(
        line for line in capsys.readouterr().out.splitlines() if line.startswith("steps_per")
    )
    assert past["runs"] == 29 and show(past["median"]) in line.split()
