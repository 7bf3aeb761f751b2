"""LoRA fine-tuning under FSDP2, sharded over the ranks of a node, and within each of two nodes
(Multi-Node Training Setup Guide, with a model that fits one device before it is sharded)."""

import pytest

import sft_criteria
from pytest_clustersmoke.criteria import (
    PhaseView,
    Resumed,
    TalkedBetweenNodes,
    TalkedInsideNodes,
    Trained,
)

SIZES = {
    "model": "mistralai/Mistral-7B-v0.1",
    "dataset": "yahma/alpaca-cleaned",
    "subset_size": 2048,
    "seq_len": 512,
    "max_steps": 20,
    "micro_batch": 1,
}
# A model with random weights, and the data shipped with the suite.
SMALL = {
    "model": "tiny",
    "dataset": "shipped",
    "subset_size": 64,
    "seq_len": 64,
    "max_steps": 10,
    "learning_rate": 0.005,
}
NEEDS = {"bf16": True, "torch": "2.6", "downloads": "Mistral-7B"}
# A shard is a part of the first dimension, so ranks hold a little more or less where it does not
# divide evenly.
UNEVEN = 0.1
FP32 = "torch.float32"
DTYPES = {"fp32": FP32, "bf16": "torch.bfloat16"}


class TrainedWithFsdp(Trained, TalkedInsideNodes):
    """The criteria of an FSDP phase, in addition to those of any training."""

    throughput = ("tokens_per_s_per_rank", "steps_per_s")

    def test_each_layer_is_a_unit(self, phase: PhaseView) -> None:
        """A model that is wrapped as one unit is gathered as a whole, which saves no memory."""
        units, layers = phase.fact("units"), phase.fact("layers")
        largest, expected = phase.fact("largest_unit_share"), phase.fact("largest_layer_share")
        assert units == layers + 1 and largest == pytest.approx(expected), (
            f"{units} FSDP units for {layers} layers, the largest with {largest:.0%} of all "
            "parameters; expected one for each layer, and the root for the rest, the largest with "
            f"{expected:.0%}"
        )

    def test_each_rank_holds_its_share(self, phase: PhaseView) -> None:
        ranks = (
            int(phase.spec["ranks_per_node"])
            if phase.args["sharding"] == "hybrid"
            else phase.world_size
        )
        shares = phase.facts("held_share")
        wrong = {r: share for r, share in shares.items() if abs(share * ranks - 1) > UNEVEN}
        assert len(shares) == phase.world_size and not wrong, (
            f"shares of the parameters by rank: {wrong}; expected 1/{ranks} each with "
            f"{phase.args['sharding']} sharding"
        )

    def test_parameters_are_freed_as_asked(self, phase: PhaseView) -> None:
        """Those of each layer, after the forward pass; with grad_op sharding they stay until the
        backward pass. What is in no layer may stay (`watch_forward`)."""
        sharding, kept = phase.args["sharding"], phase.fact("whole_after_forward")
        assert kept is (sharding == "grad_op"), (
            f"layers {'kept' if kept else 'freed'} their whole parameters after the forward pass; "
            f"expected with {sharding} sharding that they {'free' if kept else 'keep'} them"
        )

    def test_each_class_of_tensors_has_its_precision(self, phase: PhaseView) -> None:
        """Masters, reductions and buffers are in fp32; every unit computes in the precision."""
        masters, computed = [FP32], [DTYPES[phase.fact("precision")]]
        expected = {
            "master_dtypes": {"adapters": masters, "base": masters},
            "compute_dtypes": {"adapters": computed, "base": computed},
            "reduce_dtypes": [FP32],
            "buffer_dtypes": [FP32],
        }
        for kind, types in expected.items():
            assert phase.fact(kind) == types, f"{kind}: {phase.fact(kind)}; expected {types}"

    def test_base_weights_are_trained(self, phase: PhaseView) -> None:
        """The first loss is far from ln V, that of a model that knows nothing of V tokens."""
        sft_criteria.check_base_weights(phase)

    def test_only_adapters_are_trained(self, phase: PhaseView) -> None:
        assert not phase.fact("trainable_besides")
        expected = 2 * phase.fact("layers")  # A and B of each layer
        adapters = phase.fact("trainable_adapters")
        assert len(adapters) == 7 and set(adapters.values()) == {expected}, adapters
        assert phase.fact("base_unchanged") is True
        assert phase.fact("adapters_changed") is True

    def test_loss_over_all_ranks_falls(self, phase: PhaseView) -> None:
        """On the examples evaluated. The losses of the steps are not compared: the steps are few,
        and each sees other examples."""
        first = (*phase.earlier, phase)[0]  # a later attempt may have a few steps only
        assert phase.fact("eval_loss") < first.fact("eval_loss_before")

    def test_evaluation_covers_all_ranks(self, phase: PhaseView) -> None:
        """The mean that each rank reports is that of the losses that all ranks report."""
        own = phase.facts("eval_loss_own")
        assert len(own) == phase.world_size and None not in own.values()
        mean = sum(own.values()) / phase.world_size
        assert phase.fact("eval_loss") == pytest.approx(mean, rel=1e-6)

    def test_log_is_written_by_rank_0_alone(self, phase: PhaseView) -> None:
        """A line for each step, also of those before a stop."""
        writers = sorted(r for r, by in phase.facts("log_written_by").items() if by is not None)
        assert writers == [0], f"ranks that wrote the log: {writers}; expected rank 0 alone"
        logged, steps = phase.facts("logged_steps")[0], phase.args["max_steps"]
        assert logged == [*range(1, steps + 1)], (
            f"log.jsonl has lines for the steps {logged}; expected one for each of {steps}"
        )
        assert "log.jsonl" in phase.checkpoint_files()

    def test_checkpoint_has_one_file_a_rank(self, phase: PhaseView) -> None:
        files = {n for n in phase.checkpoint_files() if n.startswith("sharded/")}
        shards = {f"sharded/__{rank}_0.distcp" for rank in range(phase.world_size)}
        expected = {"sharded/.metadata", *shards}
        assert files == expected, (
            f"missing from the checkpoint: {sorted(expected - files)}; not of this save by "
            f"{phase.world_size} ranks: {sorted(files - expected)}"
        )

    def test_adapter_is_written_by_rank_0_alone(self, phase: PhaseView) -> None:
        writers = sorted(r for r, by in phase.facts("adapter_written_by").items() if by is not None)
        assert writers == [0], f"ranks that wrote the adapter: {writers}; expected rank 0 alone"
        assert phase.facts("adapter_is_equal")[0] is True
        assert "adapter/adapter_model.safetensors" in phase.checkpoint_files()


@pytest.mark.fsdp
@pytest.mark.lora
@pytest.mark.phase(
    "fsdp_1node",
    script="train_fsdp.py",
    gpus_per_node=8,
    resume=5,
    args={**SIZES, "sharding": "full"},
    small={**SMALL, "max_steps": 12},  # after the stop, enough are left to judge slow ranks
    needs={**NEEDS, "writes_gib": 55},  # 7,262,703,616 parameters in fp32, at the stop as well
)
class TestFsdpOnOneNode(TrainedWithFsdp, Resumed):
    """Eight GPUs of one node share all parameters. After five steps the training goes on in new
    processes, from the shards that all ranks saved."""


@pytest.mark.fsdp
@pytest.mark.lora
@pytest.mark.phase(
    "fsdp_lora_2node",
    script="train_fsdp.py",
    nodes=2,
    gpus_per_node=8,
    args={**SIZES, "sharding": "hybrid"},
    small=SMALL,
    needs={**NEEDS, "writes_gib": 28},
)
class TestFsdpOnTwoNodes(TrainedWithFsdp, TalkedBetweenNodes):
    """Each node's GPUs share all parameters, and the nodes hold replicas."""
