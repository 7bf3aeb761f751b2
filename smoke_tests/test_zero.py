"""DeepSpeed ZeRO-1 on two GPUs of a node, and on eight of four nodes (Gilbreth HPC Training Guide,
sections 7 and 8)."""

import pytest

from pytest_clustersmoke.criteria import PhaseView, TalkedBetweenNodes, TalkedInsideNodes, Trained

SIZES = {
    "hidden_size": 4096,
    "micro_batch": 32,
    "steps": 100,
    "stage": 1,
    "bucket_size": 500_000_000,
}
SMALL = {
    "hidden_size": 128,
    "layers": 2,
    "micro_batch": 8,
    "steps": 30,
    "learning_rate": 0.001,
    # DeepSpeed 0.14 processes the whole bucket in each step, full or not: 5e8 elements take 3 s.
    "bucket_size": 1_000_000,
}
# Besides the parameters' bytes a file has names, shapes and padding.
SLACK = 1.25


class TrainedWithZero(Trained, TalkedInsideNodes):
    """The criteria of a ZeRO phase, in addition to those of any training."""

    def test_engine_has_the_zero_stage_asked_for(self, phase: PhaseView) -> None:
        assert phase.fact("engine") == "DeepSpeedEngine"
        assert phase.fact("zero_stage") == phase.args["stage"]

    def test_engine_trains_in_bf16(self, phase: PhaseView) -> None:
        assert phase.fact("precision") == "bf16"
        assert phase.fact("parameter_dtypes") == ["torch.bfloat16"]

    def test_engine_clips_and_buckets_as_asked(self, phase: PhaseView) -> None:
        assert phase.fact("gradient_clipping") == 1.0
        size = phase.args["bucket_size"]
        assert phase.fact("reduce_bucket_size") == phase.fact("allgather_bucket_size") == size

    def test_global_batch_is_micro_batch_times_ranks(self, phase: PhaseView) -> None:
        assert phase.fact("train_batch_size") == phase.args["micro_batch"] * phase.world_size

    def test_fused_adam_is_compiled_on_cuda(self, phase: PhaseView) -> None:
        if phase.ranks[0].start.get("device") == "cpu":
            pytest.skip("FusedAdam needs CUDA; the ranks train on CPU")
        assert phase.fact("optimizer") == "FusedAdam"

    def test_checkpoint_has_one_optimizer_file_a_rank(self, phase: PhaseView) -> None:
        names = {name.rsplit("/", 1)[-1] for name in phase.checkpoint_files()}
        assert {n for n in names if n.endswith("_optim_states.pt")} == {
            f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
            for rank in range(phase.world_size)
        }
        assert {"mp_rank_00_model_states.pt", "zero_to_fp32.py", "latest"} <= names

    def test_checkpoint_has_the_size_its_parameters_demand(self, phase: PhaseView) -> None:
        """bf16 weights take 2 bytes per parameter; fp32 weights and two moments take 12, split over
        the ranks."""
        files, parameters = phase.checkpoint_files(), phase.fact("parameters")
        optimizer = [size for name, size in files.items() if name.endswith("_optim_states.pt")]
        model = [size for name, size in files.items() if name.endswith("_model_states.pt")]
        assert 2 * parameters <= sum(model) <= 2 * parameters * SLACK + 2**20
        share = 12 * parameters / phase.world_size
        assert all(share <= size <= share * SLACK + 2**20 for size in optimizer), optimizer


@pytest.mark.deepspeed
@pytest.mark.phase(
    "zero1_2gpu",
    script="train_zero.py",
    gpus_per_node=2,
    args={**SIZES, "layers": 6},
    small=SMALL,
    needs={"bf16": True, "writes_gib": 10.5},  # 14 bytes for each of 805,429,248 parameters
)
class TestZeroOneOnTwoGpus(TrainedWithZero):
    """805,429,248 parameters on one node."""


@pytest.mark.deepspeed
@pytest.mark.phase(
    "zero1_4node",
    script="train_zero.py",
    nodes=4,
    gpus_per_node=2,
    args={**SIZES, "layers": 8},
    small=SMALL,
    needs={"bf16": True, "writes_gib": 14},  # 1,073,905,664 parameters
)
class TestZeroOneOnFourNodes(TrainedWithZero, TalkedBetweenNodes):
    """1,073,905,664 parameters on four nodes."""
