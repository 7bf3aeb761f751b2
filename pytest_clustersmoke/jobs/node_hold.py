"""One allocation of nodes, in which the tests of --cluster-isolate run as steps.

Its job only waits, so it must not outlive the run: it is cancelled when the tests are done or the
run is interrupted, and it ends by itself once it is given back, once the run has another
controller, or once the controller has shown no sign of life for SILENT_S.
"""

from __future__ import annotations

import contextlib
import math
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..config.phase import WIND_UP_S, Phase, has_default_timeout
from ..config.profile import Profile
from ..evidence.locks import ControllerFence
from ..evidence.run_directory import PhaseDir, write_atomically
from ..text import sanitize_line
from .backend import COMMENT_BEGINS, Refused, Unanswered
from .slurm_client import SlurmClient, SlurmUnavailable
from .slurm_jobs import Allocation

SILENT_S = 300  # longer than a controller may wait for a Slurm that does not answer
LOOK_S = 2  # between two looks of the job at the run's files
FIRST_ASK_S, MOST_ASK_S = 0.5, 5.0  # between two questions whether the job runs, ever longer
CANCEL_S = 2.0  # for scancel at the end, which then goes on by itself
MAX_WORDS = 200
# A pending job with such a reason would wait for longer than the tests may take.
OVER_LIMIT = "Limit"
# $1: the run's sign of life, $2 and $3: files that end the job, $4: SILENT_S, $5: LOOK_S. Where no
# directory is listed, NFS remembers for up to a minute that a file is missing.
WAIT = """hold() {
    local last=none quiet=0 now
    until ls "$(dirname "$2")" "$(dirname "$3")" >/dev/null 2>&1
        [ -e "$2" ] || [ -e "$3" ] || [ "$quiet" -ge "$4" ]; do
        now=$(stat -c %Y "$1" 2>/dev/null || echo none)
        [ "$now" = "$last" ] && quiet=$((quiet + $5)) || quiet=0
        last=$now
        sleep "$5"
    done
}"""


class NodeHold:
    """The allocation of these nodes for the tests of one phase. `job_id` is empty until Slurm has
    taken its job; one thread makes all calls."""

    def __init__(
        self,
        client: SlurmClient,
        phase: Phase,
        profile: Profile,
        nodes: Sequence[str],
        directory: PhaseDir,
        fence: ControllerFence,
    ) -> None:
        self.nodes, self.job_id = tuple(nodes), ""
        self._client, self._phase, self._profile = client, phase, profile
        self._run, self._fence = directory.run, fence
        folder = directory.isolation.parent
        self._script, self._log = folder / "allocation.sh", folder / "allocation.log"
        self._released = folder / "allocation.released"
        self._name = f"clustersmoke-{self._run.run_id}-{phase.name}.isolate"
        self._is_asked = False

    def ask(self, within_s: float, lasts_s: float) -> str:
        """Ask Slurm for the nodes, so that a test may still start when they are held for
        `lasts_s`; return why it does not give them, empty once it has. Raises OSError if the batch
        script cannot be written, and Superseded."""
        if not has_default_timeout(self._phase):  # otherwise no step is refused for its time
            lasts_s += float(self._phase.timeout_s.value)
        minutes = math.ceil((lasts_s + WIND_UP_S) / 60)
        self._script.parent.mkdir(exist_ok=True)
        self._released.unlink(missing_ok=True)
        write_atomically(self._script, self.script(minutes))
        self._fence.check()
        self._is_asked = True
        try:
            self.job_id = self._client.submit(self._script, check=self._fence.check)
        except (Refused, Unanswered) as error:
            return f"sbatch: {sanitize_line(str(error))[:MAX_WORDS]}"
        return self._wait(time.monotonic() + within_s, within_s)

    def _wait(self, until: float, within_s: float) -> str:
        pause_s = FIRST_ASK_S
        while True:
            self._fence.check()
            allocation = self._look()
            if allocation is not None and allocation.runs:
                return ""
            state = allocation.state if allocation else None
            why = state.reason or state.raw if state else "Slurm does not answer"
            if state is not None and state.kind not in ("pending", "running"):
                return f"job {self.job_id} ended before it had nodes ({why})"
            if state is not None and OVER_LIMIT in state.reason:
                return f"job {self.job_id} waits for a limit of this user's ({why})"
            if (left_s := until - time.monotonic()) <= 0:
                return f"job {self.job_id} did not start within {within_s:.0f} s ({why})"
            time.sleep(min(pause_s, left_s))
            pause_s = min(1.5 * pause_s, MOST_ASK_S)

    def _look(self) -> Allocation | None:
        with contextlib.suppress(SlurmUnavailable):
            return self._client.allocation(self.job_id)
        return None

    def has(self, nodes: Sequence[str]) -> bool:
        return {*nodes} <= {*self.nodes}

    @property
    def is_lost(self) -> bool:
        """Whether Slurm says that the allocation has ended: then what its steps ended with says
        nothing about their nodes."""
        allocation = self._look()
        return allocation is not None and not allocation.runs

    def release(self) -> str:
        """Give the nodes back; return what may be left, empty once Slurm has agreed. Waits a short
        time for Slurm: scancel goes on without us, and the job ends by itself as well."""
        if not self._is_asked:
            return ""
        with contextlib.suppress(OSError):  # on a full disk it is cancelled only
            write_atomically(self._released, "")
        job = self.job_id or f"--name={self._name}"
        if self._client.cancel_within(CANCEL_S, job):
            return ""
        who = f"job {self.job_id}" if self.job_id else f"a job {self._name}, if Slurm took it,"
        return f"not confirmed that {who} is cancelled; if it starts, it ends within {LOOK_S} s"

    def script(self, minutes: int) -> str:
        """The batch script of its job."""
        files = (self._run.run, self._fence.successor, self._released)
        words = [*(shlex.quote(str(path)) for path in files), str(SILENT_S), str(LOOK_S)]
        options = (f"#SBATCH {_show(*each)}" for each in self._options(minutes).items())
        about = "# Holds nodes while --cluster-isolate runs steps on them; see isolation.json."
        return "\n".join(["#!/bin/bash", *options, about, WAIT, f"hold {' '.join(words)}", ""])

    def _options(self, minutes: int) -> Mapping[str, object]:
        """The phase's own options, which say what a step may use, on these nodes."""
        theirs = {
            key.replace("_", "-"): setting.value
            for key, setting in self._phase.slurm.items()
            if setting.value is not None and setting.value is not False and key != "time_min"
        }
        own: dict[str, object] = {
            "nodes": len(self.nodes),
            "ntasks-per-node": 1,
            "nodelist": ",".join(self.nodes),
            "no-kill": True,  # a node that goes down ends the steps on it, and no other
            "no-requeue": True,
            "export": "ALL",
            "time": minutes,
            "job-name": self._name,
            "comment": f"{COMMENT_BEGINS}{self._run.run_id} phase={self._phase.name}",
            "output": self._log,
        }
        if self._profile.hardware.gpu != "none":
            own["gpus-per-node"] = self._phase.gpus_per_node.value
        return theirs | own


def _show(option: str, value: object) -> str:
    if value is True:
        return f"--{option}"
    words = str(value) if not isinstance(value, Path) else str(value).replace("%", "%%")
    return f"--{option}={shlex.quote(words)}"
