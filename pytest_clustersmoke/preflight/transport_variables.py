"""Find variables that rule out every transport that the cluster expects of a phase.

Only contradictions that are certain are reported: only the text of a glob before its first wildcard
counts, and a variable rules out only what it excludes on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..evidence.transport_rule import TransportRule, text_before_wildcard
from ..evidence.variable_values import is_never, parse_integer, parse_selection


@dataclass(frozen=True)
class Contradiction:
    """Variables that together rule out everything expected under `key` of the expectation."""

    names: tuple[str, ...]
    key: str
    expected: str


def find_contradictions(
    variables: Mapping[str, str], rules: Iterable[TransportRule]
) -> Iterator[Contradiction]:
    """Every contradiction between these variables and the rules of the phase's connections."""
    value = variables.get("NCCL_IB_HCA", "")
    for rule in rules:
        if guilty := _find_guilty(variables, rule):
            yield Contradiction(guilty, _expectation_key(guilty, rule), str(rule))
        if rule.hca and value and _excludes(value, rule.hca):
            yield Contradiction(
                ("NCCL_IB_HCA",), "hca", f"the RDMA device {rule.hca} between nodes"
            )


def _expectation_key(guilty: tuple[str, ...], rule: TransportRule) -> str:
    """The key of the expectation that the variables contradict."""
    if "NCCL_NET_GDR_LEVEL" in guilty:
        return "gpudirect"
    if rule.globs:
        return "intra_node" if rule.inside else "inter_node"
    return "forbid" if rule.forbid else "gpudirect"


def _find_guilty(variables: Mapping[str, str], rule: TransportRule) -> tuple[str, ...]:
    """The variables that rule out everything accepted: those that do so alone, or if there are
    none, those that do so together."""
    accepted = set(rule.accepted_prefixes)
    ruled_out = {
        name: {prefix for prefix in accepted if _rules_out(name, variables, prefix, rule)}
        for name in variables
    }
    alone = tuple(name for name, gone in ruled_out.items() if gone == accepted)
    if not accepted or alone:
        return alone if accepted else ()
    if set().union(*ruled_out.values()) != accepted:
        return ()
    return tuple(name for name, gone in ruled_out.items() if gone)


def _rules_out(name: str, variables: Mapping[str, str], prefix: str, rule: TransportRule) -> bool:
    """Whether this variable excludes transports with this prefix on every machine."""
    gpudirect = rule.gpudirect == "required"
    value, network = variables[name], variables.get("NCCL_NET", "").casefold()
    match name:
        case "NCCL_IB_DISABLE":  # a plugin's InfiniBand still works
            off = parse_integer(value) != 0 and network in ("", "ib", "socket")
            return off and (prefix == "NET/IB" or prefix.startswith("NET/IB/"))
        case "NCCL_NET":
            chosen, other = f"net/{network}", prefix.casefold()
            same = chosen.startswith(other) or f"{other}/".startswith(f"{chosen}/")
            socket = network == "socket" and gpudirect
            return bool(value) and prefix.startswith("NET/") and (socket or not same)
        case "NCCL_NET_GDR_LEVEL":
            return is_never(value) and (gpudirect or "GDRDMA" in prefix)
        case "NCCL_P2P_DISABLE":
            return rule.inside and prefix.startswith("P2P") and parse_integer(value) == 1
        case "NCCL_P2P_LEVEL":
            return rule.inside and prefix.startswith("P2P") and is_never(value)
        case "NCCL_SHM_DISABLE":
            return rule.inside and prefix.startswith("SHM") and parse_integer(value) == 1
    return False


def _excludes(value: str, glob: str) -> bool:
    """Whether a value of NCCL_IB_HCA selects no device that could match the glob."""
    prefix, chosen = text_before_wildcard(glob), parse_selection(value)
    if not chosen.negated:
        return not any(
            prefix.startswith(device) or device.startswith(prefix) for device, _ in chosen.entries
        )
    # Only a device that is excluded with all its ports is certainly excluded.
    excluded = [device for device, port in chosen.entries if port is None]
    return any(glob == device if chosen.exact else prefix.startswith(device) for device in excluded)
