"""A small suite on a small cluster, run as a user runs it; what it leaves is easy to read.

Local phases run for real, through submitit and our launcher; only torchrun is a fake where a test
says nothing of it (`fakes/torchrun`), since importing the real one takes seconds.
"""

from __future__ import annotations

import json
import textwrap
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

# An inner run in this process forgets what it imported first, and yaml's part in C cannot be
# imported twice: so all that a run loads late is loaded here.
import pytest_clustersmoke.cli
import pytest_clustersmoke.jobs.local_backend
import pytest_clustersmoke.jobs.slurm_backend
import pytest_clustersmoke.preflight
import pytest_clustersmoke.report.publication
import pytest_clustersmoke.report.terminal
import pytest_clustersmoke.session.job_session
import pytest_clustersmoke.session.plan
import pytest_clustersmoke.session.suite  # noqa: F401

# Plugins of the tests' own environment that cost an inner run seconds and say nothing of ours.
BARE = ("-p", "no:hypothesispytest", "-p", "no:anyio", "-p", "no:cacheprovider")
FAKES = Path(__file__).resolve().parents[1] / "fakes"
TRAIN = FAKES / "train_fake.py"
FAKE_TORCHRUN = FAKES / "torchrun"


class Suite:
    """A directory with a cluster.yaml and phases, in which pytest is run as a user would.

    `phases` maps a name to what its marker says beside the name.
    """

    def __init__(self, pytester: pytest.Pytester, marker: str) -> None:
        self.pytester = pytester
        self.path = pytester.path
        self.shared = self.path / "shared"
        self.reports = self.path / "reports"
        self.marker = marker

    def cluster(self, text: str = "", name: str = "one", **extra: Any) -> None:
        """Write cluster.yaml with one local profile; `extra` are more of its keys."""
        if text:
            self.path.joinpath("cluster.yaml").write_text(textwrap.dedent(text))
            return
        profile: dict[str, Any] = {
            "backend": "local",
            "shared_dir": str(self.shared),
            "hardware": {"gpu": "any", "device": "cpu", "gpus_per_node": 2},
            "env": {
                "common": {"set": {"PYTHONPATH": str(FAKE_TORCHRUN), self.marker: "1"}},
            },
            "limits": {"poll_s": 0.2},
            "phases": {"small": None},
            **extra,
        }
        # JSON is YAML; one key a line keeps file:line telling.
        content = {"clusters": {name: profile}}
        self.path.joinpath("cluster.yaml").write_text(json.dumps(content, indent=1))

    def phase(
        self, name: str = "small", body: str = "", base: str = "", file: str = "", **marker: Any
    ) -> Path:
        """Add a phase; `body` are the criteria, as source text of the class."""
        marker.setdefault("script", str(TRAIN))
        words = ", ".join(f"{key}={value!r}" for key, value in marker.items())
        title = "".join(word.capitalize() for word in name.split("_"))
        body = body or "def test_all_done(self, phase):\n    assert phase.ranks_done"
        lines = [
            "import pytest",
            "from pytest_clustersmoke.criteria import *",
            f'@pytest.mark.phase("{name}", {words})',
            f"class Test{title}{f'({base})' if base else ''}:",
            textwrap.indent(textwrap.dedent(body), "    "),
        ]
        path = self.path / (file or f"test_{name}.py")
        path.write_text("\n".join(lines) + "\n")
        return path

    def run(self, *words: str | Path, cluster: str = "one") -> pytest.RunResult:
        """Run pytest here, in this process, on the cluster `one`."""
        chosen = ["--cluster", cluster] if cluster else []
        return self.pytester.runpytest_inprocess(*BARE, *chosen, *map(str, words))

    def run_apart(self, *words: str | Path, cluster: str = "one") -> pytest.RunResult:
        """Run pytest in a process of its own."""
        chosen = ["--cluster", cluster] if cluster else []
        return self.pytester.runpytest_subprocess(*BARE, *chosen, *map(str, words), timeout=120)

    def refused(self, *words: str | Path, cluster: str = "one") -> list[str]:
        """Run into a usage error; returns its lines. Nothing may be left behind by it."""
        result = self.run(*words, cluster=cluster)
        output = result.stdout.str() + result.stderr.str()
        assert result.ret == pytest.ExitCode.USAGE_ERROR, output
        assert "Traceback" not in output and "INTERNALERROR" not in output, output
        assert self.runs() == [] and not self.reports.exists()
        lines = [line.removeprefix("ERROR: ") for line in result.stderr.lines if line]
        return [line.replace(f"{self.path}/", "") for line in lines]

    def runs(self) -> list[Path]:
        """What lies in the shared directory."""
        return sorted(self.shared.iterdir()) if self.shared.is_dir() else []

    def published(self) -> list[Path]:
        """What lies in the report directory."""
        return sorted(self.reports.iterdir()) if self.reports.is_dir() else []

    @property
    def report(self) -> Path:
        return self.reports / "latest"

    def record(self) -> dict[str, Any]:
        """The newest run's report.json."""
        record: dict[str, Any] = json.loads((self.report / "report.json").read_text())
        return record

    def journal(self) -> list[dict[str, Any]]:
        """The newest run's journal."""
        lines = (self.report / "journal.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


def lines_with(result: pytest.RunResult, text: str) -> list[str]:
    return [line for line in result.stdout.lines if text in line]


def properties(path: Path) -> dict[str, dict[str, str]]:
    """JUnit case (class::name) -> its properties, and its outcome as `result`."""
    cases = {}
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        found = {one.attrib["name"]: one.attrib["value"] for one in case.iter("property")}
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        found["result"] = kinds.pop() if kinds else "passed"
        cases[f"{case.attrib['classname']}::{case.attrib['name']}"] = found
    return cases
