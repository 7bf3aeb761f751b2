"""`limits.publish: names`: what a report then leaves to history.db and the run directory."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_clustersmoke.evidence.history import history_database
from pytest_clustersmoke.evidence.node_observation import DeviceFigure, NodeObservation
from pytest_clustersmoke.evidence.run_directory import RunDir
from pytest_clustersmoke.evidence.run_record import RunRecord
from pytest_clustersmoke.report.publication import publish
from pytest_clustersmoke.report.redaction import Redactor, choose_redactor
from tests.support import records
from tests.support.harness import Suite

REDACTOR = Redactor("anna")
UUID = "GPU-5b1c0a3e-1d2f-4a5b-8c9d-0123456789ab"


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("started by anna@login1", "started by <user>@login1"),
        ("joanna, anna-lena, annas", "joanna, anna-lena, annas"),
        (f"{UUID} on gpu-n17", "<uuid> on gpu-n17"),
        ("boot 0123abcd-0123-4567-89ab-0123456789ab", "boot <uuid>"),
        ("/home/anna/run is full", "<path> is full"),
        ('File "/proj/x y/train.py", line 3', 'File "<path> y/train.py", line 3'),
        ("--dir=/scratch/a/b:/scratch/c/d", "--dir=<path>:<path>"),
        ("~/secret/train.py", "<path>"),
        ("nodes/0001/launcher.log:12", "nodes/0001/launcher.log:12"),
        ("see https://example.org/a/b", "see https://example.org/a/b"),
        ("/tmp is full; /dev/shm/x, /proc/self/fd", "/tmp is full; /dev/shm/x, /proc/self/fd"),
        ("NET/IB/0/GDRDMA, 8 steps/s", "NET/IB/0/GDRDMA, 8 steps/s"),
        ("serial number: MT2217X05432", "serial number: <serial>"),
        ("FIT: 4 of 4 phases passed on gpu-n17", "FIT: 4 of 4 phases passed on gpu-n17"),
    ],
)
def test_texts_keep_names_and_lose_the_rest(text: str, hidden: str) -> None:
    """Names of nodes, relative paths, URLs and the kernel's own files stay."""
    assert REDACTOR.hide(text) == hidden
    assert REDACTOR.hide(hidden) == hidden


def test_values_of_such_keys_are_hidden_in_any_form() -> None:
    """A serial number looks like any other word; two hidden keys stay two."""
    facts = {"serial": "1321", "board_serial_number": 7, "gpus": [{"uuid": "x", "name": "H100"}]}
    assert REDACTOR.hide_json(facts) == {
        "serial": None,
        "board_serial_number": None,
        "gpus": [{"uuid": None, "name": "H100"}],
    }
    figure = vars(DeviceFigure("n1", "MT2217X05432", "nic_busbw_gb_per_s", 24.0, "GB/s", True))
    assert REDACTOR.hide_json(figure) == {**figure, "device": ""}
    assert REDACTOR.hide_json({"/a/b": 1, "/a/c": 2}) == {"<path>": 1, "<path>'": 2}


def test_guids_of_network_cards_are_hidden_in_texts() -> None:
    """As a slow card is named; other words of 16 digits stay."""
    card, device = "b8cef60300a12c3e", "NIC-b8cef60300a12c3e:1"
    assert REDACTOR.hide(f"mlx5_0:1 (GUID {card}) is slow") == "mlx5_0:1 (GUID <serial>) is slow"
    assert REDACTOR.hide(f"n0 ({device}): slow") == "n0 (NIC-<serial>:1): slow"
    assert REDACTOR.hide(f"commit {card}") == f"commit {card}"


def test_everybody_is_root_in_a_container() -> None:
    """Which says nothing, and would hide words such as `root directory`."""
    assert Redactor("root").hide("root directory") == "root directory"
    assert Redactor("").hide("words") == "words"


@pytest.mark.parametrize("user", ["user", "gpu", "cluster", "node", "passed", "slurm"])
def test_name_that_is_a_word_of_the_record_damages_nothing(user: str) -> None:
    """Accounts of services are named so. Their own name is hidden all the same."""
    made = records.run(request={**records.REQUEST, "user": user})
    hidden = Redactor(user).hide_record(records.parsed(made)).as_json()
    assert hidden["request"]["user"] == "<user>" or user == "passed"
    assert hidden["phases"][0]["outcome"] == "passed"
    assert hidden.keys() == records.parsed(made).as_json().keys()


def test_all_is_published_unless_the_run_says_names() -> None:
    """By run.json, so that a later command that reports the run knows it, too."""
    assert choose_redactor({}) is None
    assert choose_redactor({"publish": "names"}) is not None


def test_history_keeps_what_the_report_leaves_out(tmp_path: Path) -> None:
    """The own step of each GPU by its UUID, for comparison; only the user can read it, even if it
    was readable before. No view of the report has the UUID, the user or a path."""
    database = tmp_path / history_database.NAME
    phase = records.phase(args={"data": "/proj/anna/data"})
    phase["ranks"][0]["gpu"] = UUID
    made = records.run(phase, sentence="FIT: /proj/anna/x by anna", evidence="/proj/anna/runs")
    made["nodes"][0]["facts"]["gpus"] = [{"uuid": UUID, "serial": "1321X", "name": "H100"}]
    history_database_is_open(tmp_path)
    record = records.parsed(made)
    run = RunDir(tmp_path / "runs" / record.run_id)
    environ = {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
    publish(record, run, tmp_path, environ, redactor=REDACTOR)
    assert database.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(database)) as connection:
        assert (UUID,) in connection.execute("SELECT name FROM gpus").fetchall()
    files = [*(tmp_path / record.run_id).iterdir(), tmp_path / "summary.md"]
    assert len(files) == 4
    for path in files:
        text = path.read_text()
        assert "anna" not in text and UUID not in text and "1321X" not in text, path
    written = json.loads((tmp_path / record.run_id / "report.json").read_text())
    assert RunRecord.model_validate(written).phases[0].ranks[0].gpu == ""
    assert written["phases"][0]["nodes"][0]["node"] == "node0"
    assert record.phases[0].ranks[0].gpu == UUID


def test_history_of_another_user_gets_what_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mode cannot be changed, and others read it: neither the record, nor what was seen of
    nodes and devices, nor the page over runs has a UUID, the user or a path; a remark says so."""
    phase = records.phase(args={"data": "/proj/anna/data"})
    phase["ranks"][0]["gpu"] = UUID
    made = records.run(phase, sentence="FIT: /proj/anna/x by anna", evidence="/proj/anna/runs")
    made["nodes"][0]["facts"]["gpus"] = [{"uuid": UUID, "serial": "1321X", "name": "H100"}]
    history_database_is_open(tmp_path)
    database, real = tmp_path / history_database.NAME, Path.chmod

    def chmod(path: Path, mode: int) -> None:
        if path == database:
            raise PermissionError(1, "Operation not permitted")
        real(path, mode)

    monkeypatch.setattr(Path, "chmod", chmod)
    record = records.parsed(made)
    seen = NodeObservation(
        "node0", "screen", "bad", "gpu: /proj/anna/x", boot_id=UUID[4:], parts={"GPU": UUID}
    )
    figure = DeviceFigure("node0", UUID, "gemm_tflops", 1.0, "TFLOP/s", True)
    remarks = publish(
        record,
        RunDir(tmp_path / "runs" / record.run_id),
        tmp_path,
        {},
        redactor=REDACTOR,
        observations=[seen],
        figures=[figure],
    )
    assert [line for line in remarks if line.startswith("history.db is another user's")]
    for path in (database, tmp_path / "index.html"):
        data = path.read_bytes()
        assert b"anna" not in data and UUID[4:].encode() not in data and b"1321X" not in data
    with closing(sqlite3.connect(database)) as connection:
        assert (record.run_id,) in connection.execute("SELECT run_id FROM runs").fetchall()


def history_database_is_open(directory: Path) -> None:
    """A history that everybody can read."""
    records.store_run(records.run(), directory)
    assert (directory / history_database.NAME).stat().st_mode & 0o777 == 0o644


def test_a_run_publishes_names_only(suite: Suite) -> None:
    """The report has neither the jobs' files nor a path, in any file; it is complete, and its
    verdict is the same. The evidence is where it was."""
    suite.cluster(limits={"publish": "names", "poll_s": 0.2})
    suite.phase(body="def test_fails(self, phase):\n    assert open('/proj/anna/none')")
    outcome = suite.run()
    assert outcome.ret == 1
    report = outcome.files.report.resolve()
    files = [path for path in report.rglob("*") if path.is_file()]
    assert {path.name for path in files} == {
        *("report.json", "index.html", "metrics.prom", "junit.xml", "journal.jsonl"),
    }
    for path in files:
        text = path.read_text()
        assert str(suite.path) not in text and "/proj/anna" not in text, path
        assert str(suite.shared) not in text, path
    case = ElementTree.parse(report / "junit.xml").find(".//testcase[@name='test_fails']")
    assert case is not None
    assert "<path>" in str(case.find("failure").text)  # type: ignore[union-attr]
    assert (suite.reports / "history.db").stat().st_mode & 0o777 == 0o600
    (run,) = suite.runs()
    assert any(run.rglob("launcher.log"))
    assert "<path>" not in outcome.output
