"""train_mlp.py that marks the moment before its process group opens: a broken network shows from
then on."""

from __future__ import annotations

import importlib
from typing import Any

from torch import distributed as dist

train_mlp: Any = importlib.import_module("train_mlp")
staging: Any = importlib.import_module("staging")


def init_process_group(*words: Any, **named: Any) -> None:
    staging.staged()
    whole_init(*words, **named)


if __name__ == "__main__":
    whole_init = dist.init_process_group
    dist.init_process_group = init_process_group
    train_mlp.main()
