"""The examples of the page on bad nodes are what the commands print."""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path

import pytest

from pytest_clustersmoke.cli import main
from pytest_clustersmoke.evidence.history import history_store
from pytest_clustersmoke.evidence.history.node_history import DAY_S
from pytest_clustersmoke.evidence.node_observation import (
    CHECKS,
    DAMAGE,
    DEFINITE,
    DeviceFigure,
    NodeObservation,
)
from pytest_clustersmoke.report.node_ledger import DAYS, MOST_SHARE
from tests.support import records
from tests.support.harness import ROOT

PAGE = ROOT / "docs" / "how-to" / "leave-bad-nodes-out.md"
TEXT = PAGE.read_text()
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOW = 1_796_000_000.0  # 2026-11-30 00:53 UTC
NODES = [f"gpu-n{number}" for number in range(11, 21)]
PHASES = ["ddp_2gpu", "zero1_4node", "lora_2node"]


def observe(night: int, node: str, phase: str) -> NodeObservation:
    """gpu-n12 is slow, and gpu-n17 has memory errors in the newest night."""
    parts = {"GPU": f"GPU-{node[-2:]}a", "driver": "550.54.15"}
    made = {"boot_id": f"boot {night > 1 or node != 'gpu-n13'}", "parts": parts}
    if node == "gpu-n12":
        reason = "slow-rank: ranks 2-3 fell behind the others"
        return NodeObservation(node, phase, "bad", reason, **made)  # type: ignore[arg-type]
    if node == "gpu-n17" and night == 0:
        reason = "gpu-ecc-errors: gpu-n17: GPU 3 has had 2 uncorrectable memory errors"
        return NodeObservation(node, phase, "bad", reason, True, **made)  # type: ignore[arg-type]
    return NodeObservation(node, phase, "good", **made)  # type: ignore[arg-type]


def store_nights(directory: Path) -> None:
    """Three nights of three phases on ten nodes."""
    for night in (2, 1, 0):
        made = records.run(
            phases=[],
            nodes=[],
            phases_chosen=[],
            run_id=f"202611{29 - night}-020000-00000{night}",
            begun=NOW - night * DAY_S - 82_400,
        )
        tflops = {node: 612.0 if node == "gpu-n12" else 702.0 for node in NODES}
        history_store.store_run(
            records.parsed(made),
            directory,
            observations=[observe(night, node, phase) for node in NODES for phase in PHASES],
            figures=[
                DeviceFigure(node, f"GPU-{node[-2:]}a", "gemm_tflops", value, "TFLOP/s", True)
                for node, value in tflops.items()
            ],
        )


def examples() -> list[tuple[str, str]]:
    """Each command of the page that is shown with its output, which follows it in a block."""
    found = []
    for block in CONSOLE.findall(TEXT):
        parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)[1:]
        found += [(words, out) for words, out in zip(parts[::2], parts[1::2], strict=True) if out]
    return [(words, out) for words, out in found if words.startswith("clustersmoke ")]


def test_page_shows_what_the_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every example, on the history that the page describes."""
    store_nights(tmp_path / "reports")
    sinfo = tmp_path / "bin" / "sinfo"
    sinfo.parent.mkdir()
    lines = "".join(f"echo '{node}|gpu'\n" for node in NODES)
    sinfo.write_text(f"#!/bin/sh\n{lines}")
    sinfo.chmod(0o755)
    monkeypatch.setenv("PATH", str(sinfo.parent), prepend=":")
    monkeypatch.setattr(time, "time", lambda: NOW)
    monkeypatch.chdir(tmp_path)
    assert len(examples()) == 4
    for words, expected in examples():
        assert main(shlex.split(words)[1:]) == 0, words
        printed = capsys.readouterr()
        assert printed.err + printed.out == expected, words


def test_page_has_the_numbers_and_names_of_the_code() -> None:
    """The days, the share, and the ids of definite evidence and of checks."""
    assert f"{DAYS:g} days" in TEXT and f"{MOST_SHARE:.0%}".replace("%", " %") in TEXT
    rows = dict(re.findall(r"^\| (definite|a check) \| (.*?) \|", TEXT, re.MULTILINE))
    assert set(re.findall(r"`([\w-]+)`", rows["definite"])) == DEFINITE | DAMAGE
    assert set(re.findall(r"`([\w-]+)`", rows["a check"])) == CHECKS - DEFINITE - DAMAGE
