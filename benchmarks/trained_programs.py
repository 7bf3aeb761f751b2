"""The suite's training programs at sizes of a second, to be trained again and again in one process.

Each trains in the way of its rank program, from a seed, and calls `strike(index, proof)` before
each step, which may break something.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_clustersmoke.rank import Proof, Rank

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "smoke_tests"))

Strike = Callable[[int, Proof], None]
WIDTH, BATCH, STEPS = 64, 16, 30
LORA_STEPS, TOKENS = 10, 32


def train_mlp(rank: Rank, seed: int, strike: Strike) -> None:
    """MLP under DistributedDataParallel, AdamW, fp32."""
    from teacher import Teacher
    from train_mlp import build_model, loss_of

    torch.manual_seed(seed)
    model: nn.Module = build_model(WIDTH)
    engine = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss_on(index: int, other: int) -> torch.Tensor:
        loss: torch.Tensor = loss_of(model, Teacher(WIDTH, BATCH, other, rank.device).batch(index))
        return loss

    own = Teacher(WIDTH, BATCH, rank.rank, rank.device)
    proof = Proof(
        model,
        local_loss=lambda index: loss_of(model, own.batch(index)),
        optimizer=optimizer,
        peer_loss=loss_on,
    )
    for step in rank.steps(STEPS, samples_per_rank=BATCH, proof=proof):
        strike(step.index, proof)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(engine, own.batch(step.index))
        loss.backward()
        step.backward_done()
        optimizer.step()
        step.record(loss=loss)


def train_zero(rank: Rank, seed: int, strike: Strike) -> None:
    """MLP under DeepSpeed ZeRO-1, AdamW, bf16."""
    from deepspeed.utils import safe_get_full_grad

    from teacher import Teacher
    from train_zero import backward, loss_of
    from zero_engine import build, deepspeed_config

    args = argparse.Namespace(
        hidden_size=WIDTH,
        layers=2,
        micro_batch=BATCH,
        accumulation=1,
        stage=1,
        precision="bf16",
        offload="none",
        bucket_size=1_000_000,
        clip=1.0,
        learning_rate=1e-3,
    )
    engine = build(args, deepspeed_config(args, rank), seed)

    def draw(share: int) -> Teacher:
        return Teacher(WIDTH, BATCH, share, rank.device, torch.bfloat16)

    def loss_on(index: int, share: Teacher) -> torch.Tensor:
        loss: torch.Tensor = loss_of(engine.module, share.batch(index))
        return loss

    own = draw(rank.rank)
    proof = Proof(
        engine.module,
        lambda index: loss_on(index, own),
        applied=safe_get_full_grad,
        precision="bf16",
        optimizer=engine.optimizer,
        peer_loss=lambda index, other: loss_on(index, draw(other)),
    )
    for step in rank.steps(STEPS, samples_per_rank=BATCH, proof=proof):
        strike(step.index, proof)
        loss = backward(engine, own.batch(step.index), 1, step.local_done)
        step.backward_done()
        engine.step()
        step.record(loss=loss)
    engine.destroy()


def train_lora(rank: Rank, seed: int, strike: Strike) -> None:
    """A tiny Mistral with LoRA under transformers' Trainer and DDP, AdamW, fp32."""
    import transformers
    from torch.utils.data import StackDataset

    from sft_model import add_adapters, build_base
    from sft_trainer import SftTrainer

    args, settings, examples, vocabulary = _prepare_lora(rank)
    args.seed = settings.seed = seed
    model = add_adapters(build_base(args, vocabulary))

    class Begin(transformers.TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            strike(state.global_step, proof)

    columns: Any = {"row": torch.arange(args.subset_size), **examples}
    trainer: Any = SftTrainer(model=model, args=settings, train_dataset=StackDataset(**columns))
    trainer.add_callback(Begin())
    proof = Proof(
        model,
        local_loss=trainer.local_loss,
        optimizer=lambda: trainer.optimizer,
        peer_loss=trainer.peer_loss,
    )
    log = rank.step_log(LORA_STEPS, samples_per_rank=1, proof=proof)
    for trainer.step_log in log.passes():
        trainer.train_anew()


@cache
def _prepare_lora(rank: Rank) -> tuple[argparse.Namespace, Any, dict[str, torch.Tensor], int]:
    """The arguments, the settings of Trainer, the examples, and the size of the vocabulary."""
    from sft_data import prepare_data
    from sft_trainer import open_group

    args = argparse.Namespace(
        model="tiny",
        dataset="shipped",
        subset_size=LORA_STEPS * rank.world_size,
        seq_len=TOKENS,
        max_steps=LORA_STEPS,
        micro_batch=1,
        learning_rate=5e-3,
        precision="fp32",
        seed=0,
    )
    settings = open_group(args, rank)
    examples, vocabulary = prepare_data(args)
    return args, settings, examples, max(vocabulary.values()) + 1


# Name -> how its rank starts, how it trains, and its number of steps.
PROGRAMS: dict[str, tuple[str, Callable[[Rank, int, Strike], None], int]] = {
    "mlp": ("torch", train_mlp, STEPS),
    "zero": ("deepspeed", train_zero, STEPS),
    "lora": ("trainer", train_lora, LORA_STEPS),
}
