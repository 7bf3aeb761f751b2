"""One GPU: CUDA, forward and backward, checkpoint (Gilbreth HPC Training Guide, section 5)."""

import pytest

from pytest_clustersmoke.criteria import PhaseView, Trained


@pytest.mark.phase(
    "mlp_1gpu",
    script="train_mlp.py",
    args={"hidden_size": 1024, "batch_size": 32, "steps": 100},
    small={"hidden_size": 128, "steps": 30, "learning_rate": 0.001},
)
class TestMlpOnOneGpu(Trained):
    """25,175,040 parameters."""

    def test_checkpoint_holds_model_and_optimizer(self, phase: PhaseView) -> None:
        """One file: fp32 weights and Adam's two moments, 12 bytes per parameter."""
        files = phase.checkpoint_files()
        assert list(files) == ["mlp.pt"]
        assert files["mlp.pt"] >= 12 * phase.fact("parameters")
