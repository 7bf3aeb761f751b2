"""train_lora_sft.py with gradient checkpointing of the reentrant kind.

--fault twice      with a search for unused parameters, which peft's models need under DDP: each
                   adapter is marked ready twice
        no-grad    over frozen embeddings whose output does not require a gradient, so that no
                   adapter gets one
"""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Any

train_lora_sft: Any = importlib.import_module("train_lora_sft")
sft_trainer: Any = importlib.import_module("sft_trainer")
transformers: Any = sft_trainer.transformers  # loading it replaces the module in sys.modules
staging: Any = importlib.import_module("staging")


def arguments(**values: Any) -> Any:
    values["gradient_checkpointing"] = True
    values["gradient_checkpointing_kwargs"] = {"use_reentrant": True}
    values["ddp_find_unused_parameters"] = fault == "twice"
    return whole(**values)


def compute_loss(trainer: Any, *words: Any, **named: Any) -> Any:
    staging.staged()
    return whole_loss(trainer, *words, **named)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=("twice", "no-grad"))
    options, sys.argv[1:] = parser.parse_known_args()
    fault = options.fault
    if fault == "no-grad":
        transformers.PreTrainedModel.enable_input_require_grads = lambda _: None
    whole = transformers.TrainingArguments
    transformers.TrainingArguments = arguments
    whole_loss = train_lora_sft.SftTrainer.compute_loss
    train_lora_sft.SftTrainer.compute_loss = compute_loss
    train_lora_sft.main()
