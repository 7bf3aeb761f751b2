"""What a phase must reach and show on a cluster: `references` and `expect` of cluster.yaml."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from ..text import near
from . import field_types as f
from .metrics import METRICS

# Names that `expect.<phase>.versions` accepts.
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
TRANSPORT_FAMILIES = ("P2P", "SHM", "NET", "NVLS", "COLLNET")
_GLOB_START = re.compile(r"[*?\[]")


class Reference(f.Section):
    """A reference value of a metric, with its tolerance."""

    value: f.Seconds = Field(description="the value measured when the cluster was healthy")
    lower: f.Lower | None = Field(
        default=None, description="how far a measurement may fall below the value, such as `-10 %`"
    )
    upper: f.Upper | None = Field(
        default=None, description="how far a measurement may exceed the value, such as `+10 %`"
    )
    unit: str = Field(description="the metric's unit")
    source: f.Line = Field(description="where the value comes from, for the reader of a failure")

    @model_validator(mode="after")
    def _has_a_bound(self) -> Reference:
        if self.lower is None and self.upper is None:
            what = "{key} has no bound, so it can never fail"
            raise f.misfit("`lower` or `upper`, such as `lower: -10 %`", what=what)
        return self

    @property
    def low(self) -> float | None:
        """The lowest value that still passes, in the metric's unit."""
        return None if self.lower is None else self.value * (1 + self.lower)

    @property
    def high(self) -> float | None:
        """The highest value that still passes, in the metric's unit."""
        return None if self.upper is None else self.value * (1 + self.upper)


def _check_units(references: dict[str, Reference]) -> dict[str, Reference]:
    misfits: f.Misfits = []
    for name, reference in references.items():
        expected = f"`{METRICS[name].unit}`, the unit of {name}"
        if reference.unit != METRICS[name].unit:
            error = f.misfit(expected, "convert the value if it was measured in another unit")
            misfits.append(((name, "unit"), error, reference.unit))
    f.raise_misfits(misfits)
    return references


References = Annotated[
    dict[Annotated[str, f.one_of("metric", METRICS)], Reference], AfterValidator(_check_units)
]


def _transport(glob: str, info: ValidationInfo) -> str:
    if not f.has_variables(glob, info) and not _names_transport(glob):
        start = _GLOB_START.split(glob)[0].split("/")[0]
        raise f.misfit(
            "a glob over NCCL's names, such as `P2P/*`, `SHM*`, `NET/IB*`",
            near(start.upper(), TRANSPORT_FAMILIES),
            f"`{glob}` in {{at}} matches no transport",
        )
    return glob


def _names_transport(glob: str) -> bool:
    """Whether a glob can match a name that starts with one of the families."""
    before_glob = _GLOB_START.split(glob)[0]
    if before_glob != glob and "/" not in before_glob:
        return any(
            family.startswith(before_glob) or before_glob.startswith(family)
            for family in TRANSPORT_FAMILIES
        )
    return before_glob.split("/")[0] in TRANSPORT_FAMILIES


_Transports = tuple[Annotated[str, AfterValidator(_transport)], ...]


class Expectation(f.Section):
    """Transports and versions that a phase must show."""

    intra_node: _Transports = Field(default=(), description="transports inside a node, as globs")
    inter_node: _Transports = Field(default=(), description="transports between nodes, as globs")
    forbid: _Transports = Field(default=(), description="transports that must not occur, as globs")
    gpudirect: Literal["required", "forbidden", "any"] = Field(
        default="any", description="GPUDirect RDMA between nodes"
    )
    hca: f.Line | None = Field(default=None, description="name of the RDMA device, as a glob")
    versions: dict[Annotated[str, f.one_of("name", VERSION_NAMES)], f.Version] = Field(
        default={}, description="versions in the ranks, as globs"
    )
