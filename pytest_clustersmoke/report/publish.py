"""reports/<run_id>/: what is worth keeping of a run, readable by others, the newest runs kept."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..rundir import RUN_ID, write_json
from ..telemetry import plain, read_events

if TYPE_CHECKING:
    from ..suite import Suite

MAX_FILE_BYTES = 32 * 2**20
# Not evidence: checkpoints and compiled kernels, which are large, and submitit's pickles.
SKIPPED = {"output", "build"}
# A run whose controller was killed never closes its journal; after a month it is over.
ABANDONED_S = 30 * 24 * 3600


def publish(suite: Suite, record: dict[str, Any]) -> None:
    """Write the run's report. Raises OSError where it cannot be written."""
    assert suite.run is not None
    target = suite.report_path
    target.mkdir(parents=True, exist_ok=True)
    write_json(target / "report.json", plain(record), mode=0o644)
    for name in suite.tally.chosen:
        _copy(suite.run.phase(name).root, target / "phases" / name)
        if suite.tally.outcomes.get(name) == "passed":
            shutil.rmtree(suite.run.phase(name).output, ignore_errors=True)
    shutil.copyfile(suite.run.journal, target / "journal.jsonl")
    _point(suite.report_dir / suite.latest, target.name)
    keep = suite.profile.limits.keep_runs
    _prune(suite.report_dir, keep)
    _prune(suite.profile.shared_dir, keep)


def _copy(source: Path, target: Path) -> None:
    for folder, names, files in os.walk(source):
        names[:] = [name for name in names if name not in SKIPPED]
        here = target / Path(folder).relative_to(source)
        here.mkdir(parents=True, exist_ok=True)
        for name in files:
            path = Path(folder) / name
            if path.suffix != ".pkl" and not name.startswith("."):
                with contextlib.suppress(FileNotFoundError):  # an interrupted job tidies up still
                    info = path.lstat()
                    if stat.S_ISREG(info.st_mode) and info.st_size <= MAX_FILE_BYTES:
                        shutil.copyfile(path, here / name)


def _point(link: Path, target: str) -> None:
    """Point `latest` to the newest run, whole or not at all."""
    draft = link.with_name(f".latest.{os.getpid()}")
    draft.unlink(missing_ok=True)
    draft.symlink_to(target)
    draft.replace(link)


def _prune(directory: Path, keep: int) -> None:
    """Delete the oldest runs beyond `keep`: only directories that are ours by name, owner and
    journal, and whose run is over."""
    runs = [path for path in directory.iterdir() if RUN_ID.fullmatch(path.name)]
    begun = sorted((when, run) for run in runs if (when := _began(run)) is not None)
    for _, run in begun[:-keep]:
        with contextlib.suppress(OSError):
            shutil.rmtree(run)


def _began(run: Path) -> float | None:
    """When a run of ours that is over began, by its journal; None where it is none."""
    try:
        if run.is_symlink() or run.lstat().st_uid != os.getuid():
            return None
        old = time.time() - run.lstat().st_mtime > ABANDONED_S
    except OSError:
        return None
    journal = read_events(run / "journal.jsonl")
    over = journal.last("closed") is not None or old
    return float(journal.records[0]["time"]) if over and journal.records else None
