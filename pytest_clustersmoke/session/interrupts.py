"""Signals that end a run cancel its jobs from the handler: pytest's own way out comes later."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from typing import Any

# SIGHUP: the terminal is gone, unless that was asked to be of no consequence (nohup).
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# CI systems send two, some seconds apart; people are impatient.
LET_PASS = 3


class Interrupts:
    """From `catch` to `release` the first of SIGNALS calls `cancel` and raises KeyboardInterrupt;
    later ones are ignored, as the end is bounded from there on.

    Once all is judged (`ending`) the first LET_PASS are let pass: what is left is the report.
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self._handlers: dict[int, Any] = {}
        self._let_pass = 0

    def catch(self) -> None:
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
        self._cancel()
        if self._let_pass:
            self._let_pass -= 1
            return
        for one in self._handlers:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt
