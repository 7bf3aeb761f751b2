"""A run goes on after its controller was killed at any line of its journal."""

from __future__ import annotations

import pytest

from pytest_clustersmoke.evidence.run_directory import read_json, write_json
from pytest_clustersmoke.evidence.telemetry import read_events
from tests.support.harness import IDLE, Suite
from tests.support.killed import ATTACH, attach, check_whole, kill_at
from tests.support.waiting import wait_for

REFERENCE = {"value": 1.0, "lower": "-10 %", "unit": "steps/s", "source": "a document"}


@pytest.mark.parametrize(
    "event",
    [
        "intent:1",
        "submitted:1",
        "ended:1",
        *(
            pytest.param(event, marks=pytest.mark.slow)
            for event in ("intent:2", "submitted:2", "ended:2", "judged:1", "judged:4", "closed:1")
        ),
    ],
)
def test_run_that_was_killed_goes_on_and_ends_as_if_nothing_had_happened(
    suite: Suite, event: str
) -> None:
    """Jobs that are done are read, running ones awaited, and what is missing is submitted."""
    suite.phase("small")
    suite.phase("second", nodes=2)
    kill_at(suite, event)
    check_whole(suite, attach(suite), "small", "second")


@pytest.mark.slow
def test_run_that_attaches_may_be_killed_as_well(suite: Suite) -> None:
    """Also at its first line."""
    suite.phase("small", script=str(IDLE), args={"seconds": 1})
    kill_at(suite, "submitted:1")
    kill_at(suite, "attached:1", *ATTACH)
    check_whole(suite, attach(suite), "small", attached=2)


def test_running_job_is_awaited_by_the_run_that_attaches(suite: Suite) -> None:
    """Nothing is started a second time, and the header says that the run was attached."""
    suite.phase("small", script=str(IDLE), args={"seconds": 3})
    kill_at(suite, "submitted:1")
    script = suite.run_dir().phase("small").batch_script
    written = script.stat().st_mtime_ns
    outcome = attach(suite)
    check_whole(suite, outcome, "small")
    assert " (attached)" in outcome.output and script.stat().st_mtime_ns == written
    assert [event["phase"] for event in outcome.events("submitted")] == ["small"]


@pytest.mark.slow
def test_nodes_that_the_run_avoids_stay_out_of_the_jobs_that_come_later(lab_suite: Suite) -> None:
    """Although the command that attaches does not repeat --cluster-avoid."""
    lab_suite.profile["limits"] |= {"max_jobs": 1}
    for name in ("small", "second"):
        lab_suite.phase(name)
    kill_at(lab_suite, "submitted:1")
    node = lab_suite.slurm("sinfo", "-h", "-N", "-o", "%N").split()[-1]
    run = lab_suite.run_dir()
    write_json(run.run, (read_json(run.run) or {}) | {"avoided": [node]})
    outcome = attach(lab_suite)
    check_whole(lab_suite, outcome, "small", "second")
    scripts = {n: run.phase(n).batch_script.read_text() for n in ("second", "small")}  # in order
    assert [name for name, text in scripts.items() if f"--exclude={node}" in text] == ["small"]
    assert outcome.record()["counts"]["avoided"] == [node]
    assert f"avoiding {node}: since the run began" in outcome.output


def test_suite_that_has_changed_is_refused_and_named(suite: Suite) -> None:
    """Today's criteria would judge another job than the one that ran."""
    test = suite.phase("small", args={"steps": 3})
    kill_at(suite, "submitted:1")
    test.write_text(test.read_text().replace("'steps': 3", "'steps': 4"))
    outcome = attach(suite)
    assert outcome.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in outcome.stderr.lines if "phase small has changed since run" in line]
    assert "args, argv, its test" in line
    test.write_text(test.read_text().replace("'steps': 4", "'steps': 3"))
    suite.profile["references"] = {"small": {"steps_per_s": REFERENCE}}
    refused = attach(suite)
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    assert "the profile has changed since run" in refused.output and "references" in refused.output
    del suite.profile["references"]
    check_whole(suite, attach(suite), "small")


def has_event(suite: Suite, name: str) -> bool:
    return read_events(suite.run_dir().journal).last(name) is not None


def test_run_whose_process_lives_is_attached_only_to_take_it_over(suite: Suite) -> None:
    """The earlier process then stops, and neither touches the job nor writes a report."""
    go = suite.path / "go"
    suite.phase("small", args={"wait_for": str(go)})

    def has_lock() -> bool:
        return (read_json(suite.run_dir().run) or {}).get("locks") is True

    with suite.started() as first:
        first.wait_for_ranks()
        refused = attach(suite)
        assert refused.ret == pytest.ExitCode.USAGE_ERROR
        assert f"is controlled by pid {first.pid} on " in refused.output
        with suite.started(*ATTACH, "--cluster-takeover") as second:
            second.wait_for("its first line", lambda: has_event(suite, "attached"))
            stopped = first.wait()
            second.wait_for("the lock that the first process had", has_lock)
            go.touch()
            outcome = second.wait()
        check_whole(suite, outcome, "small")
        assert has_lock()
    assert stopped.ret == pytest.ExitCode.INTERRUPTED, stopped.output
    assert "has taken this run over; this one ends, and leaves its jobs" in stopped.output


def test_jobs_of_a_dead_run_on_this_machine_are_ended(suite: Suite) -> None:
    """Also a virtual node of which the controller wrote nothing before it was killed."""
    suite.phase("small", script=str(IDLE), nodes=2, args={"seconds": 600})
    kill_at(suite, "submitted:1")
    run = suite.run_dir()
    wait_for("the ranks", lambda: len([*run.root.glob("phases/*/ranks/*.jsonl")]) == 2)
    run.phase("small").node_process(1).unlink()
    reaped = suite.run_apart("--cluster-reap", run.run_id)
    assert reaped.ret == 0 and f"run {run.run_id}: ended 1 job" in reaped.output, reaped.output
    assert (read_json(run.phase("small").result) or {})["outcome"] == "cancelled"
    suite.phase("small", script=str(IDLE), args={"seconds": 1})
    reported = suite.run_apart().output
    assert f"run {run.run_id}: its controller was killed, and --cluster-reap ended" in reported


def test_unknown_run_is_refused(suite: Suite) -> None:
    """With the names that could have been meant."""
    suite.phase("small")
    (line,) = suite.refused("--cluster-attach", "20260101-000000-abcdef")
    assert line.startswith("--cluster-attach: there is no run 20260101-000000-abcdef below")
    (line,) = suite.refused("--cluster-attach", "latest")
    assert line.startswith("--cluster-attach: there is no run of one without a report below")


def test_empty_id_is_no_new_run(suite: Suite) -> None:
    """An unset variable of a script."""
    suite.phase("small")
    (line,) = suite.refused("--cluster-attach", "")
    assert line == "--cluster-attach: the id of the run is empty"
    (line,) = suite.refused("--cluster-reap", "")
    assert line.startswith("--cluster-reap: the id of the run is empty; expected")


def test_mistake_in_a_marker_is_named_by_the_run_that_attaches(suite: Suite) -> None:
    """As by any other run."""
    test = suite.phase("small")
    kill_at(suite, "submitted:1")
    test.write_text(test.read_text().replace("phase('small', ", "phase('small', nodse=1, "))
    test.write_text(test.read_text().replace('phase("small", ', 'phase("small", nodse=1, '))
    outcome = attach(suite)
    assert outcome.ret == pytest.ExitCode.USAGE_ERROR, outcome.output
    assert "nodse" in outcome.stderr.str() and "Traceback" not in outcome.output
    test.write_text(test.read_text().replace("nodse=1, ", ""))
    check_whole(suite, attach(suite), "small")


def test_detached_run_needs_a_scheduler(suite: Suite) -> None:
    """Nobody would keep order among the jobs of this machine."""
    suite.phase("small")
    (line,) = suite.refused("--cluster-detach")
    assert "--cluster-detach leaves jobs to Slurm, and one has none" in line
    (line,) = suite.refused("--cluster-detach", "--cluster-exclusive")
    assert "--cluster-detach and --cluster-exclusive exclude each other" in line
