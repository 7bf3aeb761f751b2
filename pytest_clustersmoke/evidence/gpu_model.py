"""Compares a GPU's name with a profile's model: names have changed between drivers."""

from __future__ import annotations

import re

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
