"""The base class of what a rank does to stage a fault."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ...evidence.staged_marks import CANNOT_STAGE
from ...rank.core import Rank
from ...rank.hook import RankHook

# Training faults happen at the third step, since the first ones connect and compile.
AT_STEP = 2
NO_PROOF = "the program gave rank.steps no proof"


class Staging(RankHook):
    """Does nothing by itself; each fault overrides the methods in which it acts.

    `chosen`: whether this is the rank on which a fault of one rank is staged.
    """

    def __init__(self, rank: Rank, name: str, chosen: bool, event: Callable[..., None]) -> None:
        self.rank, self.name, self.chosen = rank, name, chosen
        self._event = event
        self._staged = False

    def stage(self) -> None:
        """Record the fault in the rank's events and stderr, once, just before it happens."""
        if not self._staged:
            self._staged = True
            self._event("staged", name=self.name)
            text = f"clustersmoke: rank {self.rank.rank} stages the fault {self.name}, as requested"
            print(text, file=sys.stderr, flush=True)


def cannot_stage(reason: str) -> RuntimeError:
    return RuntimeError(f"{CANNOT_STAGE}: {reason}")


def wrap_attribute(owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    """Replace an attribute by what `wrap` returns for it."""
    setattr(owner, name, wrap(getattr(owner, name)))
