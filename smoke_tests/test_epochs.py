"""Batch norm, epochs, evaluation and learning rate under DistributedDataParallel (Launching and
debugging multi-GPU training, entries D10, D11, D22 and D23)."""

import pytest

from pytest_clustersmoke.criteria import PhaseView, TalkedInsideNodes, Trained, Unmeasured

# In standard deviations of what a batch norm averages, and as a share of its variance. Means of 64
# samples are 0.1 apart; what they differ by, squared, is missing in the mean of their variances.
SAME = 1e-3
OWN_MEAN = 0.05
AVERAGED = {
    "error": ("means", "standard deviations"),
    "variance_error": ("variances", "times the variance"),
}


@pytest.mark.ddp
@pytest.mark.phase(
    "ddp_epochs",
    script="train_epochs.py",
    gpus_per_node=2,
    args={
        "width": 1024,
        "examples": 16384,
        "batch_size": 64,
        "epochs": 2,
        "base_learning_rate": 0.01,
        "base_batch": 64,
    },
    small={"width": 32, "examples": 256, "batch_size": 16, "base_batch": 16},
    needs={"min_ranks": 2},
)
class TestDdpInEpochs(Trained, TalkedInsideNodes):
    """Each rank sees its own share of a finite dataset."""

    def test_all_steps_are_done(self, phase: PhaseView) -> None:
        args = phase.args
        steps = args["epochs"] * (args["examples"] // (args["batch_size"] * phase.world_size))
        assert phase.steps_done() == dict.fromkeys(range(phase.world_size), steps)

    def test_model_is_wrapped_in_ddp(self, phase: PhaseView) -> None:
        assert phase.fact("engine") == "DistributedDataParallel"

    def test_batch_norm_averages_over_all_ranks(self, phase: PhaseView) -> None:
        """The mean and the variance that each layer used are those of an independent sum over the
        ranks."""
        checked = phase.facts("batch_norm")
        assert None not in checked.values(), f"not every rank checked its batch norms: {checked}"
        for key, (what, unit) in AVERAGED.items():
            errors = {rank: float(found[key]) for rank, found in checked.items()}
            wrong = {rank: error for rank, error in errors.items() if not error <= SAME}
            assert not wrong, (
                f"batch norms used other {what} than those over all ranks, by so many {unit} on "
                f"each rank: {wrong}; expected {SAME:g} at most "
                "(SyncBatchNorm.convert_sync_batchnorm)"
            )
        if min(float(found["local_error"]) for found in checked.values()) < OWN_MEAN:
            raise Unmeasured("batch norm", "the ranks' own means are too similar to tell")

    def test_buffers_are_equal_on_all_ranks(self, phase: PhaseView) -> None:
        """The running statistics too, which no gradient shows."""
        digests = phase.facts("buffers")
        assert None not in digests.values() and len(set(digests.values())) == 1, digests

    def test_learning_rate_follows_the_global_batch(self, phase: PhaseView) -> None:
        """It is scaled with the number of samples that all ranks together saw in a step."""
        seen = sum(record["samples"] for record in phase.events("proof").values())
        expected = phase.args["base_learning_rate"] * seen / phase.args["base_batch"]
        assert phase.fact("learning_rate") == pytest.approx(expected), (
            f"learning rate {phase.fact('learning_rate')}; expected {expected} for a global batch "
            f"of {seen} samples"
        )

    def test_each_epoch_has_an_order_of_its_own(self, phase: PhaseView) -> None:
        for rank, orders in phase.facts("orders").items():
            assert orders is not None, f"rank {rank} reported no orders"
            assert len(set(orders)) == len(orders) == phase.args["epochs"], (
                f"rank {rank} saw its examples in {len(set(orders))} orders in "
                f"{len(orders)} epochs; expected sampler.set_epoch(epoch) before each"
            )

    def test_each_example_is_seen_once_an_epoch(self, phase: PhaseView) -> None:
        step = phase.args["batch_size"] * phase.world_size
        whole = phase.args["examples"] // step * step
        assert phase.fact("distinct") == [whole] * phase.args["epochs"]

    def test_evaluation_covers_all_ranks(self, phase: PhaseView) -> None:
        """The mean that each rank reports is that of what all ranks evaluated."""
        counts = phase.facts("eval_own_count")
        assert sum(counts.values()) == phase.args["examples"] // 4 and 0 not in counts.values(), (
            f"examples evaluated by rank: {counts}"
        )
        mean = sum(phase.facts("eval_own_sum").values()) / sum(counts.values())
        assert phase.fact("eval_loss") == pytest.approx(mean, rel=1e-6)
        assert phase.fact("eval_loss") < phase.fact("eval_loss_before")

    def test_checkpoint_is_written_by_rank_0_alone(self, phase: PhaseView) -> None:
        writers = phase.facts("saved_by")
        assert writers == {rank: 0 if rank == 0 else None for rank in range(phase.world_size)}
        assert list(phase.checkpoint_files()) == ["epochs.pt"]
