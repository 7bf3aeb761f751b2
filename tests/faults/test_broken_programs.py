"""Faults of programs, data, checkpoints, memory, disk and configuration, staged for real.

They run on virtual nodes of this machine. Each fails exactly what it breaks, and has its cause
named.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import pytest

from pytest_clustersmoke.evidence.run_directory import read_json
from tests.faults import staged
from tests.faults.table import LOCAL, PORT_TAKEN, Fault
from tests.support.harness import Outcome, Suite
from tests.support.waiting import wait_for, wait_for_event


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name, marks=[pytest.mark.slow] if fault.slow else [])
        for fault in LOCAL
    ],
)
def test_fault_fails_only_what_it_breaks(
    fault: Fault,
    staged_together: Callable[[Fault], Outcome],
    record_property: Callable[[str, object], None],
) -> None:
    """Exactly the fault's criteria fail; or the finding names its cause, rank and host, in time."""
    staged.check(fault, staged_together(fault), record_property)


@pytest.mark.slow
def test_port_taken_before_torchrun_binds_it_is_named(
    torch_suite: Suite, record_property: Callable[[str, object], None]
) -> None:
    """Another process takes the port between node 0's choice and torchrun's start."""
    staged.add(PORT_TAKEN, torch_suite)
    with socket.socket() as other, torch_suite.started() as running:
        phase = torch_suite.run_dir().phase(PORT_TAKEN.name)
        wait_for_event(phase.node_events(0), "rendezvous")  # until then node 0 listens there
        chosen = wait_for("the choice of the port", lambda: read_json(phase.rendezvous))
        # Node 0 holds the port, but lets others share it, as it must for torchrun.
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((chosen["address"], chosen["port"]))
        other.listen()
        struck = time.time()
        outcome = running.wait()
    staged.check(PORT_TAKEN, outcome, record_property, struck)
