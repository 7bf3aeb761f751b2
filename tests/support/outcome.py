"""The output of a run of pytest on a suite, and the files that it left."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.phase_result import PhaseResult, collect_phase
from pytest_clustersmoke.evidence.run_directory import RunDir
from tests.support.load import Pressure
from tests.support.waiting import wait_for


class RunFiles:
    """The files that the runs of a suite leave behind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shared = path / "shared"
        self.reports = path / "reports"

    def runs(self) -> list[Path]:
        """The contents of the shared directory."""
        return sorted(self.shared.iterdir()) if self.shared.is_dir() else []

    def run_dir(self) -> RunDir:
        """The directory of the only run, once it is there."""

        def look() -> Path | None:
            runs = list(self.shared.glob("*/run.json"))
            assert len(runs) < 2, runs
            return runs[0].parent if runs else None

        return RunDir(wait_for("the run's directory", look))

    def published(self) -> list[Path]:
        """The contents of the report directory."""
        return sorted(self.reports.iterdir()) if self.reports.is_dir() else []

    @property
    def report(self) -> Path:
        """The directory of the newest report."""
        return self.reports / "latest"

    def record(self) -> dict[str, Any]:
        """The newest run's report.json."""
        record: dict[str, Any] = json.loads((self.report / "report.json").read_text())
        return record

    def journal(self) -> list[dict[str, Any]]:
        """The newest run's journal."""
        lines = (self.report / "journal.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


class Outcome:
    """A pytest that has ended: its output, as in `pytest.RunResult`, and the files of its run."""

    def __init__(
        self, result: pytest.RunResult, files: RunFiles, pressure: Pressure | None = None
    ) -> None:
        self.files = files
        self.ret = result.ret
        self.pressure = pressure or Pressure()
        self.outlines, self.errlines = result.outlines, result.errlines
        self.stdout, self.stderr = result.stdout, result.stderr
        self.assert_outcomes = result.assert_outcomes

    @property
    def output(self) -> str:
        """Standard output, then standard error."""
        return f"{self.stdout}\n{self.stderr}"

    def record(self) -> dict[str, Any]:
        """The run's report.json."""
        assert (self.files.report / "report.json").exists(), self.output
        return self.files.record()

    def phase(self, name: str) -> dict[str, Any]:
        """The phase's part of report.json."""
        phases = {phase["phase"]: phase for phase in self.record()["phases"]}
        return dict(phases[name])

    def finding(self, name: str) -> dict[str, Any]:
        """The phase's primary finding."""
        findings = self.phase(name)["findings"]
        assert findings and findings[0]["primary"], (findings, self.output)
        return dict(findings[0])

    def failures(self, name: str) -> str:
        """The messages of the phase's failed criteria, from junit.xml."""
        failures = [
            failure
            for case, values in _cases(self.files.report / "junit.xml")
            if values.get("phase") == name
            for failure in case.iter("failure")
        ]
        return "\n".join(failure.get("message", "") for failure in failures)

    def evidence(self, name: str) -> PhaseResult:
        """The phase's evidence, as a criterion sees it."""
        return collect_phase(self.files.run_dir().phase(name))

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of this name in the run's journal."""
        return [event for event in self.files.journal() if event["event"] == name]


def lines_with(outcome: Outcome, text: str) -> list[str]:
    """The lines of standard output that contain a text."""
    return [line for line in outcome.outlines if text in line]


def properties(path: Path) -> dict[str, dict[str, str]]:
    """JUnit case (class::name) -> its properties, and its outcome as `result`."""
    cases = {}
    for case, values in _cases(path):
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        result = kinds.pop() if kinds else "passed"
        cases[f"{case.attrib['classname']}::{case.attrib['name']}"] = {**values, "result": result}
    return cases


def _cases(path: Path) -> Iterator[tuple[ElementTree.Element, dict[str, str]]]:
    """Each case of a junit.xml, with its properties."""
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        yield case, {item.attrib["name"]: item.attrib["value"] for item in case.iter("property")}
