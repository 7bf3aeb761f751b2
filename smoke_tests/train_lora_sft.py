"""Fine-tune a causal language model with LoRA, under Trainer and DDP.

    torchrun --standalone --nproc_per_node 8 smoke_tests/train_lora_sft.py
    torchrun --standalone --nproc_per_node 2 smoke_tests/train_lora_sft.py \\
        --model tiny --dataset shipped --seq-len 64 --learning-rate 5e-3

The first trains Mistral-7B on alpaca-cleaned (names on the hub, or paths). The second needs no
hub: a small Mistral of random weights, and a tokenizer trained on the data that ships with the
project. Trainer opens the process group itself.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING, Any

import torch
import transformers
from datasets import disable_progress_bars
from peft import PeftModel
from transformers import TrainingArguments

from pytest_clustersmoke.rank import Rank

if TYPE_CHECKING:
    from smoke_tests import sft_data, sft_model, sft_trainer
else:  # torchrun puts this file's own folder on the path, and not the one above
    import sft_data
    import sft_model
    import sft_trainer

FIXED_BATCH = 8  # examples whose loss is taken before and after training


def settings(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="mistralai/Mistral-7B-v0.1", help="name, path or tiny")
    parser.add_argument("--dataset", default="yahma/alpaca-cleaned", help="name, path or shipped")
    parser.add_argument("--subset-size", type=int, default=2048, help="examples, from the first")
    parser.add_argument("--seq-len", type=int, default=512, help="tokens of an example, padded")
    parser.add_argument("--max-steps", type=int, default=10)
    parser.add_argument("--micro-batch", type=int, default=1, help="examples a rank and step")
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--lora-r", type=int, default=8)
    parser.add_argument("--lora-alpha", type=int, default=16)
    parser.add_argument("--lora-dropout", type=float, default=0.05)
    parser.add_argument("--precision", choices=["auto", "bf16", "fp32"], default="auto")
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(argv)


def main(args: argparse.Namespace) -> None:
    disable_progress_bars()
    with Rank.start(init="trainer") as rank:
        bf16 = args.precision == "bf16" or (args.precision == "auto" and rank.device.type == "cuda")
        arguments = rank.stage("init", lambda: open_group(args, rank, bf16))
        data = rank.stage("data", lambda: load_data(args, rank))

        def build_base() -> Any:
            dtype = torch.bfloat16 if bf16 else torch.float32
            return sft_model.build_base(args.model, len(data.tokenizer), dtype, args.seed)

        def build() -> Any:
            base = build_base()
            return sft_model.add_adapters(base, args.lora_r, args.lora_alpha, args.lora_dropout)

        model = rank.stage("model", build).to(rank.device)
        trainable, parameters = model.get_nb_trainable_parameters()
        rank.fact(
            parameters=parameters,
            trainable_parameters=trainable,
            trainable_share=trainable / parameters,
            precision="bf16" if bf16 else "fp32",
            gradient_checkpointing=args.gradient_checkpointing,
        )

        # One batch, the same on every rank, and everything that must or must not change.
        fixed = sft_trainer.batch_of(data.dataset, range(FIXED_BATCH), rank.device)
        loss_before = sft_model.loss_of(model, fixed, bf16)
        base_before = sft_model.checksums(model, rank.device, trainable=False)
        adapters_before = sft_model.checksums(model, rank.device, trainable=True)

        trainer = train(args, rank, arguments, model, data)

        base_after = sft_model.checksums(model, rank.device, trainable=False)
        adapters_after = sft_model.checksums(model, rank.device, trainable=True)
        changed = [name for name in adapters_after if adapters_after[name] != adapters_before[name]]
        rank.fact(
            fixed_loss_before=loss_before,
            fixed_loss_after=sft_model.loss_of(model, fixed, bf16),
            base_digest=sft_model.digest(base_before),
            base_unchanged=base_after == base_before,
            adapter_digest=sft_model.digest(adapters_after),
            adapter_tensors=len(adapters_after),
            adapter_tensors_changed=len(changed),
            adapters_changed=len(changed) == len(adapters_after),
        )
        verify(args, rank, trainer, data, build_base, bf16)


def open_group(args: argparse.Namespace, rank: Rank, bf16: bool) -> TrainingArguments:
    """Trainer opens the process group as its settings are made."""
    arguments = sft_trainer.training_arguments(args, rank, bf16)
    rank.group_opened()
    arguments.output_dir = str(rank.output_dir)
    return arguments


def load_data(args: argparse.Namespace, rank: Rank) -> sft_data.Prepared:
    """Rank 0 tokenises; all ranks read what it saved."""
    data = sft_data.prepare(
        rank.output_dir / "data", args.model, args.dataset, args.subset_size, args.seq_len
    )
    rank.fact(
        tokenised_by=data.tokenised_by,
        tokenised_here=data.tokenised_here,
        examples=len(data.dataset),
        dataset_digest=data.digest,
        tokenizer_digest=data.tokenizer_digest,
    )
    return data


def train(
    args: argparse.Namespace, rank: Rank, arguments: TrainingArguments, model: Any, data: Any
) -> sft_trainer.SftTrainer:
    """Train; rank 0 alone writes the figures of the run, in the form of the documents."""
    tokens = args.micro_batch * args.seq_len  # a rank and step, padding included
    log = rank.step_log(
        args.max_steps,
        samples_per_rank=args.micro_batch,
        tokens_per_rank=tokens,
        gradients_of=model.named_parameters(),
    )
    collate, records = sft_trainer.Collate(), sft_trainer.StepRecords(log)
    trainer = sft_trainer.SftTrainer(
        model=model,
        args=arguments,
        train_dataset=data.dataset,
        data_collator=collate,
        callbacks=[records],
    )
    trainer.model_accepts_loss_kwargs = False  # our loss is a mean already; later versions scale
    records.trainer, trainer.step_log = trainer, log
    started = time.perf_counter()
    log.start()
    trainer.train()
    wall_s = time.perf_counter() - started
    log.finish()
    # The loader reads ahead by one batch, which is not trained on.
    rank.fact(
        rows_trained_on=collate.rows[: args.max_steps * args.micro_batch],
        wrapper=type(trainer.model_wrapped).__name__,
    )
    if rank.is_main:
        metrics = {
            "wall_time_s": wall_s,
            "approx_tokens_per_rank": args.max_steps * tokens,
            "tokens_per_s_per_rank": args.max_steps * tokens / wall_s,
            "world_size": rank.world_size,
            "device": torch.cuda.get_device_name() if rank.device.type == "cuda" else "cpu",
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "model": args.model,
            "dataset": args.dataset,
            "use_lora": True,
            "bf16": bool(arguments.bf16),
            "gradient_checkpointing": args.gradient_checkpointing,
        }
        (rank.output_dir / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
        rank.fact(metrics_written_by=rank.rank)
    return trainer


def verify(
    args: argparse.Namespace, rank: Rank, trainer: Any, data: Any, build_base: Any, bf16: bool
) -> None:
    """Gradients are in sync; adapters saved by rank 0 come back equal in a model built anew."""
    first = rank.rank * args.micro_batch  # every rank its own batch, or a sync would prove nothing
    batch = sft_trainer.batch_of(data.dataset, range(first, first + args.micro_batch), rank.device)
    bare, wrapped = trainer.model, trainer.model_wrapped

    def loss(model: Any) -> torch.Tensor:
        with trainer.compute_loss_context_manager():
            found: torch.Tensor = model(**batch).loss
        return found

    wrapped.train()
    bare.zero_grad(set_to_none=True)
    rank.verify_gradients(
        bare.named_parameters(),
        local_loss=lambda: loss(bare),
        backward=lambda: trainer.accelerator.backward(loss(wrapped)),
        precision="bf16" if bf16 else "fp32",
    )

    adapter = rank.output_dir / "adapter"
    before = rank.digest(sft_model.state(bare, rank.device))

    def save() -> None:
        if rank.is_main:
            # Embeddings are not trained; asked to decide, PEFT would look the model up on the hub.
            bare.save_pretrained(str(adapter), save_embedding_layers=False)

    def reload() -> Any:
        anew = PeftModel.from_pretrained(build_base(), str(adapter), is_trainable=True)
        return sft_model.state(anew, rank.device)

    rank.save_checkpoint(save)
    rank.verify_reload(before, reload)


if __name__ == "__main__":
    main(settings())
