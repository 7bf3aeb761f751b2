"""The files and streams to read, from the arguments of a command, and what cannot be read.

A directory means all files below it, except hidden ones. In a run directory only NCCL's logs are
read; the directory of each node there distinguishes nodes that share a host name.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..evidence.run_directory import PhaseDir, find_attempt
from ..text import near, shorten

STDIN = "-"
STDIN_NAME = "<stdin>"
# The shell's paths for `<(zcat LOG.gz)`: already open, so reading them ends.
OPEN_ALREADY = ("/dev/fd/", "/proc/self/fd/")
# Names in a run directory (see evidence/run_directory.py).
NCCL, PHASES = "nccl", "phases"
# At most this many phases are named if a directory has several.
MAX_NAMED = 3


@dataclass(frozen=True)
class Input:
    """A file or stream to read; `path` is None for standard input."""

    path: Path | None
    name: str
    scope: str = ""
    size: int | None = None  # bytes; None for a stream


@dataclass
class Inputs:
    """What to read, each once, and what cannot be read, with the reason. `add_directory` adds what
    the subcommand `command` reads of a directory."""

    command: str
    add_directory: Callable[[Inputs, Path], None]
    found: list[Input] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    _seen: set[tuple[int, int] | str] = field(default_factory=set)

    @classmethod
    def of(cls, words: Sequence[str]) -> Inputs:
        """The NCCL logs to read, from the arguments of `clustersmoke transports`."""
        inputs = cls("transports", _add_nccl_logs)
        inputs.add_words(words)
        return inputs

    def add_words(self, words: Sequence[str]) -> None:
        for word in words:
            if word == STDIN:
                self._add(Input(None, STDIN_NAME), STDIN)
            else:
                self.add_path(Path(word), named=True)

    @property
    def size(self) -> int | None:
        """Bytes of all files; None if a stream is among them."""
        sizes = [source.size for source in self.found]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def add_path(self, path: Path, named: bool = False) -> None:
        name = str(path)
        try:
            info = path.stat()
        except OSError as error:
            self.refused.append((name, _explain_error(path, error)))
            return
        if stat.S_ISDIR(info.st_mode):
            self.add_directory(self, path)
        elif stat.S_ISREG(info.st_mode):
            self._add(Input(path, name, _scope(path), info.st_size), (info.st_dev, info.st_ino))
        elif not named:
            return  # such as a socket in a directory
        elif name.startswith(OPEN_ALREADY) or name in ("/dev/stdin", os.devnull):
            self._add(Input(path, name), name)
        elif stat.S_ISFIFO(info.st_mode):
            why = "is a FIFO, which may never end; expected a file "
            self.refused.append((name, f"{why}(cat FIFO | clustersmoke {self.command} -)"))
        else:
            self.refused.append((name, "is a device or socket; expected a file, a directory or -"))

    def failed_below(self, path: Path) -> bool:
        """Whether the directory, or one below it, could not be listed."""
        return any(Path(name) == path or path in Path(name).parents for name, _ in self.refused)

    def walk(self, top: Path) -> Iterator[Path]:
        def refuse(error: OSError) -> None:
            path = Path(os.fsdecode(error.filename))
            self.refused.append((str(path), _explain_error(path, error)))

        for folder, names, files in os.walk(top, onerror=refuse):
            names[:] = sorted(name for name in names if not name.startswith("."))
            for file in sorted(files):
                if not file.startswith("."):
                    yield Path(folder) / file

    def _add(self, source: Input, identity: tuple[int, int] | str) -> None:
        if identity not in self._seen:
            self._seen.add(identity)
            self.found.append(source)


def _add_nccl_logs(inputs: Inputs, path: Path) -> None:
    phases = [path] if _is_phase(path) else sorted(filter(_is_phase, _children(path / PHASES)))
    tops = [PhaseDir(phase).newest.start / NCCL for phase in phases] or [path]
    files = {top: list(inputs.walk(top)) for top in tops}
    filled = [top for top in tops if files[top]]
    if len(filled) > 1:
        names = shorten([str(top.parent) for top in filled], MAX_NAMED)
        inputs.refused.append(
            (
                str(path),
                f"contains the logs of {len(filled)} jobs; name the directory of one: {names}",
            )
        )
    elif filled:
        for file in files[filled[0]]:
            inputs.add_path(file)
    elif phases:
        why = "contains no NCCL logs (phases under gloo write none)"
        inputs.refused.append((str(path), why))
    elif not inputs.failed_below(path):
        inputs.refused.append((str(path), "contains no files; expected NCCL logs"))


def _is_phase(path: Path) -> bool:
    job = PhaseDir(path).last_job
    return job.spec.is_file() and (job.root / NCCL).is_dir()


def _children(path: Path) -> list[Path]:
    try:
        return list(path.iterdir())
    except OSError:
        return []


def _scope(path: Path) -> str:
    """The node's directory name, for a log in a run directory; else empty."""
    folder = path.absolute().parent
    above = folder.parent
    if above.name == NCCL and folder.name.isdigit() and find_attempt(above.parent).spec.is_file():
        return folder.name
    return ""


def _explain_error(path: Path, error: OSError) -> str:
    """Why a path cannot be read, and what to do."""
    reason = error.strerror or str(error)
    if isinstance(error, PermissionError):
        return f"cannot be read: {reason}; read it as its owner, or change its permissions"
    if not isinstance(error, FileNotFoundError):
        return f"cannot be read: {reason}"
    if not path.parent.is_dir():
        return f"does not exist, nor does {path.parent}; check the path"
    if path.is_symlink():
        return "is a broken link; check its target"
    hint = near(path.name, [entry.name for entry in _children(path.parent)])
    return f"does not exist; {hint or 'check the name'}"
