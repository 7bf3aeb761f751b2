"""A run in ten lines: the verdict first, then what is wrong and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_clustersmoke.report.page_sheet import list_facts
from pytest_clustersmoke.report.run_digest import MAX_LINE, MAX_LINES, RunDigest
from tests.support import records

REPORT = Path("reports/run")


def digest(record: records.Record) -> RunDigest:
    return RunDigest.of(records.parsed(record), REPORT)


def failed(name: str) -> records.Record:
    return records.phase(name, outcome="failed", reason="exit 1", findings=[records.finding()])


def test_fit_run_has_three_lines() -> None:
    """Verdict, what ran when, where the report is."""
    record = records.run()
    assert digest(record).lines() == [
        "FIT: 1 of 1 phases passed",
        f"gilbreth, run {record['run_id']}: 2026-11-18 11:06 UTC, took 0:01:30, 1 phase on 4 nodes",
        "report: reports/run",
    ]


def test_time_is_local_beside_utc() -> None:
    """Where the zone of the run is known."""
    made = digest(records.run(request=records.REQUEST))
    assert "2026-11-18 06:06 UTC-05:00 (11:06 UTC), took 0:01:30" in made.lines()[1]
    assert made.as_dict()["utc_offset_s"] == records.REQUEST["utc_offset_s"] == -18000


def test_run_whose_controller_was_killed_has_no_end() -> None:
    """Its report is written by a later command, perhaps the next morning."""
    made = digest(records.run(counts={"cut_off": "its controller was killed"}))
    assert made.lines()[1].endswith(" 2026-11-18 11:06 UTC, 1 phase on 4 nodes")
    assert made.as_dict()["ended"] is None


def test_nodes_of_a_job_that_never_ran_are_not_counted() -> None:
    """Nobody knows which they would have been: each has a number in place of a name."""
    lost = records.phase("a", outcome="never_ran", nodes=2)
    for number, node in enumerate(lost["nodes"]):
        node |= {"node": f"node {number}", "host": "unknown"}
    record = records.run(lost, verdict="INCONCLUSIVE")
    assert digest(record).lines()[1].endswith("1 phase on 0 nodes")
    assert "Nodes" not in dict(list_facts(records.parsed(record)))


def test_unfit_run_names_cause_and_next_step() -> None:
    """The cause of each failed phase, the finding's fix, and what changed."""
    record = records.run(
        failed("a"),
        records.phase("b"),
        verdict="UNFIT",
        sentence="UNFIT: 1 of 2 phases failed (a: failed)",
        failed=["a: failed", "1 other test failed or had errors: test_x"],
        changes=["a is failed, was passed"],
    )
    lines = digest(record).lines()
    assert lines[0] == record["sentence"]
    assert lines[2:-1] == [
        "a: failed: rank 3 was killed by signal 9 (node1)",
        "1 other test failed or had errors: test_x",
        "next: a: look into the kernel's log of node1",
        "changed: a is failed, was passed",
    ]


def test_every_failed_criterion_has_a_line() -> None:
    """After the first of each phase, so that none hides another phase."""
    slow = records.phase("a")
    slow["criteria"] = {
        f"test_{number}": {"result": "failed", "text": f"it is {number}\nsee there"}
        for number in range(3)
    }
    record = records.run(slow, failed("b"), verdict="UNFIT", sentence="UNFIT", failed=["a", "b"])
    assert digest(record).causes[:4] == [
        "a: 3 failed: test_0: it is 0",
        "b: failed: rank 3 was killed by signal 9 (node1)",
        "a: also test_1: it is 1",
        "a: also test_2: it is 2",
    ]


@pytest.mark.parametrize("partial", ["", "the run was interrupted by SIGTERM"])
def test_large_run_has_ten_lines_and_counts_the_rest(partial: str) -> None:
    """However much is wrong; the JSON has everything."""
    names = [f"p{number}" for number in range(20)]
    record = records.run(
        *map(failed, names),
        verdict="UNFIT",
        sentence="UNFIT",
        failed=[f"{name}: failed" for name in names],
        changes=["x"] * 9,
        partial=partial,
        known=[{"what": "k", "reason": "r", "until": "2026-12-01", "where": "c.yaml:1"}],
    )
    made = digest(record)
    lines = made.lines()
    assert len(lines) == MAX_LINES
    (more,) = [line for line in lines if line.startswith("... and ")]
    shown = sum(": failed: " in line for line in lines)
    assert more == f"... and {20 - shown} more" and shown >= 1
    assert (f"incomplete: {partial}" in lines) == bool(partial)
    assert len(made.as_dict()["causes"]) == 20


def test_text_of_jobs_stays_on_its_line() -> None:
    """Line breaks and escapes of a log reach no terminal, and no line is endless."""
    record = records.run(
        records.phase("a", outcome="failed", reason="x\n\x1b[31m" + "y" * 5000),
        verdict="UNFIT",
        sentence="UNFIT: a\x1b\nb",
        failed=["a: failed"],
    )
    lines = digest(record).lines()
    assert all(line.isprintable() and len(line) <= MAX_LINE for line in lines)


def test_markdown_shows_text_literally() -> None:
    """The verdict is bold, and names become neither markup nor mentions."""
    record = records.run(sentence="FIT: @all *1* of 1", cluster="a_b")
    first, blank, second, *_ = digest(record).markdown()
    assert first == "**FIT: @\u200ball \\*1\\* of 1**" and blank == ""
    assert second.startswith("- a\\_b, run ")


def test_proof_names_its_open_gates() -> None:
    """A gate that stayed green is a cause; a proven one is none."""
    proof = records.proof(
        records.gate(), records.gate("slow", status="stayed green", reasons=["r"])
    )
    record = records.run(verdict="NOT PROVEN", sentence="NOT PROVEN: 1 of 2", proof=proof)
    assert digest(record).causes == ["slow: stayed green: r"]
