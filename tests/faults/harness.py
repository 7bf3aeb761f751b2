"""A small suite in a directory of its own, and a real pytest over it as a process to be watched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pytest_clustersmoke.evidence.phase_result import PhaseResult, collect_phase
from pytest_clustersmoke.evidence.run_directory import RunDir
from pytest_clustersmoke.evidence.telemetry import read_events

PROGRAMS = Path(__file__).parent / "programs"
SMOKE_TESTS = Path(__file__).resolve().parents[2] / "smoke_tests"
# For a loaded machine: what is measured is measured from the evidence's own clocks.
PATIENCE_S = 240.0
POLL_S = 0.05
# Sizes that train in no time; the loss still falls by more than the criterion asks for.
SMALL = {"hidden_size": 32, "batch_size": 8, "steps": 8, "learning_rate": 0.01}

# The one criterion of a phase that trains nothing.
DONE = "def test_done(self, phase): assert phase.ranks_done == phase.world_size"
# Plugins of the tests' environment that cost an inner run time and say nothing of ours.
BARE = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:anyio")

Found = TypeVar("Found")


def wait_for(what: str, look: Callable[[], Found | None], patience_s: float = PATIENCE_S) -> Found:
    """What `look` gives once it gives anything; fails naming `what` when patience ends."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(POLL_S)
    raise AssertionError(f"waited {patience_s:g} s for {what}")


@dataclass(frozen=True)
class Outcome:
    """A pytest that has ended, and all that its run left behind."""

    status: int
    output: str
    suite: Suite

    @property
    def report(self) -> dict[str, Any]:
        path = self.suite.path / "reports" / "latest" / "report.json"
        assert path.exists(), self.output
        record: dict[str, Any] = json.loads(path.read_text())
        return record

    def phase(self, name: str) -> dict[str, Any]:
        """The phase's part of report.json."""
        found = {one["phase"]: one for one in self.report["phases"]}
        return dict(found[name])

    def failures(self, name: str) -> str:
        """What the phase's failed criteria said, as junit.xml has it."""
        junit = ElementTree.parse(self.suite.path / "reports" / "latest" / "junit.xml")
        found = []
        for case in junit.getroot().iter("testcase"):
            phases = [
                one.get("value") for one in case.iter("property") if one.get("name") == "phase"
            ]
            if phases == [name]:
                found += [one.get("message", "") for one in case.iter("failure")]
        return "\n".join(found)

    def result(self, name: str) -> PhaseResult:
        """The phase's evidence, as a criterion would see it."""
        return collect_phase(self.suite.run_dir().phase(name))

    def journal(self, event: str) -> list[dict[str, Any]]:
        return self.suite.journal(event)

    def finding(self, name: str) -> dict[str, Any]:
        """The phase's primary finding."""
        findings = self.phase(name)["findings"]
        assert findings and findings[0]["primary"], (findings, self.output)
        return dict(findings[0])


class Suite:
    """A directory with a cluster.yaml and phases, in which pytest is run as a user would."""

    def __init__(self, path: Path, mark: str) -> None:
        self.path, self.mark = path, mark
        self.profile: dict[str, Any] = {
            "backend": "local",
            "shared_dir": str(path / "shared"),
            "hardware": {"gpu": "any", "device": "cpu", "gpus_per_node": 2},
            "env": {"common": {"set": {"PYTHONPATH": str(SMOKE_TESTS), "OMP_NUM_THREADS": 1}}},
            "phases": {},
        }
        self._classes: list[str] = []
        self._slurm: dict[str, str] = {}

    def use_slurm(self, slurm_conf: Path) -> None:
        """Have the suite's cluster be this Slurm, as the profile `lab` has it."""
        self._slurm = {"SLURM_CONF": str(slurm_conf)}
        self.profile |= {
            "backend": "slurm",
            "hardware": {"gpu": "fake", "device": "cpu", "gpus_per_node": 2},
            "slurm": {"partition": "main", "cpus_per_task": 2, "time": 10},
            "limits": {"max_jobs": 8, "poll_s": 1},
        }

    def slurm(self, *command: str) -> str:
        """What a command of that Slurm says."""
        answer = subprocess.run(
            command, env={**os.environ, **self._slurm}, capture_output=True, text=True, timeout=60
        )
        assert answer.returncode == 0, (command, answer.stderr)
        return answer.stdout

    def phase(self, name: str, program: str | Path, body: str = "", **marker: Any) -> None:
        """Add a phase; `body` is the class's one more criterion, in place of all of `Trained`."""
        script = PROGRAMS / program
        words = ", ".join(f"{key}={value!r}" for key, value in marker.items())
        self._classes.append(
            f'@pytest.mark.phase("{name}", script="{script}", {words})\n'
            f"class Test{name.title().replace('_', '')}{'' if body else '(Trained)'}:\n"
            f"    {body or 'pass'}\n"
        )
        self.profile["phases"].setdefault(name, None)

    def write(self) -> None:
        clusters = {"clusters": {"here": self.profile}}  # JSON is YAML
        (self.path / "cluster.yaml").write_text(json.dumps(clusters, indent=1))
        (self.path / "pytest.ini").write_text("[pytest]\n")
        head = "import pytest\nfrom pytest_clustersmoke.criteria import Trained\n"
        (self.path / "test_phases.py").write_text("\n\n".join([head, *self._classes]))

    @contextmanager
    def started(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """pytest over this suite, in a process group of its own, which is gone at the end."""
        self.write()
        command = [sys.executable, "-m", "pytest", *BARE, "--cluster", "here"]
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        with (self.path / "output.txt").open("w") as output:
            process = subprocess.Popen(
                [*command, *words],
                cwd=self.path,
                env={**kept, **self._slurm, self.mark: "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    def run(self, *words: str, patience_s: float = PATIENCE_S) -> Outcome:
        """Run pytest over this suite to its end."""
        with self.started(*words) as process:
            process.wait(patience_s)
        return self.ended(process)

    def ended(self, process: subprocess.Popen[str]) -> Outcome:
        assert process.returncode is not None
        return Outcome(process.returncode, (self.path / "output.txt").read_text(), self)

    # A run while it goes on

    def run_dir(self) -> RunDir:
        """The directory of the one run there has been."""

        def look() -> Path | None:
            runs = list((self.path / "shared").glob("*/run.json"))
            assert len(runs) < 2, runs
            return runs[0].parent if runs else None

        return RunDir(wait_for("the run's directory", look))

    @staticmethod
    def now() -> float:
        """The clock by which events are stamped."""
        return time.time()

    def journal(self, event: str) -> list[dict[str, Any]]:
        return list(read_events(self.run_dir().journal).named(event))

    def wait_event(self, path: Path, event: str, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """The first event of this name in a file of events, once it is there."""

        def look() -> dict[str, Any] | None:
            return next(read_events(path).named(event), None)

        return wait_for(f"event `{event}` in {path}", look, patience_s)
