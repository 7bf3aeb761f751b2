"""Events of proofs of training, as healthy and as disagreeing ranks write them."""

from __future__ import annotations

from pytest_clustersmoke.evidence.telemetry import UNNAMED_KERNELS

GRADIENTS = {
    "parameters": 4,
    "compared": 4,
    "max_relative_error": 1e-7,
    "tolerance": 1e-5,
    "worst": "w",
    "precision": "fp32",
    "synced": True,
    "sensitive": True,
}
PROOF = {
    "step": 1,
    "replayed": 4,
    "differing": [],
    "differing_count": 0,
    "nondeterministic": [],
    "dtypes": {"float32": ["0", "2"]},
    "samples": 32,
    "samples_per_rank": 32,
    "gradients": GRADIENTS,
}
WRONG = {"differing": ["w"], "differing_count": 1}
UNEXPLAINED = {**WRONG, "nondeterministic": [UNNAMED_KERNELS]}
