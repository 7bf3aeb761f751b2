"""Remarks about variables by their names alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_clustersmoke.evidence import variable_names
from tests.preflight.profiles import CHECKED

REPOSITORY = Path(__file__).resolve().parents[2]


def test_lists_state_their_versions() -> None:
    """The head of each list names its source and version; its names are sorted and unique."""
    package = REPOSITORY / "pytest_clustersmoke/evidence"
    for file, version, names in (
        ("nccl_env_vars.txt", variable_names.NCCL_CHECKED, variable_names.nccl_names()),
        ("torch_env_vars.txt", variable_names.TORCH_CHECKED, variable_names.torch_names()),
    ):
        lines = (package / file).read_text().splitlines()
        head = [line for line in lines if line.startswith("#")]
        listed = lines[len(head) :]
        assert version in " ".join(head)
        assert listed == sorted(set(listed)) and set(listed) == names
        assert all(variable_names.NAME.fullmatch(name) for name in listed)
    assert len(variable_names.nccl_names()) == 245
    assert {"NCCL_IB_DISABLE", "NCCL_SOCKET_IFNAME", "NCCL_HOSTID"} <= variable_names.nccl_names()
    assert {"TORCH_NCCL_BLOCKING_WAIT", "GLOO_SOCKET_IFNAME"} <= variable_names.torch_names()


def test_tables_of_names_do_not_overlap() -> None:
    """No name that NCCL or torch reads is in a table of names that they do not read."""
    known = variable_names.nccl_names() | variable_names.torch_names()
    listed = {*variable_names.NO_EFFECT, *variable_names.OLD_TORCH, *variable_names.DROPPED}
    assert not known & listed
    assert not [name for name in known if name.startswith(tuple(variable_names.OWNERS))]
    assert not [name for name in known if variable_names.INSTALLATION.fullmatch(name)]
    assert {successor for _, successor in variable_names.DROPPED.values() if successor} <= known
    assert {f"TORCH_{name}" for name in variable_names.OLD_TORCH} <= known


@pytest.mark.parametrize("name", ["NCCL_IB_HCA", "TORCH_NCCL_NAN_CHECK", "GLOO_SOCKET_IFNAME"])
def test_known_name_has_no_remark(name: str) -> None:
    """A name that exists has no remark."""
    assert variable_names.judge_name(name) is None


@pytest.mark.parametrize(
    ("name", "severity", "text"),
    [
        ("NCCL_FOO", "warning", f"NCCL_FOO {CHECKED}; a plugin or another version may read it"),
        (
            "NCCL_IB_DISABEL",
            "warning",
            f"NCCL_IB_DISABEL {CHECKED}; did you mean `NCCL_IB_DISABLE`?",
        ),
        (
            "TORCH_NCCL_BLOCKING",
            "warning",
            "TORCH_NCCL_BLOCKING is not a variable of torch 2.2 to 2.13, the versions checked "
            "against; did you mean `TORCH_NCCL_BLOCKING_WAIT`?",
        ),
        (
            "GLOO_FOO",
            "warning",
            "GLOO_FOO is not a variable of torch 2.2 to 2.13, the versions checked against; "
            "another version may read it",
        ),
        (
            "NCCL_OFI_PROTOCOL",
            "warning",
            f"NCCL_OFI_PROTOCOL {CHECKED}; the libfabric plugin reads OFI_NCCL_*: did you "
            "mean `OFI_NCCL_PROTOCOL`?",
        ),
        (
            "NCCL_TIMEOUT",
            "note",
            "NCCL_TIMEOUT is not a variable of NCCL and has no effect; set the timeout of "
            "init_process_group instead",
        ),
        (
            "NCCL_NET_DISABLE",
            "note",
            "NCCL_NET_DISABLE is not a variable of NCCL and has no effect; NCCL_IB_DISABLE turns "
            "InfiniBand off, NCCL_NET selects the network",
        ),
        (
            "GLOO_USE_IPV6",
            "note",
            "GLOO_USE_IPV6 is not a variable of gloo and has no effect; gloo uses the address of "
            "the interface that GLOO_SOCKET_IFNAME names",
        ),
        (
            "NCCL_BLOCKING_WAIT",
            "note",
            "NCCL_BLOCKING_WAIT is an old name that torch still reads; use "
            "TORCH_NCCL_BLOCKING_WAIT",
        ),
        (
            "NCCL_IB_CUDA_SUPPORT",
            "note",
            "NCCL 2.30.7 no longer reads NCCL_IB_CUDA_SUPPORT; NCCL 2.4.8 did; use "
            "NCCL_NET_GDR_LEVEL",
        ),
        (
            "NCCL_SHM_MEMCPY_MODE",
            "note",
            "NCCL 2.30.7 no longer reads NCCL_SHM_MEMCPY_MODE; NCCL 2.29.7 did",
        ),
        (
            "NCCL_FASTRAK_IFNAME",
            "note",
            "NCCL_FASTRAK_IFNAME is a variable of Google's GPUDirect-TCPXO plugin, not of NCCL",
        ),
        (
            "NCCL_VERSION",
            "note",
            "NCCL_VERSION says where NCCL is installed, or which version; NCCL does not read it",
        ),
    ],
)
def test_remarks_about_names(name: str, severity: str, text: str) -> None:
    """Unknown names are warnings with the version; names of plugins and old versions are notes."""
    remark = variable_names.judge_name(name)
    assert remark is not None and (remark.severity, remark.text) == (severity, text)


def test_only_known_families_are_read() -> None:
    """Other variables are ignored; secrets with the same prefix are hidden, values are cut."""
    environ: dict[str, object] = {
        "AWS_SECRET_ACCESS_KEY": "x",
        "OFI_NCCL_PROTOCOL": "RDMA",
        "NCCL_\x1b[31m": "red",
        "NCCL_": "",
        "GLOO_LICENSE_KEY": "hush",
        "GLOO_CLIENT_SECRET": "hush",
        "NCCL_IB_PKEY": "3",
        "NCCL_NUMBER": 3,
        "NCCL_ALGO": "x" * 5000,
    }
    assert variable_names.filter_variables(environ) == {
        "GLOO_CLIENT_SECRET": "(hidden)",
        "GLOO_LICENSE_KEY": "(hidden)",
        "NCCL_ALGO": "x" * 1000,
        "NCCL_IB_PKEY": "3",
    }
