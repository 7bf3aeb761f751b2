"""Train a deep MLP with DeepSpeed ZeRO: 805,429,248 parameters with six layers of 4096.

    torchrun --standalone --nproc_per_node=2 smoke_tests/train_zero.py --hidden-size 128 \\
        --layers 2 --micro-batch 8 --steps 30 --stage 1 --bucket-size 1000000 --learning-rate 1e-3
    torchrun --standalone --nproc_per_node=2 smoke_tests/train_zero.py --hidden-size 4096 \\
        --layers 6 --micro-batch 32 --steps 100 --stage 1 --bucket-size 500000000
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pytest_clustersmoke.rank import Proof, Rank
from teacher import Teacher
from zero_engine import (
    OFFLOADS,
    PRECISIONS,
    STAGES,
    build,
    build_model,
    deepspeed_config,
    find_devices,
    read_back,
    state_of,
)

TAG, MODEL = "final", "model_16bit.pt"
WHOLE_FROM_STAGE = 2  # the first whose phase saves the model


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden-size", type=int, required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--micro-batch", type=int, required=True, help="per rank")
    parser.add_argument("--accumulation", type=int, default=1, help="micro batches per step")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--stage", type=int, required=True, choices=STAGES, help="ZeRO stage")
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16")
    parser.add_argument(
        "--offload", choices=OFFLOADS, default="none", help="of optimizer, and at stage 3 weights"
    )
    parser.add_argument("--bucket-size", type=int, required=True, help="elements per reduction")
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def loss_of(model: Any, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    inputs, targets = batch  # both (micro_batch, hidden_size), in the model's precision
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


def save(engine: Any, directory: Path) -> None:
    """The checkpoint; and the whole model in 16 bits, for programs without DeepSpeed."""
    engine.save_checkpoint(str(directory), tag=TAG)
    if engine.zero_optimization_stage() >= WHOLE_FROM_STAGE:
        engine.save_16bit_model(str(directory), MODEL)


def check_whole_model(engine: Any, path: Path, args: argparse.Namespace, rank: int) -> bool:
    """Whether the 16-bit model is all that a model without DeepSpeed needs, and has what this rank
    trained: all of it, or at stage 3 its part."""
    if not path.exists():
        return False
    weights = torch.load(path, map_location="cpu", weights_only=True)
    with torch.device("meta"):  # takes no memory
        plain = build_model(args.hidden_size, args.layers)
    plain.load_state_dict(weights, assign=True)
    for name, parameter in engine.module.named_parameters():
        part = getattr(parameter, "ds_tensor", None)
        own = (parameter if part is None else part).detach().cpu().flatten()
        first = 0 if part is None else rank * own.numel()
        whole = weights[name].flatten()[first : first + own.numel()]  # the last part is padded
        if not torch.equal(whole, own[: whole.numel()]):
            return False
    return True


def load(directory: Path, engine: Any) -> dict[str, Any]:
    path, _ = engine.load_checkpoint(str(directory), tag=TAG)
    # DeepSpeed does not raise if there is no checkpoint; an empty state then equals nothing.
    return {} if path is None else state_of(engine)


def train(args: argparse.Namespace, config: dict[str, Any], rank: Rank) -> Any:
    """Train and save; returns a digest of the state. Frees the engine: two might not fit."""
    from deepspeed.utils import safe_get_full_grad

    # Data. Each rank draws its own share.
    def draw(share: int) -> Teacher:
        dtype = torch.bfloat16 if args.precision == "bf16" else torch.float16
        return Teacher(args.hidden_size, args.micro_batch, share, rank.device, dtype)

    data = rank.stage("data", lambda: draw(rank.rank))

    # Model.
    engine = rank.stage("model", lambda: build(args, config, args.seed))
    facts = read_back(engine)
    rank.fact(**facts)

    def loss_scale() -> float:
        return float(engine.optimizer.loss_scale) if args.precision == "fp16" else 1.0

    def losses(index: int, share: Teacher = data) -> Iterator[torch.Tensor]:
        for _ in range(args.accumulation):
            yield loss_of(engine.module, share.batch(index)) / args.accumulation * loss_scale()

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
    rank.fact(
        skipped_steps=engine.skipped_steps, loss_scale=loss_scale(), devices=find_devices(engine)
    )

    # Checkpoint. All ranks save, each its own share of the optimizer.
    rank.save_checkpoint(lambda: save(engine, rank.output_dir))
    trained = rank.digest(state_of(engine))
    if args.stage >= WHOLE_FROM_STAGE:
        path = rank.output_dir / MODEL
        rank.fact(whole_model_is_right=check_whole_model(engine, path, args, rank.rank))
    engine.destroy()
    return trained


def main() -> None:
    args = parse_args()
    with Rank.start(init="deepspeed") as rank:
        from deepspeed.accelerator import get_accelerator  # after start, which sets its device

        config = deepspeed_config(args, rank)
        if rank.is_main:
            (rank.output_dir / "ds_config.json").write_text(json.dumps(config, indent=1) + "\n")
        if rank.device.type == "cuda":  # compile Adam here, to time it apart from the model
            name = "FusedAdamBuilder" if args.offload == "none" else "CPUAdamBuilder"
            builder = get_accelerator().create_op_builder(name)
            rank.stage("compile", builder.load)
        trained = train(args, config, rank)
        gc.collect()
        seed = args.seed + 1
        rank.verify_reload(trained, lambda: load(rank.output_dir, build(args, config, seed)))


if __name__ == "__main__":
    main()
