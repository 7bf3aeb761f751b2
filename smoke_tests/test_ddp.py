"""Two GPUs under DistributedDataParallel, on one node (Gilbreth HPC Training Guide, section 6) and
on two (Distributed AI training in action, sections 3.2 and 9.1)."""

import pytest

from pytest_clustersmoke.criteria import PhaseView, TalkedBetweenNodes, TalkedInsideNodes, Trained

SIZES = {"hidden_size": 2048, "batch_size": 64, "steps": 100}
SMALL = {"hidden_size": 128, "batch_size": 32, "steps": 30, "learning_rate": 0.001}
NEEDS = {"min_ranks": 2}


class TrainedWithDdp(Trained):
    """The criteria of a DDP phase, in addition to those of any training."""

    def test_model_is_wrapped_in_ddp(self, phase: PhaseView) -> None:
        assert phase.fact("engine") == "DistributedDataParallel"

    def test_checkpoint_is_written_once_and_whole(self, phase: PhaseView) -> None:
        """One file: fp32 weights and Adam's two moments, 12 bytes per parameter."""
        files = phase.checkpoint_files()
        assert list(files) == ["ddp.pt"]
        assert files["ddp.pt"] >= 12 * phase.fact("parameters")


@pytest.mark.ddp
@pytest.mark.phase(
    "ddp_2gpu", script="train_mlp.py", gpus_per_node=2, args=SIZES, small=SMALL, needs=NEEDS
)
class TestDdpOnTwoGpus(TrainedWithDdp, TalkedInsideNodes):
    """100,681,728 parameters."""


@pytest.mark.ddp
@pytest.mark.phase(
    "ddp_2node", script="train_mlp.py", nodes=2, args=SIZES, small=SMALL, needs=NEEDS
)
class TestDdpOnTwoNodes(TrainedWithDdp, TalkedBetweenNodes):
    """The same, on two nodes of one GPU."""
