"""train_zero.py with a wrong configuration, or data that does not fit the right one.

--fault no-optimizer    ZeRO 1 without an optimizer
        batch           a train_batch_size that is not micro batch x ranks x accumulation
        fp32-input      inputs in fp32 where the weights are in bf16
"""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Any

import torch

train_zero: Any = importlib.import_module("train_zero")
staging: Any = importlib.import_module("staging")


def wrong_config(args: argparse.Namespace, rank: Any) -> dict[str, Any]:
    config: dict[str, Any] = whole_config(args, rank)
    staging.staged()
    if fault == "no-optimizer":
        del config["optimizer"]
    else:
        config["train_batch_size"] += 1
    return config


class InFp32:
    def __init__(self, width: int, batch: int, rank: int, device: torch.device, *_: Any) -> None:
        self._whole = whole_teacher(width, batch, rank, device)

    def batch(self, step: int) -> Any:
        staging.staged()
        return self._whole.batch(step)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=("no-optimizer", "batch", "fp32-input"))
    options, sys.argv[1:] = parser.parse_known_args()
    fault = options.fault
    whole_config, whole_teacher = train_zero.deepspeed_config, train_zero.Teacher
    if fault == "fp32-input":
        train_zero.Teacher = InFp32
    else:
        train_zero.deepspeed_config = wrong_config
    train_zero.main()
