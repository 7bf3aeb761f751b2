"""train_mlp.py on a rank whose address space has no room for the optimizer's state.

As in a full fine-tune, the weights and gradients fit, but the first step of the optimizer, which
makes Adam's two moments of each, does not. The limit comes just before it: a pass under the limit
may fail in oneDNN instead, whose message says nothing of memory.
"""

from __future__ import annotations

import importlib
import os
import resource
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

train_mlp: Any = importlib.import_module("train_mlp")
staging: Any = importlib.import_module("staging")
AT_RANK = 1
SPARE_BYTES = 4 * 2**20


def limit(*_: object) -> None:
    """Limit the address space to what this process has now, and little more."""
    staging.staged()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    if os.environ["RANK"] == str(AT_RANK):
        register_optimizer_step_pre_hook(limit)
    train_mlp.main()
