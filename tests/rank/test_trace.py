"""Which steps are traced, and where the time of a trace went."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_clustersmoke.evidence.phase_result import PhaseResult
from pytest_clustersmoke.rank.trace import IN_USE, StepTrace, choose_steps, summarize
from tests.faults.table.model import SMALL
from tests.support.harness import SMOKE_TESTS, Suite
from tests.support.leftovers import none_left
from tests.support.outcome import Outcome

MLP = SMOKE_TESTS / "train_mlp.py"


@pytest.mark.parametrize(
    ("count", "warmup", "proven", "chosen"),
    [
        (20, 4, (), range(17, 20)),
        (20, 4, (0, 5, 15, 19), range(16, 19)),
        (8, 1, (0, 5, 7), range(2, 5)),
        (8, 1, (0, 2, 4, 7), range(5, 7)),  # no three in a row
        (4, 0, (0, 3), range(2, 3)),  # step 2 is left to be timed
    ],
)
def test_last_steps_are_traced_that_no_proof_makes_longer(
    count: int, warmup: int, proven: tuple[int, ...], chosen: range
) -> None:
    """Three in a row, or fewer in a short loop: a profiler may slow the steps after it."""
    assert choose_steps(None, None, count, warmup, proven) == (chosen, "")


@pytest.mark.parametrize(
    ("order", "count", "reason"),
    [
        ((None, None), 3, "none of its 3 steps can be traced: they are in the warm-up, proven or"),
        ((5, 9), 8, "its loop has 8 steps, and step 9 was to be traced"),
        ((2, 7), 8, "no step after warm-up would be left to be timed"),
    ],
)
def test_steps_that_cannot_be_traced_have_a_reason(
    order: tuple[int | None, int | None], count: int, reason: str
) -> None:
    """Without a step to time, the phase would have no rate."""
    steps, said = choose_steps(*order, count, 1, {0, count - 1})
    assert not steps and said.startswith(reason)


def test_steps_are_traced_as_asked() -> None:
    """Also those that are proven, or in the warm-up."""
    assert choose_steps(1, 2, 8, 1, {0, 7}) == (range(2), "")


def event(cat: str, name: str, begin_us: float, end_us: float) -> dict[str, Any]:
    """An event of Chrome's format."""
    return {"ph": "X", "cat": cat, "name": name, "ts": begin_us, "dur": end_us - begin_us}


def shares_us(*events: dict[str, Any], on_cuda: bool) -> dict[str, int]:
    shares = summarize([{"ph": "M", "name": "process_name"}, *events], on_cuda)
    return {name: round(value * 1e6) for name, value in shares.items()}


def named(**shares: int) -> dict[str, int]:
    return {f"{name}_s": value for name, value in shares.items()}


def test_kernels_are_counted_by_class_on_cuda() -> None:
    """Annotations, which the device's timeline repeats, are no kernels; neither is what ran before
    the first step. A compiled kernel is one, though the host has an event of its name."""
    shares = shares_us(
        event("user_annotation", "step 4", 0, 100),
        event("cpu_op", "aten::mm", 0, 90),
        event("cpu_op", "triton_poi_fused_add_0", 0, 10),
        event("gpu_user_annotation", "step 4", 0, 100),
        event("gpu_user_annotation", "DistributedDataParallel.forward", 5, 50),
        event("kernel", "sm90_xmma_gemm_f32", -20, 30),
        event("kernel", "triton_poi_fused_add_0", 20, 40),
        event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 30, 60),
        event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 70, 75),
        event("gpu_memset", "Memset (Device)", 75, 80),
        on_cuda=True,
    )
    assert shares == named(span=100, compute=40, communication=30, copy=10, overlapped=10, idle=30)


def test_operators_are_counted_by_class_on_the_cpu() -> None:
    """An operator that copies within another counts as a copy; gloo works in its own threads."""
    shares = shares_us(
        event("user_annotation", "step 4", 0, 50),
        event("user_annotation", "step 5", 50, 100),
        event("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 0, 100),
        event("cpu_op", "aten::linear", 0, 40),
        event("cpu_op", "aten::copy_", 10, 20),
        event("user_annotation", "gloo:all_reduce", 30, 60),
        event("user_annotation", "Optimizer.step#AdamW.step", 60, 100),
        on_cuda=False,
    )
    assert shares == named(span=100, compute=30, communication=30, copy=10, overlapped=10, idle=40)


def test_trace_without_kernels_of_the_device_has_no_shares() -> None:
    """Those of the host's operators would be taken for the GPU's."""
    with pytest.raises(ValueError, match="the profiler recorded no kernel of the device"):
        shares_us(
            event("user_annotation", "step 4", 0, 50),
            event("cpu_op", "aten::mm", 0, 9),
            on_cuda=True,
        )


def test_trace_that_cannot_be_written_has_a_reason(tmp_path: Path) -> None:
    """The training goes on: a full disk is no fault of the steps."""
    tmp_path.joinpath("traces").write_text("")
    trace = StepTrace(range(1), tmp_path / "traces" / "rank_00000.json.gz", on_cuda=False)
    trace.start()
    trace.begin(0)
    trace.end()
    assert (trace.write() or {})["reason"].startswith("FileExistsError: ")


def test_profiler_of_the_program_itself_ends_no_training(tmp_path: Path) -> None:
    """torch has one profiler a process: the program keeps its own, and the trace says why it
    recorded nothing."""
    from torch.profiler import ProfilerActivity, profile

    trace = StepTrace(range(1), tmp_path / "rank_00000.json.gz", on_cuda=False)
    with profile(activities=[ProfilerActivity.CPU]) as own:
        torch.ones(1).add(1)
        trace.start()
        trace.begin(0)
        trace.end()
        assert trace.write() == {"reason": IN_USE}
    assert list(tmp_path.iterdir()) == []
    assert own.key_averages(), "of the program"


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, PhaseResult]:
    """A run of two phases of two ranks, to be traced on both; the loop of one is too short for the
    steps that were asked for."""
    with none_left() as (marker, _):
        suite = Suite(tmp_path_factory.mktemp("traced"), marker, real_torchrun=True)
        for name, steps in (("long", 16), ("short", 8)):
            args = {**SMALL, "steps": steps}
            suite.phase(name, "pass", "Trained", script=MLP, gpus_per_node=2, args=args)
        words = ("--cluster-trace=long", "--cluster-trace=short", "--cluster-trace-steps=7-9")
        outcome = suite.run_apart(*words, "--cluster-trace-ranks=0-1")
    return outcome, outcome.evidence("long")


@pytest.mark.slow
def test_trace_of_each_chosen_rank_is_kept(traced: tuple[Outcome, PhaseResult]) -> None:
    """Chrome's format, with the steps and the collectives; the page links to it."""
    outcome, _ = traced
    assert outcome.ret == 0, outcome.output
    page = (outcome.files.report / "index.html").read_text()
    for rank in range(2):
        name = f"traces/rank_{rank:05d}.json.gz"
        assert f"phases/long/{name}" in page
        with gzip.open(outcome.files.report / "phases" / "long" / name) as stream:
            events = json.load(stream)["traceEvents"]
        names = {event.get("name", "") for event in events}
        assert {"step 7", "step 8", "step 9"} <= names and not {"step 6", "step 10"} & names
        assert "gloo:all_reduce" in names and "aten::addmm" in names


@pytest.mark.slow
def test_time_of_a_trace_is_reported_by_class(traced: tuple[Outcome, PhaseResult]) -> None:
    """In the record and on the terminal."""
    outcome, _ = traced
    for rank, trace in enumerate(outcome.phase("long")["traces"]):
        assert (trace["rank"], trace["first"], trace["last"]) == (rank, 7, 9)
        used_s = trace["compute_s"] + trace["copy_s"] + trace["communication_s"]
        assert trace["compute_s"] > 0 and 0 < trace["communication_s"] < trace["span_s"]
        assert used_s - trace["overlapped_s"] + trace["idle_s"] == pytest.approx(trace["span_s"])
        assert f"long: trace of rank {rank}, steps 7-9" in outcome.output


@pytest.mark.slow
def test_traced_steps_are_left_out_of_the_rates(traced: tuple[Outcome, PhaseResult]) -> None:
    """On every rank, together with the proven ones."""
    _, result = traced
    for rank in result.ranks:
        times = rank.events.last("step_times") or {}
        proven = (rank.events.last("proof_plan") or {})["steps"]
        assert set(times["proven"]) == {step - 1 for step in proven}
        assert times["traced"] == [6, 7, 8]
        left_out = {*times["proven"], *times["traced"]} - {*range(times["warmup"])}
        assert len(rank.step_times_s) == 16 - times["warmup"] - len(left_out)


@pytest.mark.slow
def test_rank_without_a_trace_says_why(traced: tuple[Outcome, PhaseResult]) -> None:
    """The phase passes all the same."""
    outcome, _ = traced
    assert outcome.phase("short")["outcome"] == "passed"
    line = "short: no trace of rank 1: its loop has 8 steps, and step 9 was to be traced"
    assert line in outcome.output
