"""Reads which rank this process is, from the variables of torchrun and of the node's launcher."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..evidence.run_directory import (
    PhaseDir,
    RunDir,
    is_job_root,
    job_name,
    place_of_rank,
    read_json,
)

DEFAULT_TIMEOUT_S = 600.0
PROOF_STEPS = 3  # drawn between the first step and the last
SAMPLED, TWIN = "sampled", "twin"  # what is proven of a training loop: some steps, or all again
FAULT, NONCE = "CLUSTERSMOKE_FAULT", "CLUSTERSMOKE_NONCE"


class RankMisuse(ValueError):
    """The program called the Rank API wrongly; the text says what was expected. A class of its own,
    by which the diagnosis tells it from any other error of the program."""


class EnvironmentUnusable(ValueError):
    """A variable of the rank's environment, or the phase's spec, has a value that no launcher gave
    it; the text says what was expected. A class of its own, as RankMisuse."""


@dataclass(frozen=True)
class TraceOrder:
    """The steps to be traced, from 1 (None: the last ones), and this rank's file for them;
    None if other ranks record them, and this one only leaves them out of its figures."""

    first: int | None
    last: int | None
    path: Path | None


@dataclass(frozen=True)
class PeakOrder:
    """What is to be measured of the devices: once in a run, or again in this phase (`always`); the
    precision of the training, if the phase's arguments say it."""

    run: RunDir
    phase: str
    always: bool
    precision: str


@dataclass(frozen=True)
class RankEnvironment:
    """This rank's numbers, the directory it writes to (None if run by hand), and the fault it has
    to stage (None except under --cluster-prove)."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node_rank: int
    node: str
    phase_dir: PhaseDir | None
    wanted_device: str
    timeout_s: float
    job: str = ""  # as the rank's events name it
    fault: dict[str, Any] | None = None
    nonce: str = ""  # the word of the node that started this rank
    proof_steps: int = PROOF_STEPS
    proof: str = SAMPLED
    trace: TraceOrder | None = None
    # Steps after which the first attempt stops; True: where the scheduler asks; 0: it does not.
    resume: int = 0
    peaks: PeakOrder | None = None


def read_rank_environment() -> RankEnvironment:
    """Read the environment; a program started with plain `python` is rank 0 of 1. Raises
    EnvironmentUnusable if a value is not what a launcher sets."""
    if "RANK" not in os.environ:
        _set_single_rank()
    phase = os.environ.get("CLUSTERSMOKE_PHASE_DIR")
    phase_dir = place_of_rank(phase, os.environ) if phase else None
    spec = (read_json(phase_dir.spec) if phase_dir is not None else None) or {}
    return RankEnvironment(
        rank=_count("RANK"),
        local_rank=_count("LOCAL_RANK", "0"),
        world_size=_count("WORLD_SIZE", "1"),
        local_world_size=_count("LOCAL_WORLD_SIZE", "1"),
        node_rank=_count("CLUSTERSMOKE_NODE_RANK", os.environ.get("GROUP_RANK", "0")),
        node=os.environ.get("CLUSTERSMOKE_NODE_NAME") or socket.gethostname(),
        phase_dir=phase_dir,
        wanted_device=_wanted_device(),
        timeout_s=_timeout_s(),
        job=job_name(spec),
        fault=_read_fault(spec, phase_dir) if phase_dir else None,
        nonce=os.environ.get(NONCE, ""),
        proof_steps=int(spec.get("proof_steps", PROOF_STEPS)),
        proof=str(spec.get("proof", SAMPLED)),
        trace=_read_trace(spec, phase_dir) if phase_dir else None,
        resume=spec.get("resume", 0),
        peaks=_read_peaks(spec, phase_dir) if phase_dir else None,
    )


def _read_peaks(spec: Mapping[str, Any], phase_dir: PhaseDir) -> PeakOrder | None:
    """The order to measure; None if there is none, as in every later attempt of a job."""
    when, phase, args = spec.get("peaks"), str(spec.get("phase", "")), spec.get("args")
    if when not in ("once", "always") or phase_dir.attempt:
        return None
    root = phase_dir.root
    owner = root.parent if is_job_root(root, phase) else None
    precision = args.get("precision") if isinstance(args, dict) else None
    run = PhaseDir(root, owner=owner).run
    return PeakOrder(run, phase, when == "always", str(precision or ""))


def _read_trace(spec: Mapping[str, Any], phase_dir: PhaseDir) -> TraceOrder | None:
    if "trace" not in spec:
        return None
    order, rank = spec["trace"], _count("RANK")
    path = phase_dir.rank_trace(rank) if rank in order["ranks"] else None
    return TraceOrder(order["first"], order["last"], path)


def _read_fault(spec: Mapping[str, Any], phase_dir: PhaseDir) -> dict[str, Any] | None:
    """The fault that the phase's spec names.

    Raises EnvironmentUnusable if the launcher's variable does not name the same fault.
    """
    value = spec.get("fault")
    fault = value if isinstance(value, dict) else {}
    name, variable = fault.get("name"), os.environ.get(FAULT)
    if name != variable:
        raise EnvironmentUnusable(
            f"{FAULT}={variable!r} in the rank's environment, but {phase_dir.spec} names {name!r}; "
            "only --cluster-prove stages faults, and it sets both: unset the variable"
        )
    return fault or None


def _set_single_rank() -> None:
    """Set the variables that torchrun would set for one rank, with a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    os.environ.update(variables, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))


def _count(name: str, default: str | None = None) -> int:
    text = os.environ.get(name, default)
    if text is None or not text.isdecimal():
        raise EnvironmentUnusable(
            f"{name}={text!r} in the rank's environment; expected a whole number, set by the "
            "launcher"
        )
    return int(text)


def _wanted_device() -> str:
    wanted = os.environ.get("CLUSTERSMOKE_DEVICE") or "auto"
    if wanted not in ("auto", "cpu", "cuda"):
        raise EnvironmentUnusable(f"CLUSTERSMOKE_DEVICE={wanted!r}; expected auto, cpu or cuda")
    return wanted


def _timeout_s() -> float:
    text = os.environ.get("CLUSTERSMOKE_PG_TIMEOUT_S")
    if not text:
        return DEFAULT_TIMEOUT_S
    try:
        timeout_s = float(text)
    except ValueError:
        timeout_s = 0.0
    if not 0 < timeout_s < float("inf"):
        raise EnvironmentUnusable(
            f"CLUSTERSMOKE_PG_TIMEOUT_S={text!r}; expected a number of seconds above 0"
        )
    return timeout_s
