"""The logs to read, from the arguments of `clustersmoke diagnose`, and their writers if known.

A directory means all files below it, except hidden ones and those that are not text. In a phase
directory of this suite only logs are read, not our own records; there the path of a log gives its
rank and node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from ..evidence.run_directory import PhaseDir, read_json
from ..text import shorten
from .log_inputs import MAX_NAMED, PHASES, SPEC, Inputs

# Folders of logs in a phase directory; everything else is ours, or written by the program.
LOG_FOLDERS = ("submitit", "nodes", "nccl")
MAX_RANKS = 2**16
OURS = (".json", ".jsonl", ".pkl", ".sh")


@dataclass(frozen=True)
class Named:
    """One input, with its writer's host and rank if they are certain."""

    path: Path | None
    name: str
    asked_for: bool
    host: str = ""
    rank: int | None = None
    survived: bool = False  # its writer finished well, whatever it logged before


@dataclass
class LogInputs(Inputs):
    """What to read, each once, and what cannot be read, with the reason."""

    command: ClassVar[str] = "diagnose"
    _walked: set[str] = field(default_factory=set)

    def named(self) -> Iterator[Named]:
        for source in self.found:
            host, rank, survived = (
                _writer(source.path) if source.path is not None else ("", None, False)
            )
            yield Named(
                source.path, source.name, source.name not in self._walked, host, rank, survived
            )

    def _directory(self, path: Path) -> None:
        phases = [path] if (path / SPEC).is_file() else _phases(path)
        if len(phases) > 1:
            names = shorten(list(map(str, phases)), MAX_NAMED)
            reason = f"contains the logs of {len(phases)} jobs; name the directory of one: {names}"
            self.refused.append((str(path), reason))
            return
        files = list(_logs(phases[0], self._walk) if phases else self._walk(path))
        self._walked.update(map(str, files))
        for file in files:
            self._path(file)
        if not files and not self._failed_below(path):
            self.refused.append((str(path), "contains no logs"))


def _phases(path: Path) -> list[Path]:
    try:
        return sorted(phase for phase in (path / PHASES).iterdir() if (phase / SPEC).is_file())
    except OSError:
        return []


def _logs(phase: Path, walk: Callable[[Path], Iterator[Path]]) -> Iterator[Path]:
    for folder in LOG_FOLDERS:
        if (phase / folder).is_dir():
            yield from (file for file in walk(phase / folder) if file.suffix not in OURS)


def _writer(path: Path) -> tuple[str, int | None, bool]:
    """The node and rank that wrote a log of a run (`nodes/N/logs/…/attempt_0/LOCAL_RANK/…`), and
    whether that rank finished well.

    Ranks are numbered by node, as torchrun's static rendezvous does.
    """
    parts = path.absolute().parts
    for at in range(len(parts) - 2, 1, -1):
        folder, number = parts[at - 1], parts[at]
        if folder not in ("nodes", "nccl") or not number.isdigit():
            continue
        phase = PhaseDir(Path(*parts[: at - 1]))
        spec = read_json(phase.spec)
        if spec is None:
            continue
        facts = read_json(phase.node_facts(int(number))) or {}
        host = facts.get("node")
        ranks_per_node, local = spec.get("ranks_per_node"), parts[-2]
        logs = folder == "nodes" and "logs" in parts[at:] and local.isdigit()
        rank = (
            int(number) * ranks_per_node + int(local)
            if logs and isinstance(ranks_per_node, int)
            else None
        )
        survived = rank is not None and rank in _survivors(phase.root)
        return host if isinstance(host, str) else "", rank, survived
    return "", None, False


@lru_cache(maxsize=1)
def _survivors(phase: Path) -> frozenset[int]:
    """The ranks of a phase that finished well; none if its records are not usable."""
    from ..diagnose.failure_evidence import FailureEvidence
    from ..evidence.phase_result import collect_phase

    directory = PhaseDir(phase)
    spec = read_json(directory.spec) or {}
    nodes, ranks_per_node = spec.get("nodes"), spec.get("ranks_per_node")
    if (
        type(nodes) is not int
        or type(ranks_per_node) is not int
        or not 0 < nodes * ranks_per_node <= MAX_RANKS
    ):
        return frozenset()
    return (
        FailureEvidence(collect_phase(directory)).survivors
        if isinstance(spec.get("phase"), str)
        else frozenset()
    )
