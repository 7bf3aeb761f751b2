"""The end of a run: its record is made, published, and told at the end of the terminal's output."""

from __future__ import annotations

import os
import traceback
from typing import TYPE_CHECKING, Any

from .publish import publish
from .record import Run, make_record
from .recover import given_up
from .terminal import write_summary

if TYPE_CHECKING:
    from ..suite import Suite


def finish(suite: Suite, reporter: Any) -> bool:
    """Report a run whose jobs are over; False where the report could not be written."""
    assert suite.run is not None
    asked = (suite.about, suite.tally, suite.profile, suite.phases, tuple(suite.absences))
    try:
        record = make_record(Run(suite.run, *asked, _partial(suite)))
    except Exception as error:  # of ours; what was found of the cluster is told all the same
        traceback.print_exc()
        given_up(suite.report_path, f"{type(error).__name__}: {error}")
        if reporter is not None:
            reporter.write_line(f"no report could be made: {suite.tally.sentence()}", red=True)
        return False
    written = True
    try:
        remarks = publish(
            record,
            suite.run,
            suite.report_dir,
            os.environ,
            latest=suite.latest,
            keep_runs=suite.profile.limits.keep_runs,
        )
        told = f"report: {suite.report_path}"
    except OSError as error:  # a full disk, say: the verdict is told all the same
        written, remarks = False, []
        told = f"the report cannot be written to {suite.report_path}: {error}"
    except Exception as error:  # of ours
        traceback.print_exc()
        written, remarks = False, []
        told = f"the report is not whole: {type(error).__name__}: {error}"
    if reporter is not None:
        write_summary(reporter, record, [*suite.remarks, *remarks, told])
    return written


def _partial(suite: Suite) -> str:
    """Why a run did not come to its end, in words; empty where it did."""
    if suite.tally.interrupted:
        return "it was interrupted"
    if suite.tally.exitstatus > 1:
        return f"pytest ended early, with status {suite.tally.exitstatus}"
    unheard = suite.tally.unheard()
    return f"nothing was judged of {', '.join(unheard)}" if unheard else ""
