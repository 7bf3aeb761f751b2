"""DeepSpeed ZeRO-1 on two GPUs of a node, ZeRO-1 and ZeRO-2 on eight of four nodes (Gilbreth HPC
Training Guide, sections 7 and 8), ZeRO-3 with offload on two nodes (Distributed AI training in
action, section 9.3)."""

from typing import Any

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
# What train_zero.py takes where the phase's arguments do not say otherwise.
DEFAULTS = {"precision": "bf16", "clip": 1.0, "accumulation": 1, "offload": "none"}
DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}
# Besides the parameters' bytes a file has names, shapes and padding.
SLACK = 1.25
MODEL = "model_16bit.pt"  # of ZeRO-2 and 3
# From 2**16 the scale can be halved 16 times; a run that skips more steps than this hardly trains.
MOST_SKIPPED_SHARE = 0.3
# ZeRO-3 pads each parameter to a multiple of the ranks.
UNEVEN = 0.1


def read_argument(phase: PhaseView, name: str) -> Any:
    return phase.args.get(name, DEFAULTS[name])


class TrainedWithZero(Trained, TalkedInsideNodes):
    """The criteria of a ZeRO phase, in addition to those of any training."""

    def test_engine_has_the_zero_stage_asked_for(self, phase: PhaseView) -> None:
        assert phase.fact("engine") == "DeepSpeedEngine"
        assert phase.fact("zero_stage") == phase.args["stage"]

    def test_engine_clips_and_buckets_as_asked(self, phase: PhaseView) -> None:
        assert phase.fact("gradient_clipping") == read_argument(phase, "clip")
        size = phase.args["bucket_size"]
        assert phase.fact("reduce_bucket_size") == phase.fact("allgather_bucket_size") == size

    def test_global_batch_is_micro_batch_times_ranks(self, phase: PhaseView) -> None:
        """Of as many micro batches as are accumulated."""
        own = phase.args["micro_batch"] * read_argument(phase, "accumulation")
        assert phase.fact("train_batch_size") == own * phase.world_size

    def test_fused_adam_is_compiled_on_cuda(self, phase: PhaseView) -> None:
        """Offloaded, it is DeepSpeed's Adam for CPUs."""
        adam = "FusedAdam" if read_argument(phase, "offload") == "none" else "DeepSpeedCPUAdam"
        if phase.ranks[0].start.get("device") == "cpu":
            pytest.skip(f"{adam} needs CUDA; the ranks train on CPU")
        assert phase.fact("optimizer") == adam

    def test_engine_trains_in_the_precision_asked_for(self, phase: PhaseView) -> None:
        precision = read_argument(phase, "precision")
        assert phase.fact("precision") == precision
        assert phase.fact("parameter_dtypes") == [DTYPES[precision]]

    def test_loss_scale_is_found(self, phase: PhaseView) -> None:
        """It is finite, and the steps that the scaler skipped on the way are few."""
        if (precision := read_argument(phase, "precision")) != "fp16":
            pytest.skip(f"{precision} needs no loss scale")
        skipped, scale = phase.fact("skipped_steps"), float(phase.fact("loss_scale"))
        assert 1 <= scale < float("inf"), f"the loss scale ended at {scale}"
        most = MOST_SKIPPED_SHARE * phase.args["steps"]
        assert skipped <= most, (
            f"the scaler skipped {skipped} of {phase.args['steps']} steps; expected {most:g} at "
            "most: gradients overflow at every scale"
        )

    def test_checkpoint_has_one_optimizer_file_a_rank(self, phase: PhaseView) -> None:
        names = {name.rsplit("/", 1)[-1] for name in phase.checkpoint_files()}
        ranks = range(phase.world_size)
        prefix = "bf16_" if phase.fact("precision") == "bf16" else ""
        assert {n for n in names if n.endswith("_optim_states.pt")} == {
            f"{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in ranks
        }
        models = {"mp_rank_00_model_states.pt"}
        if phase.args["stage"] == 3:
            models = {f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" for rank in ranks}
        assert models | {"zero_to_fp32.py", "latest"} <= names

    def test_checkpoint_has_the_size_its_parameters_demand(self, phase: PhaseView) -> None:
        """16-bit weights take 2 bytes per parameter, and ZeRO-2 writes them twice: in its own files
        and as the whole model. fp32 weights and two moments take 12, split over the ranks."""
        files, parameters = phase.checkpoint_files(), phase.fact("parameters")
        optimizer = [size for name, size in files.items() if name.endswith("_optim_states.pt")]
        model = [size for name, size in files.items() if name.endswith(("_model_states.pt", MODEL))]
        weights = 2 * parameters * (2 if phase.args["stage"] == 2 else 1)
        assert weights <= sum(model) <= weights * SLACK + 2**20
        share = 12 * parameters / phase.world_size
        assert all(share <= size <= share * SLACK + 2**20 for size in optimizer), optimizer


class SavedForPlainTorch:
    """The criterion of the phases that also save the whole model in 16 bits."""

    def test_whole_model_loads_in_plain_torch(self, phase: PhaseView) -> None:
        assert MODEL in phase.checkpoint_files()
        assert phase.fact("whole_model_is_right") is True


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


@pytest.mark.deepspeed
@pytest.mark.phase(
    "zero2_4node",
    script="train_zero.py",
    nodes=4,
    gpus_per_node=2,
    args={**SIZES, "layers": 8, "stage": 2, "precision": "fp16"},
    small=SMALL,
    needs={"writes_gib": 16},  # the model is written twice
)
class TestZeroTwoOnFourNodes(TrainedWithZero, TalkedBetweenNodes, SavedForPlainTorch):
    """1,073,905,664 parameters on four nodes, in fp16 with dynamic loss scaling."""


@pytest.mark.deepspeed
@pytest.mark.phase(
    "zero3_offload_2node",
    script="train_zero.py",
    nodes=2,
    args={**SIZES, "layers": 6, "stage": 3, "precision": "bf16", "offload": "cpu"},
    small=SMALL,
    needs={"bf16": True, "writes_gib": 10.5},  # 805,429,248 parameters; the model is written once
)
class TestZeroThreeOnTwoNodes(TrainedWithZero, TalkedBetweenNodes, SavedForPlainTorch):
    """805,429,248 parameters, of which each of two nodes holds half, in the host's memory."""

    def test_each_rank_holds_its_share(self, phase: PhaseView) -> None:
        shares = phase.facts("held_share")
        ranks = phase.world_size
        wrong = {r: s for r, s in shares.items() if s is None or abs(s * ranks - 1) > UNEVEN}
        assert not wrong, (
            f"shares of the parameters by rank: {wrong}; expected 1/{phase.world_size} each"
        )

    def test_weights_and_optimizer_are_offloaded(self, phase: PhaseView) -> None:
        for what in ("offload_optimizer", "offload_param"):
            assert phase.fact(what) == phase.args["offload"], (what, phase.fact(what))
        for rank in phase.ranks:
            own = str(rank.start.get("device")).partition(":")[0]
            device = own if phase.args["offload"] == "none" else phase.args["offload"]
            expected = {part: [device] for part in ("weights", "masters", "moments")}
            found = phase.facts("devices")[rank.rank]
            assert found == expected, f"{rank} holds its parts on {found}; expected {expected}"
