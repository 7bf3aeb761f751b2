"""Pytest's own time, on a machine that does other work, too: it stands still while a thread is
ready and other processes have the cores. What pytest waits for itself (a file, a thread, an
interval) counts.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

# Writes when jobs were submitted and ended, and when the report was written; each with the time for
# which the main thread, or the one that calls, has waited for a core so far.
CONFTEST = """
import json
import time

MAIN = "/proc/self/schedstat"
OWN = "/proc/thread-self/schedstat"

def mark(name, clock):
    with open(clock) as waited, open("marks", "a") as marks:
        line = [name, time.time(), int(waited.read().split()[1]) / 1e9]
        marks.write(json.dumps(line) + "\\n")

def pytest_collection_finish(session):
    if not session.config.pluginmanager.hasplugin("clustersmoke"):
        return
    from pytest_clustersmoke.evidence.run_journal import FencedJournal
    from pytest_clustersmoke.session.job_session import JobSession

    around(JobSession, "start", lambda *_: mark("watch", MAIN))
    around(FencedJournal, "write", mark_event)

def pytest_sessionfinish(session):
    if session.config.pluginmanager.hasplugin("clustersmoke"):
        from pytest_clustersmoke.report import publication

        begin, end = (lambda *_: mark("report", MAIN)), (lambda: mark("reported", MAIN))
        around(publication, "finish", begin, end)

def mark_event(journal, event, *_):
    if event in ("intent", "ended"):
        mark(event, OWN if event == "intent" else MAIN)

def around(owner, name, before, after=lambda: None):
    call = getattr(owner, name)

    def called(*args, **values):
        before(*args)
        try:
            return call(*args, **values)
        finally:
            after()

    setattr(owner, name, called)
"""


def await_exit(process: subprocess.Popen[bytes]) -> float:
    """When a process ended by its own time, which does not go on while its main thread waits for a
    core; nor does ours, in which we see the end."""
    waited_s = read_waited("self")
    with os.fdopen(os.pidfd_open(process.pid)) as descriptor:
        if not select.select([descriptor], [], [], 600)[0]:
            sys.exit("pytest did not end within 600 s")
    ended, ours_s = time.time(), read_waited("self") - waited_s
    return ended - ours_s - read_waited(str(process.pid))


def read_waited(process: str) -> float:
    """For how long the main thread of a process has been ready, but had no core."""
    return int(Path("/proc", process, "schedstat").read_text().split()[1]) / 1e9
