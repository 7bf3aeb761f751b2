"""`clustersmoke transports`: its output, for people and programs, and its exit status."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import random
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from functools import partial
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
from tests.evidence.nccl.job_logs import JobLogs

COMM = "comm 0x5a rank {0} nranks {1} cudaDev 0 nvmlDev 0 busId 18000 commId 0xf{2}"
RING = f"""\
NCCL version 2.20.5+cuda12.4
k1:10:20 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:10.0.0.1<0>
k1:10:20 [0] NCCL INFO Using network IB
k1:10:20 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/1/GDRDMA
k2:11:21 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [receive] via NET/IB/1/GDRDMA
k1:10:20 [0] NCCL INFO {COMM.format(0, 2, 0)} - Init COMPLETE
k2:11:21 [0] NCCL INFO {COMM.format(1, 2, 0)} - Init COMPLETE

[2026-04-22 21:34:20] k2:11:21 [0] misc/shmutils.cc:88 (extend) NCCL WARN Error: \x07full
"""
EDGE = "k1:10:20 [0] NCCL INFO Channel 00/0 : {}[0] -> {}[1] via P2P/CUMEM\n"
COMMAND = [sys.executable, "-m", "pytest_clustersmoke.cli", "transports"]


@pytest.fixture
def run(run_command: Callable[..., Any]) -> Any:
    """Run the subcommand in this process."""
    return partial(run_command, dict, "transports")


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    path = tmp_path / "ring.log"
    path.write_text(RING)
    return path


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


# -- JSON ------------------------------------------------------------------------------------------


def test_json_has_every_key_with_values_of_its_kind(run: Any, ring: Path) -> None:
    """One object: numbers are numbers, unknown values are null."""
    result = run("--json", ring)
    assert result.status == 0
    record = result.json
    edge = {
        "src": 0,
        "dst": 1,
        "transport": "NET/IB/1/GDRDMA",
        "kind": "NET/IB/GDRDMA",
        "placement": "inter_node",
        "hosts": {"src": "k1", "dst": "k2"},
        "channels": [1],
        "connections": [0],
        "net": "IB",
        "device": 1,
        "nics": ["mlx5_1"],
        "src_nics": ["mlx5_1"],
        "dst_nics": [],
        "gdrdma": True,
        "pxn_proxy": None,
        "shared": False,
        "roles": ["receive", "send"],
        "asymmetric": False,
        "communicators": [0],
        "communicators_certain": True,
        "file": str(ring),
        "line": 4,
    }
    (communicator,) = record.pop("communicators")
    members = communicator.pop("members")
    assert communicator == {
        "index": 0,
        "id": "0xf0",
        "ranks": 2,
        "nodes": 2,
        "complete": True,
        "version": "2.20.5",
        "nvls": False,
        "collnet": False,
        "networks": ["IB"],
        "edges": [edge],
    }
    assert members[1] == {
        "rank": 1,
        "host": "k2",
        "pid": 11,
        "cuda_device": 0,
        "nvml_device": 0,
        "bus_id": "18000",
        "local_rank": None,
        "complete": True,
    }
    assert record == {
        "schema": 1,
        "version": "2.20.5",
        "edges": [edge],
        "asymmetric": [],
        "collnet": [],
        "networks": [{"network": "IB", "hosts": ["k1"], "processes": 1}],
        "without_ib": [],
        "warnings": [
            {
                "text": "Error: \x07full",
                "source": "misc/shmutils.cc:88",
                "function": "extend",
                "host": "k2",
                "pid": 11,
                "file": str(ring),
                "line": 9,
                "count": 1,
            }
        ],
        "torn": {"count": 0, "places": []},
        "unreadable": [],
        "files": [str(ring)],
    }


def test_json_is_documented(run: Any, ring: Path) -> None:
    """docs/reference/transports.md names each key of the object."""
    text = (Path(__file__).parents[2] / "docs" / "reference" / "transports.md").read_text()

    def keys(value: Any) -> set[str]:
        inner = value.values() if isinstance(value, dict) else value
        if not isinstance(value, dict | list):
            return set()
        own = set(value) if isinstance(value, dict) else set()
        return own.union(*(keys(item) for item in inner))

    ring.write_text(RING + "k1:10:20 [0] NCCL INFO CollNet 00/0 : 0 [send] via COLLNET/SHARP/0\n")
    names = keys(run("--json", ring).json)
    assert "pxn_proxy" in names
    assert [key for key in sorted(names) if f"`{key}`" not in text] == []


def test_edges_are_unique_and_in_order_of_ranks(run: Any, tmp_path: Path) -> None:
    """Whatever the order of the files, the edges are the same, in the same order, each once."""
    for name, pairs in {"a": [(2, 10), (10, 2)], "b": [(2, 9), (2, 10)]}.items():
        (tmp_path / name).write_text("".join(EDGE.format(*pair) for pair in pairs))
    for order in ("ab", "ba"):
        edges = run("--json", *(tmp_path / name for name in order)).json["edges"]
        assert [(edge["src"], edge["dst"]) for edge in edges] == [(2, 9), (2, 10), (10, 2)]


def test_numbers_hidden_in_quoted_logs_are_null(run: Any, tmp_path: Path) -> None:
    """`host:XXXX:XXXX` has no process id."""
    path = tmp_path / "x.log"
    path.write_text(EDGE.format(0, 1).replace("10:20", "XXXX:XXXX"))
    (member,) = run("--json", path).json["communicators"][0]["members"]
    assert (member["host"], member["pid"], member["complete"]) == ("k1", None, None)


# -- Text ------------------------------------------------------------------------------------------


def test_text_report_of_a_small_job(run: Any, ring: Path) -> None:
    """Header, summary, edges and warnings, without colours in a pipe or control characters."""
    result = run(ring)
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


def test_unknown_values_are_called_unknown(run: Any, tmp_path: Path) -> None:
    """Nothing is left blank: version, ranks, nodes, NICs, hosts, channels."""
    path = tmp_path / "quoted.log"
    path.write_text("9[1a000] -> 2[6b000] [send] via NET/IB/0/GDRDMA\n")
    out = run(path).out
    assert "NCCL (version unknown): 1 communicator" in out
    assert "communicator 0: ranks unknown, nodes unknown, init unknown" in out
    row = next(line for line in out.splitlines() if line.startswith("9 -> 2"))
    assert row.split()[3:8] == ["NET/IB/0/GDRDMA", "unknown", "unknown", "unknown", "unknown"]


def test_many_pairs_are_summarised_and_rare_ones_shown(run: Any, tmp_path: Path) -> None:
    """With 128 ranks, only the pair that differs is shown; --all shows each pair."""
    JobLogs(16, 8, channels=8, overrides={(8, 9): "SHM/direct/direct"}).write(tmp_path)
    short, whole = run(tmp_path).out, run("--all", tmp_path).out
    assert "intra-node  SHM                1  collectives\n" in short
    assert "mlx5_0 (62), mlx5_1 (62), " in short
    rows = [line for line in short.splitlines() if line[:1].isdigit() and " -> " in line]
    assert [row.split()[:4] for row in rows] == [["8", "->", "9", "SHM/direct/direct"]]
    assert "... and 12 more (--all)" in short
    assert len(short.splitlines()) < 30
    assert len(whole.splitlines()) > 600
    assert "k016  ranks 120-127" in whole


def test_many_communicators_are_counted_by_their_size(run: Any, tmp_path: Path) -> None:
    """A hundred communicators of one size share a line."""
    path = tmp_path / "x.log"
    path.write_text(
        "".join(
            f"k1:{n}:9 [0] NCCL INFO {COMM.format(0, 1, n)} - Init COMPLETE\n" for n in range(100)
        )
    )
    assert "100 communicators: 1 rank on 1 node, init complete\n" in run(path).out


def test_matrix_replaces_the_table(run: Any, ring: Path) -> None:
    """Header, matrix, warnings."""
    out = run("--matrix", ring).out
    assert "k1  0  \\ G" in out
    assert "both ends" not in out
    assert "1 NCCL warning" in out


@pytest.mark.parametrize("form", ["--json", "--matrix", "--all"])
def test_log_without_edges_is_not_an_error(run: Any, tmp_path: Path, form: str) -> None:
    """The log could be read and has no edges: status 0, in every form."""
    path = tmp_path / "x.log"
    path.write_text("epoch 1 loss 0.3\n")
    result = run(form, path)
    assert result.status == 0
    assert result.json["edges"] == [] if form == "--json" else "no edges" in result.out


def test_long_list_of_edges_is_not_aligned(
    run: Any, ring: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Aligning a hundred thousand rows would take minutes; their lines have the same cells."""
    aligned = run("--all", ring).out.splitlines()
    monkeypatch.setattr(transport_text, "MAX_TABLE", 0)
    lines = run("--all", ring).out.splitlines()
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


def test_run_directories_distinguish_nodes_of_one_host_name(run: Any, tmp_path: Path) -> None:
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
    assert run("--json", phase.root).json["edges"][0]["placement"] == "inter_node"
    out = run(phase.root).out
    assert "  k1 (0000)  rank 0\n  k1 (0001)  rank 1\n" in out
    assert "k1 (0000) -> k1 (0001)" in out


@pytest.mark.parametrize("seed", range(4))
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
            for line in [*transport_text.text(job, out, everything=True), *matrices(job, out)]:
                assert line.replace("\x1b[", "").isprintable() or not line


# -- Unreadable inputs -----------------------------------------------------------------------------


def test_unreadable_files_are_named_after_the_report(run: Any, ring: Path) -> None:
    """Status 2, the report on stdout, and one line per file on stderr, with what to do."""
    packed = ring.with_name("packed.log.gz")
    packed.write_bytes(b"\x1f\x8b" + bytes(20))
    binary = ring.with_name("core")
    binary.write_bytes(bytes(range(256)) * 8)
    result = run("--json", ring, packed, binary, ring.with_name("rong.log"))
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
    run: Any, tmp_path: Path, form: tuple[str, ...]
) -> None:
    """Status 2, and only the reason."""
    result = run(*form, tmp_path / "missing.log")
    assert (result.status, result.out) == (2, "")
    assert len(result.err.splitlines()) == 1


def test_many_unreadable_files_are_counted(run: Any, tmp_path: Path) -> None:
    """Many files, such as checkpoints, do not scroll the reason away."""
    for number in range(30):
        (tmp_path / f"{number:02d}.bin").write_bytes(bytes(100))
    result = run(tmp_path)
    assert result.status == 2
    assert len(result.err.splitlines()) == 21
    assert "and 10 more" in result.err


def test_error_during_reading_keeps_earlier_results(run: Any, ring: Path) -> None:
    """/proc/self/mem is a file whose first byte cannot be read."""
    result = run(ring, "/proc/self/mem")
    assert result.status == 2
    assert "0 -> 1" in result.out
    assert result.err == "clustersmoke: /proc/self/mem cannot be read: Input/output error\n"


def test_closed_standard_input_is_unreadable(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`clustersmoke transports - <&-`"""
    monkeypatch.setattr(sys, "stdin", None)
    result = run("-")
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


def test_job_of_512_ranks_is_reported_within_ten_seconds(tmp_path: Path) -> None:
    """64 nodes of 8 ranks, 16 channels, in each form, including start-up, on a busy machine."""
    JobLogs(64, 8, noise=20).write(tmp_path)
    for form in ("--all", "--matrix", "--json"):
        done = subprocess.run([*COMMAND, form, tmp_path], capture_output=True, timeout=10)
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
