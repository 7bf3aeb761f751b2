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
            "`^` has a meaning only at the start of the whole list: no name starts with `^lo`",
        ),
        (
            "NCCL_IB_HCA",
            "=mlx5_0,=mlx5_1",
            "`=` has a meaning only at the start of the whole list: no name starts with `=mlx5_1`",
        ),
        (
            "NCCL_SOCKET_IFNAME",
            "=^eth0",
            "`=^` does not negate: NCCL expects `^` first, as in `^=eth0`",
        ),
        (
            "NCCL_SOCKET_IFNAME",
            "eth0, ib0",
            "a name in the list contains a space, and so matches nothing: ' ib0'",
        ),
        (
            "GLOO_SOCKET_IFNAME",
            "^lo",
            "gloo expects full interface names, without NCCL's `^`: `^lo` is not one",
        ),
        (
            "GLOO_SOCKET_IFNAME",
            "eth0,",
            "gloo expects full interface names, separated by commas: '' is not one",
        ),
        (
            "NCCL_IB_DISABLE",
            "true",
            "NCCL expects a number here, and reads `true` as 0; write 1",
        ),
        (
            "NCCL_SOCKET_FAMILY",
            "ipv4",
            "NCCL accepts AF_INET and AF_INET6, and ignores any other value",
        ),
    ],
)
def test_a_value_that_cannot_work(tmp_path: Path, name: str, value: str, words: str) -> None:
    """The remark has the value, what is wrong with it, and its place."""
    (remark,) = remarks_of(tmp_path, {name: value})
    assert remark.severity == "warning" and remark.text == f"{name}={value}: {words}"
    line = [i for i, text in enumerate((tmp_path / "cluster.yaml").open(), 1) if name in text]
    assert remark.where == f"{tmp_path / 'cluster.yaml'}:{line[0]}"


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
    """A value that NCCL and gloo accept has no remark."""
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
def test_debug_level_that_the_launcher_replaces(tmp_path: Path, value: str, text: str) -> None:
    """A level below INFO is replaced, and a note says so."""
    (remark,) = remarks_of(tmp_path, {"NCCL_DEBUG": value})
    assert (remark.severity, remark.text) == ("note", text)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("INIT,NET", ""),
        ("ALL", ""),
        ("^COLL", ""),
        ("init", ""),
        ("NET", "hides NCCL's lines about P2P, SHM connections"),
        ("COLL", "hides NCCL's lines about P2P, SHM, NET connections"),
        ("^INIT,P2P", "hides NCCL's lines about P2P connections"),
        ("^ALL", "hides NCCL's lines about P2P, SHM, NET connections"),
        ("P2P,SHM,NET", "hides NCCL's lines about communicators"),
    ],
)
def test_subsystems_that_hide_the_transports(tmp_path: Path, value: str, words: str) -> None:
    """Without INIT the edges or their communicators cannot be read: a warning if transports are
    expected, and only then."""
    expect = {"small": {"intra_node": ["P2P/*"]}}
    remarks = remarks_of(tmp_path, {"NCCL_DEBUG_SUBSYS": value}, expect=expect)
    wanted = f"NCCL_DEBUG_SUBSYS={value} {words}: the transports cannot be judged; add INIT"
    assert [remark.text for remark in remarks] == ([wanted] if words else [])
    assert remarks_of(tmp_path, {"NCCL_DEBUG_SUBSYS": value}) == []
