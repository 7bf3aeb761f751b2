"""What may be killed in a lab: clients, ranks, slurmstepd, slurmd and slurmctld, each found by pid
and start time among the lab's own processes."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from pytest_clustersmoke.lab import Lab
from pytest_clustersmoke.lab.addresses import own_hosts_prefix
from pytest_clustersmoke.lab.daemons import Daemons, reap
from pytest_clustersmoke.lab.lab_processes import (
    PROC,
    Process,
    find_processes,
    send,
)
from pytest_clustersmoke.lab.lab_state import Journal, LabRecord, read_record

CLIENT, RANK, STEPD, SLURMD, SLURMCTLD = "client", "rank", "slurmstepd", "slurmd", "slurmctld"
KINDS = (CLIENT, RANK, STEPD, SLURMD, SLURMCTLD)
DAEMONS = {"slurmctld", "slurmscriptd", "slurmd", "slurmdbd", "munged", "mariadbd", "mysqld"}
PHASE = "CLUSTERSMOKE_PHASE_DIR"

Thing = TypeVar("Thing")


@dataclass(frozen=True)
class Strike:
    """One kill of the schedule: when in its run, in seconds, and what else the seed decides.
    `pick` chooses among the processes that there are, `pause_s` is how long a daemon stays dead."""

    kind: str
    at_s: float
    pick: float
    pause_s: float
    attaches: bool = True

    def __str__(self) -> str:
        more = ""
        if self.kind == CLIENT:
            more = ", then " + ("attach" if self.attaches else "reap")
        elif self.kind in (SLURMD, SLURMCTLD):
            more = f", back after {self.pause_s:.1f} s"
        return f"{self.at_s:4.1f} s: kill {self.kind}{more}"


@dataclass(frozen=True)
class Hit:
    """A kill that was made: of the process of a phase or node, from and until when (Unix seconds)
    it was dead."""

    kind: str
    began: float
    ended: float
    phase: str = ""
    node: str = ""


@dataclass
class StruckLab:
    """A lab whose processes are killed; its daemons are started again when their time has come."""

    lab: Lab
    hits: list[Hit] = field(default_factory=list)
    _dead: list[tuple[float, Hit, list[str], dict[str, str]]] = field(default_factory=list)

    @property
    def record(self) -> LabRecord:
        return read_record(self.lab.name, self.lab.slurm_conf.parent)

    def strike(self, strike: Strike) -> Hit | None:
        """Kill a process of this kind (not a client); None if there is none now."""
        if strike.kind == RANK:
            return self._kill_rank(strike)
        if strike.kind == STEPD:
            return self._kill_step(strike)
        return self._kill_daemon(strike)

    def restart(self, at_once: bool = False) -> None:
        """Start the daemons again whose pause is over."""
        reap()
        for dead in [dead for dead in self._dead if at_once or dead[0] <= time.monotonic()]:
            self._dead.remove(dead)
            _, hit, command, environ = dead
            self._start("-".join(filter(None, [hit.kind, hit.node])), command, environ)
            self.hits[self.hits.index(hit)] = replace(hit, ended=time.time())

    def await_daemons(self) -> None:
        """Let every daemon that was killed come back when its time has come."""
        while self._dead:
            self.restart()
            time.sleep(0.1)

    def list_job_processes(self) -> list[Process]:
        """The processes of the lab's jobs, slurmstepd included."""
        record = self.record
        confs = (record.files.slurm_conf, record.files.daemons_conf)
        found = find_processes(record.token, confs)
        return [process for process in found if read_name(process.pid) not in DAEMONS]

    def _kill_rank(self, strike: Strike) -> Hit | None:
        ranks = [*self._list_ranks()]
        if not ranks:
            return None
        process, variables = choose(ranks, strike.pick)
        return self._kill(process, Hit(RANK, time.time(), time.time(), phase_of(variables)))

    def _kill_step(self, strike: Strike) -> Hit | None:
        """Kill the slurmstepd of the batch script or of the step of a job whose rank runs."""
        steps = []
        found = self.list_job_processes()
        for _, variables in self._list_ranks(found):
            title = re.compile(rf"slurmstepd: \[{variables['SLURM_JOB_ID']}\.")
            mine = [process for process in found if title.match(read_command_line(process.pid))]
            steps += [(process, phase_of(variables)) for process in mine]
        if not steps:
            return None
        process, phase = choose(steps, strike.pick)
        return self._kill(process, Hit(STEPD, time.time(), time.time(), phase))

    def kill_step_of(self, phase: str, node: str) -> bool:
        """Kill the slurmstepd of a phase's step on a node; return whether there is one."""
        found = self.list_job_processes()
        ranks = [variables for _, variables in self._list_ranks(found)]
        jobs = [v["SLURM_JOB_ID"] for v in ranks if phase_of(v) == phase]
        mine = self._list_steps(node, found, [f"slurmstepd: [{job}.0]" for job in jobs])
        send(mine, signal.SIGKILL)
        return bool(mine)

    def kill_slurmd(self, node: str) -> bool:
        """Kill a node's slurmd, which `restart(at_once=True)` starts again."""
        alive = [process for process in self.record.daemons if process.alive]
        mine = [process for process in alive if process.role == f"{SLURMD}-{node}"]
        return bool(mine) and self._kill_for(mine[0], 0.0) is not None

    def kill_node(self, node: str) -> bool:
        """Kill all that runs on a node."""
        found = self.list_job_processes()
        there = [p for p in found if read_environ(p.pid).get("SLURMD_NODENAME") == node]
        jobs = {read_environ(process.pid).get("SLURM_JOB_ID") for process in there}
        steps = self._list_steps(node, found, [f"slurmstepd: [{job}." for job in jobs])
        killed = self.kill_slurmd(node)
        send([*steps, *there], signal.SIGKILL)
        return killed

    @staticmethod
    def _list_steps(node: str, found: list[Process], titles: Sequence[str]) -> list[Process]:
        """The slurmstepd of a node whose command lines begin so: nothing but what they started
        says on which node they are."""
        there = [p for p in found if read_environ(p.pid).get("SLURMD_NODENAME") == node]
        parents = {read_parent(process.pid) for process in there}
        mine = [process for process in found if process.pid in parents]
        return [p for p in mine if read_command_line(p.pid).startswith(tuple(titles))]

    def _list_ranks(
        self, found: list[Process] | None = None
    ) -> Iterator[tuple[Process, Mapping[str, str]]]:
        for process in self.list_job_processes() if found is None else found:
            variables = read_environ(process.pid)
            if PHASE in variables and "RANK" in variables and "SLURM_JOB_ID" in variables:
                yield process, variables

    def _kill_daemon(self, strike: Strike) -> Hit | None:
        alive = [
            process
            for process in self.record.daemons
            if process.role.startswith(strike.kind) and process.role != "slurmdbd" and process.alive
        ]
        if not alive:
            return None
        process = choose(sorted(alive, key=lambda process: process.role), strike.pick)
        return self._kill_for(process, strike.pause_s)

    def _kill_for(self, process: Process, pause_s: float) -> Hit | None:
        """Kill a daemon, which is started again after a pause."""
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode().split("\0")[:-1]
        environ = read_environ(process.pid)
        kind, _, node = process.role.partition("-")
        hit = self._kill(process, Hit(kind, time.time(), float("inf"), node=node))
        if hit is not None:
            self._dead.append((time.monotonic() + pause_s, hit, command, environ))
        return hit

    def _kill(self, process: Process, hit: Hit) -> Hit | None:
        if not process.alive:
            return None
        send([process], signal.SIGKILL)
        self.hits.append(hit)
        return hit

    def _start(self, role: str, command: list[str], environ: dict[str, str]) -> None:
        """Start a daemon as the lab does, and journal it, so that the lab's end ends it."""
        record = self.record
        files, journal = record.files, Journal(record.files.journal)
        prefix = own_hosts_prefix(files) if files.hosts.exists() else ()
        Daemons(files, record.token, journal, 0.0).start(role, [*prefix, *command], environ)


def choose(things: list[Thing], pick: float) -> Thing:
    return things[int(pick * len(things))]


def phase_of(variables: Mapping[str, str]) -> str:
    """The phase of a process of a job, by the directory of its phase."""
    return Path(variables[PHASE].partition("/attempt-")[0]).name


def read_name(pid: int) -> str:
    try:
        return (PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def read_parent(pid: int) -> int:
    try:
        return int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def read_command_line(pid: int) -> str:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (OSError, UnicodeDecodeError):
        return ""


def read_environ(pid: int) -> dict[str, str]:
    try:
        text = os.fsdecode((PROC / str(pid) / "environ").read_bytes())
    except OSError:
        return {}
    return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)


def draw_strikes(drawn: random.Random, latest_s: float, share: float) -> list[Strike]:
    """The kills of one run, one of each kind at most, in order."""
    strikes = []
    for kind in KINDS:
        at_s, pick = drawn.uniform(1.0, latest_s), drawn.random()
        pause_s, attaches = drawn.uniform(0.5, 6.0), drawn.random() < 2 / 3
        if drawn.random() < share:
            strikes.append(Strike(kind, at_s, pick, pause_s, attaches))
    return sorted(strikes, key=lambda strike: strike.at_s)
