"""Every piece of evidence of a failed job opens, in the page, in JUnit and from the terminal, after
the shared directory is gone."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.run_directory import RunDir
from pytest_clustersmoke.report.run_archive import EXCERPT_LINES, name_archived
from tests.report.page_samples import dead, links
from tests.support.harness import Outcome, Suite, lines_with, properties
from tests.support.leftovers import none_left

PLACE = re.compile(r"^  (/.*):(\d+)$", re.M)
BODY = "def test_a(self, phase): pass\ndef test_b(self, phase): pass"
PHASES = ("killed", "imports", "hangs")


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """The run of a killed rank, an import error and a hang; what they left in the shared directory
    is pruned."""
    with none_left() as (marker, _):
        suite = Suite(tmp_path_factory.mktemp("failed"), marker)
        suite.cluster(phases={}, stage_limits_s={"train_step": 2})
        broken = suite.path / "train_broken.py"
        broken.write_text("import nowhere_at_all\n")
        suite.phase("killed", nodes=2, args={"kill": 1}, body=BODY)
        suite.phase("imports", script=broken, body=BODY)
        suite.phase("hangs", args={"wait_for": str(suite.path / "never"), "before": 1}, body=BODY)
        outcome = suite.run_apart()
        shutil.rmtree(suite.shared)
        yield outcome


def quoted(outcome: Outcome, phase: str) -> list[tuple[Path, dict[str, Any]]]:
    """The files of the evidence of the phase's primary findings, and what is quoted from each."""
    folder = outcome.files.report / "phases" / phase
    findings = [found for found in outcome.phase(phase)["findings"] if found["primary"]]
    shown = [shown for finding in findings for shown in finding["evidence"]]
    assert findings and shown, outcome.output
    return [(folder / item["file"], item) for item in shown]


@pytest.mark.parametrize("phase", PHASES)
def test_evidence_of_a_failed_job_is_beside_the_page(failed: Outcome, phase: str) -> None:
    """Each file exists, the page links it, and its line holds the text."""
    linked = links(failed.files.report)
    for path, shown in quoted(failed, phase):
        assert not Path(shown["file"]).is_absolute() and path.is_file(), shown
        assert str(path.relative_to(failed.files.report)) in linked, (shown, linked)
        line = path.read_text().splitlines()[shown["line"] - 1]
        first = shown["text"].splitlines()[0]
        is_quote = path.name != "events.jsonl" and path.suffix != ".json"  # others are in words
        if is_quote and not first.startswith("Traceback"):
            assert first[:100] in line, (shown, line)
    assert dead(failed.files.report) == []


@pytest.mark.parametrize("phase", PHASES)
def test_evidence_in_terminal_and_junit_opens(failed: Outcome, phase: str) -> None:
    """Both name the files with their whole paths in the report."""
    title = f"Test{phase.title()}"
    case = (
        (failed.files.report / "junit.xml").read_text().split(f'classname="test_{phase}.{title}"')
    )
    for text in (failed.output, case[1]):
        places = PLACE.findall(text)
        named = [Path(file) for file, _ in places if f"/phases/{phase}/" in file]
        assert named and all(path.is_file() for path in named), text


@pytest.mark.parametrize("phase", PHASES)
def test_failed_job_is_one_failed_case(failed: Outcome, phase: str) -> None:
    """Its first line has the cause, the host and, if one had started, the rank."""
    cases = properties(failed.files.report / "junit.xml")
    results = {name: case["result"] for name, case in cases.items() if case["phase"] == phase}
    assert sorted(results.values()) == ["failure", "skipped", "skipped"]
    (line,) = lines_with(failed, f"FAILED test_{phase}.py::Test{phase.title()}::job")
    assert f"phase {phase}: failed: " in line
    message = failed.failures(phase).splitlines()[0]
    assert failed.finding(phase)["cause"] in message
    assert "local" in message, message
    assert phase == "imports" or re.search(r"\brank \d", message), message


def test_last_event_of_a_killed_rank_is_shown(failed: Outcome) -> None:
    """Its text, not only that it is the last."""
    ((path, shown), *_) = quoted(failed, "killed")
    assert path.name == "00001.jsonl" and shown["text"].startswith('{"event": "stage"')
    assert "sacct" not in failed.finding("killed")["fix"]


def test_large_file_keeps_the_lines_around_the_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding names the excerpt, and the line in it."""
    from pytest_clustersmoke.evidence.finding import Evidence, Finding
    from pytest_clustersmoke.report import run_archive
    from tests.support import records

    run = RunDir(tmp_path / "runs" / "one")
    log = run.phase("wide").launcher_log(0)
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"line {number}\n" for number in range(1, 1001)))
    monkeypatch.setattr(run_archive, "MAX_FILE_BYTES", 1000)
    shown = [Evidence(str(log), line, f"line {line}") for line in (3, 700, 1000)]
    outside = Evidence("/etc/motd", 1, "")
    finding = name_archived(Finding("id", "c", "f", evidence=(*shown, outside)), run.phase("wide"))
    assert finding.evidence[-1] == outside
    phase = records.phase("wide", nodes=1)
    phase["findings"] = [finding.as_dict()]
    record = records.parsed(records.run(phase))
    copier = run_archive.EvidenceCopier(run, tmp_path / "report")
    copier.copy_phases(record.phases)
    assert not (tmp_path / "report" / log.relative_to(run.root)).exists()
    for item in finding.evidence[:-1]:
        lines = (tmp_path / "report" / "phases" / "wide" / item.file).read_text().splitlines()
        assert len(lines) <= EXCERPT_LINES and lines[item.line - 1] == item.text


def test_what_a_finding_quotes_is_copied_before_the_evidence_of_all_phases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of the last phase, where the ones before fill the room."""
    from pytest_clustersmoke.evidence.finding import Evidence, Finding
    from pytest_clustersmoke.report import run_archive
    from tests.support import records

    run, target = RunDir(tmp_path / "runs" / "one"), tmp_path / "report"
    logs = [run.phase(name).launcher_log(0) for name in ("green", "red")]
    for log in logs:
        log.parent.mkdir(parents=True)
        log.write_text("x" * 600)
    monkeypatch.setattr(run_archive, "MAX_BYTES", 1000)
    shown = (Evidence(str(logs[1]), 1, "x"),)
    finding = name_archived(Finding("id", "c", "f", evidence=shown), run.phase("red"))
    made = [records.phase("green", nodes=1), records.phase("red", nodes=1)]
    made[1]["findings"] = [finding.as_dict()]
    copier = run_archive.EvidenceCopier(run, target)
    copier.copy_phases(records.parsed(records.run(*made)).phases)
    assert [(target / log.relative_to(run.root)).exists() for log in logs] == [False, True]
    assert copier.remarks()


CLUSTERS = """\
x-key: &key sk-anchored
clusters:
  one:
    backend: slurm
    env:
      common:
        set: {API_KEY: sk-inline, OTHER: *key}
    setup:
      - export HF_TOKEN=hf-line
    # export HF_TOKEN=hf-comment
    slurm:
      partition: nope  # hf-tail
      comment: |
        two
        lines
    phases:
      small:
        env:
          set:
            LONG: >
              sk-folded
            TOKEN: hf-block
"""


def test_quoted_line_of_cluster_yaml_is_in_the_report_without_secrets(tmp_path: Path) -> None:
    """The whole small file beside the page; values of env and setup, and comments, are left out."""
    from pytest_clustersmoke.evidence.finding import Evidence, Finding

    clusters, phase = tmp_path / "cluster.yaml", RunDir(tmp_path / "run").phase("wide")
    clusters.write_text(CLUSTERS)
    line = 1 + CLUSTERS.splitlines().index("      partition: nope  # hf-tail")
    shown = Evidence(str(clusters), line, "partition: nope")
    foreign = Evidence(str(tmp_path / "other.yaml"), 1, "")
    (tmp_path / "other.yaml").write_text("key: sk-other\n")
    finding = Finding("id", "c", "f", evidence=(shown, foreign))
    named, other = name_archived(finding, phase, str(clusters)).evidence
    assert (named.file, named.line, other) == ("settings/cluster.yaml", line, foreign)
    text = (phase.root / named.file).read_text()
    assert text.splitlines()[line - 1] == "      partition: nope"
    assert "sk-" not in text and "hf-" not in text
    assert len(text.splitlines()) == len(CLUSTERS.splitlines()) and "      small:" in text
    assert not list(phase.root.rglob("other*"))


def test_large_cluster_yaml_keeps_the_lines_around_the_quoted_one(tmp_path: Path) -> None:
    """One that is no longer YAML, or gone, keeps its path."""
    from pytest_clustersmoke.evidence.finding import Evidence, Finding

    clusters, phase = tmp_path / "cluster.yaml", RunDir(tmp_path / "run").phase("wide")
    clusters.write_text("".join(f"key{number}: {number}\n" for number in range(1, 1001)))
    finding = Finding("id", "c", "f", evidence=(Evidence(str(clusters), 700, "key700"),))
    (named,) = name_archived(finding, phase, str(clusters)).evidence
    lines = (phase.root / named.file).read_text().splitlines()
    assert len(lines) == EXCERPT_LINES and lines[named.line - 1] == "key700: 700"
    clusters.write_text("{")
    assert name_archived(finding, phase, str(clusters)) == finding
    clusters.unlink()
    assert name_archived(finding, phase, str(clusters)) == finding
