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
    assert "the launcher" in finding.fix and "WORLD_SIZE" in finding.fix
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


WRAPPED = """\
import os
os.environ["RANK"] = "x"
from pytest_clustersmoke.rank import Rank
with Rank.start():
    pass
"""


def test_variable_that_a_wrapper_spoilt_is_named(suite: Suite) -> None:
    """In a run: the variable, its value, and what was expected."""
    script = suite.path / "wrapped.py"
    script.write_text(WRAPPED)
    suite.phase(script=script)
    result = suite.run()
    assert result.ret == 1
    finding = result.finding("small")
    assert finding["detail"]["signature"] == "rank_env_unusable"
    assert "RANK='x' in the rank's environment; expected a whole number" in finding["cause"]
    assert "unknown cause" not in finding["cause"] and "leave it to the launcher" in finding["fix"]


def test_misuse_that_a_rank_recorded_is_named(tmp_path: Path) -> None:
    """The exception stands in the rank's own events."""
    text = "step 3 was recorded 2 times"
    traceback = f"Traceback ...\npytest_clustersmoke.rank.rank_environment.RankMisuse: {text}\n"
    error = ("error", {"type": "RankMisuse", "message": text, "traceback": traceback})
    (finding,) = diagnosed(make_evidence(tmp_path).rank(1, start(1, 2), error))
    assert finding.id == "rank-error" and finding.detail["signature"] == "rank_api_misuse"
    assert f"failed: RankMisuse: {text}; cause: the program uses" in finding.cause


ARGUMENTS = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--hidden-size", type=int, required=True)
parser.add_argument("--a-long-option-that-makes-the-usage-wrap-around", action="store_true")
parser.add_argument("--stage", type=int, choices=[0, 1, 2], default=0)
parser.parse_args()
"""


@pytest.mark.parametrize(
    ("args", "setting", "cause", "fix"),
    [
        (
            {"hiden_size": 4, "hidden_size": 4},
            "",
            "the argument `hiden_size` (test_small.py:3) of phase small: unrecognized arguments: "
            "--hiden-size 4",
            "did you mean `--hidden-size`? correct the phase's `args`",
        ),
        (
            {"hidden_size": 4},
            "small.args.stage=3",
            "the argument `stage` (--cluster-set) of phase small: argument --stage: invalid choice",
            "correct the phase's `args`",
        ),
        (
            {"stage": 1},
            "",
            "the arguments of phase small: the following arguments are required: --hidden-size",
            "correct the phase's `args`",
        ),
    ],
)
def test_argument_that_the_program_refuses_is_named(
    suite: Suite, args: dict[str, Any], setting: str, cause: str, fix: str
) -> None:
    """In a run: the argument, where it was set, what the parser says, and the nearest option."""
    script = suite.path / "sized.py"
    script.write_text(ARGUMENTS)
    suite.phase(script=script, args=args, gpus_per_node=2)
    result = suite.run(*(("--cluster-set", setting) if setting else ()))
    assert result.ret == 1
    finding = result.finding("small")
    assert finding["id"] == "argument-refused" and finding["hosts"] == ["local0"]
    assert finding["cause"].startswith(f"{script} refuses {cause}")
    assert finding["fix"].startswith(fix)
    assert finding["evidence"][0]["file"].endswith("/stderr.log")


USAGE = "usage: train.py [--steps STEPS]\ntrain.py: error: unrecognized arguments: --stepps 3\n"


def log_of_rank(evidence: Evidence, text: str) -> None:
    folder = evidence.dir.rank_logs(0) / "run" / "attempt_0" / "0"
    folder.mkdir(parents=True)
    folder.joinpath("stderr.log").write_text(text)


@pytest.mark.parametrize("after", ["Traceback (most recent call last):", "it goes on"])
def test_usage_error_that_a_program_survived_is_not_its_end(tmp_path: Path, after: str) -> None:
    """A usage error with anything after it is of another program, which this one ran."""
    evidence = make_evidence(tmp_path, args_from={"stepps": "x.py:1"})
    evidence.node(0, ok=False, reason="torchrun", why="torchrun ended with status 1")
    log_of_rank(evidence, USAGE + after + "\n")
    assert diagnosed(evidence)[0].id == "torchrun-failed"


CLICK = """Usage: train.py [OPTIONS]
Try 'train.py --help' for help.

Error: No such option '--stepps'. Did you mean '--steps'?
"""
TYPER = """Usage: train.py [OPTIONS]
Try 'train.py --help' for help.
╭─ Error ──────────────────────────────────────────────────────────────────────╮
│ No such option: --stepps (Possible options: --steps)                         │
╰──────────────────────────────────────────────────────────────────────────────╯
"""
TYRO = """╭─ Unrecognized options ────────────╮
│ Unrecognized options: --stepps, 4 │
│ ───────────────────────────────── │
│ Perhaps you meant:                │
│     --steps INT                   │
│         (default: 3)              │
╰───────────────────────────────────╯
"""
ABSL = """FATAL Flags parsing error: Unknown command line flag 'stepps'. Did you mean: steps ?
Pass --helpshort or --helpfull to see help on flags.
"""
FIRE = """ERROR: Could not consume arg: --stepps
Usage: train.py --steps 3

For detailed information on this command, run:
  train.py --steps 3 --help
"""
JSONARGPARSE = """usage: train.py [--config CONFIG] steps
tip: For details of accepted options run: train.py --help
error: unrecognized arguments: --stepps 4
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CLICK, "No such option '--stepps'. Did you mean '--steps'?"),
        (TYPER, "No such option: --stepps (Possible options: --steps)"),
        (TYRO, "Unrecognized options: --stepps, 4"),
        (ABSL, "Unknown command line flag 'stepps'. Did you mean: steps ?"),
        (FIRE, "Could not consume arg: --stepps"),
        (JSONARGPARSE, "unrecognized arguments: --stepps 4"),
    ],
    ids=["click", "typer", "tyro", "absl", "fire", "jsonargparse"],
)
def test_refusals_of_other_parsers_are_read(text: str, message: str, tmp_path: Path) -> None:
    """The output of each as it was printed, after lines of the program's own."""
    evidence = make_evidence(tmp_path, args_from={"stepps": "x.py:1"})
    evidence.node(0, ok=False, reason="torchrun", why="torchrun ended with status 2")
    log_of_rank(evidence, f"importing\nwarning: slow\n{text}")
    finding = diagnosed(evidence)[0]
    assert finding.id == "argument-refused" and "`stepps` (x.py:1)" in finding.cause
    assert finding.cause.endswith(f": {message}")
    assert message in finding.evidence[0].text


@pytest.mark.parametrize("kind", ["SystemExit", "ValueError"])
def test_arguments_parsed_in_a_rank_are_named_too(tmp_path: Path, kind: str) -> None:
    """A rank that recorded the parser's exit was refused its arguments; one that failed later was
    not."""
    error = ("error", {"type": kind, "message": "2", "traceback": ""})
    evidence = make_evidence(tmp_path, args_from={"stepps": "x.py:1"})
    log_of_rank(evidence.rank(0, start(0, 2), error), USAGE)
    finding = diagnosed(evidence.node(0, ok=False, reason="rank_error", why="it ended"))[0]
    assert finding.id == ("argument-refused" if kind == "SystemExit" else "rank-error")
    if kind == "SystemExit":
        assert "`stepps` (x.py:1)" in finding.cause and "`--steps`" in finding.fix
