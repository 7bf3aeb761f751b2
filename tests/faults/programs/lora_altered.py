"""train_lora_sft.py that trains something else than it says.

--fault projection-frozen    the adapters of one projection are not trained
        base-trainable       one weight of the base is
        fp32                 everything computes in fp32, whatever --precision says
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch

train_lora_sft: Any = importlib.import_module("train_lora_sft")
sft_trainer: Any = importlib.import_module("sft_trainer")
transformers: Any = sft_trainer.transformers
add_whole_adapters: Callable[[Any], Any] = train_lora_sft.add_adapters
build_whole_base: Callable[..., Any] = train_lora_sft.build_base


def freeze_projection(base: Any) -> Any:
    model = add_whole_adapters(base)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and ".o_proj." not in name)
    return model


def free_norm(base: Any) -> Any:
    model = add_whole_adapters(base)
    next(p for name, p in model.named_parameters() if "norm" in name).requires_grad_(True)
    return model


def compute_in_fp32() -> None:
    settings = transformers.TrainingArguments
    transformers.TrainingArguments = lambda **given: settings(**{**given, "bf16": False})
    train_lora_sft.build_base = lambda *given: build_whole_base(*given).float()
    torch.autocast = lambda *_, **__: contextlib.nullcontext()  # type: ignore[assignment, misc]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=("projection-frozen", "base-trainable", "fp32"))
    options, sys.argv[1:] = parser.parse_known_args()
    if options.fault == "fp32":
        compute_in_fp32()
    else:
        frozen = options.fault == "projection-frozen"
        train_lora_sft.add_adapters = freeze_projection if frozen else free_norm
    train_lora_sft.main()
