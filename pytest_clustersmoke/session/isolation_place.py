"""Where the tests of an isolation run: as steps of one allocation of the failed job's nodes, so
that no test waits in the queue; or as jobs, where Slurm does not give that in time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..config.phase import Phase, Sourced
from ..config.profile import Profile
from ..evidence.locks import Superseded, Unclear
from ..evidence.run_directory import PhaseDir
from ..jobs.job_watch import CYCLE_S
from ..jobs.node_hold import NodeHold
from ..jobs.slurm_backend import ALLOCATION
from ..jobs.slurm_client import SlurmClient
from ..text import plural, shorten
from .group_tests import Group
from .job_session import JobSession

SOURCE = "--cluster-isolate"
# They choose nodes, too, and could contradict a test's own list.
DROPPED = ("nodelist", "exclude", "switches", "contiguous", "dependency", "distribution")
# Of the time that is left: jobs need the rest if the allocation does not come.
WAIT_SHARE = 0.5
OTHERS = "a suspect is paired with a node of another phase"
LOST = "the allocation ended"
MOST_NAMES = 4  # of nodes in a line


class IsolationPlace:
    """Where the tests of one phase run. `why` says why they are jobs, empty while they are not."""

    def __init__(
        self,
        phase: Phase,
        profile: Profile,
        session: JobSession,
        client: SlurmClient,
        directory: PhaseDir,
        say: Callable[[str], None],
    ) -> None:
        kept = {key: value for key, value in phase.slurm.items() if key not in DROPPED}
        self._phase = replace(phase, slurm=kept)
        self._profile, self._session, self._client = profile, session, client
        self._directory, self._say = directory, say
        self._hold: NodeHold | None = None
        self._is_asked, self.why, self.job_id = False, "", ""

    def prepare(self, nodes: Sequence[str], groups: Sequence[Group], left_s: float) -> None:
        """Ask for an allocation of these nodes before the first test; give it back once a group has
        another node, whose job could not have the nodes that are held. `left_s`: the time that is
        left for tests."""
        if not self._is_asked and groups:
            self._is_asked = True
            self._ask(nodes, left_s)
        if self._hold is not None and not all(map(self._hold.has, groups)):
            self._leave(OTHERS)

    def _ask(self, nodes: Sequence[str], left_s: float) -> None:
        limit_s = self._profile.limits.queue_wait_s
        within_s = WAIT_SHARE * left_s
        if limit_s is not None:
            within_s = min(within_s, limit_s or CYCLE_S)
        session, name = self._session, self._phase.name
        words = f"{plural(len(nodes), 'node')} ({shorten(nodes, MOST_NAMES)})"
        self._say(f"isolating {name}: asks for {words} at once; waits {within_s:.0f} s at most")
        hold = self._hold = NodeHold(
            self._client, self._phase, self._profile, nodes, self._directory, session.fence
        )
        try:
            session.journal.write("allocation", phase=name, nodes=[*nodes])
            why = hold.ask(within_s, left_s)
            session.journal.write("allocation", phase=name, job_id=hold.job_id, refused=why)
        except Unclear as error:
            why = str(error)
        except Superseded:  # so is the watch, which ends pytest, and submits nothing before
            return
        except OSError as error:
            why = str(error)
        if why:
            self._leave(why)
        else:
            self.job_id = hold.job_id
            words = f"steps of job {hold.job_id}, which holds {plural(len(nodes), 'node')}"
            self._say(f"isolating {name}: tests are {words}")

    def _leave(self, why: str) -> None:
        """From now on tests are jobs."""
        self.release()
        self.why, self.job_id = why, ""
        self._say(f"isolating {self._phase.name}: tests are jobs: {why}")

    def list_options(self, group: Group) -> Mapping[str, Sourced]:
        """What a test asks of Slurm: its nodes, and the allocation that has them."""
        options = {**self._phase.slurm, "nodelist": Sourced(",".join(group), SOURCE)}
        if self._hold is not None:
            options[ALLOCATION] = Sourced(self._hold.job_id, SOURCE)
        return options

    def give_up_lost(self) -> bool:
        """Whether the allocation has ended: what steps ended with it say nothing. Tests are jobs
        from now on."""
        if self._hold is None or not self._hold.is_lost:
            return False
        self._leave(LOST)
        return True

    def release(self) -> None:
        """Give the nodes back, if they are held."""
        hold, self._hold = self._hold, None
        if hold is not None:
            with contextlib.suppress(OSError):  # another controller has the run: its job ends
                self._session.fence.check()
                if left := hold.release():
                    self._say(f"isolating {self._phase.name}: {left}")
