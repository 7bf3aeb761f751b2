"""The course of a phase's work in its record: which steps were proven and traced, and how far a job
that did not pass got.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from .run_counts import RecordModel
from .telemetry import to_json_value

MarkNumber = Annotated[float | Literal["nan", "inf", "-inf"], BeforeValidator(to_json_value)]


class TraceRecord(RecordModel):
    """Some steps of a rank as torch.profiler saw them, and where their time went: on CUDA that of
    the device's kernels, on the CPU that of the operators."""

    rank: int
    reason: str = Field(description="why there is no trace; empty if there is one")
    file: str = Field(default="", description="a path in the phase's folder of the report")
    first: int | None = Field(default=None, description="step, from 1")
    last: int | None = None
    proven: list[int] = Field(
        default=[], description="the traced steps that hold the passes of a proof as well"
    )
    span_s: float | None = Field(default=None, description="from the first step to the last's end")
    compute_s: float | None = None
    communication_s: float | None = None
    overlapped_s: float | None = Field(
        default=None, description="the part of communication_s in which something else ran as well"
    )
    copy_s: float | None = None
    idle_s: float | None = Field(default=None, description="in which nothing ran")


class ProvenStepsRecord(RecordModel):
    """The steps of a training that were proven while it ran, and what that took. They are left out
    of every rate."""

    seed: str = Field(description="the steps between the first and the last were drawn with it")
    drawn: list[int] = Field(description="the steps that were to be proven, from 1")
    proven: int = Field(description="how many of them all ranks proved")
    seconds: float = Field(description="how long the proofs took, on the slowest rank")
    share: float | None = Field(description="of the stage `train`; null if that did not end")


class StageBarRecord(RecordModel):
    """A stage of some ranks, in seconds since the first rank started, by the first node's clock;
    the median of these ranks."""

    name: str
    begun_s: float
    ended_s: float | None = Field(description="null: it did not end")


LaneState = Literal["named", "silent", "failed", "unfinished", "done"]


class LaneRecord(RecordModel):
    """One rank, or several that ended alike: stages, last step, end."""

    ranks: list[int]
    nodes: list[str] = Field(description="where they ran; of many, the first and how many more")
    state: LaneState = Field(
        description="named by a finding as a cause; wrote nothing; raised an exception; ended with "
        "the job; or finished"
    )
    note: str = Field(description="in words: the cause, the exception, or the stage it was in")
    stages: list[StageBarRecord]
    last_s: float | None = Field(description="when it last wrote, the newest of these ranks")
    step: int | None = Field(description="the last that it marked, the lowest of these ranks")


class MarkRecord(RecordModel):
    """A mark of progress: a step, when, the rank's own loss, and steps/s since the mark before."""

    step: int
    at_s: float
    loss: MarkNumber | None
    steps_per_s: float | None


class TrackRecord(RecordModel):
    """The marks of one rank, thinned if there are many."""

    rank: int
    marks: list[MarkRecord]


class ProgressRecord(RecordModel):
    """How far a job that did not pass got."""

    steps: int | None = Field(description="that were to be done; null: not known")
    step: int | None = Field(description="the last that a rank marked")
    mark_every_s: float | None = Field(
        description="ranks mark a step at most this often; null: they mark every step"
    )
    ended_s: float | None = Field(description="when the job's nodes ended the phase, if they did")
    lanes: list[LaneRecord] = Field(description="at most 32, those that stand out first")
    tracks: list[TrackRecord] = Field(description="of a few ranks")
