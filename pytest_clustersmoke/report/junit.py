"""junit.xml: what pytest's own writer leaves to be done, before it writes the file.

A case's properties travel as pytest's `user_properties`; a metric's name ends in its unit
(`steps_per_s`, `peak_memory_gib`; `final_loss` has none), and its figure is that of report.json,
digit by digit. The suite gets the run's properties. A case's text is cut to what is worth reading,
with the place of the rest; a case that the end of the run cut off gets its name and an error, since
pytest writes it without either. It is done to what pytest holds, not to the file, which may be any
(a pipe, too).
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

MAX_TEXT_BYTES = 16 * 2**10  # of all texts of one case
MAX_MESSAGE = 1000  # characters of an attribute; pytest from 9 on writes fewer
HEAD = 0.75  # of a text that is cut: a finding stands first, an assertion's words last
CUT_OFF = "the run ended before this was judged"
FAILURES = ("failure", "error")
OUTPUT = ("system-out", "system-err")

Property = tuple[str, object]


def phase_properties(result: PhaseResult) -> list[Property]:
    """phase, job_id, nodes, outcome, queue_s, run_s, each metric by its name, versions, transport.

    A time that is not known is empty; a metric or version that is not known is left out.
    """
    job = result.job
    properties: list[Property] = [
        ("phase", result.name),
        ("job_id", sanitize_line(str(job.get("job_id", "")))),
        ("nodes", sanitize_line(",".join(node.name for node in result.nodes))),
        ("outcome", result.outcome),
    ]
    for name in ("queue_s", "run_s"):
        value = job.get(name)
        properties.append((name, "" if value is None else value))
    properties += sorted(result.metrics().items())
    properties += fingerprint_of(result).versions.items()
    properties.append(("transport", sanitize_line(result.transport_summary())))
    return properties


def complete(xml: Any, run: FinishedRun) -> None:
    """Complete what pytest's writer is about to write of a run, once its verdict is known."""
    versions: dict[str, dict[str, None]] = {}  # in order, each once
    for case in _cases(xml):
        properties = {one.attrib["name"]: one.attrib["value"] for one in case.iter("property")}
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
        failure = one.tag in FAILURES or one.get("type") == "pytest.xfail"
        place = f"\nreport: {bin_xml_escape(rest)}" if failure else ""
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
    gap = f"\n[... {len(raw)} bytes in total, the middle is omitted ...]\n"
    room = max(0, size - len(gap))
    head = int(room * HEAD)
    tail = raw[len(raw) - (room - head) :]
    return raw[:head].decode(errors="ignore") + gap + tail.decode(errors="ignore")
