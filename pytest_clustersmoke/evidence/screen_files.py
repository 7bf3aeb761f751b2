"""The files of a screen (`--cluster-screen`): what was asked, and what each node answered.

<run>/screen/
    screen.json          the nodes of the partition with Slurm's states, and what each is asked
    screen.sh            the batch script of every node's job
    closed               the screen has ended: a job that starts now ends at once
    setup_failed.<node>  status and text of the setup line that failed
    answers/<node>.json  what the node found of itself, written whole
    figures/<node>.json  what its devices reached, if that was measured
    job_logs/<node>.log  the output of its job
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..text import sanitize_line
from .telemetry import parse_finite, parse_text
from .whole_files import MAX_NODE_BYTES, list_directory, read_json, write_json

SCHEMA = 1
MAX_NAME, MAX_WORDS = 80, 1000


@dataclass(frozen=True)
class ScreenFiles:
    """The paths of a run's screen."""

    run: Path

    @property
    def root(self) -> Path:
        return self.run / "screen"

    @property
    def request(self) -> Path:
        return self.root / "screen.json"

    @property
    def script(self) -> Path:
        return self.root / "screen.sh"

    @property
    def closed(self) -> Path:
        return self.root / "closed"

    def answer(self, node: str) -> Path:
        return self.root / "answers" / f"{node}.json"

    def figures(self, node: str) -> Path:
        return self.root / "figures" / f"{node}.json"

    def log(self, node: str) -> Path:
        return self.root / "job_logs" / f"{node}.log"

    def setup_failed(self, node: str) -> Path:
        """`node` may be a variable of the shell."""
        return self.root / f"setup_failed.{node}"

    def create(self, request: Mapping[str, Any]) -> None:
        """Create the directories, to which nodes then only add files, and write the request.
        Raises OSError."""
        for path in (self.answer(""), self.figures(""), self.log("")):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_json(self.request, {"schema": SCHEMA, **request})

    def refresh(self) -> None:
        """List the directories, so that NFS looks again for files that it remembers as missing."""
        list_directory(self.answer("").parent)
        list_directory(self.figures("").parent)

    def read_answer(self, node: str) -> NodeAnswer | None:
        """What the node wrote; None if it wrote nothing that can be read."""
        value = read_json(self.answer(node), MAX_NODE_BYTES)
        return parse_answer(node, value) if value is not None else None


@dataclass(frozen=True)
class NodeAnswer:
    """What a node found of itself.

    `facts` are those of any job, under Slurm's name of the node; `cut` says of a part of them why
    it is missing; `found` are the node's own findings, as texts by check. `work_s` is the CPU time
    of a fixed piece of work, None if it was not measured; only nodes of one `cpu` are compared.
    """

    node: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    cut: Mapping[str, str] = field(default_factory=dict)
    found: Mapping[str, str] = field(default_factory=dict)
    cpu: str = ""
    work_s: float | None = None
    cpu_s: float | None = None  # what the screen itself took of the node

    def as_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "node": self.node,
            "cpu": self.cpu,
            "work_s": self.work_s,
            "cpu_s": self.cpu_s,
            "cut": dict(self.cut),
            "found": dict(self.found),
            "facts": dict(self.facts),
        }


def parse_answer(node: str, value: Mapping[str, Any]) -> NodeAnswer | None:
    """An answer of this node from a file that a job could write; None if it has no facts, or says
    that it is of another node."""
    facts = value.get("facts")
    if not isinstance(facts, dict) or not facts or parse_text(value.get("node")) != node:
        return None
    return NodeAnswer(
        node,
        {**facts, "node": node},
        parse_words(value.get("cut")),
        parse_words(value.get("found")),
        sanitize_line(parse_text(value.get("cpu")) or "")[:200],
        parse_finite(value.get("work_s")),
        parse_finite(value.get("cpu_s")),
    )


def parse_words(value: Any) -> dict[str, str]:
    """The texts of a mapping; anything else counts as missing."""
    pairs = value.items() if isinstance(value, dict) else ()
    return {
        sanitize_line(str(name))[:MAX_NAME]: sanitize_line(text)[:MAX_WORDS]
        for name, text in pairs
        if isinstance(text, str)
    }
