"""The points in a rank program at which a staged fault can act; nothing else uses them.

The phase's spec names the function that makes the hook, so this package imports none of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .rank_environment import EnvironmentUnusable

if TYPE_CHECKING:
    import torch

    from .core import Rank
    from .proof import Proof


class RankHook:
    """A hook that does nothing. A staged fault overrides the methods that it needs."""

    parameters: Sequence[torch.nn.Parameter] = ()  # those of the proof, or of `verify_gradients`
    has_peer_loss = False  # whether the proof lets other ranks repeat a rank's pass
    proof: Proof | None = None  # of `steps` or `step_log`

    def introduced(self) -> None:
        """The rank has recorded its `start` event; no process group is open yet."""

    def opened(self) -> None:
        """The process group is open, the libraries are loaded, no model is built yet."""

    def multiply(self, multiply: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Multiply two matrices, whose product is known, to measure the device."""
        return multiply()

    def before_step(self, index: int, count: int) -> None:
        """Step `index` of `count` (from 0) begins; its time is already running."""

    def after_backward(self) -> None:
        """The backward pass of a proven step, or of `verify_gradients`, is done; what it reduced is
        compared next."""

    def save(self, save: Callable[[], object]) -> None:
        """Run the program's own saving."""
        save()

    def saved(self) -> None:
        """All ranks have saved, and the files are listed."""


def load_hook(rank: Rank, fault: Mapping[str, Any] | None, event: Callable[..., None]) -> RankHook:
    """Make the hook that the spec's `fault` names as `module:function`; without a fault, one that
    does nothing.

    Raises EnvironmentUnusable if the fault names no hook, and ValueError if that hook cannot stage
    it.
    """
    if not fault:
        return RankHook()
    module, _, function = str(fault.get("hook", "")).partition(":")
    if not module or not function:
        raise EnvironmentUnusable(
            f"the fault {fault!r} of the phase's spec has no `hook`; expected `module:function`"
        )
    hook: RankHook = getattr(importlib.import_module(module), function)(rank, fault, event)
    return hook
