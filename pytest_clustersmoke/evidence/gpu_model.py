"""Whether a GPU is of a profile's model: makers' words have changed between drivers."""

from __future__ import annotations

import re

ANY_GPU = ("", "any", "fake", "none", None)  # values of hardware.gpu that name no model
MAKERS = {"nvidia", "tesla", "geforce", "quadro"}
WORD = re.compile(r"[a-z0-9]+")


def fits(name: object, model: object) -> bool:
    """Whether the driver's name of a GPU has every word of the model: `A100` and `A100 80GB` are
    also `NVIDIA A100-SXM4-80GB`; a part of one (MIG) is none of them."""
    wanted, has = (set(WORD.findall(str(one).casefold())) for one in (model, name))
    if not wanted - MAKERS:
        return name == model
    return wanted - MAKERS <= has and ("mig" in wanted) is ("mig" in has)
