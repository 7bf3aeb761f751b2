"""Which earlier evidence a screen of a node ends: only what it looked for, and did not find.

A check clears its kinds of findings where it ran and passed. What a check compares between nodes,
and what fails a node only if fewer than half of the nodes have it, it clears only where it ran on
several nodes: of two, nobody knows which one is right. A warning clears nothing of its kind, nor
does what the node did not show. No screen clears what shows only while a job runs, such as the
errors that a GPU counts then, a slow rank or a silent rail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from .screen_judge import ODD, CheckJudgement
from .screen_peaks import FAILED, PEAKS, SLOW, WRONG

FEWEST_NODES = 3  # on which a check ran, of what it compares
COMPARED = ODD | {"versions-differ", SLOW}
# The job started on the node, ran our program there, and its answer came by the shared directory.
ANSWERED = (
    *("answer", "part-hung", "node-down", "host-lost", "prolog-failed", "slurmstepd-died"),
    *("package-missing-on-node", "python-missing-on-node", "shared-directory-not-seen"),
)
# By check, the kinds of findings that it looks for.
KINDS: Mapping[str, tuple[str, ...]] = {
    "gpus": (
        *("gpu-driver-failed", "gpus-missing", "gpu-ecc-errors", "gpu-in-use"),
        *("gpu-row-remap-failed", "gpu-row-remap-pending", "gpu-page-retirement-pending"),
    ),
    "system": (
        *("shm-full", "shm-small", "memlock-limit", "open-files-limit"),
        *("tmp-not-writable", "tmp-full", "build-directory-not-writable"),
    ),
    "versions": ("versions-differ",),
    "gpu_model": ("gpu-model-differs",),
    "driver": ("driver-differs",),
    "interfaces": ("interface-down", "interface-missing"),
    "rdma": ("rdma-port-down", "rdma-port-slow"),
    "cpu": ("cpu-slow",),
    PEAKS: (WRONG, SLOW, FAILED),
}


def list_cleared(judged: Mapping[str, Mapping[str, CheckJudgement]]) -> dict[str, list[str]]:
    """By node, the kinds of findings that its checks cleared."""
    ran = Counter(
        name
        for checks in judged.values()
        for name, check in checks.items()
        if check.result != "skipped"
    )
    return {node: sorted({*_find_cleared(checks, ran)}) for node, checks in judged.items()}


def _find_cleared(checks: Mapping[str, CheckJudgement], ran: Counter[str]) -> Iterator[str]:
    yield from ANSWERED
    for name, check in checks.items():
        if check.result != "passed":
            continue
        for kind in (name, *KINDS.get(name, ())):
            if kind not in check.open and (kind not in COMPARED or ran[name] >= FEWEST_NODES):
                yield kind
