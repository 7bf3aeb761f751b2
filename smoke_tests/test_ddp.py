"""Two GPUs under DistributedDataParallel (Gilbreth HPC Training Guide, section 6)."""

import pytest

from pytest_clustersmoke.criteria import PhaseView, TalkedInsideNodes, Trained


@pytest.mark.ddp
@pytest.mark.phase(
    "ddp_2gpu",
    script="train_mlp.py",
    gpus_per_node=2,
    args={"hidden_size": 2048, "batch_size": 64, "steps": 100},
    small={"hidden_size": 128, "batch_size": 32, "steps": 30, "learning_rate": 0.001},
)
class TestDdpOnTwoGpus(Trained, TalkedInsideNodes):
    """100,681,728 parameters."""

    def test_model_is_wrapped_in_ddp(self, phase: PhaseView) -> None:
        assert phase.fact("engine") == "DistributedDataParallel"

    def test_checkpoint_is_written_once_and_whole(self, phase: PhaseView) -> None:
        """One file: fp32 weights and Adam's two moments, 12 bytes per parameter."""
        files = phase.checkpoint_files()
        assert list(files) == ["ddp.pt"]
        assert files["ddp.pt"] >= 12 * phase.fact("parameters")
