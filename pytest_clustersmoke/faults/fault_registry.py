"""All faults, by what they affect: ranks, training, checkpoints, collectives, job settings.

Those of training are in `training_registry.py`.
"""

from __future__ import annotations

from typing import Any

from .fault import ALONE, AMONG, JOB, Fault
from .training_registry import BEHIND, RELOAD, TRAINING

INSIDE = "test_transports_inside_nodes_are_those_expected"
BETWEEN = "test_transports_between_nodes_are_those_expected"

# A rank of a small phase that makes no progress for this long is hung.
NO_PROGRESS_S = 10.0
PEAKS = "test_devices_reach_their_peaks"


def _rank_death(name: str, description: str, finding: str = "rank-died", **more: Any) -> Fault:
    """A fault in which one of several ranks ends during training and the others wait for it."""
    fields: dict[str, Any] = {"ranks": 2, "trains": True, **more}
    job = frozenset({JOB})
    return Fault(name, description, "rank", job, findings=(finding,), blames=ALONE, **fields)


def _hang(name: str, description: str, findings: tuple[str, ...], stage: str, **more: Any) -> Fault:
    """A fault in which one of several ranks keeps the others waiting forever."""
    fields: dict[str, Any] = {"ranks": 2, "trains": True, "blames": ALONE, **more}
    fields["stage_limits_s"] = {stage: NO_PROGRESS_S}
    return Fault(name, description, "rank", frozenset({JOB}), findings=findings, **fields)


RANKS = (
    _rank_death("rank-killed-at-start", "SIGKILL before the process group is open"),
    _rank_death("rank-killed", "SIGKILL at the third step, before its collectives"),
    _rank_death("rank-killed-in-collective", "SIGKILL while it waits in a collective"),
    _rank_death("rank-exited", "os._exit(3) at the third step"),
    _rank_death("rank-raised", "an exception at the third step", "rank-error"),
    _hang("rank-hung", "one rank stops making progress at the third step", ("hang",), "train_step"),
    _hang(
        "rank-out-of-step",
        "one rank skips a collective that the others call, and continues",
        ("collective-mismatch",),
        "train_step",
        blames=AMONG,
    ),
    Fault(
        "rank-slow",
        "one rank sleeps in each step for as long as the step takes, at least 0.25 s",
        "rank",
        frozenset({BEHIND}),
        blames=ALONE,
        ranks=2,
        trains=True,
        compares_times=True,
    ),
    Fault(
        "rank-slow-backward",
        "one rank computes in each backward pass for as long as a step takes, at least 0.05 s",
        "rank",
        frozenset({BEHIND}),
        blames=ALONE,
        ranks=2,
        trains=True,
        mark="ddp",
        compares_times=True,
    ),
    Fault(
        "rank-slow-optimizer",
        "one rank computes in each step of the optimizer for as long as a step takes, at least "
        "0.05 s",
        "rank",
        frozenset({BEHIND}),
        blames=ALONE,
        ranks=2,
        trains=True,
        compares_times=True,
    ),
    # No event of that rank counts, also none that it stages a fault: all ranks record it.
    Fault(
        "evidence-stale",
        "the events of one rank are those of an earlier run",
        "ranks",
        frozenset({JOB}),
        findings=("foreign-events",),
        blames=ALONE,
        ranks=2,
        trains=True,
    ),
)
DEVICES = (
    Fault(
        "device-wrong-answer",
        "on one rank one of the multiplications whose product is known has a wrong element",
        "rank",
        frozenset({PEAKS}),
        blames=ALONE,
        ranks=2,
        peaks=True,
    ),
    Fault(
        "device-slow",
        "one rank does each multiplication four times while its device is measured",
        "rank",
        frozenset({PEAKS}),
        blames=ALONE,
        ranks=2,
        peaks=True,
    ),
)
CHECKPOINTS = (
    Fault(
        "checkpoint-truncated",
        "the largest file of the checkpoint is truncated to half its size after saving",
        "ranks",
        frozenset({JOB}),
        findings=("rank-error",),
        signatures=("checkpoint_damaged",),
        trains=True,
    ),
    Fault(
        "checkpoint-foreign",
        "the saved weights differ from the trained ones",
        "ranks",
        frozenset({RELOAD}),
        trains=True,
    ),
    _hang(
        "checkpoint-rank0-only",
        "only rank 0 saves a checkpoint that every rank must take part in",
        ("hang", "collective-mismatch"),
        "checkpoint",
        mark="deepspeed",
        # Each rank waits for the other in a different collective.
        blames=AMONG,
    ),
)
COLLECTIVE = (
    Fault(
        "result-corrupted",
        "one number of a reduced buffer is wrong on one rank",
        "rank",
        frozenset(),  # the suite marks its criterion with `detects`
        blames=ALONE,
        ranks=2,
    ),
    Fault(
        "p2p-off",
        "NCCL_P2P_DISABLE=1: the GPUs of a node communicate through shared memory",
        "job",
        frozenset({INSIDE}),
        ranks=2,
        transports="inside",
        unexpected=("SHM/direct/direct",),
        env={"NCCL_P2P_DISABLE": "1"},
    ),
    Fault(
        "network-in-node",
        "NCCL_P2P_DISABLE=1 and NCCL_SHM_DISABLE=1: the GPUs of a node use the network",
        "job",
        frozenset({INSIDE}),
        ranks=2,
        transports="inside",
        unexpected=("NET/Socket/0", "NET/IB/0"),
        env={"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
    ),
    Fault(
        "infiniband-off",
        "NCCL_IB_DISABLE=1: the nodes communicate over sockets",
        "job",
        frozenset({BETWEEN}),
        nodes=2,
        ranks=2,
        transports="between",
        unexpected=("NET/Socket/0",),
        env={"NCCL_IB_DISABLE": "1"},
    ),
)
SETTINGS = (
    Fault(
        "batch-arithmetic",
        "train_batch_size in the DeepSpeed configuration is one more than the product of its parts",
        "ranks",
        frozenset({JOB}),
        findings=("rank-error",),
        signatures=("ds_batch_arithmetic",),
        trains=True,
        mark="deepspeed",
    ),
    Fault(
        "optimizer-missing",
        "the DeepSpeed configuration for ZeRO has no optimizer",
        "ranks",
        frozenset({JOB}),
        findings=("rank-error",),
        signatures=("ds_zero_requires_optimizer",),
        trains=True,
        mark="deepspeed",
    ),
    Fault(
        "interface-missing",
        "NCCL and gloo are pinned to an interface that no node has",
        "job",
        frozenset({JOB}),
        findings=("interface-missing",),
        ranks=2,
        env={"NCCL_SOCKET_IFNAME": "=staged0", "GLOO_SOCKET_IFNAME": "staged0"},
    ),
    Fault(
        "setup-line-fails",
        "an added setup line exits with status 3",
        "job",
        frozenset({JOB}),
        findings=("setup-line-failed",),
        setup=("(exit 3)  # staged",),
    ),
    Fault(
        "package-missing",
        "the interpreter on the nodes is started without its site-packages",
        "job",
        frozenset({JOB}),
        findings=("package-missing-on-node",),
        python_flags="-I -S",
    ),
    Fault(
        "time-limit",
        "the phase's time limit is one second",
        "job",
        frozenset({JOB}),
        findings=("time-limit",),
        timeout_s=1.0,
    ),
    Fault(
        "submission-refused",
        "the job asks for a partition that does not exist",
        "job",
        frozenset({JOB}),
        findings=(
            "partition-unknown",
            "submission-refused",
        ),  # found by preflight, or by sbatch
        outcome="never_ran",
        backend="slurm",
        slurm={"partition": "clustersmoke-staged"},
    ),
)

FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (*RANKS, *DEVICES, *TRAINING, *CHECKPOINTS, *COLLECTIVE, *SETTINGS)
}
