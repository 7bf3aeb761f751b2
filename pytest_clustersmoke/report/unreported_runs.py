"""Runs of a report directory whose report is missing or incomplete.

Every command on the history looks for them first, and nearly always finds none: so what writes a
report is loaded only where there is one to write.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..evidence.run_directory import RUN_ID, RunDir, is_of_phases, read_json, write_atomically
from ..evidence.whole_files import is_visible, shared_mode

GIVEN_UP = "report_failed.txt"


def find_unreported(report_dir: Path) -> Iterator[tuple[Path, RunDir, dict[str, Any]]]:
    """The runs with an incomplete report, with run directory and run.json. A killed proof proved
    nothing, and the nodes of a killed screen must be asked again: both are run again."""
    try:
        names = sorted(path.name for path in report_dir.iterdir() if RUN_ID.fullmatch(path.name))
    except OSError:
        return
    for name in names:
        target = report_dir / name
        if is_whole(target) or is_visible(target / GIVEN_UP):
            continue
        stub = read_json(RunDir(target).run) or {}
        run = RunDir(Path(str(stub.get("evidence", ""))))
        about = read_json(run.run)
        is_same = about is not None and about.get("run_id") == name == run.run_id
        if about is not None and is_same and is_of_phases(about):
            yield target, run, about


def is_whole(target: Path) -> bool:
    """Whether a report is complete: the journal is copied last."""
    return all(map(is_visible, (target / "report.json", RunDir(target).journal)))


def mark_unreportable(target: Path, words: str) -> None:
    """Mark a run whose report cannot be created, so that no later command tries again."""
    with contextlib.suppress(OSError):
        write_atomically(target / GIVEN_UP, words + "\n", shared_mode(target))


def has_unreported(report_dir: Path) -> bool:
    """Whether there is such a run."""
    return next(find_unreported(report_dir), None) is not None
