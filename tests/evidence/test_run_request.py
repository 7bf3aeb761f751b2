"""Who asked for a run, and with which command, of which secrets are left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.run_request import describe_command, read_request
from tests.support.harness import Suite


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["-m", "multinode", "--cluster", "one"], "-m multinode --cluster one"),
        (["-k", "a or b"], "-k 'a or b'"),
        (["test_token.py::TestAuth::test_key"], "test_token.py::TestAuth::test_key"),
        (["--cluster-set", "a.args.steps=30"], "--cluster-set a.args.steps=30"),
        (
            ["--cluster-set", "a.env.WANDB_API_KEY=my secret"],
            "--cluster-set 'a.env.WANDB_API_KEY=(hidden)'",
        ),
        (
            ["--cluster-set", 'a.args={"token": "x y"}'],
            """--cluster-set 'a.args={"token": (hidden)'""",
        ),
        (["--api-key=abc"], "'--api-key=(hidden)'"),
        (["--api-key", "abc", "-x"], "--api-key '(hidden)' -x"),
        (["--cluster-set", "a.args.hub=hf_abcdefghijkl"], "--cluster-set 'a.args.hub=(hidden)'"),
        (["--cluster-set", "a.args.hfToken=abc"], "--cluster-set 'a.args.hfToken=(hidden)'"),
        (["--cluster-set", "a.env.MYSQL_PWD=abc"], "--cluster-set 'a.env.MYSQL_PWD=(hidden)'"),
        (["--cluster-set", "a.env.PWD=/home"], "--cluster-set a.env.PWD=/home"),
        (["--cluster-set", "a.args.pass=123"], "--cluster-set 'a.args.pass=(hidden)'"),
        (["--cluster-set", "a.args.tokens=512"], "--cluster-set a.args.tokens=512"),
        (["--cluster-set", "a.args.kv_key_heads=8"], "--cluster-set a.args.kv_key_heads=8"),
        (["--cluster-set", "a.args.c=--api-key x"], "--cluster-set 'a.args.c=--api-key (hidden)'"),
        (["--header", "X: Bearer abc"], "--header 'X: (hidden)'"),
        (["--header", "Authorization: abc"], "--header 'Authorization: (hidden)'"),
        (["--url", "https://tok@host/x"], "--url '(hidden)'"),
        (["--url", "https://me:pass@host/x"], "--url '(hidden)'"),
        (["--cluster-set", "a.env.NCCL_IB_PKEY=1"], "--cluster-set a.env.NCCL_IB_PKEY=1"),
    ],
)
def test_command_is_shown_without_secrets(words: list[str], shown: str) -> None:
    """By their names and by their values; what is not one stays as a shell takes it."""
    assert describe_command(words) == f"pytest {shown}"


def test_long_command_is_cut() -> None:
    assert len(describe_command(["x" * 10**6])) == 4000


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"user": 3, "host": None, "utc_offset_s": "x", "command": []},
        {"utc_offset_s": 24 * 3600},
        {"utc_offset_s": -(10**30)},
        {"utc_offset_s": True},
    ],
)
def test_run_of_an_older_version_asked_for_nothing_known(about: dict[str, Any]) -> None:
    """What run.json lacks, or has in a wrong type or out of range, is unknown."""
    request = read_request(about)
    assert (request.user, request.host, request.command) == ("", "", "")
    assert request.utc_offset_s is None and request.publish == "all"


def test_report_says_who_ran_what_and_has_no_secret(suite: Suite) -> None:
    """Command and zone; the secret is in no file of the report. An argument is on the launcher's
    command line, and so in the evidence, but in nothing that is shown."""
    suite.phase()
    key = suite.path / "hf_abcdefghijkl"
    key.touch()
    token = ("--cluster-set", "small.env.MY_TOKEN=hunter2")
    assert suite.run(*token, "--cluster-set", f"small.args.wait_for={key}", "-v").ret == 0
    request = suite.record()["request"]
    assert "--cluster one" in request["command"]
    assert "--cluster-set 'small.env.MY_TOKEN=(hidden)' --cluster-set " in request["command"]
    assert key.name not in (suite.report / "report.json").read_text()
    assert key.name not in (suite.report / "index.html").read_text()
    assert suite.record()["phases"][0]["args"]["wait_for"] == "(hidden)"
    assert request["host"] and isinstance(request["utc_offset_s"], int)
    about = json.loads((suite.report / "run.json").read_text())
    assert about["command"] == request["command"]
    assert hunted(suite.report.resolve()) == []


def hunted(report: Path) -> list[Path]:
    files = [path for path in report.rglob("*") if path.is_file()]
    return [path for path in files if b"hunter2" in path.read_bytes()]
