"""The calls of all ranks show which ones the others wait for; here, mostly in torch's own dumps.

Those written here are fakes in torch's documented form; two tests take real ones, from gloo and
from NCCL.
`test_hangs.py` has what the same calls show in a phase.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.diagnose.call_order import TorchDumps, find_absences, rank_findings
from pytest_clustersmoke.diagnose.flight_recorder import read_flight_records
from pytest_clustersmoke.evidence.finding import UNDECIDED, Finding
from pytest_clustersmoke.evidence.run_directory import PhaseDir, write_json
from tests.diagnose.recorders import RANKS, call, calls, fake_dump
from tests.support.waiting import PATIENCE_S


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
    dumps = {rank: fake_dump(BEHIND if rank == 2 else WAITS) for rank in range(RANKS)}
    (finding,) = found(dumps, form)
    assert finding.id == "hang" and finding.ranks == (2,) and finding.primary
    assert finding.cause == (
        "rank 2 never reached all_reduce 3 of group 0 (default_pg), in which ranks 0-1, 3 wait at "
        "/p/train.py:41 in step"
    )
    assert "rank 2: last call 2 of group 0" in finding.evidence[0].text


def test_empty_dump_is_a_rank_that_enqueued_nothing(found: Any) -> None:
    """It is as good as missing."""
    dumps = {rank: fake_dump([] if rank == 1 else WAITS) for rank in range(RANKS)}
    (finding,) = found(dumps)
    assert finding.ranks == (1,)
    assert "rank 1: no entries; it enqueued no collective" in finding.evidence[0].text
    (finding,) = found({0: fake_dump(BEHIND, 2), 1: fake_dump([], 2)})
    assert finding.cause == "rank 1 enqueued no collective" and finding.ranks == (1,)


def test_rank_without_a_dump_is_named(found: Any) -> None:
    """It may have died; next to a rank that is behind it is mentioned."""
    (finding,) = found({rank: fake_dump(WAITS) for rank in (0, 1, 2)})
    assert finding.ranks == (3,)
    assert finding.cause.startswith("rank 3 left no dump, while rank 0 and others wait in all_red")
    (finding,) = found({0: fake_dump(WAITS), 1: fake_dump(WAITS), 2: fake_dump(BEHIND)})
    assert finding.ranks == (2,) and finding.cause.endswith("; no dump from rank 3")


def test_status_outlives_the_entries(found: Any) -> None:
    """A dump without collectives still counts them: this rank is not behind."""
    status = {"0": {"last_enqueued_collective": "3", "last_completed_collective": "2"}}
    dumps = {0: fake_dump(WAITS, 2), 1: fake_dump([], 2, pg_status=status)}
    assert found(dumps) == []


def test_call_that_differs_is_a_mismatch(found: Any) -> None:
    """Each side is shown with its ranks."""
    odd = [*calls(2), call(3, "broadcast", ended=False, line=50)]
    dumps = {rank: fake_dump(odd if rank == 3 else WAITS) for rank in range(RANKS)}
    (finding,) = found(dumps)
    assert finding.id == "collective-mismatch" and finding.ranks == (3,)
    assert "ranks 0-2: all_reduce" in finding.cause and "rank 3: broadcast" in finding.cause
    assert "majority" not in finding.cause and UNDECIDED not in finding.detail


def test_calls_of_two_ranks_that_differ_leave_open_which_is_wrong(found: Any) -> None:
    """Both are named, and the finding says that either may be right."""
    odd = [*calls(2), call(3, "broadcast", ended=False, line=50)]
    (finding,) = found({0: fake_dump(WAITS, 2), 1: fake_dump(odd, 2)})
    assert finding.id == "collective-mismatch" and finding.ranks == (0, 1)
    assert finding.cause.endswith("no side has a majority, so it is unknown which of them is wrong")
    assert finding.detail[UNDECIDED]


def on_nccl(number: int, **more: Any) -> dict[str, Any]:
    return call(number, "broadcast", profiling_name="nccl:broadcast", **more)


def test_backends_of_a_group_number_their_calls_each(found: Any) -> None:
    """`cpu:gloo,cuda:nccl`: rank 2 did not broadcast for the third time, and no call of gloo's with
    that number is taken for it. A rank whose gloo calls were not recorded is not accused."""
    everyone = {rank: [*calls(5), on_nccl(1), on_nccl(2)] for rank in range(RANKS)}
    assert found({rank: fake_dump(made) for rank, made in everyone.items()}) == []
    everyone[3] = everyone[3][5:]
    assert found({rank: fake_dump(made, pg_status={}) for rank, made in everyone.items()}) == []
    for rank in (0, 1, 3):
        everyone[rank] = [*everyone[rank], on_nccl(3, ended=False)]
    (finding,) = found({rank: fake_dump(made) for rank, made in everyone.items()})
    assert finding.ranks == (2,) and finding.cause.startswith(
        "rank 2 never reached broadcast 3 of group 0 (default_pg, nccl), in which ranks 0-1, 3 wait"
    )


def test_dumps_of_a_healthy_job_show_nothing(found: Any) -> None:
    """All calls have ended."""
    assert found({rank: fake_dump(BEHIND) for rank in range(RANKS)}) == []


def test_list_of_torch_2_2_is_read(found: Any) -> None:
    """It has no header, and numbers of its own."""

    def old(number: int, ended: bool) -> dict[str, Any]:
        name = {"profiling_name": "nccl:all_reduce", "pg_id": 0, "seq_id": number}
        return {**name, "state": "completed" if ended else "scheduled", "input_sizes": [[4]]}

    (finding,) = found({0: [old(1, True), old(2, False)], 1: [old(1, True)]})
    assert finding.ranks == (1,) and "all_reduce 2" in finding.cause


def test_hostile_values_are_bounded(found: Any) -> None:
    """Numbers, texts and nesting that torch never writes."""
    shared = [[4]] * 100_000
    entry = call(1, ended=False) | {"input_sizes": shared, "frames": [{}] * 100_000}
    config = {"0": {"ranks": "[0, 999999999999]"}, "1": {"ranks": 3}, "2": None}
    dumps = {
        0: fake_dump(
            [entry] * 50_000, pg_config=config, pg_status={"0": {"last_enqueued_collective": []}}
        ),
        1: fake_dump(
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


@pytest.mark.parametrize(("sent", "absent"), [(0, [0]), (1, [])])
def test_receive_without_its_send(sent: int, absent: list[int], tmp_path: Path) -> None:
    """NCCL records both: rank 1 waits for what rank 0 never sent; not reported if rank 0 sent
    it."""
    directory = PhaseDir(tmp_path)
    send = call(0, "send 0->1", is_p2p=True, ended=False)
    wait = call(0, "recv 1<-0", is_p2p=True, ended=False)
    for rank, entries in enumerate(([send] * sent, [wait])):
        for entry in entries:
            entry["record_id"] = 0
        write_json(directory.rank_flight_recorder(rank), {"entries": [*calls(2), *entries]})
    absences = find_absences(read_flight_records(directory, range(2)), 2)
    assert [rank for absence in absences for rank in absence.absent] == absent


def test_receive_whose_send_may_have_been_overwritten(tmp_path: Path) -> None:
    """In NCCL's recorder, though that of gloo, which comes before it, still has its first call."""
    directory = PhaseDir(tmp_path)
    later = [call(0, f"send {1 - rank}->{rank}", is_p2p=True, record_id=3000) for rank in range(2)]
    wait = call(0, "recv 1<-0", is_p2p=True, ended=False, record_id=3001)
    write_json(directory.rank_flight_recorder(0), {"entries": [*calls(2), later[0]]})
    write_json(directory.rank_flight_recorder(1), {"entries": [*calls(2), later[1], wait]})
    assert find_absences(read_flight_records(directory, range(2)), 2) == []


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
ends = time.monotonic() + 60
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


@pytest.mark.slow
def test_real_dumps_of_gloo_are_read(tmp_path: Path) -> None:
    """Rank 1 did not make the second call, in which rank 0 waits."""
    pytest.importorskip("torch")
    program = [sys.executable, "-c", REAL, str(tmp_path)]
    ranks = [subprocess.Popen([*program, str(rank)]) for rank in range(2)]
    assert [rank.wait(timeout=PATIENCE_S) for rank in ranks] == [0, 0]
    dumps = TorchDumps()
    assert all(dumps.add(tmp_path / f"nccl_trace_rank_{rank}") for rank in range(2))
    (finding,) = dumps.findings()
    assert finding.ranks == (1,) and "never reached all_reduce 2" in finding.cause
    for rank in range(2):
        add_made_nccl_calls(tmp_path / f"nccl_trace_rank_{rank}", 4)
        assert dumps.add(tmp_path / f"nccl_trace_rank_{rank}")
    (finding,) = dumps.findings()
    assert finding.ranks == (1,) and finding.cause.startswith(
        "rank 1 never reached all_reduce 2 of group 0 (default_pg, gloo), in which rank 0 waits"
    )


def add_made_nccl_calls(path: Path, count: int) -> None:
    """Add calls to a dump as NCCL would have recorded them, in its own order from 1, in the same
    group; this torch has no NCCL."""
    dump = pickle.loads(path.read_bytes())
    (entry,) = dump["entries"][:1]
    made = {"profiling_name": "nccl:broadcast", "state": "completed", "retired": True}
    for number in range(1, count + 1):
        own = {"record_id": number - 1, "collective_seq_id": number}
        dump["entries"].append({**entry, **made, **own})
    path.write_bytes(pickle.dumps(dump))


@pytest.mark.parametrize(
    ("name", "expected", "ranks", "words"),
    [
        ("hung", "hang", (1,), "rank 1 never reached all_reduce 14 of group 0"),
        (
            "out_of_step",
            "collective-mismatch",
            (0, 1),
            "rank 0: all_reduce_barrier of [1] Float at /p/train_mlp.py:96 in main; rank 1: "
            "all_reduce of [328320] Float",
        ),
    ],
)
def test_real_dumps_of_nccl_are_read(
    found: Any, name: str, expected: str, ranks: tuple[int, ...], words: str
) -> None:
    """Of torch 2.11 with NCCL 2.28.9, by two ranks on an H100; the last calls, without the names of
    that machine's folders."""
    dumps = json.loads((Path(__file__).parent / f"nccl_recorders/{name}.json").read_text())
    (finding,) = found(dict(enumerate(dumps)), lambda dump: json.dumps(dump).encode())
    assert finding.id == expected and finding.ranks == ranks
    assert words in finding.cause
