"""A real Slurm of a test's own, on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from pytest_clustersmoke import lab
from tests.support.needs import need_lab


@contextmanager
def running_lab(settings: lab.LabSettings) -> Iterator[lab.Lab]:
    """Start a lab, named for this process, and stop it at the end. Skips the test where this
    machine cannot run such a lab."""
    need_lab(settings.accounting, settings.isolated, settings.memory)
    name = f"{settings.name}-{os.getpid()}"
    running = lab.up(replace(settings, name=name))
    try:
        yield running
    finally:
        lab.down(name)
