"""How soon pytest sees what happens to its jobs, and what it adds to a run itself.

    python -m benchmarks.latency                          on labs without and with accounting
    python -m benchmarks.latency --only death --trials 4

end     a program's last line to its criterion's result                     bar 2 s (p95 of 40)
death   the kill of a rank or of its torchrun to the failed criterion       bar 5 s (p95 of 40)
node    slurmd, slurmstepd or all that runs on a node is killed: from the moment when Slurm itself
        says that the job does not run any more to the failed criterion     bar 2 s (p95 of 10)
wide    the same under jobs of two nodes, of which one is struck; to the line that names it, if it
        comes before, since the other still writes what it saw              bar 2 s (p95 of 10)
start   pytest's start to the first submission, without the calls of Slurm's commands, less
        `pytest --collect-only -p no:clustersmoke` of the same file         bar 0.7 s
exit    the end of the last job, as pytest saw it, to pytest's exit, without writing the report
                                                                            bar 0.5 s

`start` and `exit` are pytest's own time (`benchmarks/own_time.py`), which other work on the machine
does not blur.

The exit status is 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.own_time import CONFTEST, await_exit
from benchmarks.scheduler_calls import COMMANDS, PROGRAM, describe_machine
from pytest_clustersmoke import lab
from pytest_clustersmoke.evidence.run_directory import PhaseDir, RunDir
from pytest_clustersmoke.evidence.telemetry import read_events
from tests.support.strikes import StruckLab
from tests.support.waiting import wait_for, wait_for_event

BARS_S = {"end": 2.0, "death": 5.0, "node": 2.0, "wide": 2.0, "start": 0.7, "exit": 0.5}
TRIALS = {"end": 40, "death": 40, "node": 10, "wide": 10, "start": 5, "exit": 5}
SMALL_RUN = 8  # phases of a run whose start and exit are measured
LOOK_S = 0.1
# Plugins of other tests may be installed; hypothesis loads all of itself as pytest ends.
PYTEST = (
    *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider"),
    *("-p", "no:hypothesispytest", "-p", "no:anyio"),
)
HEAD = """| accounting | what | trials | median, s | p95, s | worst, s | bar, s |
|---|---|---|---|---|---|---|"""
# Writes when each call of a Slurm command began and ended.
TIMER = """#!/bin/bash
begun=$EPOCHREALTIME
{real} "$@"
status=$?
[ -n "$SLURM_JOB_ID" ] || echo "$begun $EPOCHREALTIME" >> {calls}
exit $status
"""
PHASE = """
@pytest.mark.phase("{name}", script="{script}", launcher="{how}", nodes={nodes},
                   args={{"seconds": {seconds}}})
class Test{title}:
    def test_all_done(self, phase):
        assert phase.ranks_done == {nodes}
"""


@dataclass
class Bench:
    """A suite in a folder of its own, and pytest over it."""

    folder: Path
    running: lab.Lab
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    environ: dict[str, str] = field(default_factory=dict)

    def write(
        self, seconds: Sequence[float], launcher: str = "none", cap: int = 1, nodes: int = 1
    ) -> list[str]:
        """Write phases that sleep for so long, at most `cap` at a time; return their names."""
        names = [f"p{number}" for number in range(len(seconds))]
        profile = {
            "backend": "slurm",
            "shared_dir": str(self.folder / "shared"),
            "hardware": {"gpu": "none", "device": "cpu", "gpus_per_node": 1},
            "slurm": {"partition": "main", "cpus_per_task": 1, "time": 10},
            "limits": {"max_jobs": cap, "poll_s": 1},
            "phases": dict.fromkeys(names),
        }
        classes = [
            PHASE.format(
                name=name,
                title=name.title(),
                script=PROGRAM,
                how=launcher,
                nodes=nodes,
                seconds=long,
            )
            for name, long in zip(names, seconds, strict=True)
        ]
        (self.folder / "cluster.yaml").write_text(json.dumps({"clusters": {"bench": profile}}))
        (self.folder / "pytest.ini").write_text("[pytest]\n")
        (self.folder / "conftest.py").write_text(CONFTEST)
        (self.folder / "test_bench.py").write_text("import pytest\n" + "".join(classes))
        return names

    def start(self) -> None:
        self.environ = self._time_calls()
        with (self.folder / "output").open("wb") as output:
            self.began = time.time()
            self.process = subprocess.Popen(
                [*PYTEST, "--cluster", "bench"],
                cwd=self.folder,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def end(self, *statuses: int) -> float:
        """Wait for pytest's end; return its own time of it. Any other exit status ends the
        benchmark."""
        assert self.process is not None
        ended, status = await_exit(self.process), self.process.wait()
        if status not in statuses:
            sys.exit(f"pytest ended with status {status}:\n{(self.folder / 'output').read_text()}")
        return ended

    def marks(self, name: str) -> list[tuple[float, float]]:
        """When pytest came there, and for how long it had waited for a core by then."""
        lines = map(json.loads, (self.folder / "marks").read_text().splitlines())
        return [(at, waited_s) for mark, at, waited_s in lines if mark == name]

    def mark(self, name: str) -> float:
        """Pytest's own time when it came there last."""
        at, waited_s = self.marks(name)[-1]
        return at - waited_s

    @property
    def run(self) -> RunDir:
        (about,) = wait_for("the run", lambda: [*self.folder.glob("shared/*/run.json")])
        return RunDir(about.parent)

    def phase(self, name: str) -> PhaseDir:
        return self.run.phase(name)

    def event(self, event: str, phase: str = "") -> dict[str, Any]:
        """The first line of this name in the journal, once it is there."""

        def find() -> dict[str, Any] | None:
            lines = read_events(self.run.journal).named(event)
            return next((line for line in lines if phase in ("", line.get("phase"))), None)

        return wait_for(f"{event} of {phase or 'the run'}", find)

    def check_named(self, name: str) -> None:
        """The report names what was killed, and where."""
        record = json.loads(next(self.folder.glob("reports/latest/report.json")).read_text())
        (phase,) = [phase for phase in record["phases"] if phase["phase"] == name]
        found = phase["findings"]
        if not found or not (found[0]["hosts"] or found[0]["ranks"]):
            sys.exit(
                f"{name} ended as {phase['outcome']} ({phase['reason']}), and nothing is named"
            )

    def _time_calls(self) -> dict[str, str]:
        tools, calls = self.folder / "bin", self.folder / "calls"
        tools.mkdir(exist_ok=True)
        for name in COMMANDS:
            if real := shutil.which(name):
                (tools / name).write_text(TIMER.format(real=real, calls=calls))
                (tools / name).chmod(0o755)
        path = f"{tools}{os.pathsep}{os.environ['PATH']}"
        at_once = {"PYTHONUNBUFFERED": "1"}  # what is printed is in the file
        return {**os.environ, **at_once, "PATH": path, "SLURM_CONF": str(self.running.slurm_conf)}

    def calls_s(self, until: float) -> float:
        """How long Slurm's commands took before that time; those at the same time count once."""
        lines = (self.folder / "calls").read_text().splitlines()
        spans = sorted((float(a), float(b)) for a, b in map(str.split, lines))
        total, reached = 0.0, 0.0
        for begun, ended in spans:
            if begun < until:
                total += max(0.0, min(ended, until) - max(begun, reached))
                reached = max(reached, ended)
        return total


@contextmanager
def make_bench(running: lab.Lab) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(dir=Path.home(), ignore_cleanup_errors=True) as folder:
        bench = Bench(Path(folder), running)
        try:
            yield bench
        finally:
            if bench.process is not None and bench.process.poll() is None:
                bench.process.terminate()
                bench.process.wait()


def measure_end(struck: StruckLab, trials: int) -> list[float]:
    drawn = random.Random(0)  # not in step with the polls
    with make_bench(struck.lab) as bench:
        names = bench.write([round(drawn.uniform(1, 2), 2) for _ in range(trials)])
        bench.start()
        bench.end(0)
        return [
            bench.event("judged", name)["time"]
            - wait_for_event(bench.phase(name).rank_events(0), "done")["time"]
            for name in names
        ]


def measure_death(struck: StruckLab, trials: int) -> list[float]:
    """Ranks and their launchers in turns, each in a job of its own."""
    with make_bench(struck.lab) as bench:
        names, seen = bench.write([600.0] * trials, launcher="torchrun"), []
        bench.start()
        for number, name in enumerate(names):
            phase = bench.phase(name)
            wait_for_event(phase.rank_events(0), "step")
            path, event = phase.rank_events(0), "start"
            if number % 2:
                path, event = phase.node_events(0), "launcher_start"
            pid = int(wait_for_event(path, event)["pid"])
            killed = time.time()
            os.kill(pid, signal.SIGKILL)
            seen.append(bench.event("judged", name)["time"] - killed)
        bench.end(1)
        for name in names:
            bench.check_named(name)
        return seen


def measure_node(struck: StruckLab, trials: int, nodes: int = 1) -> list[float]:
    """slurmd, slurmstepd and a whole node in turns, each under a job of its own."""
    with make_bench(struck.lab) as bench:
        names, seen = bench.write([600.0] * trials, nodes=nodes), []
        bench.start()
        for number, name in enumerate(names):
            wait_for_event(bench.phase(name).rank_events(0), "step")
            job = str(bench.event("submitted", name)["job_id"])
            claim = wait_for_event(bench.phase(name).node_events(0), "claim")
            kill_part(struck, number, name, str(claim["node"]))
            said = wait_for("Slurm to say so", lambda job=job: see_end(bench, job))  # type: ignore[misc]
            named = wait_for(f"the failed node of {name}", partial(see_name, bench, name))
            seen.append(max(0.0, min(named, bench.event("judged", name)["time"]) - said))
            struck.restart(at_once=True)
            wait_for("all nodes", lambda: bring_nodes_back(bench))
        bench.end(1, 6)
        for name in names:
            bench.check_named(name)
        return seen


def kill_part(struck: StruckLab, number: int, phase: str, node: str) -> None:
    killed = (
        lambda: struck.kill_slurmd(node),
        lambda: struck.kill_step_of(phase, node),
        lambda: struck.kill_node(node),
    )[number % 3]()
    if not killed:
        sys.exit(f"nothing of {phase} on {node} could be killed")


def see_end(bench: Bench, job: str) -> float:
    """The time if Slurm does not show the job as running; otherwise 0."""
    shown = ask(bench, "squeue", "-h", "-j", job, "-o", "%T").split()
    if "RUNNING" not in shown:
        return time.time()
    time.sleep(LOOK_S)
    return 0.0


def see_name(bench: Bench, phase: str) -> float:
    """The time if pytest has named the node of a phase that failed, or judged it; otherwise 0."""
    lines = (bench.folder / "output").read_text().splitlines()
    named = any(line.startswith(f"  {phase}: node ") and "failed" in line for line in lines)
    judged = read_events(bench.run.journal).named("judged")
    return time.time() if named or any(each["phase"] == phase for each in judged) else 0.0


def bring_nodes_back(bench: Bench) -> bool:
    back = True
    for line in ask(bench, "sinfo", "-N", "-h", "-p", "main", "-o", "%N %T").splitlines():
        name, state = line.split()
        if state.strip("*") not in ("idle", "mixed", "allocated", "completing"):
            back = False
            ask(bench, "scontrol", "update", f"nodename={name}", "state=resume")
    time.sleep(LOOK_S)
    return back


def ask(bench: Bench, *command: str) -> str:
    """What a command of Slurm's prints; nothing if it fails, as for a job that it has forgotten."""
    environ = {**os.environ, "SLURM_CONF": str(bench.running.slurm_conf)}
    return subprocess.run(command, env=environ, capture_output=True, text=True).stdout


def measure_whole(struck: StruckLab, trials: int) -> dict[str, list[float]]:
    """The start and the exit of small runs."""
    found: dict[str, list[float]] = {"start": [], "exit": []}
    for _ in range(trials):
        with make_bench(struck.lab) as bench:
            names = bench.write([0.2] * SMALL_RUN, cap=SMALL_RUN)
            bare_s = collect_bare(bench)
            bench.start()
            exited = bench.end(0)
            assert len(bench.marks("ended")) == len(names)
            # The main thread comes to the start of the watch, which submits in its own thread.
            (intent, waited_s), *_ = bench.marks("intent")
            waited_s += bench.marks("watch")[0][1]
            calls_s = bench.calls_s(intent)
            found["start"].append(intent - bench.began - waited_s - calls_s - bare_s)
            report_s = bench.mark("reported") - bench.mark("report")
            found["exit"].append(exited - bench.mark("ended") - report_s)
    return found


def collect_bare(bench: Bench) -> float:
    """How long pytest takes to collect the same file without the plugin, by its own time."""
    begun = time.time()
    process = subprocess.Popen(
        [*PYTEST, "-p", "no:clustersmoke", "--collect-only"],
        cwd=bench.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    ended, status = await_exit(process), process.wait()
    if status:
        sys.exit(f"pytest --collect-only ended with status {status}")
    return ended - begun


def show(accounting: bool, kind: str, values: Sequence[float]) -> bool:
    """Print a row of the table; return whether the bar is met."""
    ordered = sorted(values)
    p95 = ordered[math.ceil(0.95 * len(ordered)) - 1]
    judged = median(ordered) if kind in ("start", "exit") else p95
    cells = (
        "with" if accounting else "without",
        kind,
        len(ordered),
        f"{median(ordered):.2f}",
        f"{p95:.2f}",
        f"{ordered[-1]:.2f}",
        f"{BARS_S[kind]:g}",
    )
    print(f"| {' | '.join(map(str, cells))} |", flush=True)
    return judged <= BARS_S[kind]


MEASURES: dict[str, Callable[[StruckLab, int], list[float]]] = {
    "end": measure_end,
    "death": measure_death,
    "node": measure_node,
    "wide": partial(measure_node, nodes=2),
}


def measure_lab(accounting: bool, kinds: Sequence[str], trials: int | None) -> bool:
    """Print the rows of a lab; return whether all bars are met."""
    name = f"latency-{os.getpid()}"
    running = lab.start_lab(lab.LabSettings(name=name, accounting=accounting, gpus_per_node=0))
    met = True
    try:
        os.environ["SLURM_CONF"] = str(running.slurm_conf)
        print(f"{describe_machine()}\n\n{HEAD}", flush=True)
        struck = StruckLab(running)
        for kind in [kind for kind in kinds if kind in MEASURES]:
            met &= show(accounting, kind, MEASURES[kind](struck, trials or TRIALS[kind]))
        if {"start", "exit"} & {*kinds}:
            found = measure_whole(struck, trials or TRIALS["start"])
            for kind in [kind for kind in found if kind in kinds]:
                met &= show(accounting, kind, found[kind])
    finally:
        lab.stop_lab(name)
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", nargs="*", choices=BARS_S, default=list(BARS_S))
    parser.add_argument("--trials", type=int, help="of each, in place of the numbers above")
    parser.add_argument("--accounting", choices=("without", "with", "both"), default="both")
    args = parser.parse_args()
    met = True
    for accounting in (False, True):
        if args.accounting == ("without" if accounting else "with"):
            continue
        if reason := lab.find_obstacle(accounting):
            print(f"left out: {reason}", flush=True)
            continue
        met &= measure_lab(accounting, args.only, args.trials)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
