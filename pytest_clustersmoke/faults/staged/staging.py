"""One fault in one rank."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ...rank.core import Rank
from ...rank.hook import RankHook

# Faults in training come at the third step: the first ones connect and compile.
AT_STEP = 2


class Staging(RankHook):
    """A staging does nothing by itself; each fault overrides the methods at which it acts.

    `chosen`: whether this is the rank that a fault of one rank is staged on.
    """

    def __init__(self, rank: Rank, name: str, chosen: bool, event: Callable[..., None]) -> None:
        self.rank, self.name, self.chosen = rank, name, chosen
        self._event = event
        self._staged = False

    def stage(self) -> None:
        """Mark the fault in the rank's events and its stderr, just before it happens; once."""
        if not self._staged:
            self._staged = True
            self._event("staged", name=self.name)
            text = f"clustersmoke: rank {self.rank.rank} stages the fault {self.name}, as requested"
            print(text, file=sys.stderr, flush=True)


def cannot(what: str) -> RuntimeError:
    return RuntimeError(f"the fault cannot be staged in this program: {what}")


def replace(owner: Any, name: str, made: Callable[[Any], Any]) -> None:
    """Put what `made` makes of an attribute in its place."""
    setattr(owner, name, made(getattr(owner, name)))
