"""`clustersmoke compare RUN RUN`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.cli import main
from tests.evidence.history.made import nights, of_night, with_versions
from tests.support.records import metric, phase, store_run

PASSED = {"test_x": {"result": "passed", "text": ""}}
FAILED = {"test_x": {"result": "failed", "text": ""}}


def compared(
    capsys: pytest.CaptureFixture[str], directory: Path, *words: str
) -> tuple[int, dict[str, Any]]:
    status = main(["compare", "--json", "--report-dir", str(directory), *words])
    return status, json.loads(capsys.readouterr().out)


def pair(directory: Path, first: dict[str, Any], second: dict[str, Any], **changes: Any) -> None:
    """Store two runs, a and b, with these phases; `changes` apply to the second run."""
    store_run(of_night(100, phase(**first), run_id="a"), directory)
    store_run(of_night(101, phase(**second), **{"run_id": "b", **changes}), directory)


def test_similar_runs_do_not_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Metrics less than 5 % apart are not a difference; status 0."""
    pair(tmp_path, {}, {"metrics": {**phase()["metrics"], "steps_per_s": metric(9.1)}})
    status, comparison = compared(capsys, tmp_path, "a", "b")
    assert (status, comparison["differ"], comparison["differences"]) == (0, False, [])
    pair_of_values = comparison["phases"][0]["metrics"]["steps_per_s"]
    assert pair_of_values["percent"] == pytest.approx(-4.21, abs=0.01)
    assert pair_of_values["told_from"] == pytest.approx(0.475)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({}, {"outcome": "lost"}, "zero1_4node: passed -> lost"),
        ({"criteria": PASSED}, {"criteria": FAILED}, "zero1_4node: test_x passed -> failed"),
        ({"criteria": PASSED}, {"criteria": {}}, "zero1_4node: test_x passed -> none"),
        (
            {"metrics": {"steps_per_s": metric(9.5)}},
            {"metrics": {"steps_per_s": metric(6.65)}},
            "zero1_4node: steps_per_s 9.500 -> 6.650 steps/s (-30.0 %), worse",
        ),
        (
            {"metrics": {"peak_memory_gib": metric(10.0, "GiB", False)}},
            {"metrics": {"peak_memory_gib": metric(9.0, "GiB", False)}},
            "zero1_4node: peak_memory_gib 10.00 -> 9.000 GiB (-10.0 %), better",
        ),
        (
            {"metrics": {"steps_per_s": metric(9.5)}},
            {"metrics": {}},
            "zero1_4node: steps_per_s 9.500 -> none steps/s",
        ),
        (
            {"metrics": {"steps_per_s": metric(9.5)}},
            {"metrics": {"steps_per_s": {**metric(1.0), "value": "nan"}}},
            "zero1_4node: steps_per_s 9.500 -> nan steps/s",
        ),
    ],
)
def test_differences_are_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    first: dict[str, Any],
    second: dict[str, Any],
    message: str,
) -> None:
    """Outcome, criteria and metrics that differ are listed; status 1."""
    pair(tmp_path, first, second)
    status, comparison = compared(capsys, tmp_path, "a", "b")
    assert (status, comparison["differences"]) == (1, [message])
    assert main(["compare", "--report-dir", str(tmp_path), "a", "b"]) == 1
    assert f"differences:\n  {message}\n" in capsys.readouterr().out


def test_verdict_and_missing_phase_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The verdict is compared, and so is a phase that one run lacks."""
    store_run(of_night(0, phase("a"), phase("b"), run_id="a"), tmp_path)
    store_run(of_night(1, phase("a"), run_id="b", verdict="UNFIT"), tmp_path)
    status, comparison = compared(capsys, tmp_path, "a", "b")
    assert (status, comparison["differences"]) == (1, ["verdict FIT -> UNFIT", "b: passed -> none"])


def test_versions_and_nodes_do_not_count_as_differences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are listed, but the status is 0."""
    other = phase(versions=with_versions(nccl="2.22", driver="560.1"))
    other["nodes"][3]["node"] = "node7"
    store_run(of_night(0, run_id="a"), tmp_path)
    store_run(of_night(1, other, run_id="b", package_version="0.2.0"), tmp_path)
    status, comparison = compared(capsys, tmp_path, "a", "b")
    assert (status, comparison["differences"]) == (0, [])
    assert comparison["also_different"] == [
        "driver 550.54.15 -> 560.1 (zero1_4node)",
        "nccl 2.21.5 -> 2.22 (zero1_4node)",
        "pytest-clustersmoke 0.1.0 -> 0.2.0",
        "nodes: node7, not node3",
    ]


def test_past_noise_widens_the_threshold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With eight good runs that vary, 7 % is not a difference; without them it is."""
    first, second = ({"metrics": {"steps_per_s": metric(value)}} for value in (9.5, 8.83))
    pair(tmp_path, first, second)
    assert compared(capsys, tmp_path, "a", "b")[0] == 1
    nights(tmp_path, 20, noise=0.25)  # spread 0.37; with 20 runs, 3.9 spreads get a warning
    status, comparison = compared(capsys, tmp_path, "a", "b")
    assert status == 0
    assert comparison["phases"][0]["metrics"]["steps_per_s"]["told_from"] == pytest.approx(
        1.431, 0.01
    )


def test_runs_are_found_by_id_prefix_and_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`latest`, `previous` (of the same cluster), an id that is a prefix of another, and a unique
    prefix."""
    for number, (name, cluster) in enumerate(
        [
            ("20261101-a", "one"),
            ("20261101-ab", "one"),
            ("20261102-c", "two"),
            ("20261103-d", "one"),
        ]
    ):
        store_run(of_night(number, run_id=name, cluster=cluster), tmp_path)

    def ids(*words: str) -> list[str]:
        return [run["run_id"] for run in compared(capsys, tmp_path, *words)[1]["runs"]]

    store_run({**of_night(4, run_id="20261104-e", cluster="one"), "phases": []}, tmp_path)
    assert ids("previous", "latest") == ["20261101-ab", "20261103-d"]  # not the screen
    assert ids("20261101-a", "20261102") == ["20261101-a", "20261102-c"]
    assert ids("latest", "latest", "--cluster", "two") == ["20261102-c"] * 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("2026", "latest"),
            "`2026` matches several runs; give more of the id, such as 20261102-b, 20261101-a",
        ),
        (
            ("lates", "latest"),
            "no run `lates` in the history; expected a run id, a prefix of one, `latest` or "
            "`previous`; did you mean `latest`?",
        ),
        (
            ("latest", "20261101-b"),
            "no run `20261101-b` in the history; expected a run id, a prefix of one, `latest` "
            "or `previous`; did you mean `20261102-b`?",
        ),
        (("\udcff", "latest"), "no run `\ufffd` in the history; expected a run id, a prefix"),
        (("", "latest"), "no run `` in the history; expected a run id, a prefix of one, "),
        (
            ("latest", "previous", "--cluster", "two"),
            "--cluster: no cluster `two` in the history; expected one of `one`",
        ),
    ],
)
def test_unknown_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    """One line with a near match, and status 2."""
    for number, name in enumerate(("20261101-a", "20261102-b")):
        store_run(of_night(number, run_id=name, cluster="one"), tmp_path)
    assert main(["compare", "--report-dir", str(tmp_path), *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"clustersmoke: {message}")
    assert captured.err.count("\n") == 1


def test_first_run_has_no_previous_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`previous` is refused if there is one run."""
    store_run(of_night(0), tmp_path)
    assert main(["compare", "--report-dir", str(tmp_path), "previous", "latest"]) == 2
    assert capsys.readouterr().err == "clustersmoke: the history has no previous run\n"


def test_phase_selected_in_one_run_only_is_not_a_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is mentioned; in two unrestricted runs its absence is a difference."""
    both = [phase(), phase(phase="lora_sft_ddp")]
    store_run(of_night(100, *both, run_id="a"), tmp_path)
    store_run(of_night(101, phase(), run_id="b", selection="zero1"), tmp_path)
    store_run(of_night(102, phase(), run_id="c"), tmp_path)
    status, comparison = compared(capsys, tmp_path, "a", "b")
    assert (status, comparison["differences"]) == (0, [])
    assert "only in the first run: lora_sft_ddp" in comparison["also_different"]
    status, comparison = compared(capsys, tmp_path, "a", "c")
    assert (status, comparison["differences"]) == (1, ["lora_sft_ddp: passed -> none"])
