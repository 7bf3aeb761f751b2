"""How a rank's process ended, from torchrun's log, with the next step for that signal."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_clustersmoke.diagnose import diagnose
from pytest_clustersmoke.diagnose.failure_evidence import FailureEvidence
from pytest_clustersmoke.diagnose.process_exits import RankExit
from pytest_clustersmoke.evidence import finding
from pytest_clustersmoke.evidence.finding import Finding
from pytest_clustersmoke.evidence.telemetry import EventWriter
from pytest_clustersmoke.jobs.outcome import Judgement
from tests.support.evidence import Evidence

# torch/distributed/elastic/multiprocessing/api.py and errors/__init__.py, 2.2 and 2.13.
FAILED = (
    "E1121 20:20:27.620000 2606 torch/distributed/elastic/multiprocessing/api.py:1002] failed "
    "(exitcode: {code}) local_rank: 0 (pid: {pid}) of binary: /opt/python\n"
)
SUMMARY = "  exitcode  : {code} (pid: {pid})\n"
CLOSED = "W1121 20:20:27.6 2606 api.py:1028] Sending process {pid} closing signal SIGTERM\n"


def exit_codes(evidence: Evidence) -> dict[int, int]:
    exits = FailureEvidence(evidence.result()).exits.by_rank
    return {rank: end.code for rank, end in exits.items()}


def died(tmp_path: Path, log: str, ranks: int = 1) -> list[Finding]:
    """The findings of a node whose first rank (pid 1000) was seen dead, and of torchrun's log."""
    evidence = Evidence(tmp_path, 1, ranks).started().node(0, ok=False, reason="rank_died")
    writer = EventWriter(evidence.dir.node_events(0))
    writer.write("trouble", reason="rank_died", why="rank 0 ended")
    writer.write("ranks", states=[{"rank": rank, "alive": False} for rank in range(ranks)])
    writer.close()
    evidence.dir.launcher_log(0).write_text(log)
    return diagnose(evidence.result(), Judgement("failed", "the reason"))


@pytest.mark.parametrize("text", [FAILED, SUMMARY])
@pytest.mark.parametrize(
    ("code", "cause", "fix"),
    [
        (-9, "killed by SIGKILL", "out-of-memory kills"),
        (-7, "killed by SIGBUS", "df -h /dev/shm"),
        (-11, "killed by SIGSEGV", "the stack"),
        (-4, "killed by SIGILL", "lscpu"),
        (-6, "killed by SIGABRT", "last lines of its stderr"),
        (-15, "killed by SIGTERM", "who ended it"),
        (-63, "killed by signal 63", "stderr"),
        (3, "exited with status 3", "os._exit"),
        (0, "exited with status 0", "os._exit"),
    ],
)
def test_signal_or_status_is_reported_with_its_next_step(
    tmp_path: Path, text: str, code: int, cause: str, fix: str
) -> None:
    """From both places where torchrun writes it; the line is evidence."""
    (finding,) = died(tmp_path, "noise\n" + text.format(code=code, pid=1000))
    assert finding.id == "rank-died" and finding.cause.endswith(cause) and fix in finding.fix
    assert finding.detail["exitcode"] == code
    assert (finding.evidence[1].line, finding.evidence[1].file[-12:]) == (2, "launcher.log")


def end_of_log(tmp_path: Path, text: str) -> tuple[int, str]:
    """The last evidence of a rank that was killed, and wrote this to stderr: its line, its text."""
    evidence = Evidence(tmp_path, 1, 1)
    start = {"rank": 0, "node_rank": 0, "node": "n0", "local_rank": 0}
    evidence.rank(0, ("start", start))
    writer = EventWriter(evidence.dir.node_events(0))
    writer.write("ranks", states=[{"rank": 0, "alive": False, "exit_code": -9}])
    writer.close()
    log = evidence.dir.rank_log(0, 0, "err")
    log.parent.mkdir(parents=True)
    log.write_text(text)
    (found,) = diagnose(evidence.result(), Judgement("failed", "the reason"))
    return found.evidence[-1].line, found.evidence[-1].text


def test_end_of_the_stderr_of_a_dead_rank_is_quoted(tmp_path: Path) -> None:
    """Its last lines, as many as an evidence may have, from the last one that is not blank."""
    text = "".join(f"line {number}\n" for number in range(1, 21))
    line, end = end_of_log(tmp_path / "many", f"{text}\n \n")
    assert (line, end.splitlines()) == (13, [f"line {number}" for number in range(13, 21)])
    line, end = end_of_log(tmp_path / "long", f"{'x' * 500}\n{'y' * 400}\nz\n")
    assert (line, end) == (2, f"{'y' * 400}\nz")
    bar = "".join(f"{step} of 500 " for step in range(501))
    assert end_of_log(tmp_path / "endless", bar) == (1, bar[-finding.MAX_TEXT :])
    assert "exit code" in end_of_log(tmp_path / "empty", " \n")[1]


def test_accounting_is_asked_for_the_job_by_its_number() -> None:
    """The command can be pasted; a job that is not Slurm's has no accounting."""
    killed = RankExit(-9, finding.Evidence("log", 1, ""))
    assert " and at `sacct -j 4711 -o MaxRSS,State`; if" in killed.fix("n1", "4711")
    assert "sacct" not in killed.fix("n1", "")


def test_unknown_end_is_reported_as_unknown(tmp_path: Path) -> None:
    """The end of another process is not the rank's."""
    (finding,) = died(tmp_path, FAILED.format(code=3, pid=77))
    assert finding.cause.endswith("killed by a signal, or it exited early; unknown cause")


def test_rank_that_torchrun_closed_is_not_the_cause(tmp_path: Path) -> None:
    """It was ended because another had died, although both were seen dead at once."""
    log = CLOSED.format(pid=1001) + FAILED.format(code=-9, pid=1000)
    log += SUMMARY.format(code=-15, pid=1001)
    findings = died(tmp_path, log, ranks=2)
    assert findings[0].ranks == (0,) and "SIGKILL" in findings[0].cause


@pytest.mark.parametrize("dead", [0, 1])
@pytest.mark.parametrize("code", [-6, -15, -1, -9])
def test_rank_that_torchrun_did_not_close_is_the_cause(
    tmp_path: Path, code: int, dead: int
) -> None:
    """Whatever signal it ended by, and whichever of the two it is: both were seen dead at once, and
    the log has no status of the one that was closed."""
    other = 1 - dead
    log = CLOSED.format(pid=1000 + other) + FAILED.format(code=code, pid=1000 + dead)
    first, second = died(tmp_path, log, ranks=2)
    assert (first.ranks, first.primary) == ((dead,), True)
    assert (second.ranks, second.primary) == ((other,), False)
    assert first.detail["exitcode"] == code and second.detail["victim"]


def test_abort_follows_from_a_kill(tmp_path: Path) -> None:
    """Native code aborts when its peer is gone."""
    log = FAILED.format(code=-6, pid=1000) + SUMMARY.format(code=-9, pid=1001)
    first, second = died(tmp_path, log, ranks=2)
    assert (first.ranks, second.ranks) == ((1,), (0,)) and not second.primary


@pytest.mark.parametrize(
    "line",
    ["failed (exitcode: 99999999) (pid: 1000)", "exitcode : x (pid: 1000)", "(exitcode: -9)", ""],
)
def test_torn_log_line_is_ignored(tmp_path: Path, line: str) -> None:
    """It is hostile text."""
    evidence = Evidence(tmp_path).started().node(0)
    evidence.dir.launcher_log(0).write_text(line)
    assert exit_codes(evidence) == {}


def test_watch_of_the_node_needs_no_log_of_the_launcher(tmp_path: Path) -> None:
    """The kernel gave the status to the watch."""
    evidence = Evidence(tmp_path, 1, 2).started().node(0, ok=False, reason="rank_died")
    writer = EventWriter(evidence.dir.node_events(0))
    writer.write("trouble", reason="rank_died", why="rank 0 ended")
    dead = {"rank": 0, "alive": False, "exit_code": -9}
    closed = {"rank": 1, "alive": True, "exit_code": -15}
    writer.write("ranks", states=[dead, closed, {"rank": [], "alive": False, "exit_code": "x"}])
    writer.close()
    assert exit_codes(evidence) == {0: -9}
    (finding,) = diagnose(evidence.result(), Judgement("failed", "the reason"))
    assert finding.cause.endswith("killed by SIGKILL") and finding.detail["exitcode"] == -9


def test_ranks_of_a_successful_torchrun_exited_with_0(tmp_path: Path) -> None:
    """It may have reaped them before the watch looked, and then its log has nothing."""
    ended = {"ok": False, "reason": "rank_ended_early", "why": "never done"}
    evidence = Evidence(tmp_path, 1, 2).started().node(0, **ended, returncode=0)
    assert exit_codes(evidence) == {0: 0, 1: 0}
    evidence.node(0, **ended, returncode=False)
    assert exit_codes(evidence) == {}


DEEPSPEED = (
    "[2026-01-15 18:02:33,039] [INFO] [launch.py:253:sigkill_handler] Killing subprocess 1000\n"
    "[2026-01-15 18:02:33,383] [ERROR] [launch.py:259:sigkill_handler] ['/usr/bin/python', '-u', "
    "'train.py'] exits with return code = 3\n"
)


@pytest.mark.parametrize(("dead", "named"), [([1], True), ([0, 1], False), ([], False)])
def test_status_that_deepspeed_logged_is_that_of_the_only_dead_rank(
    tmp_path: Path, dead: list[int], named: bool
) -> None:
    """Its launcher may reap a rank before the node's watch sees the end, and logs no pid."""
    evidence = Evidence(tmp_path, 1, 2).started().node(0, ok=False, reason="rank_died", why="x")
    evidence.dir.launcher_log(0).write_text(DEEPSPEED)
    writer = EventWriter(evidence.dir.node_events(0))
    states = [{"rank": rank, "alive": rank not in dead} for rank in (0, 1)]
    writer.write("ranks", states=states)
    writer.close()
    exits = FailureEvidence(evidence.result()).exits.by_rank
    assert {rank: end.code for rank, end in exits.items()} == ({1: 3} if named else {})
