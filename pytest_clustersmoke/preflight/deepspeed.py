"""DeepSpeed's configuration files that phases are given: what DeepSpeed would refuse on the nodes.

A program that makes its configuration itself, or reads the file and may change it, shows nothing
of it here. By the settings as DeepSpeed 0.14 to 0.19 read them (deepspeed/runtime/config.py and
engine.py).
"""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Problem
from .precision import without_bf16
from .program import Program, read_program

if TYPE_CHECKING:
    from ..cluster import Profile
    from ..phase import Phase, Sourced

MAX_BYTES = 2**20
NAMES = frozenset({"deepspeed", "deepspeed_config", "ds_config"})
# Keys by which a JSON file shows that it is DeepSpeed's, whatever the argument's name.
TELLING = frozenset({"zero_optimization", "train_micro_batch_size_per_gpu"})
TRAIN, MICRO, STEPS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)
# They fill in `"auto"`, make optimizers and place ranks by rules of their own.
FILLERS = frozenset({"transformers", "accelerate", "trl", "lightning", "pytorch_lightning"})
# Calls by which a program reads such a file for itself (of json, hjson, yaml, OmegaConf), and those
# of these names that read something else.
LOADERS = ("load", "loads", "safe_load")
OF_TENSORS = frozenset({"torch.load", "np.load", "numpy.load", "pickle.load", "pickle.loads"})
# With these a rank is not one data-parallel replica.
PARALLEL = frozenset(
    {"elasticity", "tensor_parallel", "sequence_parallel_size", "pipeline", "autotp_size"}
)
OPTIMIZER_POSITION = 2  # of deepspeed.initialize(args, model, optimizer, ...)


@dataclass(frozen=True)
class Config:
    """One file as one phase is given it."""

    phase: Phase
    shown: str
    text: str
    values: Mapping[str, Any]
    program: Program

    def where(self, *keys: str) -> str:
        """`file:line` of a key, by its sections."""
        at = 0
        for key in keys:
            found = re.compile(rf'"{re.escape(key)}"\s*:').search(self.text, at)
            at = found.start() if found else at
        return f"{self.shown}:{self.text.count(chr(10), 0, at) + 1}"

    @property
    def filled(self) -> bool:
        """Whether something fills the file in."""
        return bool(self.program.imports & FILLERS)


def configurations(profile: Profile, phases: list[Phase]) -> Iterator[Problem]:
    """What is wrong with the phases' configuration files, as far as they are seen from here."""
    for phase in phases:
        for name, one in phase.args.items():
            path = _path(name, one, phase)
            if path is not None:
                yield from _file(path, name, one, phase, profile)


def _path(name: str, one: Sourced, phase: Phase) -> Path | None:
    """The file that an argument names, where it is one on this machine."""
    value = one.value
    if not isinstance(value, str) or not (name in NAMES or value.endswith(".json")):
        return None
    for folder in (Path.cwd(), phase.script.parent):
        path = folder / value
        try:
            if path.is_file():
                return path
        except OSError:  # too long for a name: the configuration itself, and no path
            continue
    return None


def _file(path: Path, name: str, one: Sourced, phase: Phase, profile: Profile) -> Iterator[Problem]:
    from ..cluster.source import shown

    try:
        with path.open("rb") as stream:
            text = stream.read(MAX_BYTES).decode(errors="replace")
        values = _values(text, read_program(phase.script))
    except (OSError, ImportError, RecursionError):
        return
    except ValueError as error:
        if name in NAMES:
            line = getattr(error, "lineno", 1)
            what = f"the DeepSpeed configuration of phase `{phase.name}` is no JSON: {error}"
            yield Problem(what, f"{shown(path)}:{line}", "JSON")
        return
    if not isinstance(values, dict) or not (name in NAMES or values.keys() & TELLING):
        return
    if phase.nodes.value > 1:
        for local in profile.node_local:
            if path.resolve().is_relative_to(local):
                yield Problem(
                    f"phase `{phase.name}` has {name}={one.value}, under {local}, which every "
                    "node has for itself",
                    one.source,
                    "a file that all nodes share",
                )
    program = read_program(phase.script)
    if program is None or not _as_it_is(program):
        return
    config = Config(phase, shown(path), text, values, program)
    yield from _optimizer(config)
    yield from _batch(config)
    yield from _precision(config, profile)
    yield from _auto(config)


def _values(text: str, program: Program | None) -> Any:
    """The configuration as its reader takes it: transformers and accelerate read JSON, DeepSpeed
    itself Hjson, which has comments and trailing commas. Raises ValueError where it is neither, and
    ImportError where what is no JSON cannot be judged here."""
    try:
        return json.loads(text)
    except ValueError:
        if program is not None and program.imports & FILLERS:
            raise
        return importlib.import_module("hjson").loads(text)  # DeepSpeed brings it along


def _as_it_is(program: Program) -> bool:
    """Whether the file goes into DeepSpeed as it is: its path is given to `initialize`, or to a
    library that reads it. A program that loads it itself may change it."""
    called = [one.node for name in LOADERS for one in program.named(name)]
    if any(ast.unparse(one.func) not in OF_TENSORS for one in called):
        return False
    return bool(program.imports & FILLERS or program.named("initialize"))


def _section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = values.get(name)
    return section if isinstance(section, dict) else {}


def _optimizer(config: Config) -> Iterator[Problem]:
    """ZeRO shares out the states of an optimizer: without one DeepSpeed 0.14 and later assert
    "zero stage 1 requires an optimizer" for stages 1 and 2; stage 3 without one cannot train."""
    stage = _section(config.values, "zero_optimization").get("stage")
    if type(stage) is not int or stage < 1 or "optimizer" in config.values or config.filled:
        return
    if any(_gives_optimizer(one.node) for one in config.program.named("initialize")):
        return
    if stage == 3 and not config.program.named("backward"):
        return  # it may only run forward
    yield Problem(
        f"the DeepSpeed configuration of phase `{config.phase.name}` has ZeRO stage {stage} and no "
        "`optimizer`, and the program gives deepspeed.initialize none",
        config.where("zero_optimization", "stage"),
        "an optimizer, whose states ZeRO shares out among the ranks",
        'add `"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}`',
    )


def _gives_optimizer(call: ast.Call) -> bool:
    """Whether a call of `initialize` gives an optimizer, or may: not all of it is seen."""
    unseen = any(one.arg is None for one in call.keywords)
    unseen = unseen or any(isinstance(one, ast.Starred) for one in call.args)
    named = [one.value for one in call.keywords if one.arg == "optimizer"]
    given = [*named, *call.args[OPTIMIZER_POSITION : OPTIMIZER_POSITION + 1]]
    return unseen or any(not (isinstance(g, ast.Constant) and g.value is None) for g in given)


def _batch(config: Config) -> Iterator[Problem]:
    """train_batch_size = micro batch x accumulation x ranks; one that is absent follows from the
    others (DeepSpeedConfig._set_batch_related_parameters)."""
    values, ranks = config.values, config.phase.world_size
    if values.keys() & PARALLEL or _places_ranks(config.program):
        return
    train, micro, steps = (values.get(key) for key in (TRAIN, MICRO, STEPS))
    if any(one is not None and type(one) is not int for one in (train, micro, steps)):
        return  # `"auto"` is told by itself
    if train is None:
        if micro is None and not config.filled:
            what = f"the DeepSpeed configuration of phase `{config.phase.name}` gives no batch size"
            yield Problem(what, config.where(), f"`{TRAIN}` or `{MICRO}`")
        return
    shape = f"{config.phase.nodes.value} nodes x {config.phase.gpus_per_node.value} GPUs"
    if micro is not None and steps is not None:
        if train != micro * steps * ranks:
            yield Problem(
                f"{TRAIN} is {train}, but phase `{config.phase.name}` has micro batch {micro} x "
                f"accumulation {steps} x {ranks} ranks ({shape}) = {micro * steps * ranks}",
                config.where(TRAIN),
                f"{micro * steps * ranks}",
                f"set it so, or leave `{TRAIN}` out: it follows from the others",
            )
        return
    other, name = (micro, "micro batch") if micro is not None else (steps, "accumulation")
    parts = (other if other is not None else 1) * ranks
    if parts > 0 and (train % parts or train < parts):
        by = f"{name} {other} x " if other is not None else ""
        yield Problem(
            f"{TRAIN} {train} of phase `{config.phase.name}` cannot be divided by {by}{ranks} "
            f"ranks ({shape}) = {parts}",
            config.where(TRAIN),
            f"a multiple of {parts}",
        )


def _places_ranks(program: Program) -> bool:
    """Whether the program may give DeepSpeed groups of its own, by which fewer ranks than all are
    data-parallel replicas."""
    given = {k.arg for one in program.named("initialize") for k in one.node.keywords}
    return bool(given & {"mpu", "mesh_param", "mesh_device", None})


def _precision(config: Config, profile: Profile) -> Iterator[Problem]:
    bf16 = next((name for name in ("bf16", "bfloat16") if name in config.values), "bf16")
    on = {name for name in (bf16, "fp16") if _section(config.values, name).get("enabled") is True}
    if len(on) == 2:
        yield Problem(
            f"the DeepSpeed configuration of phase `{config.phase.name}` enables fp16 and bf16",
            config.where("fp16", "enabled"),
            "one of them: DeepSpeed refuses both",
        )
    why = without_bf16(profile) if bf16 in on else ""
    if why:
        yield Problem(
            f"the DeepSpeed configuration of phase `{config.phase.name}` enables bf16, but {why} "
            f"({profile.where('hardware', 'gpu')})",
            config.where(bf16, "enabled"),
            'fp16 (`"fp16": {"enabled": true}`) or fp32 on this hardware',
        )


def _auto(config: Config) -> Iterator[Problem]:
    """`"auto"` is filled in by Trainer and accelerate. DeepSpeed itself takes it for the default
    in `zero_optimization` and in what else it reads as a model (config_utils.py), and breaks on it
    in batch sizes, clipping, optimizer and scheduler."""
    if config.filled:
        return
    routes = [(key,) for key in (TRAIN, MICRO, STEPS, "gradient_clipping")]
    autos = [route for route in routes if config.values.get(route[0]) == "auto"]
    named: list[tuple[str, ...]] = list(autos)
    for section in ("optimizer", "scheduler"):
        params = _section(_section(config.values, section), "params")
        named += [(section, "params", key) for key, value in params.items() if value == "auto"]
    for route in named:
        yield Problem(
            f'`{".".join(route)}` is "auto" in the DeepSpeed configuration of phase '
            f"`{config.phase.name}`, whose program has nothing that fills it in",
            config.where(*route),
            "a value: only transformers' Trainer and accelerate fill in `auto`",
        )
