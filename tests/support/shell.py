"""Runs pytest and `clustersmoke` as users do, and returns the output."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import date, timedelta
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import BARE, ROOT, Suite, outer_variables
from tests.support.leftovers import none_left

WIDE = {"COLUMNS": "500"}  # so that no line of a help text is wrapped

REFERENCES = {
    "small": {"steps_per_s": {"value": 10, "lower": "-10 %", "unit": "steps/s", "source": "a test"}}
}
# One criterion is a known failure; the other writes down which names of its phase it can use.
CRITERIA = """
def test_known(self, phase):
    assert False

def test_members(self, phase):
    import json
    from pathlib import Path
    from pytest_clustersmoke.criteria import PhaseView
    from tests.support.surface import members

    assert isinstance(phase, PhaseView)
    phase.sensitivity.append("would have named the whole cluster")
    seen = {
        "phase.": phase,
        "phase.metric().": phase.metric("steps_per_s"),
        "phase.nodes[].": phase.nodes[0],
        "phase.ranks[].": phase.ranks[0],
        "phase.transports.": phase.transports,
        "phase.transports.inter_node.": phase.transports.inter_node,
        "phase.transports.intra_node.": phase.transports.intra_node,
    }
    names = [name + member for name, value in seen.items() for member in members(value)]
    Path("members.json").write_text(json.dumps(names))
"""
# Prints each collected item with its phase, the marker's arguments, and the other marks.
COLLECT = """
import json, sys, pytest
class Printer:
    def pytest_collection_finish(self, session):
        for item in session.items:
            marks = {mark.name: mark for mark in item.iter_markers()}
            phase = marks.pop("phase")
            marks.pop("skip", None)
            print("ITEM", json.dumps([item.nodeid, phase.args[0], phase.kwargs, sorted(marks)]))
sys.exit(pytest.main(sys.argv[1:], plugins=[Printer()]))
"""


def run_python(*words: str | Path, folder: Path, **variables: str) -> str:
    """Run Python in a folder, without the variables of an outer pytest; return what it prints."""
    outer = outer_variables()
    environ = {name: value for name, value in os.environ.items() if name not in outer}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.stdout + done.stderr


def run_command(*words: str) -> str:
    """Run `clustersmoke` in this process; return what it prints on standard output."""
    (entry,) = entry_points(group="console_scripts", name="clustersmoke")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as output:
        for name, value in WIDE.items():
            patch.setenv(name, value)
        with contextlib.suppress(SystemExit):
            entry.load()(words)
    return output.getvalue()


def added_to_help(word: str, pattern: str, folder: Path) -> set[str]:
    """Run pytest with an option that prints help; return what only the plugin adds to it."""
    words = ("-m", "pytest", *BARE, word)
    with_it = run_python(*words, folder=folder, **WIDE)
    without = run_python(*words, "-p", "no:clustersmoke", folder=folder, **WIDE)
    both = [{*re.findall(pattern, text, re.MULTILINE)} for text in (with_it, without)]
    return both[0] - both[1]


def run_suite(folder: Path) -> None:
    """Run one small phase on this machine, which leaves `reports/`, and `members.json` with the
    names that a criterion can use."""
    until = date.today() + timedelta(days=30)
    known = {"phase": "small", "criterion": "test_known", "reason": "a test", "until": str(until)}
    with none_left() as (marker, _):
        suite = Suite(folder, marker)
        suite.cluster(references=REFERENCES, known=[known])
        # The marker uses every key.
        size: dict[str, Any] = {
            "nodes": 1,
            "gpus_per_node": 2,
            "args": {"steps": 3},
            "timeout_s": 60,
        }
        suite.phase(base="Trained, TalkedInsideNodes", body=CRITERIA, **size)
        with suite.started(PYTHONPATH=str(ROOT)) as running:
            outcome = running.wait()
    assert folder.joinpath("members.json").exists(), outcome.output


def collected(suite: str) -> Iterator[tuple[str, str, dict[str, Any], list[str]]]:
    """Each item of a suite: its name, its phase, the marker's arguments, the other marks."""
    output = run_python("-c", COLLECT, *BARE, "--collect-only", "-q", suite, folder=ROOT)
    for line in re.findall("^ITEM (.*)$", output, re.MULTILINE):
        yield json.loads(line)
