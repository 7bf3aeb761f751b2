"""How the processes of ranks ended: their exit statuses and signals, and what to do next.

The node's watch sees most of them before torchrun reaps the process; torchrun's log has the others,
by pid. A rank that torchrun closed because another had failed did not end by itself.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..evidence.finding import Evidence, read_tail
from ..evidence.phase_result import PhaseResult
from ..evidence.telemetry import Events, parse_int, parse_rows

# torch/distributed/elastic/multiprocessing/api.py and errors/__init__.py, 2.2 to 2.13.
FAILED = re.compile(r"exitcode\s{0,9}: (-?\d{1,5})\)? .{0,60}?\(pid: (\d{1,9})\)")
# deepspeed/launcher/launch.py, 0.14 to 0.19: how the first rank failed, without its pid.
FIRST = re.compile(
    r"\[launch\.py:\d{1,6}:\w{1,40}\].{0,4000}? exits with return code = (-?\d{1,3})"
)
CLOSED = re.compile(r"Sending process (\d{1,9}) closing signal SIG")
# Signals that no other rank causes. abort() is often the reaction to a lost peer, and SIGTERM a
# request to end.
OWN = {"SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGXCPU", "SIGXFSZ", "SIGSYS"}
NATIVE = (
    "read the stack that it left in its stderr (nodes/ of the run directory), and run it on "
    "another node to tell a program fault from a machine fault"
)
FIXES = {
    "SIGKILL": "look on {node} for the kernel's out-of-memory kills (`dmesg -T | grep -i 'killed "
    "process'`, `journalctl -k`; it may need an administrator){accounting}; if there are none, a "
    "person or a clean-up script killed it",
    "SIGBUS": "check `df -h /dev/shm` on {node}: a full /dev/shm kills ranks this way, and so does "
    "a memory-mapped file that was truncated; use a larger /dev/shm or fewer data loader workers, "
    "and remove stale /dev/shm/nccl-* and /dev/shm/torch_*",
    "SIGSEGV": NATIVE,
    "SIGFPE": NATIVE,
    "SIGILL": "the build is for a different CPU from that of {node}: compare `lscpu` on the nodes",
    "SIGABRT": "read the last lines of its stderr (nodes/ of the run directory): an exception or a "
    "failed assertion of native code ended it",
    "SIGTERM": "find out who ended it: the launcher, this suite and the scheduler each log the "
    "ranks that they end",
    "SIGXCPU": "raise the limit on CPU time (`ulimit -t`)",
    "SIGXFSZ": "raise the limit on file sizes (`ulimit -f`)",
}
UNKNOWN = "read the rank's stderr and, on the node, the kernel's log (out of memory?)"
LEFT = "find what exits the program before its Rank is closed (sys.exit, os._exit); read its stderr"


@dataclass(frozen=True)
class RankExit:
    """`code` as in torchrun and Python: the exit status, or the negative signal number."""

    code: int
    evidence: Evidence

    @property
    def signal(self) -> str:
        """The signal's name; empty if the process exited by itself."""
        try:
            return signal.Signals(-self.code).name if self.code < 0 else ""
        except ValueError:
            return f"signal {-self.code}"

    @property
    def own(self) -> bool:
        """Whether the signal shows that no other rank caused the end."""
        return self.signal in OWN

    def __str__(self) -> str:
        return f"killed by {self.signal}" if self.code < 0 else f"exited with status {self.code}"

    def fix(self, node: str, slurm_job: str) -> str:
        """What to do; `slurm_job` is empty if the job is not Slurm's."""
        if self.code >= 0:
            return LEFT
        accounting = f" and at `sacct -j {slurm_job} -o MaxRSS,State`" if slurm_job else ""
        return FIXES.get(self.signal, UNKNOWN).format(node=node, accounting=accounting)


@dataclass(frozen=True)
class RankExits:
    """Rank -> how its process ended, from the node's watch or from the launcher's log; `closed`
    are the ranks that the launcher ended because another one had failed."""

    by_rank: Mapping[int, RankExit]
    closed: frozenset[int]

    @classmethod
    def of(cls, result: PhaseResult, events: Mapping[int, Events]) -> RankExits:
        """From each node's events and its launcher's log, which is read once."""
        exits: dict[int, RankExit] = {}
        closed: set[int] = set()
        for node in result.nodes:
            log = result.directory.launcher_log(node.node_rank)
            mine = {
                pid: rank.rank
                for rank in result.ranks
                if rank.node_rank == node.node_rank and (pid := rank.pid) is not None
            }
            by_launcher, closed_here = _read_launcher_log(log, mine)
            by_deepspeed = _read_deepspeed_log(log, events.get(node.node_rank))
            exits = by_launcher | by_deepspeed | exits
            closed |= closed_here
        return cls(
            exits | _read_watch_events(events.values()) | _exits_of_success(result),
            frozenset(closed),
        )


def _read_launcher_log(log: Path, ranks: Mapping[int, int]) -> tuple[dict[int, RankExit], set[int]]:
    """From a node's torchrun log (`ranks`: pid -> rank): how ranks failed, which ones it ended."""
    failed: dict[int, RankExit] = {}
    closed: set[int] = set()
    for number, line in read_tail(log):
        pids = (int(match[1]) for match in CLOSED.finditer(line))
        closed |= {ranks[pid] for pid in pids if pid in ranks}
        match = FAILED.search(line)
        if match and (rank := ranks.get(int(match[2]))) is not None:
            failed.setdefault(rank, RankExit(int(match[1]), Evidence(str(log), number, line)))
    return {rank: end for rank, end in failed.items() if rank not in closed}, closed


def _read_deepspeed_log(log: Path, watched: Events | None) -> dict[int, RankExit]:
    """How a rank failed that DeepSpeed's launcher reaped before the node's watch saw its end; empty
    if the watch found more than one such rank, since the log does not say which it was."""
    states = [
        state
        for record in (watched.named("ranks") if watched else ())
        for state in parse_rows(record.get("states"))
        if state.get("alive") is False
    ]
    if len(states) != 1 or (rank := parse_int(states[0].get("rank"))) is None:
        return {}
    for number, line in read_tail(log):
        if match := FIRST.search(line):
            return {rank: RankExit(int(match[1]), Evidence(str(log), number, line))}
    return {}


def _read_watch_events(events: Iterable[Events]) -> dict[int, RankExit]:
    """The ranks that had ended when the watch looked; torchrun ended the later ones."""
    exits: dict[int, RankExit] = {}
    for of_node in events:
        for record in of_node.named("ranks"):
            for state in parse_rows(record.get("states")):
                if state.get("alive") is not False:
                    continue
                rank, code = parse_int(state.get("rank")), parse_int(state.get("exit_code"))
                if rank is not None and code is not None and abs(code) < 256:
                    line = of_node.line_of(record)
                    text = f"rank {rank} ended with exit code {code}"
                    exits.setdefault(rank, RankExit(code, Evidence(str(of_node.path), line, text)))
    return exits


def _exits_of_success(result: PhaseResult) -> dict[int, RankExit]:
    """The ranks of nodes whose launcher exited with status 0: each of them did so too."""
    exits: dict[int, RankExit] = {}
    for node in result.nodes:
        code = parse_int(node.result.get("returncode"))
        if node.reason == "rank_ended_early" and code == 0:
            path = str(result.directory.node_result(node.node_rank))
            success = RankExit(0, Evidence(path, 1, "the launcher ended with status 0"))
            exits |= {
                rank.rank: success for rank in result.ranks if rank.node_rank == node.node_rank
            }
    return exits
