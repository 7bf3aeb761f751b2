"""A disk that fills costs what could not be written, and never the verdict. The disk is a small
tmpfs, which only root can mount."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_clustersmoke.evidence.phase_result import collect_phase
from pytest_clustersmoke.evidence.run_directory import PhaseDir, RunDir
from pytest_clustersmoke.evidence.run_ownership import create_run
from pytest_clustersmoke.evidence.telemetry import EventWriter, read_events
from pytest_clustersmoke.jobs.outcome import Judgement
from pytest_clustersmoke.session.job_end import write_result
from pytest_clustersmoke.session.job_session import JobSession
from tests.fakes.backend import FakeBackend
from tests.support.evidence import Evidence, make_phase, make_profile
from tests.support.harness import Suite

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small disk")

FILLS = """
import os
with open(os.environ["CLUSTERSMOKE_PHASE_DIR"] + "/output/fill", "wb", buffering=0) as file:
    for size in (2**20, 2**12, 1):
        try:
            while file.write(bytes(size)):
                pass
        except OSError:
            pass
raise OSError(28, "No space left on device")
"""


@contextmanager
def mounted(folder: Path, size: str) -> Iterator[Path]:
    """A disk of so many bytes at this place."""
    folder.mkdir()
    options = f"size={size},mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Use up what is left of a disk; return the file that does."""
    file = folder / "fill"
    with file.open("wb", buffering=0) as stream, pytest.raises(OSError, match="No space left"):
        while stream.write(bytes(4096)):
            pass
    return file


def test_phase_that_fills_the_shared_directory_is_a_finding(suite: Suite) -> None:
    """Its own result, the journal and what other phases need have no room: the run is judged and
    reported all the same, without a traceback."""
    script = suite.path / "fills.py"
    script.write_text(FILLS)
    suite.profile["limits"] |= {"max_jobs": 1}
    suite.phase("a_fills", script=str(script))
    suite.phase("b_waits")
    with mounted(suite.shared, "100m"):
        outcome = suite.run()
    assert outcome.ret == pytest.ExitCode.TESTS_FAILED, outcome.output
    assert "Traceback" not in outcome.output and "internal error" not in outcome.output.lower()
    fills, waits = suite.record()["phases"]
    assert (fills["phase"], fills["outcome"]) == ("a_fills", "failed")
    assert fills["findings"][0]["id"] == "shared-directory-full"
    assert "the phase's result could not be written there" in fills["findings"][0]["cause"]
    assert (waits["outcome"], [found["id"] for found in waits["findings"]]) == (
        "never_ran",
        ["shared-directory-full"],
    )
    assert suite.record()["verdict"] == "UNFIT"


def test_full_report_directory_costs_the_report_and_not_the_verdict(suite: Suite) -> None:
    """The verdict is printed, and the exit status says that something is wrong."""
    suite.phase()
    with mounted(suite.reports, "64k"):
        outcome = suite.run()
    assert outcome.ret == pytest.ExitCode.INTERNAL_ERROR, outcome.output
    assert "Traceback" not in outcome.output and "INTERNALERROR" not in outcome.output
    assert "FIT" in outcome.output and "UNFIT" not in outcome.output
    assert "No space left on device" in outcome.output


def test_job_that_no_line_can_announce_is_not_submitted(tmp_path: Path) -> None:
    """Were this process killed, nobody would find it."""
    profile, backend = make_profile(tmp_path), FakeBackend()
    with mounted(tmp_path / "small", "256k") as disk:
        run = create_run(disk, "run")
        session = JobSession(run, profile, [make_phase(profile)], backend)
        fill(disk)
        session.journal.write("other", text="x" * 5000)  # it is lost, and nothing is raised
        assert session.journal.lost == 1
        session.start()
        session.wait("small", lambda _progress: None)
        session.close()
    assert session.outcomes["small"].outcome == "never_ran"
    (finding,) = session.results["small"].findings
    assert finding.id == "shared-directory-full" and finding.primary
    assert backend.named("submit") == []


def test_torn_line_costs_no_other_line(tmp_path: Path) -> None:
    """What is written after there is room again starts on a line of its own."""
    with mounted(tmp_path / "small", "64k") as disk:
        writer = EventWriter(RunDir(disk).journal)
        writer.write("before", text="x" * 3900)
        filler = fill(disk)
        with pytest.raises(OSError, match="No space left") as failed:
            writer.write("torn", text="x" * 8000)
        assert failed.value.errno == errno.ENOSPC
        filler.unlink()
        writer.write("after")
        writer.close()
        events = read_events(RunDir(disk).journal)
    assert [record["event"] for record in events.records] == ["before", "after"]
    assert events.unreadable_lines == 1


def test_phase_that_passed_on_a_disk_that_is_full_has_passed(tmp_path: Path) -> None:
    """Its evidence was read; that its result was not written is a warning."""
    profile = make_profile(tmp_path)
    with mounted(tmp_path / "small", "256k") as disk:
        result = collect_phase(Evidence(disk).done().dir)
        fill(disk)
        passed = Judgement("passed", "every rank finished")
        place = PhaseDir(disk / "phases" / "small")
        written = write_result(place, profile, result, passed, None, [], None, {}).result
        assert not place.result.exists()
    assert written.outcome == "passed"
    (finding,) = written.findings
    assert (finding.id, finding.severity, finding.primary) == (
        "shared-directory-full",
        "warning",
        False,
    )
