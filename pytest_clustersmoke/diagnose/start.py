"""What kept a job from starting: a setup line, the interpreter on the node, a package."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..findings import MAX_TEXT, Evidence, Finding, job_logs, last_line, numbered_lines
from ..rundir import PhaseDir

if TYPE_CHECKING:
    from ..result import PhaseResult

NO_PACKAGE = re.compile(r"No module named '?(pytest_clustersmoke|submitit|psutil)[\w.]*'?")
NO_PYTHON = re.compile(r"(python[\w.]*|[^\s:]+/bin/python[\w.]*): (command not found|No such file)")


def setup(result: PhaseResult) -> list[Finding]:
    path = result.directory.setup_failed
    if not path.exists():
        return []
    status, _, line = path.read_text(errors="replace").strip().partition("\t")
    return [
        Finding(
            "setup-line-failed",
            f"the setup line `{line}` failed with status {status}",
            "run the line in a fresh shell on the node; `setup` is set in cluster.yaml",
            evidence=(Evidence(str(path), 1, line), *log_tail(result.directory)),
        )
    ]


def launcher(result: PhaseResult) -> list[Finding]:
    """The interpreter on the node did not get as far as our launcher."""
    if any(result.directory.claim(node.node_rank).exists() for node in result.nodes):
        return []
    for path in job_logs(result.directory):
        for number, line in numbered_lines(path):
            package, python = NO_PACKAGE.search(line), NO_PYTHON.search(line)
            if not package and not python:
                continue
            cause = (
                f"the interpreter on the node has no package {package.group(1)}"
                if package
                else f"there is no interpreter on the node: {line.strip()}"
            )
            return [
                Finding(
                    "package-missing-on-node" if package else "python-missing-on-node",
                    cause,
                    "install pytest-clustersmoke into the environment that `setup` activates, or "
                    "name its interpreter as `python` in cluster.yaml",
                    evidence=(Evidence(str(path), number, line[:MAX_TEXT]),),
                )
            ]
    return []


def foreign(result: PhaseResult) -> list[Finding]:
    """Files of events that are not of this job's ranks: nothing in them counted."""
    return [
        Finding(
            "foreign-events",
            f"the events of rank {rank.rank} are not this job's: their `start` names another job, "
            "rank or schema, or there is more than one",
            "find out what else wrote this file: a program of the job, or another version of "
            "pytest-clustersmoke on a node",
            evidence=(Evidence(str(rank.events.path), 1, "a foreign `start`"),),
            ranks=(rank.rank,),
        )
        for rank in result.ranks
        if rank.events.foreign
    ]


def log_tail(directory: PhaseDir) -> tuple[Evidence, ...]:
    for path in job_logs(directory):
        found = last_line(path)
        if found and path.suffix == ".err":
            return found
    return ()
