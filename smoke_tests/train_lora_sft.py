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
from functools import partial
from typing import Any

import torch
import transformers

from pytest_clustersmoke.rank import Proof, Rank, StepLog
from sft_data import Batch, format_prompt, load_examples, load_tokenizer, tokenise
from sft_model import (
    add_adapters,
    build_base,
    download,
    evaluate,
    list_trainable,
    load,
    loss_of,
    save,
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
    rank.group_opened()
    settings.output_dir = str(rank.output_dir)
    return settings


def prepare_data(args: argparse.Namespace) -> tuple[Batch, dict[str, int]]:
    """All examples, tokenised, and the vocabulary; fills the caches of `datasets` and the hub."""
    tokenizer = load_tokenizer(args.model)
    texts = [format_prompt(example) for example in load_examples(args.dataset, args.subset_size)]
    download(args.model)
    return tokenise(texts, tokenizer, args.seq_len), tokenizer.get_vocab()


class SftTrainer(transformers.Trainer):
    """Trainer that records each step: its loss, its rows, and the end of this rank's own work."""

    step_log: StepLog

    def __init__(self, precision: str, **options: Any) -> None:
        super().__init__(**options)
        self.add_callback(StepEnd(self))
        self.model_accepts_loss_kwargs = False  # newer versions would scale our loss, a mean
        self.precision = precision
        self.rows: list[torch.Tensor] = []

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        self.rows.append(inputs.pop("row"))
        self.batch = inputs
        loss = model(**inputs).loss
        self.step_log.local_done()  # the backward pass waits for the other ranks
        self.last_loss = loss.detach()  # stays on its device, so nothing waits for it
        return loss

    def training_step(self, *inputs: Any, **options: Any) -> Any:
        loss = super().training_step(*inputs, **options)
        self.step_log.backward_done()  # here, since Trainer clips the gradients next
        return loss

    def local_loss(self, index: int) -> torch.Tensor:
        """The loss of this step's batch with the bare model, so that DDP does not run."""
        return loss_of(self.model, self.batch, self.precision)


class StepEnd(transformers.TrainerCallback):
    def __init__(self, trainer: SftTrainer) -> None:
        self.trainer = trainer

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.trainer.step_log.record(loss=self.trainer.last_loss)


def train(
    args: argparse.Namespace, rank: Rank, settings: Any, model: Any, examples: Batch
) -> dict[str, float]:
    """Train and record each step; returns this rank's metrics."""
    columns = {"row": torch.arange(args.subset_size), **examples}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    trainer = SftTrainer(args.precision, model=model, args=settings, train_dataset=rows)
    log = trainer.step_log = rank.step_log(
        args.max_steps,
        samples_per_rank=args.micro_batch,
        tokens_per_rank=args.micro_batch * args.seq_len,  # padding included
        proof=Proof(
            model,
            local_loss=trainer.local_loss,
            precision=args.precision,
            optimizer=lambda: trainer.optimizer,
        ),
    )
    log.start()
    trainer.train()
    metrics = log.finish()
    rank.fact(
        rows_trained_on=torch.cat(trainer.rows).tolist(),
        wrapper=type(trainer.model_wrapped).__name__,
    )
    return metrics


def write_results(
    args: argparse.Namespace, rank: Rank, settings: Any, metrics: dict[str, float]
) -> None:
    """Write metrics.json and run_args.json, with the keys of the documented runs."""
    figures = {
        "wall_time_s": args.max_steps / metrics["steps_per_s"],
        "approx_tokens_per_rank": args.max_steps * args.micro_batch * args.seq_len,
        "approx_tokens_per_s_per_rank": metrics["tokens_per_s_per_rank"],
        "world_size": rank.world_size,
        "gpu0": torch.cuda.get_device_name(0) if rank.device.type == "cuda" else None,
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


def state_of(model: Any, rank: Rank) -> dict[str, Any]:
    """The state that a new model must have after loading the checkpoint: adapters and base."""
    adapters = {name: value for name, value in model.named_parameters() if value.requires_grad}
    return {"adapters": adapters, "parameters": rank.checksums(model.named_parameters())}


def main() -> None:
    args = parse_args()
    with Rank.start(init="trainer") as rank:
        if args.precision == "auto":
            args.precision = "bf16" if rank.device.type == "cuda" else "fp32"
        settings = rank.stage("init", lambda: open_group(args, rank))

        # Data. Rank 0 alone prepares them, or the ranks would race for files in the caches.
        examples, vocabulary, tokenised_by = rank.stage(
            "data", lambda: rank.run_on_main(lambda: (*prepare_data(args), rank.rank))
        )
        fixed = {name: column[:FIXED_BATCH].to(rank.device) for name, column in examples.items()}
        rank.fact(
            tokenised_by=tokenised_by,
            tokenised_here=tokenised_by == rank.rank,
            examples=len(examples["input_ids"]),
            dataset_digest=rank.digest(examples).hex,
            tokenizer_digest=rank.digest(vocabulary).hex,
        )

        # Model.
        tokens = max(vocabulary.values()) + 1
        build = partial(build_base, args.model, tokens, args.precision, args.seed)
        model = rank.stage("model", lambda: add_adapters(build()))
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
        before = state_of(model, rank)["parameters"]
        loss_before = evaluate(model, fixed, args.precision)
        metrics = train(args, rank, settings, model, examples)
        if rank.is_main:
            write_results(args, rank, settings, metrics)
        loss_after = evaluate(model, fixed, args.precision)
        trained = state_of(model, rank)
        adapters, after = trained["adapters"].keys(), trained["parameters"]
        changed = {name for name in after if after[name] != before[name]}
        rank.fact(
            fixed_loss_before=loss_before,
            fixed_loss_after=loss_after,
            base_unchanged=not changed - adapters,
            adapters_changed=adapters <= changed,
            base_digest=rank.digest({name: after[name] for name in after.keys() - adapters}).hex,
            adapter_digest=rank.digest(trained["adapters"]).hex,
        )

        # Checkpoint. Rank 0 saves the adapters; each rank loads them onto a new base.
        path = rank.output_dir / "adapter"
        digest = rank.digest(trained)
        rank.save_checkpoint(lambda: save(model, path) if rank.is_main else None)
        rank.verify_reload(digest, lambda: state_of(load(path, build()), rank))


if __name__ == "__main__":
    main()
