"""pytest's terminal: lines between its own, and a screen below them."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import pytest

from .screen import Screen


class PytestTerminal:
    """The terminal of one session."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @property
    def _reporter(self) -> Any:
        """pytest's terminal reporter; None without one."""
        return self._config.pluginmanager.get_plugin("terminalreporter")

    @property
    def has_colour(self) -> bool:
        return bool(getattr(self._reporter, "hasmarkup", False))  # as --color says, and NO_COLOR

    def open_screen(self) -> Screen | None:
        """The terminal that pytest writes to. None if its output is not a terminal, cannot move the
        cursor, or belongs to a CI system, which would keep everything drawn."""
        stream = getattr(getattr(self._reporter, "_tw", None), "_file", None)
        ci = bool(os.environ.get("CI") or os.environ.get("BUILD_NUMBER"))  # as pytest knows it
        if stream is None or ci or os.environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
            return None
        if self._config.get_verbosity() < -1:
            return None
        with self._uncaptured():
            return Screen(stream) if stream.isatty() else None

    def say(self, line: str) -> None:
        """Print a line between pytest's own while items run; nothing under -q."""
        reporter = self._reporter
        if reporter is not None and reporter.verbosity >= 0:
            with self._uncaptured():
                reporter.ensure_newline()
                if reporter._tw.width_of_current_line:  # xdist's dots, which pytest does not count
                    reporter.write_line("")
                reporter.write_line(line)

    def _uncaptured(self) -> contextlib.AbstractContextManager[None]:
        capture = self._config.pluginmanager.get_plugin("capturemanager")
        if capture is None:
            return contextlib.nullcontext()
        context: contextlib.AbstractContextManager[None] = capture.global_and_fixture_disabled()
        return context
