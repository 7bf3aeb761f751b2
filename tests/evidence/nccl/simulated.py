"""Jobs that create and connect communicators in many ways, and the logs that NCCL would write.

Each communicator connects on a channel of its own, so every edge shows which one it belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from pytest_clustersmoke.evidence.nccl.nccl_log import Communicator
from tests.evidence.nccl.wording import VERSIONS, Gpu, Nccl, gpu

Group = list[int]  # the job's ranks, in the order of the communicator's


@dataclass
class SimulatedJob:
    """A job of random size, version and communicators; `logs` has the lines of each rank's GPU."""

    random: Random
    one_process_a_node: bool = False
    in_order: bool = False  # the ranks of each group are in the order of the job's
    nccl: Nccl = field(init=False)
    gpus: list[Gpu] = field(init=False)
    groups: list[Group] = field(init=False)
    logs: list[list[str]] = field(init=False)

    def __post_init__(self) -> None:
        choose = self.random.choice
        # 2.3 logs no devices: a process with several GPUs looks like one rank.
        self.nccl = Nccl(choose([version for version in VERSIONS if version != "2.3.5"]))
        self.per_node, nodes = choose([1, 2, 4]), choose([1, 2, 4])
        self.gpus = [gpu(rank, self.per_node) for rank in range(self.per_node * nodes)]
        if self.one_process_a_node:
            self.gpus = [member._replace(pid=member.pid - member.device) for member in self.gpus]
        # From 2.22 on connections are made within init only if cuMem is off.
        self.eager = not self.nccl.lazy or self.random.random() < 0.3
        self.groups = self._groups(nodes)
        self.splits = self.groups[0] == list(range(len(self.gpus))) and self.random.random() < 0.6
        self.one_colour = self.random.random() < 0.3
        self.alive: set[int] = set()
        self.logs = [[] for _ in self.gpus]
        if self.random.random() < 0.7:
            self.logs[0].append(self.nccl.banner(self.gpus[0]))
        for index, group in enumerate(self.groups):
            for rank, member in enumerate(group):
                self.logs[member] += self._init(index, rank, self.gpus[member])
            for known in sorted(self.alive | {index}):
                for rank, member in enumerate(self.groups[known]):
                    self.logs[member] += self._later(known, rank, self.gpus[member])
            self.alive.add(index)
            dying = [known for known in sorted(self.alive) if known and self.random.random() < 0.15]
            for known in dying:
                self.alive.remove(known)
                for rank, member in enumerate(self.groups[known]):
                    self.logs[member] += self._destroyed(known, rank, self.gpus[member])

    def merged(self, random: Random) -> list[str]:
        """All lines; those of one log keep their order."""
        left = [list(reversed(log)) for log in self.logs if log]
        lines = []
        while left:
            log = random.choice(left)
            lines.append(log.pop())
            left = [log for log in left if log]
        return lines

    def may_be(self, communicator: Communicator, index: int) -> bool:
        """Whether everything that the reader reports about a communicator is true of that group."""
        group = self.groups[index]
        if communicator.ranks not in (None, len(group)):
            return False
        for rank, member in communicator.members.items():
            true = self.gpus[group[rank]] if rank < len(group) else None
            process, device = member.process, member.cuda_device
            if (
                true is None
                or process is None
                or (process.host, process.pid)
                != (
                    true.host,
                    str(true.pid),
                )
            ):
                return False
            if device not in (None, true.device):
                return False
        return True

    # -- Communicators -----------------------------------------------------------------------------

    def _groups(self, nodes: int) -> list[Group]:
        world, per = len(self.gpus), self.per_node
        groups: list[Group] = []
        if self.random.random() < 0.85:
            groups.append(list(range(world)))
        for _ in range(self.random.randrange(3)):
            kind = self.random.choice(["rows", "columns", "pair", "world"])
            if kind == "rows":
                groups += [list(range(n * per, (n + 1) * per)) for n in range(nodes)]
            elif kind == "columns":
                groups += [list(range(c, world, per)) for c in range(per)]
            elif kind == "pair" and world > 1:
                pair = self.random.sample(range(world), 2)
                groups.append(sorted(pair) if self.in_order else pair)
            else:
                groups.append(list(range(world)))
        return [group for group in groups if len(group) > 1] or [list(range(world))]

    def _init(self, index: int, rank: int, member: Gpu) -> list[str]:
        process = member._replace(rank=rank, tid=self._thread(member, 1000 + index))
        ranks, comm = len(self.groups[index]), self._pointer(index, member)
        inside = self._edges(index, rank, process.tid, connection=0) if self.eager else []
        if self.splits and index > 0 and self.nccl.number >= (2, 18, 0):
            parent = self._pointer(0, member)
            # Each is a call of all ranks. Before 2.22 calls with the same colour share an id.
            comm_id = "0x57" if self.one_colour else f"0x5{index:x}"
            start, end = self.nccl.split(process, ranks, parent, comm, index, 7, comm_id)
            return [start, *inside, end]
        arguments = process, ranks, comm, f"0x{index + 1:x}ff"
        return [*self.nccl.start(*arguments), *inside, self.nccl.complete(*arguments)]

    def _destroyed(self, index: int, rank: int, member: Gpu) -> list[str]:
        """The end of a communicator, which 2.12.7 and later log."""
        if self.nccl.number < (2, 12, 7):
            return []
        comm = f"comm {self._pointer(index, member)} rank {rank} nranks {len(self.groups[index])}"
        devices = f"cudaDev {member.device} busId {member.bus}"
        return [f"{member.head}{comm} {devices} - Destroy COMPLETE"]

    @staticmethod
    def _pointer(index: int, member: Gpu) -> str:
        return f"0x{index + 1:x}a{member.tid:x}"

    def _later(self, index: int, rank: int, member: Gpu) -> list[str]:
        """Connections of send/recv, and of a collective that init did not connect."""
        lines = []
        if not self.eager and self.random.random() < 0.4:
            lines += self._edges(index, rank, self._thread(member, 2000 + index), connection=0)
        if self.nccl.number >= (2, 7, 0) and self.random.random() < 0.2:
            lines += self._edges(index, rank, self._thread(member, 3000 + index), connection=1)
        return lines

    def _thread(self, member: Gpu, other: int) -> int:
        """The main thread of a GPU, or another."""
        return member.tid if self.random.random() < 0.6 else member.tid + other

    def _edges(self, index: int, rank: int, tid: int, connection: int) -> list[str]:
        group = self.groups[index]
        ends = [self.gpus[member]._replace(rank=r) for r, member in enumerate(group)]
        process = ends[rank]._replace(tid=tid)
        lines = []
        for peer in {(rank + 1) % len(group), (rank - 1) % len(group)} - {rank}:
            other, after = ends[peer], peer == (rank + 1) % len(group)
            if other.host == process.host and self.random.random() < 0.3:
                lines.append(self.nccl.shm(process, other, index))
            elif other.host == process.host:
                lines.append(self.nccl.p2p(process, other, "IPC", index, connection))
            elif after:
                lines.append(self.nccl.net(process, other, "IB/0", "send", index, connection))
            if other.host != process.host and peer == (rank - 1) % len(group):
                lines.append(self.nccl.net(other, process, "IB/0", "receive", index, connection))
        return lines
