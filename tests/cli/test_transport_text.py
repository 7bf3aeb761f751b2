"""`clustersmoke transports` as text: a small job, a large one, any terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.cli import transport_text
from tests.cli.transport_logs import COMM, COMMAND
from tests.evidence.nccl.job_logs import JobLogs


def on_terminal(words: list[str], columns: int, env: dict[str, str] | None = None) -> str:
    """What a command writes on a terminal with this many columns."""
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    inherited = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    child = subprocess.Popen(
        words,
        stdout=side,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**inherited, "TERM": "xterm", **(env or {})},
    )
    os.close(side)
    chunks = []
    try:
        while chunk := os.read(main, 65536):
            chunks.append(chunk)
    except OSError:  # Linux's way to say that the other end is closed
        pass
    finally:
        os.close(main)
        child.wait(timeout=30)
    return b"".join(chunks).decode().replace("\r\n", "\n")


def test_text_report_of_a_small_job(transports: Any, ring: Path) -> None:
    """Header, summary, edges and warnings, without colours in a pipe or control characters."""
    result = transports(ring)
    assert result.status == 0
    assert result.err == ""
    assert (
        result.out
        == f"""\
NCCL 2.20.5: 1 communicator, 1 edge, 1 file read
communicator 0 (id 0xf0): 2 ranks on 2 nodes, init complete
  k1  rank 0
  k2  rank 1
network chosen: IB on 1 host (only the edges show what carried data)
NVLS: no connection logged; CollNet: no connection logged

side        kind           pairs  used for     NICs (pairs)
inter-node  NET/IB/GDRDMA      1  collectives  mlx5_1 (1)

edge    transport        side        NIC                hosts     channels  logged by  at
0 -> 1  NET/IB/1/GDRDMA  inter-node  mlx5_1 -> unknown  k1 -> k2  1         both ends  {ring}:4

1 NCCL warning (NCCL WARN):
  {ring}:9: k2: Error: \ufffdfull [misc/shmutils.cc:88 (extend)]
"""
    )


def test_unknown_values_are_called_unknown(transports: Any, tmp_path: Path) -> None:
    """Nothing is left blank: version, ranks, nodes, NICs, hosts, channels."""
    path = tmp_path / "quoted.log"
    path.write_text("9[1a000] -> 2[6b000] [send] via NET/IB/0/GDRDMA\n")
    out = transports(path).out
    assert "NCCL (version unknown): 1 communicator" in out
    assert "communicator 0: ranks unknown, nodes unknown, init unknown" in out
    row = next(line for line in out.splitlines() if line.startswith("9 -> 2"))
    assert row.split()[3:8] == ["NET/IB/0/GDRDMA", "unknown", "unknown", "unknown", "unknown"]


def test_many_pairs_are_summarised_and_rare_ones_shown(transports: Any, tmp_path: Path) -> None:
    """With 128 ranks, only the pair that differs is shown; --all shows each pair."""
    JobLogs(16, 8, channels=8, overrides={(8, 9): "SHM/direct/direct"}).write(tmp_path)
    short, whole = transports(tmp_path).out, transports("--all", tmp_path).out
    assert "intra-node  SHM                1  collectives\n" in short
    assert "mlx5_0 (62), mlx5_1 (62), " in short
    rows = [line for line in short.splitlines() if line[:1].isdigit() and " -> " in line]
    assert [row.split()[:4] for row in rows] == [["8", "->", "9", "SHM/direct/direct"]]
    assert "... and 12 more (--all)" in short
    assert len(short.splitlines()) < 30
    assert len(whole.splitlines()) > 600
    assert "k016  ranks 120-127" in whole


def test_many_communicators_are_counted_by_their_size(transports: Any, tmp_path: Path) -> None:
    """A hundred communicators of one size share a line."""
    path = tmp_path / "x.log"
    path.write_text(
        "".join(
            f"k1:{n}:9 [0] NCCL INFO {COMM.format(0, 1, n)} - Init COMPLETE\n" for n in range(100)
        )
    )
    assert "100 communicators: 1 rank on 1 node, init complete\n" in transports(path).out


def test_long_list_of_edges_is_not_aligned(
    transports: Any, ring: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Aligning a hundred thousand rows would take minutes; their lines have the same cells."""
    aligned = transports("--all", ring).out.splitlines()
    monkeypatch.setattr(transport_text, "MAX_TABLE", 0)
    lines = transports("--all", ring).out.splitlines()
    assert lines != aligned
    assert [line.split() for line in lines] == [line.split() for line in aligned]


@pytest.mark.parametrize("columns", [80, 200])
def test_output_fits_a_terminal_and_has_colours(ring: Path, columns: int) -> None:
    """Bold headings; no line is longer than the terminal is wide."""
    text = on_terminal(["env", "-C", str(ring.parent), *COMMAND, ring.name], columns)
    assert text.startswith("\x1b[1mNCCL 2.20.5")
    plain = text.replace("\x1b[1m", "").replace("\x1b[33m", "").replace("\x1b[0m", "")
    assert "\x1b" not in plain
    assert max(map(len, plain.splitlines())) <= columns


def test_no_color_is_respected(ring: Path) -> None:
    """https://no-color.org"""
    assert "\x1b" not in on_terminal([*COMMAND, str(ring)], 100, {"NO_COLOR": "1"})
