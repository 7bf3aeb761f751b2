"""Years of history: 100,000 runs of eight phases, or of one, with eight metrics each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_clustersmoke.criteria.past_annotation import past_of
from pytest_clustersmoke.evidence.history import history_database as database
from pytest_clustersmoke.evidence.history.history_schema import Setup
from pytest_clustersmoke.evidence.history.history_store import find_or_insert_setup
from tests.evidence.history.made import DAY_S, of_night
from tests.support.records import BEGUN, VERSIONS, annotate, insert_rows, phase, store_run

PHASE_RUNS, LIMIT_S = 100_000, 1.0
METRICS = (
    *("steps_per_s", "steady_steps_per_s", "samples_per_s", "peak_memory_gib"),
    *("peak_memory_reserved_gib", "final_loss", "step_time_p50_s", "step_time_p95_s"),
)
CRITERIA = json.dumps({f"test_that_{number}_holds": "passed" for number in range(20)})
MACHINE = ("NVIDIA H100", "cuda", 2, "InfiniBand")
PER_VERSION = 500  # runs until one of the versions changes

pytestmark = pytest.mark.slow


def build(directory: Path, phases: int) -> None:
    """100,000 phase runs; every 500 runs a version changes, every tenth run fails."""
    current = phase()
    store_run(of_night(-1, current), directory)  # makes the tables

    with database.open_for_writing(directory) as connection:
        count = PHASE_RUNS // phases
        setups = [
            find_or_insert_setup(
                connection,
                Setup.of(
                    current["hardware"], current["shape"], {**VERSIONS, "nccl": f"2.{number}"}
                ),
            )
            for number in range(count // PER_VERSION + 1)
        ]
        rest_of_run = ("FIT", "FIT: 8 of 8 phases", "", 0, "", "0.1.0", *MACHINE)
        insert_rows(
            connection,
            "runs",
            (
                (
                    *(10 + n, f"run-{n:06}", "gilbreth", "slurm"),
                    *(BEGUN + n * DAY_S, BEGUN + n * DAY_S, *rest_of_run),
                )
                for n in range(count)
            ),
        )
        nodes, versions = json.dumps(["node0", "node1"]), json.dumps(VERSIONS)
        insert_rows(
            connection,
            "phases",
            (
                (
                    *(10 + n * phases + i, 10 + n, "gilbreth", f"phase_{i}", BEGUN + n * DAY_S),
                    *(setups[n // PER_VERSION], int(n % 10 > 0)),
                    *("passed" if n % 10 else "failed", "", "", str(n), 8, 12.5, 60.0),
                    *(20, 0, 0, 0, "NET/IB", nodes, versions, CRITERIA),
                )
                for n in range(count)
                for i in range(phases)
            ),
        )
        insert_rows(
            connection,
            "metrics",
            (
                (10 + n * phases + i, name, 9.5 + 0.01 * (n % 7), "steps/s", 1, 9.5, 9.0)
                for n in range(count)
                for i in range(phases)
                for name in METRICS
            ),
        )


@pytest.fixture(scope="module", params=[8, 1], ids=["eight phases", "one phase"])
def years(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, int]]:
    directory = tmp_path_factory.mktemp("years")
    build(directory, request.param)
    yield directory, request.param


def seconds(work: Callable[[], object]) -> float:
    """The CPU time of a call and its child processes, the lowest of three. Unlike wall time it
    hardly depends on the machine's load, and from the second call on the file is cached."""
    taken = []
    for _ in range(3):
        before = sum(os.times()[:4])
        work()
        taken.append(sum(os.times()[:4]) - before)
    return min(taken)


@pytest.mark.parametrize(
    "words",
    [
        ("history",),
        ("history", "--phase", "phase_0", "--last", "60"),
        ("history", "--metric", "peak_memory_gib", "--json"),
        ("compare", "previous", "latest"),
        ("compare", "run-000001", "run-012000"),
        ("references", "propose", "--cluster", "gilbreth"),
    ],
    ids=" ".join,
)
def test_commands_answer_in_under_a_second(years: tuple[Path, int], words: tuple[str, ...]) -> None:
    """Each command, including the start of Python, on years of runs."""
    directory, _ = years
    command = [sys.executable, "-m", "pytest_clustersmoke.cli", *words]

    def work() -> None:
        done = subprocess.run(
            [*command, "--report-dir", str(directory)], capture_output=True, text=True, check=False
        )
        assert done.returncode in (0, 1), done.stderr
        assert done.stdout

    taken = seconds(work)
    print(f"{' '.join(words)}: {taken:.3f} s")
    assert taken < LIMIT_S


@pytest.mark.parametrize("nccl", ["2.10", "2.2", "9.9"], ids=["newest", "old", "new"])
def test_past_of_answers_in_under_a_second(years: tuple[Path, int], nccl: str) -> None:
    """With current versions, with those of years ago, and with new ones."""
    directory, _ = years
    current = phase()
    records: list[dict[str, object]] = []

    def work() -> None:
        past, _ = past_of(
            *("gilbreth", "phase_0", current["hardware"], current["shape"]),
            *({**VERSIONS, "nccl": nccl}, dict.fromkeys(METRICS, 5.0), directory),
        )
        records.append(dict(past["steps_per_s"]))

    taken = seconds(work)
    print(f"past_of on nccl {nccl}: {taken:.3f} s")
    assert taken < LIMIT_S
    assert records[0]["runs"] == 60
    assert records[0].get("other_versions", False) == (nccl == "9.9")


def test_annotate_and_store_in_under_a_second(years: tuple[Path, int]) -> None:
    """A whole run is compared with its past and stored."""
    directory, phases = years
    record = of_night(200_000, *(phase(f"phase_{number}") for number in range(phases)))
    annotated = seconds(lambda: annotate(record, directory))
    stored = seconds(lambda: store_run(record, directory))
    print(f"annotate {annotated:.3f} s, store {stored:.3f} s, {phases} phases")
    assert annotated < LIMIT_S
    assert stored < LIMIT_S
    trend = record["phases"][0]["trend"]
    assert trend is not None
    assert len(trend["run_ids"]) == 60
