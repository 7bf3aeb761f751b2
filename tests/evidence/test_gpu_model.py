"""What a GPU could multiply at most, by its capability, processors and clock."""

from __future__ import annotations

import pytest

from pytest_clustersmoke.evidence.gpu_model import dense_tflops


@pytest.mark.parametrize(
    ("name", "capability", "processors", "clock", "precision", "published"),
    [
        ("Tesla V100-SXM2-16GB", "7.0", 80, "1530 MHz", "fp16", 125),
        ("NVIDIA A100-SXM4-80GB", "8.0", 108, "1410 MHz", "bf16", 312),
        ("NVIDIA A100-SXM4-80GB", "8.0", 108, "1410 MHz", "fp32", 19.5),
        ("NVIDIA H100 80GB HBM3", "9.0", 132, "1830 MHz", "bf16", 989),
    ],
)
def test_published_peak_is_reached(
    name: str, capability: str, processors: int, clock: str, precision: str, published: float
) -> None:
    """At the clock that NVIDIA's data sheets assume."""
    most = dense_tflops(name, capability, processors, clock, precision)
    assert most == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(
    ("name", "capability", "processors", "clock", "precision"),
    [
        ("NVIDIA GeForce RTX 3090", "8.6", 82, "2100 MHz", "fp16"),
        ("NVIDIA H20", "9.0", 78, "1980 MHz", "bf16"),
        ("Tesla V100-SXM2-16GB", "7.0", 80, "1530 MHz", "bf16"),
        ("NVIDIA H100 80GB HBM3", "9.0", 132, "[N/A]", "bf16"),
        ("NVIDIA H100 80GB HBM3", "9.0", None, "1980 MHz", "bf16"),
        (None, None, None, None, "bf16"),
    ],
)
def test_nothing_is_guessed(
    name: str | None,
    capability: str | None,
    processors: int | None,
    clock: str | None,
    precision: str,
) -> None:
    """Another capability, a limited model, a precision or a value that is not there."""
    assert dense_tflops(name, capability, processors, clock, precision) is None
