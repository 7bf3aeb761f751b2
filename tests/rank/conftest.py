"""Runs real ranks: torchrun with gloo on CPU, events in a phase directory of the test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_clustersmoke.evidence.run_directory import PhaseDir, write_json
from pytest_clustersmoke.evidence.telemetry import Events, read_events
from tests.support.waiting import wait_for_end

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "programs"
SMOKE_TESTS = REPOSITORY / "smoke_tests"
# Without the time in which its processes wait for a CPU; on an idle machine a run takes about 6 s.
RUN_WITHIN_S = 180


def rank_environment(phase: PhaseDir | None) -> dict[str, str]:
    """The test's environment, without variables that an outer torchrun or launcher may have set."""
    prefixes = ("CLUSTERSMOKE_", "TORCHELASTIC_", "MASTER_")
    names = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"}
    names |= {"DS_ACCELERATOR", "LOCAL_SIZE"}
    kept = {k: v for k, v in os.environ.items() if not k.startswith(prefixes) and k not in names}
    path = os.pathsep.join(filter(None, [str(REPOSITORY), kept.get("PYTHONPATH")]))
    kept.update(OMP_NUM_THREADS="1", CLUSTERSMOKE_DEVICE="cpu", PYTHONPATH=path)
    if phase is not None:
        kept["CLUSTERSMOKE_PHASE_DIR"] = str(phase.root)
    return kept


def torchrun_line(script: Path, ranks: int, args: Sequence[str]) -> list[str]:
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*run, f"--nproc_per_node={ranks}", str(script), *args]


class Run:
    """A finished run of a rank program."""

    def __init__(self, phase: PhaseDir, status: int, output: str) -> None:
        self.phase = phase
        self.status = status
        self.output = output

    def events(self, rank: int = 0) -> Events:
        return read_events(self.phase.rank_events(rank))

    def only(self, event: str, rank: int = 0) -> dict[str, Any]:
        records = list(self.events(rank).named(event))
        assert len(records) == 1, f"{len(records)} {event} events of rank {rank}:\n{self.output}"
        return records[0]


@contextmanager
def started(
    line: list[str], environment: dict[str, str], folder: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start a process; it and its children are killed at the end if they still run."""
    process = subprocess.Popen(
        line,
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            # torchrun puts its ranks into sessions of their own, which killpg does not reach.
            tree = psutil.Process(process.pid)
            for member in [tree, *tree.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    member.kill()
        process.communicate()


@pytest.fixture
def torchrun(tmp_path: Path) -> Callable[..., Run]:
    """Run a script of smoke_tests/ or programs/ on this many ranks, to its end; `proof` and `spec`
    as in the phase's spec."""

    def run(script: str, *args: str, ranks: int, proof: str = "sampled", **spec: Any) -> Run:
        phase = PhaseDir(tmp_path / "phase")
        phase.root.mkdir()
        write_json(phase.spec, {"proof": proof, "phase": "phase", **spec})
        path = next(p for p in (SMOKE_TESTS / script, PROGRAMS / script) if p.exists())
        with started(torchrun_line(path, ranks, args), rank_environment(phase)) as process:
            output = wait_for_end(process, RUN_WITHIN_S)
        return Run(phase, process.returncode, output)

    return run


@pytest.fixture
def single_rank(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone, since proofs and checkpoints need collectives."""
    import torch.distributed as dist

    store = f"file://{tmp_path}/store"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()
