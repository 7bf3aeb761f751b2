"""The ids of findings are read from the sources, however they get into a finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.finding_ids import finding_ids

TABLE = """\
TABLE = {"said": ("disk-full", "a fix")}
def look(word):
    id, fix = TABLE[word]
    Finding(id, fix)
"""
LOOP = """\
for id, why in (("disk-full", 1), ("no-room", 2)):
    Finding(id, why)
"""
PARAMETER = """\
class Disk:
    def make(self, why, id):
        return Finding(id, why)
    def look(self):
        return self.make("a long-winded cause", "disk-full"), self.make("why", id="no-room")
"""
SOURCES = {
    "a literal": ('Finding("disk-full", "cause")', {"disk-full"}),
    "a keyword": ('Finding(cause="cause", id="disk-full")', {"disk-full"}),
    "a class of a module": ('findings.Finding("hang")', {"hang"}),
    "either of two": ('Finding("disk-full" if x else "hang")', {"disk-full", "hang"}),
    "a text with a field": ('Finding(f"{key}-refused")', {"*-refused"}),
    "a constant": ('UNKNOWN = "unknown"\nFinding(UNKNOWN)', {"unknown"}),
    "a table": (TABLE, {"disk-full"}),
    "a loop": (LOOP, {"disk-full", "no-room"}),
    "a parameter": (PARAMETER, {"disk-full", "no-room"}),
    "another class": ('Problem("disk-full")', set()),
}


@pytest.mark.parametrize("way", SOURCES)
def test_id_is_found(tmp_path: Path, way: str) -> None:
    """An id is found wherever it is written, and no other text is taken for an id."""
    source, ids = SOURCES[way]
    tmp_path.joinpath("module.py").write_text(source)
    assert finding_ids(tmp_path, {"Finding"}) == ids


def test_id_is_found_across_modules(tmp_path: Path) -> None:
    """Imported constants count, and so do the arguments of calls in other modules."""
    tmp_path.joinpath("names.py").write_text('FULL = ("disk-full", "a fix")\n')
    tmp_path.joinpath("disk.py").write_text(
        "from names import FULL\ndef make(id):\n    return Finding(id), Finding(FULL[0])\n"
    )
    tmp_path.joinpath("caller.py").write_text('from disk import make\nmake("no-room")\n')
    assert finding_ids(tmp_path, {"Finding"}) == {"disk-full", "no-room"}
