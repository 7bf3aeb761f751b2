"""How the processes of ranks ended: their exit statuses and signals, and what to do next.

The node's watch sees most of them before torchrun reaps the process; of the others torchrun's log
tells, where what it writes is taken by pid. A rank that torchrun closed itself, since another had
failed, did not end by itself.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..evidence.finding import Evidence, tail_lines
from ..evidence.phase_result import PhaseResult
from ..evidence.telemetry import Events
from .timeline import node_of

# torch/distributed/elastic/multiprocessing/api.py and errors/__init__.py, 2.2 to 2.13.
FAILED = re.compile(r"exitcode\s{0,9}: (-?\d{1,5})\)? .{0,60}?\(pid: (\d{1,9})\)")
CLOSED = re.compile(r"Sending process (\d{1,9}) closing signal SIG")
# Signals by which a process ends through no other rank's doing; abort() is often the answer to a
# peer that is gone, and SIGTERM is how a rank is asked to end.
OWN = {"SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGXCPU", "SIGXFSZ", "SIGSYS"}
NATIVE = (
    "read the stack that it left in its stderr (nodes/ of the run directory), and run it on "
    "another node to tell a program fault from a machine fault"
)
FIXES = {
    "SIGKILL": "look on {node} for the kernel's out-of-memory kills (`dmesg -T | grep -i 'killed "
    "process'`, `journalctl -k`; it may need an administrator) and at `sacct -j JOB -o "
    "MaxRSS,State`; if there are none, a person or a clean-up script killed it",
    "SIGBUS": "check `df -h /dev/shm` on {node}: a full /dev/shm kills ranks this way, and so does "
    "a memory-mapped file that was truncated; use a larger /dev/shm or fewer data loader workers, "
    "and remove stale /dev/shm/nccl-* and /dev/shm/torch_*",
    "SIGSEGV": NATIVE,
    "SIGFPE": NATIVE,
    "SIGILL": "the build is for a different CPU from that of {node}: compare `lscpu` on the nodes",
    "SIGABRT": "read the last lines of its stderr (nodes/ of the run directory): an exception or a "
    "failed assertion of native code ended it",
    "SIGTERM": "find out who ended it: torchrun, this suite and the scheduler each log the ranks "
    "that they end",
    "SIGXCPU": "raise the limit on CPU time (`ulimit -t`)",
    "SIGXFSZ": "raise the limit on file sizes (`ulimit -f`)",
}
UNKNOWN = "read the rank's stderr and, on the node, the kernel's log (out of memory?)"
LEFT = "find what exits the program before its Rank is closed (sys.exit, os._exit); read its stderr"


@dataclass(frozen=True)
class RankExit:
    """`code` as torchrun and Python count: the exit status, or minus the number of the signal."""

    code: int
    evidence: Evidence

    @property
    def signal(self) -> str:
        """The signal's name; empty where it ended by itself."""
        try:
            return signal.Signals(-self.code).name if self.code < 0 else ""
        except ValueError:
            return f"signal {-self.code}"

    @property
    def own(self) -> bool:
        """Whether it ended by no other rank's doing, as far as the signal tells."""
        return self.signal in OWN

    def __str__(self) -> str:
        return f"killed by {self.signal}" if self.code < 0 else f"exited with status {self.code}"

    def fix(self, node: str) -> str:
        if self.code >= 0:
            return LEFT
        return FIXES.get(self.signal, UNKNOWN).format(node=node)


@dataclass(frozen=True)
class RankExits:
    """Rank -> how its process ended, by the node's watch or else by torchrun; `closed` are those
    that torchrun ended because another one had failed."""

    by_rank: Mapping[int, RankExit]
    closed: frozenset[int]

    @classmethod
    def of(cls, result: PhaseResult, events: Mapping[int, Events]) -> RankExits:
        """By each node's events and its torchrun's log, which is read once."""
        found: dict[int, RankExit] = {}
        closed: set[int] = set()
        for node in result.nodes:
            log = result.directory.torchrun_log(node.node_rank)
            mine = {
                pid: rank.rank
                for rank in result.ranks
                if node_of(rank) == node.node_rank and type(pid := rank.start.get("pid")) is int
            }
            by_torchrun, closed_here = _by_torchrun(log, mine)
            found = by_torchrun | found
            closed |= closed_here
        return cls(found | _by_watch(events.values()) | _all_well(result), frozenset(closed))


def _by_torchrun(log: Path, ranks: Mapping[int, int]) -> tuple[dict[int, RankExit], set[int]]:
    """What a node's torchrun says of its ranks (pid -> rank): how they failed, whom it ended."""
    failed: dict[int, RankExit] = {}
    closed: set[int] = set()
    for number, line in tail_lines(log):
        pids = (int(one[1]) for one in CLOSED.finditer(line))
        closed |= {ranks[pid] for pid in pids if pid in ranks}
        match = FAILED.search(line)
        if match and (rank := ranks.get(int(match[2]))) is not None:
            failed.setdefault(rank, RankExit(int(match[1]), Evidence(str(log), number, line)))
    return {rank: one for rank, one in failed.items() if rank not in closed}, closed


def _by_watch(events: Iterable[Events]) -> dict[int, RankExit]:
    """Of the ranks that had ended when the watch looked; those after them torchrun ended."""
    found: dict[int, RankExit] = {}
    for of_node in events:
        for record in of_node.named("ranks"):
            states = record.get("states")
            for state in states if isinstance(states, list) else ():
                if not isinstance(state, dict) or state.get("alive") is not False:
                    continue
                rank, code = state.get("rank"), state.get("exit_code")
                if type(rank) is int and type(code) is int and abs(code) < 256:
                    line = of_node.line_of(record)
                    said = f"rank {rank} ended with exit code {code}"
                    found.setdefault(rank, RankExit(code, Evidence(str(of_node.path), line, said)))
    return found


def _all_well(result: PhaseResult) -> dict[int, RankExit]:
    """Of the ranks of nodes whose torchrun ended with status 0: so did each of theirs."""
    found: dict[int, RankExit] = {}
    for node in result.nodes:
        code = node.result.get("returncode")
        if node.result.get("reason") == "rank_ended_early" and type(code) is int and code == 0:
            path = str(result.directory.node_result(node.node_rank))
            said = RankExit(0, Evidence(path, 1, "torchrun ended with status 0"))
            found |= {one.rank: said for one in result.ranks if node_of(one) == node.node_rank}
    return found
