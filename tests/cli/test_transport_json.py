"""`clustersmoke transports --json`: every key, with values of its kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.cli.transport_logs import EDGE, RING


def test_json_has_every_key_with_values_of_its_kind(transports: Any, ring: Path) -> None:
    """One object: numbers are numbers, unknown values are null."""
    result = transports("--json", ring)
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


def test_json_is_documented(transports: Any, ring: Path) -> None:
    """docs/reference/transports.md names each key of the object."""
    text = (Path(__file__).parents[2] / "docs" / "reference" / "transports.md").read_text()

    def keys(value: Any) -> set[str]:
        inner = value.values() if isinstance(value, dict) else value
        if not isinstance(value, dict | list):
            return set()
        own = set(value) if isinstance(value, dict) else set()
        return own.union(*(keys(item) for item in inner))

    ring.write_text(RING + "k1:10:20 [0] NCCL INFO CollNet 00/0 : 0 [send] via COLLNET/SHARP/0\n")
    names = keys(transports("--json", ring).json)
    assert "pxn_proxy" in names
    assert [key for key in sorted(names) if f"`{key}`" not in text] == []


def test_edges_are_unique_and_in_order_of_ranks(transports: Any, tmp_path: Path) -> None:
    """Whatever the order of the files, the edges are the same, in the same order, each once."""
    for name, pairs in {"a": [(2, 10), (10, 2)], "b": [(2, 9), (2, 10)]}.items():
        (tmp_path / name).write_text("".join(EDGE.format(*pair) for pair in pairs))
    for order in ("ab", "ba"):
        edges = transports("--json", *(tmp_path / name for name in order)).json["edges"]
        assert [(edge["src"], edge["dst"]) for edge in edges] == [(2, 9), (2, 10), (10, 2)]


def test_numbers_hidden_in_quoted_logs_are_null(transports: Any, tmp_path: Path) -> None:
    """`host:XXXX:XXXX` has no process id."""
    path = tmp_path / "x.log"
    path.write_text(EDGE.format(0, 1).replace("10:20", "XXXX:XXXX"))
    (member,) = transports("--json", path).json["communicators"][0]["members"]
    assert (member["host"], member["pid"], member["complete"]) == ("k1", None, None)
