"""train_lora_sft.py that trains in fp32, and says so, whatever precision it is given."""

from __future__ import annotations

import importlib
from typing import Any

train_lora_sft: Any = importlib.import_module("train_lora_sft")


def parse_args() -> Any:
    args = whole_parse_args()
    args.precision = "fp32"
    return args


if __name__ == "__main__":
    whole_parse_args = train_lora_sft.parse_args
    train_lora_sft.parse_args = parse_args
    train_lora_sft.main()
