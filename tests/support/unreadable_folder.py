"""A folder that another user made unreadable, also for a test that runs as root."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest


def deny_reading(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make this folder one of mode 0700 of someone else: it is there, and nothing in it can be
    examined."""
    folder.mkdir(exist_ok=True)
    stat = os.stat

    def refuse(path: Any, *args: Any, **options: Any) -> os.stat_result:
        if not isinstance(path, int) and folder in Path(os.fsdecode(path)).parents:
            raise PermissionError(13, "Permission denied", os.fsdecode(path))
        return stat(path, *args, **options)

    monkeypatch.setattr(os, "stat", refuse)
