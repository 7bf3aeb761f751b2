"""DeepSpeed ZeRO trains a deep MLP in bf16: 805,429,248 parameters, 1,073,905,664 with --layers 8.

By hand:  torchrun --standalone --nproc_per_node=2 smoke_tests/train_zero.py
small:    torchrun --standalone --nproc_per_node=2 smoke_tests/train_zero.py \\
              --hidden-size 128 --layers 2 --steps 30 --learning-rate 1e-3
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pytest_clustersmoke.rank import Rank

if TYPE_CHECKING:
    from smoke_tests.teacher import Teacher
else:  # torchrun puts this file's own folder on the path, and not the one above
    from teacher import Teacher

TAG = "final"


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden-size", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--stage", type=int, default=1, choices=(1, 2))
    parser.add_argument("--micro-batch", type=int, default=32, help="per rank")
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--bucket-size", type=int, default=500_000_000)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def build_model(hidden_size: int, layers: int) -> nn.Module:
    """Layers of h -> 4h, GELU, 4h -> h, one after the other."""
    modules: list[nn.Module] = []
    for _ in range(layers):
        up, down = nn.Linear(hidden_size, hidden_size * 4), nn.Linear(hidden_size * 4, hidden_size)
        # torch's default shrinks the signal to a sixth in each layer: after six of them bf16 no
        # longer carries it, and the loss cannot fall. These keep its variance (GELU's is 0.425).
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
        adam["torch_adam"] = True  # DeepSpeed's own would be compiled: a minute of C++
    return {
        "train_batch_size": args.micro_batch * rank.world_size * args.accumulation,
        "train_micro_batch_size_per_gpu": args.micro_batch,
        "gradient_accumulation_steps": args.accumulation,
        "optimizer": {"type": "AdamW", "params": adam},
        "zero_optimization": {
            "stage": args.stage,
            "reduce_bucket_size": args.bucket_size,
            "allgather_bucket_size": args.bucket_size,
            "overlap_comm": True,
            "contiguous_gradients": True,
        },
        "bf16": {"enabled": True},
        "gradient_clipping": args.clip,
        "steps_per_print": 25,
        "wall_clock_breakdown": False,
    }


def read_back(engine: Any) -> dict[str, Any]:
    """What the engine says it does, not what it was asked for."""
    optimizer = type(engine.optimizer.optimizer).__name__
    parameters = list(engine.module.parameters())
    return {
        "zero_stage": int(engine.zero_optimization_stage()),
        "precision": "bf16" if engine.bfloat16_enabled() else "fp32",
        "parameter_dtypes": sorted({str(p.dtype) for p in parameters}),
        "parameters": sum(p.numel() for p in parameters),
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


def state_of(engine: Any) -> dict[str, Any]:
    """Everything a checkpoint must bring back on this rank: its own share of the optimizer too."""
    return {"module": engine.module.state_dict(), "optimizer": engine.optimizer.state_dict()}


def train(args: argparse.Namespace, rank: Rank, engine: Any) -> None:
    from deepspeed.utils import safe_get_full_grad

    sizes = (args.hidden_size, args.micro_batch)
    data = rank.stage("data", lambda: Teacher(*sizes, rank.rank, rank.device, torch.bfloat16))

    def loss_of(network: Any, index: int) -> torch.Tensor:
        inputs, targets = data.batch(index)  # bf16, as the model
        return nn.functional.mse_loss(network(inputs).float(), targets.float())

    def gradients(index: int, local_done: Callable[[], None] = lambda: None) -> torch.Tensor:
        """Everything of one update but its last step: `accumulation` micro batches."""
        for micro in range(args.accumulation):
            if micro:
                engine.step()  # between micro batches it only counts
            loss = loss_of(engine, index)
            local_done()  # the backward pass waits for the other ranks
            engine.backward(loss)
        return loss

    rank.verify_gradients(
        engine.module.named_parameters(),
        local_loss=lambda: loss_of(engine.module, 0),
        backward=lambda: gradients(0),
        applied=safe_get_full_grad,  # what engine.step() is about to clip and apply
        precision=read_back(engine)["precision"],
    )
    engine.step()  # DeepSpeed has no other way to be rid of the gradients

    for step in rank.steps(
        args.steps,
        samples_per_rank=args.micro_batch * args.accumulation,
        gradients_of=engine.module.named_parameters(),
    ):
        loss = gradients(step.index, step.local_done)
        engine.step()
        step.record(loss=loss)


def main() -> None:
    args = parse_args()
    with Rank.start(init="deepspeed") as rank:
        import deepspeed  # after start, which tells DeepSpeed the device

        config = deepspeed_config(args, rank)
        if rank.is_main:
            (rank.output_dir / "ds_config.json").write_text(json.dumps(config, indent=1) + "\n")
        if rank.device.type == "cuda":  # FusedAdam is compiled on its first use: timed apart
            builder = deepspeed.accelerator.get_accelerator().create_op_builder("FusedAdamBuilder")
            rank.stage("compile", builder.load)

        def build(seed: int) -> Any:
            torch.manual_seed(seed)
            model = build_model(args.hidden_size, args.layers)
            return deepspeed.initialize(
                model=model,
                model_parameters=model.parameters(),
                config=copy.deepcopy(config),  # DeepSpeed 0.14 takes torch_adam out of it
            )[0]

        engine = rank.stage("model", lambda: build(args.seed))
        rank.fact(**read_back(engine))
        train(args, rank, engine)

        # All ranks save: each writes its own share of the optimizer.
        output = str(rank.output_dir)
        rank.save_checkpoint(partial(engine.save_checkpoint, output, tag=TAG))
        before = rank.digest(state_of(engine))
        engine.destroy()
        del engine
        gc.collect()  # two engines at once might not fit

        def reload() -> dict[str, Any]:
            new_engine = build(args.seed + 1)
            path, _ = new_engine.load_checkpoint(output, tag=TAG)
            # DeepSpeed raises nothing where there is no checkpoint: then nothing is equal.
            return {} if path is None else state_of(new_engine)

        rank.verify_reload(before, reload)


if __name__ == "__main__":
    main()
