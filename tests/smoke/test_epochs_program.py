"""train_epochs.py under real torchrun: its measurements in healthy and in faulty runs."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.criteria.phase_criteria import PhaseView
from tests.rank.conftest import SMOKE_TESTS
from tests.smoke.agents import break_program, check_fails, run_program

pytest.importorskip("torch")
suite: Any = importlib.import_module("test_epochs")

PROGRAM = SMOKE_TESTS / "train_epochs.py"
ARGS = {
    "width": 32,
    "examples": 128,
    "batch_size": 16,
    "epochs": 2,
    "base_learning_rate": 0.01,
    "base_batch": 16,
}
PROVEN = (
    "test_gradients_are_in_sync",
    "test_repeated_steps_give_the_same_gradients",
    "test_reloaded_checkpoint_equals_the_saved",
)
OWN_CRITERIA = [name for name in vars(suite.TestDdpInEpochs) if name.startswith("test_")]


def judge(name: str, phase: PhaseView) -> None:
    getattr(suite.TestDdpInEpochs(), name)(phase)


@pytest.mark.parametrize(
    ("nodes", "per_node", "examples"),
    [
        pytest.param(1, 3, 150, id="what_fills_no_batch", marks=pytest.mark.slow),
        pytest.param(2, 1, 128, id="two_nodes", marks=pytest.mark.slow),
    ],
)
def test_healthy_program_meets_its_criteria(
    tmp_path: Path, nodes: int, per_node: int, examples: int
) -> None:
    """Also repeated passes, in which batch norms wait for the other ranks."""
    outcome = run_program(
        PROGRAM, tmp_path, {**ARGS, "examples": examples}, nodes=nodes, per_node=per_node
    )
    assert outcome.statuses == [0] * nodes, outcome.output
    for name in [*OWN_CRITERIA, *PROVEN]:
        judge(name, outcome.phase)


@pytest.mark.parametrize(
    ("change", "criterion", "words"),
    [
        pytest.param(
            "program.make_batch_norm = lambda features, device: torch.nn.BatchNorm1d(features)",
            "test_batch_norm_averages_over_all_ranks",
            "batch norms used other means than those over all ranks, by so many standard",
            id="batch_norm_of_each_rank",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "import batch_norm\n"
            "class Averaged(batch_norm.CpuSyncBatchNorm):\n"
            "    def forward(self, inputs):\n"
            "        if not self.training:\n"
            "            return super().forward(inputs)\n"
            "        mean = batch_norm.MeanOverRanks.apply(inputs.mean(0))\n"
            "        own = inputs.var(0, correction=0)\n"
            "        variance = batch_norm.MeanOverRanks.apply(own)\n"
            "        with torch.no_grad():\n"
            "            self.running_mean.lerp_(mean, self.momentum)\n"
            "            self.running_var.lerp_(variance * 32 / 31, self.momentum)\n"
            "        scale = self.weight / torch.sqrt(variance + self.eps)\n"
            "        return (inputs - mean) * scale + self.bias\n"
            "program.make_batch_norm = lambda features, device: Averaged(features)",
            "test_batch_norm_averages_over_all_ranks",
            "batch norms used other variances than those over all ranks, by so many times the",
            id="variance_of_each_rank",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "program.make_batch_norm = lambda features, device: torch.nn.BatchNorm1d(features)",
            "test_buffers_are_equal_on_all_ranks",
            "{0: '",
            id="running_statistics_of_each_rank",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "program.DistributedSampler.set_epoch = lambda self, epoch: None",
            "test_each_epoch_has_an_order_of_its_own",
            "rank 0 saw its examples in 1 orders in 2 epochs; expected sampler.set_epoch(epoch)",
            id="set_epoch_forgotten",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "sampler = program.DistributedSampler\n"
            "def same(examples, ranks, rank, **more):\n"
            "    return sampler(examples, ranks, 0, **more)\n"
            "program.DistributedSampler = same",
            "test_each_example_is_seen_once_an_epoch",
            "[64, 64]",
            id="all_ranks_see_the_same_share",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "build = program.build\n"
            "def unscaled(args, rank, seed):\n"
            "    model, optimizer = build(args, rank, seed)\n"
            "    optimizer.param_groups[0]['lr'] = args.base_learning_rate\n"
            "    return model, optimizer\n"
            "program.build = unscaled",
            "test_learning_rate_follows_the_global_batch",
            "learning rate 0.01; expected 0.02 for a global batch of 32 samples",
            id="learning_rate_of_one_rank",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "evaluate = program.evaluate\n"
            "def on_main(model, held_out, rank):\n"
            "    part = held_out if rank.is_main else tuple(c[:0] for c in held_out)\n"
            "    return evaluate(model, part, rank)\n"
            "program.evaluate = on_main",
            "test_evaluation_covers_all_ranks",
            "examples evaluated by rank: {0: 16, 1: 0}",
            id="evaluated_by_rank_0_alone",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "save = program.save\n"
            "class Main:\n"
            "    def __init__(self, rank):\n"
            "        self.rank, self.fact, self.is_main = rank.rank, rank.fact, True\n"
            "def by_all(state, path, rank):\n"
            "    for turn in range(rank.world_size):\n"
            "        program.dist.barrier()\n"
            "        if turn == rank.rank:\n"
            "            save(state, path, Main(rank))\n"
            "program.save = by_all",
            "test_checkpoint_is_written_by_rank_0_alone",
            "{0: 0, 1: 1}",
            id="saved_by_every_rank",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_broken_program_fails_its_criterion(
    tmp_path: Path, change: str, criterion: str, words: str
) -> None:
    broken = break_program(tmp_path, "train_epochs", change)
    outcome = run_program(broken, tmp_path, ARGS)
    assert outcome.statuses == [0], outcome.output
    check_fails(getattr(suite.TestDdpInEpochs(), criterion), outcome.phase, words)


@pytest.mark.slow
def test_no_rank_is_blamed_if_batch_norms_carry_an_error_to_all(tmp_path: Path) -> None:
    """Rank 1 computes each repeated pass differently, and its statistics reach rank 0."""
    change = (
        "from pytest_clustersmoke.rank import proof\n"
        "prints, passes = proof.Replay._sum_prints, 0\n"
        "def wrong(self, *use):\n"
        "    global passes\n"
        "    passes += 1\n"
        "    scale = 1.0 + passes * torch.distributed.get_rank()\n"
        "    hook = self._model[0].register_forward_hook(lambda m, i, output: output * scale)\n"
        "    try:\n"
        "        return prints(self, *use)\n"
        "    finally:\n"
        "        hook.remove()\n"
        "proof.Replay._sum_prints = wrong"
    )
    outcome = run_program(break_program(tmp_path, "train_epochs", change), tmp_path, ARGS)
    assert outcome.statuses == [0], outcome.output
    with pytest.raises(AssertionError, match="all ranks disagree with themselves"):
        judge("test_repeated_steps_give_the_same_gradients", outcome.phase)
