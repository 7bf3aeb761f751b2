"""A session of jobs over a fake backend, without pytest around it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_clustersmoke.config.phase import Phase
from pytest_clustersmoke.evidence.run_directory import RunDir, job_name, read_json, write_json
from pytest_clustersmoke.evidence.scheduler_record import JobState
from pytest_clustersmoke.evidence.telemetry import SCHEMA, EventWriter, read_events
from pytest_clustersmoke.jobs.job_watch import WatchedJob
from pytest_clustersmoke.preflight.slurm_check import CheckResult
from pytest_clustersmoke.session.job_session import JobSession, Progress
from tests.fakes.backend import FakeBackend
from tests.support.evidence import make_phase, make_profile
from tests.support.waiting import wait_for

WITHIN_S = 20.0
Check = Callable[[Iterable[Phase], RunDir], CheckResult]


def ignore(progress: Progress) -> None:
    """Report nothing."""


def until(holds: Callable[[], object]) -> None:
    """Wait for something that another thread does."""
    wait_for("another thread", holds, poll_s=0.005)


class JobRun:
    """A session over a fake backend."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.backend = FakeBackend()
        self.sessions: list[JobSession] = []

    def start(
        self,
        *names: str,
        gpus: int = 1,
        nodes: int = 1,
        after: Any = (),
        resume: bool = False,
        sweep: str = "",
        detaches: bool = False,
        check: Check | None = None,
        **keys: Any,
    ) -> JobSession:
        """Start phases of these names; `after`: phase -> the one that it runs after; `sweep`: the
        phase of which those named `sweep-...` are points."""
        keys.setdefault("limits", {"poll_s": 0.05})
        profile = make_profile(self.folder, phases=dict.fromkeys(names), **keys)
        order = dict(after)
        phases = [
            make_phase(
                profile,
                name,
                gpus_per_node=gpus,
                nodes=nodes,
                after=order.get(name, ""),
                resume=resume,
            )
            for name in names
        ]
        phases = [
            replace(phase, base=sweep) if sweep and phase.name.startswith(f"{sweep}-") else phase
            for phase in phases
        ]
        root = self.folder / "run1"
        root.mkdir(mode=0o700)
        self.run = RunDir(root)
        self.profile, self.phases = profile, phases
        return self._start(detaches=detaches, check=check)

    def attach(self, *names: str) -> JobSession:
        """Start another controller of the run, with a backend of its own that has the same jobs,
        for these phases of it, or all."""
        known, self.backend = self.backend, FakeBackend(chains=self.backend.chains)
        self.backend.jobs, self.backend.silent = known.jobs, known.silent
        return self._start(*names, attaches=True)

    def _start(
        self,
        *names: str,
        attaches: bool = False,
        detaches: bool = False,
        check: Check | None = None,
    ) -> JobSession:
        phases = [phase for phase in self.phases if phase.name in names or not names]
        session = JobSession(
            self.run, self.profile, phases, self.backend, check, attaches, detaches
        )
        self.sessions.append(session)
        session.start()
        return session

    def submitted(self) -> list[str]:
        return [name for (name,) in self.backend.named("submit")]

    def watched(self, name: str) -> WatchedJob:
        """What the last session knows of the job of a phase, once it watches it."""
        jobs = self.sessions[-1]._watched
        return wait_for(f"a watch over {name}", lambda: jobs.get(name), poll_s=0.005)

    def run_job(self, name: str, nodes: str = "") -> None:
        """Let the job of a phase run, and wait until the session knows."""
        job = self.watched(name)
        self.backend.jobs[name] = JobState("running", "RUNNING", nodes=nodes)
        until(lambda: job.running)

    def show_states(self) -> None:
        """Wait until the session knows the states that the jobs have now: it has asked for them,
        and then asked again. A question that was on its way does not count."""
        polls = len(self.backend.named("states"))
        until(lambda: len(self.backend.named("states")) > polls + 2)

    def passes(self, name: str, nodes: int = 1) -> None:
        """Write the files of a job that passes."""
        directory = self.run.phase(name).last_job
        for node in range(nodes):
            directory.claim.touch()
            writer = EventWriter(directory.rank_events(node))
            job = job_name(read_json(directory.spec) or {})
            writer.write("start", schema=SCHEMA, job=job, rank=node, node_rank=node)
            writer.write("done", seconds=1)
            writer.close()
            ended = time.time()
            times = {"started": ended - 5, "ended": ended, "launcher_s": 4.0}
            write_json(directory.node_result(node), {"ok": True, "node": f"n{node}", **times})

    def fails(self, name: str) -> None:
        """Write the files of a job whose node fails."""
        directory = self.run.phase(name).last_job
        directory.claim.touch()
        failure = {"ok": False, "node": "n0", "reason": "node", "why": "it is broken"}
        write_json(directory.node_result(0), failure)

    def result(self, name: str) -> dict[str, Any]:
        return read_json(self.run.phase(name).result) or {}

    def events(self) -> list[tuple[str, Any]]:
        records = read_events(self.run.journal).records
        return [(record["event"], record.get("phase")) for record in records]
