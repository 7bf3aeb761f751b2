"""The parts of a run's record that come from the history."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from typing_extensions import NotRequired, TypedDict  # pydantic wants these below Python 3.12

from ..telemetry import to_json_value

# A non-finite number is its name.
Number = Annotated[float | Literal["nan", "inf", "-inf"], BeforeValidator(to_json_value)]


class PastRecord(TypedDict):
    """A metric compared with past good runs on the same hardware and versions."""

    status: Literal["ok", "warn", "fail", "not enough history"]
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
    other_versions: NotRequired[
        Annotated[
            bool, Field(description="compared with runs on other versions, which can only warn")
        ]
    ]


class TrendRecord(TypedDict):
    """Past runs of a phase, the oldest first, without this one."""

    run_ids: list[str]
    begun: list[float]
    good: Annotated[list[bool], Field(description="later runs are judged against it")]
    same: Annotated[list[bool], Field(description="same hardware and versions as this run")]
    metrics: Annotated[dict[str, list[Number | None]], Field(description="one value per run")]


for closed in (PastRecord, TrendRecord):  # reject unknown keys
    closed.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[union-attr]
