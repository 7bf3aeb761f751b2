"""`clustersmoke transports`: its output, for people and programs, and its exit status."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.cli import transport_text
from pytest_clustersmoke.cli.job_transports import JobTransports
from pytest_clustersmoke.cli.matrix import matrices
from pytest_clustersmoke.cli.subcommand import TextOutput
from pytest_clustersmoke.cli.transport_json import json_lines
from pytest_clustersmoke.evidence.nccl.log_reader import Reader
from pytest_clustersmoke.evidence.run_directory import PhaseDir, write_json
from tests.cli.transport_logs import COMMAND, RING
from tests.evidence.nccl.job_logs import JobLogs


def test_matrix_replaces_the_table(transports: Any, ring: Path) -> None:
    """Header, matrix, warnings."""
    out = transports("--matrix", ring).out
    assert "k1  0  \\ G" in out
    assert "both ends" not in out
    assert "1 NCCL warning" in out


@pytest.mark.parametrize("form", ["--json", "--matrix", "--all"])
def test_log_without_edges_is_not_an_error(transports: Any, tmp_path: Path, form: str) -> None:
    """The log could be read and has no edges: status 0, in every form."""
    path = tmp_path / "x.log"
    path.write_text("epoch 1 loss 0.3\n")
    result = transports(form, path)
    assert result.status == 0
    assert result.json["edges"] == [] if form == "--json" else "no edges" in result.out


def test_run_directories_distinguish_nodes_of_one_host_name(
    transports: Any, tmp_path: Path
) -> None:
    """Virtual nodes of one machine share its name and GPU; the launcher keeps their logs apart."""
    phase = PhaseDir(tmp_path / "small")
    write_json(phase.spec, {})
    first, two = RING.replace("k2:", "k1:"), ""
    for line in first.splitlines(keepends=True):
        if line.startswith("k1:11"):
            first, two = first.replace(line, ""), two + line
    for node, text in enumerate((first, two)):
        phase.nccl_logs(node).mkdir(parents=True)
        (phase.nccl_logs(node) / "k1.log").write_text(text)
    assert transports("--json", phase.root).json["edges"][0]["placement"] == "inter_node"
    out = transports(phase.root).out
    assert "  k1 (0000)  rank 0\n  k1 (0001)  rank 1\n" in out
    assert "k1 (0000) -> k1 (0001)" in out


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))]
)
def test_mutated_logs_are_reported_in_every_form(seed: int, tmp_path: Path) -> None:
    """Whatever was cut, repeated or changed in a log, each form is complete and printable."""
    chance = random.Random(seed)
    text = "\n".join(JobLogs(2, 4, channels=4).lines(1, 1)).encode() + RING.encode()
    words = [b"[send]", b" -> ", b"nranks 4", b"rank 0 ", b"9999999", b"NET/IB/0", b"\xff\x1b["]
    for _ in range(40):
        lines = text.split(b"\n") * chance.randint(1, 2)
        for _ in range(chance.randint(1, 30)):
            index = chance.randrange(len(lines))
            at = chance.randrange(len(lines[index]) + 1)
            word = chance.choice([*words, lines[chance.randrange(len(lines))][at:]])
            lines[index] = lines[index][:at] + word + lines[index][at + chance.randrange(9) :]
        reader = Reader()
        reader.stream(io.BytesIO(b"\n".join(lines)), "x.log")
        job = JobTransports(reader.log(), ("x.log",))
        record = json.loads("\n".join(json_lines(job)))
        keys = [(edge["src"], edge["dst"], edge["transport"]) for edge in record["edges"]]
        assert keys == sorted(set(keys))
        for out in (TextOutput(), TextOutput(60, colours=True)):
            for line in [
                *transport_text.format_transports(job, out, everything=True),
                *matrices(job, out),
            ]:
                assert line.replace("\x1b[", "").isprintable() or not line


# -- Unreadable inputs -----------------------------------------------------------------------------


def test_unreadable_files_are_named_after_the_report(transports: Any, ring: Path) -> None:
    """Status 2, the report on stdout, and one line per file on stderr, with what to do."""
    packed = ring.with_name("packed.log.gz")
    packed.write_bytes(b"\x1f\x8b" + bytes(20))
    binary = ring.with_name("core")
    binary.write_bytes(bytes(range(256)) * 8)
    result = transports("--json", ring, packed, binary, ring.with_name("rong.log"))
    assert result.status == 2
    assert len(result.json["edges"]) == 1
    assert [file["file"] for file in result.json["unreadable"]] == [
        str(ring.with_name("rong.log")),
        str(packed),
        str(binary),
    ]
    missing, compressed, other = result.err.splitlines()
    assert missing == (
        f"clustersmoke: {ring.with_name('rong.log')} does not exist; did you mean `ring.log`?"
    )
    assert compressed.startswith(f"clustersmoke: {packed} is compressed; expected text (zcat")
    assert other == f"clustersmoke: {binary} is binary; expected a text log"


@pytest.mark.parametrize("form", [(), ("--json",), ("--matrix",)])
def test_nothing_is_printed_if_nothing_can_be_read(
    transports: Any, tmp_path: Path, form: tuple[str, ...]
) -> None:
    """Status 2, and only the reason."""
    result = transports(*form, tmp_path / "missing.log")
    assert (result.status, result.out) == (2, "")
    assert len(result.err.splitlines()) == 1


def test_many_unreadable_files_are_counted(transports: Any, tmp_path: Path) -> None:
    """Many files, such as checkpoints, do not scroll the reason away."""
    for number in range(30):
        (tmp_path / f"{number:02d}.bin").write_bytes(bytes(100))
    result = transports(tmp_path)
    assert result.status == 2
    assert len(result.err.splitlines()) == 21
    assert "and 10 more" in result.err


def test_error_during_reading_keeps_earlier_results(transports: Any, ring: Path) -> None:
    """/proc/self/mem is a file whose first byte cannot be read."""
    result = transports(ring, "/proc/self/mem")
    assert result.status == 2
    assert "0 -> 1" in result.out
    assert result.err == "clustersmoke: /proc/self/mem cannot be read: Input/output error\n"


def test_closed_standard_input_is_unreadable(
    transports: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`clustersmoke transports - <&-`"""
    monkeypatch.setattr(sys, "stdin", None)
    result = transports("-")
    assert (result.status, result.out) == (2, "")
    assert result.err == "clustersmoke: <stdin> cannot be read: standard input is closed\n"


# -- As a user runs it -----------------------------------------------------------------------------


def test_standard_input_is_read_as_bytes(ring: Path) -> None:
    """`-` reads the log, whatever else the stream contains."""
    text = b"\xff\xfe loss 3\n"[2:] + b"\xe9t\xe9\n" + ring.read_bytes()
    done = subprocess.run([*COMMAND, "-", "--json"], input=text, capture_output=True, check=True)
    (edge,) = json.loads(done.stdout)["edges"]
    assert (edge["file"], edge["line"]) == ("<stdin>", 6)


def test_pipe_of_the_shell_is_read(ring: Path) -> None:
    """`<(zcat LOG.gz)` is a pipe under /dev/fd."""
    script = f'{" ".join(COMMAND)} <(cat "$1")'
    done = subprocess.run(
        ["bash", "-c", script, "bash", str(ring)], capture_output=True, text=True, check=True
    )
    assert "1 edge" in done.stdout


def test_fifo_is_refused_without_waiting(tmp_path: Path) -> None:
    """It may have no writer, so that reading it would never end."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    done = subprocess.run([*COMMAND, str(path)], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "is a FIFO" in done.stderr


def test_closed_output_ends_the_command(tmp_path: Path) -> None:
    """`| head -1`: no traceback."""
    JobLogs(16, 8).write(tmp_path)
    script = f"{' '.join(COMMAND)} --all {tmp_path} | head -1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("NCCL 2.21.5: 1 communicator")
    assert done.stderr == ""


def test_names_that_are_not_text_are_printed(tmp_path: Path) -> None:
    """A terminal that shows ASCII only, a file name that is not UTF-8, a log in Latin-1."""
    path = os.fsencode(tmp_path) + b"/\xff\n.log"
    Path(os.fsdecode(path)).write_text(RING.replace("k2", "kö"), encoding="latin-1")
    done = subprocess.run(
        [*COMMAND, path], capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )
    assert done.returncode == 0
    assert done.stderr == b""
    assert b"\\ufffd .log:4" in done.stdout


@pytest.mark.slow
def test_job_of_512_ranks_is_reported_within_ten_seconds(tmp_path: Path) -> None:
    """64 nodes of 8 ranks, 16 channels, in each form, including start-up: of CPU time, which other
    work on this machine affects little."""
    JobLogs(64, 8, noise=20).write(tmp_path)
    for form in ("--all", "--matrix", "--json"):
        before = os.times()
        done = subprocess.run([*COMMAND, form, tmp_path], capture_output=True)
        after = os.times()
        assert sum(after[2:4]) - sum(before[2:4]) < 10, form
        assert done.returncode == 0, form
        assert b"NET/IB" in done.stdout


def test_help_loads_nothing_heavy() -> None:
    """`clustersmoke --help` is fast: the search engine is loaded only when logs are read."""
    code = (
        "import sys; from pytest_clustersmoke.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "transports" in done.stdout
    loaded = set(done.stdout.split("\n")[-2].split())
    assert "pytest_clustersmoke.cli.transports_command" in loaded
    assert not loaded & {"ahocorasick_rs", "pytest", "pydantic", "yaml"}
