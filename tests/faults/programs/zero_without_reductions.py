"""train_zero.py with DeepSpeed's reductions removed.

Its all-gather still makes the parameters equal on all ranks, so only the gradients themselves
show it.
"""

from __future__ import annotations

import importlib
from typing import Any
from unittest import mock

train_zero: Any = importlib.import_module("train_zero")


def without_reductions(backward: Any) -> Any:
    """The engine's backward, during which DeepSpeed's reductions do nothing."""

    def unreduced(*args: Any, **named: Any) -> Any:
        comm: Any = importlib.import_module("deepspeed.comm")
        with (
            mock.patch.object(comm, "all_reduce", lambda *_, **__: None),
            mock.patch.object(comm, "reduce", lambda *_, **__: None),
        ):
            return backward(*args, **named)

    return unreduced


def remove_reductions() -> None:
    """train_zero reads every engine back once, before it trains."""
    whole_read_back = train_zero.read_back

    def read_back(engine: Any) -> Any:
        engine.backward = without_reductions(engine.backward)
        return whole_read_back(engine)

    train_zero.read_back = read_back


if __name__ == "__main__":
    remove_reductions()
    train_zero.main()
