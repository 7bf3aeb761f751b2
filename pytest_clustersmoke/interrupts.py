"""SIGINT and SIGTERM cancel a run's jobs from the handler: pytest's own way out comes later."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """From `catch` to `release` the first of SIGNALS calls `cancel` and raises KeyboardInterrupt;
    later ones are ignored, as the end is bounded from there on."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self._handlers: dict[int, Any] = {}

    def catch(self) -> None:
        with contextlib.suppress(ValueError):  # not in the main thread
            for number in SIGNALS:
                self._handlers[number] = signal.signal(number, self._handle)

    def release(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()

    def _handle(self, number: int, frame: Any) -> None:
        for one in self._handlers:
            signal.signal(one, signal.SIG_IGN)
        self._cancel()
        raise KeyboardInterrupt
