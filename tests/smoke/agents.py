"""A rank program of the suite under real torchrun, with one agent for each node."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.criteria.phase_criteria import PhaseView, view_phase
from pytest_clustersmoke.evidence.phase_result import collect_phase
from pytest_clustersmoke.evidence.run_directory import PhaseDir, write_json
from tests.rank.conftest import RUN_WITHIN_S, SMOKE_TESTS, rank_environment, started
from tests.support.ssh_servers import held_port
from tests.support.waiting import wait_for_end

BROKEN = """
import sys
sys.path.insert(0, {folder!r})
import torch, {module} as program
{change}
if __name__ == "__main__":  # not in processes that the program spawns
    program.main()
"""


@dataclass(frozen=True)
class Outcome:
    """A finished run: the agents' exit statuses, their output, the phase's evidence."""

    statuses: list[int]
    output: str
    phase: PhaseView


def run_program(
    program: Path,
    directory: Path,
    args: Mapping[str, Any],
    *words: str,
    nodes: int = 1,
    per_node: int = 2,
    resume: int = 0,
    **environment: str,
) -> Outcome:
    """Run the program with one torchrun per node, as the launcher does; no process is left.
    `resume`: the step at which the first attempt stops; 0 for none."""
    phase = PhaseDir(directory / "small")
    spec = {"phase": "small", "nodes": nodes, "ranks_per_node": per_node, "args": dict(args)}
    write_json(phase.spec, {**spec, "resume": resume} if resume else spec)
    arguments = [word for key, value in args.items() for word in (_name_option(key), str(value))]
    with held_port() as port, ExitStack() as stack:
        agents = []
        for node in range(nodes):
            line = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}"]
            line += [f"--nproc_per_node={per_node}", f"--node_rank={node}"]
            line += ["--master_addr=127.0.0.1", f"--master_port={port}"]
            env = {**rank_environment(phase), "CLUSTERSMOKE_NODE_RANK": str(node)}
            env |= {"CLUSTERSMOKE_NODE_NAME": f"n{node}", "GLOO_SOCKET_IFNAME": "lo"} | environment
            agents.append(
                stack.enter_context(started([*line, str(program), *words, *arguments], env))
            )
        outputs = [wait_for_end(agent, RUN_WITHIN_S) for agent in agents]
        statuses = [agent.returncode for agent in agents]
    return Outcome(statuses, "\n".join(outputs), view_phase(collect_phase(phase)))


def break_program(folder: Path, module: str, change: str) -> Path:
    """The suite's program with a change: statements that see it as `program`."""
    broken = folder / "broken.py"
    broken.write_text(BROKEN.format(folder=str(SMOKE_TESTS), module=module, change=change))
    return broken


def check_fails(criterion: Callable[[PhaseView], None], phase: PhaseView, words: str) -> None:
    """The criterion fails with these words."""
    with pytest.raises((AssertionError, pytest.fail.Exception), match=re.escape(words)):
        criterion(phase)


def _name_option(key: str) -> str:
    return "--" + key.replace("_", "-")
