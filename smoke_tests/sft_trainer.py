"""transformers' Trainer for train_lora_sft.py: its settings, and a record of each step."""

from __future__ import annotations

import argparse
from typing import Any

import torch
import transformers

from pytest_clustersmoke.rank import Rank, StepLog, TwinLog
from sft_data import Batch


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


class SftTrainer(transformers.Trainer):
    """Trainer that records each step: its loss, its rows, and the end of this rank's own work."""

    step_log: StepLog | TwinLog
    train_dataset: Any
    model: Any  # the bare one; `model_wrapped` is under DDP

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_callback(StepEnd(self))
        self.model_accepts_loss_kwargs = False  # newer versions would scale our loss, a mean
        self.rows: list[torch.Tensor] = []

    def train_anew(self) -> None:
        """Train with an optimizer, a scheduler and a DDP of this pass."""
        self.rows.clear()
        self.optimizer = self.lr_scheduler = None
        self.model_wrapped = self.model
        self.train()

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
        return self.loss_of(self.batch)

    def peer_loss(self, index: int, rank: int) -> torch.Tensor:
        """The loss of another rank's batch of this step; all ranks call it together."""
        rows: list[Any] = [None] * self.args.world_size
        torch.distributed.all_gather_object(rows, self.rows[-1].tolist())
        batch = self.data_collator([self.train_dataset[row] for row in rows[rank]])
        batch.pop("row")
        return self.loss_of(self._prepare_inputs(batch))

    def loss_of(self, batch: Batch) -> torch.Tensor:
        with self.accelerator.autocast():
            loss: torch.Tensor = self.model(**batch).loss
        return loss

    @torch.no_grad()
    def measure_loss(self, batch: Batch) -> float:
        """The loss without dropout. Leaves the model in training mode."""
        self.model.eval()
        loss = float(self.loss_of(batch))
        self.model.train()
        return loss


class StepEnd(transformers.TrainerCallback):
    def __init__(self, trainer: SftTrainer) -> None:
        self.trainer = trainer

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.trainer.step_log.record(loss=self.trainer.last_loss)
