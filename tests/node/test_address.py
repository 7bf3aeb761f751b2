"""The address at which the other nodes reach node 0."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from pytest_clustersmoke.node.abort_flag import NodeFailed
from pytest_clustersmoke.node.rendezvous import _own_address


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What names resolve to in this test; no variable selects an interface."""
    known: dict[str, str] = {}

    def resolve(name: str) -> str:
        if name not in known:
            raise socket.gaierror(-2, "Name or service not known")
        return known[name]

    monkeypatch.setattr(socket, "gethostbyname", resolve)
    monkeypatch.setattr(socket, "gethostname", lambda: "host0")
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    return known


def node(up: bool = True, **interfaces: str) -> dict[str, Any]:
    """A node's facts, with one address per interface."""
    known = {
        name: {"up": up, "ipv4": [address] if address else [], "ipv6": ["fe80::1"]}
        for name, address in interfaces.items()
    }
    return {"interfaces": {"lo": {"up": True, "ipv4": ["127.0.0.1"], "ipv6": []}, **known}}


def test_scheduler_name_comes_before_host_name(names: dict[str, str]) -> None:
    """The names may differ; a name that resolves to loopback does not count."""
    facts = [node(eth0="10.0.0.5", ib0="10.1.0.5")]
    names |= {"n0": "10.1.0.5", "host0": "10.0.0.5"}
    assert _own_address("n0", facts) == "10.1.0.5"
    names["n0"] = "127.0.1.1"
    assert _own_address("n0", facts) == "10.0.0.5"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("NCCL_SOCKET_IFNAME", "=ib0"),
        ("NCCL_SOCKET_IFNAME", "ib"),
        ("GLOO_SOCKET_IFNAME", "ib0"),
        ("GLOO_SOCKET_IFNAME", "nosuch,ib0"),
    ],
)
def test_selected_interface_comes_first(
    names: dict[str, str], monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    """The variable is parsed as NCCL and gloo parse it."""
    names["n0"] = "10.0.0.5"
    monkeypatch.setenv(variable, value)
    assert _own_address("n0", [node(eth0="10.0.0.5", ib0="10.1.0.5")]) == "10.1.0.5"


@pytest.mark.parametrize(
    ("variable", "value"), [("NCCL_SOCKET_IFNAME", "^eth"), ("GLOO_SOCKET_IFNAME", "ib")]
)
def test_variable_that_selects_no_interface_is_ignored(
    names: dict[str, str], monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    """A list of exclusions selects nothing, and gloo takes whole names."""
    names["n0"] = "10.0.0.5"
    monkeypatch.setenv(variable, value)
    assert _own_address("n0", [node(eth0="10.0.0.5", ib0="10.1.0.5")]) == "10.0.0.5"


def test_address_that_the_node_does_not_have_is_not_used(names: dict[str, str]) -> None:
    """A name may resolve to a gateway in front of the node, where nothing can listen."""
    names["n0"] = "203.0.113.7"
    assert _own_address("n0", [node(eth0="10.0.0.5")]) == "10.0.0.5"


def test_unreachable_addresses_are_not_used() -> None:
    """Addresses that every node has, and link-local ones."""
    first = node(bmc="169.254.3.1", docker0="172.17.0.1", eth0="10.0.0.5")
    second = node(bmc="169.254.3.1", docker0="172.17.0.1", eth0="10.0.0.6")
    assert _own_address("n0", [first, second]) == "10.0.0.5"
    assert _own_address("n0", [first, {"interfaces": [{"ipv4": 3}]}]) == "172.17.0.1"


@pytest.mark.parametrize(
    "facts", [node(eth0=""), node(bmc="169.254.3.1"), node(False, e="10.0.0.5")]
)
def test_node_without_reachable_address_is_an_error(facts: dict[str, Any]) -> None:
    """With loopback every other node would connect to itself."""
    with pytest.raises(NodeFailed, match="n0 has no IPv4 address that other nodes can reach"):
        _own_address("n0", [facts, node(eth0="10.0.0.6")])
