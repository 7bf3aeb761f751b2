"""Faults that Slurm tells more of, or at all, where it keeps accounts; a prolog that fails."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from pytest_clustersmoke import lab
from tests.faults import staged
from tests.faults.harness import Outcome, Suite, wait_for
from tests.faults.running import Running
from tests.faults.table import Fault
from tests.faults.table.lab import ACCOUNTING
from tests.support.leftovers import none_left
from tests.support.needs import need_lab

pytestmark = [pytest.mark.lab, pytest.mark.slow_lab]

PROLOG = """#!/bin/sh
test "$SLURMD_NODENAME" != node3
"""


@pytest.fixture(scope="module")
def accounting_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab.Lab]:
    """A Slurm with accounting, whose prolog fails on node3."""
    need_lab(accounting=True)
    name = f"acct-{os.getpid()}"
    own = lab.up(lab.LabSettings(name=name, nodes=4, accounting=True))
    prolog = tmp_path_factory.mktemp("prolog") / "prolog.sh"
    prolog.write_text(PROLOG)
    prolog.chmod(0o755)
    with own.slurm_conf.open("a") as conf:
        conf.write(f"Prolog={prolog}\n")
    yield own
    lab.down(name)


Ended = tuple[Outcome, dict[str, Running]]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory, accounting_lab: lab.Lab) -> Iterator[Ended]:
    """One run of all of them; of which Slurm tells when it ended them."""
    with none_left() as (mark, _):
        suite = Suite(tmp_path_factory.mktemp("accounting"), mark)
        suite.use_slurm(accounting_lab.slurm_conf)
        suite.slurm("scontrol", "reconfigure")
        shown = "Prolog                  = "
        wait_for("the prolog", lambda: f"{shown}/" in suite.slurm("scontrol", "show", "config"))
        for fault in ACCOUNTING:
            staged.add(fault, suite)
        cancelled = Running(suite, "cancelled_by_a_user")
        with suite.started() as process:
            cancelled.wait()
            cancelled.strike(lambda: suite.slurm("scancel", cancelled.job))
            process.wait(120)
        failed = Running(suite, "prolog_failed", nodes=2)
        yield suite.ended(process), {one.name: one for one in (cancelled, failed)}


@pytest.mark.parametrize("fault", ACCOUNTING, ids=lambda fault: fault.name)
def test_fault_is_named(
    fault: Fault, ended: Ended, record_property: Callable[[str, object], None]
) -> None:
    """Outcome, finding, host and the words that only accounting or the node's state can tell,
    within 10 s of Slurm knowing it."""
    outcome, phases = ended
    since = phases[fault.name].known() if fault.name in phases else None
    staged.check(fault, outcome, record_property, since)
