"""How time, memory and calls grow with ranks, phases and past runs.

    python -m benchmarks.growth ranks       evidence of 64 to 4,096 ranks, made, read and reported
    python -m benchmarks.growth phases      a run of 10, 100 and 1,000 phases on a scheduler that
                                            ends every job at once
    python -m benchmarks.growth history     1,000 to 100,000 past runs of eight phases
    python -m benchmarks.growth             all of them

Each size is measured in a process of its own: its CPU time without imports and without making what
is read, its largest memory, and its calls: files that are opened (ranks), calls of the scheduler
(phases), statements of SQL (history). The exponent is that of the power of the size that fits time
best: 1 is linear, 2 is quadratic. Time that grows with more than MOST ends this with status 1.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import linear_regression

from benchmarks.overhead import ROOT
from pytest_clustersmoke.cli import main as clustersmoke
from pytest_clustersmoke.evidence.history import history_database
from pytest_clustersmoke.evidence.locks import describe_run
from pytest_clustersmoke.evidence.phase_result import collect_phase
from pytest_clustersmoke.evidence.run_counts import RunTally
from pytest_clustersmoke.evidence.run_directory import (
    RunDir,
    job_name,
    read_json,
    write_json,
)
from pytest_clustersmoke.evidence.run_ownership import create_run
from pytest_clustersmoke.evidence.scheduler_record import JobState
from pytest_clustersmoke.evidence.telemetry import SCHEMA, EventWriter
from pytest_clustersmoke.jobs.backend import Submission
from pytest_clustersmoke.jobs.outcome import judge_job
from pytest_clustersmoke.report.page import page
from pytest_clustersmoke.report.record_builder import FinishedRun, make_record
from pytest_clustersmoke.session.job_session import JobSession
from tests.fakes.backend import FakeBackend
from tests.support import records
from tests.support.evidence import Evidence, make_phase, make_profile

SIZES = {
    "ranks": (64, 256, 1024, 4096),
    "phases": (10, 100, 1000),
    "history": (1000, 10_000, 100_000),
}
# A little more than linear: sorting, and caches that are too small for the larger sizes.
MOST = 1.2
PER_NODE, STEPS = 8, 100
PHASES_OF_A_RUN, NODES_OF_A_RUN = 8, 4
NOW = 1_795_000_000.0


class Meter:
    """CPU seconds and calls of what runs in `measuring`."""

    def __init__(self) -> None:
        self.seconds, self.calls, self._counts = 0.0, 0, False
        sys.addaudithook(self._note_open)

    def _note_open(self, event: str, _arguments: object) -> None:
        if event == "open":
            self.count()

    def count(self, _what: object = None) -> None:
        self.calls += self._counts

    @contextmanager
    def measuring(self, counts: bool = True) -> Iterator[None]:
        self._counts, before = counts, time.process_time()
        yield
        self._counts, self.seconds = False, self.seconds + time.process_time() - before


def make_evidence(folder: Path, ranks: int) -> None:
    """Write what a phase of so many ranks leaves that trained on GPUs."""
    evidence = Evidence(folder / "run" / "phases", max(1, ranks // PER_NODE), PER_NODE)
    steps = [0.1 + index % 7 / 1000 for index in range(STEPS)]
    parts = {"backward": {"seconds": steps[:12], "cpu_seconds": steps[:12]}}
    for rank in range(ranks):
        node, local = divmod(rank, PER_NODE)
        names = {"rank": rank, "node_rank": node, "local_rank": local, "node": f"n{node}"}
        start = {**names, "host": f"n{node}", "pid": 1000 + rank, "device": f"cuda:{local}"}
        start |= {"device_name": "NVIDIA H100", "gpu_uuid": f"GPU-{rank:08x}"}
        evidence.rank(
            rank,
            ("start", start),
            ("group", {"backend": "nccl", "world_size": ranks}),
            ("step_times", {"seconds": steps, "local_seconds": steps, "warmup": 2}),
            ("own_steps", {"parts": parts, "parameters": 1000}),
            ("metrics", {"values": {"steps_per_s": 10.0, "peak_memory_gib": 9.0}}),
            ("losses", {"mean": steps}),
            ("step", {"step": STEPS, "steps": STEPS, "steps_per_s": 10.0}),
            ("done", {"seconds": 1.0}),
        )
    for node in range(evidence.nodes):
        evidence.node(node, ok=True, started=100.0, ended=110.0, launcher_s=9.0)


def measure_ranks(folder: Path, ranks: int, meter: Meter) -> None:
    """Read the evidence of a phase, judge its ranks, and render the report."""
    make_evidence(folder, ranks)
    about = describe_run(make_profile(folder), "run")
    run = RunDir(folder / "run")
    with meter.measuring():
        result = collect_phase(run.phase("small"))
        assert judge_job(result, None).outcome == "passed" and result.world_size == ranks
        tally = RunTally()
        tally.phase("small").end("passed")
        finished = FinishedRun(run, folder, about, tally, results={"small": result})
        page(make_record(finished))


def measure_phases(folder: Path, phases: int, meter: Meter) -> None:
    """Submit, watch, judge and end so many phases."""
    names = [f"phase{number}" for number in range(phases)]
    profile = make_profile(folder, phases=dict.fromkeys(names), limits={"max_jobs": 20})
    made = [
        make_phase(profile, name, args={"shape": number if number % 2 else 0})
        for number, name in enumerate(names)
    ]
    backend = InstantBackend()
    with meter.measuring(counts=False):
        session = JobSession(create_run(folder, "run"), profile, made, backend)
        session.start()
        for name in names:
            session.wait(name, lambda _progress: None)
        session.close()
    assert all(judged.outcome == "passed" for judged in session.outcomes.values())
    in_arrays = sum(len(names) for _, *names in backend.named("array"))
    meter.calls = len(backend.calls) - in_arrays  # the fake submits the tasks of an array


class InstantBackend(FakeBackend):
    """A scheduler whose jobs have succeeded when they are first asked for. Every other phase asks
    for what no other one does, so it is a job of its own, and no task of an array."""

    def script(self, job: Submission) -> str:
        return str(job.phase.args["shape"].value)

    def _accept(self, job: Submission) -> str:
        name, directory = super()._accept(job), job.directory
        directory.claim.touch()
        writer = EventWriter(directory.rank_events(0))
        of_job = job_name(read_json(directory.spec) or {})
        writer.write("start", schema=SCHEMA, job=of_job, rank=0, node_rank=0)
        writer.write("done", seconds=1.0)
        writer.close()
        times = {"started": NOW, "ended": NOW + 1, "launcher_s": 1.0}
        write_json(directory.node_result(0), {"ok": True, "node": "n0", **times})
        self.jobs[name] = JobState("ended", "COMPLETED")
        return name


def make_history(folder: Path, runs: int) -> None:
    """Insert so many runs of eight phases with two metrics each."""
    days = range(runs)
    rest_of_run = ("FIT", "", "", 0, "", "0", "any", "cpu", 1, "")
    counts = (1, 0.0, 1.0, 1, 0, 0, 0)
    rest_of_phase = (1, 1, "passed", "", "", "7", *counts, "gloo", "[]", "{}", "{}")
    with history_database.open_for_writing(folder) as connection:
        records.insert_rows(connection, "setups", [(1, "h", "s", "", "", "", "", "")])
        records.insert_rows(
            connection,
            "runs",
            (
                (number, _run_id(number), "made", "local", NOW + number, NOW + number, *rest_of_run)
                for number in days
            ),
        )
        records.insert_rows(
            connection,
            "phases",
            (
                (
                    *(number * PHASES_OF_A_RUN + phase, number, "made", f"phase{phase}"),
                    *(NOW + number, *rest_of_phase),
                )
                for number in days
                for phase in range(PHASES_OF_A_RUN)
            ),
        )
        records.insert_rows(
            connection,
            "metrics",
            (
                (row, name, 10 + row % 7 / 100, unit, 1)
                for row in range(runs * PHASES_OF_A_RUN)
                for name, unit in (("samples_per_s", "samples/s"), ("steps_per_s", "steps/s"))
            ),
        )
        nodes = range(NODES_OF_A_RUN)
        records.insert_rows(connection, "nodes", ((node, "made", f"node{node}") for node in nodes))
        records.insert_rows(connection, "boots", ((node, node, "b", "{}") for node in nodes))
        records.insert_rows(
            connection,
            "node_observations",
            (
                (number, "phase0", node, NOW + number, node, "good", 0, "", "")
                for number in days
                for node in nodes
            ),
        )


def _run_id(number: int) -> str:
    return f"{20200101 + number // 100_000:08d}-{number % 100_000:06d}-{number:06x}"


def measure_history(folder: Path, runs: int, meter: Meter) -> None:
    """What a night and a person ask of the history: compare a run with its past and store it,
    `clustersmoke history` and `clustersmoke nodes`."""
    connect = history_database._connect

    def connect_and_count(path: Path, patience_s: float) -> sqlite3.Connection:
        connection = connect(path, patience_s)
        connection.set_trace_callback(meter.count)
        return connection

    # In a process of its own, whose memory does not count here.
    words = [sys.executable, "-m", "benchmarks.growth", "--make", str(folder), str(runs)]
    subprocess.run(words, cwd=ROOT, check=True)
    history_database._connect = connect_and_count
    record = records.run(phases=[records.phase("phase0")])
    record |= {"cluster": "made", "begun": NOW + runs}
    with meter.measuring(), redirect_stdout(StringIO()):
        records.annotate(record, folder)
        records.store_run(record, folder)
        assert clustersmoke(["history", "--report-dir", str(folder)]) == 0
        asked = ["--cluster", "made", "--days", "180", "--report-dir", str(folder)]
        assert clustersmoke(["nodes", *asked]) == 0


MEASURES: dict[str, Callable[[Path, int, Meter], None]] = {
    "ranks": measure_ranks,
    "phases": measure_phases,
    "history": measure_history,
}


def measure(what: str, size: int) -> dict[str, float]:
    """Measure one size in this process."""
    meter = Meter()
    with tempfile.TemporaryDirectory(prefix="clustersmoke-growth-") as folder:
        MEASURES[what](Path(folder), size, meter)
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"size": size, "seconds": meter.seconds, "mib": kib / 1024, "calls": meter.calls}


def fit_exponent(sizes: list[float], values: list[float]) -> float:
    """The exponent of the power of the size that fits the values best, by least squares of their
    logarithms: of the larger sizes, since what is the same for every size hides growth."""
    xs, ys = ([math.log(max(value, 1e-9)) for value in each[-3:]] for each in (sizes, values))
    return linear_regression(xs, ys).slope


def describe(what: str, rows: list[dict[str, float]]) -> str:
    """A table of Markdown, with the exponent of each column."""
    lines = [f"| {what} | CPU s | MiB | calls |", "|---:|---:|---:|---:|"]
    lines += [
        f"| {row['size']:,.0f} | {row['seconds']:.2f} | {row['mib']:.0f} | {row['calls']:,.0f} |"
        for row in rows
    ]
    sizes = [row["size"] for row in rows]
    exponents = [
        f"{fit_exponent(sizes, [row[name] for row in rows]):.2f}"
        for name in ("seconds", "mib", "calls")
    ]
    return "\n".join([*lines, f"| exponent | {' | '.join(exponents)} |"])


def run_sizes(what: str) -> list[dict[str, float]]:
    rows = []
    for size in SIZES[what]:
        words = [sys.executable, "-m", "benchmarks.growth", what, "--size", str(size)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{words} ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
        rows.append(json.loads(done.stdout))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", metavar="WHAT", help="what grows (default: all)")
    parser.add_argument("--size", type=int, help="measure this size alone, in this process")
    parser.add_argument("--make", nargs=2, metavar=("DIR", "RUNS"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if unknown := set(asked.what) - {*SIZES}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; expected {', '.join(SIZES)}")
    if asked.make:
        make_history(Path(asked.make[0]), int(asked.make[1]))
        return
    if asked.size:
        print(json.dumps(measure(asked.what[0], asked.size)))
        return
    too_fast = []
    for what in asked.what or SIZES:
        rows = run_sizes(what)
        print(f"\n{describe(what, rows)}", flush=True)
        exponent = fit_exponent([row["size"] for row in rows], [row["seconds"] for row in rows])
        if exponent > MOST:
            too_fast.append(f"{what}: time grows with the power {exponent:.2f}; at most {MOST}")
    if too_fast:
        sys.exit("\n".join(too_fast))


if __name__ == "__main__":
    main()
