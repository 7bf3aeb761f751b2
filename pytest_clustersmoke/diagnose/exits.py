"""How the processes of ranks ended: their exit statuses and signals, and what to do next.

The node's watch sees most of them before torchrun reaps the process; of the others torchrun's log
tells, where what it writes is taken by pid. A rank that torchrun closed itself, since another had
failed, did not end by itself.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..findings import Evidence, tail_lines
from ..telemetry import read_events
from .timeline import node_of

if TYPE_CHECKING:
    from ..result import PhaseResult

# torch/distributed/elastic/multiprocessing/api.py and errors/__init__.py, 2.2 to 2.13.
FAILED = re.compile(r"exitcode\s{0,9}: (-?\d{1,5})\)? .{0,60}?\(pid: (\d{1,9})\)")
CLOSED = re.compile(r"Sending process (\d{1,9}) closing signal SIG")
# Signals by which a process ends through no other rank's doing; abort() is often the answer to a
# peer that is gone, and SIGTERM is how a rank is asked to end.
OWN = {"SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGXCPU", "SIGXFSZ", "SIGSYS"}
NATIVE = (
    "read the stack that it left in its stderr (nodes/ of the run directory), and run it on "
    "another node to tell the program from the machine"
)
FIXES = {
    "SIGKILL": "look on {node} for the kernel's out-of-memory kills (`dmesg -T | grep -i 'killed "
    "process'`, `journalctl -k`; it may take an administrator) and at `sacct -j JOB -o "
    "MaxRSS,State`; where there are none, somebody or a clean-up script killed it",
    "SIGBUS": "look at `df -h /dev/shm` on {node}: a full one ends ranks so, as does a mapped file "
    "that was cut short; a larger /dev/shm, fewer data loader workers, no stale /dev/shm/nccl-* "
    "and /dev/shm/torch_*",
    "SIGSEGV": NATIVE,
    "SIGFPE": NATIVE,
    "SIGILL": "the build is for another CPU than that of {node}: compare `lscpu` of the nodes",
    "SIGABRT": "read the last lines of its stderr (nodes/ of the run directory): an exception or a "
    "failed assertion of native code ended it",
    "SIGTERM": "find out who ended it: torchrun and this suite say so in their logs, the scheduler "
    "in its own",
    "SIGXCPU": "raise the limit on CPU time (`ulimit -t`)",
    "SIGXFSZ": "raise the limit on file sizes (`ulimit -f`)",
}
UNKNOWN = "look at the rank's stderr and, on the node, at the kernel's log (out of memory?)"
LEFT = "find what leaves the program before its Rank is closed (sys.exit, os._exit); its stderr"


@dataclass(frozen=True)
class Exit:
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
        return f"killed by {self.signal}" if self.code < 0 else f"it left with status {self.code}"

    def fix(self, node: str) -> str:
        if self.code >= 0:
            return LEFT
        return FIXES.get(self.signal, UNKNOWN).format(node=node)


def exits(result: PhaseResult) -> dict[int, Exit]:
    """Rank -> how its process ended, by the node's watch or else by torchrun; not those that
    torchrun closed."""
    return _by_torchrun(result) | _by_watch(result) | _all_well(result)


def survivors(result: PhaseResult) -> frozenset[int]:
    """The ranks that were done and whose process did not fail behind that: whatever they said on
    the way they survived, such as an out of memory that the program caught and tried again."""
    known = exits(result)
    return frozenset(
        rank.rank
        for rank in result.ranks
        if rank.done and (rank.rank not in known or known[rank.rank].code == 0)
    )


def _all_well(result: PhaseResult) -> dict[int, Exit]:
    """Of the ranks of nodes whose torchrun ended with status 0: so did each of theirs."""
    found: dict[int, Exit] = {}
    for node in result.nodes:
        code = node.result.get("returncode")
        if node.result.get("reason") == "rank_ended_early" and type(code) is int and code == 0:
            path = str(result.directory.node_result(node.node_rank))
            said = Exit(0, Evidence(path, 1, "torchrun ended with status 0"))
            found |= {one.rank: said for one in result.ranks if node_of(one) == node.node_rank}
    return found


def _by_watch(result: PhaseResult) -> dict[int, Exit]:
    """Of the ranks that had ended when the watch looked; those after them torchrun ended."""
    found: dict[int, Exit] = {}
    for node in result.nodes:
        events = read_events(result.directory.node_events(node.node_rank))
        for record in events.named("ranks"):
            states = record.get("states")
            for state in states if isinstance(states, list) else ():
                if not isinstance(state, dict) or state.get("alive") is not False:
                    continue
                rank, code = state.get("rank"), state.get("exit_code")
                if type(rank) is int and type(code) is int and abs(code) < 256:
                    line = events.line_of(record)
                    said = f"rank {rank} ended with exit code {code}"
                    found.setdefault(rank, Exit(code, Evidence(str(events.path), line, said)))
    return found


def closed(result: PhaseResult) -> frozenset[int]:
    """The ranks that torchrun ended since another one had failed."""
    ranks = _ranks(result)
    return frozenset(
        rank
        for node in result.nodes
        for _, line in tail_lines(result.directory.torchrun_log(node.node_rank))
        for pid in _numbers(CLOSED, line)
        if (rank := ranks.get((node.node_rank, int(pid)))) is not None
    )


def _ranks(result: PhaseResult) -> dict[tuple[object, object], int]:
    return {(node_of(rank), rank.start.get("pid")): rank.rank for rank in result.ranks}


def _by_torchrun(result: PhaseResult) -> dict[int, Exit]:
    ranks, ended_by_it = _ranks(result), closed(result)
    found: dict[int, Exit] = {}
    for node in result.nodes:
        path = result.directory.torchrun_log(node.node_rank)
        lines = list(tail_lines(path))
        for number, line in lines:
            match = FAILED.search(line)
            rank = ranks.get((node.node_rank, int(match[2]))) if match else None
            if match and rank is not None and rank not in ended_by_it:
                evidence = Evidence(str(path), number, line)
                found.setdefault(rank, Exit(int(match[1]), evidence))
    return found


def _numbers(words: re.Pattern[str], line: str) -> Iterator[str]:
    return (match[1] for match in words.finditer(line))
