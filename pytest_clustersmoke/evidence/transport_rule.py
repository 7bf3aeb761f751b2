"""The one judge of `expect`: which transports a cluster accepts inside nodes, and between them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from .nccl.nccl_log import parse_transport

if TYPE_CHECKING:  # pydantic is not loaded by a plain collection
    from ..config.expectations import Expectation

SIDES = {True: "inside a node", False: "between nodes"}
# Prefixes of NCCL's names for transports, where any transport is accepted. "other" stands for any
# network of a plugin.
NETWORKS = ("NET/IB", "NET/Socket", "NET/other")
INSIDE = ("P2P/", "SHM", *NETWORKS)
_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class TransportRule:
    """What `expect` says of a phase's connections inside nodes, or of those between nodes.

    `gpudirect` (required, forbidden or any) and `hca` (an RDMA device, as a glob) are for
    connections between nodes.
    """

    inside: bool
    globs: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    gpudirect: str = "any"
    hca: str | None = None

    @classmethod
    def of(cls, expect: Expectation | None, *, inside: bool) -> TransportRule:
        """The rule of an expectation for one side; an empty one without an expectation."""
        if expect is None:
            return cls(inside)
        if inside:
            return cls(inside, expect.intra_node, expect.forbid)
        return cls(inside, expect.inter_node, expect.forbid, expect.gpudirect, expect.hca)

    @property
    def is_empty(self) -> bool:
        return not (self.globs or self.forbid or self.hca or self.gpudirect != "any")

    # What NCCL logged.

    def refuse(self, wording: str, end: str = "") -> str:
        """Why a transport in NCCL's wording is not accepted; empty if it is. `end` says in the
        reason which end of the connection used it."""
        transport = parse_transport(wording)
        if reason := self.forbidden_by(wording):
            return reason
        if self.globs and not self.names(wording):
            return f"expected {' or '.join(self.globs)}"
        if self.gpudirect == "any" or transport.net is None:
            return ""
        fits = transport.gdrdma is (self.gpudirect == "required")
        return "" if fits else f"GPUDirect RDMA is {self.gpudirect}{end}"

    def refuse_devices(self, nics: Iterable[str]) -> str:
        """Why these RDMA devices are not accepted; empty if they are. NCCL joins merged devices
        with `+` (`mlx5_0+mlx5_1`)."""
        parts = [part for nic in nics for part in nic.split("+")]
        fit = self.hca is None or all(fnmatchcase(part, self.hca) for part in parts)
        return "" if fit else f"expected {self.hca}"

    def forbidden_by(self, wording: str) -> str:
        globs = [glob for glob in self.forbid if matches(wording, glob)]
        return f"forbidden by {', '.join(globs)}" if globs else ""

    def names(self, wording: str) -> bool:
        """Whether a transport is among the expected ones."""
        return any(matches(wording, glob) for glob in self.globs)

    @property
    def names_nvls(self) -> bool:
        """NVLS uses the same NVLink switches as P2P."""
        return self.names("NVLS") or any(glob.startswith("P2P") for glob in self.globs)

    # What NCCL may use, before it runs.

    @property
    def accepted_prefixes(self) -> list[str]:
        """Prefixes of the names of the accepted transports: of a glob only the text before its
        first wildcard is certain."""
        globs = self.globs or (INSIDE if self.inside else NETWORKS)
        prefixes = [text_before_wildcard(glob) for glob in globs if not self._forbids_all(glob)]
        if self.gpudirect == "required":
            prefixes = [prefix for prefix in prefixes if not prefix.startswith("NET/Socket")]
        return prefixes

    def expects_infiniband(self, interconnect: str) -> bool:
        """Whether the transports expected between nodes, or without any the description of the
        profile's interconnect, name InfiniBand."""
        if not self.globs:
            return "infiniband" in interconnect.casefold()
        return any(prefix.startswith("NET/IB") for prefix in self.accepted_prefixes)

    def _forbids_all(self, glob: str) -> bool:
        """Whether everything that a glob matches is certainly forbidden."""
        prefix = text_before_wildcard(glob)
        return any(
            glob == forbidden or (forbidden.endswith("*") and fnmatchcase(prefix, forbidden))
            for forbidden in self.forbid
        )

    def __str__(self) -> str:
        parts = [" or ".join(self.globs) or "any transport"]
        parts += [f"but not {' nor '.join(self.forbid)}"] if self.forbid else []
        parts += ["with GPUDirect RDMA"] if self.gpudirect == "required" else []
        return " ".join([*parts, SIDES[self.inside]])


def matches(wording: str, glob: str) -> bool:
    """Whether a glob of cluster.yaml matches a transport: its kind, or NCCL's whole wording."""
    return fnmatchcase(parse_transport(wording).kind, glob) or fnmatchcase(wording, glob)


def text_before_wildcard(glob: str) -> str:
    return _GLOB.split(glob)[0]
