"""Phases whose profile or shell sets variables, for tests of the check of variables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_clustersmoke.config.profile import Profile
from pytest_clustersmoke.preflight import variable_remarks as environment
from pytest_clustersmoke.text import Problem
from tests.support.evidence import make_phase, make_profile

CUDA = {"gpu": "any", "device": "cuda", "gpus_per_node": 8}
CPU = {"gpu": "any", "device": "cpu", "gpus_per_node": 8}
CHECKED = "is not a variable of NCCL 2.30.7, the version checked against"
NONE: Mapping[str, str] = {}


def gpu_profile(folder: Path, variables: Mapping[str, str] = NONE, **keys: Any) -> Profile:
    """A profile with GPUs that sets these variables for every phase."""
    env = {"common": {"set": dict(variables)}}
    return make_profile(folder, **{"hardware": CUDA, "env": env, **keys})


def remarks_of(
    folder: Path,
    variables: Mapping[str, str] = NONE,
    shell: Mapping[str, str] = NONE,
    **keys: Any,
) -> list[Problem]:
    """The remarks about a phase of two ranks; the profile sets `variables`, pytest's shell has
    those of `shell`."""
    profile = gpu_profile(folder, variables, **keys)
    return environment.remark_on_plan(make_phase(profile, gpus_per_node=2), profile, shell)


def problems(
    folder: Path,
    variables: Mapping[str, str],
    nodes: int = 1,
    ranks: int = 2,
    hardware: Mapping[str, Any] = CUDA,
    **expect: Any,
) -> list[str]:
    """The usage errors of a phase with this expectation, without the directory in them."""
    profile = gpu_profile(folder, variables, expect={"small": expect}, hardware=dict(hardware))
    phase = make_phase(profile, nodes=nodes, gpus_per_node=ranks)
    contradictions = environment.find_contradictory_settings(phase, profile)
    return [str(problem).replace(f"{folder}/", "") for problem in contradictions]
