"""reports/<run_id>/: what is worth keeping of a run, readable by others, the newest runs kept."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .. import clean
from ..history import HistoryUnusable, add, annotate
from ..rundir import RUN_ID, RunDir
from ..telemetry import read_events
from .files import write_all

if TYPE_CHECKING:
    from .model import RunRecord

MAX_FILE_BYTES, MAX_BYTES = 32 * 2**20, 2 * 2**30  # of one file, and of all
MAX_REMARK = 500
# Not evidence: checkpoints and compiled kernels, which are large, and submitit's pickles.
SKIPPED = {"output", "build"}
# A run whose controller was killed never closes its journal; after a month it is over.
ABANDONED_S = 30 * 24 * 3600


def publish(
    record: RunRecord,
    run: RunDir,
    report_dir: Path,
    environ: Mapping[str, str],
    *,
    latest: str = "latest",
    keep_runs: int | None = None,
) -> list[str]:
    """Write the run's report, and store it in the history; the record is completed from there.

    Returns what could not be written beside report.json, in words. `latest` is the link that shall
    point to it; empty for none. Raises OSError where report.json cannot be written.
    """
    target = report_dir / record["run_id"]
    target.mkdir(parents=True, exist_ok=True)
    unread = _of_history(annotate, record, report_dir)
    remarks = unread + write_all(record, target, report_dir, environ, _Copier().names(record, run))
    remarks += _of_history(partial(add, judged=not unread), record, report_dir)
    copier = _Copier()
    for phase in record["phases"]:
        copier.copy(_evidence(run.phase(phase["phase"]).root), run, target)
        if phase["outcome"] == "passed":
            shutil.rmtree(run.phase(phase["phase"]).output, ignore_errors=True)
    last = _Copier()  # with room of its own: by its journal a run is known to be whole
    last.copy([run.journal], run, target)
    if latest:
        try:
            _point(report_dir / latest, target.name)
        except OSError as error:
            remarks.append(f"{latest} does not point to this run: {error}")
    if keep_runs is not None:
        _prune(report_dir, keep_runs)
        _prune(run.root.parent, keep_runs)
    return [*dict.fromkeys(remarks), *copier.remarks(run), *last.remarks(run)]


def _of_history(
    call: Callable[[RunRecord, Path], None], record: RunRecord, report_dir: Path
) -> list[str]:
    """Put the run beside those of the past, or among them. What was staged is no part of it."""
    try:
        if "proof" not in record:
            call(record, report_dir)
    except HistoryUnusable as error:
        return [str(error)]
    except Exception as error:  # of damage nobody foresaw: the report comes first
        return [clean.line(f"history: {type(error).__name__}: {error}")[:MAX_REMARK]]
    return []


def _evidence(phase: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(phase):
        names[:] = [name for name in names if name not in SKIPPED]
        for name in files:
            if not name.endswith(".pkl") and not name.startswith("."):
                yield Path(folder) / name


class _Copier:
    """Copies evidence as far as it can; what it leaves is told and lies where it was."""

    def __init__(self) -> None:
        self._bytes = self._left = 0
        self._error = ""

    def names(self, record: RunRecord, run: RunDir) -> set[str]:
        """What it would copy, by its names below the report; those of folders end in a slash."""
        phases = [run.phase(phase["phase"]).root for phase in record["phases"]]
        found = set()
        for source in [one for root in phases for one in _evidence(root)] + [run.journal]:
            room = _Copier() if source == run.journal else self
            with contextlib.suppress(OSError):
                if room._takes(source):
                    name = source.relative_to(run.root)
                    found |= {name.as_posix(), *(f"{above.as_posix()}/" for above in name.parents)}
        return found

    def copy(self, sources: Iterable[Path], run: RunDir, target: Path) -> None:
        for source in sources:
            try:
                if self._takes(source):
                    copied = target / source.relative_to(run.root)
                    copied.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(source, copied)
            except FileNotFoundError:  # an interrupted job tidies up still
                pass
            except OSError as error:
                self._left += 1
                self._error = self._error or f": {error}"

    def _takes(self, source: Path) -> bool:
        """Whether it is a file for which there is room; then it counts. Raises OSError."""
        info = source.lstat()
        if not stat.S_ISREG(info.st_mode):
            return False
        if info.st_size > MAX_FILE_BYTES or self._bytes + info.st_size > MAX_BYTES:
            self._left += 1
            return False
        self._bytes += info.st_size
        return True

    def remarks(self, run: RunDir) -> list[str]:
        if not self._left:
            return []
        files = f"{self._left} file{'s' * (self._left > 1)} of the evidence"
        return [f"{files} not copied, see {run.root}{self._error}"]


def _point(link: Path, target: str) -> None:
    """Point `latest` to the newest run, whole or not at all."""
    draft = link.with_name(f".latest.{os.getpid()}")
    draft.unlink(missing_ok=True)
    draft.symlink_to(target)
    try:
        draft.replace(link)
    finally:
        draft.unlink(missing_ok=True)


def _prune(directory: Path, keep: int) -> None:
    """Delete the oldest runs beyond `keep`: only directories that are ours by name, owner and
    content, and whose run is over."""
    runs = [path for path in directory.iterdir() if RUN_ID.fullmatch(path.name)]
    begun = sorted((when, run) for run in runs if (when := _began(run)) is not None)
    for _, run in begun[:-keep]:
        with contextlib.suppress(OSError):
            shutil.rmtree(run)


def _began(run: Path) -> float | None:
    """When a run of ours that is over began, by its journal; one that was killed before it had
    written any, by its directory. None where it is none."""
    try:
        if run.is_symlink() or run.lstat().st_uid != os.getuid():
            return None
        touched = run.lstat().st_mtime
    except OSError:
        return None
    old = time.time() - touched > ABANDONED_S
    journal = read_events(run / "journal.jsonl")
    if journal.records:
        over = journal.last("closed") is not None or old
        return float(journal.records[0]["time"]) if over else None
    return touched if old and (run / "run.json").is_file() else None
