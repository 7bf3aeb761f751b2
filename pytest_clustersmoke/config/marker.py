"""Read `@pytest.mark.phase(...)` and check it on its own, without a cluster."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from ..text import Problem, near
from .sweep import Point, Sweep, find_mistake, label, list_points

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
MARKER_KEYS = (
    "script",
    "nodes",
    "gpus_per_node",
    "args",
    "small",
    "timeout_s",
    "launcher",
    "after",
    "resume",
    "nodes_fixed",
    "sweep",
    "needs",
)
# What starts the ranks on the nodes: node/launchers.py.
LauncherName = Literal["torchrun", "torchrun-c10d", "srun", "accelerate", "deepspeed", "none"]
TORCHRUN: LauncherName = "torchrun"
DEFAULT_TIMEOUT_S = 3600.0
JOB = "job"  # the name under which a job is listed among the criteria of its phase
# Keys of a phase with one value.
SIMPLE_KEYS = (
    "nodes",
    "gpus_per_node",
    "timeout_s",
    "launcher",
    "after",
    "resume",
    "proof",
    "proof_steps",
    "peaks",
)
SET_KEYS = (*SIMPLE_KEYS, "args.X", "slurm.X", "env.X", "stage_limits_s.X")  # of --cluster-set
# What is expected of a value of `needs`, by its type.
VALUES: Mapping[type, str] = {
    bool: "True or False",
    str: "text",
    int: "a whole number, 0 or above",
    float: "a number, 0 or above",
}


@dataclass(frozen=True)
class Needs:
    """What a phase needs of a cluster besides its nodes and GPUs; `clustersmoke init` writes its
    profile by this, and a run with fewer nodes or ranks than it is useful on is refused."""

    bf16: bool = False
    writes_gib: float = 0.0  # its checkpoint
    downloads: str = ""  # what its ranks download from the Hugging Face hub
    extra: str = ""  # the extra of this package that its program needs besides `train`
    torch: str = ""  # the oldest torch that its program runs with, if newer than `train` asks for
    whole_nodes: bool = False  # it uses all GPUs of its nodes
    min_nodes: int = 0  # the fewest nodes it is useful on; 0 if it needs all of its `nodes`
    min_ranks: int = 0  # the fewest ranks that its criteria can hold with


@dataclass(frozen=True)
class PhaseMarker:
    """A valid phase marker."""

    name: str
    script: Path
    nodes: int
    gpus_per_node: int
    args: Mapping[str, Any]
    timeout_s: float
    where: str
    small: Mapping[str, Any] = field(default_factory=dict)  # arguments that train in seconds
    needs: Needs = Needs()
    launcher: LauncherName = TORCHRUN
    after: str = ""  # the phase whose job must have passed before
    # Steps before it stops, saves, and goes on in new processes; True: where the scheduler asks.
    resume: int = 0
    nodes_fixed: bool = False  # its program runs on this number of nodes only
    base: str = ""  # the phase of whose sweep this one is a point
    point: Point = field(default_factory=dict)  # the values of the arguments that are swept
    points: Sequence[str] = ()  # the names of all points of that sweep

    @property
    def entry(self) -> str:
        """The name under which a profile has it."""
        return self.base or self.name

    def at(self, point: Point, sweep: Sweep) -> PhaseMarker:
        """The phase at one point of its sweep."""
        name, *points = (f"{self.name}-{label(each)}" for each in (point, *list_points(sweep)))
        return replace(self, name=name, base=self.name, point=dict(point), points=points)

    @property
    def size_mark(self) -> str:
        return size_mark(self.nodes, self.gpus_per_node)


def size_mark(nodes: int, gpus_per_node: int) -> str:
    if nodes > 1:
        return "multinode"
    return "multigpu" if gpus_per_node > 1 else "singlegpu"


def numbers_by_node(spec: Mapping[str, Any]) -> bool:
    """Whether the launcher of a job's spec numbers the ranks by node. In torchrun's own store the
    nodes are numbered by their addresses and pids."""
    return str(spec.get("launcher", TORCHRUN)) != "torchrun-c10d"


def read_size_mark(kwargs: Mapping[str, Any]) -> str:
    """The size mark of a marker that may have mistakes: a count that is not a number is 1."""
    counts = (kwargs.get(key) for key in ("nodes", "gpus_per_node"))
    return size_mark(*(count if type(count) is int else 1 for count in counts))


def _check_arguments(key: str, args: Any, phase: str, where: str) -> list[Problem]:
    """Check that arguments can be sent to the nodes as JSON and passed on a command line."""
    if not isinstance(args, Mapping):
        return [Problem(f"{key} of {phase} is not a mapping", where, "a dict of options")]
    return [
        Problem(
            f"{key}[{name!r}]={value!r} of {phase} cannot be passed to the program",
            where,
            "a name with text, a finite number, True, False, None, or a list of these",
        )
        for name, value in args.items()
        if not isinstance(name, str) or not _is_plain(value)
    ]


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(item) and not isinstance(item, list | tuple) for item in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, bool | int | str)


def _check_needs(needs: Any, phase: str, where: str) -> list[Problem]:
    """Check that `needs` has only the fields of `Needs`, with values of their types."""
    if not isinstance(needs, Mapping):
        return [Problem(f"needs of {phase} is not a mapping", where, "a dict")]
    defaults = {item.name: item.default for item in fields(Needs)}
    problems = []
    for key, value in needs.items():
        if key not in defaults:
            expected, hint = f"one of {', '.join(defaults)}", near(str(key), defaults)
            problems.append(
                Problem(f"unknown key {key!r} in needs of {phase}", where, expected, hint)
            )
            continue
        kind = type(defaults[key])
        kinds = (int, float) if kind is float else (kind,)
        if type(value) not in kinds or (kind in (int, float) and not 0 <= value < math.inf):
            expected = VALUES[kind]
            text = f"needs[{key!r}]={value!r} of {phase} is not valid"
            problems.append(Problem(text, where, expected))
    return problems


def _check_values(kwargs: Mapping[str, Any], name: Any, where: str) -> list[Problem]:
    """Check the marker's arguments that have one value, besides its script."""
    problems = []
    launcher, names = kwargs.get("launcher", TORCHRUN), get_args(LauncherName)
    if launcher not in names:
        text = f"launcher={launcher!r} of phase {name!r} is not valid"
        expected, hint = f"one of {', '.join(names)}", near(str(launcher), names)
        problems.append(Problem(text, where, expected, hint))
    after = kwargs.get("after", "")
    if not isinstance(after, str) or (after and not NAME.fullmatch(after)):
        problems.append(
            Problem(f"after={after!r} of phase {name!r} is not valid", where, "a phase's name")
        )
    resume = kwargs.get("resume", 0)
    if not isinstance(resume, int) or resume < 0:
        expected = "a number of steps, True or 0"
        problems.append(
            Problem(f"resume={resume!r} of phase {name!r} is not valid", where, expected)
        )
    fixed = kwargs.get("nodes_fixed", False)
    if not isinstance(fixed, bool):
        text = f"nodes_fixed={fixed!r} of phase {name!r} is not valid"
        problems.append(Problem(text, where, "True or False"))
    mistake = find_mistake(kwargs.get("sweep", {}))
    if mistake is not None:
        what, expected = mistake
        problems.append(Problem(f"sweep of phase {name!r} {what}", where, expected))
    for key in ("nodes", "gpus_per_node", "timeout_s"):
        value = kwargs.get(key, 1)
        kinds = (int, float) if key == "timeout_s" else (int,)
        if type(value) not in kinds or not math.isfinite(value) or value <= 0:
            expected = "seconds above 0" if key == "timeout_s" else "a whole number above 0"
            problems.append(
                Problem(f"{key}={value!r} of phase {name!r} is not valid", where, expected)
            )
    return problems


def read_marker(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], file: Path, where: str
) -> tuple[PhaseMarker | None, list[Problem]]:
    """Check one marker. `file` is the test file: `script` is relative to its directory."""
    problems = [
        Problem(
            f"unknown argument `{key}` of the phase marker",
            where,
            f"one of {', '.join(MARKER_KEYS)}",
            near(key, MARKER_KEYS),
        )
        for key in kwargs
        if key not in MARKER_KEYS
    ]
    name = args[0] if len(args) == 1 else None
    if not isinstance(name, str) or not NAME.fullmatch(name):
        problems.append(
            Problem(
                f"the phase marker has no valid name: {', '.join(map(repr, args)) or 'nothing'}",
                where,
                "one name of letters, digits, `_` and `-` first: "
                '@pytest.mark.phase("ddp_2gpu", script="train_mlp.py")',
            )
        )
    script = kwargs.get("script")
    if not isinstance(script, str) or not script:
        problems.append(
            Problem(
                f"phase {name!r} has no script",
                where,
                'script="PROGRAM.py", a program that the launcher can start, beside the test file',
            )
        )
    problems += _check_values(kwargs, name, where)
    for key in ("args", "small"):
        problems += _check_arguments(key, kwargs.get(key, {}), f"phase {name!r}", where)
    problems += _check_needs(kwargs.get("needs", {}), f"phase {name!r}", where)
    if problems:
        return None, problems
    assert isinstance(name, str) and isinstance(script, str)
    path = (file.parent / script).resolve()
    if not path.is_file():
        problems.append(
            Problem(f"the script of phase `{name}` does not exist: {path}", where, "a file")
        )
    marked = PhaseMarker(
        name,
        path,
        int(kwargs.get("nodes", 1)),
        int(kwargs.get("gpus_per_node", 1)),
        dict(kwargs.get("args", {})),
        float(kwargs.get("timeout_s", DEFAULT_TIMEOUT_S)),
        where,
        dict(kwargs.get("small", {})),
        Needs(**kwargs.get("needs", {})),
        kwargs.get("launcher", TORCHRUN),
        str(kwargs.get("after", "")),
        kwargs.get("resume", 0),
        kwargs.get("nodes_fixed", False),
    )
    return marked, problems
