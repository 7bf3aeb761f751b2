"""The shape of report.json, the one record of a run: all else is rendered from it.

report.schema.json is made from these types (json_schema.py). Times are Unix seconds, durations
seconds, sizes in the unit of their name. A number that is not finite is written as its name.
"""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import NotRequired, TypedDict  # pydantic wants these below Python 3.12

SCHEMA = 1

Number = float | Literal["nan", "inf", "-inf"]
Outcome = Literal[
    "passed", "failed", "cluster_failed", "never_ran", "preempted", "cancelled", "lost"
]
Result = Literal["passed", "failed", "skipped", "known"]


class HardwareRecord(TypedDict):
    """What the profile says a node has."""

    gpu: str
    device: str
    gpus_per_node: int
    interconnect: str


class EvidenceRecord(TypedDict):
    """One line that shows a finding; `file` is a path under the phase's evidence, or absolute."""

    file: str
    line: int
    text: str


class FindingRecord(TypedDict):
    """A cause, its evidence and the next step."""

    id: str  # of the kind of cause
    cause: str
    fix: str  # the next step
    primary: bool  # a cause; the others followed from one, or stood beside it
    evidence: list[EvidenceRecord]
    hosts: list[str]
    ranks: list[int]
    detail: dict[str, Any]
    severity: str  # failure, or warning


class ReferenceRecord(TypedDict):
    """A metric's reference, with its bounds in the metric's unit."""

    value: float
    low: float | None
    high: float | None
    source: str


class PastRecord(TypedDict):
    """A metric beside the good runs of the past on the same hardware and versions."""

    status: Literal["ok", "warn", "fail", "not enough history"]
    runs: int
    median: float | None
    mad: float | None  # scaled to a standard deviation
    spread: NotRequired[float | None]  # in which the bounds are told
    warn: float | None  # the value from which on it warns, and from which on it fails
    fail: float | None  # null also where it only warns
    text: str
    other_versions: NotRequired[bool]  # it is compared with runs on these; that only warns


class MetricRecord(TypedDict):
    value: Number  # that of the rank that did worst
    unit: str
    higher_is_better: bool
    reference: ReferenceRecord | None
    met: bool | None  # None: no reference
    text: str  # value and comparison, in words
    past: PastRecord | None


class NodeRecord(TypedDict):
    """One node of a phase; what it said of itself stands in the run's `nodes`."""

    node_rank: int
    node: str
    host: str


class FactsRecord(TypedDict):
    """What a node said of itself, once for all phases; what was too large is cut, with `…`."""

    node: str
    host: str
    phases: list[str]  # in which it told its facts; none of a node that never did
    facts: dict[str, Any]  # as it told them in the last of these
    earlier: dict[str, dict[str, Any]]  # phase -> the facts that it told otherwise there


class Spread(TypedDict):
    """Percentiles of a rank's steps after warm-up, in seconds."""

    p5: float
    p25: float
    p50: float
    p75: float
    p95: float


class RankRecord(TypedDict):
    rank: int
    node_rank: int | None
    node: str
    host: str
    local_rank: int | None
    device: str
    done: bool
    steps: int
    peak_memory_gib: Number | None
    step_s: Spread | None
    own_s: Spread | None  # the part of the step before the first collective
    behind: bool  # it kept the others waiting


class LinkRecord(TypedDict):
    """What joins two ranks, as NCCL logged it."""

    source: int
    destination: int
    inside: bool  # both are on one node
    transport: str  # NCCL's wording
    kind: str  # its first two parts
    nics: list[str]
    channels: int
    unexpected: str  # why, by the cluster's `expect`; empty where it is as expected or not judged
    where: str  # file:line


class GroupRecord(TypedDict):
    """All links of one kind between two nodes, or inside one; by node rank, the lower one first."""

    nodes: tuple[int, int]
    kind: str
    links: int
    unexpected: int
    bandwidth_gb_per_s: float | None  # of the pair, each way at once, where it was measured


class TopologyRecord(TypedDict):
    backend: str
    note: str  # why there are no links, or not all
    links: list[LinkRecord]  # at most MAX_LINKS; those unexpected first
    groups: list[GroupRecord]  # all


class KnownRecord(TypedDict):
    """A failure that somebody answers for until a day."""

    what: str
    reason: str
    until: str  # YYYY-MM-DD
    where: str  # file:line


class CriterionRecord(TypedDict):
    result: Result
    text: str
    known: NotRequired[KnownRecord]  # who answers for it, where the result is known


class TrendRecord(TypedDict):
    """Past runs of a phase, the oldest first, this one not among them."""

    run_ids: list[str]
    begun: list[float]
    good: list[bool]  # later runs are measured against it; docs/reference/history.md says which are
    same: list[bool]  # on the hardware and versions of this run
    metrics: dict[str, list[Number | None]]  # one value for each run


class PhaseRecord(TypedDict):
    phase: str
    outcome: Outcome
    reason: str  # why the outcome is this one
    job_id: str  # the scheduler's; empty where nothing was submitted
    fault: NotRequired[str]  # a fault was staged: nothing here tells of the cluster
    scheduler_state: str
    scheduler_nodes: str
    estimated_start: float | None  # the scheduler's estimate, Unix s
    submitted: float | None  # Unix s
    started: float | None  # Unix s
    ended: float | None  # Unix s
    queue_s: float | None  # from submission to start
    run_s: float | None  # from start to end
    torchrun_s: float | None  # torchrun's own, on the slowest node
    overhead_s: float | None  # from submission to result, less queue and torchrun
    findings: list[FindingRecord]
    known: KnownRecord | None
    world_size: int  # ranks
    marks: list[str]  # singlegpu, multigpu or multinode
    args: dict[str, Any]  # of the rank program
    nodes: list[NodeRecord]
    ranks: list[RankRecord]
    versions: dict[str, str]  # those of the ranks, and the driver
    hardware: str  # what it ran on, in words; runs of another are not compared
    shape: str  # of nodes, ranks, arguments, variables: runs of another are not compared
    transport: str  # what the ranks talked over, in words
    topology: TopologyRecord | None
    metrics: dict[str, MetricRecord]
    loss: list[tuple[int, Number]]  # step, mean over all ranks; thinned where there are many
    trend: TrendRecord | None
    changed: list[str]  # versions that changed since the last good run, in words
    remarks: list[dict[str, Any]]
    stage_seconds: dict[str, float]
    criteria: dict[str, CriterionRecord]  # by name; `job` is the job itself
    all_criteria: bool  # every criterion of the class was heard, whatever was selected
    not_measured: list[str]  # kinds of criteria that could not be judged


class DifferenceRecord(TypedDict):
    """A fact in which nodes differ that should be alike."""

    fact: str
    values: dict[str, list[str]]  # value -> nodes, that of most nodes first


class RunRecord(TypedDict):
    schema: int
    run_id: str
    package_version: str
    cluster: str
    backend: str
    hardware: HardwareRecord
    evidence: str  # the run's directory on the cluster
    begun: float  # Unix s
    written: float  # Unix s
    verdict: str  # FIT, UNFIT or INCONCLUSIVE; of a proof PROVEN, NOT PROVEN or INCONCLUSIVE
    sentence: str  # the verdict with its scope and reasons
    failed: list[str]  # in words
    not_measured: list[str]  # what was required and not measured, in words
    known: list[KnownRecord]
    known_remarks: list[str]  # acknowledgements that have expired, or that nothing needed
    phases_chosen: list[str]
    phases_of_cluster: list[str]
    selection: str  # what was chosen or changed; empty where all of the cluster's criteria ran
    interrupted: bool
    partial: str  # why not all is known; empty where the run came to its end
    absent_phases: list[str]  # phases that this cluster does not run, and why
    changes: list[str]  # since the run before, in words
    nodes: list[FactsRecord]
    differences: list[DifferenceRecord]  # at most MAX_DIFFERENCES
    phases: list[PhaseRecord]
    proof: NotRequired[dict[str, Any]]
