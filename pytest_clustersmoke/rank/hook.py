"""What may act at the places where every rank program passes: a staged fault, and nothing else.

A phase's spec names the function that makes the hook; this package imports none of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from .core import Rank


class RankHook:
    """A hook that does nothing; a staged fault overrides the methods at which it acts."""

    parameters: Sequence[torch.nn.Parameter] = ()  # those that the gradient probe compares

    def introduced(self) -> None:
        """The rank has recorded who it is; no process group is open yet."""

    def opened(self) -> None:
        """The process group is open, the libraries are loaded, no model is built yet."""

    def before_step(self, index: int, count: int) -> None:
        """Step `index` of `count` (from 0) is about to begin: its time is running."""

    def after_backward(self) -> None:
        """The gradient probe's backward pass is done; its reduction is compared next."""

    def save(self, save: Callable[[], object]) -> None:
        """Run the program's own saving."""
        save()

    def saved(self) -> None:
        """All ranks have saved, and the files are listed."""


def load_hook(rank: Rank, fault: Mapping[str, Any] | None, event: Callable[..., None]) -> RankHook:
    """Make the hook that the spec's `fault` names as `module:function`; without one, one that does
    nothing.

    Raises ValueError where the fault names none, or one that cannot stage it.
    """
    if not fault:
        return RankHook()
    module, _, function = str(fault.get("hook", "")).partition(":")
    if not module or not function:
        raise ValueError(f"the fault {fault!r} has no `hook`; expected `module:function`")
    hook: RankHook = getattr(importlib.import_module(module), function)(rank, fault, event)
    return hook
