"""How NCCL and gloo read values, limited to rules that hold on every machine."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

# Switches that NCCL reads as a number, with C's strtoll, which reads a word as 0
# (src/misc/param.cc).
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
# Subsystems of NCCL_DEBUG_SUBSYS that log edges (`via` lines). INIT logs all of these lines too.
EDGE_SUBSYSTEMS = ("P2P", "SHM", "NET")
NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?)(0[xX][0-9a-fA-F]+|[0-9]+)")


def parse_integer(value: str) -> int:
    """A value as NCCL reads a number: strtoll with base 0; 0 if it does not start with one."""
    match = NUMBER.match(value)
    if match is None:
        return 0
    sign, digits = match.groups()
    if digits[:2].lower() == "0x":
        number = int(digits, 16)
    elif digits.startswith("0"):
        octal = re.match("[0-7]+", digits)
        number = int(octal.group(), 8) if octal else 0
    else:
        number = int(digits)
    return -number if sign == "-" else number


def is_never(value: str) -> bool:
    """Whether a level (NCCL_P2P_LEVEL, NCCL_NET_GDR_LEVEL) is LOC (formerly 0), never."""
    return value == "LOC" or (re.match("[0-9]", value) is not None and parse_integer(value) == 0)


@dataclass(frozen=True)
class Selection:
    """The names that a value of NCCL_SOCKET_IFNAME or NCCL_IB_HCA selects: a list of prefixes. A
    leading `^` negates the whole list; a `=` after it makes the entries full names. An entry may
    have a port (`mlx5_0:1`), which only NCCL_IB_HCA uses."""

    entries: tuple[tuple[str, int | None], ...]
    exact: bool
    negated: bool

    def selects(self, name: str, port: int | None = None) -> bool:
        if not self.entries:  # in NCCL an empty list matches everything
            return not self.negated
        return self.lists(name, port) is not self.negated

    def lists(self, name: str, port: int | None = None) -> bool:
        """Whether the list has this name, before negation."""
        return any(
            (name == entry if self.exact else name.startswith(entry))
            and (port is None or wanted is None or port == wanted)
            for entry, wanted in self.entries
        )


def parse_selection(value: str) -> Selection:
    """Parse a value as NCCL's findInterfaces and parseStringList do."""
    negated = value.startswith("^")
    rest = value[1:] if negated else value
    exact = rest.startswith("=")
    rest = rest[1:] if exact else rest
    rest = rest[1:] if rest[:1] in ("^", "=") else rest  # parseStringList skips one more
    entries = []
    for part in rest.split(","):
        name, _, port = part.partition(":")
        if name:
            entries.append((name, parse_integer(port) if ":" in part else None))
    return Selection(tuple(entries), exact, negated)


def _check_selection(value: str) -> str:
    """Why an entry of a list cannot match any name; empty if all can."""
    rest = value[1:] if value.startswith("^") else value
    if value.startswith("=^"):
        return "`=^` does not negate: NCCL expects `^` first, as in `^=eth0`"
    first, *others = rest.removeprefix("=").split(",")
    for entry in others:
        if entry[:1] in ("^", "="):
            return (
                f"`{entry[:1]}` has a meaning only at the start of the whole list: no name starts "
                f"with `{entry}`"
            )
    for entry in (first, *others):
        if any(char.isspace() for char in entry):
            return f"a name in the list contains a space, and so matches nothing: {entry!r}"
    return ""


def _check_gloo(value: str) -> str:
    """gloo expects full names, separated by commas, and fails if one of them does not exist."""
    for name in value.split(",") if len(value) > 1 else ():
        if name[:1] in ("^", "="):
            return (
                f"gloo expects full interface names, without NCCL's `{name[:1]}`: "
                f"`{name}` is not one"
            )
        if not name or any(char.isspace() for char in name):
            return f"gloo expects full interface names, separated by commas: {name!r} is not one"
    return ""


def _check_switch(value: str) -> str:
    if value.strip().lower() in WORDS_FOR_ON:
        return f"NCCL expects a number here, and reads `{value.strip()}` as 0; write 1"
    return ""


def _check_family(value: str) -> str:
    if value in ("AF_INET", "AF_INET6", ""):
        return ""
    return "NCCL accepts AF_INET and AF_INET6, and ignores any other value"


CHECKS: dict[str, Callable[[str], str]] = {
    "NCCL_SOCKET_IFNAME": _check_selection,
    "NCCL_OOB_NET_IFNAME": _check_selection,
    "NCCL_IB_HCA": _check_selection,
    "NCCL_SOCKET_FAMILY": _check_family,
    "GLOO_SOCKET_IFNAME": _check_gloo,
    **dict.fromkeys(SWITCHES, _check_switch),
}


def find_mistake(name: str, value: str) -> str:
    """Why a value cannot work; empty if nothing is certainly wrong."""
    check = CHECKS.get(name)
    return check(value) if check else ""


def find_hidden_subsystems(value: str) -> str:
    """Which lines, of those that show transports, a value of NCCL_DEBUG_SUBSYS hides."""
    inverted = value.startswith("^")
    listed = {name.upper() for name in value.removeprefix("^").split(",")}

    def logged(subsystem: str) -> bool:
        return ("ALL" in listed or subsystem in listed) is not inverted

    if logged("INIT"):
        return ""
    hidden = [subsystem for subsystem in EDGE_SUBSYSTEMS if not logged(subsystem)]
    if hidden:
        return f"hides NCCL's lines about {', '.join(hidden)} connections"
    return "hides NCCL's lines about communicators"
