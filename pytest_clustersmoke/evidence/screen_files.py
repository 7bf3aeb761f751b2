"""The files of a screen (`--cluster-screen`): what was asked, and what each node answered.

<run>/screen/
    screen.json          the nodes of the partition with Slurm's states, and what each is asked
    screen.sh            the batch script of every node's job
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
from .node_observation import DeviceFigure
from .telemetry import parse_finite, parse_int, parse_rows, parse_text
from .whole_files import MAX_NODE_BYTES, list_directory, read_json, write_json

SCHEMA = 1
MAX_NAME, MAX_WORDS, MAX_FIGURES, MAX_DEVICES = 80, 1000, 256, 64


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

    def read_figures(self, node: str) -> list[DeviceFigure]:
        """What the devices of this node reached; a row without a figure counts as missing."""
        return list(self.read_measurement(node).figures)

    def read_measurement(self, node: str) -> NodeMeasurement:
        """What this node's job wrote of its devices; empty if it wrote nothing."""
        value = read_json(self.figures(node), MAX_NODE_BYTES) or {}
        rows = parse_rows(value.get("figures"))[:MAX_FIGURES]
        return NodeMeasurement(
            tuple(figure for row in rows if (figure := _parse_figure(node, row)) is not None),
            tuple(_parse_device(row) for row in parse_rows(value.get("devices"))[:MAX_DEVICES]),
            parse_int(value.get("status")),
        )

    def read_answer(self, node: str) -> NodeAnswer | None:
        """What the node wrote; None if it wrote nothing that can be read."""
        value = read_json(self.answer(node), MAX_NODE_BYTES)
        return parse_answer(node, value) if value is not None else None


@dataclass(frozen=True)
class MeasuredDevice:
    """A device that a node measured: what `figures` name it, what it is, and how often it
    multiplied two matrices whose product is known."""

    identity: str
    model: str
    local_rank: int | None
    on_gpu: bool
    versions: tuple[str, str]  # of torch and CUDA
    precision: str
    calls: int
    wrong: int
    answer: int | None  # the sum of the bits of most products
    not_measured: Mapping[str, str]
    near: bool = False  # the host's memory of copies was taken next to it


@dataclass(frozen=True)
class NodeMeasurement:
    """What a node's devices reached. `status` is that of a measurement which ended without."""

    figures: tuple[DeviceFigure, ...] = ()
    devices: tuple[MeasuredDevice, ...] = ()
    status: int | None = None


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
        _parse_texts(value.get("cut")),
        _parse_texts(value.get("found")),
        sanitize_line(parse_text(value.get("cpu")) or "")[:200],
        parse_finite(value.get("work_s")),
        parse_finite(value.get("cpu_s")),
    )


def _parse_figure(node: str, row: Mapping[str, Any]) -> DeviceFigure | None:
    value, name = parse_finite(row.get("value")), parse_text(row.get("name"))
    if value is None or value <= 0 or not name:
        return None
    texts = (parse_text(row.get("device")) or "", name, parse_text(row.get("unit")) or "")
    device, name, unit = (sanitize_line(text)[:MAX_NAME] for text in texts)
    higher = row.get("higher_is_better") is not False
    return DeviceFigure(node, device, name, value, unit, higher)


def _parse_device(row: Mapping[str, Any]) -> MeasuredDevice:
    names = ("identity", "device_name", "device", "torch", "cuda", "precision")
    texts = (sanitize_line(parse_text(row.get(name)) or "")[:MAX_NAME] for name in names)
    identity, model, device, torch, cuda, precision = texts
    return MeasuredDevice(
        identity,
        model,
        parse_int(row.get("local_rank")),
        device.startswith("cuda"),
        (torch, cuda),
        precision,
        max(0, parse_int(row.get("calls")) or 0),
        max(0, parse_int(row.get("wrong")) or 0),
        parse_int(row.get("answer")),
        _parse_texts(row.get("not_measured")),
        row.get("near_device") is True,
    )


def _parse_texts(value: Any) -> dict[str, str]:
    """The texts of a mapping; anything else counts as missing."""
    pairs = value.items() if isinstance(value, dict) else ()
    return {
        sanitize_line(str(name))[:MAX_NAME]: sanitize_line(text)[:MAX_WORDS]
        for name, text in pairs
        if isinstance(text, str)
    }
