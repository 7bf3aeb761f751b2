"""A phase that is being run on the lab, and what may be done to it meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable

from pytest_clustersmoke.evidence.scheduler_record import read_scheduler_record
from tests.faults.harness import DONE, Suite

LONG = {"seconds": 600}


class Running:
    """A phase of `nodes` ranks, one a node, while it is run."""

    def __init__(self, suite: Suite, name: str, nodes: int = 1) -> None:
        self.suite, self.name, self.nodes = suite, name, nodes
        self.struck = 0.0

    @classmethod
    def idle(cls, suite: Suite, name: str, nodes: int = 1) -> Running:
        """Add the phase: ranks that train nothing, until they are ended."""
        suite.phase(name, "idle.py", DONE, nodes=nodes, args=LONG)
        return cls(suite, name, nodes)

    def wait(self) -> None:
        """Until every rank trains."""
        phase = self.suite.run_dir().phase(self.name)
        for rank in range(self.nodes):
            self.suite.wait_event(phase.rank_events(rank), "step")

    @property
    def job(self) -> str:
        jobs = {one["phase"]: one["job_id"] for one in self.suite.journal("submitted")}
        return str(jobs[self.name])

    def strike(self, act: Callable[[], object]) -> None:
        self.struck = time.time()
        act()

    def pid(self, event: str, node: int) -> int:
        phase = self.suite.run_dir().phase(self.name)
        return int(self.suite.wait_event(phase.node_events(node), event)["pid"])

    def node_name(self, node: int) -> str:
        phase = self.suite.run_dir().phase(self.name)
        return str(self.suite.wait_event(phase.node_events(node), "claim")["node"])

    @property
    def ended(self) -> float:
        """When its result was known, in Unix seconds."""
        ended = {one["phase"]: one["time"] for one in self.suite.journal("ended")}
        return float(ended[self.name])

    def known(self) -> float:
        """When Slurm's own record says that the job ended, in Unix seconds; where it does not (or
        says when the job was put back into the queue), when it was struck."""
        phase = self.suite.run_dir().phase(self.name)
        ended = read_scheduler_record(phase.scheduler).job.ended
        if self.name == "requeued" or not ended:
            return self.struck
        return time.mktime(time.strptime(ended, "%Y-%m-%dT%H:%M:%S"))

    def seen_s(self) -> float:
        """From what was done to it to its result known."""
        return self.ended - self.struck
