"""junit.xml: what pytest's own writer leaves to be done, before it writes the file.

The suite gets the run's properties. A case's text is cut to what is worth reading, with the place
of the rest; a case that the end of the run cut off gets its name and an error, since pytest writes
it without either. It is done to what pytest holds, not to the file, which may be any (a pipe, too).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element

from _pytest.junitxml import bin_xml_escape, mangle_test_address, xml_key

from .. import __version__
from ..identity import VERSIONS

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from ..suite import Suite

MAX_TEXT_BYTES = 16 * 2**10  # of all texts of one case
MAX_MESSAGE = 1000  # characters of an attribute; pytest from 9 on writes fewer
HEAD = 0.75  # of a text that is cut: a finding stands first, an assertion's words last
CUT_OFF = "the run ended before this was judged"
TOLD = ("failure", "error")
OUTPUT = ("system-out", "system-err")


class OwnFile:
    """junit.xml in the run's own directory, unless the user asked for one elsewhere."""

    def __init__(self, config: pytest.Config, path: Path, plans_only: bool) -> None:
        self._config = config
        self._ours = not getattr(config.option, "xmlpath", None) and not plans_only
        if self._ours and not hasattr(config, "workerinput"):
            config.option.xmlpath = str(path)

    def drop(self) -> None:
        """No file is written, and none is told of."""
        xml = self._config.stash.get(xml_key, None)
        if self._ours and xml is not None:
            xml.logfile = os.devnull  # its own end of the session is under way already
            del self._config.stash[xml_key]
            self._config.pluginmanager.unregister(xml)


def complete(suite: Suite) -> None:
    """Complete what pytest is about to write of this run, once its verdict is known."""
    xml = suite.config.stash.get(xml_key, None)
    if xml is None:  # `-p no:junitxml`, say
        return
    versions: dict[str, dict[str, None]] = {}  # in order, each once
    for case in _cases(xml):
        properties = {one.attrib["name"]: one.attrib["value"] for one in case.iter("property")}
        for name in VERSIONS:
            if properties.get(name):
                versions.setdefault(name, {})[properties[name]] = None
        phase = properties.get("phase")
        _shorten(case, suite.report_path / "phases" / phase if phase else suite.report_path)
    for name, value in _of_run(suite).items():
        xml.add_global_property(name, value)
    for name, values in versions.items():
        xml.add_global_property(name, ", ".join(values))


def _of_run(suite: Suite) -> Mapping[str, object]:
    told = suite.tally.as_dict()
    return {
        "cluster": suite.profile.name,
        "backend": suite.profile.backend,
        "run_id": suite.run_id,
        "verdict": told["verdict"],
        "sentence": told["sentence"],
        "selection": told["selection"],
        "interrupted": str(bool(told["interrupted"])).lower(),
        "report": str(suite.report_path),
        "package_version": __version__,
    }


def _cases(xml: Any) -> Iterator[Element]:
    """Each case as it will be written; from here on it is fixed, and can be changed."""
    for reporter in xml.node_reporters_ordered:
        if "attrs" in vars(reporter):  # pytest has not heard of its end
            if "name" not in reporter.attrs:
                _cut_off(reporter)
            reporter.finalize()
        yield reporter.to_xml()


def _cut_off(reporter: Any) -> None:
    """A case of which only the set-up was heard."""
    *parents, name = mangle_test_address(str(reporter.id))
    prefix = [reporter.xml.prefix] if reporter.xml.prefix else []
    reporter.attrs = {"classname": ".".join([*prefix, *parents]), "name": name}
    reporter.append(Element("error", type="interrupted", message=CUT_OFF))


def _shorten(case: Element, rest: Path) -> None:
    """Cut the case's texts, take out what stands there twice, and say where the rest is."""
    left, seen = MAX_TEXT_BYTES, set()
    for one in list(case):
        if one.tag in OUTPUT and (one.tag, one.text) in seen:
            case.remove(one)
            continue
        seen.add((one.tag, one.text))
        if one.tag == "properties":
            continue
        told = one.tag in TOLD or one.get("type") == "pytest.xfail"
        place = f"\nreport: {bin_xml_escape(rest)}" if told else ""
        one.text = cut(one.text or "", left - len(place.encode())) + place
        left = max(0, left - len(one.text.encode()))
    for one in case.iter():
        for name, value in one.attrib.items():
            limit = MAX_MESSAGE if name == "message" else len(value)
            one.attrib[name] = bin_xml_escape(value[:limit])


def cut(text: str, size: int) -> str:
    """At most `size` bytes of the text, from its head and its tail, and how many are left out."""
    raw = text.encode(errors="replace")
    if len(raw) <= size:
        return text
    told = f"\n[... {len(raw)} bytes in all, the middle is left out ...]\n"
    room = max(0, size - len(told))
    head = int(room * HEAD)
    tail = raw[len(raw) - (room - head) :]
    return raw[:head].decode(errors="ignore") + told + tail.decode(errors="ignore")
