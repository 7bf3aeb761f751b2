"""What NCCL and gloo make of a value, as far as that is certain whatever the machine."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

# Variables that are on or off and that NCCL reads as a number: C's strtoll, which takes a word
# for 0 (src/misc/param.cc).
SWITCHES = (
    "NCCL_COLLNET_ENABLE",
    "NCCL_CUMEM_ENABLE",
    "NCCL_IB_DISABLE",
    "NCCL_MNNVL_ENABLE",
    "NCCL_NVLS_ENABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_PXN_DISABLE",
    "NCCL_SHM_DISABLE",
)
WORDS_FOR_ON = ("true", "yes", "on", "y", "t", "enable", "enabled")
# Bits of NCCL_DEBUG_SUBSYS that matter to edges: those of `via` lines, and INIT, which each of
# them has as well.
EDGE_SUBSYSTEMS = ("P2P", "SHM", "NET")
NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?)(0[xX][0-9a-fA-F]+|[0-9]+)")


def integer(value: str) -> int:
    """A value as NCCL reads a number: strtoll with base 0; 0 where it starts with none."""
    found = NUMBER.match(value)
    if found is None:
        return 0
    sign, digits = found.groups()
    if digits[:2].lower() == "0x":
        number = int(digits, 16)
    elif digits.startswith("0"):
        octal = re.match("[0-7]+", digits)
        number = int(octal.group(), 8) if octal else 0
    else:
        number = int(digits)
    return -number if sign == "-" else number


def is_never(value: str) -> bool:
    """Whether a level (NCCL_P2P_LEVEL, NCCL_NET_GDR_LEVEL) is LOC, formerly 0: never."""
    return value == "LOC" or (re.match("[0-9]", value) is not None and integer(value) == 0)


@dataclass(frozen=True)
class Selection:
    """The names that a value of NCCL_SOCKET_IFNAME or NCCL_IB_HCA selects: a list of prefixes;
    one leading `^` negates it, then one leading `=` means whole names, each for the whole list.
    A name may carry a port (`mlx5_0:1`), which only NCCL_IB_HCA regards."""

    entries: tuple[tuple[str, int | None], ...]
    exact: bool
    negated: bool

    def selects(self, name: str, port: int | None = None) -> bool:
        if not self.entries:  # NCCL: no list matches all
            return not self.negated
        return self.lists(name, port) is not self.negated

    def lists(self, name: str, port: int | None = None) -> bool:
        """Whether the list, before it is negated, has this name."""
        return any(
            (name == entry if self.exact else name.startswith(entry))
            and (port is None or wanted is None or port == wanted)
            for entry, wanted in self.entries
        )


def selection(value: str) -> Selection:
    """Read such a value as NCCL's findInterfaces and parseStringList do."""
    negated = value.startswith("^")
    rest = value[1:] if negated else value
    exact = rest.startswith("=")
    rest = rest[1:] if exact else rest
    rest = rest[1:] if rest[:1] in ("^", "=") else rest  # parseStringList passes over one more
    entries = []
    for part in rest.split(","):
        name, _, port = part.partition(":")
        if name:
            entries.append((name, integer(port) if ":" in part else None))
    return Selection(tuple(entries), exact, negated)


def _selection_slip(value: str) -> str:
    """What in such a list can match no name."""
    rest = value[1:] if value.startswith("^") else value
    if value.startswith("=^"):
        return "`=^` does not negate: NCCL expects `^` first, as in `^=eth0`"
    first, *others = rest.removeprefix("=").split(",")
    for one in others:
        if one[:1] in ("^", "="):
            return (
                f"`{one[:1]}` has a meaning only at the start of the whole list: no name starts "
                f"with `{one}`"
            )
    for one in (first, *others):
        if any(char.isspace() for char in one):
            return f"a name in the list contains a space, and so matches nothing: {one!r}"
    return ""


def _gloo_slip(value: str) -> str:
    """gloo takes whole names, separated by commas, and fails where one of them is not there."""
    for one in value.split(",") if len(value) > 1 else ():
        if one[:1] in ("^", "="):
            return (
                f"gloo expects full interface names, without NCCL's `{one[:1]}`: `{one}` is not one"
            )
        if not one or any(char.isspace() for char in one):
            return f"gloo expects full interface names, separated by commas: {one!r} is not one"
    return ""


def _switch_slip(value: str) -> str:
    if value.strip().lower() in WORDS_FOR_ON:
        return f"NCCL expects a number here, and reads `{value.strip()}` as 0; write 1"
    return ""


def _family_slip(value: str) -> str:
    if value in ("AF_INET", "AF_INET6", ""):
        return ""
    return "NCCL accepts AF_INET and AF_INET6, and ignores any other value"


CHECKS: dict[str, Callable[[str], str]] = {
    "NCCL_SOCKET_IFNAME": _selection_slip,
    "NCCL_OOB_NET_IFNAME": _selection_slip,
    "NCCL_IB_HCA": _selection_slip,
    "NCCL_SOCKET_FAMILY": _family_slip,
    "GLOO_SOCKET_IFNAME": _gloo_slip,
    **dict.fromkeys(SWITCHES, _switch_slip),
}


def slip(name: str, value: str) -> str:
    """What cannot work about a value, in words; empty where nothing is certain to be wrong."""
    check = CHECKS.get(name)
    return check(value) if check else ""


def subsystems_slip(value: str) -> str:
    """What a value of NCCL_DEBUG_SUBSYS hides of the lines that transports are read from."""
    inverted = value.startswith("^")
    listed = {one.upper() for one in value.removeprefix("^").split(",")}

    def logged(subsystem: str) -> bool:
        return ("ALL" in listed or subsystem in listed) is not inverted

    if logged("INIT"):  # which every line of an edge has as well
        return ""
    hidden = [one for one in EDGE_SUBSYSTEMS if not logged(one)]
    if hidden:
        return f"hides NCCL's lines about {', '.join(hidden)} connections"
    return "hides NCCL's lines about communicators"
