"""reports/<run_id>/: what is worth keeping of a run, readable by others, the newest runs kept."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from ..rundir import write_json
from ..telemetry import plain
from .record import make_record

if TYPE_CHECKING:
    from ..suite import Suite

MAX_FILE_BYTES = 32 * 2**20
# Not evidence: checkpoints and compiled kernels, which are large, and submitit's pickles.
SKIPPED = {"output", "build"}


def publish(suite: Suite) -> Path:
    """Write the run's report; returns its directory."""
    assert suite.run is not None
    target = suite.report_path
    target.mkdir(parents=True, exist_ok=True)
    write_json(target / "report.json", plain(make_record(suite)), mode=0o644)
    for name in suite.tally.chosen:
        _copy(suite.run.phase(name).root, target / "phases" / name)
        if suite.tally.outcomes.get(name) == "passed":
            shutil.rmtree(suite.run.phase(name).output, ignore_errors=True)
    shutil.copyfile(suite.run.journal, target / "journal.jsonl")
    _point(suite.report_dir / "latest", target.name)
    keep = suite.profile.limits.keep_runs
    _prune(suite.report_dir, keep, "report.json")
    _prune(suite.profile.shared_dir, keep, "run.json")
    return target


def _copy(source: Path, target: Path) -> None:
    for folder, names, files in os.walk(source):
        names[:] = [name for name in names if name not in SKIPPED]
        here = target / Path(folder).relative_to(source)
        here.mkdir(parents=True, exist_ok=True)
        for name in files:
            path = Path(folder) / name
            info = path.lstat()
            wanted = stat.S_ISREG(info.st_mode) and info.st_size <= MAX_FILE_BYTES
            if wanted and path.suffix != ".pkl" and not name.startswith("."):
                shutil.copyfile(path, here / name)


def _point(link: Path, target: str) -> None:
    """Point `latest` to the newest run, whole or not at all."""
    draft = link.with_name(f".latest.{os.getpid()}")
    draft.unlink(missing_ok=True)
    draft.symlink_to(target)
    draft.replace(link)


def _prune(directory: Path, keep: int, witness: str) -> None:
    """Delete the oldest runs beyond `keep`; only directories that hold our own `witness` file."""
    runs = [path.parent for path in directory.glob(f"*/{witness}") if not path.parent.is_symlink()]
    ours = [run for run in runs if run.lstat().st_uid == os.getuid()]
    ours.sort(key=lambda run: (run / witness).stat().st_mtime)
    for run in ours[:-keep] if len(ours) > keep else []:
        with contextlib.suppress(OSError):
            shutil.rmtree(run)
