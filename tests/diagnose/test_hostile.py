"""Whatever a job writes is read in bounded memory, shown clean, and never turns a failure into a
pass."""

from __future__ import annotations

import json
import os
import resource
import time
import tracemalloc
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.diagnose import diagnose, log_causes
from pytest_clustersmoke.evidence.finding import Evidence as Line
from pytest_clustersmoke.evidence.finding import (
    Finding,
    find_last_line,
    list_job_logs,
)
from pytest_clustersmoke.evidence.metric import fail
from pytest_clustersmoke.evidence.phase_result import collect_phase
from pytest_clustersmoke.evidence.run_directory import write_json
from pytest_clustersmoke.evidence.scheduler_record import JobState
from pytest_clustersmoke.jobs.outcome import Judgement, judge_job
from pytest_clustersmoke.session.phase_views import job_failure_text
from tests.support.evidence import Evidence

# A title, a cleared screen, a bell, C1's CSI, a turned direction, no XML character, half a pair.
ESCAPES = "\x1b]0;x\x07\x1b[2J\x9b1m\u202e\x00\ufffe\ud800"
FORGED = "boom\nPASSED\nfinding none: all is well\r\x1b[A"


def diagnosed(evidence: Evidence) -> list[Finding]:
    return diagnose(evidence.result(), Judgement("failed", f"the reason{ESCAPES}"))


def error(message: str) -> tuple[str, dict[str, Any]]:
    return "error", {"type": "ValueError", "message": message, "traceback": message}


@pytest.mark.parametrize("text", [ESCAPES, FORGED, ESCAPES * 10_000, "\ud83d"])
def test_findings_have_no_control_characters(tmp_path: Path, text: str) -> None:
    """From a rank's error, its node's reason, and a log's last line; a cause is one line."""
    evidence = Evidence(tmp_path, 1, 2).started().rank(1, error(text))
    evidence.node(0, ok=False, reason="launcher", why=text)
    evidence.dir.submitit.mkdir()
    (evidence.dir.submitit / "7_0_log.err").write_text(text, errors="surrogatepass")
    for finding in [
        *diagnosed(evidence),
        *diagnose(evidence.result(), Judgement("never_ran", text)),
    ]:
        assert (
            finding.cause.isprintable() and finding.fix.isprintable() and len(finding.cause) < 3000
        )
        for line in finding.evidence:
            assert line.text.replace("\n", "").isprintable() and len(line.text) <= 600
        json.dumps(finding.as_dict()).encode()


def test_terminal_shows_no_forged_line(tmp_path: Path) -> None:
    """A rank's error stays on the line of its finding, or is indented as evidence."""
    evidence = Evidence(tmp_path).started().rank(0, error(FORGED))
    findings = [finding.as_dict() for finding in diagnosed(evidence)]
    write_json(evidence.dir.result, {"outcome": "failed", "reason": FORGED, "findings": findings})
    text = job_failure_text(evidence.result(), tmp_path)
    assert "PASSED" not in [line.strip("\ufffd ") for line in text.splitlines() if line[:1] != " "]
    assert not [line for line in text.splitlines() if line.startswith("finding none")]
    assert text.replace("\n", "").replace("\t", "").isprintable()


def test_failing_criterion_shows_sanitized_text(pytester: pytest.Pytester) -> None:
    """On the terminal, and in XML that every parser accepts."""
    pytester.makepyfile(
        f"""
        from pytest_clustersmoke.evidence.metric import fail

        def test_x(record_property):
            record_property("node", {ESCAPES!r})
            fail("rank 0 wrote " + {ESCAPES!r})
        """
    )
    done = pytester.runpytest_subprocess("--junitxml=junit.xml", "-p", "no:cacheprovider")
    done.assert_outcomes(failed=1)
    shown = [line for line in done.outlines if "rank 0 wrote" in line]
    assert shown and all(
        "\x1b" not in line and "\x9b" not in line for line in shown if "E " in line
    )
    case = ElementTree.parse(pytester.path / "junit.xml").find(".//testcase")
    assert case is not None and "rank 0 wrote" in str(case.find("failure").attrib)  # type: ignore[union-attr]


def test_fail_keeps_readable_text() -> None:
    """Lines, tabs and letters of every script stay."""
    with pytest.raises(AssertionError, match="\u4f60\u597d\n\tb\ufffd"):
        fail("\u4f60\u597d\n\tb\x1b")


def test_printed_text_is_not_an_event(tmp_path: Path) -> None:
    """Events on a rank's stdout, or in torchrun's log, are only text."""
    evidence = Evidence(tmp_path, 1, 2).started().node(0, ok=True)
    events = "".join(
        json.dumps({"event": name, "time": 1.0, "mono": 1.0, "rank": rank}) + "\n"
        for rank in (0, 1)
        for name in ("start", "metrics", "done")
    )
    for rank in (0, 1):
        log = evidence.dir.rank_logs(0) / "x" / "attempt_0" / str(rank) / "stdout.log"
        log.parent.mkdir(parents=True)
        log.write_text(events + "every node succeeded and every rank finished: PASSED\n")
        log.with_name("stderr.log").write_text(events)
    evidence.dir.launcher_log(0).write_text(events)
    result = evidence.result()
    assert result.ranks_done == 0 and judge_job(result, None).outcome == "failed"


@pytest.mark.parametrize(
    "start",
    [
        {"job": "20260101-000000-aaaaaa/other"},
        {"job": "another/small"},
        {"rank": 0},
        {"rank": True},
        {"schema": 2},
        {"job": None},
    ],
)
def test_events_of_another_job_or_rank_are_ignored(tmp_path: Path, start: dict[str, Any]) -> None:
    """The phase fails, and the finding names the file."""
    evidence = _own(tmp_path, {1: start})
    result = evidence.result()
    assert [rank.done for rank in result.ranks] == [True, False]
    assert judge_job(result, None).outcome == "failed"
    (finding,) = diagnosed(evidence)
    assert (finding.id, finding.ranks) == ("foreign-events", (1,))


def test_second_start_invalidates_a_file(tmp_path: Path) -> None:
    """Another rank wrote there."""
    evidence = _own(tmp_path, {})
    assert evidence.result().ranks_done == 2
    start = {"schema": 1, "job": "20260101-000000-aaaaaa/small", "rank": 0, "node_rank": 0}
    evidence.rank(1, ("start", start), ("done", {}))
    assert evidence.result().ranks_done == 1


def test_done_without_a_start_is_ignored(tmp_path: Path) -> None:
    """A program that is not a rank wrote it."""
    evidence = _own(tmp_path, {})
    evidence.dir.rank_events(1).unlink()
    evidence.rank(1, ("done", {}))
    assert [rank.done for rank in evidence.result().ranks] == [True, False]


def _own(tmp_path: Path, starts: dict[int, dict[str, Any]]) -> Evidence:
    """A run's phase whose two ranks ended well, with some `start` changed."""
    run = "20260101-000000-aaaaaa"
    evidence = Evidence(tmp_path, 1, 2).node(0, ok=True)
    spec = {"run_id": run, "phase": "small", "nodes": 1, "ranks_per_node": 2}
    write_json(evidence.dir.spec, spec)
    for rank in (0, 1):
        start = {"schema": 1, "job": f"{run}/small", "rank": rank, "node_rank": 0, "node": "n0"}
        evidence.rank(rank, ("start", start | starts.get(rank, {})), ("done", {}))
    return evidence


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"event": "done", "time": 1, "mono": 1, "x": ' + "[" * 50_000,
        '{"event": "done", "time": 1e999, "mono": 1}',
        '{"event": "done", "time": NaN, "mono": 1}',
        '{"event": "done", "time": ' + "9" * 400 + ', "mono": 1}',
        '{"event": ["done"], "time": 1, "mono": 1}',
        '{"event": "done"}',
        "\x00" * 1000,
    ],
    ids=range(8),
)
def test_malformed_event_is_counted_and_skipped(tmp_path: Path, line: str) -> None:
    """Endless nesting, invalid times: such a line is counted, and the rest is read."""
    evidence = Evidence(tmp_path).started()
    with evidence.dir.rank_events(0).open("a") as stream:
        stream.write(line + "\n")
    (rank,) = evidence.rank(0, ("metrics", {"values": {}})).result().ranks
    assert not rank.done and rank.events.unreadable_lines == 1
    assert rank.events.last("metrics") is not None


def test_million_events(tmp_path: Path) -> None:
    """In seconds and bounded memory; the first, the last and everything but progress stays."""
    evidence = Evidence(tmp_path).started()
    with evidence.dir.rank_events(0).open("a") as stream:
        for step in range(1, 1_000_001):
            stream.write(f'{{"event": "step", "time": {step}, "mono": 1, "step": {step}}}\n')
            if step == 500_000:
                stream.write('{"event": "gradients", "time": 1, "mono": 1}\n')
    before, began = _peak_mib(), time.process_time()
    (rank,) = evidence.rank(0, ("done", {})).result().ranks
    assert rank.done and rank.events.last("gradients") is not None
    steps = [record["step"] for record in rank.events.named("step")]
    assert steps == [1_000_000]  # of the marks of progress the last stands for all
    assert rank.events.lines[-1] == 1_000_004 and rank.events.unreadable_lines == 0
    assert _peak_mib() - before < 200 and time.process_time() - began < 60


def _stderr(evidence: Evidence) -> Path:
    log = evidence.dir.rank_logs(0) / "x" / "attempt_0" / "0" / "stderr.log"
    log.parent.mkdir(parents=True)
    evidence.rank(0, ("start", {"rank": 0, "node_rank": 0, "node": "n0", "local_rank": 0}))
    evidence.rank(0, error("boom"))
    return log


@pytest.mark.slow
def test_log_of_gigabytes_is_not_loaded(tmp_path: Path) -> None:
    """Its last line is found, the finding stands, and neither reads it into memory."""
    evidence = Evidence(tmp_path)
    log = _stderr(evidence)
    with log.open("wb") as stream:
        stream.write(b"noise\n" * 100)
        stream.seek(2 * 2**30)
        stream.write(b"\nlast\nthe cause\n")
    before, began = _peak_mib(), time.process_time()
    assert diagnosed(evidence)[0].id == "rank-error"
    assert find_last_line(log)[0] == Line(str(log), 103, "the cause")
    assert _peak_mib() - before < 200 and time.process_time() - began < 60


def test_beginning_and_end_of_a_long_log_are_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure is found at either, with its line in the file."""
    monkeypatch.setattr(log_causes, "MAX_LOG_BYTES", 2**20)
    evidence = Evidence(tmp_path)
    log = _stderr(evidence)
    log.write_text("noise\n" * 10**6 + "OSError: [Errno 28] No space left on device\n")
    finding = diagnosed(evidence)[0]
    assert finding.detail["signature"] == "disk_full"
    assert finding.evidence[-1].line == 10**6 + 1
    log.write_text("RuntimeError: No CUDA GPUs are available\n" + "noise\n" * 10**6)
    finding = diagnosed(evidence)[0]
    assert (finding.detail["signature"], finding.evidence[-1].line) == ("no_gpu", 1)


def test_log_cut_within_a_character_and_endless_line(tmp_path: Path) -> None:
    """What is there is shown."""
    cut, endless = tmp_path / "cut.log", tmp_path / "endless.log"
    cut.write_bytes("noise\nthe cause \u4f60".encode()[:-1])
    endless.write_bytes(b"x" * 3 * 2**20 + b" the cause")
    assert find_last_line(cut)[0] == Line(str(cut), 2, "the cause \ufffd")
    assert find_last_line(endless)[0].line == 1 and len(find_last_line(endless)[0].text) == 600


def test_logs_of_both_backends_are_the_jobs(tmp_path: Path) -> None:
    """submitit's names under Slurm, the phase's on this machine; its pickles are not logs."""
    evidence = Evidence(tmp_path)
    evidence.dir.submitit.mkdir()
    names = ["7_0_log.err", "7_0_log.out", "small.err", "small.out"]
    for name in [*names, "7_0_result.pkl", "7_submission.sh"]:
        (evidence.dir.submitit / name).touch()
    assert [path.name for path in list_job_logs(evidence.dir)] == names


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def make_sparse(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(10 * 2**30)


UNREADABLE: dict[str, tuple[Callable[[Path], object], str]] = {
    "torn": (lambda path: path.write_text('{"ok": tr'), "is not a JSON object"),
    "garbage": (lambda path: path.write_bytes(bytes(range(256)) * 64), "is not a JSON object"),
    "list": (lambda path: path.write_text("[1]"), "is not a JSON object"),
    "fifo": (os.mkfifo, "is not a regular file"),
    "directory": (Path.mkdir, "is not a regular file"),
    "zeros": (make_sparse, "has 10 GiB, more than any that was ever written"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_result_of_a_node_that_cannot_be_read_is_a_finding(tmp_path: Path, kind: str) -> None:
    """It costs neither time nor memory, and the phase never passes, whatever its ranks said."""
    make, why = UNREADABLE[kind]
    evidence = Evidence(tmp_path, 2).done()
    path = evidence.dir.node_result(1)
    path.unlink()
    make(path)
    tracemalloc.start()
    try:
        result = collect_phase(evidence.dir)
        judgement = judge_job(result, JobState("ended", "COMPLETED"))
        (finding,) = diagnose(result, judgement)
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    finally:
        tracemalloc.stop()
    assert judgement.outcome == "failed"
    assert (finding.id, finding.hosts, finding.primary) == ("node-result-unreadable", ("n1",), True)
    assert finding.cause.startswith(f"n1: its result {why}")
    assert finding.evidence[0].file == str(path)


@pytest.mark.parametrize("kind", [*UNREADABLE, "foreign", "gone"])
def test_overwritten_spec_is_the_finding(tmp_path: Path, kind: str) -> None:
    """Whatever else the job left: nobody knows which nodes and ranks it had."""
    evidence = Evidence(tmp_path, 2).done()
    path = evidence.dir.spec
    path.unlink()
    if kind == "foreign":
        write_json(path, {"phase": "small"})
        why = "is not the one that this run wrote"
    elif kind == "gone":
        why = "is gone"
    else:
        make, why = UNREADABLE[kind]
        make(path)
    result = collect_phase(evidence.dir)
    (finding,) = diagnose(result, judge_job(result, JobState("ended", "COMPLETED")))
    assert (finding.id, finding.primary) == ("spec-overwritten", True)
    assert finding.cause.startswith(f"the job's spec.json {why}")
    assert finding.evidence[0].file == str(path)


def test_unreadable_result_stands_beside_another_cause(tmp_path: Path) -> None:
    """The rank's error explains the failure; the file is mentioned."""
    error = {"type": "ValueError", "message": "boom", "traceback": "tb"}
    evidence = Evidence(tmp_path, 2).started().rank(0, ("error", error))
    evidence.node(0, ok=False, reason="torchrun", why="it exited with status 1")
    evidence.node(1, ok=False)
    evidence.dir.node_result(1).write_bytes(bytes(4096))
    result = collect_phase(evidence.dir)
    found = diagnose(result, judge_job(result, JobState("ended", "FAILED")))
    assert [(finding.id, finding.primary) for finding in found] == [
        ("rank-error", True),
        ("node-result-unreadable", False),
    ]


@pytest.mark.parametrize("kind", ["fifo", "zeros"])
def test_other_files_of_a_failed_job_cost_no_memory(tmp_path: Path, kind: str) -> None:
    """Every file that a job can put in the place of its own is read as far as it may be long."""
    make = UNREADABLE[kind][0]
    evidence = Evidence(tmp_path).started()
    places = evidence.dir
    records = [places.setup_failed, places.abort, places.scheduler, places.node_events(0)]
    records += [places.rank_stack(0), places.rank_flight_recorder(0), places.rank_py_spy(0)]
    logs = [places.launcher_log(0), places.rank_log(0, 0, "err")]
    for path in (*records, *(logs if kind == "fifo" else ())):
        path.parent.mkdir(parents=True, exist_ok=True)
        make(path)
    tracemalloc.start()
    try:
        result = collect_phase(evidence.dir)
        assert diagnose(result, judge_job(result, JobState("ended", "FAILED")))
        assert tracemalloc.get_traced_memory()[1] < 400 * 2**20
    finally:
        tracemalloc.stop()
