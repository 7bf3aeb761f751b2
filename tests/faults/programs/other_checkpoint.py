"""train_mlp.py whose checkpoint holds the weights of another model of the same shape."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch

train_mlp: Any = importlib.import_module("train_mlp")
whole_save = torch.save


def save_another(state: dict[str, Any], path: Path) -> None:
    hidden_size = state["model"]["0.weight"].shape[1]
    another = train_mlp.build_model(hidden_size).state_dict()
    whole_save({**state, "model": another}, path)


if __name__ == "__main__":
    setattr(torch, "save", save_another)  # noqa: B010 (its type is another)
    train_mlp.main()
