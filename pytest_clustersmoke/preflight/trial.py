"""`sbatch --test-only` with the phase's real batch script: whether Slurm would take the job, and
when it might start. It submits nothing."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ..clean import line as clean
from ..submit import scheduler

STARTS = re.compile(
    r"\bto start at (\S+) using \d+ processors on (?:nodes )?(\S+)(?: in partition (\S+))?"
)
# The controller could not be asked, or not now; or the job could run and would have to wait
# (ESLURM_NODES_BUSY, ESLURM_RESERVATION_BUSY): this says nothing against the job.
NO_ANSWER = re.compile(
    r"unable to contact|timed out|temporarily|zero bytes|connection (refused|reset)|"
    r"communication connection|authentication|credential|try again|not responding|"
    r"could not establish a configuration source|"
    r"requested nodes are busy|requested reservation is in use",
    re.I,
)
PREFIX = re.compile(r"^(sbatch|allocation failure|sbatch: error)(: error)?: ")
# Slurm's words (src/common/slurm_errno.c; reasons of limits in job_state_reason_string) -> cause.
KINDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (identity, re.compile(words, re.I))
    for identity, words in (
        ("partition-unknown", r"invalid partition"),
        ("partition-down", r"partition not available|partition.*(inactive|drain)"),
        ("account-refused", r"invalid account"),
        ("qos-refused", r"invalid qos"),
        ("time-over-limit", r"MaxWall|requested time limit"),
        ("too-many-gpus", r"(Max|Min)GRES|invalid generic resource"),
        ("too-many-nodes", r"MaxNode|GrpNode|node count"),
        ("submission-refused", r"group not permitted"),
    )
)
NO_NODES = re.compile(r"requested node configuration is not available|nodes? .*not available", re.I)


@dataclass(frozen=True)
class Trial:
    """What came of it. `accepted` is None where Slurm gave no answer; `start`, in Unix seconds,
    `nodes` and `partition` are those of its estimate, where it made one."""

    accepted: bool | None
    words: str
    start: float | None = None
    nodes: str = ""
    partition: str = ""
    silent: bool = False

    @property
    def kinds(self) -> set[str]:
        """The causes that the words of a refusal name."""
        return {identity for identity, words in KINDS if words.search(self.words)}

    @property
    def no_nodes(self) -> bool:
        return bool(NO_NODES.search(self.words))


def try_out(script: Path, environ: Mapping[str, str], patience_s: float) -> Trial:
    """Ask about a batch script that lies there."""
    command = ["sbatch", "--test-only", str(script)]
    try:
        answer = scheduler.run(command, environ, patience_s)
    except subprocess.TimeoutExpired:
        words = f"sbatch --test-only gave no answer in {patience_s:.0f} s"
        return Trial(None, words, silent=True)
    except OSError as error:
        return Trial(None, f"sbatch --test-only cannot be run: {error}")
    return read(answer.returncode, f"{answer.stderr}\n{answer.stdout}")


def read(status: int, output: str) -> Trial:
    """What sbatch's words and its exit status mean."""
    lines = [PREFIX.sub("", clean(line.strip())) for line in output.splitlines() if line.strip()]
    words = "; ".join(dict.fromkeys(lines))
    if status == 0:
        found = STARTS.search(words)
        if not found:
            return Trial(True, words)
        return Trial(True, words, _seconds(found[1]), found[2], (found[3] or "").rstrip(";"))
    if NO_ANSWER.search(words) or not words:
        return Trial(None, words or f"sbatch --test-only ended with status {status}")
    return Trial(False, words)


def _seconds(text: str) -> float | None:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").timestamp()
    except ValueError:
        return None
