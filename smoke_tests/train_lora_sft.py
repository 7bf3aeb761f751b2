"""Fine-tune a causal language model with LoRA, under transformers' Trainer and DDP.

    torchrun --standalone --nproc_per_node=2 smoke_tests/train_lora_sft.py \\
        --model tiny --dataset shipped --subset-size 64 --seq-len 64 \\
        --max-steps 10 --micro-batch 1 --learning-rate 5e-3
    torchrun --standalone --nproc_per_node=8 smoke_tests/train_lora_sft.py \\
        --model mistralai/Mistral-7B-v0.1 --dataset yahma/alpaca-cleaned --subset-size 2048 \\
        --seq-len 512 --max-steps 10 --micro-batch 1
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch
import torch.distributed as dist
import transformers

from pytest_clustersmoke.rank import Proof, Rank, StepLog
from sft_data import Batch, batch_of, digest, share_examples
from sft_model import (
    add_adapters,
    build_base,
    checksums,
    evaluate,
    list_trainable,
    load,
    loss_of,
    save,
    state_of,
)

FIXED_BATCH = 8  # examples whose loss is measured before and after training


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="name on the hub, path, or tiny")
    parser.add_argument("--dataset", required=True, help="name on the hub, directory, or shipped")
    parser.add_argument("--subset-size", type=int, required=True, help="number of examples used")
    parser.add_argument("--seq-len", type=int, required=True, help="tokens per padded example")
    parser.add_argument("--max-steps", type=int, required=True)
    parser.add_argument("--micro-batch", type=int, required=True, help="examples per rank and step")
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--precision", choices=["auto", "bf16", "fp32"], default="auto")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def open_group(args: argparse.Namespace, rank: Rank) -> transformers.TrainingArguments:
    """Create the settings of Trainer, which opens the process group."""
    settings = transformers.TrainingArguments(
        output_dir="",  # set below, once the ranks have agreed on it
        max_steps=args.max_steps,
        per_device_train_batch_size=args.micro_batch,
        learning_rate=args.learning_rate,
        bf16=args.precision == "bf16",
        seed=args.seed,
        use_cpu=rank.device.type == "cpu",
        ddp_timeout=int(rank.timeout_s),
        ddp_find_unused_parameters=False,  # every adapter takes part in every step
        # Buffers are constants. Broadcasting them would be a collective in each forward pass, and
        # the other ranks would wait in it for a slow one.
        ddp_broadcast_buffers=False,
        remove_unused_columns=False,  # SftTrainer records `row`
        dataloader_pin_memory=rank.device.type != "cpu",
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    if rank.world_size == 1 and not dist.is_initialized():
        dist.init_process_group("gloo")  # Trainer opens no group for one rank; the checks need one
    rank.group_opened()
    settings.output_dir = str(rank.output_dir)
    return settings


class SftTrainer(transformers.Trainer):
    """Trainer that records each step: its loss, its rows, and the end of this rank's own work."""

    def __init__(self, log: StepLog, **options: Any) -> None:
        super().__init__(**options)
        self.add_callback(StepEnd(self, log))
        self.model_accepts_loss_kwargs = False  # newer versions would scale our loss, a mean
        self.step_log = log
        self.rows: list[torch.Tensor] = []

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        self.rows.append(inputs.pop("row"))
        self.inputs = inputs
        loss = model(**inputs).loss
        self.step_log.local_done()  # the backward pass waits for the other ranks
        self.last_loss = loss.detach()  # stays on its device, so nothing waits for it
        return loss

    def training_step(self, *inputs: Any, **options: Any) -> Any:
        loss = super().training_step(*inputs, **options)
        self.step_log.backward_done()  # here, since Trainer clips the gradients next
        return loss


class StepEnd(transformers.TrainerCallback):
    def __init__(self, trainer: SftTrainer, log: StepLog) -> None:
        self.trainer, self.log = trainer, log

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.log.record(loss=self.trainer.last_loss)


def train(args: argparse.Namespace, rank: Rank, settings: Any, model: Any, examples: Batch) -> None:
    log = rank.step_log(
        args.max_steps,
        samples_per_rank=args.micro_batch,
        tokens_per_rank=args.micro_batch * args.seq_len,  # padding included
        # The bare model, so DDP does not run; `trainer` is bound below, before the first step.
        proof=Proof(
            model,
            local_loss=lambda _: loss_of(model, trainer.inputs, args.precision),
            precision=args.precision,
        ),
    )
    columns = {"row": torch.arange(args.subset_size), **examples}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    trainer = SftTrainer(log, model=model, args=settings, train_dataset=rows)
    log.start()
    trainer.train()
    metrics = log.finish()
    rank.fact(
        rows_trained_on=torch.cat(trainer.rows).tolist(),
        wrapper=type(trainer.model_wrapped).__name__,
    )
    if rank.is_main:
        write_results(args, rank, settings, metrics["steps_per_s"])


def write_results(args: argparse.Namespace, rank: Rank, settings: Any, steps_per_s: float) -> None:
    """Write metrics.json and run_args.json, with the keys of the documented runs."""
    tokens = args.max_steps * args.micro_batch * args.seq_len  # of a rank, padding included
    wall_s = args.max_steps / steps_per_s
    on_cuda = rank.device.type == "cuda"
    figures = {
        "wall_time_s": wall_s,
        "approx_tokens_per_rank": tokens,
        "approx_tokens_per_s_per_rank": tokens / wall_s,
        "world_size": rank.world_size,
        "gpu0": torch.cuda.get_device_name(0) if on_cuda else None,
        "torch": torch.__version__,
        "model": args.model,
        "dataset": args.dataset,
        "use_lora": True,
        "bf16": args.precision == "bf16",
        "gradient_checkpointing": settings.gradient_checkpointing,
    }
    for name, values in (("metrics.json", figures), ("run_args.json", vars(args))):
        (rank.output_dir / name).write_text(json.dumps(values, indent=2) + "\n")
    rank.fact(metrics_written_by=rank.rank)


def main() -> None:
    args = parse_args()
    with Rank.start(init="trainer") as rank:
        if args.precision == "auto":
            args.precision = "bf16" if rank.device.type == "cuda" else "fp32"
        settings = rank.stage("init", lambda: open_group(args, rank))

        # Data.
        examples, vocabulary = rank.stage("data", lambda: share_examples(args, rank))
        fixed = batch_of(examples, range(FIXED_BATCH), rank.device)  # the same on every rank

        # Model.
        model = rank.stage("model", lambda: add_adapters(build_base(args, vocabulary)))
        model.to(rank.device)
        trainable, parameters = model.get_nb_trainable_parameters()
        rank.fact(
            parameters=parameters,
            trainable_parameters=trainable,
            trainable_share=trainable / parameters,
            vocabulary=model.config.vocab_size,
            layers=model.config.num_hidden_layers,
            precision=args.precision,
            **list_trainable(model),
        )

        # Loop. It must change all adapters, and nothing else.
        loss_before, before = evaluate(model, fixed, args.precision), checksums(model, rank.device)
        train(args, rank, settings, model, examples)
        loss_after, after = evaluate(model, fixed, args.precision), checksums(model, rank.device)
        adapters = {name for name, p in model.named_parameters() if p.requires_grad}
        changed = {name for name in after if after[name] != before[name]}
        rank.fact(
            fixed_loss_before=loss_before,
            fixed_loss_after=loss_after,
            base_unchanged=not changed - adapters,
            adapters_changed=adapters <= changed,
            base_digest=digest({name: after[name] for name in after.keys() - adapters}),
            adapter_digest=digest({name: after[name] for name in adapters}),
        )

        # Checkpoint. Rank 0 saves the adapters; each rank loads them onto a new base.
        path = rank.output_dir / "adapter"
        trained = rank.digest(state_of(model, rank.device))
        rank.save_checkpoint(lambda: save(model, path) if rank.is_main else None)
        rank.verify_reload(
            trained, lambda: state_of(load(path, build_base(args, vocabulary)), rank.device)
        )


if __name__ == "__main__":
    main()
