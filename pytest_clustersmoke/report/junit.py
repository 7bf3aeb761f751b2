"""junit.xml: completes the data of pytest's writer before it writes the file.

Properties of a case travel as pytest's `user_properties`; a metric's name ends in its unit
(`steps_per_s`, `peak_memory_gib`; `final_loss` has none), and its value is that of report.json, to
the last digit. The suite gets the properties of the run. Long texts of a case are cut; the
path of the full evidence follows them. A case that was still running when the run ended gets its
name and an error, because pytest writes neither. Only pytest's data is changed, never the file,
which may even be a pipe.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from _pytest.junitxml import bin_xml_escape, mangle_test_address

from .. import __version__
from ..evidence.fingerprint import VERSIONS, fingerprint_of
from ..evidence.phase_result import PhaseResult
from ..text import sanitize_line
from .record_builder import FinishedRun

MAX_TEXT_BYTES = 16 * 2**10  # all texts of one case together
MAX_MESSAGE = 1000  # characters; pytest 9 and later write fewer
HEAD = 0.75  # share of a cut text kept from its head: findings come first, assertions last
CUT_OFF = "the run ended before this was judged"
FAILURES = ("failure", "error")
OUTPUT = ("system-out", "system-err")

Property = tuple[str, object]


def phase_properties(result: PhaseResult) -> list[Property]:
    """phase, job_id, nodes, outcome, queue_s, run_s, each metric by its name, versions, transport.

    An unknown time is empty; an unknown metric or version is left out.
    """
    properties: list[Property] = [
        ("phase", result.name),
        ("job_id", sanitize_line(result.job_id)),
        ("nodes", sanitize_line(",".join(node.name for node in result.nodes))),
        ("outcome", result.outcome),
    ]
    for name, seconds in (("queue_s", result.queue_s), ("run_s", result.run_s)):
        properties.append((name, "" if seconds is None else seconds))
    properties += sorted(result.metrics().items())
    properties += fingerprint_of(result).versions.items()
    properties.append(("transport", sanitize_line(result.transport_summary())))
    return properties


def complete_junit(xml: Any, run: FinishedRun) -> None:
    """Complete what pytest's writer is about to write, now that the verdict is known."""
    versions: dict[str, dict[str, None]] = {}  # an ordered set for each name
    for case in _cases(xml):
        properties = {
            element.attrib["name"]: element.attrib["value"] for element in case.iter("property")
        }
        for name in VERSIONS:
            if properties.get(name):
                versions.setdefault(name, {})[properties[name]] = None
        phase = properties.get("phase")
        _shorten(case, run.target / "phases" / phase if phase else run.target)
    for name, value in _run_properties(run):
        xml.add_global_property(name, value)
    for name, values in versions.items():
        xml.add_global_property(name, ", ".join(values))


def _run_properties(run: FinishedRun) -> list[Property]:
    return [
        ("cluster", run.about["cluster"]),
        ("backend", run.about["backend"]),
        ("run_id", run.about["run_id"]),
        ("verdict", run.verdict.name),
        ("sentence", run.verdict.sentence),
        ("selection", run.verdict.scope),
        ("interrupted", str(run.tally.interrupted).lower()),
        ("report", str(run.target)),
        ("package_version", __version__),
    ]


def _cases(xml: Any) -> Iterator[Element]:
    """Each case as an XML element; pytest writes the element with any change made to it."""
    for reporter in xml.node_reporters_ordered:
        if "attrs" in vars(reporter):  # pytest has received no report of its end
            if "name" not in reporter.attrs:
                _cut_off(reporter)
            reporter.finalize()
        yield reporter.to_xml()


def _cut_off(reporter: Any) -> None:
    """Complete a case of which pytest has received only the set-up."""
    *parents, name = mangle_test_address(str(reporter.id))
    prefix = [reporter.xml.prefix] if reporter.xml.prefix else []
    reporter.attrs = {"classname": ".".join([*prefix, *parents]), "name": name}
    reporter.append(Element("error", type="interrupted", message=CUT_OFF))


def _shorten(case: Element, rest: Path) -> None:
    """Cut the texts of a case, drop repeated output, and add the path of the evidence."""
    left, seen = MAX_TEXT_BYTES, set()
    for element in list(case):
        if element.tag in OUTPUT and (element.tag, element.text) in seen:
            case.remove(element)
            continue
        seen.add((element.tag, element.text))
        if element.tag == "properties":
            continue
        failure = element.tag in FAILURES or element.get("type") == "pytest.xfail"
        place = f"\nreport: {bin_xml_escape(rest)}" if failure else ""
        element.text = cut(element.text or "", left - len(place.encode())) + place
        left = max(0, left - len(element.text.encode()))
    for element in case.iter():
        for name, value in element.attrib.items():
            limit = MAX_MESSAGE if name == "message" else len(value)
            element.attrib[name] = bin_xml_escape(value[:limit])


def cut(text: str, size: int) -> str:
    """At most `size` bytes of the text, from its head and its tail, with a note between them."""
    raw = text.encode(errors="replace")
    if len(raw) <= size:
        return text
    gap = f"\n[... {len(raw)} bytes in total, the middle is omitted ...]\n"
    room = max(0, size - len(gap))
    head = int(room * HEAD)
    tail = raw[len(raw) - (room - head) :]
    return raw[:head].decode(errors="ignore") + gap + tail.decode(errors="ignore")
