"""Trainer as train_lora_sft.py uses it: its settings, its batches, and a record of every step."""

from __future__ import annotations

import argparse
import inspect
from typing import Any

import torch
import torch.distributed as dist
from transformers import Trainer, TrainerCallback, TrainingArguments

from pytest_clustersmoke.rank import Rank, StepLog


class Collate:
    """Rows to tensors; labels are a copy of the tokens, padding included. Remembers the rows."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        self.rows.extend(example["row"] for example in examples)
        tokens = torch.tensor([example["input_ids"] for example in examples])  # (batch, seq_len)
        mask = torch.tensor([example["attention_mask"] for example in examples])
        return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.clone()}


def batch_of(dataset: Any, rows: Any, device: torch.device) -> dict[str, torch.Tensor]:
    batch = Collate()([dataset[row % len(dataset)] for row in rows])
    return {name: tensor.to(device) for name, tensor in batch.items()}


class SftTrainer(Trainer):
    """Trainer that keeps the last step's loss on its device; its own is summed for its logs.

    `step_log` hears when a rank's own part of the step, its forward pass, has ended.
    """

    last_loss: torch.Tensor
    step_log: StepLog | None = None

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,  # for gradient accumulation, from transformers 4.46 on
    ) -> Any:
        outputs = model(**inputs)
        if self.step_log is not None:
            self.step_log.local_done()
        self.last_loss = outputs.loss.detach()
        return (outputs.loss, outputs) if return_outputs else outputs.loss


class StepRecords(TrainerCallback):
    """Hands every step that Trainer has done to the rank's step log."""

    trainer: SftTrainer

    def __init__(self, log: StepLog) -> None:
        self.log = log

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.log.record(loss=self.trainer.last_loss)


def training_arguments(args: argparse.Namespace, rank: Rank, bf16: bool) -> TrainingArguments:
    """Trainer's settings. Making them opens the process group."""
    on_cpu = rank.device.type == "cpu"
    values: dict[str, Any] = {
        "output_dir": "",  # agreed between the ranks once the group is open
        "max_steps": args.max_steps,
        "per_device_train_batch_size": args.micro_batch,
        "learning_rate": args.learning_rate,
        "bf16": bf16,
        "seed": args.seed,
        "use_cpu": on_cpu,
        "ddp_timeout": int(rank.timeout_s),
        "ddp_find_unused_parameters": False,  # every adapter takes part in every step
        # They are constants; to broadcast them is a collective in each forward pass, in which a
        # slow rank would make the others as slow.
        "ddp_broadcast_buffers": False,
        "remove_unused_columns": False,  # the collator reads `row`
        "dataloader_pin_memory": not on_cpu,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    if on_cpu and rank.world_size > 1:
        values["ddp_backend"] = "gloo"
    if args.gradient_checkpointing:
        # The reentrant kind marks LoRA's parameters ready twice under DDP. transformers 5 renamed
        # the setting.
        known = inspect.signature(TrainingArguments).parameters
        new, old = "activation_checkpointing", "gradient_checkpointing"
        name = new if new in known else old
        values |= {name: True, f"{name}_kwargs": {"use_reentrant": False}}
    arguments = TrainingArguments(**values)
    if rank.world_size == 1 and not dist.is_initialized():
        dist.init_process_group("gloo")  # Trainer opens none for one rank; the checks need one
    return arguments
