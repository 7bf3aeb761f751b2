"""train_fsdp.py under real torchrun: its measurements in healthy and in faulty runs."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.criteria.phase_criteria import PhaseView
from tests.rank.conftest import SMOKE_TESTS
from tests.smoke.agents import Outcome, break_program, check_fails, run_program

pytest.importorskip("peft")
pytest.importorskip("torch", "2.6")  # its first `fully_shard`

suite: Any = importlib.import_module("test_fsdp")

PROGRAM = SMOKE_TESTS / "train_fsdp.py"
ARGS = {**suite.SMALL, "micro_batch": 1, "max_steps": 5}
OWN_CRITERIA = [name for name in vars(suite.TrainedWithFsdp) if name.startswith("test_")]


def run(directory: Path, sharding: str, program: Path = PROGRAM, **options: Any) -> Outcome:
    return run_program(program, directory, {**ARGS, "sharding": sharding}, **options)


def judge(name: str, phase: PhaseView) -> None:
    getattr(suite.TrainedWithFsdp(), name)(phase)


@pytest.mark.parametrize(
    ("sharding", "precision", "nodes", "per_node"),
    [
        pytest.param("full", "bf16", 2, 1, marks=pytest.mark.slow),
        pytest.param("grad_op", "fp32", 1, 2, marks=pytest.mark.slow),
        pytest.param("grad_op", "bf16", 1, 3, marks=pytest.mark.slow),
        pytest.param("hybrid", "bf16", 2, 2, marks=pytest.mark.slow),
    ],
)
def test_each_sharding_meets_its_criteria(
    tmp_path: Path, sharding: str, precision: str, nodes: int, per_node: int
) -> None:
    """Whatever is sharded, and with a number of ranks that divides no dimension."""
    args = {**ARGS, "sharding": sharding, "precision": precision}
    outcome = run_program(PROGRAM, tmp_path, args, nodes=nodes, per_node=per_node)
    assert outcome.statuses == [0] * nodes, outcome.output
    for name in [*OWN_CRITERIA, "test_precision_is_the_one_declared", "test_gradients_are_in_sync"]:
        judge(name, outcome.phase)
    judge("test_reloaded_checkpoint_equals_the_saved", outcome.phase)


@pytest.mark.parametrize(
    ("change", "criterion", "words"),
    [
        pytest.param(
            "shard = program.shard\n"
            "def as_one_unit(model, *more):\n"
            "    model.base_model.model._no_split_modules = []\n"
            "    return shard(model, *more)\n"
            "program.shard = as_one_unit",
            "test_each_layer_is_a_unit",
            "1 FSDP units for 2 layers, the largest with 100% of all parameters",
            id="whole_model_is_one_unit",
        ),
        pytest.param(
            "shard = program.shard\n"
            "def otherwise(model, args, rank):\n"
            "    args = program.argparse.Namespace(**{**vars(args), 'sharding': 'grad_op'})\n"
            "    return shard(model, args, rank)\n"
            "program.shard = otherwise",
            "test_parameters_are_freed_as_asked",
            "units kept their whole parameters after the forward pass; expected with full",
            id="sharded_otherwise",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "policy = program.MixedPrecisionPolicy\n"
            "program.MixedPrecisionPolicy = (\n"
            "    lambda **given: policy(**{**given, 'reduce_dtype': torch.bfloat16}))",
            "test_each_class_of_tensors_has_its_precision",
            "reduce_dtypes",
            id="reduced_in_bf16",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "save = program.save\n"
            "class Other:\n"
            "    def __init__(self, rank):\n"
            "        self.rank, self.is_main = rank.rank, rank.rank == 1\n"
            "        self.output_dir, self.fact = rank.output_dir, rank.fact\n"
            "program.save = lambda model, optimizer, rank: save(model, optimizer, Other(rank))",
            "test_adapter_is_written_by_rank_0_alone",
            "{0: None, 1: 1}",
            id="adapter_of_another_rank",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "program.dist.all_reduce = lambda tensor, *_, **__: tensor.mul_(2)",
            "test_evaluation_covers_all_ranks",
            "eval_loss",
            id="evaluation_of_its_own_rank",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "shard = program.shard\n"
            "def unsynced(*given):\n"
            "    model = shard(*given)\n"
            "    model.set_requires_gradient_sync(False)\n"
            "    return model\n"
            "program.shard = unsynced",
            "test_gradients_are_in_sync",
            "gradients are not in sync on all ranks at step 1",
            id="without_reductions",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_broken_program_fails_its_criterion(
    tmp_path: Path, change: str, criterion: str, words: str
) -> None:
    outcome = run(tmp_path, "full", break_program(tmp_path, "train_fsdp", change))
    assert outcome.statuses == [0], outcome.output
    check_fails(getattr(suite.TrainedWithFsdp(), criterion), outcome.phase, words)


def test_slow_rank_is_named(tmp_path: Path) -> None:
    """Its layers compute longer, so all ranks wait for it in every pass; alone, only it is slow."""
    slow_layers = (
        "import os, time\n"
        "from transformers.models.mistral.modeling_mistral import MistralMLP\n"
        "forward = MistralMLP.forward\n"
        "def slowly(self, hidden):\n"
        "    end = time.process_time() + 0.01 * (os.environ['RANK'] == '1')\n"
        "    while time.process_time() < end:\n"
        "        pass\n"
        "    return forward(self, hidden)\n"
        "MistralMLP.forward = slowly\n"
    )
    program = break_program(tmp_path, "train_fsdp", slow_layers)
    args = {**ARGS, "sharding": "full", "max_steps": 8}
    outcome = run_program(program, tmp_path, args)
    assert outcome.statuses == [0], outcome.output
    with pytest.raises(AssertionError) as failed:
        judge("test_no_rank_falls_behind", outcome.phase)
    message = str(failed.value)
    assert re.match(r"rank 1 .*falls behind: its .* \(CPU time\) takes", message), message
    assert "rank 0" not in message


@pytest.mark.slow
def test_missing_shard_is_an_error(tmp_path: Path) -> None:
    """Every rank reads its own part; the one whose file is gone says so."""
    change = (
        "save = program.save\n"
        "def lose(model, optimizer, rank):\n"
        "    save(model, optimizer, rank)\n"
        "    if rank.rank == 1:\n"
        "        (rank.output_dir / program.SHARDS / '__1_0.distcp').unlink()\n"
        "program.save = lose"
    )
    outcome = run(tmp_path, "full", break_program(tmp_path, "train_fsdp", change))
    assert outcome.statuses == [1]
    errors = [rank.error for rank in outcome.phase.ranks if rank.error]
    assert any("__1_0.distcp" in error.traceback + error.message for error in errors)
