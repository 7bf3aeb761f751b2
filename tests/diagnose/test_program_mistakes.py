"""Mistakes of programs are named as such, and not blamed on a rank or node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.diagnose import diagnose
from pytest_clustersmoke.evidence.finding import Finding
from pytest_clustersmoke.evidence.run_directory import read_json, write_json
from pytest_clustersmoke.evidence.telemetry import SCHEMA
from pytest_clustersmoke.jobs.outcome import Judgement
from tests.support.evidence import Evidence
from tests.support.harness import TRAIN, Suite

ENDED: dict[str, Any] = {
    "ok": False,
    "reason": "rank_ended_early",
    "why": "torchrun ended with status 0, but rank 0 never reported `done`",
    "returncode": 0,
}


def diagnosed(evidence: Evidence) -> list[Finding]:
    return diagnose(evidence.result(), Judgement("failed", "the reason"))


def make_evidence(folder: Path, nodes: int = 1, **spec: Any) -> Evidence:
    """A phase of two ranks per node, with a program and a run."""
    evidence = Evidence(folder, nodes, 2)
    own = {"script": "/suite/train_plain.py", "run_id": "run1", **spec}
    write_json(evidence.dir.spec, (read_json(evidence.dir.spec) or {}) | own)
    return evidence


def test_program_without_a_rank_is_named(tmp_path: Path) -> None:
    """A plain DDP script that ran to its end: what that costs, and where the changes are shown."""
    evidence = make_evidence(tmp_path, 2).node(0, **ENDED).node(1, ok=False, reason="aborted")
    (finding,) = diagnosed(evidence)
    assert finding.id == "rank-api-unused" and finding.hosts == ("n0",) and not finding.ranks
    assert finding.cause.startswith("/suite/train_plain.py ended with exit status 0 and never")
    assert "pytest_clustersmoke.rank" in finding.cause and "gradients" in finding.cause
    assert "docs/how-to/adapt-a-ddp-script.md" in finding.fix


@pytest.mark.parametrize("how", ["started", "failed"])
def test_program_with_a_rank_is_not_taken_for_plain(tmp_path: Path, how: str) -> None:
    """Neither a rank that left early nor a program that failed is a program without a Rank."""
    evidence = make_evidence(tmp_path, 2).node(0, **ENDED)
    evidence.node(1, ok=False, reason="torchrun" if how == "failed" else "aborted", why="it ended")
    if how == "started":
        evidence.started()
    assert diagnosed(evidence)[0].id != "rank-api-unused"


def test_plain_program_fails_its_job_with_the_cause(suite: Suite) -> None:
    """In a run: the job is red, and says that the program does not use the Rank API."""
    script = suite.path / "plain.py"
    script.write_text("print('trained')\n")
    suite.phase(script=script, nodes=2)
    result = suite.run()
    assert result.ret == 1
    assert result.finding("small")["id"] == "rank-api-unused"


ALONE = """\
import os, runpy
os.environ.update(RANK="0", WORLD_SIZE="1")
runpy.run_path({program!r}, run_name="__main__")
"""


def test_program_that_resets_its_rank_fails_its_job_with_the_cause(suite: Suite) -> None:
    """In a run: two ranks, each of which takes itself for the only one."""
    script = suite.path / "alone.py"
    script.write_text(ALONE.format(program=str(TRAIN)))
    suite.profile["env"]["common"]["set"]["PYTHONPATH"] += f":{TRAIN.parent}"
    suite.phase(script=script, gpus_per_node=2)
    result = suite.run()
    assert result.ret == 1
    finding = result.finding("small")
    assert finding["id"] == "world-size-mismatch" and finding["hosts"] == ["local0"]
    assert finding["cause"].startswith("2 processes started as rank 0 of 1")


def start(rank: int, world_size: int) -> tuple[str, dict[str, Any]]:
    fields = {"schema": SCHEMA, "job": "run1/small", "rank": rank, "world_size": world_size}
    return "start", {**fields, "node": "n0", "node_rank": 0}


def test_ranks_that_take_themselves_for_single_are_named(tmp_path: Path) -> None:
    """Both processes are rank 0 of 1 and write one file, whose events count as foreign."""
    evidence = make_evidence(tmp_path).rank(0, start(0, 1), start(0, 1), ("done", {"seconds": 1.0}))
    (finding,) = diagnosed(evidence.node(0, **ENDED))
    assert finding.id == "world-size-mismatch" and finding.hosts == ("n0",)
    assert finding.cause.startswith("2 processes started as rank 0 of 1; expected 2 ranks")
    assert "torchrun" in finding.fix and "WORLD_SIZE" in finding.fix
    assert [shown.line for shown in finding.evidence] == [1, 2]


def test_single_rank_beside_a_good_one_is_named(tmp_path: Path) -> None:
    """One process lost its variables: its start is found in a file of its own, too."""
    evidence = make_evidence(tmp_path).rank(0, start(0, 2)).rank(1, start(1, 1))
    (finding,) = diagnosed(evidence.node(0, **ENDED))
    assert finding.id == "world-size-mismatch"
    assert finding.cause.startswith("1 process started as rank 1 of 1; expected 2 ranks")


def test_start_of_another_job_stays_foreign(tmp_path: Path) -> None:
    """A file that another job wrote says nothing about this job's world."""
    other = ("start", {**start(0, 1)[1], "job": "run0/small"})
    evidence = make_evidence(tmp_path).rank(0, other)
    assert diagnosed(evidence)[0].id == "foreign-events"


MISUSED = """\
from pytest_clustersmoke.rank import Rank
with Rank.start(init="x"):
    pass
"""


def test_program_that_misuses_its_rank_is_named(suite: Suite) -> None:
    """In a run: the message of the Rank, whose fault it is, and where its calls are described."""
    script = suite.path / "misused.py"
    script.write_text(MISUSED)
    suite.phase(script=script)
    result = suite.run()
    assert result.ret == 1
    finding = result.finding("small")
    assert finding["detail"]["signature"] == "rank_api_misuse"
    assert "the program uses the Rank API wrongly" in finding["cause"]
    assert "init='x'; expected one of torch, deepspeed, trainer" in finding["cause"]
    assert "unknown cause" not in finding["cause"] and "docs/reference/rank.md" in finding["fix"]


def test_misuse_that_a_rank_recorded_is_named(tmp_path: Path) -> None:
    """The exception stands in the rank's own events."""
    text = "step 3 was recorded 2 times"
    traceback = f"Traceback ...\npytest_clustersmoke.rank.rank_environment.RankMisuse: {text}\n"
    error = ("error", {"type": "RankMisuse", "message": text, "traceback": traceback})
    (finding,) = diagnosed(make_evidence(tmp_path).rank(1, start(1, 2), error))
    assert finding.id == "rank-error" and finding.detail["signature"] == "rank_api_misuse"
    assert f"failed: RankMisuse: {text}; cause: the program uses" in finding.cause
