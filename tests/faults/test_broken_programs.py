"""Faults of programs, data, checkpoints, memory, disk and configuration, staged for real on virtual
nodes of this machine: each fails what it breaks, nothing else, and names its cause."""

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
    [pytest.param(one, id=one.name, marks=[pytest.mark.slow] if one.slow else []) for one in LOCAL],
)
def test_fault_fails_what_it_breaks_and_nothing_else(
    fault: Fault,
    staged_together: Callable[[Fault], Outcome],
    record_property: Callable[[str, object], None],
) -> None:
    """The criteria that fail are exactly the fault's; the finding names its cause, rank and host,
    in time."""
    staged.check(fault, staged_together(fault), record_property)


@pytest.mark.slow
def test_port_that_is_taken_before_torchrun_has_it_is_named(
    torch_suite: Suite, record_property: Callable[[str, object], None]
) -> None:
    """Somebody takes the port in between node 0's choice and torchrun's start."""
    staged.add(PORT_TAKEN, torch_suite)
    with socket.socket() as other, torch_suite.started() as running:
        phase = torch_suite.run_dir().phase(PORT_TAKEN.name)
        wait_for_event(phase.node_events(0), "rendezvous")  # until then node 0 listens there
        meeting = wait_for("the choice of the port", lambda: read_json(phase.rendezvous))
        # Node 0 holds the port, but against none that shares it, as torchrun does.
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((meeting["address"], meeting["port"]))
        other.listen()
        struck = time.time()
        outcome = running.wait()
    staged.check(PORT_TAKEN, outcome, record_property, struck)
