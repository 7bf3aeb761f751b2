"""docs/reference/field-guide.md is true: what it names exists, and finds what is staged."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

import pytest
import yaml

from pytest_clustersmoke.faults import FAULTS as GATES
from pytest_clustersmoke.faults import JOB
from tests.faults.table import FAULTS
from tests.support.detections import detections, list_tests
from tests.support.harness import ROOT

GUIDE = ROOT / "docs" / "reference" / "field-guide.md"
CONTRACT = yaml.safe_load((ROOT / "tests" / "contract.yaml").read_text())
ENTRIES = [[f"D{number}" for number in range(1, 24)]] + [
    [str(number + 1) for number in range(items)] for items in (9, 7, 3, 8)
]
NAME = re.compile(
    r"(?:(criteri|finding|signature|fault|gate|broken program|setting|phase|test)\w* )?`([^`]+)`"
)
OTHERWISE = ("usage error", "by construction: ", "cannot be checked, because ")


def guide_rows() -> list[list[str]]:
    """Entry, what finds it, and how it is staged, of each row below the first table."""
    tables = GUIDE.read_text().split("\n## ")[1:]
    return [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for table in tables
        for line in table.splitlines()
        if line.startswith("| ") and not line.startswith(("| entry |", "| item |"))
    ]


def names_in(cell: str) -> Iterator[tuple[str, str]]:
    """The kind and the name of each thing that a cell names; one word stands for all after it."""
    kind = ""
    for match in NAME.finditer(cell):
        kind = match[1] or kind
        if kind:
            yield kind, match[2]


ROWS = [
    pytest.param(*row, id=f"{index}-{row[0].split()[0]}") for index, row in enumerate(guide_rows())
]


def parse_broken_programs() -> dict[str, str]:
    """The id of each broken program of tests/smoke -> the criterion that must fail under it."""
    programs = {}
    for path in sorted((ROOT / "tests" / "smoke").glob("test_*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.param":
                words = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
                named = [word for word in words if re.fullmatch(r"test_\w+", str(word))]
                ids = [key.value for key in call.keywords if key.arg == "id"]
                if named and ids:
                    programs[ast.literal_eval(ids[0])] = str(named[0])
    return programs


BROKEN_PROGRAMS = parse_broken_programs()
# By kind, what may find it: one of these is enough.
EXPECTED: Mapping[str, Mapping[str, set[str]]] = {
    "fault": {fault.name: {*fault.failed, fault.finding, fault.signature} for fault in FAULTS},
    "gate": {
        name: {*gate.red, *gate.findings, *gate.signatures, *detections().get(name, ())} - {JOB}
        for name, gate in GATES.items()
    },
    "broken program": {name: {criterion} for name, criterion in BROKEN_PROGRAMS.items()},
}
KNOWN = {
    "criteri": {name for names in CONTRACT["suite"].values() for name in names},
    "finding": set(CONTRACT["findings"]),
    "signature": set(CONTRACT["signatures"]),
    "fault": set(CONTRACT["staged_faults"]["faults.md "]),
    "gate": set(CONTRACT["staged_faults"]["--cluster-prove "]),
    "broken program": set(BROKEN_PROGRAMS),
    "phase": {name.strip() for name in CONTRACT["phases"]},
}
SETTINGS = {key.split()[0].split(".", 2)[-1] for key in CONTRACT["cluster_yaml"]}


def exists(kind: str, name: str) -> bool:
    if kind == "test":
        file, _, function = name.partition("::")
        return function in {test.name for test in list_tests(ROOT / file)}
    if kind == "setting":
        return any(key.startswith(name) for key in SETTINGS)
    return name in KNOWN[kind]


def test_field_guide_has_every_entry_of_the_guides() -> None:
    """All entries of the field guide and all items of the four checklists, in order."""
    numbers = [row[0].split()[0] for row in guide_rows()]
    assert numbers == [number for table in ENTRIES for number in table]


@pytest.mark.parametrize(("entry", "found", "staged"), ROWS)
def test_entry_names_what_exists(entry: str, found: str, staged: str) -> None:
    """It is found by something and staged by something, or says why not."""
    names = [*names_in(found), *names_in(staged)]
    assert [(kind, name) for kind, name in names if not exists(kind, name)] == [], entry
    assert names or found.startswith(OTHERWISE), entry
    assert staged or found.startswith("by construction: "), entry


@pytest.mark.parametrize(("entry", "found", "staged"), ROWS)
def test_what_is_staged_is_found_by_what_the_entry_names(
    entry: str, found: str, staged: str
) -> None:
    """A fault, a gate or a broken program turns something red that the entry names as finding it,
    unless it is refused before anything runs."""
    finders = {name for _, name in names_in(found)}
    missed = {
        name: EXPECTED[kind][name]
        for kind, name in names_in(staged)
        if name in EXPECTED.get(kind, {}) and not EXPECTED[kind][name] & finders
    }
    assert not missed or "usage error" in found, (entry, missed)
