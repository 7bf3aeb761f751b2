"""SIGINT and SIGTERM cancel a run's jobs from the handler: pytest's own way out comes later."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """From `catch` to `release` the first of SIGNALS calls `cancel` and raises KeyboardInterrupt;
    later ones are ignored, as the end is bounded from there on.

    Once all is judged (`ending`) one signal is let pass: what is left is to write the report.
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self._handlers: dict[int, Any] = {}
        self._let_pass = 0

    def catch(self) -> None:
        with contextlib.suppress(ValueError):  # not in the main thread
            for number in SIGNALS:
                self._handlers[number] = signal.signal(number, self._handle)

    def ending(self) -> None:
        self._let_pass = 1

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
