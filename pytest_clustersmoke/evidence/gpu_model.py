"""Compares a GPU's name with a profile's model, since names have changed between drivers; and what
a model could do at most."""

from __future__ import annotations

import re
from collections.abc import Mapping

ANY_GPU = ("", "any", "fake", "none", None)  # values of hardware.gpu that do not name a model
MAKERS = {"nvidia", "tesla", "geforce", "quadro"}
WORD = re.compile(r"[a-z0-9]+")


def is_gpu_model(name: object, model: object) -> bool:
    """Whether the driver's name of a GPU has every word of the model: `A100` and `A100 80GB` match
    `NVIDIA A100-SXM4-80GB`. A MIG partition matches only a model that says MIG."""
    wanted, has = (set(WORD.findall(str(text).casefold())) for text in (model, name))
    if not wanted - MAKERS:
        return name == model
    return wanted - MAKERS <= has and ("mig" in wanted) is ("mig" in has)


# FLOP per clock and multiprocessor of dense matrices, a multiplication with its addition counting
# two, by compute capability and precision (fp32 without its tensor cores). They give the dense fp16
# peaks of NVIDIA's data sheets: 125 TFLOP/s of a V100 SXM2 (80 multiprocessors, 1,530 MHz), 312 of
# an A100 SXM4 (108, 1,410 MHz), 989 of an H100 SXM5 (132, 1,830 MHz). Other capabilities are left
# out: of some, models differ.
FLOP_PER_CLOCK: Mapping[str, Mapping[str, int]] = {
    "7.0": {"fp16": 1024, "fp32": 128},
    "8.0": {"fp16": 2048, "bf16": 2048, "fp32": 128},
    "9.0": {"fp16": 4096, "bf16": 4096, "fp32": 256},
}
LIMITED = {"h20"}  # models that do less than their capability says
CLOCK = re.compile(r"\s*(\d{2,5})(?:\.\d+)? MHz\s*")


def dense_tflops(
    name: str | None,
    capability: str | None,
    multiprocessors: int | None,
    clock: str | None,
    precision: str,
) -> float | None:
    """TFLOP/s of a GPU at its highest clock, as nvidia-smi writes it; None if anything is
    unknown."""
    flop = FLOP_PER_CLOCK.get(capability or "", {}).get(precision)
    match = CLOCK.fullmatch(clock or "")
    is_limited = bool(LIMITED & set(WORD.findall((name or "").casefold())))
    if flop is None or match is None or not multiprocessors or is_limited:
        return None
    return flop * multiprocessors * int(match[1]) * 1e6 / 1e12
