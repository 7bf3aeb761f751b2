"""The record of a run, which is report.json: every view is rendered from it, and none judges.

Times are Unix seconds, durations are seconds; other units are in the field's name. A number that is
not finite is written as text: nan, inf or -inf. report/record_schema.py makes the JSON Schema of
these models.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema
from typing_extensions import NotRequired, TypedDict  # pydantic wants these below Python 3.12

from .collective_curves import CurveRecord
from .node_naming import NamedNodeRecord, PlacesRecord
from .progress_record import ProgressRecord, ProvenStepsRecord, TraceRecord
from .run_counts import (
    AttemptRecord,
    CriterionRecord,
    KnownRecord,
    MissingRecord,
    Outcome,
    PeaksRecord,
    PhaseCounts,
    ProofRecord,
    RecordModel,
    RunCounts,
)
from .run_request import RequestRecord
from .screen_record import ScreenRecord
from .telemetry import to_json_value

SCHEMA = 1

# A non-finite number is its name.
Number = Annotated[float | Literal["nan", "inf", "-inf"], BeforeValidator(to_json_value)]


class HardwareRecord(RecordModel):
    """What the profile says a node has."""

    gpu: str
    device: str
    gpus_per_node: int
    interconnect: str


class EvidenceRecord(RecordModel):
    """One line that shows a finding."""

    file: str = Field(
        description="a path in the phase's folder of the report; absolute if it is not the run's"
    )
    line: int
    text: str


class FindingRecord(RecordModel):
    """A cause, its evidence and the next step."""

    id: str = Field(description="names the kind of cause")
    cause: str
    fix: str = Field(description="the next step")
    primary: bool = Field(
        description="it is a cause; other findings follow from a cause or accompany it"
    )
    evidence: list[EvidenceRecord]
    hosts: list[str]
    ranks: list[int]
    detail: dict[str, Any]
    severity: str = Field(description="failure, or warning")


class DriftRecord(TypedDict):
    """The newest nights of a metric compared with the level that was last accepted."""

    status: Literal["ok", "fail", "not confirmed", "not measured"]
    nights: Annotated[int, Field(description="good nights that the level is the median of")]
    level: float | None
    text: str
    median: NotRequired[Annotated[float, Field(description="of the nights of the loss")]]
    reruns: NotRequired[
        Annotated[list[float], Field(description="the values of reruns (history_check: confirm)")]
    ]


class PastRecord(TypedDict):
    """A metric compared with past good runs on the same hardware and versions."""

    status: Literal["ok", "warn", "fail", "not enough history", "too noisy"]
    runs: int
    median: float | None
    mad: Annotated[float | None, Field(description="scaled to a standard deviation")]
    spread: NotRequired[Annotated[float | None, Field(description="the unit of the bounds")]]
    warn: Annotated[float | None, Field(description="the value at which it warns")]
    fail: Annotated[
        float | None,
        Field(description="the value at which it fails; null also for a metric that only warns"),
    ]
    text: str
    comparison: NotRequired[Annotated[str, Field(description="the text without the value")]]
    other_versions: NotRequired[
        Annotated[
            bool, Field(description="compared with runs on other versions, which can only warn")
        ]
    ]
    drift: NotRequired[
        Annotated[DriftRecord, Field(description="of throughput, bandwidth and memory")]
    ]


class TrendRecord(TypedDict):
    """Past runs of a phase, the oldest first, without this one."""

    run_ids: list[str]
    begun: list[float]
    good: Annotated[list[bool], Field(description="later runs are judged against it")]
    same: Annotated[list[bool], Field(description="same hardware and versions as this run")]
    metrics: Annotated[dict[str, list[Number | None]], Field(description="one value per run")]


for closed in (DriftRecord, PastRecord, TrendRecord):  # reject unknown keys
    closed.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[union-attr]


class ReferenceRecord(RecordModel):
    """A metric's reference, with its bounds in the metric's unit."""

    value: float
    low: float | None
    high: float | None
    source: str


class MetricRecord(RecordModel):
    """A metric of a phase, beside its reference and its past."""

    value: Number = Field(description="that of the worst rank")
    unit: str
    higher_is_better: bool
    reference: ReferenceRecord | None
    met: bool | None = Field(description="null: there is no reference of the phase's sizes")
    text: str = Field(description="value and comparison, in words")
    past: PastRecord | None


class NodeRecord(RecordModel):
    """One node of a phase; its facts are in the run's `nodes`."""

    node_rank: int
    node: str
    host: str

    @property
    def is_named(self) -> bool:
        """Whether anybody said which node it is: those of a job that never ran have a number."""
        return self.node != f"node {self.node_rank}"


class FactsRecord(RecordModel):
    """The facts of a node, once for all phases; `…` replaces those that are too large."""

    node: str
    host: str
    phases: list[str] = Field(description="in which it wrote facts; empty if it never did")
    facts: dict[str, Any] = Field(description="from the last of these phases")
    earlier: dict[str, dict[str, Any]] = Field(description="phase -> facts that differed there")


class SpreadRecord(RecordModel):
    """Percentiles of a rank's steps after warm-up, in seconds."""

    p5: float
    p25: float
    p50: float
    p75: float
    p95: float


class RankRecord(RecordModel):
    """One rank of a phase."""

    rank: int
    node_rank: int | None
    node: str
    host: str
    local_rank: int | None
    device: str
    done: bool
    steps: int
    peak_memory_gib: Number | None
    step_s: SpreadRecord | None
    own_s: SpreadRecord | None = Field(description="the part of a step before its first collective")
    gpu: str = Field(
        default="", description="the UUID of its GPU; on CPU its host, node and local rank"
    )
    own_step_s: float | None = Field(
        default=None,
        description="its forward, backward and optimizer, without waiting for other ranks; on CPU "
        "the CPU time; null also if it shares its GPU",
    )
    behind: bool = Field(description="it kept the others waiting")


class LinkRecord(RecordModel):
    """A connection between two ranks, as NCCL logged it."""

    source: int
    destination: int
    inside: bool = Field(description="both ranks are on one node")
    transport: str = Field(description="in NCCL's wording")
    kind: str = Field(description="the first two parts of the transport")
    nics: list[str]
    channels: int
    unexpected: str = Field(
        description="why, by the cluster's `expect`; empty if the link is as expected or not judged"
    )
    where: str = Field(description="file:line")


class GroupRecord(RecordModel):
    """All links of one kind between two nodes, or inside one."""

    nodes: tuple[int, int] = Field(description="node ranks, the lower one first")
    kind: str
    links: int
    unexpected: int
    bandwidth_gb_per_s: float | None = Field(
        description="between the two nodes, each way at once, where it was measured"
    )


class TopologyRecord(RecordModel):
    """Which ranks of a phase were connected, and over which transport."""

    backend: str
    note: str = Field(description="why links are missing")
    links: list[LinkRecord] = Field(description="at most 2,000, the unexpected ones first")
    groups: list[GroupRecord] = Field(description="all")


class RemarkRecord(RecordModel):
    """A remark about an environment variable."""

    name: str = Field(description="the variable")
    severity: str = Field(description="failure, warning or note")
    source: str = Field(description="where it was set, as file:line or in words")
    text: str


class PhaseRecord(RecordModel):
    """One phase: its job, what it measured, and its criteria."""

    phase: str
    outcome: Outcome
    reason: str = Field(description="why the outcome is this one")
    job_id: str = Field(description="the scheduler's; empty if nothing was submitted")
    fault: str = Field(
        default="", description="the staged fault, if any: then nothing here is about the cluster"
    )
    attempts: list[AttemptRecord] = Field(
        default=[],
        description="its jobs in order if it was tried again; all else is the last's",
    )
    requeues: int = Field(
        default=0, description="how often its job was requeued and went on from what it had saved"
    )
    suspended_s: float = Field(default=0.0, description="how long its job was suspended")
    scheduler_state: str
    scheduler_nodes: str
    estimated_start: float | None = Field(description="the scheduler's estimate, Unix s")
    submitted: float | None = Field(description="Unix s")
    started: float | None = Field(description="Unix s")
    ended: float | None = Field(description="Unix s")
    queue_s: float | None = Field(description="from submission to start")
    run_s: float | None = Field(description="from start to end")
    torchrun_s: float | None = Field(description="run time of the launcher, on the slowest node")
    overhead_s: float | None = Field(
        description="from submission to result, less queue and launcher"
    )
    findings: list[FindingRecord]
    known: KnownRecord | None
    world_size: int = Field(description="ranks")
    marks: list[str] = Field(description="singlegpu, multigpu or multinode")
    args: dict[str, Any] = Field(description="of the rank program")
    nodes: list[NodeRecord]
    ranks: list[RankRecord]
    versions: dict[str, str] = Field(description="those of the ranks, and the driver's")
    hardware: str = Field(description="what it ran on; runs on other hardware are not compared")
    shape: str = Field(
        description="nodes, ranks, arguments, variables; runs of another shape are not compared"
    )
    transport: str = Field(description="the transports that the ranks used, in words")
    topology: TopologyRecord | None
    metrics: dict[str, MetricRecord]
    loss: list[tuple[int, Number]] = Field(
        description="step, mean over all ranks; thinned if there are many"
    )
    trend: TrendRecord | None
    changed: list[str] = Field(description="versions that changed since the last good run")
    last_good: str = Field(default="", description="id of the last good run; empty without one")
    remarks: list[RemarkRecord]
    stage_seconds: dict[str, float]
    proven_steps: ProvenStepsRecord | None = Field(
        default=None, description="null: the program gave no `Proof`"
    )
    peaks: PeaksRecord | None = Field(
        default=None, description="null: no device was measured in this phase"
    )
    peak_share: float | None = Field(
        default=None,
        description="FLOP/s of the training over the GEMM that its devices reached, of the lowest "
        "rank: per token 4 x parameters + 2 x trained ones; null: not known",
    )
    dense_share: float | None = Field(
        default=None,
        description="the same over what that rank's device could multiply at its highest clock; "
        "null: not known",
    )
    traces: list[TraceRecord] = Field(default=[], description="those of --cluster-trace")
    places: PlacesRecord | None = Field(default=None, description="null: not known")
    collectives: list[CurveRecord] = Field(
        default=[], description="bus bandwidth and time by message size, where all ranks measured"
    )
    progress: ProgressRecord | None = Field(
        default=None, description="how far its job got; null: it passed, or wrote nothing"
    )
    criteria: dict[str, CriterionRecord] = Field(description="by name; `job` is the job itself")
    all_criteria: bool = Field(description="every criterion of the class reported a result")
    not_measured: list[str] = Field(description="kinds of criteria that could not be judged")
    counts: PhaseCounts = Field(default_factory=PhaseCounts, description="of its criteria")


class DifferenceRecord(RecordModel):
    """A fact that should be the same on all nodes, but is not."""

    fact: str
    values: dict[str, list[str]] = Field(
        description="value -> nodes; the value of most nodes first"
    )


class RunRecord(RecordModel):
    """A run. Times are Unix seconds, durations are seconds; other units are in the key or beside
    the number. A number that is not finite is written as text: nan, inf or -inf."""

    schema_version: Literal[1] = Field(alias="schema", json_schema_extra={"type": "integer"})
    run_id: str
    package_version: str
    cluster: str
    backend: str
    hardware: HardwareRecord
    evidence: str = Field(description="the run's directory on the cluster")
    begun: float = Field(description="Unix s")
    written: float = Field(description="Unix s")
    attached: list[float] = Field(
        default=[], description="when later processes went on with the run, Unix s"
    )
    verdict: str = Field(
        description="FIT, UNFIT or INCONCLUSIVE; of a proof PROVEN, NOT PROVEN or INCONCLUSIVE"
    )
    sentence: str = Field(description="the verdict with its scope and reasons")
    failed: list[str] = Field(description="in words")
    not_measured: list[str] = Field(description="what was required and not measured, in words")
    missing: list[MissingRecord] = Field(
        default=[], description="what `not_measured` lists, by phase and kind"
    )
    known: list[KnownRecord]
    known_remarks: list[str] = Field(
        description="entries of `known` that have expired, or that no failure needed"
    )
    phases_chosen: list[str]
    phases_of_cluster: list[str]
    selection: str = Field(
        description="what was selected or changed; empty if all of the cluster's criteria ran"
    )
    interrupted: bool
    partial: str = Field(
        description="why the record is incomplete; empty if the run ended normally"
    )
    absent_phases: list[str] = Field(description="phases that this cluster does not run, and why")
    changes: list[str] = Field(description="since the previous run, in words")
    nodes: list[FactsRecord]
    differences: list[DifferenceRecord] = Field(description="at most 1,000")
    phases: list[PhaseRecord]
    counts: RunCounts = Field(
        default_factory=RunCounts, description="what else decides the verdict"
    )
    request: RequestRecord | SkipJsonSchema[None] = None
    named_nodes: list[NamedNodeRecord] = Field(
        default=[], description="those of the most phases first; at most 64"
    )
    proof: ProofRecord | SkipJsonSchema[None] = None
    screen: ScreenRecord | SkipJsonSchema[None] = None

    @property
    def is_of_cluster(self) -> bool:
        """Whether phases were to judge the cluster: it is neither a proof nor a screen."""
        return self.proof is None and self.screen is None

    @property
    def utc_offset_s(self) -> int | None:
        """Of the local time where the run began, in seconds east of UTC; None: unknown."""
        return self.request.utc_offset_s if self.request is not None else None

    def as_json(self) -> dict[str, Any]:
        """The record as in report.json."""
        return self.model_dump(by_alias=True, exclude_unset=True)
