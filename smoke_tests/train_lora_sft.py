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
from peft import PeftModel
from torch.utils.data import StackDataset

from pytest_clustersmoke.rank import Proof, Rank
from sft_data import make_parser, prepare_data
from sft_model import add_adapters, build_base, describe_trained
from sft_trainer import SftTrainer, open_group

FIXED_BATCH = 8  # examples whose loss is measured before and after training


def parse_args() -> argparse.Namespace:
    return make_parser(__doc__.splitlines()[0]).parse_args()


def state_of(model: Any, rank: Rank) -> dict[str, Any]:
    """The state that a new model must have after loading the checkpoint: adapters and base."""
    adapters = {name: value for name, value in model.named_parameters() if ".lora_" in name}
    return {"adapters": adapters, "parameters": rank.checksums(model.named_parameters())}


def train(args: argparse.Namespace, rank: Rank, model: Any, trainer: Any) -> dict[str, float]:
    """Train and record each step; returns this rank's metrics."""
    log = rank.step_log(
        args.max_steps,
        samples_per_rank=args.micro_batch,
        tokens_per_rank=args.micro_batch * args.seq_len,  # padding included
        proof=Proof(
            model,
            local_loss=trainer.local_loss,
            precision=args.precision,
            optimizer=lambda: trainer.optimizer,
            peer_loss=trainer.peer_loss,
        ),
    )
    for trainer.step_log in log.passes():  # one, or two in a twin run
        trainer.train_anew()
    return log.metrics


def write_results(
    args: argparse.Namespace, rank: Rank, trainer: Any, metrics: dict[str, float]
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
        "gradient_checkpointing": trainer.args.gradient_checkpointing,
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

        # Data. Rank 0 alone prepares them, or the ranks would race for files in the caches.
        examples, vocabulary, tokenised_by = rank.stage(
            "data", lambda: rank.run_on_main(lambda: (*prepare_data(args), rank.rank))
        )
        fixed = {name: column[:FIXED_BATCH].to(rank.device) for name, column in examples.items()}
        rank.fact(
            tokenised_by=tokenised_by,
            examples=len(examples["input_ids"]),
            dataset_digest=rank.digest(examples).hex,
            tokenizer_digest=rank.digest(vocabulary).hex,
        )

        # Model.
        build = partial(build_base, args, max(vocabulary.values()) + 1)
        model = rank.stage("model", lambda: add_adapters(build())).to(rank.device)
        rank.fact(**describe_trained(model), precision=args.precision)

        # Loop. It must change all adapters, and nothing else.
        columns: Any = {"row": torch.arange(args.subset_size), **examples}
        trainer = SftTrainer(model=model, args=settings, train_dataset=StackDataset(**columns))
        before = state_of(model, rank)["parameters"]
        loss_before = trainer.measure_loss(fixed)
        metrics = train(args, rank, model, trainer)
        if rank.is_main:
            write_results(args, rank, trainer, metrics)
        trained = state_of(model, rank)
        adapters = {name for name, value in model.named_parameters() if value.requires_grad}
        after = trained["parameters"]
        changed = {name for name in after if after[name] != before[name]}
        rank.fact(
            rows_trained_on=torch.cat(trainer.rows).tolist(),
            wrapper=type(trainer.model_wrapped).__name__,
            fixed_loss_before=loss_before,
            fixed_loss_after=trainer.measure_loss(fixed),
            base_unchanged=not changed - adapters,
            adapters_changed=adapters <= changed,
            base_digest=rank.digest({name: after[name] for name in after.keys() - adapters}).hex,
            adapter_digest=rank.digest(trained["adapters"]).hex,
        )

        # Checkpoint. Rank 0 saves the adapters; each rank loads them onto a new base.
        path = str(rank.output_dir / "adapter")
        # Embeddings are not trained; without this argument PEFT would look the model up on the hub.
        save = partial(model.save_pretrained, path, save_embedding_layers=False)
        load = partial(PeftModel.from_pretrained, model_id=path, is_trainable=True)
        rank.save_checkpoint(lambda: save() if rank.is_main else None)
        rank.verify_reload(rank.digest(trained), lambda: state_of(load(build()), rank))


if __name__ == "__main__":
    main()
