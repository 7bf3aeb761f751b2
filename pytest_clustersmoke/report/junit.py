"""junit.xml: completes the data of pytest's writer before it writes the file.

A case gets the properties of its phase, the suite those of the run, all from the record. A metric's
name ends in its unit (`steps_per_s`, `peak_memory_gib`; `final_loss` has none), and its value is
that of report.json, to the last digit. Long texts of a case are cut; the path of the full evidence
follows them. A case that was still running when the run ended gets its name and an error, because
pytest writes neither. Only pytest's data is changed, never the file, which may even be a pipe.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import pytest
from _pytest.junitxml import bin_xml_escape, mangle_test_address, xml_key

from ..evidence.fingerprint import VERSIONS
from ..evidence.run_counts import MissingRecord
from ..evidence.run_directory import RunDir
from ..evidence.run_record import PhaseRecord, RunRecord
from ..text import sanitize_line
from .phase_table import describe_isolation, judge_phase
from .redaction import choose_redactor

MAX_TEXT_BYTES = 16 * 2**10  # all texts of one case together
MAX_MESSAGE = 1000  # characters; pytest 9 and later write fewer
HEAD = 0.75  # share of a cut text kept from its head: findings come first, assertions last
CUT_OFF = "the run ended before this was judged"
FAILURES = ("failure", "error")
OUTPUT = ("system-out", "system-err")

Property = tuple[str, object]


def drop_junit(config: pytest.Config) -> None:
    """Keep pytest from writing and announcing junit.xml."""
    xml = config.stash.get(xml_key, None)
    if xml is not None:  # None under `-p no:junitxml`
        xml.logfile = os.devnull  # its hook at the end of the session runs already
        del config.stash[xml_key]
        config.pluginmanager.unregister(xml)


def complete_junit(
    config: pytest.Config, record: RunRecord, target: Path, about: Mapping[str, Any]
) -> None:
    """Complete what pytest's writer is about to write; `target` is the directory of the report,
    `about` the run's run.json."""
    xml = config.stash.get(xml_key, None)
    if xml is None:
        return
    phases, redactor = {phase.phase: phase for phase in record.phases}, choose_redactor(about)
    for case in _cases(xml):
        properties = case.find("properties")
        listed = [] if properties is None else list(properties)
        name = next((item.get("value") for item in listed if item.get("name") == "phase"), "")
        if properties is not None and name in phases:
            of_phase = _phase_properties(phases[name], record.missing)
            properties.extend(map(_as_element, of_phase))
        _shorten(case, RunDir(target).phase(name).root if name else target)
        if redactor is not None:
            redactor.hide_xml(case)
    for name, value in _run_properties(record, target):
        xml.add_global_property(name, redactor.hide(str(value)) if redactor else value)


def _as_element(property: Property) -> Element:
    return Element("property", name=property[0], value=str(property[1]))


def _phase_properties(phase: PhaseRecord, missing: Iterable[MissingRecord]) -> Iterator[Property]:
    """job_id, nodes, outcome (of its job), phase_verdict (of all its criteria), queue_s, run_s,
    each metric by its name, versions, transport; of a phase that was tried again, each job by its
    number, as `attempt.1.outcome`; of one that was isolated, `isolated`.

    An unknown time is empty; an unknown metric or version is left out.
    """
    yield "job_id", sanitize_line(phase.job_id)
    yield "nodes", sanitize_line(",".join(node.node for node in phase.nodes))
    yield "outcome", phase.outcome
    yield "phase_verdict", judge_phase(phase, missing).words
    yield "queue_s", "" if phase.queue_s is None else phase.queue_s
    yield "run_s", "" if phase.run_s is None else phase.run_s
    yield from sorted((name, metric.value) for name, metric in phase.metrics.items())
    yield from phase.versions.items()
    yield "transport", sanitize_line(phase.transport)
    if isolated := describe_isolation(phase):
        yield "isolated", sanitize_line(isolated)
    for attempt in phase.attempts:
        name = f"attempt.{attempt.attempt}"
        yield f"{name}.outcome", attempt.outcome
        yield f"{name}.reason", sanitize_line(attempt.reason)
        yield f"{name}.job_id", sanitize_line(attempt.job_id)
        yield f"{name}.nodes", sanitize_line(",".join(attempt.nodes))
        yield f"{name}.failed_nodes", sanitize_line(",".join(attempt.failed_nodes))
        yield f"{name}.queue_s", "" if attempt.queue_s is None else attempt.queue_s
        yield f"{name}.run_s", "" if attempt.run_s is None else attempt.run_s


def _run_properties(record: RunRecord, target: Path) -> Iterator[Property]:
    yield "cluster", record.cluster
    yield "backend", record.backend
    yield "run_id", record.run_id
    yield "verdict", record.verdict
    yield "sentence", record.sentence
    yield "selection", record.selection
    yield "interrupted", str(record.interrupted).lower()
    yield "report", str(target)
    yield "package_version", record.package_version
    for name in VERSIONS:
        found = dict.fromkeys(filter(None, (phase.versions.get(name) for phase in record.phases)))
        if found:
            yield name, ", ".join(found)


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
