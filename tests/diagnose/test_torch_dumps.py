"""torch's own dumps of flight recorders name the ranks that the others wait for.

Those written here are fakes in torch's documented form; one test takes a real one, from gloo.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.diagnose.torch_dumps import TorchDumps, rank_findings
from pytest_clustersmoke.evidence.finding import Finding
from tests.diagnose.recorders import call, calls

RANKS = 4


def fake(entries: Sequence[Any], ranks: int = RANKS, **more: Any) -> dict[str, Any]:
    """A dump as torch 2.10 writes it under NCCL."""
    members = json.dumps(list(range(ranks)))
    status = {"last_enqueued_collective": len(entries) or -1, "last_completed_collective": 1}
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": members}},
        "pg_status": {"0": status},
        "entries": list(entries),
        **more,
    }


@pytest.fixture
def found(tmp_path: Path) -> Callable[..., list[Finding]]:
    """The findings of dumps, by rank."""

    def find(
        dumps: Mapping[int, Any], form: Callable[[Any], bytes] = pickle.dumps
    ) -> list[Finding]:
        read = TorchDumps()
        for rank, dump in dumps.items():
            path = tmp_path / f"nccl_trace_rank_{rank}"
            path.write_bytes(form(dump))
            assert read.add(path)
        return read.findings()

    return find


WAITS = calls(3, ended=False, line=41)
BEHIND = calls(2)


@pytest.mark.parametrize(
    "form",
    [pickle.dumps, lambda dump: pickle.dumps(dump, 2), lambda dump: json.dumps(dump).encode()],
)
def test_rank_that_never_reached_a_call_is_named(found: Any, form: Any) -> None:
    """With the call, its group and line, and the last call of that rank."""
    dumps = {rank: fake(BEHIND if rank == 2 else WAITS) for rank in range(RANKS)}
    (finding,) = found(dumps, form)
    assert finding.id == "hang" and finding.ranks == (2,) and finding.primary
    assert finding.cause == (
        "rank 2 never reached all_reduce 3 of group 0 (default_pg), in which ranks 0-1, 3 wait at "
        "/p/train.py:41 in step"
    )
    assert "rank 2: last call 2 of group 0" in finding.evidence[0].text


def test_empty_dump_is_a_rank_that_enqueued_nothing(found: Any) -> None:
    """It is as good as missing."""
    dumps = {rank: fake([] if rank == 1 else WAITS) for rank in range(RANKS)}
    (finding,) = found(dumps)
    assert finding.ranks == (1,)
    assert "rank 1: no entries; it enqueued no collective" in finding.evidence[0].text
    (finding,) = found({0: fake(BEHIND, 2), 1: fake([], 2)})
    assert finding.cause == "rank 1 enqueued no collective" and finding.ranks == (1,)


def test_rank_without_a_dump_is_named(found: Any) -> None:
    """It may have died; next to a rank that is behind it is mentioned."""
    (finding,) = found({rank: fake(WAITS) for rank in (0, 1, 2)})
    assert finding.ranks == (3,)
    assert finding.cause.startswith("rank 3 left no dump, while rank 0 and others wait in all_red")
    (finding,) = found({0: fake(WAITS), 1: fake(WAITS), 2: fake(BEHIND)})
    assert finding.ranks == (2,) and finding.cause.endswith("; no dump from rank 3")


def test_status_outlives_the_entries(found: Any) -> None:
    """A dump without collectives still counts them: this rank is not behind."""
    status = {"0": {"last_enqueued_collective": "3", "last_completed_collective": "2"}}
    dumps = {0: fake(WAITS, 2), 1: fake([], 2, pg_status=status)}
    assert found(dumps) == []


def test_call_that_differs_is_a_mismatch(found: Any) -> None:
    """Each side is shown with its ranks."""
    odd = [*calls(2), call(3, "broadcast", ended=False, line=50)]
    dumps = {rank: fake(odd if rank == 3 else WAITS) for rank in range(RANKS)}
    (finding,) = found(dumps)
    assert finding.id == "collective-mismatch" and finding.ranks == (3,)
    assert "ranks 0-2: all_reduce" in finding.cause and "rank 3: broadcast" in finding.cause


def test_dumps_of_a_healthy_job_show_nothing(found: Any) -> None:
    """All calls have ended."""
    assert found({rank: fake(BEHIND) for rank in range(RANKS)}) == []


def test_list_of_torch_2_2_is_read(found: Any) -> None:
    """It has no header, and numbers of its own."""

    def old(number: int, ended: bool) -> dict[str, Any]:
        name = {"profiling_name": "nccl:all_reduce", "pg_id": 0, "seq_id": number}
        return {**name, "state": "completed" if ended else "scheduled", "input_sizes": [[4]]}

    (finding,) = found({0: [old(1, True), old(2, False)], 1: [old(1, True)]})
    assert finding.ranks == (1,) and "all_reduce 2" in finding.cause


class Bad:
    """Would end this process if it were unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (3,)


@pytest.mark.parametrize(
    "raw",
    [
        pickle.dumps(fake([], pg_status=Bad())),
        pickle.dumps(fake(WAITS))[:-40],
        b"\x80\x02cos\nsystem\n(S'pg_ entries'\ntR.",
        b"\x80\x02pg_",
        b'{"entries": 3, "version": "pg_"}',
        b'{"message": "pg_',
        b"",
    ],
)
def test_other_files_are_not_dumps(tmp_path: Path, raw: bytes) -> None:
    """Nothing in them is executed."""
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(raw)
    assert not TorchDumps().add(path)


def test_hostile_values_are_bounded(found: Any) -> None:
    """Numbers, texts and nesting that torch never writes."""
    shared = [[4]] * 100_000
    entry = call(1, ended=False) | {"input_sizes": shared, "frames": [{}] * 100_000}
    config = {"0": {"ranks": "[0, 999999999999]"}, "1": {"ranks": 3}, "2": None}
    dumps = {
        0: fake(
            [entry] * 50_000, pg_config=config, pg_status={"0": {"last_enqueued_collective": []}}
        ),
        1: fake(
            [{"process_group": ("0",), "collective_seq_id": 2**70}, None], pg_config=[], pg_status=3
        ),
    }
    assert [finding.ranks for finding in found(dumps)] == [(1,)]


def test_exact_cause_in_a_log_comes_before_the_dumps() -> None:
    """Ranks wait for one that failed; a time-out only says that they waited."""
    hang, exact = Finding("hang", "cause", "fix"), Finding("cuda_oom", "cause", "fix")
    vague = Finding("torch_watchdog_timeout", "cause", "fix")

    def order(*findings: Finding) -> list[tuple[str, bool]]:
        ranked = rank_findings(list(findings), [hang], {"torch_watchdog_timeout"})
        return [(finding.id, finding.primary) for finding in ranked]

    assert order(exact) == [("cuda_oom", True), ("hang", False)]
    assert order(vague) == [("hang", True), ("torch_watchdog_timeout", False)]
    assert rank_findings([vague], [], {"torch_watchdog_timeout"}) == [vague]


REAL = """\
import os, pickle, sys, time
os.environ["TORCH_FR_BUFFER_SIZE"] = "100"
import torch, torch.distributed as dist
from torch._C import _distributed_c10d as c10d
folder, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
dist.all_reduce(torch.ones(4))
if rank == 0:
    dist.all_reduce(torch.ones(4), async_op=True)
dump = getattr(c10d, "_dump_fr_trace", None) or c10d._dump_nccl_trace
ends = time.monotonic() + 3
while time.monotonic() < ends:  # a thread records that the first call has ended
    first = pickle.loads(dump())["entries"][0]
    if first["state"] == "completed":
        break
    time.sleep(0.05)
with open(f"{folder}/rank_{rank}.part", "wb") as file:
    file.write(dump())
os.rename(f"{folder}/rank_{rank}.part", f"{folder}/nccl_trace_rank_{rank}")
while not os.path.exists(f"{folder}/nccl_trace_rank_{1 - rank}"):
    time.sleep(0.05)  # the other's pending call would fail with this rank
os._exit(0)
"""


def test_real_dumps_of_gloo_are_read(tmp_path: Path) -> None:
    """Rank 1 did not make the second call, in which rank 0 waits."""
    pytest.importorskip("torch")
    program = [sys.executable, "-c", REAL, str(tmp_path)]
    ranks = [subprocess.Popen([*program, str(rank)]) for rank in range(2)]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    dumps = TorchDumps()
    assert all(dumps.add(tmp_path / f"nccl_trace_rank_{rank}") for rank in range(2))
    (finding,) = dumps.findings()
    assert finding.ranks == (1,) and "never reached all_reduce 2" in finding.cause
