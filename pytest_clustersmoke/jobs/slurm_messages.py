"""Slurm's messages in a job's own log: what srun, slurmd and slurmstepd say about its end.

Some facts (which node failed, a kill for another job) are recorded nowhere else once a node is back
in service.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from ..evidence.finding import MAX_TEXT, list_job_logs, read_head
from ..evidence.run_directory import PhaseDir
from ..evidence.scheduler_record import ENDED, NODE_FAILED, PREEMPTED, PROLOG_FAILED, SlurmMessage

# slurmd/req.c, slurmstepd/req.c and srun/libsrun of 22.05 to 24.11. The first that matches counts;
# a group is the node.
FORMS = (
    (NODE_FAILED, re.compile(r"srun: error: Node failure on ([\w.\[\],-]{1,255})")),
    (
        PROLOG_FAILED,
        re.compile(
            r"(?:failed on node (?P<task>[\w.-]{1,255}): )?Job prolog failed|"
            r"Prolog failure on node (?P<node>[\w.-]{1,255})|Error running slurm prolog"
        ),
    ),
    (PREEMPTED, re.compile(r"\*\*\* JOB \S{1,60} ON .{1,300} DUE TO PREEMPTION \*\*\*")),
    (ENDED, re.compile(r"\*\*\* (?:JOB|STEP) \S{1,60} ON .{1,300} CANCELLED AT ")),
)
MAX_LINES = 100_000  # of each log; ranks do not write there
MAX_MESSAGES = 256


def read_messages(directory: PhaseDir) -> tuple[SlurmMessage, ...]:
    """The messages in the logs of the job's shell and launchers, in order."""
    return tuple(islice(_find_messages(directory), MAX_MESSAGES))


def _find_messages(directory: PhaseDir) -> Iterator[SlurmMessage]:
    for path in list_job_logs(directory):
        for number, line in read_head(path, MAX_LINES):
            for event, form in FORMS:
                if match := form.search(line):
                    node = next(filter(None, match.groups()), "")
                    yield SlurmMessage(event, node, str(path), number, line[:MAX_TEXT])
                    break
