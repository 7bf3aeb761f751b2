"""Train a deep MLP in bf16 with DeepSpeed ZeRO: 805,429,248 parameters with six layers of 4096.

    torchrun --standalone --nproc_per_node=2 smoke_tests/train_zero.py --hidden-size 128 \\
        --layers 2 --micro-batch 8 --steps 30 --stage 1 --bucket-size 1000000 --learning-rate 1e-3
    torchrun --standalone --nproc_per_node=2 smoke_tests/train_zero.py --hidden-size 4096 \\
        --layers 6 --micro-batch 32 --steps 100 --stage 1 --bucket-size 500000000
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pytest_clustersmoke.rank import Proof, Rank
from teacher import Teacher

TAG = "final"


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden-size", type=int, required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--micro-batch", type=int, required=True, help="per rank")
    parser.add_argument("--accumulation", type=int, default=1, help="micro batches per step")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--stage", type=int, required=True, choices=(1, 2), help="ZeRO stage")
    parser.add_argument("--bucket-size", type=int, required=True, help="elements per reduction")
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


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
    """The settings in effect, as the engine reports them."""
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


def loss_of(model: Any, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    inputs, targets = batch  # both (micro_batch, hidden_size), in bf16 like the model
    return nn.functional.mse_loss(model(inputs).float(), targets.float())


def backward(
    engine: Any,
    batch: tuple[torch.Tensor, torch.Tensor],
    micro_batches: int,
    local_done: Callable[[], None],
) -> torch.Tensor:
    """Run an update without the optimizer's step."""
    for micro in range(micro_batches):
        if micro:
            engine.step()  # between micro batches this only counts them
        loss = loss_of(engine, batch)
        local_done()  # the backward pass waits for the other ranks
        engine.backward(loss)
    return loss


def state_of(engine: Any) -> dict[str, Any]:
    """The state that a checkpoint must restore on this rank, with its share of the optimizer."""
    return {"module": engine.module.state_dict(), "optimizer": engine.optimizer.state_dict()}


def load(directory: Path, engine: Any) -> dict[str, Any]:
    path, _ = engine.load_checkpoint(str(directory), tag=TAG)
    # DeepSpeed does not raise if there is no checkpoint; an empty state then equals nothing.
    return {} if path is None else state_of(engine)


def train(args: argparse.Namespace, config: dict[str, Any], rank: Rank) -> Any:
    """Train and save; returns a digest of the state. Frees the engine: two might not fit."""
    from deepspeed.utils import safe_get_full_grad

    # Data. Each rank draws its own share.
    def draw(share: int) -> Teacher:
        sizes = (args.hidden_size, args.micro_batch)
        return Teacher(*sizes, share, rank.device, torch.bfloat16)

    data = rank.stage("data", lambda: draw(rank.rank))

    # Model.
    engine = rank.stage("model", lambda: build(args, config, args.seed))
    facts = read_back(engine)
    rank.fact(**facts)

    def losses(index: int, share: Teacher = data) -> Iterator[torch.Tensor]:
        for _ in range(args.accumulation):
            yield loss_of(engine.module, share.batch(index)) / args.accumulation

    # Loop. The rank draws steps and proves them, with the bare model: no hook of the engine runs.
    proof = Proof(
        engine.module,
        losses,
        applied=safe_get_full_grad,  # the gradient that engine.step() will clip and apply
        precision=facts["precision"],
        optimizer=engine.optimizer,
        peer_loss=lambda index, other: losses(index, draw(other)),
    )
    samples = args.micro_batch * args.accumulation
    for step in rank.steps(args.steps, samples_per_rank=samples, proof=proof):
        loss = backward(engine, data.batch(step.index), args.accumulation, step.local_done)
        step.backward_done()
        engine.step()
        step.record(loss=loss)

    # Checkpoint. All ranks save, each its own share of the optimizer.
    rank.save_checkpoint(lambda: engine.save_checkpoint(str(rank.output_dir), tag=TAG))
    trained = rank.digest(state_of(engine))
    engine.destroy()
    return trained


def main() -> None:
    args = parse_args()
    with Rank.start(init="deepspeed") as rank:
        from deepspeed.accelerator import get_accelerator  # after start, which sets its device

        config = deepspeed_config(args, rank)
        if rank.is_main:
            (rank.output_dir / "ds_config.json").write_text(json.dumps(config, indent=1) + "\n")
        if rank.device.type == "cuda":  # compile FusedAdam here, to time it apart from the model
            builder = get_accelerator().create_op_builder("FusedAdamBuilder")
            rank.stage("compile", builder.load)
        trained = train(args, config, rank)
        gc.collect()
        seed = args.seed + 1
        rank.verify_reload(trained, lambda: load(rank.output_dir, build(args, config, seed)))


if __name__ == "__main__":
    main()
