"""Faults of programs, data, checkpoints, memory, disk and configuration, staged for real on virtual
nodes of this machine: each fails what it breaks, nothing else, and names its cause."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from pytest_clustersmoke.evidence.run_directory import read_json
from tests.faults import staged
from tests.faults.harness import PATIENCE_S, Outcome, Suite, wait_for
from tests.faults.table import LOCAL, PORT_TAKEN, Fault


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
    broken: Suite, record_property: Callable[[str, object], None]
) -> None:
    """Somebody takes the port in between node 0's choice and torchrun's start."""
    staged.add(PORT_TAKEN, broken)
    with socket.socket() as other, broken.started() as process:
        phase = broken.run_dir().phase(PORT_TAKEN.name)
        broken.wait_event(phase.node_events(0), "rendezvous")  # until then node 0 listens there
        meeting = wait_for("the choice of the port", lambda: read_json(phase.rendezvous))
        # Node 0 holds the port, but against none that shares it, as torchrun does.
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((meeting["address"], meeting["port"]))
        other.listen()
        struck = broken.now()
        process.wait(PATIENCE_S)
    staged.check(PORT_TAKEN, broken.ended(process), record_property, struck)
