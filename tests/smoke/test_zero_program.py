"""train_zero.py at each stage and precision under real torchrun, in healthy and in faulty runs."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.rank.conftest import SMOKE_TESTS
from tests.smoke.agents import break_program, check_fails, run_program
from tests.support.evidence import Evidence
from tests.support.needs import need_packages

need_packages("deepspeed")
suite: Any = importlib.import_module("test_zero")

PROGRAM = SMOKE_TESTS / "train_zero.py"
ARGS = {**suite.SMALL, "layers": 1, "steps": 10}
ZERO2 = {**ARGS, "stage": 2, "precision": "fp16"}
ZERO3 = {**ARGS, "stage": 3, "precision": "bf16", "offload": "cpu"}
PROVEN = (
    "test_gradients_are_in_sync",
    "test_repeated_steps_give_the_same_gradients",
    "test_precision_is_the_one_declared",
    "test_loss_is_finite_on_every_rank",
    "test_loss_over_all_ranks_falls",
    "test_reloaded_checkpoint_equals_the_saved",
)
SETTINGS = (
    "test_engine_clips_and_buckets_as_asked",
    "test_global_batch_is_micro_batch_times_ranks",
    "test_engine_trains_in_the_precision_asked_for",
    "test_loss_scale_is_found",
)


GIVEN = {"precision": "fp16", "clip": 0.5, "accumulation": 4, "offload": "cpu"}
OF_FP16 = {
    "precision": "fp16",
    "parameter_dtypes": ["torch.float16"],
    "gradient_clipping": 0.5,
    "reduce_bucket_size": ARGS["bucket_size"],
    "allgather_bucket_size": ARGS["bucket_size"],
    "train_batch_size": 4 * ARGS["micro_batch"],
    "skipped_steps": 2,
    "loss_scale": 2.0**14,
    "optimizer": "DeepSpeedCPUAdam",
}
SHIPPED = {
    "precision": "bf16",
    "parameter_dtypes": ["torch.bfloat16"],
    "gradient_clipping": 1.0,
    "train_batch_size": ARGS["micro_batch"],
    "optimizer": "FusedAdam",
}


@pytest.mark.parametrize("phase", ["TestZeroOneOnTwoGpus", "TestZeroThreeOnTwoNodes"])
def test_engine_is_judged_by_what_the_phase_asks_for(tmp_path: Path, phase: str) -> None:
    """Where its arguments say nothing, by what the program takes then."""

    def judge(folder: str, args: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
        """The criteria that fail, or that judge nothing."""
        evidence = Evidence(tmp_path / folder, args={**ARGS, **args})
        view = evidence.each("start", device="cuda:0").each("fact", values=facts).result()
        failed = []
        for name in (*SETTINGS, "test_fused_adam_is_compiled_on_cuda"):
            try:
                getattr(getattr(suite, phase)(), name)(view)
            except (AssertionError, pytest.skip.Exception):
                failed.append(name)
        return failed

    assert judge("given", GIVEN, OF_FP16) == []
    assert judge("shipped", {}, {**OF_FP16, **SHIPPED}) == ["test_loss_scale_is_found"]
    for fact, value in {**SHIPPED, "skipped_steps": 4, "loss_scale": 0.5}.items():
        assert len(judge(fact, GIVEN, {**OF_FP16, fact: value})) == 1, fact


def test_defaults_are_those_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [f"--{name.replace('_', '-')}={value}" for name, value in {**ARGS, "stage": 1}.items()]
    monkeypatch.setattr(sys, "argv", ["train_zero.py", *words])
    args = vars(importlib.import_module("train_zero").parse_args())
    assert {name: args[name] for name in suite.DEFAULTS} == suite.DEFAULTS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "precision", "offload"),
    [(2, "bf16", "none"), (2, "fp16", "cpu"), (3, "bf16", "none"), (3, "fp16", "cpu")],
)
def test_combinations_that_the_ladder_leaves_out(
    tmp_path: Path, stage: int, precision: str, offload: str
) -> None:
    args = {**ARGS, "stage": stage, "precision": precision, "offload": offload, "clip": 0.5}
    outcome = run_program(PROGRAM, tmp_path, args, per_node=3)
    assert outcome.statuses == [0], outcome.output
    criteria = criteria_of(args)
    for name in (
        *PROVEN,
        "test_engine_has_the_zero_stage_asked_for",
        "test_checkpoint_has_one_optimizer_file_a_rank",
        "test_checkpoint_has_the_size_its_parameters_demand",
        *(SETTINGS if precision == "fp16" else SETTINGS[:-1]),
    ):
        getattr(criteria, name)(outcome.phase)
    assert outcome.phase.fact("offload_optimizer") == offload
    criteria.test_whole_model_loads_in_plain_torch(outcome.phase)
    if stage == 3:
        criteria.test_each_rank_holds_its_share(outcome.phase)
        criteria.test_weights_and_optimizer_are_offloaded(outcome.phase)


WITH_CONFIG = """
config_of = program.deepspeed_config
def changed(args, rank):
    config = config_of(args, rank)
    {change}
    return config
program.deepspeed_config = changed
"""


@pytest.mark.parametrize(
    ("args", "change", "criterion", "words"),
    [
        pytest.param(
            ZERO2,
            "config['fp16']['initial_scale_power'] = 60",
            "test_loss_scale_is_found",
            "the scaler skipped 10 of 10 steps; expected 3 at most",
            id="gradients_overflow_at_every_scale",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ZERO2,
            "config['zero_optimization']['stage'] = 1",
            "test_engine_has_the_zero_stage_asked_for",
            "assert 1 == 2",
            id="another_stage",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ZERO3,
            "del config['zero_optimization']['offload_param']",
            "test_weights_and_optimizer_are_offloaded",
            "('offload_param', 'none')",
            id="weights_not_offloaded",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ZERO3,
            "config['zero_optimization']['stage'] = 2; "
            "del config['zero_optimization']['offload_param']",
            "test_each_rank_holds_its_share",
            "shares of the parameters by rank: {0: 1.0, 1: 1.0}; expected 1/2 each",
            id="weights_not_partitioned",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ZERO3,
            "config['zero_optimization']['stage3_gather_16bit_weights_on_model_save'] = False",
            "test_whole_model_loads_in_plain_torch",
            "model_16bit.pt",
            id="whole_model_not_gathered",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_broken_configuration_fails_its_criterion(
    tmp_path: Path, args: Mapping[str, Any], change: str, criterion: str, words: str
) -> None:
    broken = break_program(tmp_path, "train_zero", WITH_CONFIG.format(change=change))
    outcome = run_program(broken, tmp_path, args)
    assert outcome.statuses == [0], outcome.output
    check_fails(getattr(criteria_of(args), criterion), outcome.phase, words)


@pytest.mark.slow
def test_block_is_measured_while_parameters_are_fetched_ahead(tmp_path: Path) -> None:
    """Of a large model DeepSpeed keeps no parameter, and after a forward pass some that it expects
    next are still on their way."""
    change = """config['zero_optimization'].update(
        stage3_param_persistence_threshold=0, stage3_max_reuse_distance=0,
        stage3_prefetch_bucket_size=60_000)"""
    broken = break_program(tmp_path, "train_zero", WITH_CONFIG.format(change=change))
    outcome = run_program(broken, tmp_path, {**ZERO3, "layers": 6})
    assert outcome.statuses == [0], outcome.output
    assert outcome.phase.metric("own_step_s").value > 0
    criteria_of(ZERO3).test_repeated_steps_give_the_same_gradients(outcome.phase)


MOVED = """
find_devices = program.find_devices
def with_moved(engine):
    state = next(iter(engine.optimizer.optimizer.state.values()))
    kept, state["exp_avg"] = state["exp_avg"], state["exp_avg"].to("meta")
    facts = find_devices(engine)
    state["exp_avg"] = kept
    return facts
program.find_devices = with_moved
"""


@pytest.mark.slow
def test_devices_are_those_of_the_tensors(tmp_path: Path) -> None:
    """The settings say that all is offloaded, but the moments are on another device, in place of a
    GPU."""
    outcome = run_program(break_program(tmp_path, "train_zero", MOVED), tmp_path, ZERO3)
    assert outcome.statuses == [0], outcome.output
    criterion = suite.TestZeroThreeOnTwoNodes().test_weights_and_optimizer_are_offloaded
    check_fails(criterion, outcome.phase, "'moments': ['meta']}; expected {'weights'")


def criteria_of(args: Mapping[str, Any]) -> Any:
    """Those of the phase with these arguments."""
    return suite.TestZeroThreeOnTwoNodes() if args["stage"] == 3 else suite.TestZeroTwoOnFourNodes()


UNREDUCED = {
    2: "engine.optimizer.average_tensor = lambda *given, **named: None",
    3: "comm.reduce_scatter_fn = lambda *given, **named: type('Done', (), {'wait': print})",
}


@pytest.mark.slow
@pytest.mark.parametrize("args", [ZERO2, ZERO3], ids=["zero2_in_fp16", "zero3"])
def test_missing_reductions_are_found(tmp_path: Path, args: Mapping[str, Any]) -> None:
    """Also where gradients are scaled, and where they are scattered."""
    change = (
        "read_back = program.read_back\n"
        "def unreduced(engine):\n"
        "    import deepspeed.comm as comm\n"
        "    facts = read_back(engine)\n"
        f"    {UNREDUCED[args['stage']]}\n"
        "    return facts\n"
        "program.read_back = unreduced"
    )
    outcome = run_program(break_program(tmp_path, "train_zero", change), tmp_path, args)
    assert outcome.statuses == [0], outcome.output
    criterion = criteria_of(args).test_gradients_are_in_sync
    check_fails(criterion, outcome.phase, "gradients are not in sync on")


@pytest.mark.slow
def test_loss_that_is_not_scaled_is_not_the_engines(tmp_path: Path) -> None:
    """In fp16 a proof whose loss lacks the loss scale repeats another pass than the engine's: all
    gradients are off by that scale, and the words say where it belongs."""
    change = "program.train.__globals__['float'] = lambda value: 1.0"
    outcome = run_program(break_program(tmp_path, "train_zero", change), tmp_path, ZERO2)
    assert outcome.statuses == [0], outcome.output
    words = r"scaled by 6\.554e\+04; .* Proof\.local_loss must weight it as well"
    with pytest.raises(AssertionError, match=words):
        suite.TestZeroTwoOnFourNodes().test_gradients_are_in_sync(outcome.phase)


SLOW_LINEAR = """
import os, time
forward = torch.nn.Linear.forward
def slowly(self, inputs):
    end = time.process_time() + 0.02 * (os.environ['RANK'] == '1')
    while time.process_time() < end:
        pass
    return forward(self, inputs)
torch.nn.Linear.forward = slowly
"""


@pytest.mark.slow
def test_slow_rank_is_named(tmp_path: Path) -> None:
    """Its layers compute longer, so all ranks wait for it in every pass; alone, only it is slow."""
    program = break_program(tmp_path, "train_zero", SLOW_LINEAR)
    outcome = run_program(program, tmp_path, ZERO3)
    assert outcome.statuses == [0], outcome.output
    with pytest.raises(AssertionError) as failed:
        suite.TestZeroThreeOnTwoNodes().test_no_rank_falls_behind(outcome.phase)
    message = str(failed.value)
    assert re.match(r"rank 1 .*falls behind: its .* \(CPU time\) takes", message), message
    assert "rank 0" not in message
