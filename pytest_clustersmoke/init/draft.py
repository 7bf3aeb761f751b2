"""What was found and guessed -> the entries of a profile."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from . import place, sizes
from .ask import Answers
from .entries import MARK, Block, Entry, Item, Remark
from .pick import Picked, words_of
from .place import Guess
from .sizes import Sized

KEYS = "docs/cluster-yaml.md of pytest-clustersmoke"
LAB_GPU = "fake"  # the lab's GPUs, behind which there is no device
# Ranks a node where nothing is a GPU, if it has the cores.
CPU_RANKS = 2
DISK = "/tmp"
INTER = "what carries data between nodes: NET/IB* for InfiniBand and RoCE, NET/Socket for TCP"


@dataclass(frozen=True)
class Wishes:
    """What the user asked for, and where the files go."""

    directory: Path
    name: str | None = None
    partition: str | None = None
    shared_dir: Path | None = None


@dataclass(frozen=True)
class Draft:
    """A profile to be written: its name, its entries, and what is to be said of it."""

    name: str
    entries: Block
    found: tuple[str, ...]
    phases: tuple[Sized, ...]

    def file(self, head: str) -> Block:
        """All of cluster.yaml."""
        clusters = Entry("clusters", Block((Entry(self.name, self.entries),)))
        return Block((Remark(head), Remark(f"Every key: {KEYS}."), clusters))


def text(value: str) -> str:
    """Text in which cluster.yaml would fill in variables, with none in it."""
    return value.replace("$", "$$")


def local(wishes: Wishes, why: str) -> Draft:
    """A profile of this machine, where there is no Slurm."""
    phases = sizes.small(float("inf"), CPU_RANKS)
    asked = wishes.shared_dir
    entries: list[Item] = [
        Entry("description", "this machine; CPU and gloo, or its GPUs"),
        Entry("backend", "local"),
        Entry("shared_dir", text(str(asked)) if asked else place.LOCAL_SHARED_DIR),
        Entry("hardware", {"gpu": "any", "device": "auto", "gpus_per_node": CPU_RANKS}),
        *_on_cores(),
        _phases(phases),
    ]
    found = (f"no Slurm here ({why}): the profile runs on this machine",)
    return Draft(wishes.name or "local", Block(entries), found, tuple(phases))


def slurm(wishes: Wishes, answers: Answers, picked: Picked, environ: Mapping[str, str]) -> Draft:
    """A profile of the cluster that Slurm told of."""
    kind = picked.kind
    small = not kind.gpus or kind.gpu == LAB_GPU
    ranks = kind.gpus or min(CPU_RANKS, max(1, kind.cpus))
    phases = sizes.small(picked.nodes_of_a_job, ranks) if small else sizes.full(picked)
    one_host = place.one_machine(kind.hosts)
    alone = one_host or bool(answers.lab)  # a lab's nodes see this machine's files
    entries: list[Item] = [Entry("description", _description(answers, picked))]
    entries.append(Entry("backend", "slurm"))
    if answers.lab:
        entries.append(Entry("lab", True))
    runs = place.shared_dir(wishes.shared_dir, wishes.directory, environ, alone)
    python = place.python(alone)
    entries += _places(runs, python, wishes.directory, one_host)
    entries.append(Entry("hardware", _hardware(picked, ranks, small)))
    if modules := place.modules(environ):
        entries.append(Entry("setup", modules, "the modules of the shell that ran init"))
    elif not small:
        entries.append(
            Remark("setup: [module load cuda]   lines that each node runs first, if it needs any")
        )
    entries.append(Entry("slurm", _options(answers, picked, small)))
    if small:
        entries += _on_cores()
    if answers.lab:
        entries.append(Entry("limits", {"max_jobs": 2, "queue_wait_s": 900, "poll_s": 1}))
    if not small:
        entries.append(Entry("require", ["transports"]))
    entries.append(_phases(phases, "" if small else _share_words(picked)))
    if not small:
        entries += _expect(phases)
    name = wishes.name or _name(answers)
    return Draft(name, Block(entries), tuple(_found(answers, picked)), tuple(phases))


def _places(runs: Guess, python: Guess, suite: Path, one_host: bool) -> list[Item]:
    """Where runs go, what nodes do not share, and the interpreter."""
    told = f"it is below {DISK}, which nodes mostly have for themselves"
    below = [one.is_relative_to(DISK) for one in (Path(runs.value), suite, Path(python.value))]
    local: list[Item] = []
    if not one_host and any(below):
        if below[0] or below[1]:
            where = told if below[0] else told.replace("it is", "the suite is")
            runs = Guess(runs.value, "; ".join(filter(None, (runs.why, where))))
        if below[2]:
            python = Guess(python.value, "; ".join(filter(None, (python.why, told))))
    elif not one_host:
        local = [Entry("node_local", [DISK], f"nodes mostly have a {DISK} each")]
    return [
        Entry("shared_dir", text(runs.value), runs.why),
        *local,
        Entry("python", text(python.value), python.why),
    ]


def _name(answers: Answers) -> str:
    """Slurm's name of the cluster, as far as a profile may have it."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", answers.cluster).strip("-_")
    return plain or "cluster"


def _description(answers: Answers, picked: Picked) -> str:
    kind = picked.kind
    return (
        f"Slurm cluster {answers.cluster}, partition {picked.partition.name}: {kind.nodes} "
        f"node{'s' * (kind.nodes != 1)} of {words_of(kind.gpu, kind.gpus)}"
    )


def _hardware(picked: Picked, ranks: int, small: bool) -> Block:
    kind = picked.kind
    if small and kind.gpus:
        gpu, device, why = kind.gpu, "cpu", ""
    elif small:
        gpu, device, why = "none", "cpu", ""
    else:
        gpu, device = "any", "cuda"
        called = f"Slurm calls it {kind.gpu}" if kind.gpu else "Slurm does not name it"
        why = f"{called}; write the driver's name (nvidia-smi -L on a node) to have it compared"
    entries = [
        Entry("gpu", gpu, why),
        Entry("device", device),
        Entry("gpus_per_node", ranks, picked.why_kind if kind.gpus else "ranks on a node's CPUs"),
        Entry("nodes", kind.nodes),
    ]
    return Block(entries)


def _options(answers: Answers, picked: Picked, small: bool) -> Block:
    entries: list[Item] = [Entry("partition", text(picked.partition.name), picked.why)]
    default = answers.default_account
    mine = f"this user's accounts are {', '.join(answers.accounts)}"
    if default and len(answers.accounts) > 1:
        entries.append(Entry("account", text(default), f"it is the default one; {mine}"))
    elif answers.accounts and answers.needs_account:
        guess = mine if len(answers.accounts) > 1 else ""
        entries.append(Entry("account", text(default or answers.accounts[0]), guess))
    if small:
        entries.append(Entry("cpus_per_task", min(2, max(1, picked.kind.cpus))))
        entries.append(Entry("time", int(min(600, picked.partition.max_time) // 60) or 1))
    return Block(entries)


def _share_words(picked: Picked) -> str:
    kind = picked.kind
    return (
        f"{MARK}: CPUs and memory of a job are its GPUs' even share of a node ({kind.cpus} CPUs, "
        f"{kind.memory / 1024:.0f} GiB, of which a tenth stays with the system)"
    )


def _on_cores() -> list[Item]:
    """Ranks that share cores: one thread each, limits for small sizes, and no failure by times that
    depend on who else is at work there."""
    one_thread = Block((Entry("set", {"OMP_NUM_THREADS": 1}),))
    return [
        Entry("env", Block((Entry("common", one_thread),))),
        Entry("history_check", "warn"),
        Entry("stage_limits_s", Block(Entry(key, s) for key, s in sizes.STAGE_LIMITS_S.items())),
        Entry("sizes", "small"),
    ]


def _phases(phases: list[Sized], remark: str = "") -> Entry:
    items: list[Item] = [Remark(remark)] if remark else []
    for one in phases:
        if one.left_out:
            items.append(Remark(f"{one.name} is left out: {one.left_out}"))
            continue
        if one.gpus == sizes.NEEDS[one.name][1] and one.name.startswith("lora"):
            items.append(Remark(f"{MARK}: {one.name} downloads Mistral-7B to $HF_HOME of the node"))
        settings = Block(Entry(key, value) for key, value in one.settings.items())
        items.append(Entry(one.name, settings if one.settings else None))
    return Entry("phases", Block(items))


def _expect(phases: list[Sized]) -> list[Item]:
    """Transports: inside a node what any will do; between nodes what this machine hints at."""
    devices = place.infiniband()
    items: list[Item] = []
    for one in phases:
        if one.left_out or one.nodes * one.gpus < 2:
            continue
        expected: list[Item] = []
        if one.gpus > 1:
            expected.append(Entry("intra_node", ["P2P/*", "SHM*"]))
        if one.nodes == 1:
            expected.append(Entry("forbid", ["NET/*"]))
        elif devices:
            why = f"this machine has {', '.join(devices[:4])}; {INTER}"
            expected.append(Entry("inter_node", ["NET/IB*"], why))
        else:
            expected.append(
                Remark(
                    f"{MARK}: inter_node is not known, and a run is INCONCLUSIVE until it says "
                    f"{INTER}"
                )
            )
            expected.append(Remark("inter_node: [NET/IB*]"))
        keys = [item for item in expected if isinstance(item, Entry)]
        items.append(Entry(one.name, Block(expected)) if keys else _commented(one.name))
    return [Entry("expect", Block(items))] if any(isinstance(i, Entry) for i in items) else []


def _commented(name: str) -> Remark:
    return Remark(f"{MARK}: {name}: {{inter_node: [NET/IB*]}}: {INTER}")


def _found(answers: Answers, picked: Picked) -> list[str]:
    kind, partition = picked.kind, picked.partition
    names = ", ".join(answers.partitions)
    limit = partition.max_time
    hours = f"{limit / 3600:g} h" if 0 < limit < float("inf") else "no limit"
    said = [f"Slurm {answers.version}, cluster {answers.cluster}; partitions: {names}"]
    if answers.lab:
        said.append(f"it is the lab of {answers.lab}")
    elif conf := answers.environ.get("SLURM_CONF"):
        said.append(f"SLURM_CONF named it, and must for pytest, too: {conf}")
    said.append(
        f"partition {partition.name}{' (the default)' * partition.default}: {kind.nodes} "
        f"node{'s' * (kind.nodes != 1)} of {words_of(kind.gpu, kind.gpus)}, {kind.cpus} CPUs, "
        f"{kind.memory / 1024:.0f} GiB; a job may run: {hours}"
    )
    if answers.accounts:
        said.append(f"accounts: {', '.join(answers.accounts)}")
    return [*said, *picked.remarks]
