"""A deep MLP in DeepSpeed's engine: the configuration, the settings in effect, the state."""

from __future__ import annotations

import argparse
import copy
from typing import Any

import torch
from torch import nn

from pytest_clustersmoke.rank import Rank

STAGES, PRECISIONS, OFFLOADS = (1, 2, 3), ("bf16", "fp16"), ("none", "cpu")


def build_model(hidden_size: int, layers: int) -> nn.Module:
    """Layers of h -> 4h, GELU, 4h -> h, one after the other."""
    modules: list[nn.Module] = []
    for _ in range(layers):
        up, down = nn.Linear(hidden_size, hidden_size * 4), nn.Linear(hidden_size * 4, hidden_size)
        # torch's default shrinks the signal to a sixth in each layer: after six layers it is lost
        # in bf16, and the loss cannot fall. These values keep the variance (0.425 after GELU).
        nn.init.normal_(up.weight, std=up.in_features**-0.5)
        nn.init.normal_(down.weight, std=(0.425 * down.in_features) ** -0.5)
        nn.init.zeros_(up.bias)
        nn.init.zeros_(down.bias)
        modules += [up, nn.GELU(), down]
    return nn.Sequential(*modules)


def deepspeed_config(args: argparse.Namespace, rank: Rank) -> dict[str, Any]:
    adam: dict[str, Any] = {"lr": args.learning_rate, "betas": [0.9, 0.999], "eps": 1e-8}
    adam["weight_decay"] = 0.01
    if rank.device.type == "cpu":
        adam["torch_adam"] = True  # DeepSpeed would compile its own: a minute of C++
    # Starts at a scale of 2**16. A step whose gradients overflow is skipped, and halves it.
    scaling = {"loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16}
    return {
        "train_batch_size": args.micro_batch * rank.world_size * args.accumulation,
        "train_micro_batch_size_per_gpu": args.micro_batch,
        "gradient_accumulation_steps": args.accumulation,
        "optimizer": {"type": "AdamW", "params": adam},
        "zero_optimization": zero_config(args, rank),
        "zero_force_ds_cpu_optimizer": rank.device.type == "cuda",
        args.precision: {"enabled": True, **(scaling if args.precision == "fp16" else {})},
        "gradient_clipping": args.clip,
        "steps_per_print": 25,
        "wall_clock_breakdown": False,
    }


def zero_config(args: argparse.Namespace, rank: Rank) -> dict[str, Any]:
    config: dict[str, Any] = {
        "stage": args.stage,
        "reduce_bucket_size": args.bucket_size,
        "allgather_bucket_size": args.bucket_size,
        "overlap_comm": args.offload == "none",
        "contiguous_gradients": True,
    }
    where = {"device": args.offload, "pin_memory": rank.device.type == "cuda"}
    if args.offload != "none":
        config["offload_optimizer"] = where
    if args.stage == 3:
        if args.offload != "none":
            config["offload_param"] = where
        config["stage3_gather_16bit_weights_on_model_save"] = True
    return config


def build(args: argparse.Namespace, config: dict[str, Any], seed: int) -> Any:
    """DeepSpeed's engine: the model and its optimizer."""
    from deepspeed import initialize

    torch.manual_seed(seed)
    model = build_model(args.hidden_size, args.layers)
    return initialize(
        model=model,
        model_parameters=model.parameters(),
        config=copy.deepcopy(config),  # DeepSpeed 0.14 removes torch_adam from it
    )[0]


def read_back(engine: Any) -> dict[str, Any]:
    """The settings in effect, as the engine reports them."""
    optimizer = type(engine.optimizer.optimizer).__name__
    parameters = list(engine.module.parameters())
    whole = sum(getattr(p, "ds_numel", p.numel()) for p in parameters)  # ds_: of ZeRO-3
    held = sum(getattr(p, "ds_tensor", p).numel() for p in parameters)
    return {
        "zero_stage": int(engine.zero_optimization_stage()),
        "precision": "bf16" if engine.bfloat16_enabled() else "fp16",
        "parameter_dtypes": sorted({str(p.dtype) for p in parameters}),
        "parameters": whole,
        "held_share": held / whole,
        "offload_optimizer": read_device(engine.zero_offload_optimizer()),
        "offload_param": read_device(engine.zero_offload_param()),
        "engine": type(engine).__name__,
        "zero_optimizer": type(engine.optimizer).__name__,
        "optimizer": optimizer,
        "fused_adam": optimizer == "FusedAdam",
        "gradient_clipping": float(engine.gradient_clipping()),
        "reduce_bucket_size": int(engine.zero_reduce_bucket_size()),
        "allgather_bucket_size": int(engine.zero_allgather_bucket_size()),
        "train_batch_size": int(engine.train_batch_size()),
        "gradient_accumulation_steps": int(engine.gradient_accumulation_steps()),
    }


def read_device(offload: Any) -> str:
    return "none" if offload is None else str(getattr(offload.device, "value", offload.device))


def find_devices(engine: Any) -> dict[str, list[str]]:
    """Where the parts are that this rank holds under ZeRO-3, whatever the settings say: weights,
    masters in fp32, and Adam's first moments."""
    zero = engine.optimizer
    weights = [p.ds_tensor for p in engine.module.parameters() if hasattr(p, "ds_tensor")]
    masters = getattr(zero, "fp32_partitioned_groups_flat", [])
    moments = [s["exp_avg"] for s in zero.optimizer.state.values() if "exp_avg" in s]
    parts = {"weights": weights, "masters": masters, "moments": moments}
    return {name: sorted({t.device.type for t in tensors}) for name, tensors in parts.items()}


def state_of(engine: Any) -> dict[str, Any]:
    """The state that a checkpoint must restore on this rank: the weights, under ZeRO-3 its part of
    them, and its share of the optimizer."""
    parameters = engine.module.named_parameters()
    weights = {name: getattr(p, "ds_tensor", p).detach() for name, p in parameters}
    optimizer = engine.optimizer.state_dict()
    scaler = optimizer.pop("loss_scaler", None)  # an object of DeepSpeed's
    numbers = {
        name: v for name, v in getattr(scaler, "__dict__", {}).items() if type(v) in (int, float)
    }
    return {"module": weights, "optimizer": optimizer, "loss_scaler": numbers}
