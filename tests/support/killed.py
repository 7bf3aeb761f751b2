"""Runs whose controller is killed at a line of its journal, and those that attach them."""

from __future__ import annotations

import signal
from collections import Counter

from pytest_clustersmoke.evidence.telemetry import read_events
from tests.support.harness import Outcome, Suite
from tests.support.waiting import PATIENCE_S

# Kills the controller with SIGKILL right after it wrote the Nth event of a name.
KILLER = """
import os, signal
from pytest_clustersmoke.evidence.run_journal import FencedJournal

name, number = os.environ.get("KILL_AT", ":0").split(":")
write, seen = FencedJournal.write, []

def write_and_die(self, event, **fields):
    write(self, event, **fields)
    seen.append(event)
    if event == name and seen.count(name) == int(number):
        os.kill(os.getpid(), signal.SIGKILL)

FencedJournal.write = write_and_die
"""


def kill_at(suite: Suite, event: str, *words: str) -> None:
    """Run the suite, whose controller is killed at the event."""
    (suite.path / "conftest.py").write_text(KILLER)
    with suite.started(*words, KILL_AT=event) as running:
        assert running.process.wait(PATIENCE_S) == -signal.SIGKILL, running.output()


ATTACH = ("--cluster-attach", "latest")


def attach(suite: Suite, *words: str) -> Outcome:
    return suite.run_apart(*ATTACH, *words)


def check_whole(suite: Suite, outcome: Outcome, *phases: str, attached: int = 1) -> None:
    """All phases passed, each ran once, and the run was attached so often."""
    assert outcome.ret == 0, outcome.output
    record = suite.record()
    assert {phase["phase"]: phase["outcome"] for phase in record["phases"]} == dict.fromkeys(
        phases, "passed"
    )
    assert record["verdict"] == "FIT" and len(record["attached"]) == attached
    (run,) = (path for path in suite.runs() if path.is_dir())
    for phase in phases:
        claims = [
            *read_events(run / "phases" / phase / "nodes" / "0000" / "events.jsonl").named("claim")
        ]
        assert len(claims) == 1, phase
    ended = Counter(event["phase"] for event in read_events(run / "journal.jsonl").named("ended"))
    assert {*ended} == {*phases}
