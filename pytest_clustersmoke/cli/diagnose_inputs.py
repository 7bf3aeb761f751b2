"""The logs to read, from the arguments of `clustersmoke diagnose`, and their writers if known.

A directory means all files below it, except hidden ones and those that are not text. In a phase
directory of this suite only logs are read, not our own records, and of several attempts those of
the last; there the path of a log gives its rank and node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..config.marker import numbers_by_node
from ..evidence.run_directory import PhaseDir, find_attempt, read_json
from ..text import shorten
from .log_inputs import MAX_NAMED, NCCL, PHASES, Inputs

# Folders of an attempt's logs; everything else is ours, or written by the program.
LOG_FOLDERS = ("nodes", NCCL)
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
class LogInputs:
    """The logs to read, with their writers. `walked` are those found in a directory."""

    inputs: Inputs
    walked: set[str]

    @classmethod
    def of(cls, words: Sequence[str]) -> LogInputs:
        walked: set[str] = set()
        inputs = Inputs("diagnose", lambda inputs, path: walked.update(_add_logs(inputs, path)))
        inputs.add_words(words)
        return cls(inputs, walked)

    def named(self) -> Iterator[Named]:
        for source in self.inputs.found:
            host, rank, survived = (
                _writer(source.path) if source.path is not None else ("", None, False)
            )
            yield Named(
                source.path, source.name, source.name not in self.walked, host, rank, survived
            )


def _add_logs(inputs: Inputs, path: Path) -> list[str]:
    """Add the logs of a directory; returns their names."""
    phases = [path] if find_attempt(path).last_job.spec.is_file() else _phases(path)
    if len(phases) > 1:
        names = shorten(list(map(str, phases)), MAX_NAMED)
        reason = f"contains the logs of {len(phases)} jobs; name the directory of one: {names}"
        inputs.refused.append((str(path), reason))
        return []
    files = list(_logs(phases[0], inputs.walk) if phases else inputs.walk(path))
    for file in files:
        inputs.add_path(file)
    if not files and not inputs.failed_below(path):
        inputs.refused.append((str(path), "contains no logs"))
    return list(map(str, files))


def _phases(path: Path) -> list[Path]:
    try:
        phases = sorted((path / PHASES).iterdir())
        return [phase for phase in phases if PhaseDir(phase).last_job.spec.is_file()]
    except OSError:
        return []


def _logs(phase: Path, walk: Callable[[Path], Iterator[Path]]) -> Iterator[Path]:
    asked = find_attempt(phase)
    attempt = asked if asked.attempt else asked.newest
    for folder in (attempt.submitit, *(attempt.start / name for name in LOG_FOLDERS)):
        if folder.is_dir():
            yield from (file for file in walk(folder) if file.suffix not in OURS)


def _writer(path: Path) -> tuple[str, int | None, bool]:
    """The node and rank that wrote a log of a run (`nodes/N/logs/…/attempt_0/LOCAL_RANK/…`), and
    whether that rank finished well.

    The rank is known where the launcher numbers ranks by node.
    """
    parts = path.absolute().parts
    for at in range(len(parts) - 2, 1, -1):
        folder, number = parts[at - 1], parts[at]
        if folder not in ("nodes", "nccl") or not number.isdigit():
            continue
        phase = find_attempt(Path(*parts[: at - 1]))
        spec = _read_once(phase.spec)
        if spec is None:
            continue
        host = (_read_once(phase.node_facts(int(number))) or {}).get("node")
        ranks_per_node, local = spec.get("ranks_per_node"), parts[-2]
        logs = folder == "nodes" and "logs" in parts[at:] and local.isdigit()
        rank = (
            int(number) * ranks_per_node + int(local)
            if logs and isinstance(ranks_per_node, int) and numbers_by_node(spec)
            else None
        )
        survived = rank is not None and rank in _survivors(phase)
        return host if isinstance(host, str) else "", rank, survived
    return "", None, False


@lru_cache(maxsize=MAX_RANKS)
def _read_once(path: Path) -> Mapping[str, Any] | None:
    """A file of a phase, for all logs of that phase."""
    return read_json(path)


@lru_cache(maxsize=1)
def _survivors(directory: PhaseDir) -> frozenset[int]:
    """The ranks of an attempt that finished well; none if its records are not usable."""
    from ..diagnose.failure_evidence import FailureEvidence
    from ..evidence.phase_result import collect_phase

    spec = _read_once(directory.spec) or {}
    nodes, ranks_per_node = spec.get("nodes"), spec.get("ranks_per_node")
    if (
        type(nodes) is not int
        or type(ranks_per_node) is not int
        or not 0 < nodes * ranks_per_node <= MAX_RANKS
        or not isinstance(spec.get("phase"), str)
    ):
        return frozenset()
    last = collect_phase(directory)
    attempts = {result.directory: result for result in (*last.earlier, last)}
    return FailureEvidence(attempts[directory]).survivors if directory in attempts else frozenset()
