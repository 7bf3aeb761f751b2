"""The table of staged faults, from what their tests recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.measures import by_family, columns, from_junit, markdown, measured

KILLED = {
    "fault": "killed",
    "family": "death",
    "replayed": False,
    "red": "job",
    "finding": "rank-died",
    "named": True,
    "ranks": [1],
    "hosts": ["local0"],
    "seconds": 2.0,
}


def test_family_is_counted_by_faults_met_named_and_placed() -> None:
    """A fault whose test failed counts only as staged, and one without a known cause as not named;
    the seconds are those of every fault."""
    rows = [
        measured(KILLED, True),
        measured({**KILLED, "seconds": 5.0, "ranks": []}, True),
        measured({**KILLED, "seconds": 11.0}, False),
        measured({**KILLED, "seconds": 3.0, "named": False}, True),
        measured({"fault": "slow", "family": "straggler", "replayed": True}, False),
    ]
    assert by_family(rows) == [
        ("death", "4", "3", "2", "2", "4, 4.0, 11.0", "0"),
        ("straggler", "1", "0", "0", "0", "-", "1"),
        ("all", "5", "3", "2", "2", "4, 4.0, 11.0", "1"),
    ]


def test_columns_are_aligned_in_a_terminal_and_not_in_markdown() -> None:
    """Every column is as wide as its widest cell."""
    assert columns(("a", "bb"), [("long", "1")]) == ["a     bb", "long  1"]
    assert markdown(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |\n"


@pytest.mark.parametrize(
    "workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)], ids=["plain", "xdist"]
)
def test_table_is_printed_and_read_back_from_junit(
    workers: tuple[str, ...], pytester: pytest.Pytester
) -> None:
    """What record_property recorded reaches the terminal, also from workers, and junit.xml."""
    pytester.makeconftest('pytest_plugins = ["tests.faults.measures"]')
    pytester.makepyfile(
        "def test_staged(record_property):\n"
        f"    for key, value in {KILLED!r}.items(): record_property(key, value)\n"
        "def test_other(): pass\n"
    )
    pytester.syspathinsert(Path(__file__).parents[2])
    result = pytester.runpytest_subprocess("--junitxml=junit.xml", *workers)
    result.stdout.fnmatch_lines(["*= staged faults =*", "death   1  *1, 2.0, 2.0*", "all     1  *"])
    assert from_junit(pytester.path / "junit.xml") == [measured(KILLED, True)]
