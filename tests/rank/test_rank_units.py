"""Units of `rank` that need no second process."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_clustersmoke.evidence.run_directory import PhaseDir
from pytest_clustersmoke.evidence.telemetry import Events, read_events
from pytest_clustersmoke.rank import StepLog, steps
from pytest_clustersmoke.rank.checkpoint import checksums, digest, list_files, mismatched_paths
from pytest_clustersmoke.rank.device import choose_device
from pytest_clustersmoke.rank.own_step import OwnStep
from pytest_clustersmoke.rank.process_group import end_gathers_at_once
from pytest_clustersmoke.rank.rank_environment import (
    RankEnvironment,
    RankMisuse,
    TraceOrder,
    read_rank_environment,
)
from pytest_clustersmoke.rank.rank_events import RankEventWriter


@pytest.fixture(autouse=True)
def no_rank_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The test's process is not a rank; changes to its environment are undone after each test."""
    before = dict(os.environ)
    for name in before:
        if name.startswith("CLUSTERSMOKE_") or name.endswith("RANK") or "WORLD_SIZE" in name:
            monkeypatch.delenv(name)
    yield
    monkeypatch.undo()
    for name in set(os.environ) - set(before):
        del os.environ[name]


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RankEnvironment:
    monkeypatch.setenv("CLUSTERSMOKE_PHASE_DIR", str(tmp_path))
    return read_rank_environment()


def step_log(environment: RankEnvironment, count: int, **settings: Any) -> StepLog:
    import torch

    return StepLog(
        events=RankEventWriter(environment),
        device=torch.device("cpu"),
        world_size=4,
        count=count,
        samples_per_rank=8,
        **settings,
    )


def events_of(environment: RankEnvironment) -> Events:
    assert environment.phase_dir is not None
    return read_events(environment.phase_dir.rank_events(environment.rank))


@pytest.mark.parametrize(
    ("stops_after", "fields"),
    [
        (2, {"reason": "the loop stopped before the first step that was to be traced"}),
        (4, {"first": 3, "last": 4}),
        (5, {"first": 3, "last": 5}),
        (6, {"first": 3, "last": 5}),
    ],
)
def test_loop_that_stops_early_has_its_trace_or_a_reason(
    environment: RankEnvironment, tmp_path: Path, stops_after: int, fields: dict[str, Any]
) -> None:
    """The trace has the steps that were done, and the profiler ends with the loop."""
    import torch
    from torch._C._autograd import _profiler_enabled

    path = tmp_path / "traces" / "rank.json.gz"
    log = step_log(environment, 8, trace=TraceOrder(3, 5, path))
    passes = log.passes(calls_begin=True)
    next(passes)
    for _ in range(stops_after):
        log.begin()
        torch.ones(64).add(1).sum()
        log.record()
    log.finish_early()
    (event,) = events_of(environment).named("trace")
    assert {name: event[name] for name in fields} == fields
    assert path.exists() == ("span_s" in event) == ("reason" not in event)
    assert not _profiler_enabled()


def test_plain_python_is_rank_0_of_1() -> None:
    """Without torchrun the master's port is a free port of this machine."""
    environment = read_rank_environment()
    assert (environment.rank, environment.world_size, environment.phase_dir) == (0, 1, None)
    assert os.environ["MASTER_ADDR"] == "127.0.0.1" and int(os.environ["MASTER_PORT"]) > 0


def test_rank_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun's and the launcher's variables say which rank this is."""
    values = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "2"}
    values |= {"CLUSTERSMOKE_NODE_RANK": "2", "CLUSTERSMOKE_NODE_NAME": "n2", "GROUP_RANK": "7"}
    values |= {"CLUSTERSMOKE_PHASE_DIR": "/p", "CLUSTERSMOKE_PG_TIMEOUT_S": "30"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    expected = RankEnvironment(5, 1, 8, 2, 2, "n2", PhaseDir(Path("/p")), "auto", 30.0)
    assert read_rank_environment() == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RANK", "first"),
        ("CLUSTERSMOKE_DEVICE", "gpu"),
        ("CLUSTERSMOKE_PG_TIMEOUT_S", "soon"),
        ("CLUSTERSMOKE_PG_TIMEOUT_S", "-1"),
    ],
)
def test_bad_variable_is_named(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the name and the value of the variable."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name}='{value}'.*expected"):
        read_rank_environment()


def test_missing_cuda_device_is_an_error(environment: RankEnvironment) -> None:
    """With CLUSTERSMOKE_DEVICE=cuda and no device for this rank, the error names torch's build."""
    import torch

    absent = torch.cuda.device_count()
    wanting = dataclasses.replace(environment, wanted_device="cuda", local_rank=absent)
    with pytest.raises(RuntimeError, match=rf"torch {torch.__version__.split('+')[0]}.*built for"):
        choose_device(wanting)


def test_auto_takes_cpu_unless_every_local_rank_has_a_gpu(environment: RankEnvironment) -> None:
    """With fewer GPUs than local ranks all ranks use the CPU, so that they form one group."""
    import torch

    crowded = dataclasses.replace(environment, local_world_size=torch.cuda.device_count() + 1)
    assert choose_device(crowded).type == "cpu"


def test_deepspeed_gets_the_handle_of_a_gather_that_has_ended() -> None:
    """Versions that wait for the last of several gathers alone then compute with whole weights; a
    call that waits itself has no handle."""
    steps: list[str] = []
    work = SimpleNamespace(wait=lambda: steps.append("ended"))

    def gather(output: str, own: str, async_op: bool = False) -> Any:
        steps.append(f"{own} to {output}")
        return work if async_op else None

    comm = SimpleNamespace(all_gather_into_tensor=gather)
    end_gathers_at_once(comm)
    assert comm.all_gather_into_tensor("whole", "part", async_op=True) is work
    assert steps == ["part to whole", "ended"]
    assert comm.all_gather_into_tensor("whole", "part") is None


def test_losses_of_a_long_loop_are_written_in_parts(
    environment: RankEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line would be too long to count as an event."""
    import torch

    monkeypatch.setattr(steps, "LOSSES_A_LINE", 4)
    for count in (8, 9):
        log = step_log(environment, count)
        log.start()
        for step in range(count):
            log.record(torch.tensor(float(step)))
        log.finish()
    parts = [*events_of(environment).named("earlier_losses")]
    assert [part["first"] for part in parts] == [0, 0, 4]
    wholes = [*events_of(environment).named("losses")]
    assert [(whole["first"], whole["mean"]) for whole in wholes] == [(4, [4, 5, 6, 7]), (8, [8])]


def test_steady_figures_leave_the_warm_up_out(environment: RankEnvironment) -> None:
    """steps_per_s is all steps over their wall time; samples_per_s counts all ranks' samples."""
    import torch

    log = step_log(environment, 20, tokens_per_rank=100)
    assert log.warmup == 4
    log.start()
    for step in range(20):
        log.record(torch.tensor(1.0 - step / 20))
    log.finish()
    events = events_of(environment)
    values = next(events.named("metrics"))["values"]
    seconds = next(events.named("step_times"))["seconds"]
    assert values["samples_per_s"] == pytest.approx(values["steps_per_s"] * 8 * 4)
    assert values["tokens_per_s_per_rank"] == pytest.approx(values["steps_per_s"] * 100)
    assert values["steady_steps_per_s"] == pytest.approx(16 / sum(seconds[4:]))
    assert values["final_loss"] == pytest.approx(0.05)
    assert values["step_time_p95_s"] in seconds[4:]
    assert [record["step"] for record in events.named("step")] == [1, 20]
    stages = [(record["name"], record["state"]) for record in events.named("stage")]
    assert stages == [("train", "begin"), ("train", "end")]
    assert next(events.named("stage"))["steps"] == 20  # shows that it trains


class Clock:
    """Stands in for `time`: it moves only while something works on purpose, so that what else runs
    on this machine cannot show in the times."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


class SlowMeasurement(OwnStep):
    """An own step that takes 0.3 s to measure."""

    def __init__(self, clock: Clock) -> None:
        self.measured_after: list[int] = []
        self.clock = clock

    def measure(self, index: int, progress: Callable[[], None]) -> None:
        self.measured_after.append(index)
        self.clock.now += 0.3
        progress()

    typical_s = 0.07

    def fields(self) -> dict[str, Any]:
        return {"seconds": [0.07]}


def test_rates_leave_the_own_step_out(
    environment: RankEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is measured after warm-up and after the last step, in no step's time and in no rate."""
    clock = Clock()
    monkeypatch.setattr("pytest_clustersmoke.rank.steps.time", clock)
    own_step = SlowMeasurement(clock)
    log = step_log(environment, 10, own_step=own_step)
    log.start()
    for _ in range(10):
        clock.now += 0.05
        log.local_done()
        log.record()
    values = log.finish()
    times = next(events_of(environment).named("step_times"))
    assert own_step.measured_after == [1, 9]
    assert values["own_step_s"] == 0.07 and values["steps_per_s"] > 10 / 0.6
    assert max(*times["seconds"], *times["local_seconds"]) < 0.3
    assert next(events_of(environment).named("own_steps"))["seconds"] == [0.07]


def test_nan_loss_is_recorded(environment: RankEnvironment) -> None:
    """A NaN loss is recorded as NaN and makes the rank's losses not finite."""
    log = step_log(environment, 2)
    log.start()
    log.record(1.0)
    log.record(float("nan"))
    log.finish()
    losses = next(events_of(environment).named("losses"))
    assert losses["mean"] == [1.0, "nan"]
    assert losses["local_finite"] is False and losses["local_final"] == "nan"
    assert losses["local_first"] == [1.0, "nan"]
    assert losses["not_finite_at"] == 2


def test_own_work_of_a_step_is_timed_to_its_first_mark(environment: RankEnvironment) -> None:
    """The first of several marks in a step counts; it lies within the step."""
    log = step_log(environment, 3)
    log.start()
    for _ in range(3):
        log.local_done()
        log.local_done()
        log.record()
    log.finish()
    times = next(events_of(environment).named("step_times"))
    assert times["warmup"] == log.warmup and len(times["local_seconds"]) == 3
    pairs = zip(times["local_seconds"], times["seconds"], strict=True)
    assert all(0 <= own < whole for own, whole in pairs)


BUSY = "import os\nos.sched_setaffinity(0, {%d})\nprint(flush=True)\nwhile True: pass"


def test_rank_that_waits_for_a_core_is_not_slow(environment: RankEnvironment) -> None:
    """Other processes on its core make its steps longer, but not its own part of them; time in
    which it sleeps, as for a file, belongs to that."""
    cores = os.sched_getaffinity(0)
    core = min(cores)
    log = step_log(environment, 2)
    with ExitStack() as stack:
        for _ in range(3):
            words = [sys.executable, "-c", BUSY % core]
            busy = stack.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE))
            stack.callback(busy.kill)
            assert busy.stdout is not None and busy.stdout.readline()
        stack.callback(os.sched_setaffinity, 0, cores)
        os.sched_setaffinity(0, {core})
        log.start()
        until = time.thread_time() + 0.3
        while time.thread_time() < until:
            pass
        log.local_done()
        log.record()
        time.sleep(0.3)
        log.local_done()
        log.record()
    log.finish()
    times = next(events_of(environment).named("step_times"))
    contended, slept = times["local_seconds"]
    assert 0.29 < contended < times["seconds"][0] / 2
    assert 0.29 < slept < 0.6


def test_own_work_is_not_timed_if_a_step_has_no_mark(environment: RankEnvironment) -> None:
    """Without a mark in every step, a time cannot be assigned to its step."""
    log = step_log(environment, 2)
    log.start()
    log.local_done()
    log.record()
    log.record()
    log.finish()
    assert next(events_of(environment).named("step_times"))["local_seconds"] == []


def test_steps_without_a_loss_write_no_losses(environment: RankEnvironment) -> None:
    """They write times only."""
    log = step_log(environment, 2)
    log.start()
    log.record()
    log.record()
    log.finish()
    events = events_of(environment)
    assert events.last("losses") is None
    assert "final_loss" not in next(events.named("metrics"))["values"]


def test_step_log_refuses_miscounted_steps(environment: RankEnvironment) -> None:
    """Fewer or more steps than `count` are an error, not a wrong rate."""
    log = step_log(environment, 1)
    log.start()
    with pytest.raises(RankMisuse, match=r"0 steps recorded before finish\(\); expected 1"):
        log.finish()
    log.record(1.0)
    with pytest.raises(RankMisuse, match="recorded after the last; expected 1 step"):
        log.record(1.0)
    with pytest.raises(RankMisuse, match="fewer than count=3"):
        step_log(environment, 3, warmup=3)


def test_digests_differ_where_states_differ_in_a_bit() -> None:
    """Equal bits are equal, NaN included; a different dtype, shape, bit, key or value is named."""
    import torch

    def state(**changes: Any) -> dict[str, Any]:
        tensors = {"nan": torch.tensor([float("nan"), 0.0]), "half": torch.ones(2, 3).bfloat16()}
        return tensors | {"groups": [{"lr": 1e-4, "betas": (0.9, 0.999)}], "empty": None} | changes

    original = digest(state())
    assert not mismatched_paths(original, digest(state()))
    assert original.tensors == 2
    changes: dict[str, Any] = {
        "nan": torch.tensor([float("nan"), -0.0]),
        "half": torch.ones(2, 3).half(),
        "empty": 0,
    }
    for name, value in changes.items():
        assert mismatched_paths(original, digest(state(**{name: value}))) == [name]
    assert mismatched_paths(original, digest(state(half=torch.ones(3, 2).bfloat16()))) == ["half"]
    groups = [{"lr": 1e-3, "betas": (0.9, 0.999)}]
    assert mismatched_paths(original, digest(state(groups=groups))) == ["groups[0].lr"]
    assert "more" in mismatched_paths(original, digest(state(more=torch.ones(1))))


def test_digests_do_not_depend_on_addresses() -> None:
    """Objects are compared by their attributes, even if one refers to itself."""

    class Scaler:
        def __init__(self, scale: float) -> None:
            self.scale = scale
            self.me = self

    first, same, other = (digest({"scaler": Scaler(scale)}) for scale in (1.0, 1.0, 2.0))
    assert not mismatched_paths(first, same)
    assert mismatched_paths(first, other) == ["scaler.scale"]


def test_files_are_listed_with_bytes(tmp_path: Path) -> None:
    """Every file below the directory is listed, by its name relative to it."""
    (tmp_path / "tag").mkdir()
    (tmp_path / "tag" / "model.pt").write_bytes(b"1234")
    (tmp_path / "latest").write_bytes(b"tag")
    expected = [{"name": "latest", "bytes": 3}, {"name": "tag/model.pt", "bytes": 4}]
    assert list_files(tmp_path) == expected


def test_changed_value_changes_the_hash_of_a_digest() -> None:
    """Ranks with different data have different hashes; the order of keys does not matter."""
    same = {"a": [1, 2], "b": [3]}
    assert digest(same).hex == digest({"b": [3], "a": [1, 2]}).hex
    assert digest(same).hex != digest({"a": [1, 4], "b": [3]}).hex


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int8"])
def test_checksum_changes_with_any_element(dtype: str) -> None:
    """Equal bits give equal sums; one changed bit or two swapped elements give a different one."""
    import torch

    weights = torch.randn(50, 3, generator=torch.Generator().manual_seed(1)) * 50
    weights = weights.to(getattr(torch, dtype))

    def checksum(tensor: torch.Tensor) -> int:
        return checksums([("weight", tensor)], torch.device("cpu"))["weight"]

    assert checksum(weights.clone()) == checksum(weights)
    for index in (0, 77, 149):
        changed = weights.clone()
        changed.view(-1)[index] = -changed.view(-1)[index]
        assert checksum(changed) != checksum(weights)
    assert checksum(weights.flip(0)) != checksum(weights)
