"""Faults of nodes and of the scheduler, staged on a real Slurm.

What is done to each, while it trains, is in test_lab_faults.py under the fault's name.
"""

from __future__ import annotations

import os
import pwd
from typing import Any

from tests.faults.table.model import Fault

IDLE: dict[str, Any] = {"seconds": 600}
# Slurm notices at once, or after its own grace period: KillWait is 2 s in the lab.
KNOWN_S = 10.0
OUR_LIMIT_S = 6.0  # of a phase, from torchrun's start
SEEN_LIMIT_S = 20.0  # of a node to see the others' files
USER = pwd.getpwuid(os.getuid()).pw_name


def _on(*nodes: int, **slurm: Any) -> dict[str, Any]:
    """The phase has these nodes to itself."""
    names = ",".join(f"node{number}" for number in nodes)
    return {"slurm": {"nodelist": names, "exclusive": True, **slurm}}


def _fault(name: str, finding: str, *nodes: int, **more: Any) -> Fault:
    values: dict[str, Any] = {"family": "scheduler", "args": IDLE, "ranks_per_node": 1, **more}
    settings = {**_on(*nodes, **values.pop("slurm", {})), **values.pop("settings", {})}
    return Fault(
        name,
        "idle.py",
        finding=finding,
        nodes=len(nodes),
        settings=settings,
        within_s=KNOWN_S,
        **values,
    )


# All run at once, on the nodes of one lab.
SCHEDULER = (
    _fault(
        "node_down",
        "node-down",
        0,
        1,
        family="node",
        outcome="cluster_failed",
        host="node1",
        words=("node1 ", "NODE_FAIL"),
    ),
    _fault(
        "node_dead",
        "node-down",
        9,
        10,
        family="node",
        outcome="cluster_failed",
        host="node10",
        words=("node10 is down", "Not responding", "NODE_FAIL"),
    ),
    _fault(
        "preempted",
        "preempted",
        2,
        outcome="preempted",
        of_nobody=True,
        words=("(partition high", "this job ran in partition main"),
    ),
    _fault(
        "requeued", "requeued", 3, outcome="preempted", of_nobody=True, words=("requeued the job",)
    ),
    _fault(
        "cancelled_by_other",
        "cancelled-by-other",
        4,
        outcome="cancelled",
        of_nobody=True,
        words=("while it ran", "no accounting", "this run did not"),
    ),
    _fault(
        "time_limit_of_slurm", "time-limit", 5, of_nobody=True, words=("at its time limit of 00:",)
    ),
    _fault(
        "time_limit_of_ours",
        "time-limit",
        6,
        host="node6",
        settings={"timeout_s": OUR_LIMIT_S},
        since="launcher_start",
        since_s=OUR_LIMIT_S,
        words=("node6: ",),
    ),
)
MEMORY = Fault(
    "killed_for_memory",
    "takes_memory.py",
    "memory",
    finding="out-of-memory",
    rank=1,
    host="node8",
    words=("rank 1 (node8)", "more host memory than it was allocated (700M per node)"),
    nodes=2,
    ranks_per_node=1,
    args={"mib": 1600},
    # The kernel is slow near the limit, which must not be taken for a hang.
    settings=_on(7, 8, mem="700M") | {"stage_limits_s": {"train_step": 60}},
    slow=True,
)


def _refused(name: str, finding: str, words: str, **slurm: str) -> Fault:
    return _fault(
        name,
        finding,
        2,
        family="refusal",
        outcome="never_ran",
        words=(words,),
        of_nobody=True,
        timed=False,
        slow=True,
        settings={"slurm": {"nodelist": "node2", **slurm}},
    )


# Never submitted: the only node it may run on was drained before.
NO_NODE_LEFT = _fault(
    "node_drained",
    "nodes-unavailable",
    11,
    family="node",
    outcome="cluster_failed",
    host="node11",
    words=("node11", "drain"),
    timed=False,
)

# On a lab with accounting.
ACCOUNTING = (
    _fault(
        "cancelled_by_a_user",
        "cancelled-by-other",
        0,
        outcome="cancelled",
        words=(
            "while it ran",
            f"by {USER} (uid {os.getuid()}, the user of this run)",
            "this run did not",
        ),
        of_nobody=True,
        slow=True,
    ),
    _fault(
        "prolog_failed",
        "prolog-failed",
        1,
        3,
        family="node",
        outcome="cluster_failed",
        host="node3",
        words=("prolog failed on node3", "node3 is drain", f"Prolog error [{USER}@"),
        slow=True,
    ),
    _refused("account_refused", "account-refused", "account `nosuch`", account="nosuch"),
    _refused("qos_refused", "qos-refused", "no QOS `nosuch`", qos="nosuch"),
    _refused("partition_refused", "partition-unknown", "no partition `nosuch`", partition="nosuch"),
)


def _isolated(name: str, finding: str, *nodes: int, **more: Any) -> Fault:
    """The last node differs from the others."""
    values: dict[str, Any] = {"host": f"node{nodes[-1]}", "slow": True, "since": "facts", **more}
    return _fault(name, finding, *nodes, family="node", **values)


# On a lab whose nodes are separate hosts; what is done to them is in test_isolated.py.
ISOLATED = (
    _isolated("other_versions", "versions-differ", 0, 1, 2, words=("transformers 0.0.1",)),
    _isolated(
        "shared_not_seen",
        "shared-directory-not-seen",
        3,
        4,
        words=("in vain for node4",),
        settings={"stage_limits_s": {"init": SEEN_LIMIT_S}},
        since_s=SEEN_LIMIT_S,
    ),
    _isolated("master_unreachable", "master-unreachable", 5, 6, words=("cannot reach node 0",)),
    Fault(
        "shm_full",
        "uses_shm.py",
        "node",
        finding="rank-died",
        rank=1,
        host="node8",
        words=("SIGBUS",),
        nodes=2,
        ranks_per_node=1,
        args={"mib": 64},
        settings=_on(7, 8),
        slow=True,
    ),
    Fault(
        "link_broken",
        "group_opens.py",
        "node",
        finding="rank-error",
        signature="no_route_to_host",
        rank=2,
        host="node11",
        nodes=3,
        ranks_per_node=1,
        settings=_on(9, 10, 11),
        slow=True,
    ),
)
LAB = (*SCHEDULER, MEMORY, NO_NODE_LEFT, *ACCOUNTING, *ISOLATED)
