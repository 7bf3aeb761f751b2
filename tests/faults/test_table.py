"""The table of staged faults: what each row must contain to check anything."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.faults import DOCUMENT, document, read_document
from pytest_clustersmoke.diagnose.signature_file import shipped_signatures
from tests.faults.table import FAULTS, UNMEASURED, Fault
from tests.faults.table.model import REFERENCES


def test_page_has_the_faults_of_the_table() -> None:
    """The page is what `make faults` writes, with these faults and no other."""
    rows = read_document()
    assert {row.name for row in rows} == {fault.name for fault in FAULTS}
    assert document(rows) == DOCUMENT.read_text()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_page_says_what_the_table_says(fault: Fault) -> None:
    """The page's row has the red criteria, the finding with its signature, the rank and the host
    that the fault's test requires."""
    (row,) = [row for row in read_document() if row.name == fault.name]
    assert (row.family, row.replayed) == (fault.family, fault.replayed)
    assert row.red == ("usage error" if fault.usage else ", ".join(sorted(fault.failed)) or "job")
    kind = "usage error" if fault.usage else "criterion" if fault.failed else fault.finding
    assert row.finding in {f"{kind} {found}".strip() for found in (fault.signature, fault.maybe)}
    if fault.rank is not None or fault.failed:
        assert row.ranks == ("" if fault.rank is None else str(fault.rank))
    assert not fault.host or row.hosts == fault.host


def test_names_are_unique() -> None:
    """A fault's name is that of its phase, of its test and of its row in the documents."""
    counts = Counter(fault.name for fault in FAULTS)
    assert [name for name, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_row_says_what_its_fault_leads_to(fault: Fault) -> None:
    """Either criteria that can be measured, with a rank; or a finding in time, with a known cause;
    or a usage error."""
    assert sum(map(bool, (fault.failed, fault.finding, fault.usage))) == 1
    measured = {REFERENCES} if "references" in fault.profile else set()
    assert fault.failed <= fault.criteria - UNMEASURED | measured
    assert not fault.failed or fault.rank is not None or fault.of_nobody
    assert bool(fault.finding) or not (fault.signature or fault.maybe or fault.host)
    signatures = {signature.id for signature in shipped_signatures()}
    assert {fault.signature, fault.maybe} <= {"", *signatures}
    assert not (fault.unknown and fault.signature)
    # Only a phase that never ran has no time.
    assert fault.timed or fault.outcome in ("never_ran", "cluster_failed")
    assert 0 < fault.within_s <= 60
    assert not fault.replayed or fault.program == "replay.py"
