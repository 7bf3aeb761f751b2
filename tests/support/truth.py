"""What jobs say of themselves in a file of their own, and whether a report agrees with it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_clustersmoke.evidence.run_directory import RunDir, read_json
from pytest_clustersmoke.evidence.scheduler_record import DUPLICATE_JOB
from pytest_clustersmoke.evidence.telemetry import read_events
from tests.support.harness import IDLE
from tests.support.strikes import RANK, SLURMCTLD, SLURMD, STEPD, Hit

TRUTH = "CHAOS_TRUTH"
# A rank that writes to the file of its run when it starts and when it ends.
PROGRAM = f"""
import json, os, runpy, time
from pathlib import Path
from pytest_clustersmoke.evidence.run_directory import PhaseDir, read_json

place = PhaseDir(Path(os.environ["CLUSTERSMOKE_PHASE_DIR"]))
about = dict(phase=place.name, token=(read_json(place.spec) or dict())["token"],
             job_id=os.environ["SLURM_JOB_ID"], node=os.environ["SLURMD_NODENAME"])
truth = os.open(os.environ["{TRUTH}"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

def say(what):
    line = json.dumps(dict(about, what=what, time=time.time())) + "\\n"
    os.write(truth, line.encode())

say("start")
runpy.run_path({str(IDLE)!r}, run_name="__main__")
say("end")
"""
# Slurm names the failure of a node up to 36 s after it on a loaded machine; from the order to end a
# job to its end, the job may end by itself.
EFFECT_S, END_S = 60.0, 10.0
# Which kills make an outcome true. `lost` is true only where Slurm lost its own record.
CAUSES = {
    "passed": {RANK, STEPD, SLURMD, SLURMCTLD},
    "failed": {RANK, STEPD},
    "cluster_failed": {STEPD, SLURMD},
    "preempted": {SLURMD, SLURMCTLD},
    "never_ran": {SLURMD, SLURMCTLD},
    "cancelled": set(),  # only a run that was reaped
    "lost": {SLURMCTLD},
}


@dataclass(frozen=True)
class Start:
    """One start of a phase's program, as it says; `ended` is None if it did not get to its end."""

    phase: str
    token: str
    job_id: str
    node: str
    began: float
    ended: float | None


@dataclass(frozen=True)
class Reported:
    """What a run says of a phase: its outcome, the tokens of its submissions, and from when until
    when it was at work on it (Unix seconds). `reaped`: when the run was ended from outside;
    `has_result`: the job's node wrote that all went well; `refused`: its node was drained because
    slurmctld launched a job again that ran there."""

    phase: str
    outcome: str
    tokens: tuple[str, ...] = ()
    began: float = 0.0
    ended: float = float("inf")
    reaped: float | None = None
    has_result: bool = False
    refused: bool = False


def read_truth(path: Path) -> list[Start]:
    """The starts in a truth file, in order."""
    starts: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    lines = path.read_text().splitlines() if path.exists() else []
    open_starts: list[list[dict[str, Any]]] = []
    for line in map(json.loads, lines):
        key = (line["phase"], line["token"], line["job_id"])
        if line["what"] == "start":
            starts[key] = [line]
            open_starts.append(starts[key])
        else:
            starts[key].append(line)
    return [
        Start(
            lines[0]["phase"],
            lines[0]["token"],
            lines[0]["job_id"],
            lines[0]["node"],
            lines[0]["time"],
            lines[1]["time"] if len(lines) > 1 else None,
        )
        for lines in open_starts
    ]


def read_report(record: Mapping[str, Any], run: RunDir) -> list[Reported]:
    """What a report and its run's directory say, by phase."""
    journal = read_events(run.journal).records
    reaped = [event["time"] for event in journal if event.get("reaped")]
    reported = []
    for phase in record["phases"]:
        mine = [event for event in journal if event.get("phase") == phase["phase"]]
        intents = [event for event in mine if event["event"] == "intent"]
        ends = [event["time"] for event in mine if event["event"] == "ended"]
        reported.append(
            Reported(
                phase["phase"],
                phase["outcome"],
                tuple(event["token"] for event in intents),
                min((event["time"] for event in intents), default=journal[0]["time"]),
                max(ends, default=journal[-1]["time"]),
                min(reaped, default=None),
                (read_json(run.phase(phase["phase"]).node_result(0)) or {}).get("ok") is True,
                any(DUPLICATE_JOB in finding["cause"] for finding in phase["findings"]),
            )
        )
    return reported


def find_violations(reported: Reported, starts: Sequence[Start], hits: Sequence[Hit]) -> list[str]:
    """The differences between the report of a phase and what its jobs wrote themselves."""
    mine = [start for start in starts if start.phase == reported.phase]
    problems = []
    if len(mine) > 1:
        problems.append(f"it started {len(mine)} times: {', '.join(s.token for s in mine)}")
    for start in mine:
        if start.token not in reported.tokens:
            problems.append(f"a job of a token that the journal does not have: {start.token}")
    if reported.outcome == "passed":
        problems += _check_pass(reported, mine)
    else:
        problems += _check_cause(reported, mine, hits)
        problems += _check_end(reported, mine, hits)
    return [f"{reported.phase} ({reported.outcome}): {problem}" for problem in problems]


def _check_pass(reported: Reported, starts: Sequence[Start]) -> list[str]:
    last = reported.tokens[-1] if reported.tokens else ""
    if any(start.token == last and start.ended is not None for start in starts):
        return []
    return ["its last job did not get to its end"]


def _check_cause(reported: Reported, starts: Sequence[Start], hits: Sequence[Hit]) -> list[str]:
    """Something must have happened to the phase that makes the outcome true."""
    if reported.outcome == "cancelled" and reported.reaped is not None:
        return []
    causes = CAUSES.get(reported.outcome, set())
    if reported.outcome == "cluster_failed" and (reported.refused or not starts):
        # slurmctld had forgotten a job, and launched it again, or gave its id to another.
        causes = causes | {SLURMCTLD}
    if any(hit.kind in causes and _concerns(hit, reported, starts) for hit in hits):
        return []
    expected = " or ".join(sorted(causes)) or "a run that was reaped"
    return [f"nothing was killed that makes this true (expected {expected})"]


def _concerns(hit: Hit, reported: Reported, starts: Sequence[Start]) -> bool:
    if hit.phase:
        return hit.phase == reported.phase
    if hit.node and starts and hit.node not in {start.node for start in starts}:
        return False
    return hit.began <= reported.ended and reported.began <= hit.ended + EFFECT_S


def _check_end(reported: Reported, starts: Sequence[Start], hits: Sequence[Hit]) -> list[str]:
    """A program that got to its end has passed, unless it was struck before its node said so."""
    if reported.outcome == "never_ran" and starts:
        return ["it ran"]
    ended = [start.ended for start in starts if start.ended is not None]
    if not ended or any(hit.phase == reported.phase for hit in hits):
        return []
    # A job that Slurm forgot is ended by Slurm once its node registers; one of a reaped run, by us.
    struck = (
        reported.outcome == "lost" and reported.ended - ended[0] < END_S and not reported.has_result
    )
    reaped = reported.outcome == "cancelled" and ended[0] >= (reported.reaped or math.inf) - END_S
    return [] if struck or reaped else ["its program got to its end"]
