"""What a rank measures of its device before it trains."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_clustersmoke.evidence.node_measurement import read_measurement
from pytest_clustersmoke.evidence.run_directory import PhaseDir, RunDir, write_json
from pytest_clustersmoke.evidence.screen_files import ScreenFiles
from pytest_clustersmoke.rank import (
    gpu_load,
    known_answer,
    memory_speed,
    network_cards,
    pair_copies,
    peaks,
    process_group,
)
from pytest_clustersmoke.rank.known_answer import KnownAnswer, choose_precision
from pytest_clustersmoke.rank.memory_speed import parse_cpulist
from pytest_clustersmoke.rank.overlap import share_hidden
from pytest_clustersmoke.rank.peaks import Peaks
from pytest_clustersmoke.rank.rank_environment import PeakOrder, RankEnvironment
from tests.rank.conftest import RUN_WITHIN_S, Run, rank_environment, started
from tests.support.waiting import wait_for_end

CPU = torch.device("cpu")
Multiply = Callable[[], torch.Tensor]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank without a group, and little work."""
    monkeypatch.setattr(process_group, "barrier", lambda device: 0.0)
    monkeypatch.setattr(process_group, "any_rank", lambda holds, device: holds)
    monkeypatch.setattr(known_answer, "CALLS", 50)
    monkeypatch.setattr(memory_speed, "LATENCY_WORDS", 2**12)
    monkeypatch.setattr(memory_speed, "HOPS", 1000)
    monkeypatch.setattr(memory_speed, "HOST_BYTES", 2**16)


def rank_of(
    folder: Path, phase: str, multiply: Callable[[Multiply], torch.Tensor], **changes: Any
) -> Peaks:
    """What measures for rank 0 of a phase of this run."""
    place = PhaseDir(folder / "phases" / phase)
    values: dict[str, Any] = {
        "rank": 0,
        "local_rank": 0,
        "world_size": 1,
        "local_world_size": 1,
        "node_rank": 0,
        "node": "n0",
        "phase_dir": place,
        "wanted_device": "cpu",
        "timeout_s": 60.0,
    }
    order = PeakOrder(RunDir(folder), phase, changes.pop("always", False), "")
    identity = changes.pop("identity", "")
    environment = RankEnvironment(**{**values, **changes})
    device = f"{environment.node}/cpu:{environment.local_rank}"
    return Peaks(environment, order, CPU, identity or device, multiply)


def call(multiply: Multiply) -> torch.Tensor:
    return multiply()


def test_device_and_node_are_measured_once_in_a_run(tmp_path: Path, quick: None) -> None:
    """The first phase measures both; the second names the first, and measures nothing."""
    first = rank_of(tmp_path, "one", call)
    assert first.claim()
    fields = first.measure()
    measured = {(figure["device"], figure["name"]) for figure in fields["figures"]}
    assert measured == {
        ("n0/cpu:0", "gemm_fp32_tflops"),
        ("", "cpu_copy_gb_per_s"),
        ("", "cpu_latency_ns"),
    }
    assert all(len(figure["rounds"]) == peaks.ROUNDS for figure in fields["figures"])
    assert all(figure["value"] > 0 for figure in fields["figures"])
    assert (fields["calls"], fields["wrong"], fields["not_measured"]) == (50, 0, {})
    first.mark_done()
    second = rank_of(tmp_path, "two", call)
    assert not second.claim()
    assert second.fields()["measured_in"] == "one" and second.fields()["figures"] == []
    assert second.fields()["not_measured"] == {}
    assert rank_of(tmp_path, "two", call, node="n1").claim()
    assert rank_of(tmp_path, "two", call, local_rank=1).claim()


def test_later_job_of_the_same_phase_measures_again(tmp_path: Path, quick: None) -> None:
    """The job that had the device may have died before it wrote anything."""
    assert rank_of(tmp_path, "one", call).claim()
    again = PhaseDir(tmp_path / "phases" / "one" / "attempt-1")
    assert rank_of(tmp_path, "one", call, phase_dir=again).claim()
    assert not rank_of(tmp_path, "two", call).claim()
    assert rank_of(tmp_path, "two", call, always=True).claim()


def test_measurement_that_did_not_finish_is_named(tmp_path: Path, quick: None) -> None:
    """The job that began it may have died of it: the device does not count as measured."""
    assert rank_of(tmp_path, "one", call).claim()
    later = rank_of(tmp_path, "two", call)
    assert not later.claim()
    fields = later.fields()
    assert fields["measured_in"] == ""
    assert fields["not_measured"] == {
        "device": "phase one began to measure it, and has not finished"
    }
    later.mark_done()  # what it did not measure itself is not done
    assert rank_of(tmp_path, "three", call).claim() is False
    assert not list((tmp_path / "peaks").glob("*.done"))


def test_gpu_without_uuid_is_measured_in_each_phase(tmp_path: Path, quick: None) -> None:
    """On a shared node it may be another one each time."""
    for phase in ("one", "two"):
        rank = rank_of(tmp_path, phase, call, node="n7", identity="n7/cuda:0")
        assert rank.claim()
        rank.mark_done()


def test_pairs_are_those_of_the_rank(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Local rank 0 shares what a process of its own found; a CPU stands for the GPU here."""
    rows = [{"from": at, "to": 1 - at, "link": "NVLink", "gb_per_s": 9.0} for at in range(2)]
    shared: dict[str, str] = {}

    def share(key: str, text: str | None, within_s: float) -> str:
        return shared.setdefault(key, text or "")

    monkeypatch.setattr(process_group, "share_text", share)
    monkeypatch.setattr(process_group, "any_rank", lambda holds, device: True)
    monkeypatch.setattr(pair_copies, "measure_alone", lambda: json.dumps({"pairs": rows}))
    monkeypatch.setattr(network_cards, "measure_cards", list)
    for local_rank, row in enumerate(rows):
        rank = rank_of(tmp_path, "one", call, local_rank=local_rank, local_world_size=2)
        rank.claim()
        rank._of_pairs = local_rank == 0
        rank._measure_links()
        assert rank.fields()["pairs"] == [row] and rank.fields()["not_measured"] == {}


def test_cards_are_measured_before_other_ranks_go_on(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By local rank 0, once; the others wait for the text that it shares when all is measured."""
    order: list[str] = []
    rows = [{"name": "mlx5_0:1", "gb_per_s": 24.0}]

    def share(key: str, text: str | None, within_s: float) -> str:
        order.append("shared")
        return text or "{}"

    def measure_cards() -> list[dict[str, Any]]:
        order.append("cards")
        return rows

    monkeypatch.setattr(process_group, "share_text", share)
    monkeypatch.setattr(process_group, "any_rank", lambda holds, device: True)
    monkeypatch.setattr(pair_copies, "measure_alone", lambda: "{}")
    monkeypatch.setattr(network_cards, "measure_cards", measure_cards)
    for local_rank in range(2):
        rank = rank_of(tmp_path, "one", call, local_rank=local_rank, local_world_size=2)
        rank.claim()
        rank._of_cards = local_rank == 0
        rank._measure_links()
        assert rank.fields()["cards"] == ([] if local_rank else rows)
    assert order == ["cards", "shared", "shared"]


def test_cards_are_measured_once_for_any_number_of_gpus(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A phase with more GPUs of the node measures their pairs anew, and no card."""
    monkeypatch.setattr(process_group, "any_rank", lambda holds, device: holds)
    claims = []
    for phase, count in (("one", 2), ("two", 4)):
        rank = rank_of(tmp_path, phase, call, local_world_size=count)
        rank._device = torch.device("cuda")
        rank.claim()
        claims.append((rank._of_pairs, rank._of_cards))
    assert claims == [(True, True), (True, False)]


def test_pairs_that_were_not_measured_have_the_reason(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On local rank 0; and where nobody shares them."""
    words = json.dumps({"why": "no answer within 60 s"})
    monkeypatch.setattr(process_group, "share_text", lambda key, text, within_s: text or words)
    monkeypatch.setattr(pair_copies, "measure_alone", lambda: words)
    monkeypatch.setattr(network_cards, "measure_cards", list)
    rank = rank_of(tmp_path, "one", call)
    rank._of_pairs = True
    rank._measure_links()
    assert rank.fields()["not_measured"] == {"pairs of GPUs": "no answer within 60 s"}

    def wait(key: str, text: str | None, within_s: float) -> str:
        raise RuntimeError("wait timeout")

    monkeypatch.setattr(process_group, "share_text", wait)
    rank._measure_links()
    assert rank.fields()["not_measured"] == {"pairs of GPUs": "RuntimeError: wait timeout"}


def test_clock_and_power_are_figures_of_the_device(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read while it multiplies; a CPU stands for the GPU, and NVML is made up."""
    reading = gpu_load.LoadReading({gpu_load.CLOCK: 1755.0, gpu_load.POWER: 690.0}, 0x4)
    monkeypatch.setattr(gpu_load, "open_gpu", lambda uuid: lambda: reading)
    monkeypatch.setattr(gpu_load, "LOAD_S", 0.0)
    rank = rank_of(tmp_path, "one", call)
    rank.claim()
    fields = rank.measure()
    found = {figure["name"]: (figure["value"], figure["unit"]) for figure in fields["figures"]}
    assert found["sm_clock_under_load_mhz"] == (1755.0, "MHz")
    assert found["power_under_load_watts"] == (690.0, "W")
    assert fields["clock_event_reasons"] == 4 and fields["not_measured"] == {}


def test_cpus_have_no_pairs(tmp_path: Path, quick: None) -> None:
    """Nor has a GPU alone: nothing is claimed for them."""
    rank = rank_of(tmp_path, "one", call, local_world_size=2)
    rank.claim()
    assert [path.name for path in (tmp_path / "peaks").glob("*pairs*")] == []


def test_wrong_answer_is_counted(quick: None) -> None:
    """One element of one product; the other answers agree."""
    calls = 0

    def change_one(multiply: Multiply) -> torch.Tensor:
        nonlocal calls
        calls += 1
        product = multiply()
        if calls == 20:
            product[3, 5] += 1e-3
        return product

    known = KnownAnswer(CPU, "fp32", change_one)
    for _ in range(2):
        known.check(2)
    fields = known.fields()
    assert (fields["calls"], fields["wrong"]) == (50, 1)


def test_same_matrices_give_the_same_answer_in_another_rank(quick: None) -> None:
    """The seed is fixed, and the program's own random numbers stay as they are."""
    before = torch.get_rng_state()
    answers = set()
    for _ in range(2):
        known = KnownAnswer(CPU, "bf16", call)
        known.check(25)
        answers.add(known.fields()["answer"])
    assert len(answers) == 1
    assert torch.equal(torch.get_rng_state(), before)


def test_repeated_work_makes_the_figure_smaller() -> None:
    """By CPU time, so that the load of the machine does not matter."""

    def thrice(multiply: Multiply) -> torch.Tensor:
        multiply(), multiply()
        return multiply()

    with known_answer.one_thread():
        usual, slow = (
            max(KnownAnswer(CPU, "fp32", how).time() for _ in range(3)) for how in (call, thrice)
        )
    assert slow < usual / 2


def test_what_cannot_be_measured_has_its_reason(tmp_path: Path, quick: None) -> None:
    """The rank goes on, and the other figures are there."""

    def refuse(multiply: Multiply) -> torch.Tensor:
        raise RuntimeError("no such kernel")

    rank = rank_of(tmp_path, "one", refuse)
    assert rank.claim()
    fields = rank.measure()
    assert fields["not_measured"] == {"gemm_fp32_tflops": "RuntimeError: no such kernel"}
    assert {figure["name"] for figure in fields["figures"]} == {
        "cpu_copy_gb_per_s",
        "cpu_latency_ns",
    }


def test_claims_that_cannot_be_written_measure_nothing(tmp_path: Path, quick: None) -> None:
    """A run directory that is a file, as after a wrong clean-up."""
    (tmp_path / "peaks").write_text("")
    rank = rank_of(tmp_path, "one", call)
    assert not rank.claim()
    assert rank.fields()["figures"] == []


def test_latency_visits_every_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """One circle: after as many hops as there are words the walk is back, and not before."""
    monkeypatch.setattr(memory_speed, "LATENCY_WORDS", 257)
    memory = memory_speed.HostMemory()
    words = memory._words  # its memory is the object's
    at, seen = 0, set()
    for _ in range(257):
        seen.add(at)
        at = words[at]
    assert at == 0 and len(seen) == 257


@pytest.mark.parametrize(
    ("asked", "expected"), [("fp16", "fp16"), ("bfloat16", "bf16"), ("", "fp32"), ("int8", "fp32")]
)
def test_precision_is_that_of_the_training(asked: str, expected: str) -> None:
    """Unless it is unknown."""
    assert choose_precision(asked, CPU) == expected


@pytest.mark.parametrize(
    ("both_s", "share"), [(2.0, 1.0), (3.0, 0.0), (2.5, 0.5), (1.0, 1.0), (9.0, 0.0)]
)
def test_hidden_share(both_s: float, share: float) -> None:
    """Of a reduction of 1 s beside multiplications of 2 s."""
    assert share_hidden(2.0, 1.0, both_s) == pytest.approx(share)
    assert share_hidden(0.0, 1.0, 1.0) == 0.0


def test_memory_is_near_only_where_the_kernel_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where this process may use a core beside the device; its cores are as before."""
    own = os.sched_getaffinity(0)
    for cores, expected in ((own, True), (set[int](), False), ({max(own) + 1}, False)):
        monkeypatch.setattr(memory_speed, "_cores_near", lambda device, cores=cores: cores)
        with memory_speed.near_device(CPU) as is_near:
            assert is_near is expected
        assert os.sched_getaffinity(0) == own


def test_cores_of_the_kernel_are_read() -> None:
    """As in /sys/bus/pci/devices/*/local_cpulist."""
    assert parse_cpulist("0-2,8\n") == {0, 1, 2, 8} and parse_cpulist("\n") == set()


@pytest.mark.slow
def test_ranks_measure_between_init_and_the_program(torchrun: Callable[..., Run]) -> None:
    """The stage is no part of `init`, its time stands in its own stage, and the peak of memory that
    the kernel counts is the program's again."""
    began = time.monotonic()
    run = torchrun("open_group.py", ranks=2, peaks="always")
    assert run.status == 0, run.output
    for rank in range(2):
        stages = [(e["name"], e["state"]) for e in run.events(rank).named("stage")]
        assert stages == [
            ("init", "begin"),
            ("init", "end"),
            ("peaks", "begin"),
            ("peaks", "end"),
        ]
        event = run.only("peaks", rank)
        assert 0 < event["seconds"] < time.monotonic() - began
        assert event["not_measured"] == {} and event["wrong"] == 0
        names = [figure["name"] for figure in event["figures"]]
        assert names == [
            "gemm_fp32_tflops",
            *(["cpu_copy_gb_per_s", "cpu_latency_ns"] * (not rank)),
        ]
    answers = {run.only("peaks", rank)["answer"] for rank in range(2)}
    assert len(answers) == 1


@pytest.mark.slow
def test_never_measures_nothing(torchrun: Callable[..., Run]) -> None:
    """No stage, no event."""
    run = torchrun("open_group.py", ranks=1, peaks="never")
    assert run.status == 0, run.output
    assert {event["name"] for event in run.events().named("stage")} == {"init"}
    assert not list(run.events().named("peaks"))


def test_spec_without_the_key_measures_nothing(tmp_path: Path) -> None:
    """As one that an older version wrote."""
    from pytest_clustersmoke.rank.rank_environment import _read_peaks

    phase = PhaseDir(tmp_path / "phases" / "one")
    assert _read_peaks({"phase": "one"}, phase) is None
    later = PhaseDir(phase.root, attempt=1)
    spec = {"phase": "one", "peaks": "once", "args": {"precision": "bf16"}}
    assert _read_peaks(spec, later) is None
    order = _read_peaks(spec, phase)
    assert order is not None and (order.run.root, order.precision) == (tmp_path, "bf16")
    retried = _read_peaks(spec, PhaseDir(phase.root / "attempt-2"))
    assert retried is not None and retried.run.root == tmp_path
    write_json(phase.spec, spec)


def test_node_is_measured_outside_of_any_phase(tmp_path: Path) -> None:
    """By its own ranks, which write one file with all figures, as a screen reads them, and nothing
    else."""
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    path, place = ScreenFiles(tmp_path).figures("n0"), tmp_path / "place"
    place.mkdir()
    names = {"CLUSTERSMOKE_FIGURES": str(path), "CLUSTERSMOKE_NODE_NAME": "n0"}
    with started(
        [*line, "-m", "pytest_clustersmoke.rank.peaks"], {**rank_environment(None), **names}, place
    ) as process:
        output = wait_for_end(process, RUN_WITHIN_S)
    assert process.returncode == 0, output
    assert list(place.iterdir()) == [] and list(path.parent.iterdir()) == [path]
    found = read_measurement(ScreenFiles(tmp_path), "n0")
    assert [(each.identity, each.local_rank, each.wrong) for each in found.devices] == [
        ("n0/cpu:0", 0, 0),
        ("n0/cpu:1", 1, 0),
    ]
    assert all(each.model and each.calls and not each.not_measured for each in found.devices)
    named = [(figure.device, figure.name) for figure in found.figures]
    host = [("", "cpu_copy_gb_per_s"), ("", "cpu_latency_ns")]
    gemm = "gemm_fp32_tflops"
    assert named == [("n0/cpu:0", gemm), *host, ("n0/cpu:1", gemm)]
