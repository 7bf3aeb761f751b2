"""Runs compared with stored runs: which runs count as past, and that all views agree on it.

The rank program is a fake; the runs, their jobs and reports are real.
"""

from __future__ import annotations

import copy
import html
import json
import sqlite3
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.criteria.past_criterion import read_judgement
from pytest_clustersmoke.evidence.history import history_database as database
from pytest_clustersmoke.evidence.run_directory import PhaseDir, RunDir, write_json
from pytest_clustersmoke.lab import LabSettings
from pytest_clustersmoke.report import publication
from tests.evidence.history.made import DAY_S
from tests.support.harness import Suite
from tests.support.labs import running_lab
from tests.support.records import store_run

ARGS = {"nccl": "none", "slow": -1, "rate": 10.0, "steps": 3}
CRITERION = "test_metrics_are_as_in_the_past"
PAST = {
    "status": "ok",
    "runs": 9,
    "median": 10.0,
    "mad": 0.5,
    "warn": 8.5,
    "fail": None,
    "text": "",
}
LONG = "\x1b[2J" + "x" * 100_000
# Runs after the criterion on the past: other runs, which began earlier or later, end meanwhile.
MEANWHILE = """
def test_zz_others_end_meanwhile(self, phase):
    import json
    from pathlib import Path
    from pytest_clustersmoke.evidence.history.history_store import store_run
    from pytest_clustersmoke.evidence.run_record import RunRecord
    for line in Path("others.jsonl").read_text().splitlines():
        store_run(RunRecord.model_validate(json.loads(line)), Path("reports"))
"""


def stored(suite: Suite) -> list[tuple[int, str]]:
    """For each stored phase, whether it is good, and its shape; the oldest first."""
    with closing(sqlite3.connect(suite.reports / "history.db")) as connection:
        return connection.execute(
            "SELECT good, shape FROM phases JOIN setups ON setups.id = setup ORDER BY begun"
        ).fetchall()


def like(record: Any, number: int, steps_per_s: float, **versions: str) -> Any:
    """A copy of the record from an earlier night, with another throughput."""
    made = copy.deepcopy(record)
    made["run_id"] = f"20200101-000000-{number:06x}"
    made["begun"] -= number * DAY_S
    (phase,) = made["phases"]
    phase["versions"] |= versions
    for metric in phase["metrics"].values():
        metric["past"] = None
    phase["metrics"]["steps_per_s"]["value"] = steps_per_s
    return made


def test_only_complete_runs_in_the_same_environment_count_as_past(suite: Suite) -> None:
    """A run of some criteria is not good; a run with another environment variable has another
    shape."""
    suite.cluster()
    suite.phase(body="def test_one(self, phase): pass\ndef test_two(self, phase): pass")
    suite.run()
    suite.run("-k", "test_one")
    suite.run("--deselect", "test_small.py::TestSmall::test_two")
    suite.run("--cluster-set", "small.env.NCCL_IB_DISABLE=1")
    phases = stored(suite)
    assert [good for good, _ in phases] == [1, 0, 0, 1]
    assert len({shape for _, shape in phases[:3]}) == 1
    assert phases[3][1] != phases[0][1]


@pytest.mark.parametrize(
    ("require", "body", "good"),
    [
        ("transports", "def test_one(self, phase): phase.transports.intra_node.check()", 0),
        ("transports", "def test_one(self, phase): pass", 0),
        ("history", "def test_one(self, phase): phase.check_past()", 1),
        ("history", "def test_one(self, phase): pass", 1),
        ("references", "def test_one(self, phase): phase.metric('steps_per_s').check()", 1),
        ("references", "def test_one(self, phase): pass", 1),
    ],
)
def test_run_without_a_required_measurement_is_not_good(
    suite: Suite, require: str, body: str, good: int
) -> None:
    """References and history do not count: without good runs nobody could have them."""
    suite.cluster(require=[require])
    also = "\ndef test_two(self, phase): pass" if "check" in body else ""
    suite.phase(body=body + also, gpus_per_node=2, args=ARGS)
    suite.run()
    assert suite.record()["verdict"] == "INCONCLUSIVE"
    assert [flag for flag, _ in stored(suite)] == [good]


def test_run_with_unreadable_past_is_not_good(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the database is locked until the report is written, the run is stored as not good, and a
    line says that the history could not be read."""
    monkeypatch.setattr(database, "READ_PATIENCE_S", 0.05)
    suite.cluster()
    suite.phase(base="Trained", body="pass", args=ARGS)
    suite.run()
    record = suite.record()
    for number in range(1, 13):
        store_run(like(record, number, 14.0), suite.reports)
    with closing(sqlite3.connect(suite.reports / "history.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")

        list_views = publication.list_views

        def then_free(*words: Any, **more: Any) -> dict[str, Any]:
            other.execute("ROLLBACK")
            return list_views(*words, **more)

        monkeypatch.setattr(publication, "list_views", then_free)
        result = suite.run()
    (phase,) = suite.record()["phases"]
    assert phase["metrics"]["steps_per_s"]["past"] is None
    assert sum("history.db cannot be read (database is locked)" in line for line in result.outlines)
    goods = [good for good, _ in stored(suite)]
    assert (len(goods), goods[-1], sum(goods)) == (14, 0, 13)


@pytest.mark.parametrize("workers", [(), pytest.param(("-n1",), marks=pytest.mark.slow)])
def test_all_views_agree_on_the_past(suite: Suite, workers: tuple[str, ...]) -> None:
    """Terminal, JUnit, page and report.json agree, even if other runs end between the criterion and
    the report, or began later."""
    suite.cluster()
    suite.phase(base="Trained", body=MEANWHILE, args=ARGS)
    others = suite.path / "others.jsonl"
    others.write_text("")
    suite.run()
    record = suite.record()
    for number in range(1, 13):
        store_run(like(record, number, 14.0), suite.reports)
    meanwhile = [like(record, number, 10.0) for number in [*range(20, 80), *range(-20, 0)]]
    others.write_text("".join(f"{json.dumps(other)}\n" for other in meanwhile))
    result = suite.run_apart(*workers)
    assert len(stored(suite)) == 2 + 12 + 80
    (phase,) = suite.record()["phases"]
    text = phase["criteria"][CRITERION]["text"]
    assert "steps_per_s is 10.00 steps/s: 28.6 % below the median 14.00 of 13 good runs" in text
    past = phase["metrics"]["steps_per_s"]["past"]
    assert (past["status"], past["runs"]) == ("fail", 13)
    assert text.endswith(past["text"])
    assert f"small: {past['text']}" in result.outlines
    assert past["text"] in failure(suite.report / "junit.xml", CRITERION)
    assert past["text"].partition(": ")[2] in html.unescape(
        (suite.report / "index.html").read_text()
    )


@pytest.mark.parametrize(
    ("workers", "again", "status"),
    [pytest.param((), 14.0, "not confirmed", marks=pytest.mark.slow), (("-n1",), 13.3, "fail")],
)
def test_lasting_loss_is_confirmed_by_reruns(
    suite: Suite, workers: tuple[str, ...], again: float, status: str
) -> None:
    """With `history_check: confirm` the phase runs again as jobs of its own, which are neither
    phases of the report nor nights of the history; the message has their values."""
    suite.cluster(history_check="confirm")
    suite.phase(base="Trained", body="pass", args={**ARGS, "rate": 13.3, "rate_again": again})
    suite.run()
    store_lasting_loss(suite)
    result = suite.run_apart(*workers)
    (phase,) = suite.record()["phases"]
    past = phase["metrics"]["steps_per_s"]["past"]
    assert past["drift"]["status"] == status
    assert past["drift"]["reruns"] == [again, again]
    words = f"{status.replace('fail', 'confirmed')}: run again 2 times: {again:.2f}, {again:.2f}"
    assert f"; {words}; half of the loss is at 13.65" in past["text"]
    assert any(past["text"] in line for line in result.outlines)
    assert phase["criteria"][CRITERION]["result"] == ("failed" if status == "fail" else "passed")
    assert len(stored(suite)) == 2 + 39
    run = RunDir(suite.shared / suite.record()["run_id"])
    names = {path.name for path in run.root.glob("phases/*")}
    assert names == {"small", "small.confirm1", "small.confirm2"}
    assert not run.phase("small.confirm1").output.exists()


def store_lasting_loss(suite: Suite) -> None:
    """Before the run just made, 32 nights at 14 steps per second and then seven that lose 5 %."""
    record = suite.record()
    for number in range(1, 40):
        rate = 13.3 if number < 8 else 14.0 + 0.1 * (number % 5 - 2)
        store_run(like(record, number, rate), suite.reports)


@pytest.mark.slow
@pytest.mark.lab
def test_lasting_loss_is_confirmed_on_a_real_slurm(
    tmp_path: Path, leftovers: tuple[str, Callable[[], list[str]]]
) -> None:
    """The reruns are jobs of their own there, which no queue has afterwards."""
    with running_lab(LabSettings(name="confirm", nodes=1)) as running:
        suite = Suite(tmp_path, leftovers[0])
        suite.cluster(history_check="confirm")
        suite.use_slurm(running.slurm_conf)
        suite.phase(base="Trained", body="pass", args={**ARGS, "rate": 13.3, "rate_again": 13.3})
        suite.run_apart()
        store_lasting_loss(suite)
        outcome = suite.run_apart()
        assert outcome.ret == 1, outcome.output
        drift = outcome.phase("small")["metrics"]["steps_per_s"]["past"]["drift"]
        assert (drift["status"], drift["reruns"]) == ("fail", [13.3, 13.3])
        assert outcome.phase("small")["criteria"][CRITERION]["result"] == "failed"
        jobs = [event["job_id"] for event in outcome.events("submitted")]
        assert len(set(jobs)) == len(jobs) == 3, jobs
        assert suite.slurm("squeue", "-h", "-o", "%j").strip() == ""


def failure(path: Path, criterion: str) -> str:
    """Message and text of a failed criterion in JUnit."""
    cases = ElementTree.parse(path).getroot().iter("testcase")
    (element,) = (case.find("failure") for case in cases if case.attrib["name"] == criterion)
    assert element is not None
    return f"{element.attrib['message']} {element.text}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"past": 3}',
        '{"past": {"steps_per_s": {"status": "fine"}}}',
        '{"past": {"nothing": %s}}',
        json.dumps({"past": {"steps_per_s": {**PAST, "mad": float("nan")}}}),
        json.dumps({"past": {"steps_per_s": {**PAST, "runs": "many"}}}),
    ],
)
def test_malformed_judgement_is_ignored(tmp_path: Path, text: str) -> None:
    """A job can write to this directory too: malformed content is ignored."""
    directory = PhaseDir(tmp_path)
    directory.past.write_text(text.replace("%s", json.dumps(PAST)))
    assert read_judgement(directory) == {}


def test_judgement_text_is_sanitized(tmp_path: Path) -> None:
    """Its texts are bounded and have no escape sequences."""
    hostile = {**PAST, "text": LONG, "comparison": LONG}
    write_json(PhaseDir(tmp_path).past, {"past": {"steps_per_s": hostile}})
    (judgement,) = read_judgement(PhaseDir(tmp_path)).values()
    for text in (judgement["text"], judgement["comparison"]):
        assert text.isprintable() and len(text) <= 8000
    assert {**judgement, "text": "", "comparison": ""} == {**PAST, "text": "", "comparison": ""}
