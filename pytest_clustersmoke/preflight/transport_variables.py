"""Variables that leave none of the transports which the cluster expects of a phase.

Certain, or not told: of a glob its text before the first wildcard counts, and a variable rules out
only what it does on every machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ..config.profile import Expectation
from ..evidence.variable_values import integer, is_never, selection

GLOB = re.compile(r"[*?\[]")
# How NCCL's words for transports begin, where nothing more is expected than some transport. "other"
# stands for any network of a plugin.
NETWORKS = ("NET/IB", "NET/Socket", "NET/other")
INSIDE = ("P2P/", "SHM", *NETWORKS)
SIDES = {True: "inside a node", False: "between nodes"}


@dataclass(frozen=True)
class Expected:
    """What is expected of a phase, and where its ranks have peers."""

    expect: Expectation
    inside: bool
    between: bool

    @property
    def of_transports(self) -> bool:
        """Whether anything is expected that is read from NCCL's lines."""
        one = self.expect
        said = (one.intra_node, one.inter_node, one.forbid, one.hca, one.gpudirect != "any")
        return (self.inside or self.between) and any(said)

    def globs(self, inside: bool) -> tuple[str, ...]:
        return self.expect.intra_node if inside else self.expect.inter_node

    def words(self, inside: bool) -> str:
        """What is expected on a side, in words."""
        one = self.expect
        parts = [" or ".join(self.globs(inside)) or "any transport"]
        parts += [f"but not {' nor '.join(one.forbid)}"] if one.forbid else []
        if self.gpudirect(inside):
            parts.append("with GPUDirect RDMA")
        return " ".join([*parts, SIDES[inside]])

    def heads(self, inside: bool) -> list[str]:
        """How the words of the transports begin that are accepted on a side."""
        globs = self.globs(inside) or (INSIDE if inside else NETWORKS)
        heads = [_head(glob) for glob in globs if not self._forbids(glob)]
        if self.gpudirect(inside):
            heads = [one for one in heads if not one.startswith("NET/Socket")]
        return heads

    def gpudirect(self, inside: bool) -> bool:
        """Whether a side must use GPUDirect RDMA."""
        return not inside and self.expect.gpudirect == "required"

    def _forbids(self, glob: str) -> bool:
        """Whether all that a glob matches is forbidden, for certain."""
        head = _head(glob)
        return any(
            glob == one or (one.endswith("*") and fnmatchcase(head, one))
            for one in self.expect.forbid
        )


@dataclass(frozen=True)
class Contradiction:
    """Variables that, together, leave nothing of what is expected. `key` is the expectation's."""

    names: tuple[str, ...]
    key: str
    expected: str


def contradictions(variables: Mapping[str, str], expected: Expected) -> Iterator[Contradiction]:
    """Every contradiction of these variables with what is expected."""
    for inside, present in ((True, expected.inside), (False, expected.between)):
        guilty = _guilty(variables, expected, inside) if present else ()
        if guilty:
            yield Contradiction(guilty, _key(guilty, expected, inside), expected.words(inside))
    hca = expected.expect.hca
    value = variables.get("NCCL_IB_HCA", "")
    if expected.between and hca and value and _excludes(value, hca):
        yield Contradiction(("NCCL_IB_HCA",), "hca", f"the RDMA device {hca} between nodes")


def _key(guilty: tuple[str, ...], expected: Expected, inside: bool) -> str:
    """The key of the expectation that the variables are at odds with."""
    if "NCCL_NET_GDR_LEVEL" in guilty:
        return "gpudirect"
    if expected.globs(inside):
        return "intra_node" if inside else "inter_node"
    return "forbid" if expected.expect.forbid else "gpudirect"


def _guilty(variables: Mapping[str, str], expected: Expected, inside: bool) -> tuple[str, ...]:
    """The variables by which nothing accepted remains: one alone, else all that take a part."""
    accepted = set(expected.heads(inside))
    ruled_out = {
        name: {one for one in accepted if _rules_out(name, variables, one, expected, inside)}
        for name in variables
    }
    alone = tuple(name for name, gone in ruled_out.items() if gone == accepted)
    if not accepted or alone:
        return alone if accepted else ()
    if set().union(*ruled_out.values()) != accepted:
        return ()
    return tuple(name for name, gone in ruled_out.items() if gone)


def _rules_out(
    name: str, variables: Mapping[str, str], head: str, expected: Expected, inside: bool
) -> bool:
    """Whether this variable keeps NCCL, on every machine, from transports whose words so begin."""
    value, network = variables[name], variables.get("NCCL_NET", "").casefold()
    match name:
        case "NCCL_IB_DISABLE":  # a plugin's own InfiniBand stays
            off = integer(value) != 0 and network in ("", "ib", "socket")
            return off and (head == "NET/IB" or head.startswith("NET/IB/"))
        case "NCCL_NET":
            chosen, other = f"net/{network}", head.casefold()
            alike = chosen.startswith(other) or f"{other}/".startswith(f"{chosen}/")
            socket = network == "socket" and expected.gpudirect(inside)
            return bool(value) and head.startswith("NET/") and (socket or not alike)
        case "NCCL_NET_GDR_LEVEL":
            return is_never(value) and (expected.gpudirect(inside) or "GDRDMA" in head)
        case "NCCL_P2P_DISABLE":
            return inside and head.startswith("P2P") and integer(value) == 1
        case "NCCL_P2P_LEVEL":
            return inside and head.startswith("P2P") and is_never(value)
        case "NCCL_SHM_DISABLE":
            return inside and head.startswith("SHM") and integer(value) == 1
    return False


def _excludes(value: str, glob: str) -> bool:
    """Whether a value of NCCL_IB_HCA selects no device that could match the glob."""
    head, chosen = _head(glob), selection(value)
    if not chosen.negated:
        return not any(head.startswith(one) or one.startswith(head) for one, _ in chosen.entries)
    # Certain where a device is excluded with all its ports.
    whole = [entry for entry, port in chosen.entries if port is None]
    return any(glob == one if chosen.exact else head.startswith(one) for one in whole)


def _head(glob: str) -> str:
    """The text of a glob before its first wildcard."""
    return GLOB.split(glob)[0]
