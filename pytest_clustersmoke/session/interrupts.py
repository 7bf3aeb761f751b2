"""Signals that end a run: the handler cancels the jobs at once, as pytest exits only later."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from typing import Any

# SIGHUP: the terminal is gone; under nohup it is ignored.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# CI systems send two, some seconds apart; people press Ctrl-C several times.
LET_PASS = 3


class Interrupts:
    """Between `catch` and `release`, the first of SIGNALS calls `cancel` and raises
    KeyboardInterrupt. Later ones call `hurry` and raise nothing: the run ends in bounded time.

    After `ending` only the report is left to write: the first LET_PASS signals do not interrupt it.
    """

    def __init__(self) -> None:
        self._has_raised = False
        self._first: int | None = None
        self._handlers: dict[int, Any] = {}
        self._let_pass = 0

    @property
    def signal(self) -> str:
        """The name of the signal that came first; empty for Ctrl-C, and without one."""
        return "" if self._first in (None, signal.SIGINT) else signal.Signals(self._first).name

    @property
    def has_come(self) -> bool:
        return self._first is not None

    def catch(self, cancel: Callable[[], None], hurry: Callable[[], None]) -> None:
        self._cancel, self._hurry = cancel, hurry
        with contextlib.suppress(ValueError):  # not in the main thread
            for number in SIGNALS:
                if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue
                self._handlers[number] = signal.signal(number, self._handle)

    def ending(self) -> None:
        self._let_pass = LET_PASS

    def release(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()

    def _handle(self, number: int, frame: Any) -> None:
        self._first = self._first or number
        if self._has_raised:
            self._hurry()
            return
        self._cancel()
        if self._let_pass:
            self._let_pass -= 1
            return
        self._has_raised = True
        raise KeyboardInterrupt
