"""Checkpoints, disks, memory and configuration that are broken on purpose."""

from __future__ import annotations

from tests.faults.table.model import (
    ADAPTERS,
    FALLS,
    PRECISION,
    REFERENCES,
    RELOAD,
    SMALL,
    SMALL_LORA,
    Fault,
)
from tests.faults.table.programs import SMALL_ZERO
from tests.support.harness import SMOKE_TESTS

HEALTHY = str(SMOKE_TESTS / "train_mlp.py")


def _zero(fault: str, signature: str, slow: bool = True) -> Fault:
    """A ZeRO phase that fails on all ranks in the same way: naming any of them is right."""
    return Fault(
        f"zero_{fault.replace('-', '_')}",
        "zero_config.py",
        "configuration",
        finding="rank-error",
        signature=signature,
        args={**SMALL_ZERO, "fault": fault},
        slow=slow,
    )


def _shard(fault: str, slow: bool, **expected: object) -> Fault:
    return Fault(
        f"zero_checkpoint_{fault.replace('-', '_')}",
        "zero_checkpoint.py",
        "checkpoint",
        args={**SMALL_ZERO, "fault": fault},
        slow=slow,
        **expected,  # type: ignore[arg-type]
    )


def _altered(fault: str, criteria: set[str], *words: str, **args: object) -> Fault:
    """A LoRA phase that trains something else than it says, on all ranks."""
    return Fault(
        f"lora_{fault.replace('-', '_')}",
        "lora_altered.py",
        "configuration",
        frozenset(criteria),
        words=words,
        of_nobody=True,
        base="FineTuned",
        args={**SMALL_LORA, "max_steps": 8, **args, "fault": fault},
        slow=True,
    )


def _fsdp_shard(
    fault: str, signature: str, words: str, folder: str = "sharded", **more: object
) -> Fault:
    """All ranks fail, and the text names the shard, and so the rank that wrote it."""
    return Fault(
        f"fsdp_checkpoint_{fault.replace('-', '_')}",
        "fsdp_checkpoint.py",
        "checkpoint",
        finding="rank-error",
        signature=signature,
        words=(f"shard {folder}/__1_0.distcp, one of 2, {words}",),
        args={**SMALL_LORA, "sharding": "full", "fault": fault},
        slow=True,
        **more,  # type: ignore[arg-type]
    )


SETTINGS = (
    Fault(
        "other_checkpoint",
        "other_checkpoint.py",
        "checkpoint",
        frozenset({RELOAD}),
        rank=0,
        ranks_per_node=1,
    ),
    Fault(
        "checkpoint_cut",
        "checkpoint_cut.py",
        "checkpoint",
        finding="rank-error",
        signature="checkpoint_damaged",
        slow=True,
    ),
    _shard(
        "rank-0-only",
        True,
        finding="hang",
        # Rank 0 waits in the save, rank 1 goes on to the reload: neither is behind the other.
        words=("ranks wait for each other", "rank 0 (local0) in all_reduce", "in save, called at"),
        settings={"stage_limits_s": {"checkpoint": 8, "reload": 30}},
        within_s=8 + 15,
    ),
    _shard("shard-cut", True, finding="rank-error", signature="checkpoint_damaged", rank=1),
    _shard("shard-gone", True, finding="rank-error", signature="checkpoint_shard_missing", rank=1),
    _fsdp_shard("shard-gone", "checkpoint_shard_missing", "is missing; expected "),
    _fsdp_shard("shard-foreign", "checkpoint_shard_foreign", "is a whole file of another save: "),
    # In the second attempt, whose ranks start anew.
    _fsdp_shard(
        "shard-stopped",
        "checkpoint_shard_missing",
        "is missing; expected ",
        folder="stopped",
        settings={"resume": 2},
        within_s=45.0,
    ),
    # torch does not pass on the kernel's error, only that fewer bytes were written than requested.
    Fault(
        "disk_full",
        "disk_full.py",
        "disk",
        finding="rank-error",
        signature="checkpoint_write_failed",
        words=("usually because space ran out",),
        rank=0,
    ),
    Fault(
        "memory_limit",
        "memory_limit.py",
        "memory",
        finding="rank-error",
        rank=1,
        signature="host_memory_refused",
        # Its largest weight takes 64 MiB, which malloc does not cache: each is a new allocation.
        args={**SMALL, "hidden_size": 1024},
    ),
    Fault(
        "unused_parameters",
        "unused_parameters.py",
        "configuration",
        finding="rank-error",
        signature="ddp_unfinished_reduction",
        slow=True,
    ),
    _zero("no-optimizer", "ds_zero_requires_optimizer"),
    _zero("batch", "ds_batch_arithmetic"),
    _zero("fp32-input", "dtype_mismatch_matmul"),
    Fault(
        "lora_reentrant_twice",
        "lora_reentrant.py",
        "configuration",
        finding="rank-error",
        signature="ddp_ready_once",
        args={**SMALL_LORA, "fault": "twice"},
        slow=True,
    ),
    Fault(
        "lora_reentrant_no_grad",
        "lora_reentrant.py",
        "configuration",
        finding="rank-error",
        signature="no_grad_fn",
        args={**SMALL_LORA, "fault": "no-grad"},
        slow=True,
    ),
    _altered(
        "fp32",
        {PRECISION},
        "linear layers computed in float32 (base_model.model.model.layers.0.self_attn.q_proj",
        "and others) on rank 0 (local0) at step 1; expected bfloat16",
        precision="bf16",
    ),
    _altered(
        "projection-frozen",
        {ADAPTERS},
        "trainable adapter tensors by projection: {'o_proj': 0}; expected 4 of each",
    ),
    # Only adapters are saved, and that weight is lost.
    _altered(
        "base-trainable",
        {ADAPTERS, RELOAD},
        "trainable besides the adapters: ['base_model.model.model.layers.0.input_layernorm",
    ),
    # The tiny base is random by design; the reference is that of a trained base of this vocabulary.
    Fault(
        "lora_base_random",
        str(SMOKE_TESTS / "train_lora_sft.py"),
        "configuration",
        frozenset({REFERENCES, FALLS}),  # adapters alone teach a random base little
        words=("first_loss is ", " the reference 2.000 (allowed: 1.800 to 2.200; "),
        of_nobody=True,
        args={**SMALL_LORA, "max_steps": 6, "micro_batch": 4, "learning_rate": 5e-5},
        profile={
            "references": {
                "lora_base_random": {
                    "first_loss": {
                        "value": 2.0,
                        "lower": "-10 %",
                        "upper": "+10 %",
                        "unit": "1",
                        "source": "a base that is trained",
                    }
                }
            }
        },
        slow=True,
    ),
    Fault(
        "interface_missing",
        HEALTHY,
        "configuration",
        finding="interface-missing",
        words=("GLOO_SOCKET_IFNAME=nosuch0 (the profile) names nosuch0, which does not exist",),
        host="local0",
        settings={"env": {"set": {"GLOO_SOCKET_IFNAME": "nosuch0"}}},
        since="claim",  # no rank starts: counted from the node's first event
    ),
    Fault(
        "script_in_node_local",
        HEALTHY,
        "configuration",
        usage=(f"{HEALTHY}, lies under {SMOKE_TESTS}, which nodes do not share",),
        profile={"node_local": [str(SMOKE_TESTS)]},
    ),
)
# Staged from outside, by a test of its own; the program itself is healthy.
PORT_TAKEN = Fault(
    "port_taken",
    HEALTHY,
    "configuration",
    finding="torchrun-failed",
    signature="addr_in_use",
    host="local0",
    nodes=2,
    ranks_per_node=1,
    slow=True,
)
