"""Faults that Slurm reports only, or better, where it keeps accounts; a prolog that fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from pytest_clustersmoke import lab
from tests.faults import staged
from tests.faults.table import Fault
from tests.faults.table.lab import ACCOUNTING
from tests.faults.watched_phase import WatchedPhase
from tests.support.harness import Outcome, Suite
from tests.support.labs import running_lab
from tests.support.leftovers import none_left
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.lab, pytest.mark.slow_lab]

PROLOG = """#!/bin/sh
test "$SLURMD_NODENAME" != node3
"""


@pytest.fixture(scope="module")
def accounting_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab.Lab]:
    """A Slurm with accounting, whose prolog fails on node3."""
    prolog = tmp_path_factory.mktemp("prolog") / "prolog.sh"
    prolog.write_text(PROLOG)
    prolog.chmod(0o755)
    with running_lab(lab.LabSettings(name="acct", nodes=4, accounting=True)) as running:
        with running.slurm_conf.open("a") as conf:
            conf.write(f"Prolog={prolog}\n")
        yield running


Ended = tuple[Outcome, dict[str, WatchedPhase]]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory, accounting_lab: lab.Lab) -> Iterator[Ended]:
    """One run of all faults, and the phases for which Slurm says when it ended them."""
    with none_left() as (marker, _):
        suite = Suite(tmp_path_factory.mktemp("accounting"), marker, real_torchrun=True)
        suite.use_slurm(accounting_lab.slurm_conf)
        suite.slurm("scontrol", "reconfigure")
        shown = "Prolog                  = "
        wait_for("the prolog", lambda: f"{shown}/" in suite.slurm("scontrol", "show", "config"))
        for fault in ACCOUNTING:
            staged.add(fault, suite)
        cancelled = WatchedPhase(suite, "cancelled_by_a_user")
        failed = WatchedPhase(suite, "prolog_failed", nodes=2)
        with suite.started() as running:
            cancelled.wait()
            cancelled.strike(lambda: suite.slurm("scancel", cancelled.job))
            outcome = running.wait(120)
        yield outcome, {phase.name: phase for phase in (cancelled, failed)}


@pytest.mark.parametrize("fault", ACCOUNTING, ids=lambda fault: fault.name)
def test_fault_is_named(
    fault: Fault, ended: Ended, record_property: Callable[[str, object], None]
) -> None:
    """Outcome, finding, host and the text that only accounting or the node's state gives, within
    10 s of Slurm knowing it."""
    outcome, phases = ended
    since = phases[fault.name].ended_in_slurm() if fault.name in phases else None
    staged.check(fault, outcome, record_property, since)
