"""Loads what writes the report while the first jobs run: a run that ends, or is interrupted, then
only has to write it."""

from __future__ import annotations

import contextlib
import threading

from .live.board import Board


def load_report_early(board: Board) -> None:
    """Load it in a thread, once the first phase was submitted: until then it would hold that up."""
    threading.Thread(target=_load, args=(board,), name="clustersmoke-load", daemon=True).start()


def _load(board: Board) -> None:
    board.wait_for_submission()
    with contextlib.suppress(Exception):  # it is raised again where the report is written
        from prometheus_client.core import GaugeMetricFamily  # noqa: F401
        from prometheus_client.openmetrics import exposition  # noqa: F401

        from ..report import junit, publication  # noqa: F401
        from ..report.page import load_templates

        load_templates()
