"""Values that cannot work, whatever the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.preflight.profiles import remarks_of


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (
            "NCCL_SOCKET_IFNAME",
            "eth0,^lo",
            "`^` counts only at the start, for the whole list: no name starts with `^lo`",
        ),
        (
            "NCCL_IB_HCA",
            "=mlx5_0,=mlx5_1",
            "`=` counts only at the start, for the whole list: no name starts with `=mlx5_1`",
        ),
        (
            "NCCL_SOCKET_IFNAME",
            "=^eth0",
            "`=^` does not negate: NCCL takes `^` first, as in `^=eth0`",
        ),
        (
            "NCCL_SOCKET_IFNAME",
            "eth0, ib0",
            "a name in the list has a blank, and so matches nothing: ' ib0'",
        ),
        (
            "GLOO_SOCKET_IFNAME",
            "^lo",
            "gloo takes whole names of interfaces, without NCCL's `^`: `^lo` is none",
        ),
        (
            "GLOO_SOCKET_IFNAME",
            "eth0,",
            "gloo takes whole names of interfaces, separated by commas: '' is none",
        ),
        (
            "NCCL_IB_DISABLE",
            "true",
            "NCCL reads a number there, and takes `true` for 0; write 1",
        ),
        (
            "NCCL_SOCKET_FAMILY",
            "ipv4",
            "NCCL knows AF_INET and AF_INET6, and passes over any other value",
        ),
    ],
)
def test_a_value_that_cannot_work(tmp_path: Path, name: str, value: str, words: str) -> None:
    """The value is told with what is wrong about it, and where it stands."""
    (one,) = remarks_of(tmp_path, {name: value})
    assert one.severity == "warning" and one.text == f"{name}={value}: {words}"
    line = [i for i, text in enumerate((tmp_path / "cluster.yaml").open(), 1) if name in text]
    assert one.source == f"{tmp_path / 'cluster.yaml'}:{line[0]}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_SOCKET_IFNAME", "^lo,docker0"),
        ("NCCL_SOCKET_IFNAME", "=eth0,eth1"),
        ("NCCL_SOCKET_IFNAME", "^=docker0"),
        ("NCCL_IB_HCA", "mlx5_0:1,mlx5_1:1"),
        ("GLOO_SOCKET_IFNAME", "eth0,eth1"),
        ("NCCL_IB_DISABLE", "0"),
        ("NCCL_SHM_DISABLE", "0x1"),
        ("NCCL_DEBUG", "info"),
        ("NCCL_DEBUG", "TRACE"),
        ("NCCL_SOCKET_FAMILY", "AF_INET6"),
    ],
)
def test_a_value_that_works(tmp_path: Path, name: str, value: str) -> None:
    """What NCCL and gloo accept needs no remark."""
    assert remarks_of(tmp_path, {name: value}) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("WARN", "NCCL_DEBUG=WARN hides the transports; the launcher sets INFO instead"),
        (
            "DEBUG",
            "NCCL_DEBUG=DEBUG is not a level that NCCL knows; the launcher sets INFO instead",
        ),
    ],
)
def test_a_level_that_the_launcher_replaces(tmp_path: Path, value: str, text: str) -> None:
    """A level below INFO does not reach the ranks, which is said."""
    (one,) = remarks_of(tmp_path, {"NCCL_DEBUG": value})
    assert (one.severity, one.text) == ("note", text)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("INIT,NET", ""),
        ("ALL", ""),
        ("^COLL", ""),
        ("init", ""),
        ("NET", "hides NCCL's lines of P2P, SHM connections"),
        ("COLL", "hides NCCL's lines of P2P, SHM, NET connections"),
        ("^INIT,P2P", "hides NCCL's lines of P2P connections"),
        ("^ALL", "hides NCCL's lines of P2P, SHM, NET connections"),
        ("P2P,SHM,NET", "hides NCCL's lines of communicators"),
    ],
)
def test_subsystems_that_hide_the_transports(tmp_path: Path, value: str, words: str) -> None:
    """Without INIT the edges, or whose they are, cannot be read: a warning where transports are
    expected, and nowhere else."""
    expect = {"small": {"intra_node": ["P2P/*"]}}
    found = remarks_of(tmp_path, {"NCCL_DEBUG_SUBSYS": value}, expect=expect)
    wanted = f"NCCL_DEBUG_SUBSYS={value} {words}: the transports cannot be judged; add INIT"
    assert [one.text for one in found] == ([wanted] if words else [])
    assert remarks_of(tmp_path, {"NCCL_DEBUG_SUBSYS": value}) == []
