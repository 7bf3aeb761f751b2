"""junit.xml and report.json as their readers see them."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import xmlschema
from junitparser import xunit2

from pytest_clustersmoke import __version__
from pytest_clustersmoke.evidence.fingerprint import VERSIONS

XSD = Path(__file__).parents[1] / "report" / "data" / "junit-10.xsd"
OF_RECORD = ["cluster", "backend", "run_id", "verdict", "sentence", "selection"]
# Characters that XML 1.0 cannot hold, even escaped.
NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class JunitFile:
    """A junit.xml that is valid by the XSD, as junitparser reads it."""

    def __init__(self, path: Path) -> None:
        assert not NO_XML.search(path.read_text(encoding="utf-8"))
        tree = ElementTree.parse(path)
        for case in tree.iter("testcase"):  # the XSD allows properties only of the suite
            for properties in case.findall("properties"):
                case.remove(properties)
        xmlschema.XMLSchema(str(XSD)).validate(tree)
        (self.suite,) = xunit2.JUnitXml.fromfile(str(path))
        self.of_suite = self._named(self.suite)
        self.cases = {f"{case.classname}::{case.name}": case for case in self.suite}
        assert len(self.cases) == self.suite.tests

    def properties(self, case: str) -> dict[str, str]:
        return self._named(self.cases[case])

    @staticmethod
    def _named(element: Any) -> dict[str, str]:
        return {item.name: item.value for item in element.properties()}

    def result(self, case: str) -> Any:
        """The failure, error or skip of a case that did not pass."""
        (element,) = self.cases[case].result
        return element


def check_agreement(record: Mapping[str, Any], read: JunitFile) -> None:
    """Check that the properties of the suite agree with report.json."""
    assert [read.of_suite[name] for name in OF_RECORD] == [record[name] for name in OF_RECORD]
    assert read.of_suite["interrupted"] == str(record["interrupted"]).lower()
    assert read.of_suite["package_version"] == record["package_version"] == __version__
    for name in VERSIONS:
        recorded = {
            phase["versions"][name] for phase in record["phases"] if name in phase["versions"]
        }
        listed = set(filter(None, read.of_suite.get(name, "").split(", ")))
        # They come from the cases, and an interrupted run may have no case with them.
        assert listed <= recorded if record["interrupted"] else listed == recorded


def find_schema_errors(record: Any, schema: dict[str, Any]) -> list[str]:
    """The errors of a record, as JSON, against the schema, each with its path."""
    errors = jsonschema.Draft202012Validator(schema).iter_errors(json.loads(json.dumps(record)))
    return [f"{error.json_path}: {error.message}"[:300] for error in errors]
