"""What makes start and end of a run short: what judges jobs and writes the report is loaded while
the first ones run, and neither pytest nor the interpreter searches all of that for garbage as it
ends."""

from __future__ import annotations

import atexit
import contextlib
import gc
import threading

from .live.board import Board


def prepare_end(board: Board) -> None:
    """Load what judges jobs and writes the report in a thread, once the first phase was submitted:
    until then it would hold that up."""
    # pytest has searched for garbage by then. The interpreter's own searches, as it takes down one
    # module after another, cost more CPU time than to write the report.
    atexit.register(gc.freeze)
    threading.Thread(target=_load, args=(board,), name="clustersmoke-load", daemon=True).start()


def _load(board: Board) -> None:
    board.wait_for_submission()
    _import_end()
    if not gc.get_freeze_count():  # once in a process: what is frozen is never freed
        # pytest searches five times at its end, for what the tests left. What was there before them
        # is searched now, while jobs run.
        gc.collect()
        gc.freeze()


def _import_end() -> None:
    with contextlib.suppress(Exception):  # it is raised again where it is needed
        from prometheus_client.core import GaugeMetricFamily  # noqa: F401
        from prometheus_client.openmetrics import exposition  # noqa: F401

        from .. import diagnose  # noqa: F401
        from ..criteria import hardware_health  # noqa: F401
        from ..report import junit, publication  # noqa: F401
        from ..report.page import load_templates

        load_templates()
