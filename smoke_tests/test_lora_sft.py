"""LoRA fine-tuning of Mistral-7B under Trainer and DDP, on one node and on two (Nebius H100 DDP
smoke tests)."""

import pytest

import sft_criteria
from pytest_clustersmoke.criteria import PhaseView, TalkedBetweenNodes, TalkedInsideNodes, Trained

SIZES = {
    "model": "mistralai/Mistral-7B-v0.1",
    "dataset": "yahma/alpaca-cleaned",
    "subset_size": 2048,
    "seq_len": 512,
    "max_steps": 10,
    "micro_batch": 1,
}
# A model with random weights, and the data shipped with the suite.
SMALL = {
    "model": "tiny",
    "dataset": "shipped",
    "subset_size": 64,
    "seq_len": 64,
    "learning_rate": 0.005,
}
NEEDS = {"bf16": True, "downloads": "Mistral-7B", "min_ranks": 2}


class FineTuned(Trained, TalkedInsideNodes):
    """The criteria of a LoRA phase, in addition to those of any training."""

    throughput = ("tokens_per_s_per_rank", "steps_per_s")

    def test_model_is_wrapped_in_ddp(self, phase: PhaseView) -> None:
        assert phase.fact("wrapper") == "DistributedDataParallel"

    def test_loss_over_all_ranks_falls(self, phase: PhaseView) -> None:
        """A fixed batch has a lower loss after training. The losses of the steps are not compared:
        the steps are few, and each sees other examples."""
        before, after = phase.facts("fixed_loss_before"), phase.facts("fixed_loss_after")
        assert None not in {**before, **after}.values()
        assert all(after[rank] < before[rank] for rank in before), (before, after)

    def test_base_weights_are_trained(self, phase: PhaseView) -> None:
        """The first loss is far from ln V, that of a model that knows nothing of V tokens."""
        sft_criteria.check_base_weights(phase)

    def test_rank_0_tokenised_once_for_all(self, phase: PhaseView) -> None:
        assert phase.fact("tokenised_by") == 0
        assert phase.fact("examples") == phase.args["subset_size"]
        assert phase.fact("dataset_digest") and phase.fact("tokenizer_digest")

    @pytest.mark.detects("lora-projection-frozen")
    @pytest.mark.detects("lora-base-trainable")
    def test_only_adapters_are_trained(self, phase: PhaseView) -> None:
        assert phase.fact("base_unchanged") is True
        assert phase.fact("adapters_changed") is True
        adapters, others = phase.fact("trainable_adapters"), phase.fact("trainable_besides")
        assert not others, f"trainable besides the adapters: {others}"
        expected = 2 * phase.fact("layers")  # A and B of each layer
        wrong = {name: count for name, count in adapters.items() if count != expected}
        assert len(adapters) == 7 and not wrong, (
            f"trainable adapter tensors by projection: {wrong}; expected {expected} of each"
        )
        assert 0 < phase.fact("trainable_share") < 0.2
        if phase.args["model"] == SIZES["model"]:
            assert phase.fact("trainable_parameters") == 20_971_520

    @pytest.mark.detects("no-gradient-sync", required=False)  # the ranks' weights drift apart
    def test_ranks_end_with_the_same_weights(self, phase: PhaseView) -> None:
        assert phase.fact("base_digest") and phase.fact("adapter_digest")

    def test_ranks_train_on_different_examples(self, phase: PhaseView) -> None:
        rows = [row for seen in phase.facts("rows_trained_on").values() for row in seen]
        assert (
            len(rows)
            == len(set(rows))
            == (phase.args["max_steps"] * phase.args["micro_batch"] * phase.world_size)
        )

    def test_metrics_are_written_by_rank_0_alone(self, phase: PhaseView) -> None:
        writers = phase.facts("metrics_written_by")
        assert writers == {rank: 0 if rank == 0 else None for rank in range(phase.world_size)}
        assert {"metrics.json", "run_args.json"} <= set(phase.checkpoint_files())

    def test_checkpoint_holds_the_adapter(self, phase: PhaseView) -> None:
        """fp32 or bf16 adapters: at least 2 bytes for each trainable parameter."""
        size = phase.checkpoint_files().get("adapter/adapter_model.safetensors", 0)
        assert size >= 2 * phase.fact("trainable_parameters")


@pytest.mark.lora
@pytest.mark.ddp
@pytest.mark.phase(
    "lora_sft_ddp",
    script="train_lora_sft.py",
    gpus_per_node=8,
    args=SIZES,
    small=SMALL,
    needs=NEEDS,
)
class TestLoraSftUnderDdp(FineTuned):
    """One node of eight GPUs."""


@pytest.mark.lora
@pytest.mark.ddp
@pytest.mark.phase(
    "lora_sft_2node",
    script="train_lora_sft.py",
    nodes=2,
    gpus_per_node=8,
    args=SIZES,
    small=SMALL,
    needs=NEEDS,
)
class TestLoraSftOnTwoNodes(FineTuned, TalkedBetweenNodes):
    """Two nodes of eight GPUs."""
