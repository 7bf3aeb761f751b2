"""What Slurm says of its partitions, nodes and accounts, as plain records.

Of `scontrol -o` and `sacctmgr -P` alone, as in preflight/records.py: their form is the same from
Slurm 22.05 to today's, and one `scontrol show node` has what several calls of `sinfo` would give.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..clean import line as clean
from ..preflight import records
from ..preflight.records import Partition
from ..submit import scheduler

ANSWER_S = 15.0  # for one command: a silent scheduler is told as such
MAX_WORDS = 300
_SOCKETS = re.compile(r"\([^)]*\)")
# A slice of a GPU (MIG), as gres names its types: `1g.10gb`, `a100_1g.5gb`.
_SLICE = re.compile(r"\d+g\.\d+gb")


@dataclass(frozen=True)
class Machine:
    """One node: whole GPUs by type (empty where it has none, or is not named), MiB of memory."""

    name: str
    host: str
    gpu: str
    gpus: int
    slices: int
    cpus: int
    memory: int
    serves: bool
    partitions: frozenset[str]


@dataclass(frozen=True)
class Answers:
    """All that Slurm said. `environ` is what its commands were run with."""

    cluster: str
    version: str
    environ: Mapping[str, str]
    partitions: Mapping[str, Partition]
    machines: tuple[Machine, ...]
    lab: str = ""  # the slurm.conf of the lab that answered
    accounts: tuple[str, ...] = ()
    default_account: str = ""
    needs_account: bool = False
    hidden: frozenset[str] = field(default=frozenset())  # partitions for root alone


class NoSlurm(Exception):
    """There is none here, or it does not answer; in words for people."""

    def __init__(self, why: str, silent: bool) -> None:
        super().__init__(why)
        self.silent = silent  # its commands are here, but it says nothing


def ask(environ: Mapping[str, str], user: str) -> Answers:
    """Ask the Slurm that `environ` means, else the lab that runs here. Raises NoSlurm."""
    if scheduler.which("scontrol", environ) is None:
        raise NoSlurm("no `scontrol` on PATH", silent=False)
    environ = scheduler.clean_environ(environ)
    try:
        config = _config(environ)
    except NoSlurm:
        lab = "" if environ.get("SLURM_CONF") else _running_lab()
        if not lab:
            raise
        environ = {**environ, "SLURM_CONF": lab}
        config = _config(environ)
    partitions = _told(environ, "scontrol", "-a", "-o", "show", "partition")
    nodes = _told(environ, "scontrol", "-a", "-o", "show", "node")
    found = Answers(
        cluster=clean(config.get("ClusterName", "")),
        version=clean(config.get("SLURM_VERSION", "")),
        environ=environ,
        partitions=records.parse_partitions(partitions),
        machines=machines(nodes),
        lab=_lab_of(environ),
        hidden=_root_only(partitions),
    )
    if "slurmdbd" not in config.get("AccountingStorageType", "") or not user:
        return found
    return _with_accounts(found, config, user)


def _config(environ: Mapping[str, str]) -> dict[str, str]:
    return records.parse_config(_told(environ, "scontrol", "show", "config"))


def _told(environ: Mapping[str, str], *command: str) -> str:
    """What a command of Slurm prints. Raises NoSlurm."""
    words = " ".join(command)
    try:
        answer = scheduler.run(list(command), environ, ANSWER_S)
    except subprocess.TimeoutExpired:
        raise NoSlurm(f"`{words}` did not answer in {ANSWER_S:.0f} s", silent=True) from None
    except OSError as error:
        why = f"`{words}` cannot be run: {error.strerror or error}"
        raise NoSlurm(why, silent=True) from error
    if answer.returncode != 0:
        # What went wrong first is told on the way; the last line says what came of it.
        last = answer.stderr.strip().splitlines()[-1:] or ["no words"]
        why = f"`{words}` ended with status {answer.returncode}: {clean(last[0])[:MAX_WORDS]}"
        raise NoSlurm(why, silent=True)
    return answer.stdout


def _running_lab() -> str:
    """The slurm.conf of the one lab that runs here; empty where there is none, or a choice."""
    from ..lab import running

    labs = running()
    return str(labs[0].slurm_conf) if len(labs) == 1 else ""


def _lab_of(environ: Mapping[str, str]) -> str:
    """The slurm.conf by which Slurm was asked, where it is a lab's."""
    from ..lab import running

    conf = environ.get("SLURM_CONF", "")
    labs = {Path(one.slurm_conf).resolve() for one in running()} if conf else set()
    return conf if conf and Path(conf).resolve() in labs else ""


def _with_accounts(found: Answers, config: Mapping[str, str], user: str) -> Answers:
    """The user's accounts; where sacctmgr does not answer, none are known."""
    show = ("sacctmgr", "-n", "-P", "show")
    try:
        associations = _told(
            found.environ, *show, "assoc", f"user={user}", f"format={records.ASSOCIATION_FIELDS}"
        )
        default = _told(found.environ, *show, "user", user, "format=DefaultAccount")
    except NoSlurm:
        return found
    mine = records.parse_associations(associations, config.get("ClusterName", ""))
    accounts = tuple(sorted({one.account for one in mine if one.account}))
    first = clean(next(iter(default.splitlines()), "")).strip("| ")
    return replace(
        found,
        accounts=accounts,
        default_account=first if first in accounts else "",
        needs_account="associations" in config.get("AccountingStorageEnforce", ""),
    )


def machines(text: str) -> tuple[Machine, ...]:
    """`scontrol -o show node` as machines."""
    known = records.parse_nodes(text)
    found = {}
    for line in map(clean, text.splitlines()):
        told = records.fields_of(line)
        node = known.get(told.get("NodeName", ""))
        if node is None:
            continue
        types, gpus, slices = _gpus(told.get("Gres", ""))
        # Cores and memory that Slurm keeps for the system are no job's.
        effective = _count(told.get("CPUEfctv", "")) or node.cpus
        kept = _count(told.get("MemSpecLimit", ""))
        found[node.name] = Machine(
            name=node.name,
            host=node.host,
            gpu=next(iter(types)) if len(types) == 1 else "",
            gpus=gpus,
            slices=slices,
            cpus=effective,
            memory=max(0, node.memory - kept),
            serves=not (node.gone or node.away),
            partitions=node.partitions,
        )
    return tuple(found.values())


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def _gpus(gres: str) -> tuple[set[str], int, int]:
    """The types and number of whole GPUs in `gpu:a100:2(S:0-1),gpu:1g.10gb:7`, and the slices."""
    types, gpus, slices = set(), 0, 0
    for entry in _SOCKETS.sub("", gres).split(","):
        words = entry.split(":")
        if words[0] != "gpu":
            continue
        number = _count(words[-1]) if len(words) > 1 else 1
        kind = words[1] if len(words) > 2 else ""
        if _SLICE.search(kind):
            slices += number
        elif number:
            gpus += number
            types.add(kind)
    return types, gpus, slices


def _root_only(text: str) -> frozenset[str]:
    told = [records.fields_of(line) for line in map(clean, text.splitlines())]
    return frozenset(one.get("PartitionName", "") for one in told if one.get("RootOnly") == "YES")
