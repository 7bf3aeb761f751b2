"""Find requests for bf16 on GPUs without it."""

from __future__ import annotations

import re

from ..config.phase import Phase
from ..config.profile import Profile
from ..text import Problem

# bf16 arithmetic needs compute capability 8.0 (CUDA C++ Programming Guide, "Arithmetic
# Instructions"). Capabilities: https://developer.nvidia.com/cuda-gpus and, for older GPUs,
# https://developer.nvidia.com/cuda-legacy-gpus. Names are those that the driver reports.
BF16_FROM = 8.0
CAPABILITIES: tuple[tuple[re.Pattern[str], float], ...] = tuple(
    (re.compile(rf"\b(?:{name})\b", re.I), capability)
    for name, capability in (
        (r"K(?:20|40)[a-z]*", 3.5),
        (r"K80", 3.7),
        (r"M(?:4|6|10|40|60)", 5.2),
        (r"P100", 6.0),
        (r"P(?:4|6|40)|TITAN (?:X|Xp)|GTX 10[5-8]0(?: Ti)?", 6.1),
        (r"V100[A-Z]*|TITAN V|GV100", 7.0),
        (r"T4G?|TITAN RTX|RTX 20[5-8]0(?: Ti| Super)?|GTX 16[56]0(?: Ti| Super)?", 7.5),
        (r"Quadro RTX [3-8]000|RTX [3-8]000 (?=with Max-Q)", 7.5),
    )
)
FLAGS = frozenset({"bf16", "bfloat16"})
KINDS = frozenset({"dtype", "torch_dtype", "precision", "mixed_precision", "amp_dtype"})
BF16 = re.compile(r"(torch\.)?(bf16|bfloat16)(-mixed|-true)?", re.I)


def lacks_bf16(gpu: str) -> str:
    """Why this GPU has no bf16; empty if it has bf16 or is unknown."""
    for name, capability in CAPABILITIES:
        if name.search(gpu) and capability < BF16_FROM:
            return f"{gpu} has compute capability {capability}, and bf16 needs {BF16_FROM}"
    return ""


def explain_missing_bf16(profile: Profile) -> str:
    """Why ranks on this cluster have no bf16; empty on CPU, where torch emulates it slowly."""
    return lacks_bf16(profile.hardware.gpu) if profile.hardware.device == "cuda" else ""


def find_bf16_arguments(phase: Phase, profile: Profile) -> list[Problem]:
    """Find arguments that ask for bf16 on hardware without it."""
    why = explain_missing_bf16(profile)
    if not why:
        return []
    return [
        Problem(
            f"phase `{phase.name}` asks for bf16 with {name}={argument.value}, but {why} "
            f"({profile.where('hardware', 'gpu')})",
            argument.source,
            "fp16 or fp32 on this hardware",
        )
        for name, argument in phase.args.items()
        if (name in FLAGS and argument.value is True)
        or (name in KINDS and isinstance(argument.value, str) and BF16.fullmatch(argument.value))
    ]
