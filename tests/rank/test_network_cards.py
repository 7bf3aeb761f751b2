"""Each network card by itself, between two ranks. There is no GPU and no card here: the two ranks
of a port are fakes that write what NCCL would, sysfs is a fake, and the program runs over gloo."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.rank import network_cards
from pytest_clustersmoke.rank.network_cards import (
    CardPort,
    CardRanks,
    choose_gpus,
    find_ports,
    measure_cards,
)
from tests.fakes.nccl import FakeNccl
from tests.fakes.sysfs import FakePort, write_tree

CARD = CardPort("mlx5_0:1", "b8cef60300a12c3e", "400 Gb/sec (4X NDR)", Path("/nowhere"))
USING = "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>"
PATIENCE_S = 600.0
# A fake of both ranks: in its turn it copies the log that the test wrote for it.
FAKE_RANK = """
import json, os, shutil, sys
folder, rank, device = sys.argv[1:]
if not sys.stdin.readline():
    sys.exit(9)
log = os.path.join(os.environ["FAKE_LOGS"], rank)
shutil.copy(log, os.path.join(folder, f"nccl.fake.{rank}.log"))
asked = {name: os.environ.get(name) for name in ("NCCL_IB_HCA", "NCCL_P2P_DISABLE")}
asked |= {"device": device, "shm": os.environ.get("NCCL_SHM_DISABLE")}
of_ranks = ("TORCH_NCCL_", "NCCL_TOPO_")
asked |= {name: value for name, value in os.environ.items() if name.startswith(of_ranks)}
with open(os.path.join(os.environ["FAKE_LOGS"], f"asked.{rank}"), "w") as stream:
    json.dump(asked, stream)
with open(os.path.join(folder, f"{rank}.json"), "w") as stream:
    json.dump({"gb_per_s": 23.0 + int(rank)}, stream)
"""


@pytest.fixture
def fake_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the logs that both fake ranks will write."""
    folder = tmp_path / "logs"
    folder.mkdir()
    monkeypatch.setenv("FAKE_LOGS", str(folder))
    use_program(monkeypatch, FAKE_RANK)
    for name in ("TURN_S", "MOST_S"):
        monkeypatch.setattr(network_cards, name, PATIENCE_S)
    return folder


def use_program(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(network_cards, "COMMAND", [sys.executable, "-S", "-c", code])


def write_logs(folder: Path, wording: str | None, using: str = USING) -> None:
    """What NCCL writes if it connects both ranks in this way."""
    job = FakeNccl(1, 2, lambda source, destination, role: wording, using={0: using})
    for rank in range(2):
        (folder / str(rank)).write_text("\n".join(job.lines(rank, "n0", 4000 + rank)) + "\n")


def measure(folder: Path, devices: Sequence[str] = ("cuda:0", "cuda:1")) -> dict[str, Any]:
    ranks = CardRanks(folder / "card", CARD, devices)
    try:
        return ranks.measure(PATIENCE_S)
    finally:
        ranks.end()


def test_port_has_two_processes_that_may_use_nothing_else(
    tmp_path: Path, fake_logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without P2P and shared memory; the slower one of both ranks counts. Where the job's own ranks
    write their dumps, these do not."""
    monkeypatch.setenv("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "/phase/dump")
    monkeypatch.setenv("NCCL_TOPO_DUMP_FILE", "/phase/topology.xml")
    write_logs(fake_logs, "NET/IB/0/GDRDMA")
    assert measure(tmp_path) == {"gb_per_s": 23.0}
    for rank in range(2):
        assert json.loads((fake_logs / f"asked.{rank}").read_text()) == {
            "NCCL_IB_HCA": "=mlx5_0:1",
            "NCCL_P2P_DISABLE": "1",
            "shm": "1",
            "device": f"cuda:{rank}",
        }


@pytest.mark.parametrize(
    ("wording", "using", "why"),
    [
        ("NET/Socket/0", USING, "NCCL used NET/Socket in its place"),
        (
            "NET/IB/0",
            USING.replace("mlx5_0", "mlx5_7"),
            "NCCL used NET/IB mlx5_7 in its place",
        ),
        (
            "NET/AWS Libfabric/0/GDRDMA",
            USING,
            "NCCL used NET/AWS Libfabric/GDRDMA in its place",
        ),
        (None, USING, "NCCL's log does not name both connections between its two ranks"),
    ],
)
def test_port_that_nccl_did_not_use_has_no_figure(
    tmp_path: Path, fake_logs: Path, wording: str | None, using: str, why: str
) -> None:
    """The ranks wrote one, but it is that of another way."""
    write_logs(fake_logs, wording, using)
    assert measure(tmp_path) == {"why": why}


def test_failure_of_one_rank_ends_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the other one would never end."""
    code = """
import signal, sys
if sys.argv[2] == "1":
    raise RuntimeError("NCCL error: unhandled system error")
signal.pause()
"""
    use_program(monkeypatch, code)
    monkeypatch.setattr(network_cards, "GRACE_S", PATIENCE_S)
    ranks = CardRanks(tmp_path / "card", CARD, ("cuda:0", "cuda:1"))
    found = ranks.measure(PATIENCE_S)
    assert found == {"why": "RuntimeError: NCCL error: unhandled system error"}
    assert [process.returncode for process in ranks._processes] == [-signal.SIGKILL, 1]


def test_port_that_hangs_costs_its_own_time(
    tmp_path: Path, fake_logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a driver: the others are measured. Those for which no time is left say so."""
    monkeypatch.delenv("NCCL_IB_HCA", raising=False)
    hang = "import os, signal\nif '_0' in os.environ['NCCL_IB_HCA']: signal.pause()\n"
    use_program(monkeypatch, hang + FAKE_RANK)
    cards = write_cards(tmp_path / "sys")
    write_logs(fake_logs, "NET/IB/0", USING.replace("mlx5_0", "mlx5_1"))
    late, limits = CardRanks.measure, []

    def measure_first_briefly(ranks: CardRanks, limit_s: float) -> dict[str, Any]:
        limits.append(limit_s)
        return late(ranks, 0.2 if len(limits) == 1 else limit_s)

    monkeypatch.setattr(CardRanks, "measure", measure_first_briefly)
    first, second = measure_cards([None, None], cards)
    assert first["why"] == "no answer within 0.2 s" and second["gb_per_s"] == 23.0
    monkeypatch.setattr(network_cards, "MOST_S", 0.0)
    why = "no time was left: all 2 ports have 0 s"
    assert [row["why"] for row in measure_cards([None, None], cards)] == [why, why]
    assert len(limits) == 2


def test_time_grows_with_the_ports_and_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight ports have more than one has; the ranks of the job wait no longer than for MOST_S."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    limits: list[float] = []

    class HangingRanks:
        def __init__(self, *given: object) -> None: ...

        def measure(self, limit_s: float) -> dict[str, Any]:
            limits.append(limit_s)
            clock[0] += limit_s
            return {"why": "hangs"}

        def end(self) -> None: ...

    monkeypatch.setattr(network_cards, "CardRanks", HangingRanks)
    for count, seconds in ((1, 20.0), (2, 40.0), (8, 100.0), (32, 100.0)):
        limits.clear()
        with ExitStack() as stack:
            rows = network_cards._measure_ports([(CARD, (0, 1))] * count, stack)
        assert sum(limits) == seconds and len(rows) == count
        assert all(limit <= network_cards.TURN_S for limit in limits)
    assert rows[-1]["why"] == "no time was left: all 32 ports have 100 s"


def test_log_that_cannot_be_read_costs_its_own_row(
    tmp_path: Path, fake_logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of the first port is a folder; the second has its figure."""
    monkeypatch.delenv("NCCL_IB_HCA", raising=False)
    folder = "os.mkdir(os.path.join(folder, f'nccl.no.{rank}.log'))"
    code = f"{FAKE_RANK}if '_0' in asked['NCCL_IB_HCA']:\n    {folder}\n"
    use_program(monkeypatch, code)
    write_logs(fake_logs, "NET/IB/0", USING.replace("mlx5_0", "mlx5_1"))
    first, second = measure_cards([None, None], write_cards(tmp_path / "sys"))
    assert "is a directory" in first["why"] and second["gb_per_s"] == 23.0


def test_port_that_only_a_plugin_uses_costs_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EFA: by its link layer, or by its driver where the kernel names none."""
    monkeypatch.delenv("NCCL_IB_HCA", raising=False)
    monkeypatch.setattr(network_cards, "COMMAND", ["/nowhere/at/all"])
    write_tree(tmp_path, [FakePort("rdmap0", layer="Unknown"), FakePort("rdmap1")], {})
    cards = tmp_path / "class/infiniband"
    (cards / "rdmap1/device/driver").symlink_to("/sys/bus/pci/drivers/efa")
    rows = measure_cards([None, None], cards)
    why = "NCCL uses it only by a plugin, for which no single port can be chosen (link layer "
    assert [(row["name"], row["why"]) for row in rows] == [
        ("rdmap0:1", f"{why}Unknown)"),
        ("rdmap1:1", f"{why}InfiniBand, driver efa)"),
    ]


def write_cards(root: Path) -> Path:
    """A fake sysfs with two cards in use, one port that is down, and GUIDs; returns the cards."""
    ports = [FakePort("mlx5_0"), FakePort("mlx5_1"), FakePort("mlx5_2", state="1: DOWN")]
    write_tree(root, ports, {})
    cards = root / "class/infiniband"
    for number in range(3):
        (cards / f"mlx5_{number}/node_guid").write_text(f"b8ce:f603:00a1:2c3{number}\n")
        (cards / f"mlx5_{number}/ports/1/rate").write_text("400 Gb/sec (4X NDR)\n")
    return cards


@pytest.mark.parametrize(
    ("variables", "names"),
    [
        ({}, ["mlx5_0:1", "mlx5_1:1"]),
        ({"NCCL_IB_HCA": "^=mlx5_0"}, ["mlx5_1:1"]),
        ({"NCCL_IB_HCA": "mlx5_2"}, []),
        ({"NCCL_IB_DISABLE": "1"}, []),
        ({"NCCL_NET": "Socket"}, []),
    ],
)
def test_only_ports_that_the_job_may_use_are_measured(
    tmp_path: Path, variables: dict[str, str], names: list[str]
) -> None:
    """Those that are up, and that NCCL's variables select."""
    found = list(find_ports(variables, write_cards(tmp_path)))
    assert [port.name for port in found] == names
    assert all(port.guid == f"b8cef60300a12c3{port.name[5]}" for port in found)


def test_nothing_runs_without_a_card_or_with_one_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one GPU each port has its reason."""
    monkeypatch.setattr(network_cards, "COMMAND", ["/nowhere/at/all"])
    monkeypatch.delenv("NCCL_IB_HCA", raising=False)
    assert measure_cards([None, None], tmp_path / "missing") == []
    rows = measure_cards([None], write_cards(tmp_path))
    assert [(row["name"], row["why"]) for row in rows] == [
        ("mlx5_0:1", "this needs two GPUs, and the rank sees 1"),
        ("mlx5_1:1", "this needs two GPUs, and the rank sees 1"),
    ]
    rows = measure_cards([None, None], write_cards(tmp_path))
    assert [row["name"] for row in rows] == ["mlx5_0:1", "mlx5_1:1"]
    assert all("/nowhere/at/all" in row["why"] for row in rows)


def test_ports_take_turns(tmp_path: Path, fake_logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its row, also if another one has no figure. Here NCCL names mlx5_0 each time."""
    monkeypatch.delenv("NCCL_IB_HCA", raising=False)
    write_logs(fake_logs, "NET/IB/0")
    rows = measure_cards([None, None, None], write_cards(tmp_path / "sys"))
    first = {"name": "mlx5_0:1", "guid": "b8cef60300a12c30", "rate": "400 Gb/sec (4X NDR)"}
    assert rows[0] == {**first, "gpus": [0, 1], "gb_per_s": 23.0}
    assert rows[1]["why"] == "NCCL used NET/IB mlx5_0 in its place" and len(rows) == 2


def test_few_processes_are_there_at_a_time(
    tmp_path: Path, fake_logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node may have 32 ports: those of the next ones load torch in the turn of one."""
    monkeypatch.delenv("NCCL_IB_HCA", raising=False)
    monkeypatch.setattr(network_cards, "GRACE_S", PATIENCE_S)
    write_tree(tmp_path / "sys", [FakePort(f"mlx5_{number}") for number in range(4)], {})
    write_logs(fake_logs, "NET/IB/0")
    made: list[CardRanks] = []
    counts: list[int] = []

    class CountedRanks(CardRanks):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

        def measure(self, limit_s: float) -> dict[str, Any]:
            processes = [process for ranks in made for process in ranks._processes]
            counts.append(sum(process.poll() is None for process in processes))
            return super().measure(limit_s)

    monkeypatch.setattr(network_cards, "CardRanks", CountedRanks)
    rows = measure_cards([None, None], tmp_path / "sys/class/infiniband")
    assert [row["name"] for row in rows] == [f"mlx5_{number}:1" for number in range(4)]
    assert counts == [6, 6, 4, 2] and rows[0]["gb_per_s"] == 23.0


def test_gpus_are_those_next_to_the_card(tmp_path: Path) -> None:
    """By the bridges that they share with it, then by memory, then by number; where the kernel does
    not say, the first ones."""
    places = {
        "card": ("pci0000:40/bridge", "1"),
        "far": ("pci0000:00/other", "0"),
        "socket": ("pci0000:60/third", "1"),
        "near": ("pci0000:40/bridge", "1"),
    }
    made = {}
    for name, (way, memory) in places.items():
        made[name] = tmp_path / "devices" / way / name
        made[name].mkdir(parents=True)
        (made[name] / "numa_node").write_text(f"{memory}\n")
    gpus = [made["far"], made["socket"], made["near"]]
    assert choose_gpus(made["card"], gpus) == [2, 1]
    assert choose_gpus(made["card"], [None, None, None]) == [0, 1]


@pytest.mark.slow
def test_program_reduces_over_gloo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two real processes, on CPUs: both have a figure, and NCCL wrote no log."""
    monkeypatch.setattr(network_cards, "TURN_S", 200.0)
    monkeypatch.setattr(
        network_cards,
        "COMMAND",
        [
            sys.executable,
            "-c",
            "import sys; from pytest_clustersmoke.rank import network_cards as n; n.BYTES = 4096; "
            "n.TURN_S = 200.0; n.main(sys.argv[1:])",
        ],
    )
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", os.environ.get("GLOO_SOCKET_IFNAME", "lo"))
    ranks = CardRanks(tmp_path / "card", CARD, ("cpu", "cpu"))
    found = ranks.measure(200)
    assert found == {"why": "NCCL's log does not name both connections between its two ranks"}
    values = [json.loads((tmp_path / f"card/{n}.json").read_text()) for n in range(2)]
    assert all(value["gb_per_s"] > 0 for value in values)
