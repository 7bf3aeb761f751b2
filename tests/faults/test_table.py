"""The one table of staged faults: what each row must say for its check to be one."""

from __future__ import annotations

from collections import Counter

import pytest

from pytest_clustersmoke.diagnose.signature_file import shipped_signatures
from tests.faults.table import CRITERIA, FAULTS, UNMEASURED, Fault


def test_no_two_faults_have_one_name() -> None:
    """A name is a phase, a row of the documents and a test's own."""
    assert [name for name, count in Counter(one.name for one in FAULTS).items() if count > 1] == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_row_says_what_must_come_of_its_fault(fault: Fault) -> None:
    """Criteria that can be measured and a rank; or a finding and its cause, where there is one to
    know, in time; or a usage error."""
    assert sum(map(bool, (fault.failed, fault.finding, fault.usage))) == 1
    assert fault.failed <= CRITERIA - UNMEASURED
    assert not fault.failed or fault.rank is not None
    assert bool(fault.finding) or not (fault.signature or fault.maybe or fault.host)
    assert {fault.signature, fault.maybe} <= {"", *(one.id for one in shipped_signatures())}
    assert not (fault.unknown and fault.signature)
    # Only what never ran has no moment; and only a job that is recorded can be replayed.
    assert fault.timed or fault.outcome in ("never_ran", "cluster_failed")
    assert 0 < fault.within_s <= 60
    assert not fault.replayed or fault.program == "replay.py"
