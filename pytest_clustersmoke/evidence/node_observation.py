"""What is known of a node after a run: what it did in each phase, and what its devices reached.

Both come from jobs, whose text is hostile: it is cut and sanitized where it is stored. They are
kept in history.db, from which the ledger of nodes is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .finding import ISOLATION_FINDING

SCREEN = "screen"  # the source of what --cluster-screen saw; all other sources are phases
GPU, DRIVER = "GPU", "driver"  # kinds of parts

FLAP = "rdma-link-went-down"
NodeState = Literal["good", "bad", "unknown"]

# Which findings say something about a node, by their ids.
NODE_DOWN, SLOW, COMPUTES_WRONGLY = "node-down", "slow-rank", "device-computes-wrongly"
DRAINED = "node-drained"  # slurmctld lost its last seconds, and launched a job where it ran
# Definite where they are failures; as a warning, `rdma-port-down` and `interface-down` may mean
# that the node is cabled differently on purpose.
DEFINITE = frozenset(
    {NODE_DOWN, "host-lost", "gpu-ecc-errors", "gpu-row-remap-failed", "rdma-port-down"}
    | {"interface-down"}
)
# What a device did, whatever the outcome of the job that saw it.
DAMAGE = frozenset({"device-wrong-answer", "gpu-errors-during-job", FLAP})
# What looked at the node itself, or compared it with other nodes of its job.
CHECKS = frozenset(
    {
        SLOW,
        *DEFINITE,
        *DAMAGE,
        *("gpu-clocks-held-down", "gpu-link-errors", "gpu-memory-wear", "pcie-link-narrow"),
        *("rdma-port-errors", "rdma-rail-doubled", "rdma-rail-silent"),
        "nvlink-silent",
        "sockets-beside-infiniband",
        *("build-directory-not-writable", "clock-differs", COMPUTES_WRONGLY, "driver-differs"),
        *("gpu-driver-failed", ISOLATION_FINDING),
        *("gpu-in-use", "gpu-model-differs", "gpu-page-retirement-pending", "gpus-missing"),
        *("gpu-row-remap-pending", "interface-missing", "memlock-limit", "open-files-limit"),
        *("package-missing-on-node", "prolog-failed", "python-missing-on-node", "rdma-port-slow"),
        *("shared-directory-not-seen", "shm-full", "shm-small", "slurmstepd-died", "tmp-full"),
        *("tmp-not-writable", "versions-differ"),
    }
)
# What names nodes and accuses none: between two nodes, by the scheduler or the user, a trick, or a
# mistake in a phase or its program.
HARMLESS = frozenset(
    {
        *("argument-refused", "cancelled-by-other", "fault-staged-unasked", "foreign-events"),
        *("hosts-silent", "job-suspended", "master-unreachable", DRAINED),
        *("nodes-unavailable", "preempted", "rank-api-unused", "requeued", "time-limit"),
        "world-size-mismatch",
    }
)
# The signature of a program that calls the Rank API wrongly.
MISUSE = "rank_api_misuse"
# Slurm itself names these nodes, which need not have written a line.
BY_SCHEDULER = frozenset({NODE_DOWN, "host-lost", "prolog-failed", "slurmstepd-died"})


@dataclass(frozen=True)
class NodeObservation:
    """What one node did in one phase, or in its screen.

    `node` is Slurm's NodeName, or the host. `reason` is the id of a finding or of a check, a colon
    and a line of text; empty for a good node. `definite` is evidence that needs no second one: the
    node died, its GPU reported memory errors, its link went down. `boot_id` and `parts` (a kind ->
    the parts of that kind, such as `GPU` -> UUIDs) are empty if they are unknown. `cleared` are the
    kinds of earlier evidence that a screen looked for and did not find.
    """

    node: str
    source: str
    state: NodeState
    reason: str = ""
    definite: bool = False
    boot_id: str = ""
    parts: Mapping[str, str] = field(default_factory=dict)
    cleared: frozenset[str] = frozenset()

    @property
    def kind(self) -> str:
        """The id of the finding or check."""
        return self.reason.partition(":")[0].strip()


@dataclass(frozen=True)
class DeviceFigure:
    """What a device reached: `gemm_tflops` of a GPU, `nic_busbw_gb_per_s` of a network card.

    `device` is the UUID or serial number of a GPU or a network card; empty for the node itself.
    `phase` is the one that measured it; empty outside of any, as in a screen. `model` is that of
    the GPU or CPU, of a network card its rate; empty if it is unknown.
    """

    node: str
    device: str
    name: str
    value: float
    unit: str
    higher_is_better: bool
    phase: str = ""
    model: str = ""


@dataclass(frozen=True)
class PastObservation(NodeObservation):
    """An observation of a past run; `seen` is when that run began, `written` when it ended, in Unix
    seconds."""

    run_id: str = ""
    seen: float = 0.0
    written: float = 0.0


@dataclass(frozen=True)
class PastFigure(DeviceFigure):
    """A figure of a past run; `seen` is when that run began, in Unix seconds."""

    run_id: str = ""
    seen: float = 0.0
