"""A phase while it runs, and what a test does to it meanwhile."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from pytest_clustersmoke.evidence.run_directory import PhaseDir
from pytest_clustersmoke.evidence.scheduler_record import read_scheduler_record
from pytest_clustersmoke.evidence.telemetry import read_events
from tests.support.harness import IDLE, Suite
from tests.support.waiting import wait_for, wait_for_event

LONG = {"seconds": 600}
REQUEST_AGAIN_S = 3.0


class WatchedPhase:
    """A phase with one rank on each of `nodes` nodes, while it runs."""

    def __init__(self, suite: Suite, name: str, nodes: int = 1) -> None:
        self.suite, self.name, self.nodes = suite, name, nodes
        self.struck = 0.0

    @classmethod
    def idle(cls, suite: Suite, name: str, nodes: int = 1) -> WatchedPhase:
        """Add the phase to the suite: its ranks wait until they are ended."""
        suite.phase(name, script=IDLE, nodes=nodes, args=LONG)
        return cls(suite, name, nodes)

    def directory(self) -> PhaseDir:
        return self.suite.run_dir().phase(self.name)

    def wait(self) -> None:
        """Wait until every rank trains."""
        phase = self.directory()
        for rank in range(self.nodes):
            wait_for_event(phase.rank_events(rank), "step")

    def strike(self, act: Callable[[], object]) -> None:
        """Do something to the phase, and note when."""
        self.struck = time.time()
        act()

    def wait_for_second_start(self) -> None:
        """Wait until a job that was requeued, and that no controller watches, has been refused."""
        requested = 0.0

        def started_again() -> bool:
            nonlocal requested
            # The job cannot start while its first start completes, and each request delays it.
            if time.monotonic() > requested + REQUEST_AGAIN_S:
                requested = time.monotonic()
                with contextlib.suppress(AssertionError):
                    self.suite.slurm("scontrol", "update", f"jobid={self.job}", "StartTime=now")
            return self.directory().started_again.exists()

        wait_for("the second start", started_again)

    def pid(self, event: str, node: int) -> int:
        """The pid in the node's first event of this name."""
        return int(wait_for_event(self.directory().node_events(node), event)["pid"])

    def node_name(self, node: int) -> str:
        return str(wait_for_event(self.directory().node_events(node), "claim")["node"])

    @property
    def job(self) -> str:
        return str(self._event("submitted")["job_id"])

    def ended_in_slurm(self) -> float:
        """When Slurm's own record says that the job ended, in Unix seconds.

        Where it does not say so, or says when the job was put back into the queue: when the phase
        was struck.
        """
        ended = read_scheduler_record(self.directory().scheduler).job.ended
        if self.name == "requeued" or not ended:
            return self.struck
        return ended

    def seen_after_s(self) -> float:
        """The seconds from the strike until the phase's result was known, without those in which
        work waited for a core."""
        return self.suite.pressure.own_s(self.struck, float(self._event("ended")["time"]))

    def _event(self, name: str) -> dict[str, Any]:
        """This phase's event in the run's journal, which may still be written to."""
        events = read_events(self.suite.run_dir().journal).named(name)
        return {event["phase"]: event for event in events}[self.name]


def bring_back(suite: Suite, node: str) -> None:
    """Make the node idle again. A node that has registered meanwhile already is, and refuses."""

    def idle() -> bool:
        if suite.slurm("sinfo", "-h", "-n", node, "-o", "%T").split()[0] == "idle":
            return True
        with contextlib.suppress(AssertionError):
            suite.slurm("scontrol", "update", f"nodename={node}", "state=resume")
        return False

    wait_for(f"{node} to be idle", idle)
