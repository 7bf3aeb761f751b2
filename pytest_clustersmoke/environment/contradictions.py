"""Variables that leave none of the transports which the cluster expects of a phase.

Certain, or not told: a glob counts as met by everything that it might match, and a variable rules
out only what it does on every machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from .values import integer, is_never, selection

if TYPE_CHECKING:
    from ..cluster import Expectation

GLOB = re.compile(r"[*?\[]")
DIRECT = "GDRDMA"
NETWORKS = ("NET/IB", "NET/Socket")
# Any network of a plugin: met by globs that leave the network's name open.
ANOTHER = "NET/another network"
INSIDE = ("P2P/CUMEM", "P2P/IPC", "P2P/direct pointer", "P2P/indirect", "P2P/MNNVL", "SHM")
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

    def words(self, inside: bool) -> str:
        """What is expected on a side, in words."""
        one = self.expect
        parts = [" or ".join(one.intra_node if inside else one.inter_node) or "any transport"]
        parts += [f"but not {' nor '.join(one.forbid)}"] if one.forbid else []
        if not inside and one.gpudirect == "required":
            parts.append("with GPUDirect RDMA")
        return " ".join([*parts, SIDES[inside]])


@dataclass(frozen=True)
class Contradiction:
    """Variables that, together, leave nothing of what is expected. `key` is the expectation's."""

    names: tuple[str, ...]
    key: str
    expected: str


class Transport(NamedTuple):
    """A kind of transport that might be, as NCCL words it. `direct`: by GPUDirect RDMA."""

    name: str
    direct: bool = False


def contradictions(variables: Mapping[str, str], expected: Expected) -> Iterator[Contradiction]:
    """Every contradiction of these variables with what is expected."""
    for inside, present in ((True, expected.inside), (False, expected.between)):
        if not present:
            continue
        accepted = [one for one in _all(inside, variables) if _accepts(expected, inside, one)]
        guilty = _guilty(variables, inside, accepted)
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
    if _globs(expected, inside):
        return "intra_node" if inside else "inter_node"
    return "forbid" if expected.expect.forbid else "gpudirect"


def _all(inside: bool, variables: Mapping[str, str]) -> list[Transport]:
    """Every transport that a side might see on some machine."""
    chosen = variables.get("NCCL_NET", "")
    networks = [*NETWORKS, ANOTHER]
    if chosen and _built_in(chosen) is None:
        networks.append(f"NET/{chosen}")
    found = [Transport(name) for name in networks]
    found += [Transport(name, True) for name in networks if name != "NET/Socket"]
    return found + [Transport(name) for name in (INSIDE if inside else ("P2P/MNNVL",))]


def _globs(expected: Expected, inside: bool) -> tuple[str, ...]:
    return expected.expect.intra_node if inside else expected.expect.inter_node


def _accepts(expected: Expected, inside: bool, one: Transport) -> bool:
    globs, gpudirect = _globs(expected, inside), expected.expect.gpudirect
    if globs and not any(_may_match(glob, one) for glob in globs):
        return False
    # NVLink between nodes is there only on machines built so: nobody means it without a word.
    if not globs and not inside and one.name == "P2P/MNNVL":
        return False
    if not inside and gpudirect != "any" and one.direct is not (gpudirect == "required"):
        return False
    return not any(_must_match(glob, one) for glob in expected.expect.forbid)


def _may_match(glob: str, one: Transport) -> bool:
    """Whether some wording of this transport could match: NCCL's own, whole, is longer than the
    name (`NET/IB/0/GDRDMA`, `SHM/direct/direct`)."""
    if DIRECT in glob and not one.direct:
        return False
    if fnmatchcase(one.name, glob):
        return True
    head = GLOB.split(glob)[0]
    return head.startswith(f"{one.name}/") or (head != glob and one.name.startswith(head))


def _must_match(glob: str, one: Transport) -> bool:
    """Whether every wording of this transport matches: its kind does, and so does the rest."""
    kind = f"{one.name}/{DIRECT}" if one.direct else one.name
    return fnmatchcase(kind, glob)


def _guilty(
    variables: Mapping[str, str], inside: bool, accepted: list[Transport]
) -> tuple[str, ...]:
    """The variables by which nothing accepted remains: one alone, else all that take a part."""
    ruled_out = {
        name: {one for one in accepted if _rules_out(name, value, inside, one)}
        for name, value in variables.items()
    }
    alone = tuple(name for name, gone in ruled_out.items() if gone == set(accepted))
    if not accepted or alone:
        return alone if accepted else ()
    if set().union(*ruled_out.values()) != set(accepted):
        return ()
    return tuple(name for name, gone in ruled_out.items() if gone)


def _rules_out(name: str, value: str, inside: bool, one: Transport) -> bool:
    """Whether this value keeps NCCL from this transport, on every machine."""
    if name == "NCCL_IB_DISABLE":
        return one.name == "NET/IB" and integer(value) != 0
    if name == "NCCL_NET":
        chosen = _built_in(value) or f"NET/{value}"
        return bool(value) and one.name.startswith("NET/") and one.name != chosen
    if name == "NCCL_NET_GDR_LEVEL":
        return one.direct and is_never(value)
    if name == "NCCL_P2P_DISABLE":
        return inside and one.name.startswith("P2P/") and integer(value) == 1
    if name == "NCCL_P2P_LEVEL":
        return inside and one.name.startswith("P2P/") and is_never(value)
    if name == "NCCL_SHM_DISABLE":
        return one.name == "SHM" and integer(value) == 1
    return False


def _built_in(network: str) -> str | None:
    """One of NETWORKS by the name that NCCL_NET has for it, in any case."""
    named = {one.partition("/")[2].casefold(): one for one in NETWORKS}
    return named.get(network.casefold())


def _excludes(value: str, glob: str) -> bool:
    """Whether a value of NCCL_IB_HCA selects no device that could match the glob."""
    head, chosen = GLOB.split(glob)[0], selection(value)
    literal = head == glob
    if chosen.negated:  # certain where a device is excluded with all its ports
        whole = [entry for entry, port in chosen.entries if port is None]
        if chosen.exact:
            return literal and glob in whole
        return any(head.startswith(entry) for entry in whole)
    names = [entry for entry, _ in chosen.entries]
    if chosen.exact:
        return not any(fnmatchcase(entry, glob) for entry in names)
    if literal:
        return not any(glob.startswith(entry) for entry in names)
    return not any(head.startswith(entry) or entry.startswith(head) for entry in names)
