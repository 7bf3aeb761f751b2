"""A small suite on a small cluster, run as a user runs it, and what its runs leave behind.

Local phases run for real, through submitit and our launcher; only torchrun is a fake
(`fakes/torchrun`) unless a suite asks for the real one, because importing that takes seconds.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# An inner run in this process removes from sys.modules what it imported first, and yaml's C
# extension cannot be imported twice: everything that a run imports late is imported here.
import pytest_clustersmoke.cli
import pytest_clustersmoke.jobs.local_backend
import pytest_clustersmoke.jobs.slurm_backend
import pytest_clustersmoke.preflight
import pytest_clustersmoke.report.publication
import pytest_clustersmoke.report.terminal
import pytest_clustersmoke.session.job_session
import pytest_clustersmoke.session.plan
import pytest_clustersmoke.session.suite  # noqa: F401
from tests.support.load import Pressure
from tests.support.outcome import Outcome as Outcome
from tests.support.outcome import RunFiles
from tests.support.outcome import lines_with as lines_with
from tests.support.outcome import properties as properties
from tests.support.waiting import PATIENCE_S, Patience, Value, wait_for

# Plugins of the tests' own environment that cost an inner run seconds and add nothing to it.
BARE = ("-p", "no:hypothesispytest", "-p", "no:anyio", "-p", "no:cacheprovider")
# Prefixes of variables of an outer pytest, job or user, which inner runs must not see.
OUTER = ("PYTEST_", "SLURM_", "SBATCH_", "CLUSTERSMOKE_", "SUBMITIT_")
ROOT = Path(__file__).resolve().parents[2]
SMOKE_TESTS = ROOT / "smoke_tests"
FAKES = ROOT / "tests" / "fakes"
FAKE_TORCHRUN = FAKES / "torchrun"
TRAIN = FAKES / "train_fake.py"
# Rank programs that are broken on purpose, and one that only waits.
PROGRAMS = ROOT / "tests" / "faults" / "programs"
IDLE = PROGRAMS / "idle.py"
# The criterion of a phase that defines none.
DONE = "def test_all_done(self, phase):\n    assert phase.ranks_done == phase.world_size"
# Criteria of a class that inherits none, for a program that trains: they judge the proofs.
TRAINED = "\n".join(
    f"def test_{name}(self, phase): phase.check_{name}()"
    for name in ("gradients", "data", "reload")
)


class RunningPytest:
    """A pytest over a suite while it runs, as the leader of a process group of its own."""

    def __init__(
        self, suite: Suite, process: subprocess.Popen[bytes], stdout: Path, stderr: Path
    ) -> None:
        self.suite = suite
        self.process = process
        self._stdout, self._stderr = stdout, stderr
        self.pid = process.pid
        self._started = time.monotonic()

    def wait_for(self, description: str, look: Callable[[], Value | None]) -> Value:
        """Like `wait_for`, but fails at once if pytest ends first."""

        def look_while_running() -> Value | None:
            ended = self.process.poll() is not None
            value = look()
            assert value or not ended, f"pytest ended without {description}:\n{self.output()}"
            return value

        return wait_for(description, look_while_running)

    def wait_for_ranks(self, phase: str = "small", count: int = 1) -> None:
        """Wait until this many ranks of a phase have started."""
        events = f"*/phases/{phase}/ranks/*.jsonl"
        self.wait_for(
            f"{count} ranks of {phase}", lambda: len([*self.suite.shared.glob(events)]) >= count
        )

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        """Send a signal to pytest alone."""
        self.process.send_signal(number)

    def output(self) -> str:
        """Everything printed so far."""
        return "\n".join(_lines(self._stdout) + _lines(self._stderr))

    def wait(self, patience_s: float = PATIENCE_S) -> Outcome:
        """Wait for pytest to end."""
        patience, status = Patience(patience_s), None
        while status is None:
            try:
                status = self.process.wait(1.0)
            except subprocess.TimeoutExpired:
                if patience.is_over:
                    raise
        took = time.monotonic() - self._started
        print(self.output())
        result = pytest.RunResult(status, _lines(self._stdout), _lines(self._stderr), took)
        return Outcome(result, self.suite, self.suite.pressure)


class Suite(RunFiles):
    """A directory with a cluster.yaml and phases, in which pytest is run as a user runs it.

    cluster.yaml has one cluster, with `profile`, which a test may change until it runs pytest.
    Every process that a run starts has the variable `marker`.
    """

    def __init__(
        self,
        path: Path,
        marker: str,
        *,
        real_torchrun: bool = False,
        pytester: pytest.Pytester | None = None,
    ) -> None:
        super().__init__(path)
        self.marker, self.pytester = marker, pytester
        self.file = path / "cluster.yaml"
        self.profile: dict[str, Any] = {}
        self._name = self._written = ""
        self._real_torchrun = real_torchrun
        self._slurm_variables: dict[str, str] = {}
        self._processes = 0
        self._outer = outer_variables()  # a test's later changes of the environment count
        self.pressure = Pressure()  # while the newest process of `started` ran
        # Otherwise a directory above may become pytest's root directory.
        (path / "pytest.ini").write_text("[pytest]\n")
        self.cluster()

    # The files of the suite

    def cluster(self, text: str = "", name: str = "one", **keys: Any) -> None:
        """Rewrite cluster.yaml: `text`, or one local profile with the usual keys and `keys`."""
        variables: dict[str, Any] = {"PYTHONPATH": str(SMOKE_TESTS), "OMP_NUM_THREADS": 1}
        own: dict[str, Any] = {"phases": {}}
        if not self._real_torchrun:
            variables = {"PYTHONPATH": str(FAKE_TORCHRUN)}
            # At least one phase must be listed, even if a test adds none.
            own = {"limits": {"poll_s": 0.2}, "phases": {"small": None}}
        self._name = name
        self.profile = {
            "backend": "local",
            "shared_dir": str(self.shared),
            "peaks": "never",
            "hardware": {"gpu": "any", "device": "cpu", "gpus_per_node": 2},
            "env": {"common": {"set": {**variables, self.marker: "1"}}},
            **own,
            **keys,
        }
        self._write_profile()
        if text:
            self.file.write_text(textwrap.dedent(text))

    def use_slurm(self, slurm_conf: Path) -> None:
        """Make the cluster the Slurm of this slurm.conf."""
        self._slurm_variables = {"SLURM_CONF": str(slurm_conf)}
        self.profile |= {
            "backend": "slurm",
            "hardware": {"gpu": "fake", "device": "cpu", "gpus_per_node": 2},
            "slurm": {"partition": "main", "cpus_per_task": 2, "time": 10},
            "limits": {"max_jobs": 8, "poll_s": 1},
        }

    def phase(
        self,
        name: str = "small",
        body: str = "",
        base: str = "",
        file: str = "",
        imports: str = "",
        **marker: Any,
    ) -> Path:
        """Add a phase and list it in the profile.

        `body` is the class's own criteria, in place of `DONE`; `base` are its base classes, and
        `imports` is the line that imports them, if they are not the plugin's.
        """
        script = str(marker.pop("script", TRAIN))
        words = ", ".join(f"{key}={value!r}" for key, value in {"script": script, **marker}.items())
        title = "".join(word.capitalize() for word in name.split("_"))
        lines = [
            "import pytest",
            "from pytest_clustersmoke.criteria import *",
            *filter(None, [imports]),
            f'@pytest.mark.phase("{name}", {words})',
            f"class Test{title}{f'({base})' if base else ''}:",
            textwrap.indent(textwrap.dedent(body or DONE), "    "),
        ]
        path = self.path / (file or f"test_{name}.py")
        path.write_text("\n".join(lines) + "\n")
        self.profile["phases"].setdefault(name, None)
        self._follow_profile()
        return path

    def _write_profile(self) -> None:
        # JSON is YAML; with one key per line, the line numbers in messages mean something.
        content = {"clusters": {self._name: self.profile}}
        self._written = json.dumps(content, indent=1)
        self.file.write_text(self._written)

    def _follow_profile(self) -> None:
        """Write the profile if it changed, unless the test wrote a cluster.yaml of its own."""
        if self.file.is_file() and self.file.read_bytes() == self._written.encode():
            self._write_profile()

    # Running pytest

    def run(self, *words: str | Path, cluster: str = "one") -> Outcome:
        """Run pytest in this process."""
        assert self.pytester is not None, "only the fixture `suite` runs pytest in this process"
        self._follow_profile()
        return Outcome(self.pytester.runpytest_inprocess(*_options(words, cluster)), self)

    def run_apart(
        self, *words: str | Path, cluster: str = "one", patience_s: float = PATIENCE_S
    ) -> Outcome:
        """Run pytest in a process of its own, and wait for its end."""
        with self.started(*words, cluster=cluster) as running:
            return running.wait(patience_s)

    @contextmanager
    def started(
        self,
        *words: str | Path,
        cluster: str = "one",
        inside: Sequence[str] = (),
        **variables: str,
    ) -> Iterator[RunningPytest]:
        """Start pytest in a process of its own, by the command `inside` if there is one, with more
        variables; stop it on exit."""
        self._follow_profile()
        self._processes += 1
        out, err = (self.path / f"pytest{self._processes}.{kind}" for kind in ("out", "err"))
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                [*inside, *pytest_command(*words, cluster=cluster)],
                cwd=self.path,
                env={**self.environ(), self.marker: "1", **variables},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        with Pressure() as self.pressure:
            try:
                yield RunningPytest(self, process, out, err)
            finally:
                if process.poll() is None:
                    process.terminate()
                    try:
                        process.wait(PATIENCE_S)
                    except subprocess.TimeoutExpired:
                        os.killpg(process.pid, signal.SIGKILL)
                        process.wait()

    def refused(self, *words: str | Path, cluster: str = "one") -> list[str]:
        """Run pytest, which must end in a usage error and leave nothing; return its messages."""
        outcome = self.run(*words, cluster=cluster)
        assert outcome.ret == pytest.ExitCode.USAGE_ERROR, outcome.output
        assert "Traceback" not in outcome.output and "INTERNALERROR" not in outcome.output
        assert self.runs() == [] and not self.reports.exists()
        lines = [line.removeprefix("ERROR: ") for line in outcome.stderr.lines if line]
        return [line.replace(f"{self.path}/", "") for line in lines]

    def environ(self) -> dict[str, str]:
        """A user's environment, with this suite's Slurm and no variable of an outer run."""
        own = {name: value for name, value in os.environ.items() if name not in self._outer}
        return {**own, **self._slurm_variables}

    def slurm(self, *command: str) -> str:
        """Run a command of this suite's Slurm; return what it prints."""
        answer = subprocess.run(
            command,
            env={**os.environ, **self._slurm_variables},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert answer.returncode == 0, (command, answer.stderr)
        return answer.stdout

    def check_queue(self, outcome: Outcome) -> None:
        """Slurm has no job but those of the run, which it may end a moment later than their results
        were there, and then none."""
        squeue = ("squeue", "-h", "-r", "-t", "PENDING,RUNNING", "-o", "%i")
        own = {event["job_id"] for event in outcome.events("submitted")}
        assert {*self.slurm(*squeue).split()} <= own
        wait_for("the end of the run's jobs", lambda: not self.slurm(*squeue).split())


def pytest_command(*words: str | Path, cluster: str = "one") -> list[str]:
    """The command that runs pytest on a cluster, in a process of its own."""
    return [sys.executable, "-m", "pytest", *_options(words, cluster)]


def outer_variables() -> list[str]:
    return [name for name in os.environ if name.startswith(OUTER)]


def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines()


def _options(words: Sequence[str | Path], cluster: str) -> list[str]:
    chosen = ["--cluster", cluster] if cluster else []
    return [*BARE, *chosen, *map(str, words)]
