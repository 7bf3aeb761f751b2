"""The checked, frozen form of a profile: which keys there are, and of what kind.

What keys mean together is checked in `checks.py`. The descriptions go into the JSON Schema.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr

from pytest_clustersmoke.cluster import fields as f
from pytest_clustersmoke.cluster.sbatch import normal
from pytest_clustersmoke.cluster.source import Reading, Route, Source

# Seconds without progress after which a stage counts as hung; a profile may set its own.
STAGE_LIMITS_S: dict[str, float] = {
    "init": 120,
    "data": 600,
    "model": 300,
    "compile": 600,
    "first_step": 300,
    "train_step": 60,
    "probe": 300,
    "checkpoint": 600,
    "reload": 600,
}
# Kinds of criteria that `require` can make necessary for FIT.
CRITERIA_KINDS = ("transports", "references", "history")
# What `expect.<phase>.versions` can be compared with.
VERSION_NAMES = (
    "python",
    "torch",
    "cuda",
    "cudnn",
    "nccl",
    "driver",
    "deepspeed",
    "transformers",
    "peft",
    "datasets",
    "accelerate",
)

_StageLimits = dict[str, f.Seconds]


def _with_defaults(limits: dict[str, float]) -> dict[str, float]:
    return {**STAGE_LIMITS_S, **limits}


class _Model(BaseModel):
    # Inner models are built once, as part of the profile that holds them.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


class Hardware(_Model):
    """What a node of the cluster has."""

    gpu: f.Line = Field(
        description="the GPU's name, as its driver gives it; `any`, or `none` to ask for no GPU"
    )
    device: Literal["cuda", "cpu", "auto"] = Field(
        default="cuda",
        description="what ranks train on; `auto` is CUDA where a node has enough GPUs",
    )
    gpus_per_node: f.Count = Field(description="GPUs, and so ranks, that a node can carry")
    interconnect: str = Field(default="", description="what joins the nodes, in words")
    nodes: f.Count | None = Field(
        default=None, description="how many nodes there are, where it matters"
    )


class EnvBlock(_Model):
    """Variables of the node's environment."""

    set: dict[str, f.VariableValue] = Field(
        default={}, description="variables to set, after `unset`"
    )
    unset: tuple[str, ...] = Field(default=(), description="variables to take out, after `setup`")


class EnvSettings(_Model):
    """The environment on the nodes, by the number of nodes a phase has."""

    common: EnvBlock = Field(default=EnvBlock(), description="for every phase")
    single_node: EnvBlock = Field(
        default=EnvBlock(), description="for phases of one node, after common"
    )
    multi_node: EnvBlock = Field(
        default=EnvBlock(), description="for phases of several, after common"
    )


class Limits(_Model):
    """How much of the cluster a run may use, and how patient it is."""

    max_jobs: f.Count = Field(default=8, description="jobs at once, pending or running")
    queue_wait_s: f.Seconds | None = Field(
        default=None, description="how long a job may wait in the queue; without it, for ever"
    )
    poll_s: Annotated[float, Field(gt=0, le=3)] = Field(
        default=2.0, description="between two looks at the scheduler while a job runs"
    )
    dump_wait_s: f.Seconds = Field(
        default=10.0, description="wait for the other nodes' stacks at a hang"
    )
    keep_runs: f.Count = Field(default=30, description="how many runs are kept")


class PhaseSettings(_Model):
    """What this cluster sets for one phase; what is absent is the phase's own."""

    nodes: f.Count | None = Field(default=None, description="nodes of the job")
    gpus_per_node: f.Count | None = Field(
        default=None, description="GPUs, and so ranks, on each node"
    )
    timeout_s: f.Seconds | None = Field(
        default=None, description="how long the phase may run at all"
    )
    writes_gib: f.Seconds | None = Field(
        default=None, description="GiB that the phase writes, for which there must be room"
    )
    slurm: dict[str, f.Option] = Field(default={}, description="sbatch options; `false` drops one")
    args: dict[str, f.Argument] = Field(default={}, description="arguments of the rank program")
    env: EnvBlock = Field(default=EnvBlock(), description="variables, after those of the cluster")
    stage_limits_s: _StageLimits = Field(default={}, description="as for the cluster, this phase's")


class Reference(_Model):
    """What a metric is measured against: a value, and how far it may be missed."""

    value: f.Seconds = Field(description="what was measured when the cluster was well")
    lower: f.Lower | None = Field(
        default=None, description="how far below is still met, as `-10 %`"
    )
    upper: f.Upper | None = Field(
        default=None, description="how far above is still met, as `+10 %`"
    )
    unit: str = Field(description="the metric's unit")
    source: f.Line = Field(description="where the value comes from, for the reader of a failure")

    @property
    def low(self) -> float | None:
        """The least that still meets the reference, in its unit."""
        return None if self.lower is None else self.value * (1 + self.lower)

    @property
    def high(self) -> float | None:
        """The most that still meets the reference, in its unit."""
        return None if self.upper is None else self.value * (1 + self.upper)


class Expectation(_Model):
    """How a phase's ranks must be joined, and what they must run on."""

    intra_node: tuple[str, ...] = Field(
        default=(), description="transports inside a node, as globs"
    )
    inter_node: tuple[str, ...] = Field(
        default=(), description="transports between nodes, as globs"
    )
    forbid: tuple[str, ...] = Field(
        default=(), description="transports that must not occur, as globs"
    )
    gpudirect: Literal["required", "forbidden", "any"] = Field(
        default="any", description="GPUDirect RDMA between nodes"
    )
    hca: f.Line | None = Field(default=None, description="name of the RDMA device, as a glob")
    versions: dict[str, f.Version] = Field(
        default={}, description="versions in the ranks, as globs"
    )


class Known(_Model):
    """A failure that somebody answers for until a day: a node's, or a criterion's of a phase."""

    node: f.Line | None = Field(
        default=None, description="the node that is bad, or a Slurm host list"
    )
    phase: f.Line | None = Field(
        default=None, description="the phase whose criterion fails, as a glob"
    )
    criterion: f.Line | None = Field(
        default=None, description="the criterion that fails, as a glob; `job` for the job itself"
    )
    reason: f.Line = Field(description="why it fails and who sees to it, in one line")
    until: f.Day = Field(description="the last day on which this holds")


class Profile(_Model):
    """One cluster of cluster.yaml, checked, its variables filled in."""

    backend: Literal["local", "slurm"] = Field(
        description="how jobs are run: on this machine, or by Slurm"
    )
    description: str = Field(default="", description="one line for `--cluster-list`")
    shared_dir: f.AbsolutePath = Field(
        description="directory of the runs, which every node sees under the same path"
    )
    node_local: tuple[f.PathText, ...] = Field(
        default=(), description="paths that nodes do not share; nothing of a run may lie there"
    )
    python: f.Line | None = Field(
        default=None, description="shell command for Python on the nodes; without it, this Python"
    )
    lab: bool = Field(default=False, description="use the Slurm that `clustersmoke lab up` started")
    hardware: Hardware = Field(description="what a node has")
    setup: tuple[f.Text, ...] = Field(
        default=(), description="shell lines before a job's work; variables are the node's"
    )
    slurm: dict[str, f.Option] = Field(default={}, description="sbatch options of every job")
    env: EnvSettings = Field(default=EnvSettings(), description="variables on the nodes")
    limits: Limits = Field(
        default=Limits(), description="how much a run may use, how patient it is"
    )
    stage_limits_s: Annotated[_StageLimits, AfterValidator(_with_defaults)] = Field(
        default=STAGE_LIMITS_S,
        description="seconds without progress after which a stage counts as hung",
    )
    require: tuple[str, ...] = Field(
        default=(), description="kinds of criteria without which a phase cannot be FIT"
    )
    sizes: Literal["full", "small"] = Field(
        default="full",
        description="`small`: each phase runs with the arguments that its marker gives as `small`",
    )
    phases: dict[str, Annotated[PhaseSettings, f.NothingIsEmpty]] = Field(
        description="the phases that run here, with what this cluster sets for each"
    )
    references: dict[str, dict[str, Reference]] = Field(
        default={}, description="by phase and metric, what to measure against"
    )
    history_check: Literal["fail", "warn"] = Field(
        default="fail",
        description="whether a metric that is off its past runs fails its criterion, or is told "
        "alone (a machine that does other work beside)",
    )
    expect: dict[str, Expectation] = Field(
        default={}, description="by phase, transports and versions that must be found"
    )
    known: tuple[Known, ...] = Field(
        default=(), description="failures that show as known, neither as passed nor as failed"
    )

    _name: str = PrivateAttr("")
    _source: Source = PrivateAttr(default_factory=lambda: Source("cluster.yaml"))

    @property
    def name(self) -> str:
        """The profile's name: its key under `clusters`."""
        return self._name

    def where(self, *route: str | int) -> str:
        """`file:line` where a key stands; of the nearest key around it where it is absent."""
        under: Route = ("clusters", self._name)
        for part in route:
            under = (*under, key_form(under, part) if isinstance(part, str) else part)
        return self._source.where(under)

    def wrote(self, *route: str) -> bool:
        """Whether the key stands in the file; else its value is the tool's default."""
        return ("clusters", self._name, *route) in self._source.lines


def key_form(route: Route, key: str) -> str:
    """sbatch options and arguments may be written with dashes; underscores are their one form."""
    inside = route[2:]
    if inside == ("slurm",) or (
        len(inside) == 3 and inside[0] == "phases" and inside[2] in ("slurm", "args")
    ):
        return normal(key)
    return key


def is_text(route: Route) -> bool:
    """Whether a number there is text: `2.10` is a version, `1` the value of a variable."""
    inside = route[2:]
    in_env = inside[:1] == ("env",) or (inside[:1] == ("phases",) and inside[2:3] == ("env",))
    return (in_env and inside[-2:-1] == ("set",)) or (
        inside[:1] == ("expect",) and inside[2:3] == ("versions",)
    )


READING = Reading(key=key_form, is_text=is_text)


def section_model(route: tuple[Any, ...]) -> type[BaseModel] | None:
    """The model behind a route inside a profile; None where keys are free."""
    if route == ():
        return Profile
    models: dict[tuple[str, int], type[BaseModel]] = {
        ("hardware", 1): Hardware,
        ("limits", 1): Limits,
        ("env", 1): EnvSettings,
        ("env", 2): EnvBlock,
        ("phases", 2): PhaseSettings,
        ("phases", 3): EnvBlock,
        ("references", 3): Reference,
        ("expect", 2): Expectation,
        ("known", 2): Known,
    }
    return models.get((str(route[0]), len(route)))
