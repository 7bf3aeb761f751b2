"""Find variables that rule out every transport that the cluster expects of a phase.

Only contradictions that are certain are reported: only the text of a glob before its first wildcard
counts, and a variable rules out only what it excludes on every machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ..config.profile import Expectation
from ..evidence.variable_values import is_never, parse_integer, parse_selection

GLOB = re.compile(r"[*?\[]")
# Prefixes of NCCL's names for transports, for phases that expect any transport. "other" stands for
# any network of a plugin.
NETWORKS = ("NET/IB", "NET/Socket", "NET/other")
INSIDE = ("P2P/", "SHM", *NETWORKS)
SIDES = {True: "inside a node", False: "between nodes"}


@dataclass(frozen=True)
class Expected:
    """The expectation for a phase, and the sides on which its ranks have peers."""

    expect: Expectation
    inside: bool
    between: bool

    @property
    def of_transports(self) -> bool:
        """Whether something is expected that only NCCL's log lines show."""
        expect = self.expect
        return (self.inside or self.between) and any(
            (
                expect.intra_node,
                expect.inter_node,
                expect.forbid,
                expect.hca,
                expect.gpudirect != "any",
            )
        )

    def globs(self, inside: bool) -> tuple[str, ...]:
        return self.expect.intra_node if inside else self.expect.inter_node

    def describe(self, inside: bool) -> str:
        """The expectation for a side, for people."""
        forbid = self.expect.forbid
        parts = [" or ".join(self.globs(inside)) or "any transport"]
        parts += [f"but not {' nor '.join(forbid)}"] if forbid else []
        if self.gpudirect(inside):
            parts.append("with GPUDirect RDMA")
        return " ".join([*parts, SIDES[inside]])

    def accepted_prefixes(self, inside: bool) -> list[str]:
        """Prefixes of the names of transports that are accepted on a side."""
        globs = self.globs(inside) or (INSIDE if inside else NETWORKS)
        prefixes = [_text_before_wildcard(glob) for glob in globs if not self._forbids(glob)]
        if self.gpudirect(inside):
            prefixes = [prefix for prefix in prefixes if not prefix.startswith("NET/Socket")]
        return prefixes

    def gpudirect(self, inside: bool) -> bool:
        """Whether a side must use GPUDirect RDMA."""
        return not inside and self.expect.gpudirect == "required"

    def _forbids(self, glob: str) -> bool:
        """Whether everything that a glob matches is certainly forbidden."""
        prefix = _text_before_wildcard(glob)
        return any(
            glob == forbidden or (forbidden.endswith("*") and fnmatchcase(prefix, forbidden))
            for forbidden in self.expect.forbid
        )


@dataclass(frozen=True)
class Contradiction:
    """Variables that together rule out everything expected under `key` of the expectation."""

    names: tuple[str, ...]
    key: str
    expected: str


def find_contradictions(
    variables: Mapping[str, str], expected: Expected
) -> Iterator[Contradiction]:
    """Every contradiction between these variables and the expectation."""
    for inside, present in ((True, expected.inside), (False, expected.between)):
        guilty = _find_guilty(variables, expected, inside) if present else ()
        if guilty:
            yield Contradiction(
                guilty, _expectation_key(guilty, expected, inside), expected.describe(inside)
            )
    hca = expected.expect.hca
    value = variables.get("NCCL_IB_HCA", "")
    if expected.between and hca and value and _excludes(value, hca):
        yield Contradiction(("NCCL_IB_HCA",), "hca", f"the RDMA device {hca} between nodes")


def _expectation_key(guilty: tuple[str, ...], expected: Expected, inside: bool) -> str:
    """The key of the expectation that the variables contradict."""
    if "NCCL_NET_GDR_LEVEL" in guilty:
        return "gpudirect"
    if expected.globs(inside):
        return "intra_node" if inside else "inter_node"
    return "forbid" if expected.expect.forbid else "gpudirect"


def _find_guilty(variables: Mapping[str, str], expected: Expected, inside: bool) -> tuple[str, ...]:
    """The variables that rule out everything accepted: those that do so alone, or if there are
    none, those that do so together."""
    accepted = set(expected.accepted_prefixes(inside))
    ruled_out = {
        name: {
            prefix for prefix in accepted if _rules_out(name, variables, prefix, expected, inside)
        }
        for name in variables
    }
    alone = tuple(name for name, gone in ruled_out.items() if gone == accepted)
    if not accepted or alone:
        return alone if accepted else ()
    if set().union(*ruled_out.values()) != accepted:
        return ()
    return tuple(name for name, gone in ruled_out.items() if gone)


def _rules_out(
    name: str, variables: Mapping[str, str], prefix: str, expected: Expected, inside: bool
) -> bool:
    """Whether this variable excludes transports with this prefix on every machine."""
    value, network = variables[name], variables.get("NCCL_NET", "").casefold()
    match name:
        case "NCCL_IB_DISABLE":  # a plugin's InfiniBand still works
            off = parse_integer(value) != 0 and network in ("", "ib", "socket")
            return off and (prefix == "NET/IB" or prefix.startswith("NET/IB/"))
        case "NCCL_NET":
            chosen, other = f"net/{network}", prefix.casefold()
            same = chosen.startswith(other) or f"{other}/".startswith(f"{chosen}/")
            socket = network == "socket" and expected.gpudirect(inside)
            return bool(value) and prefix.startswith("NET/") and (socket or not same)
        case "NCCL_NET_GDR_LEVEL":
            return is_never(value) and (expected.gpudirect(inside) or "GDRDMA" in prefix)
        case "NCCL_P2P_DISABLE":
            return inside and prefix.startswith("P2P") and parse_integer(value) == 1
        case "NCCL_P2P_LEVEL":
            return inside and prefix.startswith("P2P") and is_never(value)
        case "NCCL_SHM_DISABLE":
            return inside and prefix.startswith("SHM") and parse_integer(value) == 1
    return False


def _excludes(value: str, glob: str) -> bool:
    """Whether a value of NCCL_IB_HCA selects no device that could match the glob."""
    prefix, chosen = _text_before_wildcard(glob), parse_selection(value)
    if not chosen.negated:
        return not any(
            prefix.startswith(device) or device.startswith(prefix) for device, _ in chosen.entries
        )
    # Only a device that is excluded with all its ports is certainly excluded.
    excluded = [device for device, port in chosen.entries if port is None]
    return any(glob == device if chosen.exact else prefix.startswith(device) for device in excluded)


def _text_before_wildcard(glob: str) -> str:
    """The text of a glob before its first wildcard."""
    return GLOB.split(glob)[0]
