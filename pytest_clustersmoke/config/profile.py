"""The validated, frozen profile: its keys, their types, and the rules between them.

The descriptions go into the JSON Schema.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from . import field_types as f
from .expectations import Expectation, References
from .hosts import Hosts, SshSettings, refuse_repeated
from .marker import LauncherName
from .sbatch_options import Options, normalize_option
from .sweep import Sweep, find_mistake
from .waivers import Known
from .yaml_source import Reading, Route, Source

# Seconds without progress after which a stage counts as hung; a profile can override them.
STAGE_LIMITS_S: dict[str, float] = {
    "init": 120,
    "peaks": 300,
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
CRITERIA_KINDS = ("transports", "references", "history", "peaks", "health")
# Backends that submit nothing to Slurm.
OTHER_BACKENDS = ("local", "ssh")


def _with_defaults(limits: dict[str, float]) -> dict[str, float]:
    return {**STAGE_LIMITS_S, **limits}


_StageLimits = dict[Annotated[str, f.one_of("stage", STAGE_LIMITS_S)], f.Seconds]


class Hardware(f.Section):
    """The hardware of a node."""

    gpu: f.Line = Field(
        description="the GPU's name as its driver reports it; `any`; or `none` to request no GPU"
    )
    device: Literal["cuda", "cpu", "auto"] = Field(
        default="cuda",
        description="what ranks train on; `auto` means CUDA if a node has enough GPUs",
    )
    gpus_per_node: f.Count = Field(
        description="GPUs per node, and so the most ranks that a node runs"
    )
    interconnect: str = Field(default="", description="how the nodes are connected, for the reader")
    nodes: f.Count | None = Field(
        default=None, description="number of nodes in the cluster, if that limits a phase"
    )

    @model_validator(mode="after")
    def _has_a_device(self) -> Hardware:
        if self.gpu == "none" and self.device != "cpu":
            what = "`gpu: none` in {at} without `device: cpu`"
            error = f.misfit("the GPU's name, or `device: cpu`", what=what)
            f.raise_misfits([(("gpu",), error, self.gpu)])
        return self


class EnvBlock(f.Section):
    """Variables of the node's environment."""

    set: dict[f.VariableName, f.VariableValue] = Field(
        default={}, description="variables to set, after `unset`"
    )
    unset: tuple[f.VariableName, ...] = Field(
        default=(), description="variables to remove, after `setup`"
    )

    @model_validator(mode="after")
    def _sets_or_unsets(self) -> EnvBlock:
        misfits: f.Misfits = []
        for name in (name for name in self.set if name in self.unset):
            what = f"`{name}` in {{at}} is under both `set` and `unset`"
            misfits.append((("set", name), f.misfit("one of the two", what=what), name))
        f.raise_misfits(misfits)
        return self


class EnvSettings(f.Section):
    """The environment on the nodes, by the number of nodes of a phase."""

    common: EnvBlock = Field(default=EnvBlock(), description="for every phase")
    single_node: EnvBlock = Field(
        default=EnvBlock(), description="for phases of one node, after `common`"
    )
    multi_node: EnvBlock = Field(
        default=EnvBlock(), description="for phases of several nodes, after `common`"
    )


class IsolationBudget(f.Section):
    """What --cluster-isolate may take for each phase that failed."""

    tests: f.Count = Field(default=64, description="jobs on groups of the failed job's nodes")
    minutes: Annotated[float, Field(gt=0)] = Field(
        default=60.0, description="time after which no further test starts, and those that run end"
    )


class Limits(f.Section):
    """How much of the cluster a run may use, and how long it waits."""

    max_jobs: f.Count = Field(default=8, description="jobs at once, pending or running")
    queue_wait_s: f.Seconds | None = Field(
        default=None, description="how long a job may wait in the queue; no limit by default"
    )
    retries: Annotated[int, Field(ge=0, le=9)] = Field(
        default=0,
        description="how often to try a phase again after its job lost a node or was preempted",
    )
    retried: Literal["fail", "pass"] = Field(
        default="fail",
        description="`pass`: a phase whose last job passed passes, even if a node failed before",
    )
    scheduler_patience_s: f.Seconds = Field(
        default=300.0, description="how long to wait for a scheduler that cannot answer now"
    )
    poll_s: Annotated[float, Field(gt=0, le=3)] = Field(
        default=2.0, description="seconds between two queries of the scheduler while a job runs"
    )
    dump_wait_s: f.Seconds = Field(
        default=10.0, description="seconds to wait for the other nodes' stacks after a hang"
    )
    stop_before_s: f.Count = Field(
        default=120, description="seconds before its end at which a job with `resume` must stop"
    )
    screen_s: f.Seconds = Field(
        default=60.0, description="seconds that each node has for `--cluster-screen`, `setup` too"
    )
    screen_peaks_s: f.Seconds = Field(
        default=180.0,
        description="seconds that each node then has to measure its devices, unless `peaks: never`",
    )
    isolate: IsolationBudget = Field(
        default=IsolationBudget(),
        description="what --cluster-isolate may take for each phase that failed",
    )
    keep_runs: f.Count = Field(default=30, description="number of runs to keep, and of screens")
    publish: Literal["names", "all"] = Field(
        default="all",
        description="`names`: reports have no user, path, UUID or serial number, nor copies of the "
        "jobs' files; these stay in the run directory and in history.db, which only you can read",
    )


class PhaseSettings(f.Section):
    """The cluster's settings for one phase; an absent key keeps the marker's value."""

    nodes: f.Count | None = Field(default=None, description="nodes of the job")
    gpus_per_node: f.Count | None = Field(default=None, description="GPUs, and so ranks, per node")
    timeout_s: f.Seconds | None = Field(default=None, description="how long the phase may run")
    launcher: LauncherName | None = Field(
        default=None, description="what starts the ranks on the nodes; torchrun by default"
    )
    after: f.After | None = Field(
        default=None, description="the phase whose job must pass before this one starts"
    )
    proof: Literal["sampled", "twin"] | None = Field(
        default=None,
        description="what is proven of the training: some steps (`sampled`), or also all again "
        "(`twin`), in twice the time",
    )
    proof_steps: f.Count | None = Field(
        default=None,
        description="steps to be proven besides the first and the last, drawn at random (3)",
    )
    peaks: Literal["once", "never"] | None = Field(
        default=None, description="as for the cluster, for this phase"
    )
    resume: f.Resume | None = Field(
        default=None,
        description="steps after which the phase stops, saves, and goes on in new processes; "
        "true: only where the scheduler asks it to; 0: it does not stop",
    )
    sweep: dict[f.ArgumentName, tuple[f.SweptValue, ...]] | None = Field(
        default=None,
        description="values of arguments: one phase for each combination, on Slurm all in one job "
        "array; {} drops the marker's",
    )
    nodes_fixed: bool | None = Field(
        default=None,
        description="true: the program runs on this number of nodes only, and --cluster-isolate "
        "cannot run it on fewer",
    )
    writes_gib: f.Seconds | None = Field(
        default=None, description="GiB that the phase writes; `shared_dir` must have room for them"
    )
    slurm: Options = Field(default={}, description="sbatch options; `false` drops one")
    args: dict[f.ArgumentName, f.Argument] = Field(
        default={}, description="arguments of the rank program"
    )
    env: EnvBlock = Field(default=EnvBlock(), description="variables, after those of the cluster")
    stage_limits_s: _StageLimits = Field(
        default={}, description="as for the cluster, for this phase"
    )

    @field_validator("sweep")
    @classmethod
    def _has_points(cls, sweep: Sweep | None) -> Sweep | None:
        mistake = find_mistake(sweep or {})
        if mistake is not None:
            raise f.misfit(mistake[1], what=f"{{key}} {mistake[0]}")
        return sweep

    @field_validator("nodes", "gpus_per_node")
    @classmethod
    def _fits_the_hardware(cls, asked: int | None, info: ValidationInfo) -> int | None:
        available = f.profile_value(info, "hardware", str(info.field_name))
        if asked is not None and isinstance(available, int) and asked > available:
            thing = "nodes" if info.field_name == "nodes" else "GPUs per node"
            what = f"{{at}} asks for {asked} {thing}, but the hardware has {available}"
            raise f.misfit(f"at most {available}", what=what)
        return asked


class Profile(f.Section):
    """A cluster of cluster.yaml, validated and with its variables expanded."""

    backend: Literal["local", "slurm", "ssh"] = Field(
        description="how jobs are run: on this machine, by Slurm, or on hosts without a scheduler"
    )
    description: str = Field(default="", description="one line for `--cluster-list`")
    shared_dir: f.AbsolutePath = Field(
        description="directory of the runs, which every node sees under the same path"
    )
    node_local: tuple[f.PathText, ...] = Field(
        default=(), description="paths that nodes do not share; nothing of a run may lie there"
    )
    python: f.Line | None = Field(
        default=None, description="shell command for Python on the nodes; by default this Python"
    )
    lab: bool = Field(default=False, description="use the Slurm that `clustersmoke lab up` started")
    hosts: Annotated[Hosts, AfterValidator(refuse_repeated)] = Field(
        default=(), description="the hosts that `backend: ssh` runs jobs on"
    )
    ssh: SshSettings = Field(
        default=SshSettings(), description="how ssh logs in on `hosts` that do not say otherwise"
    )
    hardware: Hardware = Field(description="the hardware of a node")
    setup: tuple[f.Text, ...] = Field(
        default=(),
        description="shell lines that run before the job; the node's shell expands variables",
    )
    slurm: Options = Field(default={}, description="sbatch options of every job")
    env: EnvSettings = Field(default=EnvSettings(), description="variables on the nodes")
    limits: Limits = Field(
        default=Limits(), description="how much a run may use, and how long it waits"
    )
    stage_limits_s: Annotated[_StageLimits, AfterValidator(_with_defaults)] = Field(
        default=STAGE_LIMITS_S,
        description="seconds without progress after which a stage counts as hung",
    )
    require: tuple[Annotated[str, f.one_of("kind of criteria", CRITERIA_KINDS)], ...] = Field(
        default=(), description="kinds of criteria without which a phase cannot be FIT"
    )
    peaks: Literal["once", "never"] = Field(
        default="once",
        description="`once`: the first phase on a device measures what it can do, before it trains",
    )
    sizes: Literal["full", "small"] = Field(
        default="full",
        description="`small`: each phase runs with the arguments that its marker gives as `small`",
    )
    phases: dict[f.PhaseName, Annotated[PhaseSettings, f.NoneToEmpty]] = Field(
        min_length=1, description="the phases that run here, with this cluster's settings for each"
    )
    references: dict[f.ListedPhase, References] = Field(
        default={}, description="reference values, by phase and metric"
    )
    history_check: Literal["fail", "warn", "confirm"] = Field(
        default="fail",
        description="whether a metric that is worse than in its past runs fails its criterion, is "
        "only reported (for a machine that also does other work), or, if the loss is a lasting "
        "one, fails only if reruns of the phase confirm it",
    )
    expect: dict[f.ListedPhase, Expectation] = Field(
        default={}, description="expected transports and versions, by phase"
    )
    known: tuple[Known, ...] = Field(
        default=(), description="failures to report as known, neither as passed nor as failed"
    )

    @field_validator("shared_dir")
    @classmethod
    def _is_shared(cls, shared: Path, info: ValidationInfo) -> Path:
        local = f.profile_value(info, "node_local")
        for path in local if isinstance(local, tuple) else ():
            if isinstance(path, str) and path and shared.is_relative_to(path):
                what = f"`shared_dir` in {{at}} is {shared}, below {path}, which nodes do not share"
                expected = "a directory that every node sees under the same path"
                raise f.misfit(expected, what=what)
        return shared

    @field_validator("lab")
    @classmethod
    def _is_a_slurm(cls, lab: bool, info: ValidationInfo) -> bool:
        backend = f.profile_value(info, "backend")
        if lab and backend in OTHER_BACKENDS:
            what = f"`lab: true` in {{at}}, but the profile's backend is `{backend}`"
            raise f.misfit("`backend: slurm`, since the lab runs Slurm", what=what)
        return lab

    @field_validator("hosts", "ssh")
    @classmethod
    def _is_for_ssh(cls, value: object, info: ValidationInfo) -> object:
        backend, key = f.profile_value(info, "backend"), info.field_name
        if backend in ("local", "slurm"):
            what = f"`{key}` in {{at}}, but the profile's backend is `{backend}`"
            raise f.misfit("`backend: ssh`, which reaches hosts itself", f"remove `{key}`", what)
        return value

    @model_validator(mode="after")
    def _has_hosts(self) -> Profile:
        if self.backend == "ssh" and not self.hosts:
            error = f.misfit("a list of hosts", what="`backend: ssh` in {at} without `hosts`")
            f.raise_misfits([(("backend",), error, self.backend)])
        return self

    _name: str = PrivateAttr("")
    _source: Source = PrivateAttr(default_factory=lambda: Source("cluster.yaml"))

    @property
    def name(self) -> str:
        """The profile's name: its key under `clusters`."""
        return self._name

    @property
    def most_nodes(self) -> int | None:
        """How many nodes a phase can have; None if that is not known."""
        return min(filter(None, (self.hardware.nodes, len(self.hosts))), default=None)

    @property
    def file(self) -> str:
        """The cluster.yaml that has it."""
        return self._source.file

    def where(self, *route: str | int) -> str:
        """`file:line` of a key, or of the nearest key around it if it is absent."""
        under: Route = ("clusters", self._name)
        for part in route:
            under = (*under, key_form(under, part) if isinstance(part, str) else part)
        return self._source.where(under)

    def has_key(self, *route: str) -> bool:
        """Whether the file has the key; otherwise its value is the tool's default."""
        return ("clusters", self._name, *route) in self._source.lines


def key_form(route: Route, key: str) -> str:
    """The canonical form of sbatch options and arguments: underscores in place of dashes."""
    inside = route[2:]
    if inside == ("slurm",) or (
        len(inside) == 3 and inside[0] == "phases" and inside[2] in ("slurm", "args")
    ):
        return normalize_option(key)
    return key


def is_text(route: Route) -> bool:
    """Whether a number at this key is text: `2.10` as a version, `1` as the value of a variable."""
    inside = route[2:]
    in_env = inside[:1] == ("env",) or (inside[:1] == ("phases",) and inside[2:3] == ("env",))
    return (in_env and inside[-2:-1] == ("set",)) or (
        inside[:1] == ("expect",) and inside[2:3] == ("versions",)
    )


READING = Reading(key=key_form, is_text=is_text)
