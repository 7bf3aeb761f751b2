"""train_allreduce.py under real torchrun: what it measures when all is well, and when it is not."""

from __future__ import annotations

import socket
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_clustersmoke.config.metrics import METRICS
from pytest_clustersmoke.criteria import bandwidth, node_pairs
from pytest_clustersmoke.evidence.metric import Unmeasured
from pytest_clustersmoke.evidence.phase_result import PhaseResult, collect_phase
from pytest_clustersmoke.evidence.run_directory import PhaseDir, write_json
from pytest_clustersmoke.evidence.telemetry import read_events
from tests.rank.conftest import RUN_WITHIN_S, SMOKE_TESTS, rank_environment, started

PROGRAM = SMOKE_TESTS / "train_allreduce.py"
BROKEN = Path(__file__).parent / "programs" / "broken_collective.py"
SMALL = {"max_bytes": 2**20, "factor": 2, "iterations": 2, "warmup": 1, "repeats": 2}


@dataclass(frozen=True)
class Outcome:
    """A finished run: the agents' exit statuses, what they printed, the phase's evidence."""

    statuses: list[int]
    output: str
    phase: PhaseResult


def run(
    directory: Path,
    *words: str,
    nodes: int = 1,
    per_node: int = 2,
    program: Path = PROGRAM,
    args: dict[str, int] = SMALL,
    **environment: str,
) -> Outcome:
    """Run the program with one torchrun a node, as the launcher does; nothing is left running."""
    phase = PhaseDir(directory / "small")
    spec = {"phase": "small", "nodes": nodes, "ranks_per_node": per_node, "args": args}
    write_json(phase.spec, spec)
    arguments = [word for key, value in args.items() for word in (_flag(key), str(value))]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with ExitStack() as stack:
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
        outputs = [agent.communicate(timeout=RUN_WITHIN_S)[0] for agent in agents]
        statuses = [agent.returncode for agent in agents]
    return Outcome(statuses, "\n".join(outputs), collect_phase(phase))


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")


def check_measured(phase: PhaseResult) -> set[str]:
    """Every collective that this torch's gloo has was measured, and is right; which those are."""
    left_out = set(phase.fact("left_out"))
    bandwidth.check_results(phase)
    bandwidth.check_metrics_follow(phase)
    if left_out:  # gloo of torch 2.2 has not all
        with pytest.raises(Unmeasured, match="this gloo has no"):
            bandwidth.check_sizes(phase)
    else:
        bandwidth.check_sizes(phase)
    return set(bandwidth.PEAKS) - left_out


def test_two_nodes_measure_all_collectives_and_their_pair(tmp_path: Path) -> None:
    """Every collective at every size, right on every rank; marks of progress; metrics agreed; the
    pair of nodes by both local ranks."""
    outcome = run(tmp_path, nodes=2, per_node=2)
    assert outcome.statuses == [0, 0], outcome.output
    phase = outcome.phase
    there = check_measured(phase)
    assert {"all_reduce", "all_to_all"} <= there
    node_pairs.check_all_measured(phase)
    assert phase.backend == "gloo"
    assert "4 ranks on 2 nodes communicate over gloo" in outcome.output
    with pytest.raises(Unmeasured, match="talked over gloo"):
        bandwidth.check_dips(phase)
    wanted = {bandwidth.PEAKS[name] for name in there} | {"latency_us", "busbw_1mib_gb_per_s"}
    wanted |= {"pair_bandwidth_min_gb_per_s"}
    assert set(phase.metrics()) == wanted <= set(METRICS)
    assert len({str(rank.metrics()) for rank in phase.ranks}) == 1
    # Of 18 sizes 8, 16 and 32 B are nothing in four parts; and there is one pair.
    measurements = 18 + 15 * (len(there) - 1) + 1
    for rank in phase.ranks:
        marks = read_events(rank.events.path).named("step")  # the evidence keeps the last alone
        steps = [mark["step"] for mark in marks]
        assert steps == sorted(steps) and steps[-1] == measurements
        assert set(range(1, measurements + 1)) <= set(steps)
        peers = [one["peer"] for one in rank.events.named("measured") if one["what"] == "pair"]
        assert peers == [(rank.rank + 2) % 4]


@pytest.fixture(scope="module")
def corrupt(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Two nodes of one rank, of which rank 1's results are spoilt here and there."""
    folder = tmp_path_factory.mktemp("corrupt")
    return run(folder, "corrupt", nodes=2, per_node=1, program=BROKEN)


def test_a_wrong_result_is_recorded_and_named(corrupt: Outcome) -> None:
    """The program goes on to its end; the criterion names collective, size, rank and element."""
    assert corrupt.statuses == [0, 0], corrupt.output
    with pytest.raises(AssertionError) as failure:
        bandwidth.check_results(corrupt.phase)
    # The 78th of what rank 0 sends to rank 1, in its second half of 128.
    assert str(failure.value) == (
        "all_to_all of 1 KiB on rank 1 (n1): 1 of 256 elements are wrong, the first is element "
        "77: found 'nan', expected 205.0"
    )


def test_wrong_bytes_from_a_peer_are_recorded(corrupt: Outcome) -> None:
    """What a rank receives from another node is checked as well."""
    with pytest.raises(AssertionError, match=r"exchange of rank 1 \(n1\) with rank 0: 1 of"):
        node_pairs.check_all_measured(corrupt.phase)


def test_a_collective_that_is_not_there_is_left_out(tmp_path: Path) -> None:
    """The others are measured, and it is said what is left out and why."""
    outcome = run(tmp_path, "absent", program=BROKEN)
    assert outcome.statuses == [0], outcome.output
    assert "all_to_all" not in check_measured(outcome.phase)
    assert "all_to_all_busbw_gb_per_s" not in outcome.phase.metrics()
    left_out = outcome.phase.fact("left_out")
    assert left_out["all_to_all"] == "Backend gloo does not support alltoall_base"


def test_a_collective_that_breaks_is_an_error(tmp_path: Path) -> None:
    """Any other error of a collective ends the program, and is recorded."""
    outcome = run(tmp_path, "broken", program=BROKEN)
    assert outcome.statuses != [0] and not outcome.phase.ranks_done
    errors = outcome.phase.events("error")
    assert errors and all("Connection closed" in one["message"] for one in errors.values())


def test_detail_is_taken_back(tmp_path: Path) -> None:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL would time a second collective with each; the sizes end where
    it is said, and those of pairs, too."""
    args = {**SMALL, "max_bytes": 256}
    outcome = run(tmp_path, nodes=2, per_node=1, args=args, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert outcome.statuses == [0, 0], outcome.output
    assert outcome.phase.fact("debug_level") == "INFO"
    check_measured(outcome.phase)
    node_pairs.check_all_measured(outcome.phase)
    assert node_pairs.Pairs(outcome.phase).size_bytes == 256
