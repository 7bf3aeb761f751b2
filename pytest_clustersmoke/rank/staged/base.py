"""One fault in one rank: what it can do at each place where a rank program passes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from ..core import Rank

# Faults in training come at the third step: the first ones connect and compile.
AT_STEP = 2


class Staging:
    """A staging does nothing by itself; each fault overrides the places where it acts.

    `chosen`: whether this is the rank that a fault of one rank is staged on.
    """

    def __init__(self, rank: Rank, name: str, chosen: bool, event: Callable[..., None]) -> None:
        self.rank, self.name, self.chosen = rank, name, chosen
        self.parameters: list[torch.nn.Parameter] = []
        self._event = event
        self._staged = False

    def stage(self) -> None:
        """Mark the fault in the rank's events and its stderr, just before it happens; once."""
        if not self._staged:
            self._staged = True
            self._event("staged", name=self.name)
            text = f"clustersmoke: rank {self.rank.rank} stages the fault {self.name}, as asked for"
            print(text, file=sys.stderr, flush=True)

    def introduced(self) -> None:
        """The rank has written who it is; no process group is open yet."""

    def opened(self) -> None:
        """The process group is open, the libraries are loaded, no model is built yet."""

    def before_step(self, index: int, count: int) -> None:
        """Step `index` of `count` (from 0) is about to begin: its time is running."""

    def after_backward(self) -> None:
        """The gradient probe's backward pass is done; what it reduced is about to be compared."""

    def save(self, save: Callable[[], object]) -> None:
        """The program's own saving."""
        save()

    def saved(self) -> None:
        """All ranks have saved, and the files are listed."""


def cannot(what: str) -> RuntimeError:
    return RuntimeError(f"the fault cannot be staged in this program: {what}")


def replace(owner: Any, name: str, made: Callable[[Any], Any]) -> None:
    """Put what `made` makes of an attribute in its place."""
    setattr(owner, name, made(getattr(owner, name)))
