"""What `--cluster-screen` runs on one node, alone: it collects the node's facts, checks them, times
a core, writes the answer and ends. No rendezvous, and nothing beyond the standard library.

    python -m pytest_clustersmoke.node.node_screen RUN_DIRECTORY NODE

A part of the facts that hangs is cut by a limit of its own, and the answer says so. What hangs in
the kernel cannot be cut; then the controller ends the job.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..evidence.screen_files import NodeAnswer, ScreenFiles
from ..evidence.whole_files import read_json, write_json
from ..text import FAILURE
from . import core_speed
from .checks import ON_A_NODE, nodes_of
from .job_entry import REFUSAL, NotOurs, open_run
from .node_facts import fact_groups

Collectors = Mapping[str, Callable[[], dict[str, Any]]]


class PartHung(Exception):
    """A part of the screen took longer than its limit."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise PartHung in the block after so many seconds."""

    def stop(number: int, frame: object) -> None:
        raise PartHung(f"no answer within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def screen_node(
    node: str, spec: Mapping[str, Any], part_s: float, collectors: Collectors | None = None
) -> NodeAnswer:
    """What this node finds of itself; each part of the facts has `part_s` seconds."""
    groups = collectors or fact_groups(0, node, str(spec.get("device")))
    facts: dict[str, Any] = {"node": node}
    cut: dict[str, str] = {}
    for name, collect in groups.items():
        try:
            with time_limit(part_s):
                facts |= collect()
        except Exception as error:  # a part must not cost the others their answer
            words = str(error) if isinstance(error, PartHung) else repr(error)
            cut[name] = words
    found = find_causes(facts, spec)
    cpu, work_s = core_speed.measure_core(facts)
    return NodeAnswer(node, facts, cut, found, cpu, work_s, time.process_time())


def find_causes(facts: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, str]:
    """What rules this node out, by check. Checks against other nodes are the controller's."""
    (own,) = nodes_of([facts])
    causes = {
        name: [found.cause for found in check(own, spec) if found.severity == FAILURE]
        for name, check in ON_A_NODE.items()
    }
    return {name: "; ".join(texts) for name, texts in causes.items() if texts}


def main(arguments: Sequence[str]) -> None:
    run, node = arguments
    try:
        files = ScreenFiles(open_run(Path(run)))
    except NotOurs as error:
        sys.exit(f"{REFUSAL}{error}")
    request = read_json(files.request) or sys.exit(f"{files.request} cannot be read")
    answer = screen_node(node, request["spec"], float(request["part_s"]))
    write_json(files.answer(node), answer.as_dict())
    sys.stdout.flush()
    os._exit(0)  # nothing is left to do, and tearing Python down takes time on a busy node


if __name__ == "__main__":
    main(sys.argv[1:])
