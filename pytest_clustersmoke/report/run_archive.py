"""The evidence that reports/<run_id>/ keeps, readable by others; old runs are pruned.

The shared directory is pruned, too, so a finding names the files in the report. Of a file that is
too large to be copied, the report keeps the lines around those that findings quote.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from ..evidence.finding import Evidence, Finding, first_around, read_around
from ..evidence.history.history_database import open_for_reading
from ..evidence.history.newest_runs import find_last_verdicts
from ..evidence.run_directory import RUN_ID, PhaseDir, RunDir, read_json
from ..evidence.run_journal import ABANDONED_S, is_closed
from ..evidence.run_record import PhaseRecord
from ..evidence.screen_files import ScreenFiles
from ..evidence.telemetry import parse_text, read_events
from ..evidence.whole_files import SHARED, is_visible, make_shared_directory, shared_mode
from ..text import plural
from .redaction import USER, Redactor
from .settings_excerpt import hide_variables, write_excerpt
from .verdict import FIT, UNFIT

MAX_FILE_BYTES, MAX_BYTES = 32 * 2**20, 2 * 2**30  # one file, and all files
EXCERPT_LINES, MAX_LINE = 200, 4000
EXCERPT = re.compile(r"(?P<file>.+)\.line-(?P<line>\d{1,15})\.txt")
# Not evidence: checkpoints and compiled kernels, which are large, and submitit's pickles.
SKIPPED = {"output", "build"}
TRACES = "traces"
KEEP = "keep"  # a file of this name, in the report of a run, protects it


def name_archived(finding: Finding, phase: PhaseDir, cluster_file: str = "") -> Finding:
    """The finding with the files of its evidence as the report has them, relative to its folder of
    the phase: what the run left there, or an excerpt. Of `cluster_file`, the run's cluster.yaml,
    an excerpt is written there. Other files keep their paths."""
    evidence = (_name_archived(shown, phase.phase, cluster_file) for shown in finding.evidence)
    return replace(finding, evidence=tuple(evidence))


def _name_archived(shown: Evidence, root: Path, cluster_file: str) -> Evidence:
    if shown.file == cluster_file:
        return write_excerpt(shown, root, EXCERPT_LINES)
    try:
        name = Path(shown.file).relative_to(root)
        is_large = (root / name).lstat().st_size > MAX_FILE_BYTES
    except ValueError:  # not in the run's directory
        return shown
    except OSError:
        is_large = False
    if is_large or not _is_evidence(name):
        line = shown.line - first_around(shown.line, EXCERPT_LINES) + 1
        return replace(shown, file=f"{name}.line-{shown.line}.txt", line=line)
    return replace(shown, file=str(name))


def _is_evidence(name: Path) -> bool:
    return (
        not SKIPPED.intersection(name.parts[:-1])
        and name.suffix != ".pkl"
        and name.name != PhaseDir.ENVIRONMENT  # it may hold tokens
        and not name.name.startswith(".")
    )


class EvidenceCopier:
    """Copies the evidence of a run as far as possible; the rest stays where it was. With a
    `redactor` that is everything but the journal, from which it hides what must not be
    published."""

    def __init__(self, run: RunDir, target: Path, redactor: Redactor | None = None) -> None:
        self._run, self._target, self._redactor = run, target, redactor
        self._is_shared, self._made = shared_mode(target) == SHARED, set[Path]()
        self._bytes = self._left = 0
        self._error = ""

    def copy_phases(self, phases: Iterable[PhaseRecord]) -> None:
        """As long as there is room: first what findings quote, of all phases; last the traces,
        which are large, and which no finding quotes."""
        if self._redactor is not None:
            return
        first: list[Path] = []
        others: list[Path] = []
        traces: list[Path] = []
        for phase in phases:
            root = self._run.phase(phase.phase).root
            quoted = {shown.file for finding in phase.findings for shown in finding.evidence}
            for name in quoted:
                self._copy_excerpt(root, name)
            for path in _evidence(root):
                is_quoted = str(path.relative_to(root)) in quoted
                files = traces if path.parent.name == TRACES else first if is_quoted else others
                files.append(path)
        self._copy([*first, *others, *traces])

    def _copy_excerpt(self, root: Path, name: str) -> None:
        match = EXCERPT.fullmatch(name)
        source = root / match["file"] if match else root
        if not match or ".." in source.parts or source.is_symlink() or not source.is_file():
            return
        lines = read_around(source, int(match["line"]), EXCERPT_LINES)
        copied = self._target / root.relative_to(self._run.root) / name
        with self._counting_errors():
            make_shared_directory(copied.parent)
            copied.write_text("".join(f"{line[:MAX_LINE]}\n" for line in lines))
            self.share(copied)

    def copy_journal(self) -> None:
        """A report is complete once it has a journal, so the journal has a budget of its own."""
        self._bytes = 0
        if self._redactor is None:
            self._copy([self._run.journal])
            return
        with self._counting_errors():
            if self._has_room(self._run.journal):
                copied = RunDir(self._target)
                self._redactor.copy_journal(self._run.journal, copied.journal)
                self.share(copied.journal)
                copied.run.unlink(missing_ok=True)  # it has the path of the run directory

    def will_copy_journal(self) -> bool:
        with contextlib.suppress(OSError):
            info = self._run.journal.lstat()
            return stat.S_ISREG(info.st_mode) and info.st_size <= MAX_FILE_BYTES
        return False

    def remarks(self) -> list[str]:
        if not self._left:
            return []
        files = plural(self._left, "file of the evidence", "files of the evidence")
        return [f"{files} not copied; they are in {self._run.root}{self._error}"]

    def _copy(self, sources: Iterable[Path]) -> None:
        for source in sources:
            with self._counting_errors():
                if self._has_room(source):
                    copied = self._target / source.relative_to(self._run.root)
                    if copied.parent not in self._made:
                        make_shared_directory(copied.parent)
                        self._made.add(copied.parent)
                    if (text := hide_variables(source)) is not None:
                        copied.write_text(text)
                    else:
                        shutil.copyfile(source, copied)
                    self.share(copied)

    def share(self, path: Path) -> None:
        """Let the other users of the report directory write a file, if they share it."""
        if self._is_shared and path.is_file():
            path.chmod(SHARED)

    @contextlib.contextmanager
    def _counting_errors(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:  # an interrupted job is still cleaning up
            pass
        except OSError as error:
            self._left += 1
            self._error = self._error or f": {error}"

    def _has_room(self, source: Path) -> bool:
        """Whether this is a regular file that still fits the limits; if so, count it."""
        info = source.lstat()
        if not stat.S_ISREG(info.st_mode):
            return False
        if info.st_size > MAX_FILE_BYTES or self._bytes + info.st_size > MAX_BYTES:
            self._left += 1
            return False
        self._bytes += info.st_size
        return True


def _evidence(phase: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(phase):
        names[:] = [name for name in names if name not in SKIPPED]
        yield from (Path(folder) / name for name in files if _is_evidence(Path(name)))


def point_link(link: Path, target: str) -> None:
    """Point a link to the newest run, atomically."""
    draft = link.with_name(f".latest.{os.getpid()}")
    draft.unlink(missing_ok=True)
    draft.symlink_to(target)
    try:
        draft.replace(link)
    finally:
        draft.unlink(missing_ok=True)


def list_protected(report_dir: Path) -> set[str]:
    """The ids of runs that pruning never takes: each cluster's last FIT and last UNFIT run, and
    those whose report has a file `keep`. Raises HistoryUnusable."""
    with open_for_reading(report_dir) as connection:
        last = set() if connection is None else find_last_verdicts(connection, (FIT, UNFIT))
    runs = (path for path in report_dir.iterdir() if RUN_ID.fullmatch(path.name))
    return last | {path.name for path in runs if is_visible(path / KEEP)}


def _read_report_path(run: Path) -> Path | None:
    """Where the report of a run of this user's is, by its run.json."""
    if not RUN_ID.fullmatch(run.name) or not _is_own(run):
        return None
    report = parse_text((read_json(RunDir(run).run) or {}).get("report"))
    return Path(report) if report and "\0" not in report else None


def list_reported_elsewhere(run_dir: Path, report_dir: Path) -> set[str]:
    """The ids of runs whose report is in another report directory, which alone says whether they
    may go, or is to be kept."""
    here = report_dir.resolve()
    found = set()
    for run in run_dir.iterdir():
        if (report := _read_report_path(run)) is None:
            continue
        is_elsewhere = report.parent.resolve() != here
        if is_visible(report / KEEP) or (is_elsewhere and is_visible(report)):
            found.add(run.name)
    return found


def prune_runs(
    directory: Path, keep: int, protected: Collection[str] = (), cluster: str = ""
) -> None:
    """Delete the oldest runs beyond `keep`, and the oldest screens beyond as many, which may run
    each hour, but none of these, and none that names another cluster: only our own directories, by
    name, owner and content, and only of runs that are over."""
    named = [path for path in directory.iterdir() if RUN_ID.fullmatch(path.name)]
    runs = [run for run in named if not cluster or _cluster_of(run) in (cluster, "")]
    begun = sorted((when, run) for run in runs if (when := _began(run)) is not None)
    screens = [run for _, run in begun if ScreenFiles(run).root.is_dir()]
    others = [run for _, run in begun if run not in screens]
    for run in (*others[:-keep], *screens[:-keep]):
        if run.name in protected or (run / KEEP).exists():
            continue
        with contextlib.suppress(OSError):
            shutil.rmtree(run)


def _cluster_of(run: Path) -> str:
    """The cluster of a run; empty if nothing says it. A report of names only has no run.json, and
    hides the name of a cluster that is also the user's."""
    about = read_json(RunDir(run).run) or read_json(run / "report.json") or {}
    name = parse_text(about.get("cluster")) or ""
    return "" if USER in name else name


def _is_own(run: Path) -> bool:
    """Whether a run's directory is this user's: pruning takes no other, and believes no other."""
    try:
        info = run.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid()


def _began(run: Path) -> float | None:
    """When a run of ours that is over started: from its journal or, if it was killed before it
    wrote one, from its directory. None for anything else."""
    if not _is_own(run):
        return None
    try:
        touched = run.lstat().st_mtime
    except OSError:
        return None
    old = time.time() - touched > ABANDONED_S
    journal = read_events(RunDir(run).journal)
    if journal.records:
        over = is_closed(RunDir(run)) or old  # one that was closed may have been attached again
        return float(journal.records[0]["time"]) if over else None
    return touched if old and RunDir(run).run.is_file() else None
