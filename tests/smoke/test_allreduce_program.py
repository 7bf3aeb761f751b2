"""train_allreduce.py under real torchrun, and the data by which it tells right from wrong."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_clustersmoke import bandwidth, pairs, sweep
from pytest_clustersmoke.evidence import Unmeasured
from pytest_clustersmoke.result import PhaseResult, collect
from pytest_clustersmoke.rundir import PhaseDir, write_json
from pytest_clustersmoke.telemetry import METRICS
from smoke_tests import collectives
from smoke_tests.collectives import Collectives
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
    return Outcome(statuses, "\n".join(outputs), collect(phase))


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
    return set(sweep.COLLECTIVES) - left_out


def test_two_nodes_measure_all_collectives_and_their_pair(tmp_path: Path) -> None:
    """Every collective at every size, right on every rank; marks of progress; metrics agreed; the
    pair of nodes by both local ranks."""
    outcome = run(tmp_path, nodes=2, per_node=2)
    assert outcome.statuses == [0, 0], outcome.output
    phase = outcome.phase
    there = check_measured(phase)
    assert {"all_reduce", "all_to_all"} <= there
    pairs.check_all_measured(phase)
    assert phase.backend == "gloo" and "4 ranks on 2 nodes talk over gloo" in outcome.output
    with pytest.raises(Unmeasured, match="talked over gloo"):
        bandwidth.check_dips(phase)
    wanted = {sweep.PEAKS[name] for name in there} | {"latency_us", "busbw_1mib_gb_per_s"}
    wanted |= {"pair_bandwidth_min_gb_per_s"}
    assert set(phase.metrics()) == wanted <= set(METRICS)
    assert len({str(rank.metrics()) for rank in phase.ranks}) == 1
    # Of 18 sizes 8, 16 and 32 B are nothing in four parts; and there is one pair.
    measurements = 18 + 15 * (len(there) - 1) + 1
    for rank in phase.ranks:
        steps = [step["step"] for step in rank.events.named("step")]
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
        pairs.check_all_measured(corrupt.phase)


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
    """TORCH_DISTRIBUTED_DEBUG=DETAIL would time a second collective with each; pairs can be left
    out, and the sizes end where it is said."""
    args = {**SMALL, "max_bytes": 256}
    outcome = run(
        tmp_path, "--no-pairwise", nodes=2, per_node=1, args=args, TORCH_DISTRIBUTED_DEBUG="DETAIL"
    )
    assert outcome.statuses == [0, 0], outcome.output
    assert outcome.phase.fact("debug_level") == "INFO"
    check_measured(outcome.phase)
    with pytest.raises(AssertionError, match="measured nothing with n1"):
        pairs.check_all_measured(outcome.phase)


# -- Data and what must come out of them, without a process group ----------------------------------


class Ranks:
    """All ranks of a world in one process, and what each collective does to their buffers."""

    def __init__(self, ranks: int, count: int) -> None:
        cpu = torch.device("cpu")
        self.count, self.share = count, count // ranks
        self.all = [Collectives(rank, ranks, count * 4, cpu) for rank in range(ranks)]

    def run(self, name: str, absent: int | None = None) -> Iterator[Collectives]:
        """Fill, do what the collective is defined to do, and give each rank; of the absent one
        nothing arrives."""
        for one in self.all:
            one.fill(name, self.count)
            if one.rank == absent:
                one.source.zero_()
                one.result.zero_()
        sent = [one.source[: self.count].clone() for one in self.all]
        kept = [one.result[: self.count].clone() for one in self.all]
        part = self.share
        for rank, one in enumerate(self.all):
            mine = slice(rank * part, (rank + 1) * part)
            if name == "all_reduce":
                one.result[: self.count] = torch.stack(kept).sum(0)
            elif name == "all_gather":
                one.result[: self.count] = torch.cat([each[:part] for each in sent])
            elif name == "reduce_scatter":
                one.result[:part] = torch.stack(sent).sum(0)[mine]
            else:
                one.result[: self.count] = torch.cat([each[mine] for each in sent])
            yield one


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 62])
@pytest.mark.parametrize("name", sweep.COLLECTIVES)
def test_what_a_collective_is_defined_to_do_is_right(name: str, ranks: int) -> None:
    """The expected values are those of the definitions, for any number of ranks."""
    world = Ranks(ranks, 248 * ranks)
    for one in world.run(name):
        checked = sweep.received(name, world.count, ranks)
        assert one.check(name, world.count) == {"checked": checked, "wrong": 0, "first_wrong": None}


@pytest.mark.parametrize("name", sweep.COLLECTIVES)
@pytest.mark.parametrize("spoil", ["bit", "nan", "shift", "swap", "stale", "missing"])
def test_what_is_wrong_is_found(name: str, spoil: str) -> None:
    """One bit, a NaN, data that moved, a result never written, or a rank whose data are missing."""
    world = Ranks(4, 1024)
    one = list(world.run(name, absent=1 if spoil == "missing" else None))[2]
    size = sweep.received(name, world.count, 4)
    result = one.result[:size]
    if spoil == "bit":
        result.view(torch.int32)[9] ^= 1
    elif spoil == "nan":
        result[9] = float("nan")
    elif spoil == "shift":
        result.copy_(result.roll(1))
    elif spoil == "swap":
        result.copy_(result.roll(size // 2))
    elif spoil == "stale":
        one.fill(name, world.count)
    found = one.check(name, world.count)
    assert found["wrong"] > 0 and found["checked"] == size
    first = found["first_wrong"]
    assert first["found"] != first["expected"]
    if spoil in ("bit", "nan"):
        assert found["wrong"] == 1 and first["index"] == 9


def test_a_wrong_element_far_in_is_numbered_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of the check do not show: the number is that of the whole result."""
    monkeypatch.setattr(collectives, "CHUNK", 100)
    one = next(Ranks(1, 1000).run("all_reduce"))
    one.result[742] += 1
    one.result[999] += 1
    found = one.check("all_reduce", 1000)
    assert (found["wrong"], found["first_wrong"]["index"]) == (2, 742)


@pytest.mark.parametrize("ranks", [2, 64, 512, 4096, 100_000])
def test_sums_are_exact_for_any_number_of_ranks(ranks: int) -> None:
    """No sum over ranks is above what float32 holds exactly, and neighbours differ."""
    everyone = sum(map(collectives.weight, range(ranks)))
    sums = collectives.term(everyone, ranks, torch.arange(256))
    assert sums.max() <= collectives.EXACT and sums[0] != sums[1]
    assert sums.double().div(everyone).frac().eq(0).all()


@pytest.mark.parametrize(
    ("backend", "words", "left_out"),
    [
        ("gloo", "no support for _allgather_base in Gloo process group", True),
        ("gloo", "Backend gloo does not support alltoall_base", True),
        ("gloo", "ProcessGroup gloo does not support alltoall", True),
        ("gloo", "Connection reset by peer", False),
        ("gloo", "[enforce fail at alltoall.cc:29] in->size % context->size == 0", False),
        ("nccl", "Backend nccl does not support alltoall_base", False),
    ],
)
def test_only_a_collective_that_gloo_has_not_is_left_out(
    monkeypatch: pytest.MonkeyPatch, backend: str, words: str, left_out: bool
) -> None:
    """torch's words for it, of old and new versions, under gloo alone; other errors rise."""

    def raises(*_: Any) -> None:
        raise RuntimeError(words)

    monkeypatch.setattr(dist, "all_to_all_single", raises)
    monkeypatch.setattr(dist, "get_backend", lambda: backend)
    one = Collectives(0, 2, 64, torch.device("cpu"))
    if left_out:
        assert one.why_absent("all_to_all") == words
    else:
        with pytest.raises(RuntimeError) as error:
            one.why_absent("all_to_all")
        assert str(error.value) == words
