"""Writes a rank's events to its file; rank 0 also prints them as readable lines."""

from __future__ import annotations

from typing import Any

from ..config.metrics import METRICS
from ..evidence.telemetry import EventWriter
from ..text import plural
from .rank_environment import RankEnvironment


class RankEventWriter:
    """Writes events if there is a phase directory; rank 0 prints, on a cluster and by hand."""

    def __init__(self, environment: RankEnvironment) -> None:
        self._prints = environment.rank == 0
        self._writer: EventWriter | None = None
        if environment.phase_dir is not None:
            self._writer = EventWriter(environment.phase_dir.rank_events(environment.rank))

    def event(self, name: str, /, **fields: Any) -> None:
        if self._writer is not None:
            self._writer.write(name, **fields)
        if self._prints and (line := _format_line(name, fields)):
            print(line, flush=True)

    def say(self, text: str) -> None:
        if self._prints:
            print(text, flush=True)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _format_line(name: str, fields: dict[str, Any]) -> str:
    """The event as a readable line; empty if it is not printed."""
    if name == "start":
        return (
            f"rank {fields['rank']} of {fields['world_size']} on {fields['node']}: "
            f"{fields['device']} ({fields['device_name']}), torch {fields['torch']}"
        )
    if name == "stage":
        return f"{name} {fields['name']}: {fields['seconds']:.2f} s" if "seconds" in fields else ""
    if name == "step":
        if "steps_per_s" not in fields:  # from `Rank.mark`: that program prints its own results
            return ""
        loss = fields.get("loss")
        tail = "" if loss is None else f"  loss {loss:.4f}"
        return f"step {fields['step']}/{fields['steps']}{tail}"
    if name == "metrics":
        return "\n".join(
            f"{key} {value:.4g} {METRICS[key].unit}" for key, value in fields["values"].items()
        )
    if name == "losses":
        since = f" from step {fields['first'] + 1} on" if fields.get("first") else ""
        begin, end = fields["mean"][0], fields["mean"][-1]
        return f"loss, mean over all ranks{since}: {begin:.4f} -> {end:.4f}"
    if name == "gradients":
        return f"gradients {_describe_comparison(fields)}"
    if name == "proof" and "not_measured" in fields:
        return f"gradients at step {fields['step']} not measured: {fields['not_measured']}"
    if name == "proof":
        names = ", ".join(fields["differing"])
        again = f"DIFFERENT when repeated: {names}" if names else "the same when repeated"
        compared = _describe_comparison(fields["gradients"])
        return f"gradients at step {fields['step']} {again}; {compared}"
    if name == "replicas" and "equal" in fields:
        differ = f"NOT equal from step {fields.get('differ_at')} on: {fields.get('parameter')}"
        return f"parameters of all ranks: {'equal' if fields['equal'] else differ}"
    if name == "checkpoint":
        size = sum(file["bytes"] for file in fields["files"])
        return f"checkpoint: {plural(len(fields['files']), 'file')}, {size:,} bytes"
    if name == "reload":
        state = "equal" if fields["equal"] else f"NOT equal: {', '.join(fields['mismatched'])}"
        return f"reload: {plural(fields['tensors'], 'tensor')}, {state}"
    if name == "fact":
        return "\n".join(f"{key}: {value}" for key, value in fields["values"].items())
    return ""


def _describe_comparison(fields: dict[str, Any]) -> str:
    if "synced" not in fields:
        return "not compared: they overflow at this loss scale"
    return (
        f"{'in sync' if fields['synced'] else 'NOT in sync'}: the largest relative error in "
        f"{plural(fields['compared'], 'parameter')} is {fields['max_relative_error']:.2e} "
        f"({fields['worst']}), tolerance {fields['tolerance']:.0e}"
    )
