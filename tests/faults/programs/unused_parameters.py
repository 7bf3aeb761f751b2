"""train_mlp.py whose model has a layer that takes no part in the loss."""

from __future__ import annotations

import importlib
from typing import Any

from torch import nn

train_mlp: Any = importlib.import_module("train_mlp")
staging: Any = importlib.import_module("staging")


class HalfUsed(nn.Module):
    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.used = whole_model(hidden_size)
        self.unused = nn.Linear(hidden_size, hidden_size)
        self._marked = False

    def forward(self, inputs: Any) -> Any:
        if not self._marked:
            self._marked = True
            staging.staged()
        return self.used(inputs)


def build_model(hidden_size: int) -> nn.Module:
    return HalfUsed(hidden_size)


if __name__ == "__main__":
    whole_model = train_mlp.build_model
    train_mlp.build_model = build_model
    train_mlp.main()
